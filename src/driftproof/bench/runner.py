"""Run a method over a stream, from its last snapshot to its target round."""

import copy
import gc
import itertools
import re
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import nn

from driftproof.adapter import Adapter
from driftproof.adapter.method import check_engine_options
from driftproof.bench.environment import ResourceMonitor
from driftproof.bench.health_log import HealthLog, find_health_log
from driftproof.bench.methods import benchmark_guards, build_method
from driftproof.bench.metrics import MetricCollection
from driftproof.bench.spec import Option, Spec
from driftproof.bench.store import Row, Run
from driftproof.components import Progress, SourceBatches
from driftproof.errors import InputError, ModelError
from driftproof.methods.oracle import find_oracle
from driftproof.named import is_own
from driftproof.network import read_logits
from driftproof.problems import check
from driftproof.statistics import Statistics
from driftproof.streams import Continual, Prefetcher, StreamBatch

__all__ = [
    "ProgressCallback",
    "ProgressEvent",
    "ResourceProvider",
    "RunContext",
    "RunSettings",
    "report_to",
    "run_stream",
]


class ResourceProvider(Protocol):
    """Provides model, stream and source data of a run."""

    def model(self, spec: Spec) -> nn.Module:
        """Return the trained source model."""

    def stream(self, spec: Spec, rounds: int, progress: Progress) -> Continual:
        """Return the stream from its beginning; report to `progress` which datasets are generated first."""

    def source(self, spec: Spec, device: str) -> SourceBatches:
        """Return labeled source images, for methods that prepare."""

    def fingerprints(self, spec: Spec, progress: Progress | None = None) -> dict[str, str]:
        """Return checksums of weights and images; raise an error if anything is missing."""


@dataclass(frozen=True)
class RunSettings:
    """How a run is executed; none of this is part of its spec.

    Attributes:
        device: Device to run on.
        save_every: Seconds between snapshots. A killed run loses at most this, and the domain it was in.
        engine: Execution engine of a step: `auto`, `eager`, `compile` or `graph`.
        precision: Precision of the forward and backward passes; None leaves torch's defaults.
        channels_last: Whether images use the channels-last memory format.
    """

    device: str = "cpu"
    save_every: float = 30.0
    engine: str = "auto"
    precision: str | None = None
    channels_last: bool = False

    def __post_init__(self) -> None:
        check_engine_options(engine=self.engine, precision=self.precision)

    @property
    def step(self) -> dict[str, Option]:
        """Options that every adapter takes."""
        return {"engine": self.engine, "precision": self.precision, "channels_last": self.channels_last}


@dataclass(frozen=True)
class ProgressEvent:
    """Progress of a run.

    Attributes:
        spec: The run.
        stage: What it is doing.
        done: Number of items done, such as batches.
        total: Number of items in all; None if unknown.
        row: The row just measured, at the end of a domain.
    """

    spec: Spec
    stage: str
    done: int
    total: int | None = None
    row: Row | None = None


ProgressCallback = Callable[[ProgressEvent], None]


@dataclass(frozen=True)
class RunContext:
    """What a task works with.

    Attributes:
        spec: The run.
        run: Its results on disk, locked by the caller.
        resources: Provides model, stream and source data.
        rounds: Target number of rounds, counted from the beginning.
        settings: How to execute it.
        callback: Receives progress events.
    """

    spec: Spec
    run: Run
    resources: ResourceProvider
    rounds: int
    settings: RunSettings
    callback: ProgressCallback

    def report(self, stage: str, done: int, total: int | None = None, row: Row | None = None) -> None:
        """Send a progress event; a stage and a count are enough, so this is also a `Progress`."""
        self.callback(ProgressEvent(self.spec, stage, done, total, row))


def report_to(callback: ProgressCallback, spec: Spec) -> Progress:
    """Return a `Progress` that sends events of a run."""
    return lambda stage, done: callback(ProgressEvent(spec, stage, done))


