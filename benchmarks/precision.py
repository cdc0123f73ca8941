"""What fewer digits do to the error of a stream: one cell, measured at two precisions, round by round.

    python benchmarks/precision.py results/classification results/speed/bf16 [--out results/speed]

Both folders come from `driftproof bench run`, or are archives of such; every cell that both hold is compared over the
rounds that one of them computed in bfloat16 and the other did not.
"""

import argparse
import itertools
import sys
from pathlib import Path

from driftproof.bench import Results, Spec
from driftproof.files import written_whole

LIMIT = 0.3
"""Percentage points by which the error of a round may change."""


def rounds(results: Results, spec: Spec) -> tuple[str, list[float]]:
    """How a cell was computed at first, and its error in each complete round until bfloat16 came or went."""
    kinds = [conditions.get("precision") or "PyTorch's default" for conditions in results.cells[spec].conditions]
    alike = list(itertools.takewhile(lambda kind: (kind == "bf16") == (kinds[0] == "bf16"), kinds))
    return ", then ".join(dict.fromkeys(alike)), results.per_round(spec)[: len(alike) // len(spec.domains)]


def compared(one: Results, other: Results) -> list[tuple[str, list[tuple[float, float]]]]:
    """For each cell that both hold at different precisions: a title, and the errors of every round both reached."""
    found = []
    for spec in sorted(one.cells.keys() & other.cells.keys(), key=lambda spec: spec.name):
        (kinds, errors), (other_kinds, other_errors) = rounds(one, spec), rounds(other, spec)
        if kinds != other_kinds:
            title = f"{spec.method} on {spec.images}, {spec.setting} | {kinds} | {other_kinds}"
            found.append((title, list(zip(errors, other_errors, strict=False))))
    return found


def told(found: list[tuple[str, list[tuple[float, float]]]]) -> str:
    """The same as tables, each with its largest difference."""
    lines = []
    for title, pairs in found:
        lines += [f"| {title} | difference |", "|---|---:|---:|---:|"]
        lines += [f"| round {i} | {one:.2f} | {two:.2f} | {two - one:+.2f} |" for i, (one, two) in enumerate(pairs, 1)]
        means = [sum(side) / len(pairs) for side in zip(*pairs, strict=True)]
        lines += [f"| mean | {means[0]:.2f} | {means[1]:.2f} | {means[1] - means[0]:+.2f} |", ""]
        lines += [f"Largest difference of a round: {farthest(pairs):.2f} points, at most {LIMIT:g}.", ""]
    return "\n".join(lines)


def farthest(pairs: list[tuple[float, float]]) -> float:
    """By how much the errors of any round differ at most."""
    return max(abs(two - one) for one, two in pairs)


def main() -> int:
    """Compare, print, write down, and fail if a round is too far off."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", type=Path, nargs=2)
    parser.add_argument("--out", type=Path, help="folder for precision.md")
    arguments = parser.parse_args()
    found = compared(*map(Results, arguments.folders))
    if not found:
        print("The folders share no cell at different precisions.")
        return 2
    print(told(found))
    if arguments.out:
        with written_whole(arguments.out / "precision.md") as unfinished:
            unfinished.write_text(told(found), encoding="utf-8")
    return 0 if all(farthest(pairs) <= LIMIT for _, pairs in found) else 1


if __name__ == "__main__":
    sys.exit(main())
