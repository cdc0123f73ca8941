"""The rows of the safety benchmark: what a new user may do, and what comes of it."""

import copy
import csv
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import driftproof as dp
from cifar_domains import CLEAN, Domain
from driftproof.models.normalized_model import NormalizedModel
from driftproof.optional import require
from driftproof.streams import Shuffled

__all__ = ["ROWS", "Row", "count_batches", "find_failures", "measure", "measure_command"]

HELD_OUT = ("speckle_noise", "gaussian_blur")
"""Held-out corruptions; the constants of `statistics.Auto` were chosen on them, among others."""

LOSS = 1.0
"""Points that an adapter may be below the source network."""

COLLAPSE = 10.0
"""Points below the source network from which on a network has collapsed, as in `guards.py`."""

RUNNING = {"statistics": dp.statistics.Blend(0.5, momentum=0.1)}
TOO_FAST = {"lr": 0.1, "select": None, "guard": dp.guards.Warn()}
FAULTY = 2
"""Index of the one faulty batch in rows about what follows it."""


@dataclass(frozen=True)
class Row:
    """One thing that may happen.

    Attributes:
        domain: A corruption, or "clean".
        size: Images per batch.
        sorted: Whether the images come class by class.
        damage: Changes the first image of a batch in place; None leaves it alone.
        once: Whether only one batch is damaged, and only the batches after it count.
        wrap: Makes the user's mistake out of the network; None makes none.
        words: One of these must be in what `check` says, and in nothing it says of correct use.
        options: Of the plain method; `dp.adapt` takes the learning rate alone, and keeps its own choices.
        rounds: Passes over the images.
        collapses: Whether the plain method must collapse, and its health must say so.
        command: Whether `driftproof adapt` is measured too.
    """

    domain: str = CLEAN
    size: int = 200
    sorted: bool = False
    damage: Callable[[Tensor], None] | None = None
    once: bool = False
    wrap: Callable[[nn.Module], nn.Module] | None = None
    words: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 1
    collapses: bool = False
    command: bool = False


def expect_normalized(model: nn.Module) -> nn.Module:
    """Return a copy that needs normalized images: the user has to subtract mean and divide by deviation."""
    bare = copy.deepcopy(model)
    assert isinstance(bare, NormalizedModel)
    bare.mean.zero_()
    bare.std.fill_(1.0)
    return bare


def add_softmax(model: nn.Module) -> nn.Module:
    """Return a model whose outputs are probabilities."""
    return nn.Sequential(copy.deepcopy(model), nn.Softmax(dim=1))


def set_pixel(value: float) -> Callable[[Tensor], None]:
    """Return a function that sets one pixel of an image."""

    def damage(image: Tensor) -> None:
        image[:, 5, 5] = value

    return damage


def scale(image: Tensor) -> None:
    """Undo the division by 255, as for an image that somebody forgot to convert."""
    image.mul_(255)


ROWS: dict[str, Row] = {
    "clean, shuffled": Row(),
    "clean, sorted by class": Row(sorted=True, command=True),
    "fog, batches of 200": Row("fog", command=True),
    "fog, batches of 8": Row("fog", 8),
    "fog, batches of 1": Row("fog", 1),
    **{f"{name}, sorted by class": Row(name, sorted=True) for name in HELD_OUT},
    **{f"{name}, batches of {size}": Row(name, size) for name in HELD_OUT for size in (200, 8, 1)},
    "raw images where normalized ones are needed": Row(wrap=expect_normalized, words=("normaliz",)),
    "outputs are probabilities": Row(wrap=add_softmax, words=("softmax", "probabilit")),
    "rate so high that it collapses": Row("fog", options=TOO_FAST, rounds=5, collapses=True),
    "clean, batches of 4": Row(size=4),
    "clean, batches of 1": Row(size=1),
    "one NaN pixel in each 64 images": Row(size=64, damage=set_pixel(float("nan"))),
    "one of 64 images scaled by 255": Row(size=64, damage=scale),
    "one pixel of 1e8, running statistics, later batches": Row(
        size=64, damage=set_pixel(1e8), once=True, options=RUNNING
    ),
    "one pixel of 3e38, running statistics, later batches": Row(
        size=64, damage=set_pixel(3e38), once=True, options=RUNNING
    ),
}


def count_batches(row: Row, images: int, max_batches: int) -> int:
    """Return the number of batches of a row.

    Clean images are all taken: there the source network is hard to beat, and a point of few images is chance.
    """
    all_of_them = math.ceil(images / row.size)
    return row.rounds * (all_of_them if row.domain == CLEAN else min(all_of_them, max_batches))