def run_stream(context: RunContext) -> None:
    """Run the method over its stream, from the last snapshot up to the target round.

    Published methods run without a guard that acts, so they do what is published. A `HealthLog` takes the place of the
    default warning: rows hold health and guard events, and nothing is printed. It measures as the warning does, on
    every hundredth batch, and changes no prediction. The option `guard` of a spec, such as `fall_back+roll_back`, adds
    guards that act.
    """
    spec, run, resources, settings = context.spec, context.run, context.resources, context.settings
    if run.length >= context.rounds * len(spec.domains):
        return
    model = resources.model(spec).to(settings.device)
    build = partial(_build_adapter, spec, model, settings)
    adapter = build()
    stream = resources.stream(spec, context.rounds, context.report)  # fails before any preparation if data are missing
    if spec.code:
        _check_answers(spec, model, stream)
    order = {"order": str(stream.order)} if spec.seed else {}  # seed 0 keeps the dataset's own order
    run.write_spec(spec, adapter.method.describe() | order)
    visits = run.resume(adapter)
    if not adapter.prepared:
        source = resources.source(spec, settings.device)
        if not adapter.statistics.prepared and not is_own(spec.method):
            adapter = build(statistics=_prepare_shared_statistics(adapter, build, run, source, context.report))
        adapter.prepare(source, missing_only=True, progress=context.report)
    gc.collect()  # adapters of other runs, or used only to prepare, would count as memory of this run
    total = len(stream)
    stream = stream.start_from(visits // len(spec.domains) + 1, visits % len(spec.domains))
    writer, done = _CheckpointWriter(run, adapter, settings.save_every), total - len(stream)
    oracle, log, in_source = find_oracle(adapter), find_health_log(adapter), adapter.method.prepared_values
    constant = settings.step | ({"found": in_source} if in_source else {})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Adaptation is", RuntimeWarning)  # rows say the same
        for _, batches in itertools.groupby(Prefetcher(stream, device=settings.device), key=_visit):
            monitor, metrics = ResourceMonitor(settings.device), MetricCollection(spec, settings.device)
            for batch in batches:
                if oracle is not None:
                    oracle.set_known_mask(batch.known)
                metrics.update(adapter(batch.images), batch, adapter.last)
                done += 1
                context.report("adapting", done, total)
            row = metrics.compute() | (log.take_counts() if log else {})
            writer.add(row, monitor.measure() | constant)
            context.report("measured", done, total, row)
    writer.flush()


def _build_adapter(
    spec: Spec, model: nn.Module, settings: RunSettings, method: str | None = None, statistics: Statistics | None = None
) -> Adapter:
    """Build the run's adapter; optionally another method, or with statistics that are already prepared.

    A spec without `novelty` measures the paper's score, whatever the library's default is.
    """
    own_novelty = {} if is_own(spec.method) else {"novelty": "paper"}
    options = {**own_novelty, **dict(spec.options)} if method is None else {}
    overrides = {} if statistics is None else {"statistics": statistics}
    guards = {"guard": (HealthLog(), *benchmark_guards(method or spec.method, options))}
    keywords = {**options, "seed": spec.seed, **settings.step, **overrides, **guards}
    return build_method(method or spec.method, model, keywords)


def _check_answers(spec: Spec, model: nn.Module, stream: Continual) -> None:
    """Raise an error if the model cannot answer the first batch, or has fewer classes than the labels."""
    images = next(iter(stream)).images.to(next(model.parameters()).device)
    problems = [problem for problem in check(model, images) if problem.severity == "error"]
    if problems:
        message = f"{problems[0].message}. {problems[0].fix}"
        raise ModelError(f"Expected {spec.model} to answer the images of {spec.images}, but it does not. {message}")
    with torch.no_grad():
        classes = read_logits(copy.deepcopy(model).eval()(images), None).shape[1]
    largest = max(int(domain.images.labels.max()) for domain in stream.domains)
    if largest >= classes:
        raise InputError(
            f"Expected the labels of {spec.images} in 0..{classes - 1}, the classes of {spec.model}, "
            f"but got {largest}. Leave these images out, or pass them as unknown ones."
        )


def _prepare_shared_statistics(
    adapter: Adapter, build: Callable[..., Adapter], run: Run, source: SourceBatches, progress: Progress
) -> Statistics:
    """Return prepared statistics; the first run of the folder that needs them prepares and saves them."""
    spec = run.spec
    code = f" {spec.code}" if spec.code else ""
    digest = zlib.crc32(f"{adapter.statistics} {adapter.seed} {adapter.network.precision}{code}".encode())
    preparer = build(method="ttn", statistics=adapter.statistics)
    with run.shared_artifact(re.sub(r"[^\w.+-]", "_", f"{spec.model}-{spec.images}-{digest:08x}")) as path:
        if path.exists():
            return preparer.load(path).statistics
        preparer.prepare(source, progress=progress).save(path)
    return preparer.statistics


def _visit(batch: StreamBatch) -> tuple[int, str]:
    return batch.round, batch.domain


class _CheckpointWriter:
    """Buffers rows and writes them with a snapshot every `save_every` seconds."""

    def __init__(self, run: Run, adapter: Adapter, save_every: float) -> None:
        self._run, self._adapter, self._save_every = run, adapter, save_every
        self._last_write = time.monotonic()
        self._pairs: list[tuple[Row, Row]] = []

    def add(self, row: Row, conditions: Row) -> None:
        """Buffer a row; write the buffer if it is time."""
        self._pairs.append((row, conditions))
        if time.monotonic() - self._last_write >= self._save_every:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows and a snapshot."""
        if self._pairs:
            rows, conditions = map(list, zip(*self._pairs, strict=True))
            self._run.commit(rows, conditions, self._adapter)
        self._pairs, self._last_write = [], time.monotonic()
