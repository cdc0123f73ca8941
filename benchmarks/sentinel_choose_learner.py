"""Choose the learner, and in how many layers the sentinel learns, by the rules of the searches before.

- Learner, with the default's answer: that of `sentinel_choose_answer.py` after two rounds, the smallest mean of
  relative errors over the four streams, at least 0.5 % below the present learner's. It may be worse by 0.05 points on
  closed streams and by 0.2 on open ones, where the present one is 0.8 points or more below its goals.
- Sentinel: the fewest layers whose AUROC after two rounds is at most 0.3 points lower, on the mean of both sets.

    python benchmarks/sentinel_choose_learner.py results/sentinel/research-1[4-8].jsonl
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from sentinel_choose_answer import AUROC_LOSS, choose_answer

PRESENT, ANSWER = "default", "lyfk"
ROUNDS = 2
OPEN_LOSS = 0.2


def choose_learner(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What distinguishes the best learner; the present one's settings unless another one is better."""
    learners = [row for row in rows if row["kind"] == "learner" and row["rounds"] == ROUNDS]
    name, _ = choose_answer(learners, (PRESENT, ANSWER), (ANSWER,), OPEN_LOSS)
    choice: dict[str, Any] = next((row["choice"] for row in learners if row["choice"]["name"] == name), {})
    return {key: choice[key] for key in ("name", "scope", "lr", "eps", "pull", "alpha") if key in choice}


def choose_layers(rows: list[dict[str, Any]]) -> float:
    """The share of its layers in which the sentinel learns; all of them unless fewer do as well."""
    found: dict[str, tuple[float, dict[str, float]]] = {}
    for row in rows:
        if row["kind"] == "sentinel" and row["stream"] == "open" and row["rounds"] == ROUNDS:
            choice = row["choice"]
            found.setdefault(choice["name"], (choice["layers"], {}))[1][row["set"]] = row["auroc_energy"][-1]
    areas = {name: (layers, fmean(sets.values())) for name, (layers, sets) in found.items() if len(sets) == 2}
    print("AUROC:", {name: round(area, 2) for name, (_, area) in areas.items()})
    if PRESENT not in areas:
        return 1.0
    return min(layers for layers, area in areas.values() if area >= areas[PRESENT][1] - AUROC_LOSS)


def main() -> None:
    """Read rows and print the choices."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path, nargs="+")
    files = parser.parse_args().files
    rows = [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    print(json.dumps({"learner": choose_learner(rows), "layers": choose_layers(rows)}))


if __name__ == "__main__":
    main()
