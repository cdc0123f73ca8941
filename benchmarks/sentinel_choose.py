"""Choose what the held-out search compared last, by rules that were fixed before it ran, and print it.

- `detector_pull`: the one whose AUROC is highest, over the rounds that all finished: the mean of the mean of all
  rounds and the last round, over both sets.
- `lr` and `pull`: those with the smallest sum of errors of the four streams, of the answer without the sentinel
  (learner, its mirror image, frozen network); unless it is smaller by more than 0.1 points than with the present
  defaults, these stay.

    python benchmarks/sentinel_choose.py fifth-*.jsonl [--write]
"""

import argparse
import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

PRESENT = {"cifar10 closed": 7.80, "cifar10 open": 8.89, "cifar100 closed": 30.49, "cifar100 open": 32.79}
"""Errors of the present defaults in the search before: learner `lambda0.5`, answer `lxf`."""

_ENOUGH = 0.1
_METHOD = Path("src/driftproof/methods/sentinel.py")


def choose_pull(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The sentinel's pull; nothing unless every candidate ran on both sets."""
    areas: dict[float, dict[str, list[float]]] = {}
    for row in rows:
        if row["kind"] == "sentinel":
            areas.setdefault(row["choice"]["pull"], {})[row["set"]] = row["auroc_energy"]
    rounds = min((len(found) for sets in areas.values() for found in sets.values()), default=0)
    if rounds == 0 or any(len(sets) < 2 for sets in areas.values()):
        return {}
    scores = {
        pull: fmean((fmean(found[:rounds]) + found[rounds - 1]) / 2 for found in sets.values())
        for pull, sets in areas.items()
    }
    print({pull: round(score, 3) for pull, score in scores.items()}, rounds, "rounds")
    return {"detector_pull": max(scores, key=lambda pull: scores[pull])}


def choose_learner(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The learner's rates; nothing if the present ones stay."""
    sums: dict[tuple[float, float], dict[str, float]] = {}
    for row in rows:
        if row["kind"] == "learner":
            rates = row["choice"]["lr"], row["choice"]["pull"]
            sums.setdefault(rates, {})[f"{row['set']} {row['stream']}"] = row["errors"]["lxf"][0]
    totals = {rates: sum(found.values()) for rates, found in sums.items() if found.keys() == PRESENT.keys()}
    print({str(rates): round(total, 2) for rates, total in totals.items()}, "present", sum(PRESENT.values()))
    best = min(totals, key=lambda rates: totals[rates], default=None)
    if best is None or totals[best] > sum(PRESENT.values()) - _ENOUGH:
        return {}
    return {"lr": best[0], "pull": best[1]}


def write(chosen: dict[str, float]) -> None:
    """Make the choice the method's default."""
    text = _METHOD.read_text(encoding="utf-8")
    for name, value in chosen.items():
        text = re.sub(rf"(?<![a-z_]){name}: float = [0-9.e-]+", f"{name}: float = {value:g}", text)
    _METHOD.write_text(text, encoding="utf-8")


def main() -> None:
    """Read rows, print the choice, and with `--write` make it the default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    files = [path for path in arguments.files if path.exists()]
    rows = [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    chosen = choose_pull(rows) | choose_learner(rows)
    print(json.dumps(chosen))
    if arguments.write:
        write(chosen)


if __name__ == "__main__":
    main()
