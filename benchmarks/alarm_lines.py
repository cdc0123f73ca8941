"""Fit the lines that an alarm bounds the scores of known images with, under the held-out corruptions.

    python benchmarks/alarm_lines.py --data data --weights weights --out results/alarms [--device cuda]
    python benchmarks/alarm_lines.py --fit results/alarms

The first form writes lines.jsonl: the protocol, then the default scores of WRN-40-2 under batch statistics, sorted, of
CIFAR-10 and CIFAR-100. They are of images of training, of the second half of the test set, and of images of the first
half under each held-out corruption and each pair of them, without and with as many of SVHN. Of corrupted images it
keeps a thousand scores, evenly spaced. The second form fits the lines: the smallest mean square of the logarithm of the
measured share of known images over the asked one, at 1, 2, 5 and 10 %, in all groups with unknown images.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import ndtri
from torch import Tensor

import driftproof as dp
from driftproof.alarm.known_quantile import LINES, low_score, normal_scores
from driftproof.bench.environment import hardware
from driftproof.bench.local_files import LocalFiles
from driftproof.corruptions import HELD_OUT, corrupt
from driftproof.data import ImageSet, cifar10, cifar100
from driftproof.data.svhn import svhn
from driftproof.files import atomic_write
from driftproof.paper.suites import make_spec

SETS = {"cifar10": cifar10, "cifar100": cifar100}
SHIFTS = (*((name,) for name in HELD_OUT), *combinations(HELD_OUT, 2))
SEVERITY = {1: 5, 2: 4}
"""Of a corruption alone, and of each of two."""

HALF = 5000
"""Images of half of the test set."""

BATCH, KEPT = 200, 1000
LEAST = 5e-4
RATES = numpy.array([0.01, 0.02, 0.05, 0.1])
Z = -ndtri(RATES)
FACTOR = 1.5

Floats = NDArray[numpy.float64]
Group = tuple[float, Floats]
"""By how much low scores have shifted, and the sorted normal scores of known images."""


def corrupt_all(images: ImageSet, shift: tuple[str, ...], count: int, device: str) -> Tensor:
    """Return the first images under one corruption or several, in 0..1."""
    pixels = images.batch(torch.arange(count)).to(device)
    for name in shift:
        pixels = corrupt(pixels, name, SEVERITY[len(shift)], dataset=images.name)
    return pixels.float() / 255


def collect(data: Path, weights: Path, count: int, device: str) -> Iterable[dict[str, Any]]:
    """Yield a row for each group of images."""
    files = LocalFiles(data, weights, device=device)
    for name, read in SETS.items():
        spec, images = make_spec("bn_adapt", f"{name}-c", "wrn40_2"), read(data)
        network = dp.bn_adapt(files.model(spec).to(device), channels_last=True)
        clean = images.batch(torch.arange(HALF, 2 * HALF)).to(device).float() / 255
        training = (batch for batch, _ in islice(files.source(spec, device), HALF // BATCH))
        for group, known in (("images of training", training), ("new images", torch.split(clean, BATCH))):
            network.reset()
            scores = torch.cat([network.step(batch).record.novelty for batch in known])
            yield {"images": name, "group": group, "known": keep(scores, len(scores))}
        for unknown in (None, svhn(data, limit=10_000)):
            network.reset()
            for shift in SHIFTS:
                parts = [corrupt_all(each, shift, count, device) for each in filter(None, (images, unknown))]
                size = BATCH // len(parts)
                batches = zip(*(torch.split(part, size) for part in parts), strict=True)
                found = [torch.split(network.step(torch.cat(batch)).record.novelty, size) for batch in batches]
                known_scores, *unknown_scores = (torch.cat(scores) for scores in zip(*found, strict=True))
                row = {"images": name, "group": "half unknown" if unknown else "known only", "shift": " + ".join(shift)}
                yield row | {"known": keep(known_scores), "unknown": [keep(scores) for scores in unknown_scores]}


def keep(scores: Tensor, most: int = KEPT) -> list[float]:
    """Return scores, evenly spaced in their order."""
    levels = (torch.arange(most, dtype=torch.float64) + 0.5) / most
    return [round(float(score), 4) for score in torch.quantile(scores.cpu().double(), levels)]


def read_groups(path: Path) -> dict[str, list[Group]]:
    """Return what each line is fitted to: groups with unknown images, compared with each calibration of its kind."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    groups: dict[str, list[Group]] = {name: [] for name in LINES}
    names = {"images of training": "trained on", "new images": "new", "known only": "stream"}
    for calibration in (row for row in rows if row["group"] in names):
        usual = torch.tensor(calibration["known"], dtype=torch.float64)
        for row in rows:
            if row["group"] == "half unknown" and row["images"] == calibration["images"]:
                known = torch.tensor(row["known"], dtype=torch.float64)
                scores = torch.cat([known, *(torch.tensor(part, dtype=torch.float64) for part in row["unknown"])])
                low = normal_scores(torch.stack([low_score(scores.sort().values), low_score(usual)]), usual)
                group = float(low[0] - low[1]), normal_scores(known, usual).numpy()
                groups[names[calibration["group"]]].append(group)
    return groups


