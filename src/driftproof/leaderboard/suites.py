"""Suites of the open-set leaderboard; `suites.json` lists methods, columns and tables.

A row is a method, or a name, a method, and what differs: options of the method or fields of the stream. A column is a
measure and, in brackets, the stream that it is measured on; without one, half of a batch is unknown.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache, partial
from importlib.resources import files
from typing import Any

from driftproof.bench.spec import Spec
from driftproof.bench.tables import Suite, Table, TableEntry
from driftproof.corruptions import CORRUPTIONS
from driftproof.paper.suites import FILTER_OPTIONS, options_for

__all__ = ["FINDINGS", "LIMITS", "SEEDS", "SUITES", "make_run", "make_table"]

_DEFINITIONS: dict[str, Any] = json.loads((files(__package__) / "suites.json").read_text(encoding="utf-8"))
_FIELDS = {field.name for field in fields(Spec)}
_TIMED_TOGETHER = 4
"""Methods that take turns in one run of `costs`."""


@cache
def _suite(name: str) -> Suite:
    (made,) = (each for each in _DEFINITIONS["suites"] if each["name"] == name)
    return Suite(
        name, made["title"], tuple(_make_table(**table) for table in made["tables"]), made["rounds"], made["note"]
    )


SUITES: dict[str, Callable[[], Suite]] = {
    each["name"]: partial(_suite, each["name"]) for each in _DEFINITIONS["suites"]
}
"""How to make each suite, by name."""

LIMITS: dict[str, int] = {each["name"]: each["limit"] for each in _DEFINITIONS["suites"] if "limit" in each}
"""Images of each corruption in suites that stream a part of them; these runs need a results folder of their own."""

SEEDS: dict[str, str] = {each["name"]: each["seeds"] for each in _DEFINITIONS["suites"] if "seeds" in each}
"""Seeds of suites that repeat their runs."""

FINDINGS: dict[str, str] = {each["name"]: each["findings"] for each in _DEFINITIONS["suites"] if "findings" in each}
"""What the page says about a suite's results, with `{table|row|column}` for numbers of its tables."""


def _make_table(
    name: str,
    title: str,
    images: str,
    *,
    round: int = 1,
    methods: str = "all",
    columns: str = "all",
    unknown: str = "svhn-c",
    domains: int = len(CORRUPTIONS),
    costs: dict[str, str] | None = None,
) -> Table:
    if costs:
        return _make_costs_table(name, title, images, _DEFINITIONS["methods"][methods], costs)
    listed = _DEFINITIONS["methods"][methods]
    rows = dict((row, (row, {})) if isinstance(row, str) else (row[0], (row[1], row[2])) for row in listed)
    stream = {"unknown": unknown, "domains": CORRUPTIONS[:domains]}
    return make_table(name, title, images, rows, _DEFINITIONS["columns"][columns], round=round, **stream)


def make_table(
    name: str,
    title: str,
    images: str,
    rows: Mapping[str, tuple[str, Mapping[str, Any]]],
    columns: Iterable[str],
    *,
    round: int = 1,
    **common: Any,  # noqa: ANN401  # any field of a spec
) -> Table:
    """Make a table of measures.

    Args:
        name: The table's name.
        title: What it shows.
        images: The streamed set.
        rows: By name a method, and what differs: its options, or fields of the run.
        columns: Measures, each with its stream in brackets.
        round: The round that it shows.
        **common: Fields of all runs.
    """
    entries, lower = [], {}
    for column in columns:
        measure, _, stream = column.removesuffix(")").partition(" (")
        streamed = {**common, **_DEFINITIONS["streams"].get(stream, {})}
        place = dict(_DEFINITIONS["measures"][measure])
        lower[column] = not place.pop("higher", False)
        for row, (method, changes) in rows.items():
            run = make_run(method, images, **{**streamed, **changes})
            entries.append(TableEntry(row, column, (run,), round=round, **place))
    return Table(name, title, tuple(entries), unit="mixed", lower_is_better=lower)


def _make_costs_table(name: str, title: str, images: str, methods: list[str], costs: dict[str, str]) -> Table:
    """Make a table of several runs: one that times all methods would keep all of them in memory, and end at once."""
    entries = []
    for first in range(0, len(methods), _TIMED_TOGETHER):
        chosen = methods[first : first + _TIMED_TOGETHER]
        run = Spec(",".join(chosen), images, "wrn40_2", domains=CORRUPTIONS[:1], measures=(), task="costs")
        run = run.with_options(trials=30, warm_up=2)
        entries += [
            TableEntry(method, column, (run,), metric=metric, domain=method)
            for method in chosen
            for column, metric in costs.items()
        ]
    return Table(name, title, tuple(entries), unit="mixed")


def make_run(method: str, images: str, **changes: Any) -> Spec:  # noqa: ANN401  # any field of a spec, or option
    """Return the run of a method: the paper's hyper-parameters where it has any, else the method's defaults.

    `changes` are fields of the spec, and options of the method. The network is WRN-40-2 unless they name another.

    Examples:
        >>> make_run("roid+crowd", "cifar10-c").options, make_run("tent+unient", "cifar10-c").options
        ((), (('lr', 0.001), ('novelty', 'cosine')))
    """
    base, _, selection = method.partition("+")
    options = options_for(base, images)
    if options and selection == "crowd":
        options = options_for(method, images)
    elif selection:
        options = {name: value for name, value in options.items() if name not in FILTER_OPTIONS}
    stream = {name: value for name, value in changes.items() if name in _FIELDS}
    own = {name: value for name, value in changes.items() if name not in _FIELDS}
    spec = Spec(method, images, **{"model": "wrn40_2", "domains": CORRUPTIONS} | stream)
    return spec.with_options(**options | _DEFINITIONS["options"].get(method, {}) | own)
