"""Choose what the held-out search compared last, by rules that were fixed before it ran, and print it.

- `detector_pull`: the one whose AUROC is highest, over the rounds that all finished: the mean of the mean of all
  rounds and the last round, over both sets.
- the learner: the one with the smallest sum of errors of the four streams, of the answer with the sentinel (learner,
  its mirror image, sentinel, frozen network). It must be better than the present one by 0.1 points in the sum of the
  closed streams, and worse by at most 0.05 on each open one, with at most 0.3 points less AUROC; else the present one
  stays.

    python benchmarks/sentinel_choose.py fifth-*.jsonl [--write]
"""

import argparse
import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

_ANSWER = "lxsf"
_STREAMS = tuple((images, kind) for images in ("cifar10", "cifar100") for kind in ("closed", "open"))
_ENOUGH, _OPEN_LOSS, _AUROC_LOSS = 0.1, 0.05, 0.3
_METHOD = Path("src/driftproof/methods/sentinel.py")


def choose_pull(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The sentinel's pull; nothing unless every candidate ran on both sets."""
    areas: dict[float, dict[str, list[float]]] = {}
    for row in rows:
        if row["kind"] == "sentinel" and row["stream"] == "open":
            areas.setdefault(row["choice"]["pull"], {})[row["set"]] = row["auroc_energy"]
    rounds = min((len(found) for sets in areas.values() for found in sets.values()), default=0)
    if rounds == 0 or len(areas) < 2 or any(len(sets) < 2 for sets in areas.values()):
        return {}
    scores = {
        pull: fmean((fmean(found[:rounds]) + found[rounds - 1]) / 2 for found in sets.values())
        for pull, sets in areas.items()
    }
    print({pull: round(score, 3) for pull, score in scores.items()}, rounds, "rounds")
    return {"detector_pull": max(scores, key=lambda pull: scores[pull])}


def choose_learner(rows: list[dict[str, Any]], present: str = "present") -> dict[str, Any]:
    """What of the best learner differs from the present one; nothing if that stays."""
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for row in rows:
        if row["kind"] == "learner" and _ANSWER in row["errors"]:
            found.setdefault(row["choice"]["name"], {})[row["set"], row["stream"]] = row
    whole = {name: runs for name, runs in found.items() if runs.keys() == set(_STREAMS)}
    if present not in whole:
        return {}
    errors = {name: [runs[place]["errors"][_ANSWER][-1] for place in _STREAMS] for name, runs in whole.items()}
    areas = {
        name: [runs[place]["auroc_sentinel"][-1] for place in _STREAMS if place[1] == "open"]
        for name, runs in whole.items()
    }
    for name, four in sorted(errors.items(), key=lambda item: sum(item[1])):
        print(f"{name:28}", *(f"{error:6.2f}" for error in four), f"sum {sum(four):6.2f}  AUROC", *areas[name])
    allowed = [name for name in errors if _is_allowed(errors[name], errors[present], areas[name], areas[present])]
    if not allowed:
        return {}
    best = min(allowed, key=lambda name: sum(errors[name]))
    ours, usual = (whole[name][_STREAMS[0]]["choice"] for name in (best, present))
    return {key: value for key, value in ours.items() if value != usual[key]}


def _is_allowed(errors: list[float], present: list[float], areas: list[float], present_areas: list[float]) -> bool:
    closed, opened = (slice(0, None, 2), slice(1, None, 2))
    return (
        sum(errors[closed]) <= sum(present[closed]) - _ENOUGH
        and all(ours <= theirs + _OPEN_LOSS for ours, theirs in zip(errors[opened], present[opened], strict=True))
        and all(ours >= theirs - _AUROC_LOSS for ours, theirs in zip(areas, present_areas, strict=True))
    )


def write(chosen: dict[str, Any]) -> None:
    """Make the rates of the choice the method's default."""
    text = _METHOD.read_text(encoding="utf-8")
    for name in chosen.keys() & {"detector_pull", "lr", "pull"}:
        value = chosen[name]
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
    chosen: dict[str, Any] = choose_pull(rows) | choose_learner(rows)
    print(json.dumps(chosen))
    if arguments.write:
        write(chosen)


if __name__ == "__main__":
    main()