def measure(line: Floats, groups: Iterable[Group]) -> Floats:
    """Return the measured share of known images over the asked one, (groups, rates)."""
    base, slope, rise, narrows = line
    found = []
    for shift, known in groups:
        bound = base + slope * Z + (rise - narrows * Z) * shift
        found.append((1 - numpy.interp(bound, known, (numpy.arange(len(known)) + 0.5) / len(known))) / RATES)
    return numpy.array(found)


def fit(groups: list[Group]) -> Floats:
    """Return the best line; a share of zero counts as one twentieth of a percent."""

    def loss(line: Floats) -> float:
        shares = measure(line, groups) * RATES
        return float(numpy.square(numpy.log((shares + LEAST) / (RATES + LEAST))).mean())

    parts = [numpy.stack([numpy.ones_like(Z), Z, 0 * Z + shift, -Z * shift], axis=1) for shift, _ in groups]
    quantiles = numpy.concatenate([numpy.quantile(known, 1 - RATES) for _, known in groups])
    start = numpy.linalg.lstsq(numpy.concatenate(parts), quantiles)[0]
    options = {"xatol": 1e-5, "fatol": 1e-9, "maxiter": 10_000}
    line: Floats = minimize(loss, start, method="Nelder-Mead", options=options).x.round(2)
    return line


def show_fits(path: Path) -> None:
    """Print the lines, and in how many groups the measured share is within the factor of the asked one."""
    for name, groups in read_groups(path).items():
        line = fit(groups)
        ratios = measure(line, groups)
        near = (ratios <= FACTOR) & (ratios >= 1 / FACTOR)
        counts = ", ".join(
            f"{number} at {100 * rate:g} %" for number, rate in zip(near.sum(axis=0), RATES, strict=True)
        )
        print(f"{name}: {tuple(line.tolist())}; of {len(groups)} groups within a factor of {FACTOR}: {counts}")


def main() -> int:
    """Collect scores, or fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fit", type=Path, metavar="DIR", help="fit the lines to DIR/lines.jsonl")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path, help="folder of the source weights")
    parser.add_argument("--images", type=int, default=2500, help="known images of each shift")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder for lines.jsonl")
    arguments = parser.parse_args()
    if arguments.fit is not None:
        show_fits(arguments.fit / "lines.jsonl")
        return 0
    missing = [name for name in ("data", "weights", "out") if getattr(arguments, name) is None]
    if missing:
        parser.error(f"--{missing[0]} is required")
    protocol = {
        "unknown": "svhn",
        "known images of each shift": arguments.images,
        "severity": f"{SEVERITY[1]}, of pairs {SEVERITY[2]}",
        "network": "wrn40_2, frozen, batch statistics",
        "batch": BATCH,
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "machine": hardware(torch.device(arguments.device)),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    with atomic_write(arguments.out / "lines.jsonl") as unfinished, unfinished.open("w", encoding="utf-8") as lines:
        print(json.dumps(protocol), file=lines)
        for row in collect(arguments.data, arguments.weights, arguments.images, arguments.device):
            print(json.dumps(row), file=lines, flush=True)
            print(*(row.get(name, "") for name in ("images", "group", "shift")), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
