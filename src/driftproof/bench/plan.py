"""From a suite to the work there is to do."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from driftproof.bench.jobs import Job
from driftproof.bench.methods import parse_method
from driftproof.bench.datasets import DATASETS
from driftproof.bench.spec import Spec
from driftproof.bench.tables import Suite
from driftproof.errors import ConfigurationError
from driftproof.models import MODELS
from driftproof.validation import check_choice

__all__ = ["RunFilter", "plan_runs"]


@dataclass(frozen=True)
class RunFilter:
    """Which part of a suite to run, and how much of it.

    Attributes:
        methods: Only these; all if empty.
        sets: Only cells that stream these sets; all if empty.
        setting: Only `open` or `closed` cells; None for both.
        task: Only `stream`, `costs` or `gradients`; None for all.
        rounds: How many; None for as many as the suite's tables need.
        limit: Only the first so many images of each domain.
        seeds: One run for each.
        replaced: Sets to stream instead of others, such as a stand-in for one that is not at hand, and networks to take
            instead of others, such as a smaller one.
        prepared_on_test: Sets whose clean test images stand in for their training images when a method prepares.
        trials: How often the step of a method is timed; None for as often as the suite says.
    """

    methods: Sequence[str] = ()
    sets: Sequence[str] = ()
    setting: str | None = None
    task: str | None = None
    rounds: int | None = None
    limit: int | None = None
    seeds: Sequence[int] = (0,)
    replaced: Mapping[str, str] = field(default_factory=dict)
    prepared_on_test: Sequence[str] = ()
    trials: int | None = None

    def metadata(self) -> dict[str, Any]:
        """What has to be the same for all cells of a results folder."""
        shared: dict[str, Any] = {"limit": self.limit, "replaced": dict(self.replaced)}
        return shared | {"prepared on test images": sorted(self.prepared_on_test)}

    def matches(self, spec: Spec) -> bool:
        """Whether a cell of the suite is chosen."""
        return (
            (not self.methods or spec.method in self.methods)
            and (not self.sets or spec.images in self.sets)
            and self.setting in (None, spec.setting)
            and self.task in (None, spec.task)
        )

    def apply(self, spec: Spec, seed: int) -> Spec:
        """A cell of the suite as it is to be run."""
        return replace(
            self._timed(spec),
            images=self.replaced.get(spec.images, spec.images),
            unknown=None if spec.unknown is None else self.replaced.get(spec.unknown, spec.unknown),
            model=self.replaced.get(spec.model, spec.model),
            limit=self.limit,
            seed=seed,
        )

    def _timed(self, spec: Spec) -> Spec:
        if spec.task != "costs" or self.trials is None:
            return spec
        warm_up = int(dict(spec.options)["warm_up"] or 0)
        return spec.with_options(trials=self.trials, warm_up=min(warm_up, self.trials))


def plan_runs(suites: Suite | Sequence[Suite], choice: RunFilter) -> list[Job]:
    """The jobs of the chosen part of one suite or several, each once, in the order of the tables.

    A cell that several suites want, or that a replacement makes of several, goes as far as the furthest is wanted.

    Args:
        suites: What could be run.
        choice: What shall be; every name in it has to be known to one of the suites.
    """
    suites = [suites] if isinstance(suites, Suite) else suites
    names = " or ".join(suite.name for suite in suites)
    wanted = _furthest(
        (spec, suite.rounds if choice.rounds is None else choice.rounds) for suite in suites for spec in suite.specs()
    )
    _expect_known(choice, list(wanted), names)
    for name, count in {"rounds": choice.rounds, "trials": choice.trials}.items():
        if count is not None and count < 1:
            raise ConfigurationError(f"Expected `{name}` to be at least 1, but got {count}.")
    chosen = _furthest(
        (choice.apply(spec, seed), rounds)
        for seed in choice.seeds
        for spec, rounds in wanted.items()
        if choice.matches(spec)
    )
    if not chosen:
        raise ConfigurationError(f"Expected at least one cell of {names} to run, but none is both chosen and there.")
    return [Job(spec, rounds) for spec, rounds in chosen.items()]


def _furthest(goals: Iterable[tuple[Spec, int]]) -> dict[Spec, int]:
    """Each cell once, with the most rounds that are asked of it."""
    rounds: dict[Spec, int] = {}
    for spec, goal in goals:
        rounds[spec] = max(rounds.get(spec, 0), goal)
    return rounds


def _expect_known(choice: RunFilter, specs: Sequence[Spec], names: str) -> None:
    for name in choice.methods:
        parse_method(name)
    for kind, chosen, known in (
        ("method", choice.methods, [spec.method for spec in specs]),
        ("image set", choice.sets, [spec.images for spec in specs]),
        ("setting", [choice.setting] if choice.setting else [], ["open", "closed"]),
        ("task", [choice.task] if choice.task else [], [spec.task for spec in specs]),
    ):
        for name in chosen:
            check_choice(f"{kind} of {names}", name, dict.fromkeys(known))
    # A folder shares these among suites, whether or not they concern each of them.
    for name in choice.replaced:
        check_choice("image set or network", name, (*DATASETS, *MODELS))
    for name in choice.prepared_on_test:
        check_choice("image set with clean test images", name, [each for each in DATASETS if DATASETS[each].clean is not None])
