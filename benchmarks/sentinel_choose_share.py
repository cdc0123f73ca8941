"""Choose between one share of the stream and shares that grow with depth, by a rule fixed before the search ran.

The rule of `sentinel_choose_answer.py` for the default's answer, lyfk: the smallest mean of relative errors over the
four streams, at least 0.5 % better than the default, on no closed stream worse by more than 0.05 points, and on no open
one by more than 0.2: there the default is 0.8 points below its goals or more, on closed streams above them. The
sentinel has the same shares, and its AUROC may be lower by at most 0.3 points, on the mean of both sets. Else the
default stays.

    python benchmarks/sentinel_choose_share.py tenth.jsonl
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from sentinel_choose_answer import AUROC_LOSS, choose_answer

PRESENT = "default", "lyfk"
OPEN_LOSS = 0.2


def choose_share(rows: list[dict[str, Any]]) -> str:
    """The name of the learner with the best shares; the default unless all of its own rows are there."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["kind"] == "sentinel" and row["stream"] == "open":
            found.setdefault(row["choice"]["name"], {})[row["set"]] = row["auroc_energy"][-1]
    areas = {name: fmean(sets.values()) for name, sets in found.items() if len(sets) == 2}
    print("AUROC:", {name: round(area, 2) for name, area in areas.items()})
    if PRESENT[0] not in areas:
        return PRESENT[0]
    allowed = {name for name, area in areas.items() if area >= areas[PRESENT[0]] - AUROC_LOSS}
    learners = [row for row in rows if row["kind"] == "learner" and row["choice"]["name"] in allowed]
    return choose_answer(learners, PRESENT, PRESENT[1:], OPEN_LOSS)[0]


def main() -> None:
    """Read rows and print the choice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path, nargs="+")
    files = parser.parse_args().files
    rows = [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    name = choose_share(rows)
    shares = next(row["choice"]["alpha"] for row in rows if row["kind"] == "learner" and row["choice"]["name"] == name)
    print(json.dumps({"share": shares}))


if __name__ == "__main__":
    main()