def make_batches(row: Row, domain: Domain, max_batches: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield images, labels, and which of the images count."""
    labels = domain.labels[: count_batches(row, len(domain.labels), max_batches) // row.rounds * row.size]
    order = labels.argsort(stable=True) if row.sorted else Shuffled()(labels.cpu(), domain.name, 0).to(labels.device)
    for _ in range(row.rounds):
        for index, indices in enumerate(torch.split(order, row.size)):
            images, counts = domain.images(indices), torch.ones_like(indices, dtype=torch.bool)
            if row.damage is not None and (index == FAULTY or not row.once):
                row.damage(images[0])
                counts[0] = False
            yield images, labels[indices], counts & (not row.once or index > FAULTY)


def measure(row: Row, model: nn.Module, domain: Domain, *, max_batches: int) -> dict[str, Any]:
    """Return the accuracy in % of the source network, the plain method and `dp.adapt`, and what they say of it.

    Args:
        row: What happens.
        model: The network, used correctly.
        domain: The images.
        max_batches: So many batches at most in a round.
    """
    user_model = model if row.wrap is None else row.wrap(model).eval()
    safe_options = {name: value for name, value in row.options.items() if name == "lr"}
    adapters = {
        "plain": dp.tent(user_model, **{"select": dp.ConfidenceDifference(), "guard": (), **row.options}),
        "adapt": dp.adapt(user_model, **safe_options),
    }
    results: dict[str, Any] = {"source": count_right(user_model, make_batches(row, domain, max_batches))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what goes wrong here is measured
        for name, adapter in adapters.items():
            observed = Observed(adapter)
            results[name] = count_right(observed, make_batches(row, domain, max_batches))
            results[f"{name} says"] = observed.summarize()
            results[f"{name} ends"] = adapter.last.health.state
    if row.words:
        some = domain.images(torch.arange(min(200, len(domain.labels)), device=domain.labels.device))
        results["check"] = [str(problem) for problem in dp.check(user_model, some)]
        results["check of correct use"] = [str(problem) for problem in dp.check(model, some)]
    return results


@torch.no_grad()
def count_right(answer: Callable[[Tensor], Tensor], batches: Iterator[tuple[Tensor, Tensor, Tensor]]) -> float:
    """Return the accuracy in % on the images that count; no answer, which is NaN, is a wrong one."""
    right = counted = torch.zeros((), dtype=torch.int64)
    for images, labels, counts in batches:
        logits = answer(images)
        known = (logits.argmax(dim=1) == labels) & logits.isfinite().all(dim=1)
        right, counted = right.to(labels.device) + (known & counts).sum(), counted.to(labels.device) + counts.sum()
    return 100 * int(right) / int(counted)  # single precision would make one point a little more


class Observed:
    """Calls an adapter and counts what its records say.

    Args:
        adapter: The adapter.
    """

    def __init__(self, adapter: dp.Adapter) -> None:
        self._adapter = adapter
        self._counts: Counter[str] = Counter()

    def __call__(self, images: Tensor) -> Tensor:
        """Predict a batch and learn from it."""
        logits, record = self._adapter.step(images)
        self._counts[record.health.state] += 1
        self._counts.update(record.actions)
        self._counts["quarantined"] += int(record.quarantined.sum())
        return logits

    def summarize(self) -> str:
        """Return what happened, and in how many batches or to how many images."""
        return ", ".join(f"{what} {count}" for what, count in self._counts.items() if count)


def measure_command(domain: Domain, weights: Path, *, device: str) -> float:
    """Return the accuracy in % of `driftproof adapt` on a folder per class of PNG files, with its defaults.

    Args:
        domain: The images.
        weights: File of the network; its metadata name it.
        device: Where the command runs.
    """
    from driftproof.cli import main  # needs packages that the other rows do not

    pillow: Any = require("PIL.Image", "Writing images")
    with TemporaryDirectory() as folder:
        root, table = Path(folder, "images"), Path(folder, "predictions.csv")
        pixels = domain.pixels.permute(0, 2, 3, 1).cpu().numpy()
        for index, (image, label) in enumerate(zip(pixels, domain.labels.tolist(), strict=True)):
            path = root / str(label) / f"{index:05}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pillow.fromarray(image).save(path)
        command = ["adapt", root, "--weights", weights, "--out", table, "--device", device]
        try:
            main([str(word) for word in command])
        except SystemExit as exit:
            if exit.code:
                raise RuntimeError(f"Expected the command to succeed, but it exits with {exit.code}.") from exit
        with table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    right: int = sum(row["predicted"] == Path(row["path"]).parent.name for row in rows)
    return 100 * right / len(domain.labels)


def find_failures(row: Row, results: Mapping[str, Any]) -> list[str]:
    """Return what is not as it must be, in words.

    Every answer must be at most one point below the source network's accuracy. Where the plain method is above it,
    `dp.adapt` must not be below the plain method.
    """
    failures = []
    for name in ("adapt", "command"):
        if results.get(name) is not None and not results[name] >= results["source"] - LOSS:
            failures.append(f"{name} is {results['source'] - results[name]:.1f} points below source")
    if results["source"] < results["plain"] and not results["adapt"] >= results["plain"]:
        failures.append(f"adapt is {results['plain'] - results['adapt']:.2f} points below the plain method")
    if row.words and not _mentions(row.words, results["check"]):
        failures.append("check does not name the mistake")
    if row.words and _mentions(row.words, results["check of correct use"]):
        failures.append("check names the mistake where there is none")
    if row.collapses and results["plain"] > results["source"] - COLLAPSE:
        failures.append("the plain method does not collapse, so nothing is shown")
    if row.collapses and results["plain ends"] != "collapsed":
        failures.append(f"health says {results['plain ends']} of a collapsed network")
    return failures


def _mentions(words: tuple[str, ...], findings: list[str]) -> bool:
    return any(word in finding.lower() for word in words for finding in findings)
