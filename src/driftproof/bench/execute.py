"""Check jobs, run them, and record the command that did."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path, PurePath
from typing import Any

from driftproof.bench.benchmark import Benchmark
from driftproof.bench.environment import VERSIONS
from driftproof.bench.jobs import Failures, Job, run_locally
from driftproof.bench.local_files import LocalFiles
from driftproof.bench.on_ray import run_on_ray
from driftproof.bench.plan import plan_runs
from driftproof.bench.runner import ProgressCallback, RunSettings, report_to
from driftproof.bench.store import Store
from driftproof.methods.by_name import parse_method
from driftproof.named import is_own, load_named, name_of
from driftproof.validation import check_choice

__all__ = ["execute", "hide_folders", "run"]

_EXECUTORS = {"local": run_locally, "ray": run_on_ray}


def run(
    *,
    out: str | Path = "bench",
    executor: str = "local",
    settings: RunSettings | None = None,
    callback: ProgressCallback | None = None,
    **benchmark: Any,  # noqa: ANN401  # the attributes of `Benchmark`
) -> Path:
    """Run methods on a model and images; repeat the call to resume, or with more rounds to continue.

    Args:
        out: Results folder.
        executor: `local`, or `ray` for a cluster.
        settings: Device, engine, precision, and how often snapshots are written.
        callback: Receives progress events.
        **benchmark: Methods, model, images and more: the attributes of `driftproof.bench.Benchmark`.

    Returns:
        The results folder, which `driftproof.bench.load` reads.

    Raises:
        ExecutionError: If some runs failed; the others are complete.
    """
    settings, chosen = settings or RunSettings(), Benchmark.from_data(benchmark, "the arguments")
    jobs, files = plan_runs(chosen.suite(), chosen.run_filter()), chosen.files(settings.device)
    given = ", ".join(f"{name}={_plain(value)!r}" for name, value in benchmark.items())
    execute(
        jobs, files, Path(out), settings=settings, callback=callback or (lambda event: None), executor=executor,
        metadata=chosen.run_filter().metadata() | files.metadata(), command=f"driftproof.bench.run({given})",
    )  # fmt: skip
    return Path(out)


def execute(
    jobs: Sequence[Job],
    resources: LocalFiles,
    out: Path,
    *,
    settings: RunSettings,
    callback: ProgressCallback,
    metadata: Mapping[str, Any],
    command: str,
    executor: str = "local",
    notify: Callable[[str], object] = warnings.warn,
) -> None:
    """Run jobs whose names, weights and images are there; raise an error at the end if some failed.

    Besides what `run_locally` takes: `metadata` is what all runs of the folder share, and a contradiction raises an
    error before anything is computed. The folder records the `command`. `notify` gets a sentence about changed sources.
    """
    run_jobs = _EXECUTORS[check_choice("executor", executor, _EXECUTORS)]
    store, facts = Store(out), dict(metadata)
    if store.metadata:  # fail on a mismatch before datasets are generated
        store.update_metadata(facts)
    for name in _changed_functions(store, jobs):
        notify(f"The source of {name} has changed: its runs start anew, beside the earlier ones.")
    ready, failures = [], Failures(callback)
    for job in jobs:
        with failures.collect(job):
            for name in job.spec.method.split(","):
                load_named(name, what="the method") if is_own(name) else parse_method(name)
            facts |= resources.fingerprints(job.spec, report_to(callback, job.spec))
            ready.append(job)
    if not ready:
        failures.raise_if_any()
    date = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    store.update_metadata(facts | {"commands": [{"command": command, "date": date, **VERSIONS}]})
    run_jobs(ready, out, resources, settings, callback, failures)


def hide_folders(word: str) -> str:
    """Return a word of a command without the folders of an absolute path: results are shared, machines are not.

    Examples:
        >>> hide_folders("/home/me/data"), hide_folders("--out=/tmp/runs"), hide_folders("runs/first")
        ('.../data', '--out=.../runs', 'runs/first')
    """
    option, equals, path = word.rpartition("=")
    return f"{option}{equals}.../{PurePath(path).name}" if PurePath(path).is_absolute() else word


def _plain(value: Any) -> Any:  # noqa: ANN401  # any argument
    """Return functions as their names, and paths as text."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return name_of(value) if callable(value) else hide_folders(str(value)) if isinstance(value, str | Path) else value


def _changed_functions(store: Store, jobs: Sequence[Job]) -> set[str]:
    """Return the functions whose source text differs from that of earlier, otherwise equal runs."""
    own = {job.spec for job in jobs if job.spec.code}
    earlier = {run.spec for run in store.runs()} if own else set()
    new = {replace(spec, code=()): dict(spec.code) for spec in own - earlier}
    return {
        name
        for spec in earlier
        for name, source in spec.code
        if new.get(replace(spec, code=()), {}).get(name, source) != source
    }
