"""What the demo runs: a changing world with unknown images, and streams that destroy a naive adapter."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from driftproof.adapter import Adapter
from driftproof.corruptions import CORRUPTIONS, corrupt, procedural_frost
from driftproof.demo.garments import Garments
from driftproof.methods import adapt, source, tent

__all__ = [
    "SEVERITY", "WATCHED", "Domain", "Hostile", "Unfamiliar", "World", "measure_accuracy", "mix_batches",
    "run_hostile", "run_world",
]  # fmt: skip

SEVERITY = 5
WATCHED = 10
"""Images of each batch that are looked at: those with the largest novelty."""

_BATCH, _BAGS = 100, 25
_HIGH_RATE = 1.0  # chosen by benchmarks/demo_rate.py
_SINGLE_IMAGES, _REPEATS = 300, 2

Progress = Callable[[float, str], None]
"""Called with the share that is done, and with what was found last."""


@dataclass(frozen=True)
class Domain:
    """Errors in % on the known images of one corruption: of the model as it was, and adapted."""

    name: str
    source: float
    adapted: float


@dataclass(frozen=True)
class Unfamiliar:
    """One of the most novel images of its batch.

    Attributes:
        image: 8-bit image, (3, H, W).
        domain: The corruption.
        novelty: Its score.
        predicted: The class that the network calls it.
        is_bag: Whether it is of the unknown class.
    """

    image: Tensor
    domain: str
    novelty: float
    predicted: int
    is_bag: bool


@dataclass(frozen=True)
class World:
    """What happened in the changing world.

    Attributes:
        domains: Errors by corruption, in the order of the stream.
        unfamiliar: The ten most novel images of each batch, in the order of the stream.
        bags: Share of the unknown class among them, in %.
        health: State of the adapter at the end.
    """

    domains: list[Domain]
    unfamiliar: list[Unfamiliar]
    bags: float
    health: str


@dataclass(frozen=True)
class Hostile:
    """Accuracies in % on a stream that is hard for adapters: of the model as it was, of TENT, and of `adapt`."""

    name: str
    source: float
    tent: float
    adapted: float


def run_world(
    model: nn.Module,
    garments: Garments,
    *,
    seed: int = 0,
    count: int = 1000,
    progress: Progress = lambda share, note: None,
) -> World:
    """Adapt to fifteen corruptions one after the other. A fifth of the images are bags.

    Args:
        model: The trained network.
        garments: Test images and bags.
        seed: Of the choice and the order of the images.
        count: Known images of each corruption, a multiple of 100.
        progress: Called with the share that is done and what was found last.
    """
    generator = torch.Generator().manual_seed(seed)
    adapter, frozen = adapt(model), source(model)
    domains: list[Domain] = []
    unfamiliar: list[Unfamiliar] = []
    for index, name in enumerate(CORRUPTIONS):
        errors = torch.zeros(2)
        for pixels, labels in mix_batches(garments, name, count, generator):
            images, is_known = pixels.float() / 255, labels >= 0
            before = frozen(images).argmax(dim=1)
            logits, record = adapter.step(images)
            after = logits.argmax(dim=1)
            errors += torch.stack([((each != labels) & is_known).sum() for each in (before, after)])
            novelty, places = record.novelty.topk(WATCHED)
            unfamiliar += [
                Unfamiliar(pixels[place], name, value, int(after[place]), not bool(is_known[place]))
                for value, place in zip(novelty.tolist(), places.tolist(), strict=True)
            ]
        domains.append(Domain(name, *(100 * errors / count).tolist()))
        note = f"{name.replace('_', ' ')}: error {domains[-1].source:.0f} → {domains[-1].adapted:.0f} %"
        progress((index + 1) / len(CORRUPTIONS), note)
    bags = 100 * sum(each.is_bag for each in unfamiliar) / len(unfamiliar)
    return World(domains, unfamiliar, bags, record.health.state)


def run_hostile(
    model: nn.Module, garments: Garments, *, seed: int = 0, progress: Progress = lambda share, note: None
) -> list[Hostile]:
    """Run TENT and `adapt` on streams that are hard for adapters.

    Args:
        model: The trained network.
        garments: Test images.
        seed: Of the order of the images.
        progress: Called with the share that is done and what was found last.
    """
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(garments.test), generator=generator)
    by_class = shuffled[garments.test_labels[shuffled].argsort(stable=True)]
    streams: tuple[tuple[str, Tensor, int, dict[str, Any]], ...] = (
        ("a folder per class, read in order", by_class, _BATCH, {}),
        ("one image at a time", shuffled[:_SINGLE_IMAGES], 1, {}),
        ("a learning rate 1000 times too high", shuffled.repeat(_REPEATS), _BATCH, {"lr": _HIGH_RATE}),
    )
    found = []
    for index, (name, order, size, options) in enumerate(streams):
        adapters = (source(model), tent(model, guard=(), **options), adapt(model, **options))
        images, labels = garments.test[order].float() / 255, garments.test_labels[order]
        found.append(Hostile(name, *(measure_accuracy(adapter, images, labels, size) for adapter in adapters)))
        progress((index + 1) / len(streams), f"TENT {found[-1].tent:.0f} %, dp.adapt {found[-1].adapted:.0f} %")
    return found


def measure_accuracy(adapter: Adapter, images: Tensor, labels: Tensor, size: int) -> float:
    """Adapt to images in batches, and return the accuracy in % of the predictions on the way."""
    predicted = torch.cat([adapter(batch).argmax(dim=1) for batch in torch.split(images, size)])
    return 100 * float((predicted == labels).float().mean())


def mix_batches(
    garments: Garments, corruption: str, count: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield corrupted images and labels, −1 for bags, in random order."""
    frost = procedural_frost() if corruption == "frost" else None
    known = torch.randperm(len(garments.test), generator=generator)[:count]
    bags = torch.randperm(len(garments.bags), generator=generator)[: count * _BAGS // _BATCH]
    for mine, theirs in zip(torch.split(known, _BATCH), torch.split(bags, _BAGS), strict=True):
        pixels = torch.cat([garments.test[mine], garments.bags[theirs]])
        labels = torch.cat([garments.test_labels[mine], theirs.new_full(theirs.shape, -1)])
        order = torch.randperm(len(labels), generator=generator)
        indices = torch.cat([mine, len(garments.test) + theirs])
        corrupted = corrupt(pixels, corruption, SEVERITY, dataset="garments", indices=indices, frost_photos=frost)
        yield corrupted[order], labels[order]
