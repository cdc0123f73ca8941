"""Turn suites into jobs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from driftproof.bench.jobs import Job
from driftproof.bench.local_files import NETWORKS
from driftproof.bench.spec import Spec
from driftproof.bench.tables import Suite
from driftproof.errors import ConfigurationError
from driftproof.methods.by_name import parse_method
from driftproof.named import hash_sources, is_own
from driftproof.streams.datasets import DATASETS
from driftproof.validation import check_choice

__all__ = ["RunFilter", "plan_runs"]


@dataclass(frozen=True)
class RunFilter:
    """Which runs of a suite to execute, and with what changes. Empty sequences and None leave the suite's.

    Attributes:
        methods: Only these methods. Functions of yours are added to every stream of the suite.
        images: Only runs that stream these datasets.
        setting: Only `open` or `closed` runs.
        limit: Number of images to take from each domain; None for all.
        replaced: Substitutes, by the dataset or network they replace, for one that is unavailable or too large.
        prepared_on_test: Datasets whose clean test images replace the training images when a method prepares.
        trials: Number of timed steps in `costs` runs.
    """

    methods: Sequence[str] = ()
    images: Sequence[str] = ()
    setting: str | None = None
    task: str | None = None
    rounds: int | None = None
    limit: int | None = None
    seeds: Sequence[int] = (0,)
    replaced: Mapping[str, str] = field(default_factory=dict)
    prepared_on_test: Sequence[str] = ()
    trials: int | None = None

    def metadata(self) -> dict[str, Any]:
        """Return what has to be the same for all runs of a results folder."""
        shared = {"limit": self.limit, "replaced": dict(self.replaced)}
        return shared | {"prepared on test images": sorted(self.prepared_on_test)}

    def matches(self, spec: Spec) -> bool:
        """Whether a run of the suite is included."""
        in_lists = spec.method in (self.methods or [spec.method]) and spec.images in (self.images or [spec.images])
        return in_lists and self.setting in (None, spec.setting) and self.task in (None, spec.task)

    def apply(self, spec: Spec, seed: int) -> Spec:
        """Return the spec with substitutes, limit, seed and trials applied."""
        if spec.task == "costs" and self.trials is not None:
            warm_up = int(dict(spec.options)["warm_up"] or 0)
            spec = spec.with_options(trials=self.trials, warm_up=min(warm_up, self.trials))
        names = {field: getattr(spec, field) for field in ("images", "unknown", "model")}
        here = {field: self.replaced.get(name, name) for field, name in names.items()}
        code = hash_sources(spec.method, *here.values())
        return replace(spec, limit=self.limit, seed=seed, code=code, **here)


def plan_runs(suites: Suite | Sequence[Suite], run_filter: RunFilter) -> list[Job]:
    """List the jobs of one suite or several, each once, in the order of the tables.

    Every name in the filter has to occur in one of the suites. Runs requested more than once, by several suites or
    through substitutes, use the largest number of rounds requested.
    """
    suites = [suites] if isinstance(suites, Suite) else suites
    names = " or ".join(suite.name for suite in suites)
    available = _max_rounds(
        (spec, suite.rounds if run_filter.rounds is None else run_filter.rounds)
        for suite in suites
        for spec in (*suite.specs(), *_own_runs(run_filter.methods, suite))
    )
    _check_names(run_filter, list(available), names)
    for name, count in {"rounds": run_filter.rounds, "trials": run_filter.trials}.items():
        if count is not None and count < 1:
            raise ConfigurationError(f"Expected `{name}` to be at least 1, but got {count}.")
    selected = _max_rounds(
        (run_filter.apply(spec, seed), rounds)
        for seed in run_filter.seeds
        for spec, rounds in available.items()
        if run_filter.matches(spec)
    )
    if not selected:
        raise ConfigurationError(f"Expected at least one run of {names}, but none matches the options.")
    return [Job(spec, rounds) for spec, rounds in selected.items()]


def _own_runs(methods: Sequence[str], suite: Suite) -> Iterable[Spec]:
    """Return a run of each of the user's methods on every stream of a suite."""
    own = [method for method in methods if is_own(method) and method not in {spec.method for spec in suite.specs()}]
    for spec in suite.specs():
        if spec.task == "stream":
            measures = ("iou" if "iou" in spec.measures else "error", "selection")
            yield from (replace(spec, method=method, options=(), measures=measures) for method in own)


def _max_rounds(requests: Iterable[tuple[Spec, int]]) -> dict[Spec, int]:
    """Return each spec once, with the largest number of rounds requested."""
    rounds: dict[Spec, int] = {}
    for spec, requested in requests:
        rounds[spec] = max(rounds.get(spec, 0), requested)
    return rounds


def _check_names(run_filter: RunFilter, specs: Sequence[Spec], names: str) -> None:
    for name in run_filter.methods:
        parse_method(name)
    for kind, requested, known in (
        ("method", run_filter.methods, [spec.method for spec in specs]),
        ("image set", run_filter.images, [spec.images for spec in specs]),
        ("setting", [run_filter.setting] if run_filter.setting else [], ["open", "closed"]),
        ("task", [run_filter.task] if run_filter.task else [], [spec.task for spec in specs]),
    ):
        for name in requested:
            check_choice(f"{kind} of {names}", name, dict.fromkeys(known))
    # These belong to the folder's metadata, so they may name datasets that these suites do not use.
    for name in run_filter.replaced:
        check_choice("image set or network", name, (*DATASETS, *NETWORKS))
    clean = [name for name, config in DATASETS.items() if config.clean is not None]
    for name in run_filter.prepared_on_test:
        check_choice("image set with clean test images", name, clean)
