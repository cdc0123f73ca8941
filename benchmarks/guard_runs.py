"""Runs of the guard benchmark: the grid, the stream, one run and its health indicators."""

import itertools
import math
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import driftproof as dp
from cifar_domains import Domain
from driftproof.streams import LabelShifted, Order, Shuffled

__all__ = ["METHODS", "Bench", "Run", "is_mild", "make_grid", "run_stream"]

Make = Callable[..., dp.Adapter]

METHODS: dict[str, tuple[Make, float]] = {
    "tent": (dp.tent, 1e-3),
    "tent+crowd": (partial(dp.tent, select=dp.ConfidenceDifference()), 1e-3),
    "ent": (dp.ent, 1e-4),
    "ent+crowd": (partial(dp.ent, select=dp.ConfidenceDifference()), 1e-4),
    "gce": (dp.gce, 1e-3),
    "gce+crowd": (partial(dp.gce, select=dp.ConfidenceDifference()), 1e-3),
    "conjugate": (partial(dp.conjugate, epsilon=6.0), 1e-3),
    "eata": (dp.eata, 1e-3),
}
"""Methods, and the learning rate that each was published with."""


def sort_by_class(labels: Tensor, domain: str, round: int) -> Tensor:
    """Return the images class by class, as a folder per class is read."""
    return labels.argsort(stable=True)


ORDERS: dict[str, Order] = {
    "shuffled": Shuffled(),
    "sorted": sort_by_class,
    "Dirichlet 0.1": LabelShifted(0.1),
    "Dirichlet 10": LabelShifted(10.0),
}


@dataclass(frozen=True)
class Run:
    """One run: what varies in the grid.

    Attributes:
        method: A name in `METHODS`.
        factor: Of the published learning rate.
        order: A name in `ORDERS`.
        size: Images per batch.
    """

    method: str
    factor: float
    order: str
    size: int

    def __str__(self) -> str:
        return f"{self.method}, lr × {self.factor:g}, {self.order}, batches of {self.size}"


@dataclass(frozen=True)
class Bench:
    """What all runs share.

    Attributes:
        model: The source network.
        domains: The images of each corruption.
        source_logits: Of the source network with training's statistics, for each domain.
        train: Batches of labeled training images, for methods that prepare.
    """

    model: nn.Module
    domains: Sequence[Domain]
    source_logits: Sequence[Tensor]
    train: Sequence[tuple[Tensor, Tensor]]


def make_grid() -> list[Run]:
    """Return mild runs, which mostly stay healthy, and harsh ones, which mostly collapse.

    Both are a fixed part of all combinations, in which every method meets every order and size. Their order is drawn
    once, so that the first runs are a sample of all.
    """
    mild = ((0.1, 0.3, 1.0), ("shuffled", "Dirichlet 10"), (200, 64, 16))
    harsh = ((1.0, 10.0, 30.0), ("shuffled", "sorted", "Dirichlet 0.1"), (200, 64, 16, 4))
    runs = []
    for (factors, orders, sizes), every in ((mild, 2), (harsh, 5)):
        for (a, method), (b, factor), (c, order), (d, size) in itertools.product(
            enumerate(METHODS), enumerate(factors), enumerate(orders), enumerate(sizes)
        ):
            if (a + 2 * b + c + 3 * d) % every == 0:
                runs.append(Run(method, factor, order, size))
    distinct = sorted(set(runs), key=str)
    return random.Random(0).sample(distinct, len(distinct))


def is_mild(run: Run) -> bool:
    """Whether a run is expected to stay healthy."""
    return run.factor <= 1 and run.order in ("shuffled", "Dirichlet 10") and run.size > 4


