"""Compare the errors and the selection of runs computed in several precisions, by round.

    python benchmarks/precision.py results/speed/fp32 results/speed/bf16 [--round N] [--out results/speed/precision.md]

The folders come from `driftproof bench run`, or are archives of such folders. Every stream that all folders have is
compared over the rounds they share, up to the first change from or to bfloat16. With `--round`, all runs that reached
that round go into one table, and no limit applies.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from driftproof.bench import Results, Spec
from driftproof.bench.spec import distinguishing_fields
from driftproof.files import atomic_write
from driftproof.validation import distinguishing_items

LIMIT = 0.3
"""Percentage points that the mean error over all rounds may change with the precision."""

SELECTION = {
    "rejected": "rejected",
    "selected_known": "selected of the known",
    "selected_unknown": "selected of the unknown",
}
"""Fractions that a row may have, and their names in a table."""


@dataclass(frozen=True)
class RunSummary:
    """A run as one folder has it.

    Attributes:
        precisions: The precision of every row, by round.
        engine: The engines, joined if there are several.
        errors: The error of each round.
        selection: The fractions of `SELECTION` that the run has, by round.
    """

    precisions: list[list[str]]
    engine: str
    errors: list[float]
    selection: dict[str, list[float]]

    def precision(self, round: int | None = None) -> str:
        """Return the precisions of one round, or of all."""
        rounds = self.precisions if round is None else self.precisions[round - 1 : round]
        return ", then ".join(dict.fromkeys(itertools.chain.from_iterable(rounds)))

    def __str__(self) -> str:
        return f"{self.precision()} ({self.engine})"


def summarize_run(results: Results, spec: Spec) -> RunSummary:
    """Summarize a run up to the first change from or to bfloat16."""
    conditions = [stretch for stretch in results.runs[spec].stretches for _ in range(stretch["rows"])]
    kinds = [one.get("precision") or "PyTorch's default" for one in conditions]
    same = list(itertools.takewhile(lambda kind: (kind == "bf16") == (kinds[0] == "bf16"), kinds))
    each = len(spec.domains)
    rounds = len(same) // each
    engines = dict.fromkeys(one["engine"] for one in conditions[: rounds * each])
    precisions = [same[each * round : each * (round + 1)] for round in range(rounds)]
    shares = {measure: results.per_round(spec, measure)[:rounds] for measure in SELECTION}
    selection = {measure: values for measure, values in shares.items() if not any(map(math.isnan, values))}
    return RunSummary(precisions, ", then ".join(engines), results.per_round(spec)[:rounds], selection)


def find_shared_runs(folders: list[Results]) -> list[tuple[str, list[RunSummary]]]:
    """Return every stream of which all folders have a complete round, with its title."""
    shared = set.intersection(*(set(results.runs) for results in folders))
    streams = [spec for spec in shared if spec.task == "stream" and "error" in spec.measures]
    complete = [spec for spec in streams if all(results.rounds(spec) for results in folders)]
    found = {
        spec: [summarize_run(each, spec) for each in folders] for spec in sorted(complete, key=lambda spec: spec.name)
    }
    compared = {spec: runs for spec, runs in found.items() if all(run.errors for run in runs)}
    known = {spec for results in folders for spec in results.runs}
    return [(make_title(spec, known), runs) for spec, runs in compared.items()]


def make_title(spec: Spec, others: Iterable[Spec]) -> str:
    """Return the name of a run, and what distinguishes it from others with the same name."""
    same_name = [other for other in others if make_name(other) == make_name(spec)]
    facts = [
        {
            "network": each.model,
            "unknown": each.unknown,
            "seed": each.seed,
            "measures": " and ".join(each.measures),
            **dict(each.options),
        }
        for each in (spec, *same_name)
    ]
    return ", ".join([make_name(spec), *distinguishing_items(*facts), *distinguishing_fields(spec, same_name)])


def make_name(spec: Spec) -> str:
    """Return method, images and setting."""
    few = "" if spec.limit is None else f", the first {spec.limit} images of each corruption"
    return f"{spec.method} on {spec.images}, {spec.setting}{few}"


def format_rounds(runs: list[RunSummary]) -> list[str]:
    """Return the errors of every shared round, and the mean fractions selected, as lines of Markdown."""
    rounds = list(zip(*(run.errors for run in runs), strict=False))
    lines = ["| | " + " | ".join(map(str, runs)) + " |", "|---|" + "---:|" * len(runs)]
    lines += [f"| round {i} | " + " | ".join(f"{error:.2f}" for error in row) + " |" for i, row in enumerate(rounds, 1)]
    means = (fmean(errors) for errors in zip(*rounds, strict=True))
    lines.append("| mean | " + " | ".join(f"{mean:.2f}" for mean in means) + " |")
    for measure, words in SELECTION.items():
        if all(measure in run.selection for run in runs):
            shares = (100 * fmean(run.selection[measure][: len(rounds)]) for run in runs)
            lines.append(f"| {words}, mean | " + " | ".join(f"{share:.2f}" for share in shares) + " |")
    return lines


def compute_differences(runs: list[RunSummary]) -> list[tuple[RunSummary, RunSummary, float, float]]:
    """Return for every two runs the mean difference over all rounds, and the largest of one round."""
    found = []
    for one, other in itertools.combinations(runs, 2):
        gaps = [second - first for first, second in zip(one.errors, other.errors, strict=False)]
        found.append((one, other, fmean(gaps), max(map(abs, gaps))))
    return found


def format_run(title: str, runs: list[RunSummary]) -> str:
    """Return the tables of one run: errors by round, and differences."""
    rows = (
        f"| {one} | {other} | {mean:+.2f} | {farthest:.2f} |"
        for one, other, mean, farthest in compute_differences(runs)
    )
    head = ["", "| | | over all rounds | at most in one round |", "|---|---|---:|---:|"]
    return "\n".join([title, "", *format_rounds(runs), *head, *rows, ""])


def format_single_round(round: int, names: list[str], shared: list[tuple[str, list[RunSummary]]]) -> str:
    """Return the errors of one round in every folder, and the last folder's minus the first's."""
    there = [(title, runs) for title, runs in shared if all(len(run.errors) >= round for run in runs)]
    by_folder = zip(*(runs for _, runs in there), strict=True)
    kinds = [" or ".join(dict.fromkeys(run.precision(round) for run in runs)) for runs in by_folder]
    heads = [f"{name}: {kind}" for name, kind in zip(names, kinds, strict=True)]
    lines = [f"Round {round}; error, %:", "", f"| | {' | '.join(heads)} | difference |"]
    lines.append("|---|" + "---:|" * (len(heads) + 1))
    for title, runs in there:
        errors = [run.errors[round - 1] for run in runs]
        lines.append(f"| {title} | {' | '.join(f'{error:.2f}' for error in errors)} | {errors[-1] - errors[0]:+.2f} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Compare, print, write, and return 1 if the precision changes the error too much."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", type=Path, nargs="+", help="two or more")
    parser.add_argument("--round", type=int, help="this round alone")
    parser.add_argument("--out", type=Path, help="file for the tables")
    arguments = parser.parse_args()
    folders = [Results(folder) for folder in arguments.folders]
    shared = find_shared_runs(folders)
    if len(folders) < 2 or not shared:
        print("Expected two or more folders that share a complete round of a run.")
        return 2
    page = (
        format_single_round(arguments.round, [folder.name for folder in arguments.folders], shared)
        if arguments.round
        else "\n".join(format_run(f"{title}; errors and shares, %:", runs) for title, runs in shared)
    )
    print(page)
    if arguments.out:
        with atomic_write(arguments.out) as unfinished:
            unfinished.write_text(page, encoding="utf-8")
    pairs = [] if arguments.round else [pair for _, runs in shared for pair in compute_differences(runs)]
    within = all(abs(mean) <= LIMIT for one, other, mean, _ in pairs if one.precision() != other.precision())
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
