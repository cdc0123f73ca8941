"""One cell, from where it stands to where it should be."""

import gc
import itertools
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from torch import nn

from driftproof.adapter import Adapter
from driftproof.adapter.sentence import described, found
from driftproof.adapter.settings import expect_choices
from driftproof.bench.environment import ResourceMonitor
from driftproof.bench.metrics import MetricCollection
from driftproof.bench.methods import build_method
from driftproof.bench.oracle import find_oracle
from driftproof.bench.spec import Option, Spec
from driftproof.bench.store import Run, Row
from driftproof.components import Progress, SourceBatches
from driftproof.statistics import Statistics
from driftproof.streams import Batch, Continual, Prefetched

__all__ = ["ProgressEvent", "RunSettings", "ProgressCallback", "ResourceProvider", "run_stream", "stage_progress"]


class ResourceProvider(Protocol):
    """Where the ingredients of a cell come from."""

    def model(self, spec: Spec) -> nn.Module:
        """The trained source model."""

    def stream(self, spec: Spec, rounds: int, progress: Progress) -> Continual:
        """The stream, from its beginning; tells `progress` what has to be made first."""

    def source(self, spec: Spec, device: str) -> SourceBatches:
        """Labelled source images, for methods that prepare."""

    def fingerprints(self, spec: Spec) -> dict[str, str]:
        """What the results rest on besides the spec, such as checksums of weights; an error if anything is missing."""


@dataclass(frozen=True)
class RunSettings:
    """How a cell is run; none of this may change what is measured.

    Attributes:
        device: Where.
        save_every: Seconds between snapshots: what a killed run loses, besides the domain it was in.
        engine: How a step runs: `eager`, `compile` or `graph`.
        precision: Of the passes through the networks; None leaves torch's defaults.
        channels_last: Whether images are laid out with channels last.
    """

    device: str = "cpu"
    save_every: float = 30.0
    engine: str = "eager"
    precision: str | None = None
    channels_last: bool = False

    def __post_init__(self) -> None:
        expect_choices(engine=self.engine, precision=self.precision)

    @property
    def step(self) -> dict[str, Option]:
        """What an adapter has to know."""
        return {"engine": self.engine, "precision": self.precision, "channels_last": self.channels_last}


@dataclass(frozen=True)
class ProgressEvent:
    """What a run tells while it runs.

    Attributes:
        spec: The cell.
        stage: What is being done.
        done: How much of it.
        total: Of how much; None if that is not known.
        row: What has just been measured, at the end of a domain.
    """

    spec: Spec
    stage: str
    done: int
    total: int | None = None
    row: Row | None = None


ProgressCallback = Callable[[ProgressEvent], None]


def run_stream(spec: Spec, cell: Run, workbench: ResourceProvider, rounds: int, settings: RunSettings, told: ProgressCallback) -> None:
    """Run the cell's method over its stream, from where it was left, up to so many rounds.

    Args:
        spec: The cell.
        cell: Its place, held by the caller.
        workbench: Where model, images and source data come from.
        rounds: How many there should be in the end.
        settings: How to run it.
        told: Hears how it goes.
    """
    if cell.length >= rounds * len(spec.domains):
        return
    build = partial(_built, spec, workbench.model(spec).to(settings.device), settings)
    adapter = build()
    stream = workbench.stream(spec, rounds, stage_progress(spec, told))  # what is missing is missed before anything is learned
    order = {"order": str(stream.order)} if spec.seed else {}  # otherwise the set's own
    cell.write_spec(spec, described(adapter) | {"output": adapter.output} | order)
    visits = cell.resume(adapter)
    if not adapter.prepared:
        source, progress = workbench.source(spec, settings.device), stage_progress(spec, told)
        if not adapter.statistics.prepared:
            adapter = build(statistics=_prepared_once(adapter, build, cell, source, progress))
        adapter.prepare(source, missing_only=True, progress=progress)
    gc.collect()  # what only prepared, or was another cell's, would count as memory of this one
    total = len(stream)
    stream = stream.starting_at(visits // len(spec.domains) + 1, visits % len(spec.domains))
    journal, done = _Journal(cell, adapter, settings.save_every), total - len(stream)
    oracle, in_source = find_oracle(adapter), found(adapter)
    lasting = settings.step | ({"found": in_source} if in_source else {})
    for _, batches in itertools.groupby(Prefetched(stream, device=settings.device), key=_visit):
        watch, tally = ResourceMonitor(settings.device), MetricCollection(spec, settings.device)
        for batch in batches:
            if oracle is not None:
                oracle.set_known_mask(batch)
            tally.update(adapter(batch.images), batch, adapter.last)
            done += 1
            told(ProgressEvent(spec, "adapting", done, total))
        row = tally.compute()
        journal.add(row, watch.measure() | lasting)
        told(ProgressEvent(spec, "measured", done, total, row))
    journal.write()


def _built(
    spec: Spec, model: nn.Module, settings: RunSettings, *, method: str | None = None, statistics: Statistics | None = None
) -> Adapter:
    """The cell's adapter; or another method, or one with statistics that have been prepared."""
    own = dict(spec.options) if method is None else {}
    given = {} if statistics is None else {"statistics": statistics}
    return build_method(method or spec.method, model, {**own, "seed": spec.seed, **settings.step, **given})


def _prepared_once(
    adapter: Adapter, build: Callable[..., Adapter], cell: Run, source: SourceBatches, progress: Progress
) -> Statistics:
    """Statistics like the adapter's, prepared by whichever cell of the folder first needs such."""
    spec = cell.spec
    apart = zlib.crc32(f"{adapter.statistics} {adapter.seed} {adapter.precision}".encode())
    alone = build(method="ttn", statistics=adapter.statistics)
    with cell.shared_artifact(f"{spec.model}-{spec.images}-{apart:08x}") as path:
        if path.exists():
            return alone.load(path).statistics
        alone.prepare(source, progress=progress).save(path)
    return alone.statistics


def _visit(batch: Batch) -> tuple[int, str]:
    return batch.round, batch.domain


def stage_progress(spec: Spec, told: ProgressCallback) -> Progress:
    """What makes or prepares things for a cell reports to this."""
    return lambda stage, done: told(ProgressEvent(spec, stage, done))


class _Journal:
    """Rows on their way to disk: written with a snapshot whenever enough time has passed."""

    def __init__(self, cell: Run, adapter: Adapter, save_every: float) -> None:
        self._cell = cell
        self._adapter = adapter
        self._save_every = save_every
        self._written = time.monotonic()
        self._rows: list[Row] = []
        self._conditions: list[Row] = []

    def add(self, row: Row, conditions: Row) -> None:
        """Take a row, and write all that wait if it is time."""
        self._rows.append(row)
        self._conditions.append(conditions)
        if time.monotonic() - self._written >= self._save_every:
            self.write()

    def write(self) -> None:
        """Write what waits."""
        if self._rows:
            self._cell.commit(self._rows, self._conditions, self._adapter)
            self._rows, self._conditions = [], []
        self._written = time.monotonic()
