"""Tables of what `sentinel_research.py` found, as Markdown.

python benchmarks/sentinel_table.py results/sentinel/research-*.jsonl > results/sentinel/research.md
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from sentinel_jobs import Learner, Sentinel

STREAMS = [("cifar10", "closed"), ("cifar10", "open"), ("cifar100", "closed"), ("cifar100", "open")]
SHOWN = (
    "l", "lx", "f", "fg", "lxf", "lxfg", "lfk", "lyfk", "lyfk/learner 0.4", "lyfk/balanced 0.5 1000", "lxs", "em",
    "emfg",
)  # fmt: skip
MEANING = (
    "l: the learner on the image, x: on its mirror image, y: on that moved by a pixel to the right and down, f and g: "
    "the frozen network on the image and its mirror image, k: on that moved to the left and up, s: the sentinel, e and "
    "m: the learner's moving average on the image and its mirror image; several letters: the mean of "
    "log-probabilities; learner 0.4: with that share of the learner's two opinions; balanced 0.5 1000: half of the "
    "logarithm of how often the last 1,000 images were of each class is subtracted"
)


def describe(choice: dict[str, Any], kind: str) -> str:
    """The settings in which a variant differs from the defaults of the script."""
    usual = dataclasses.asdict(Learner("") if kind == "learner" else Sentinel(""))
    usual = {name: list(value) if isinstance(value, tuple) else value for name, value in usual.items()}
    unused = {"name"} | ({"members"} if choice.get("loss") != "ens" else set())
    differing = {
        name: value for name, value in choice.items() if name in usual.keys() - unused and value != usual[name]
    }
    return ", ".join(f"{name} {value}" for name, value in differing.items()) or "defaults"


def last(values: list[float] | None) -> str:
    """The value of the last round."""
    return f"{values[-1]:.2f}" if values else ""


def make_rows(lines: list[dict[str, Any]], kind: str) -> dict[str, dict[tuple[str, str], dict[str, Any]]]:
    """The runs of a kind by variant and stream."""
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for line in lines:
        if line["kind"] == kind:
            found.setdefault(line["choice"]["name"], {})[line["set"], line["stream"]] = line
    return found


def print_learners(lines: list[dict[str, Any]]) -> None:
    """Print a table of errors for each stream."""
    rows = make_rows(lines, "learner")
    for place in STREAMS:
        if not any(place in runs for runs in rows.values()):
            continue
        print(f"### Learners, {place[0]}, {place[1]}: error in %\n")
        print(f"| variant | settings | {' | '.join(SHOWN)} | kept known | kept unknown |")
        print(f"|---|---|{'---:|' * (len(SHOWN) + 2)}")
        for name, runs in rows.items():
            if place in runs:
                run = runs[place]
                errors = " | ".join(last(run["errors"].get(letters)) for letters in SHOWN)
                kept = f"{last(run['kept']['known'])} | {last(run['kept'].get('unknown'))}"
                print(f"| {name} | {describe(run['choice'], 'learner')} | {errors} | {kept} |")
        print()


def print_sentinels(lines: list[dict[str, Any]]) -> None:
    """Print a table of detectors."""
    print("### Sentinels\n")
    print(
        "| variant | settings | stream | AUROC | error | not repelled: known | unknown |\n"
        "|---|---|---|---:|---:|---:|---:|"
    )
    for name, runs in make_rows(lines, "sentinel").items():
        for place, run in runs.items():
            kept = run["not_repelled"]
            numbers = (run["auroc_energy"], run["errors"]["sentinel"], kept["known"], kept.get("unknown"))
            shown = " | ".join(map(last, numbers))
            print(f"| {name} | {describe(run['choice'], 'sentinel')} | {' '.join(place)} | {shown} |")
    print()


def main() -> None:
    """Print the tables of every file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path, nargs="+")
    for path in parser.parse_args().files:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        limit, rounds = lines[0]["limit"], lines[0]["rounds"]
        print(f"## {path.stem}\n")
        print(f"Held-out corruptions, {limit} images of each, {rounds} round(s); numbers of the last one. {MEANING}.\n")
        print_learners(lines)
        print_sentinels(lines)


if __name__ == "__main__":
    main()
