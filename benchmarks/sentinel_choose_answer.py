"""Choose the learner, its answer and the sentinel's pull from a held-out search, by rules fixed before it ran.

- Learner and answer: the pair with the smallest mean of relative errors, each stream's error over that of the present
  pair (`present`, lxfg). It must be at least 0.5 % better in that mean, and on no stream worse by more than 0.05
  points; else the present pair stays. An answer has four members, as the present one: the learner on the image and on a
  mirror image, the frozen network likewise. The mirror images may be moved by a pixel.
- `detector_pull`: a sentinel that is pulled back cannot go astray without limit, so it is preferred, unless in the last
  round that all runs finished its AUROC is lower by more than 0.3 points on the mean of both sets.

    python benchmarks/sentinel_choose_answer.py seventh-*.jsonl long_pull-*.jsonl
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

STREAMS = tuple((images, kind) for images in ("cifar10", "cifar100") for kind in ("closed", "open"))
ANSWERS = ("lxfg", "lyfg", "lxfh", "lyfh", "lyfk")
PRESENT = "present", "lxfg"
ENOUGH, LOSS, AUROC_LOSS = 0.005, 0.05, 0.3
PULLED = 2e-3


def choose_answer(
    rows: list[dict[str, Any]],
    present: tuple[str, str] = PRESENT,
    answers: tuple[str, ...] = ANSWERS,
    open_loss: float = LOSS,
) -> tuple[str, str]:
    """The learner and the answer; open streams may lose as many points as `open_loss`."""
    found: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for row in rows:
        if row["kind"] == "learner":
            for answer in answers:
                if answer in row["errors"]:
                    by_stream = found.setdefault((row["choice"]["name"], answer), {})
                    by_stream[row["set"], row["stream"]] = row["errors"][answer][-1]
    whole = {pair: [errors[place] for place in STREAMS] for pair, errors in found.items() if len(errors) == 4}
    if present not in whole:
        return present
    usual = whole[present]
    relative = {
        pair: fmean(ours / theirs for ours, theirs in zip(errors, usual, strict=True)) for pair, errors in whole.items()
    }
    for pair in sorted(relative, key=lambda pair: relative[pair]):
        print(f"{pair[0]:22}{pair[1]:6}", *(f"{error:6.2f}" for error in whole[pair]), f"{relative[pair]:.4f}")
    losses = {"closed": LOSS, "open": open_loss}
    limits = [error + losses[kind] for error, (_, kind) in zip(usual, STREAMS, strict=True)]
    allowed = [
        pair
        for pair, errors in whole.items()
        if relative[pair] <= 1 - ENOUGH and all(a <= b for a, b in zip(errors, limits, strict=True))
    ]
    return min(allowed, key=lambda pair: relative[pair], default=present)


def choose_pull(rows: list[dict[str, Any]]) -> float:
    """The sentinel's pull; none unless both ran on both sets."""
    areas = {
        (row["choice"]["pull"], row["set"]): row["auroc_energy"]
        for row in rows
        if row["kind"] == "sentinel" and row["stream"] == "open" and row["choice"]["pull"] in (0.0, PULLED)
    }
    if len(areas) < 4:
        return 0.0
    rounds = min(map(len, areas.values()))
    last = {pull: fmean(areas[pull, name][rounds - 1] for name in ("cifar10", "cifar100")) for pull in (0.0, PULLED)}
    print(f"AUROC in round {rounds}: {last}")
    return PULLED if last[PULLED] >= last[0.0] - AUROC_LOSS else 0.0


def main() -> None:
    """Read rows and print the choices."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path, nargs="+")
    files = [path for path in parser.parse_args().files if path.exists()]
    rows = [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    learner, answer = choose_answer(rows)
    print(json.dumps({"learner": learner, "answer": answer, "detector_pull": choose_pull(rows)}))


if __name__ == "__main__":
    main()
