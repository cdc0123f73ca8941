"""Choose the shares of the stream, and the views of the answer, by a rule fixed before the search ran.

An answer has four members, as the default's lyfk: the learner and the frozen network on the images, and each on another
view of them. The rule is that of `sentinel_choose_answer.py`: the smallest mean of relative errors over the four
streams, at least 0.5 % better than the default, on no closed stream worse by more than 0.05 points, and on no open one
by more than 0.2: there the default is 0.8 points below its goals or more, on closed streams above them. The sentinel
has the same shares, and its AUROC may be lower by at most 0.3 points, on the mean of both sets. Else the default stays.

    python benchmarks/sentinel_choose_views.py results/sentinel/research-12.jsonl
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from sentinel_choose_answer import AUROC_LOSS, choose_answer
from sentinel_jobs import KERNELS

PRESENT = "default", "lyfk"
ANSWERS = (PRESENT[1], *(f"lf {ours} {theirs}" for ours in KERNELS for theirs in KERNELS))
OPEN_LOSS = 0.2


def choose(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """The name of the learner with the best shares, and its answer; the default's unless all of its own rows are there.

    Args:
        rows: Those of a search.
    """
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["kind"] == "sentinel" and row["stream"] == "open":
            found.setdefault(row["choice"]["name"], {})[row["set"]] = row["auroc_energy"][-1]
    areas = {name: fmean(sets.values()) for name, sets in found.items() if len(sets) == 2}
    print("AUROC:", {name: round(area, 2) for name, area in areas.items()})
    if PRESENT[0] not in areas:
        return PRESENT
    allowed = {name for name, area in areas.items() if area >= areas[PRESENT[0]] - AUROC_LOSS}
    learners = [row for row in rows if row["kind"] == "learner" and row["choice"]["name"] in allowed]
    return choose_answer(learners, PRESENT, ANSWERS, OPEN_LOSS)


def main() -> None:
    """Read rows and print the choice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path, nargs="+")
    files = parser.parse_args().files
    rows = [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    name, answer = choose(rows)
    shares = next(row["choice"]["alpha"] for row in rows if row["kind"] == "learner" and row["choice"]["name"] == name)
    print(json.dumps({"share": shares, "answer": answer}))


if __name__ == "__main__":
    main()
