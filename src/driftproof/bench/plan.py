"""From a suite to the work there is to do."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from driftproof.bench.jobs import Job
from driftproof.bench.methods import expect_method
from driftproof.bench.spec import Spec
from driftproof.bench.tables import Suite
from driftproof.errors import ConfigurationError
from driftproof.names import expect_known

__all__ = ["Choice", "plan", "together"]


@dataclass(frozen=True)
class Choice:
    """Which part of a suite to run, and how much of it.

    Attributes:
        methods: Only these; all if empty.
        sets: Only cells that stream these sets; all if empty.
        setting: Only `open` or `closed` cells; None for both.
        rounds: How many; None for as many as the suite's tables need.
        limit: Only the first so many images of each domain.
        seeds: One run for each.
        replaced: Sets to stream instead of others, such as a stand-in for one that is not at hand.
        prepared_on_test: Sets whose clean test images stand in for their training images when a method prepares.
    """

    methods: Sequence[str] = ()
    sets: Sequence[str] = ()
    setting: str | None = None
    rounds: int | None = None
    limit: int | None = None
    seeds: Sequence[int] = (0,)
    replaced: Mapping[str, str] = field(default_factory=dict)
    prepared_on_test: Sequence[str] = ()

    def shared(self) -> dict[str, Any]:
        """What has to be the same for all cells of a results folder."""
        shared: dict[str, Any] = {"limit": self.limit, "replaced": dict(self.replaced)}
        return shared | {"prepared on test images": sorted(self.prepared_on_test)}

    def wants(self, spec: Spec) -> bool:
        """Whether a cell of the suite is chosen."""
        return (
            (not self.methods or spec.method in self.methods)
            and (not self.sets or spec.images in self.sets)
            and self.setting in (None, spec.setting)
        )

    def applied(self, spec: Spec, seed: int) -> Spec:
        """A cell of the suite as it is to be run."""
        return replace(
            spec,
            images=self.replaced.get(spec.images, spec.images),
            unknown=None if spec.unknown is None else self.replaced.get(spec.unknown, spec.unknown),
            limit=self.limit,
            seed=seed,
        )


def plan(suite: Suite, choice: Choice) -> list[Job]:
    """The jobs of the chosen part of a suite, each once, in the order of its tables.

    Args:
        suite: What could be run.
        choice: What shall be.
    """
    if not suite.ready:
        raise ConfigurationError(f"Expected a suite that can be run, but got {suite.name}. {suite.note}")
    for name in choice.methods:
        expect_method(name)
    specs = list(suite.specs())
    for kind, names, known in (
        ("method", choice.methods, [spec.method for spec in specs]),
        ("image set", choice.sets, [spec.images for spec in specs]),
        ("image set", choice.replaced, [name for spec in specs for name in (spec.images, spec.unknown) if name]),
        ("image set", choice.prepared_on_test, [spec.images for spec in specs]),
        ("setting", [choice.setting] if choice.setting else [], ["open", "closed"]),
    ):
        for name in names:
            expect_known(f"{kind} of {suite.name}", name, dict.fromkeys(known))
    rounds = suite.rounds if choice.rounds is None else choice.rounds
    if rounds < 1:
        raise ConfigurationError(f"Expected `rounds` to be at least 1, but got {rounds}.")
    chosen = dict.fromkeys(choice.applied(spec, seed) for seed in choice.seeds for spec in specs if choice.wants(spec))
    if not chosen:
        raise ConfigurationError(
            f"Expected at least one cell of {suite.name} to run, but none is both chosen and there."
        )
    return [Job(spec, rounds) for spec in chosen]


def together(plans: Iterable[Sequence[Job]]) -> list[Job]:
    """The jobs of several plans, a cell that several of them want once, as far as the furthest of them wants it.

    Args:
        plans: For example of two tables that share cells.
    """
    furthest: dict[Spec, int] = {}
    for job in itertools.chain.from_iterable(plans):
        furthest[job.spec] = max(job.rounds, furthest.get(job.spec, 0))
    return [Job(spec, rounds) for spec, rounds in furthest.items()]