def make_batches(bench: Bench, run: Run, batches: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield images, labels and the source network's logits: all domains in order, in rounds if these are few.

    A domain has so many images that the run takes about `batches` batches, all of the same size.
    """
    available = min(len(domain.labels) for domain in bench.domains)
    per_domain = max(1, min(available // run.size, batches // len(bench.domains)))
    for round in range(max(1, batches // (per_domain * len(bench.domains)))):
        for domain, source_logits in zip(bench.domains, bench.source_logits, strict=True):
            labels = domain.labels[: per_domain * run.size]
            order = ORDERS[run.order](labels.cpu(), domain.name, round).to(labels.device)
            for indices in torch.split(order, run.size):
                yield domain.images(indices), labels[indices], source_logits[indices]


def make_adapter(bench: Bench, run: Run, **options: Any) -> dp.Adapter:  # noqa: ANN401  # relayed
    """Return the adapter of a run, prepared."""
    make, lr = METHODS[run.method]
    if next(bench.model.parameters()).is_cuda:
        options |= {"precision": "tf32", "channels_last": True}
    adapter = make(bench.model, lr=run.factor * lr, **options)
    return adapter if adapter.prepared else adapter.prepare(bench.train)


def run_stream(bench: Bench, run: Run, *, batches: int, every: int = 0, **arm: Any) -> dict[str, Any]:  # noqa: ANN401  # relayed
    """Run once and return errors in %, alarms if there are guards, and indicators if `every` is not 0.

    Args:
        bench: Network and images.
        run: What to run.
        batches: About so many.
        every: Compute indicators on every so many batches, without the adapter's own.
        **arm: Options of the adapter, with guards.
    """
    started = time.monotonic()
    adapter = make_adapter(bench, run, **make_options(**arm))
    indicators, states, wrong, source_wrong = Indicators(adapter), [], [], []
    actions: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Adaptation is")  # counted here
        for index, (images, labels, source_logits) in enumerate(make_batches(bench, run, batches)):
            logits = adapter(images)
            wrong.append(logits.argmax(dim=1) != labels)
            source_wrong.append(source_logits.argmax(dim=1) != labels)
            if every and index % every == 0:
                indicators.update(index, images, labels, logits, source_logits)
            if arm:
                states.append(adapter.last.health.state)
                actions.update(adapter.last.actions)
    line = {
        "run": asdict(run),
        "batches": len(wrong),
        "error": error_of(wrong),
        "source_error": error_of(source_wrong),
        "final": error_of(wrong, last_quarter=True),
        "source": error_of(source_wrong, last_quarter=True),
        "seconds": time.monotonic() - started,
    }
    line |= summarize_states(states) | {"actions": dict(actions)} if arm else {}
    return line | ({"series": indicators.compute()} if every else {})


def make_options(*, guard: bool = False, statistics: str | None = None) -> dict[str, Any]:
    """Return the options of an adapter: guards of `dp.adapt` or none, and statistics if not the method's own."""
    options: dict[str, Any] = {"guard": (dp.guards.FallBack(), dp.guards.RollBack()) if guard else ()}
    return options if statistics is None else options | {"statistics": statistics}


def error_of(wrong: Sequence[Tensor], *, last_quarter: bool = False) -> float:
    """Return the share of wrong predictions in %, of all batches or of the last quarter of them."""
    some = wrong[3 * len(wrong) // 4 :] if last_quarter else wrong
    return 100 * float(torch.cat(list(some)).float().mean())


def summarize_states(states: Sequence[str]) -> dict[str, Any]:
    """Return when health left "healthy": how often, when first, in how many batches, and what it was then.

    Examples:
        >>> summarize_states(["healthy", "drifting", "collapsed", "healthy", "drifting"])
        {'alarms': 2, 'first_alarm': 1, 'alarmed_batches': 3, 'states': ['collapsed', 'drifting']}
    """
    alarmed = [state != "healthy" for state in states]
    raised = [now and not before for before, now in itertools.pairwise([False, *alarmed])]
    return {
        "alarms": sum(raised),
        "first_alarm": raised.index(True) if any(raised) else None,
        "alarmed_batches": sum(alarmed),
        "states": sorted(set(states) - {"healthy"}),
    }


class Indicators:
    """Compares the adapting network with the frozen one, under the same statistics and under training's.

    Args:
        adapter: Whose networks are compared.
    """

    def __init__(self, adapter: dp.Adapter) -> None:
        self._adapter = adapter
        moved = adapter.trainable_parameters
        frozen = dict(adapter.source.model.named_parameters())
        self._pairs = [(parameter, frozen[name].detach().clone()) for name, parameter in moved.items()]
        self._series: dict[str, list[Tensor]] = {}
        self._batches: list[int] = []

    @torch.no_grad()
    def update(self, index: int, images: Tensor, labels: Tensor, logits: Tensor, source_logits: Tensor) -> None:
        """Compute the indicators of one batch; nothing is fetched from the device."""
        adapter = self._adapter
        frozen = adapter.source(images.contiguous(memory_format=torch.channels_last) if images.is_cuda else images)
        adapter.source.rollback()
        mean, frozen_mean = logits.softmax(dim=1).mean(dim=0), frozen.softmax(dim=1).mean(dim=0)
        source_mean = source_logits.softmax(dim=1).mean(dim=0)
        best = logits.argmax(dim=1)
        moved = sum((now - start).square().sum() for now, start in self._pairs)
        norm = sum(start.square().sum() for _, start in self._pairs)
        values = {
            "error": (best != labels).float().mean(),
            "frozen_error": (frozen.argmax(dim=1) != labels).float().mean(),
            "source_error": (source_logits.argmax(dim=1) != labels).float().mean(),
            "mean_entropy": relative_entropy(mean),
            "frozen_mean_entropy": relative_entropy(frozen_mean),
            "source_mean_entropy": relative_entropy(source_mean),
            "entropy": relative_entropy(logits.softmax(dim=1)).mean(),
            "frozen_entropy": relative_entropy(frozen.softmax(dim=1)).mean(),
            "disagreement": (best != frozen.argmax(dim=1)).float().mean(),
            "source_disagreement": (best != source_logits.argmax(dim=1)).float().mean(),
            "distance": torch.as_tensor(moved / norm).sqrt(),
            "kept": adapter.last.selected.float().mean(),
            "mean_prediction": mean,
            "frozen_mean_prediction": frozen_mean,
            "source_mean_prediction": source_mean,
        }
        self._batches.append(index)
        for name, value in values.items():
            self._series.setdefault(name, []).append(value)

    def compute(self) -> dict[str, list[Any]]:
        """Return the series: one value, or one vector of mean probabilities, per recorded batch."""
        series = {name: torch.stack(values).cpu() for name, values in self._series.items()}
        return {"batch": self._batches} | {name: round_to(values.tolist(), 4) for name, values in series.items()}


def relative_entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy along the last dimension, divided by that of equal probabilities."""
    entropies: Tensor = torch.special.entr(probabilities).sum(dim=-1)
    return entropies / math.log(probabilities.shape[-1])


def round_to(values: list[Any], digits: int) -> list[Any]:
    """Round numbers in nested lists."""
    return [round_to(value, digits) if isinstance(value, list) else round(value, digits) for value in values]
