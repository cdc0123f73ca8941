"""Fit the lines that bound the scores of known images in an alarm, under the held-out corruptions, and when they count.

    python benchmarks/alarm_lines.py --data data --weights weights --out results/alarms [--device cuda]
    python benchmarks/alarm_lines.py --fit results/alarms

The first form writes lines.jsonl: the protocol, then the default scores of WRN-40-2 under batch statistics, sorted, of
CIFAR-10 and CIFAR-100. They are of images of training, of the second half of the test set, and of images of the first
half under each held-out corruption and each pair of them, alone, with a tenth of SVHN, and with half. It keeps some of
the scores, evenly spaced.

The second form fits the lines: the smallest mean square of the logarithm of the measured share of known images over the
asked one, at 1, 2, 5 and 10 %, where half of the images are unknown. Then it chooses from how many scores above the
line on it counts: the most measured shares within a factor of 1.5 of the asked ones, where all streams and all
calibrations count alike.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import combinations, islice, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import ndtri
from torch import Tensor

import driftproof as dp
from driftproof.alarm.known_quantile import LINES, USUAL, low_score, normal_scores
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

STREAMS = {"known only": 0.0, "a tenth unknown": 0.1, "half unknown": 0.5}
BATCH = 200
KEPT = {"known": 500, "unknown": 250, "calibration": 2000}
LEAST = 5e-4
RATES = numpy.array([0.01, 0.02, 0.05, 0.1])
Z = -ndtri(RATES)
FACTOR = 1.5
GATES = [
    (float(few), float(few + width))
    for few, width in product(numpy.arange(1.0, 2.6, 0.25), numpy.arange(0.25, 1.6, 0.25))
]
"""What is compared as the gate of an alarm."""

Floats = NDArray[numpy.float64]


class Group(NamedTuple):
    """A stream compared with a calibration: by how much low scores have shifted, and sorted normal scores."""

    stream: str
    shift: float
    known: Floats
    of_all: Floats


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
            yield {"images": name, "group": group, "known": keep(scores, KEPT["calibration"])}
        sets = {"known": images, "unknown": svhn(data, limit=10_000)}
        for stream, share in STREAMS.items():
            network.reset()
            for shift in SHIFTS:
                kept = score_shift(network, sets, shift, share, count, device)
                yield {"images": name, "group": stream, "shift": " + ".join(shift)} | kept


def score_shift(
    network: dp.Adapter, sets: dict[str, ImageSet], shift: tuple[str, ...], share: float, count: int, device: str
) -> dict[str, list[float]]:
    """Return the scores of known images under a shift, and of so many unknown ones among them."""
    unknown = round(share * BATCH)
    sizes = {"known": BATCH - unknown} | ({"unknown": unknown} if unknown else {})
    batches = count // sizes["known"]
    parts = [torch.split(corrupt_all(sets[part], shift, size * batches, device), size) for part, size in sizes.items()]
    scores = torch.stack([network.step(torch.cat(batch)).record.novelty for batch in zip(*parts, strict=True)])
    found = zip(sizes, torch.split(scores, list(sizes.values()), dim=1), strict=True)
    return {part: keep(each.flatten(), KEPT[part]) for part, each in found}


def keep(scores: Tensor, most: int) -> list[float]:
    """Return scores, evenly spaced in their order."""
    return [round(score, 4) for score in spread(scores.cpu().double(), most).tolist()]


def spread(scores: Tensor, count: int) -> Tensor:
    """Return so many scores, evenly spaced in their order."""
    return torch.quantile(scores, (torch.arange(count, dtype=torch.float64) + 0.5) / count)


def read_groups(path: Path) -> dict[str, list[Group]]:
    """Return every stream by the line it needs, compared with each calibration of this kind and these images."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    groups: dict[str, list[Group]] = {name: [] for name in LINES}
    names = {"images of training": "trained on", "new images": "new", "known only": "stream"}
    for calibration in (row for row in rows if row["group"] in names):
        usual = torch.tensor(calibration["known"], dtype=torch.float64)
        for row in rows:
            if row["group"] in STREAMS and row["images"] == calibration["images"]:
                groups[names[calibration["group"]]].append(compare(row, usual))
    return groups


