"""What fewer digits do to the error of a stream and to what is selected: one cell, measured several times, by rounds.

    python benchmarks/precision.py results/speed/fp32 results/speed/bf16 [--round N] [--out results/speed/precision.md]

The folders come from `driftproof bench run`, or are archives of such; every stream that all of them hold is compared
over the rounds that they have in common, as far as each was computed in bfloat16 throughout or not at all. With
`--round` all cells that have got so far go into one table of that round, and nothing is judged.
"""

import argparse
import itertools
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from driftproof.bench import Results, Spec
from driftproof.files import atomic_write
from driftproof.report.series import distinguishing_fields
from driftproof.validation import distinguishing_items

LIMIT = 0.3
"""Percentage points by which the error over all rounds may change with the precision."""

SELECTION = {
    "rejected": "rejected",
    "selected_known": "selected of the known",
    "selected_unknown": "selected of the unknown",
}
"""Shares of the samples that a row may have, and how a table calls them."""


@dataclass(frozen=True)
class Run:
    """A cell as one folder has it: how the rows of each round were computed, its error there, and what it selected."""

    precisions: list[list[str]]
    engine: str
    errors: list[float]
    selection: dict[str, list[float]]

    def precision(self, round: int | None = None) -> str:
        """How it was computed, in one round or altogether."""
        rounds = self.precisions if round is None else self.precisions[round - 1 : round]
        return ", then ".join(dict.fromkeys(itertools.chain.from_iterable(rounds)))

    def __str__(self) -> str:
        return f"{self.precision()} ({self.engine})"


def run_of(results: Results, spec: Spec) -> Run:
    """A cell until bfloat16 came or went."""
    conditions = results.runs[spec].conditions
    kinds = [one.get("precision") or "PyTorch's default" for one in conditions]
    alike = list(itertools.takewhile(lambda kind: (kind == "bf16") == (kinds[0] == "bf16"), kinds))
    each = len(spec.domains)
    rounds = len(alike) // each
    engines = dict.fromkeys(one["engine"] for one in conditions[: rounds * each])
    precisions = [alike[each * round : each * (round + 1)] for round in range(rounds)]
    there = [measure for measure in SELECTION if measure in results.runs[spec].rows[0]]
    selection = {measure: results.per_round(spec, measure)[:rounds] for measure in there}
    return Run(precisions, ", then ".join(engines), results.per_round(spec)[:rounds], selection)


def in_common(everything: list[Results]) -> list[tuple[str, list[Run]]]:
    """Every stream of which all folders hold a complete round, and what it is called."""
    shared = set.intersection(*(set(results.runs) for results in everything))
    streams = [spec for spec in shared if spec.task == "stream" and "error" in spec.measures]
    complete = [spec for spec in streams if all(results.rounds(spec) for results in everything)]
    found = {spec: [run_of(each, spec) for each in everything] for spec in sorted(complete, key=lambda spec: spec.name)}
    compared = {spec: runs for spec, runs in found.items() if all(run.errors for run in runs)}
    known = {spec for results in everything for spec in results.runs}
    return [(title_of(spec, known), runs) for spec, runs in compared.items()]


def title_of(spec: Spec, others: Iterable[Spec]) -> str:
    """What a cell is called; more than its name where others have the same."""
    alike = [other for other in others if name_of(other) == name_of(spec)]
    facts = [
        {
            "network": each.model,
            "unknown": each.unknown,
            "seed": each.seed,
            "measures": " and ".join(each.measures),
            **dict(each.options),
        }
        for each in (spec, *alike)
    ]
    return ", ".join([name_of(spec), *distinguishing_items(*facts), *distinguishing_fields(spec, alike)])


def name_of(spec: Spec) -> str:
    """Method, images and setting."""
    few = "" if spec.limit is None else f", the first {spec.limit} images of each corruption"
    return f"{spec.method} on {spec.images}, {spec.setting}{few}"


def side_by_side(runs: list[Run]) -> list[str]:
    """The errors of every round that all have reached, and what was selected over these, as lines of Markdown."""
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


def apart(runs: list[Run]) -> list[tuple[Run, Run, float, float]]:
    """For every two runs, by how much they differ over all rounds, and at most in one."""
    found = []
    for one, other in itertools.combinations(runs, 2):
        gaps = [second - first for first, second in zip(one.errors, other.errors, strict=False)]
        found.append((one, other, fmean(gaps), max(map(abs, gaps))))
    return found


def told(title: str, runs: list[Run]) -> str:
    """The runs of a cell beside each other, and how far apart they are."""
    rows = (f"| {one} | {other} | {mean:+.2f} | {farthest:.2f} |" for one, other, mean, farthest in apart(runs))
    head = ["", "| | | over all rounds | at most in one round |", "|---|---|---:|---:|"]
    return "\n".join([title, "", *side_by_side(runs), *head, *rows, ""])


def told_of(round: int, names: list[str], cells: list[tuple[str, list[Run]]]) -> str:
    """What every cell has in one round, as each folder computed that, and how far the last is from the first."""
    there = [(title, runs) for title, runs in cells if all(len(run.errors) >= round for run in runs)]
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
    """Compare, print, write down, and fail if fewer digits change the error too much."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", type=Path, nargs="+", help="two or more")
    parser.add_argument("--round", type=int, help="this round alone")
    parser.add_argument("--out", type=Path, help="file for the tables")
    arguments = parser.parse_args()
    everything = [Results(folder) for folder in arguments.folders]
    cells = in_common(everything)
    if len(everything) < 2 or not cells:
        print("Expected two folders or more that share a cell, and a complete round of it.")
        return 2
    page = (
        told_of(arguments.round, [folder.name for folder in arguments.folders], cells)
        if arguments.round
        else "\n".join(told(f"{title}; errors and shares, %:", runs) for title, runs in cells)
    )
    print(page)
    if arguments.out:
        with atomic_write(arguments.out) as unfinished:
            unfinished.write_text(page, encoding="utf-8")
    pairs = [] if arguments.round else [pair for _, runs in cells for pair in apart(runs)]
    within = all(abs(mean) <= LIMIT for one, other, mean, _ in pairs if one.precision() != other.precision())
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
