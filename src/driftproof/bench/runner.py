"""Run a method over a stream, from its last snapshot to its target round."""

import copy
import gc
import itertools
import re
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from driftproof.adapter import Adapter
from driftproof.adapter.method import check_engine_options
from driftproof.bench.environment import ResourceMonitor
from driftproof.bench.health_log import HealthLog, benchmark_guards
from driftproof.bench.local_files import LocalFiles
from driftproof.bench.metrics import MetricCollection
from driftproof.bench.spec import Option, Spec
from driftproof.bench.store import Row, Run
from driftproof.components import Progress, SourceBatches
from driftproof.errors import InputError, ModelError
from driftproof.methods.by_name import build_method
from driftproof.methods.oracle import find_oracle
from driftproof.named import is_own
from driftproof.network import read_logits
from driftproof.problems import check
from driftproof.statistics import Statistics
from driftproof.streams import Continual, Prefetcher, StreamBatch

__all__ = ["ProgressCallback", "ProgressEvent", "RunContext", "RunSettings", "report_to", "run_stream"]


@dataclass(frozen=True)
class RunSettings:
    """How a run is executed; none of this is part of its spec.

    Attributes:
        save_every: Seconds between snapshots, besides those after each round. A killed run loses at most this, and the
            domain it was in.
        engine: Execution engine of a step: `auto`, `eager`, `compile` or `graph`.
        precision: Precision of the forward and backward passes; None leaves torch's defaults.
        channels_last: Whether images use the channels-last memory format.
        before_domain: Called before each domain with the adapter, the round and the domain's name; returns a prefix for
            the names of the metrics, such as "" or one that tells rows in which the adapter answers differently.
    """

    device: str = "cpu"
    save_every: float = 30.0
    engine: str = "auto"
    precision: str | None = None
    channels_last: bool = False
    before_domain: Callable[[Adapter, int, str], str] | None = None

    def __post_init__(self) -> None:
        check_engine_options(engine=self.engine, precision=self.precision)

    @property
    def step(self) -> dict[str, Option]:
        """Options that every adapter takes."""
        return {"engine": self.engine, "precision": self.precision, "channels_last": self.channels_last}


@dataclass(frozen=True)
class ProgressEvent:
    """Progress of a run: what it is doing, how many items are done, and at the end of a domain its row."""

    spec: Spec
    stage: str
    done: int
    total: int | None = None
    row: Row | None = None


ProgressCallback = Callable[[ProgressEvent], None]


@dataclass(frozen=True)
class RunContext:
    """What a task works with: a run, locked by the caller, and its target number of rounds from the beginning."""

    spec: Spec
    run: Run
    resources: LocalFiles
    rounds: int
    settings: RunSettings
    callback: ProgressCallback

    def report(self, stage: str, done: int, total: int | None = None, row: Row | None = None) -> None:
        """Send a progress event; a stage and a count are enough, so this is also a `Progress`."""
        self.callback(ProgressEvent(self.spec, stage, done, total, row))

    def append(self, rows: Sequence[Row], monitor: ResourceMonitor, execution: Row) -> None:
        """Write the rows of an analysis, which is not resumed, with equal shares of its time."""
        self.run.append(rows, [monitor.measure(len(rows)) | execution] * len(rows))
        for row in rows:
            self.report("measured", len(rows), len(rows), row)


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
    done, started, rows, conditions = total - len(stream), time.monotonic(), list[Row](), list[Row]()
    oracle, in_source = find_oracle(adapter), adapter.method.prepared_values
    log = next((guard for guard in adapter.method.guards if isinstance(guard, HealthLog)), None)
    fixed = {name: value for name, value in spec.options if name in settings.step}
    constant = settings.step | fixed | ({"found": in_source} if in_source else {})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Adaptation is", RuntimeWarning)  # rows say the same
        for (number, domain), batches in itertools.groupby(Prefetcher(stream, device=settings.device), key=_visit):
            prefix = "" if settings.before_domain is None else settings.before_domain(adapter, number, domain)
            monitor, metrics = ResourceMonitor(settings.device), MetricCollection(spec, settings.device, prefix)
            for batch in batches:
                if oracle is not None:
                    oracle.set_known_mask(batch.known)
                metrics.update(adapter(batch.images), batch, adapter.last)
                done += 1
                context.report("adapting", done, total)
            row = metrics.compute() | (log.take_counts() if log else {})
            rows.append(row)
            conditions.append(monitor.measure() | constant)
            if done % (total // context.rounds) == 0 or time.monotonic() - started >= settings.save_every:
                run.commit(rows, conditions, adapter)
                started, rows, conditions = time.monotonic(), [], []
            context.report("measured", done, total, row)


def _build_adapter(
    spec: Spec, model: nn.Module, settings: RunSettings, method: str | None = None, statistics: Statistics | None = None
) -> Adapter:
    """Build the run's adapter; optionally another method, or with statistics that are already prepared.

    A spec without `novelty` measures the paper's score, whatever the library's default is; `own` is the score that the
    method's function chooses. Engine and precision are the command's unless the spec fixes them.
    """
    own_novelty = {} if is_own(spec.method) else {"novelty": "paper"}
    options = {**own_novelty, **dict(spec.options)} if method is None else {}
    options = {key: value for key, value in options.items() if (key, value) != ("novelty", "own")}
    overrides = {} if statistics is None else {"statistics": statistics}
    guards = {"guard": (HealthLog(), *benchmark_guards(method or spec.method, options))}
    keywords = {"seed": spec.seed, **settings.step, **options, **overrides, **guards}
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