def compare(row: dict[str, Any], usual: Tensor) -> Group:
    """Return the group of a stream and the sorted scores of a calibration."""
    known = torch.tensor(row["known"], dtype=torch.float64)
    unknown = round(STREAMS[row["group"]] * 10 * BATCH)
    parts = [spread(known, 10 * BATCH - unknown)]
    if unknown:
        parts.append(spread(torch.tensor(row["unknown"], dtype=torch.float64), unknown))
    of_all = torch.cat(parts).sort().values
    low = normal_scores(torch.stack([low_score(of_all), low_score(usual)]), usual)
    normal = (normal_scores(scores, usual).numpy() for scores in (known, of_all))
    return Group(row["group"], float(low[0] - low[1]), *normal)


def measure(line: Sequence[float] | Floats, groups: Iterable[Group], gate: tuple[float, float] | None = None) -> Floats:
    """Return the measured share of known images over the asked one, (groups, rates); without a gate the line counts."""
    found = []
    for group in groups:
        bound = find_bound(line, Z, group.shift)
        if gate is not None:
            usual = find_bound(line, -ndtri(USUAL), group.shift)
            excess = (1 - numpy.searchsorted(group.of_all, usual) / len(group.of_all)) / USUAL
            of_all = numpy.quantile(group.of_all, 1 - RATES)
            trust = numpy.clip((excess - gate[0]) / (gate[1] - gate[0]), 0, 1)
            bound = of_all + trust * numpy.minimum(bound - of_all, 0)
        levels = (numpy.arange(len(group.known)) + 0.5) / len(group.known)
        found.append((1 - numpy.interp(bound, group.known, levels)) / RATES)
    return numpy.array(found)


def find_bound(line: Sequence[float] | Floats, z: Floats, shift: float) -> Floats:
    """Return what known images score at most, as a line says."""
    base, slope, rise, narrows = line
    bound: Floats = base + slope * z + (rise - narrows * z) * shift
    return bound


def fit(groups: Iterable[Group]) -> Floats:
    """Return the best line where half of the images are unknown; no flagged image counts as a share of 0.05 %."""
    groups = [group for group in groups if group.stream == "half unknown"]

    def loss(line: Floats) -> float:
        shares = measure(line, groups) * RATES
        return float(numpy.square(numpy.log((shares + LEAST) / (RATES + LEAST))).mean())

    parts = [numpy.stack([numpy.ones_like(Z), Z, 0 * Z + shift, -Z * shift], axis=1) for _, shift, *_ in groups]
    quantiles = numpy.concatenate([numpy.quantile(group.known, 1 - RATES) for group in groups])
    start = numpy.linalg.lstsq(numpy.concatenate(parts), quantiles)[0]
    options = {"xatol": 1e-5, "fatol": 1e-9, "maxiter": 10_000}
    line: Floats = minimize(loss, start, method="Nelder-Mead", options=options).x.round(2)
    return line


def is_near(ratios: Floats) -> NDArray[numpy.bool_]:
    """Whether measured shares are within the factor of the asked ones."""
    return (ratios <= FACTOR) & (ratios >= 1 / FACTOR)


def count_near(
    lines: dict[str, Sequence[float]], groups: dict[str, list[Group]], gate: tuple[float, float]
) -> dict[tuple[str, str], Floats]:
    """Return the share of groups within the factor, (rates,), by calibration and stream."""
    return {
        (name, stream): is_near(measure(line, [group for group in groups[name] if group.stream == stream], gate)).mean(
            0
        )
        for name, line in lines.items()
        for stream in STREAMS
    }


def choose_gate(lines: dict[str, Sequence[float]], groups: dict[str, list[Group]]) -> tuple[float, float]:
    """Return the gate with the most shares within the factor, where streams and calibrations count alike."""
    return max(GATES, key=lambda gate: float(numpy.mean(list(count_near(lines, groups, gate).values()))))


def show_fits(path: Path) -> None:
    """Print the lines, the gate, and for how many groups the measured share is within the factor of the asked one."""
    groups = read_groups(path)
    lines: dict[str, Sequence[float]] = {name: fit(each).tolist() for name, each in groups.items()}
    gate = choose_gate(lines, groups)
    print(f"gate: {gate}")
    for name, line in lines.items():
        print(f"{name}: {tuple(line)}")
    print(f"\nWithin a factor of {FACTOR}, in %, at {', '.join(f'{100 * rate:g}' for rate in RATES)} %:")
    for (name, stream), shares in count_near(lines, groups, gate).items():
        print(f"{name}, {stream}: {', '.join(f'{100 * share:.0f}' for share in shares)}")


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
