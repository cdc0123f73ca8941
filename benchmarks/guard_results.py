"""Results of the guard benchmark: its lines on disk, the choice of runs, the verdict and the tables."""

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guard_runs import Run, relative_entropy
from tables import format_protocol

__all__ = [
    "Line",
    "append_line",
    "choose",
    "classify",
    "format_page",
    "indicator_table",
    "is_good",
    "judge",
    "read_lines",
]

Line = dict[str, Any]

COLLAPSED = 10.0
"""Points above the source network's error in the last quarter that make a run collapsed."""

RESCUED = 2.0
"""Points above it that a rescued run may have."""

MISSED = 1
"""Collapsed runs, of twenty, that need not be rescued."""

BATCHES_PER_ALARM = 10_000
"""Healthy batches for each false alarm."""

MEMORY = 0.8
"""What a moving average keeps from one recorded batch to the next."""


def append_line(path: Path, line: Line) -> None:
    """Append a run to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_lines(folder: Path, name: str) -> list[Line]:
    """Read the runs of all parts, in an order that does not depend on the parts."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob(f"{name}-*.jsonl"))]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return sorted(lines, key=lambda line: str(Run(**line["run"])))


def choose(lines: Sequence[Line], count: int) -> tuple[list[Line], list[Line]]:
    """Return `count` collapsed and `count` healthy runs, spread over methods and orders."""
    collapsed, healthy = ([line for line in lines if classify(line) == kind] for kind in ("collapsed", "healthy"))
    return _spread(collapsed, count), _spread(healthy, count)


def classify(line: Line) -> str:
    """Return "collapsed", "healthy" or "between" by the error at the end."""
    if line["final"] > line["source"] + COLLAPSED:
        return "collapsed"
    return "healthy" if line["final"] <= line["source"] else "between"


def _spread(lines: Sequence[Line], count: int) -> list[Line]:
    """Take the first run of every method and order, then the second, and so on; which come first is drawn once."""
    drawn = random.Random(0).sample(lines, len(lines))
    seen: Counter[tuple[str, str]] = Counter()
    ranked = []
    for line in drawn:
        group = (line["run"]["method"], line["run"]["order"])
        ranked.append((seen[group], line))
        seen[group] += 1
    return [line for _, line in sorted(ranked, key=lambda pair: pair[0])[:count]]


def judge(chosen: tuple[list[Line], list[Line]], guarded: Sequence[Line]) -> dict[str, float]:
    """Count what guards rescued, and the alarms in healthy runs."""
    by_run = {Run(**line["run"]): line for line in guarded}
    collapsed, healthy = ([by_run[Run(**line["run"])] for line in lines] for lines in chosen)
    return {
        "collapsed": len(collapsed),
        "rescued": sum(is_rescued(line) for line in collapsed),
        "noticed": sum(line["alarms"] > 0 for line in collapsed),
        "healthy": len(healthy),
        "still at or below source": sum(line["final"] <= line["source"] for line in healthy),
        "healthy batches": sum(line["batches"] for line in healthy),
        "false alarms": sum(line["alarms"] for line in healthy),
        "batches in false alarm": sum(line["alarmed_batches"] for line in healthy),
    }


def is_rescued(line: Line) -> bool:
    """Whether the final error is near the source network's or below."""
    return bool(line["final"] <= line["source"] + RESCUED)


def is_good(verdict: Mapping[str, float], runs: int) -> bool:
    """Whether enough runs were found, enough are rescued, and alarms in healthy runs are rare enough."""
    return (
        verdict["collapsed"] == verdict["healthy"] == runs
        and verdict["rescued"] >= runs - MISSED
        and verdict["false alarms"] * BATCHES_PER_ALARM <= max(verdict["healthy batches"], BATCHES_PER_ALARM)
    )


def format_page(
    chosen: tuple[list[Line], list[Line]],
    guarded: Sequence[Line],
    verdicts: Mapping[str, Mapping[str, float]],
    protocol: Mapping[str, Any],
) -> str:
    """Return the verdicts and one row per run as Markdown."""
    by_arm = {arm: {Run(**line["run"]): line for line in guarded if line["arm"] == arm} for arm in verdicts}
    names = list(next(iter(verdicts.values())))
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    lines += [
        f"| {arm} | " + " | ".join(str(verdict[name]) for name in names) + " |" for arm, verdict in verdicts.items()
    ]
    lines += ["", "Errors in %, last quarter of the stream."]
    for title, runs in zip(("Collapsed without guards", "Healthy without guards"), chosen, strict=True):
        heads = "".join(f" {arm} | first alarm | alarms |" for arm in by_arm)
        lines += ["", f"| {title} | source | no guards |{heads}", "|---|---:|---:|" + "---:|---:|---:|" * len(by_arm)]
        for line in runs:
            run = Run(**line["run"])
            cells = [str(run), f"{line['source']:.1f}", f"{line['final']:.1f}"]
            for again in (lines_of[run] for lines_of in by_arm.values()):
                first = "" if again["first_alarm"] is None else str(again["first_alarm"])
                cells += [f"{again['final']:.1f}", first, str(again["alarms"])]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, *format_protocol(protocol)])


def indicator_table(lines: Sequence[Line]) -> str:
    """Return the range of each indicator in healthy runs and in the last quarter of collapsed ones, as Markdown."""
    lines = [line for line in lines if "series" in line]
    collapsed, healthy = choose(lines, len(lines))
    rows = [
        "| moving average | healthy: min | 1 % | median | 99 % | max | collapsed, last quarter: min | median | max |"
    ]
    rows.append("|---|" + "---:|" * 8)
    if not collapsed or not healthy:
        return f"{len(collapsed)} collapsed runs and {len(healthy)} healthy ones of {len(lines)}: no table."
    for name in smooth(healthy[0]):
        calm = torch.cat([smooth(line)[name] for line in healthy])
        ended = [smooth(line)[name] for line in collapsed]
        wild = torch.stack([values[3 * len(values) // 4 :].mean() for values in ended])
        numbers = [*quantiles(calm, 0, 0.01, 0.5, 0.99, 1), *quantiles(wild, 0, 0.5, 1)]
        rows.append(f"| {name} | " + " | ".join(f"{number:.3f}" for number in numbers) + " |")
    return "\n".join([*rows, "", f"{len(collapsed)} collapsed runs and {len(healthy)} healthy ones of {len(lines)}."])


def smooth(line: Line) -> dict[str, Tensor]:
    """Return the moving averages of a run's indicators; entropies are those of averaged mean predictions."""
    series = {name: torch.tensor(values) for name, values in line["series"].items() if name != "batch"}
    ours, frozen, source = (
        relative_entropy(average(series[f"{name}mean_prediction"])) for name in ("", "frozen_", "source_")
    )
    averages = {"mean_entropy": ours, "ratio": ours / frozen, "ratio to source": ours / source}
    plain = ("disagreement", "source_disagreement", "entropy", "distance", "kept")
    return averages | {name: average(series[name]) for name in plain}


def average(values: Tensor) -> Tensor:
    """Return the moving average of a series along its first dimension, without a bias towards its start."""
    averages, weight, total = [], 0.0, torch.zeros_like(values[0])
    for value in values:
        total, weight = MEMORY * total + (1 - MEMORY) * value, MEMORY * weight + (1 - MEMORY)
        averages.append(total / weight)
    return torch.stack(averages)


def quantiles(values: Tensor, *shares: float) -> list[float]:
    """Return quantiles of a series."""
    return torch.quantile(values.float(), torch.tensor(list(map(float, shares)))).tolist()
