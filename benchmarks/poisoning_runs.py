"""Runs of the poisoning benchmark: the stream, with and without an attacker, and what is measured on it."""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from cifar_domains import Domain
from driftproof.methods.by_name import build_method
from poisoning_attacks import TARGET, VICTIM, Attack, Attacker

__all__ = ["ARMS", "Answers", "Bench", "Cell", "make_poison", "measure", "run_stream"]

ARMS: dict[str, str] = {"no guards": "none", "guards": "fall_back+roll_back"}
"""Guards by name; the second ones are those of `dp.adapt`."""

_GROUPS = 2
"""How many batches' worth of images an attacker makes; they are used in turn."""


@dataclass(frozen=True)
class Cell:
    """An attack at one share of the stream.

    Attributes:
        name: Of the attack.
        share: Images of the attacker's, of all images while the attack lasts.
    """

    name: str
    share: float


@dataclass(frozen=True)
class Answers:
    """What an adapter answered to one stream.

    Attributes:
        during: Predictions while the attack lasts, (batches, size).
        after: Predictions afterwards.
        labels_during: The classes, for both.
        labels_after: Likewise.
        states: Of health, batch by batch.
        actions: What guards did, and how often.
    """

    during: Tensor
    after: Tensor
    labels_during: Tensor
    labels_after: Tensor
    states: Sequence[str]
    actions: dict[str, int]


@dataclass(frozen=True)
class Bench:
    """What all runs share.

    Attributes:
        model: The source network.
        domains: The images of each corruption.
        size: Images per batch.
        batches: Of each domain while the attack lasts.
        after: Batches of each domain after the attack.
        source: Batches of labeled training images, for methods that prepare.
        unattacked: Answers of runs without an attacker, by method and arm.
    """

    model: nn.Module
    domains: Sequence[Domain]
    size: int
    batches: int
    after: int
    source: Sequence[tuple[Tensor, Tensor]] = ()
    unattacked: dict[tuple[str, str], Answers] = field(default_factory=dict)

    def stream(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of the attack, one domain after the other."""
        return self._batches(0, self.batches)

    def rest(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches after the attack, of other images."""
        return self._batches(self.batches, self.after)

    @cached_property
    def source_accuracy(self) -> float:
        """What the source network has after the attack, in %."""
        with torch.no_grad():
            right = [self.model(images).argmax(dim=1) == labels for images, labels in self.rest()]
        return 100 * float(torch.cat(right).float().mean())

    def _batches(self, first: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        for domain in self.domains:
            order = torch.randperm(len(domain.labels), generator=torch.Generator().manual_seed(0))
            for index in range(first, first + count):
                chosen = order[index * self.size : (index + 1) * self.size].to(domain.labels.device)
                yield domain.images(chosen), domain.labels[chosen]


def make_poison(attack: Attack, attacker: Attacker, share: float) -> Tensor:
    """Make the attacker's images, (groups, images, 3, H, W)."""
    count = attacker.size if attack.whole_batches else round(share * attacker.size)
    return torch.stack([attack.craft(attacker, count, 1000 * group) for group in range(_GROUPS)])


def poisoned_rows(attack: Attack, bench: Bench, share: float, *, batches: int) -> Tensor:
    """Which images of the stream are the attacker's, (batches, size)."""
    rows = torch.zeros(batches, bench.size, dtype=torch.bool)
    if attack.whole_batches:
        every = round(1 / share)
        rows[every - 1 :: every] = True
    else:
        rows[:, bench.size - round(share * bench.size) :] = True
    return rows


def run_stream(
    bench: Bench, method: str, arm: str, poison: Tensor | None = None, rows: Tensor | None = None
) -> Answers:
    """Adapt to the stream, with an attacker's images in the given rows, and then to the rest of it."""
    adapter = build_method(method, bench.model, {"guard": ARMS[arm], "engine": "eager"})
    if not adapter.prepared:
        adapter.prepare(bench.source)
    states, actions, answers = [], Counter[str](), []
    labels: list[Tensor] = []
    used = 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Adaptation is")  # counted here
        for index, (images, theirs) in enumerate([*bench.stream(), *bench.rest()]):
            if poison is not None and rows is not None and index < len(rows) and bool(rows[index].any()):
                images[rows[index].to(images.device)] = poison[used % len(poison)]
                used += 1
            logits, record = adapter.step(images)
            answers.append(logits.argmax(dim=1).cpu())
            labels.append(theirs.cpu())
            states.append(record.health.state)
            actions.update(record.actions)
    during, after = (torch.stack(part) for part in _split(answers, bench))
    known_during, known_after = (torch.stack(part) for part in _split(labels, bench))
    return Answers(during, after, known_during, known_after, states, dict(actions))


def _split(values: list[Tensor], bench: Bench) -> tuple[list[Tensor], list[Tensor]]:
    border = bench.batches * len(bench.domains)
    return values[:border], values[border:]


def measure(bench: Bench, method: str, arm: str, attack: Attack, cell: Cell, poison: Tensor) -> dict[str, Any]:
    """Run with the attack, and compare with the same method and guards without it, on the same images."""
    if (method, arm) not in bench.unattacked:
        bench.unattacked[method, arm] = run_stream(bench, method, arm)
    plain = bench.unattacked[method, arm]
    rows = poisoned_rows(attack, bench, cell.share, batches=len(plain.during))
    attacked = run_stream(bench, method, arm, poison, rows)
    judged = ~rows
    alarms = [index for index, state in enumerate(attacked.states) if state != "healthy"]
    line: dict[str, Any] = {"attack": cell.name, "share": cell.share, "method": method, "arm": arm}
    line["source after"] = bench.source_accuracy
    for name, answers in (("unattacked", plain), ("attacked", attacked)):
        line[f"{name} during"] = accuracy(answers.during[judged], answers.labels_during[judged])
        line[f"{name} after"] = accuracy(answers.after, answers.labels_after)
        line[f"{name} taken during"] = taken(answers.during[judged], answers.labels_during[judged])
        line[f"{name} taken after"] = taken(answers.after, answers.labels_after)
    return line | {"first alarm": alarms[0] if alarms else None, "alarmed": len(alarms), "actions": attacked.actions}


def accuracy(answers: Tensor, labels: Tensor) -> float:
    """Right predictions in %."""
    return 100 * float((answers == labels).float().mean())


def taken(answers: Tensor, labels: Tensor) -> float:
    """How many images of the victim are taken for the target, in %."""
    victims = labels == VICTIM
    return 100 * float((answers[victims] == TARGET).float().mean()) if bool(victims.any()) else float("nan")
