"""Suites of the open-set leaderboard; `suites.json` lists methods, columns and tables.

A column is a measure and, in brackets, the stream that it is measured on; without one, half of a batch is unknown.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from importlib.resources import files
from typing import Any

from driftproof.bench.spec import Option, Spec
from driftproof.bench.tables import Suite, Table, TableEntry
from driftproof.corruptions import CORRUPTIONS
from driftproof.paper.suites import FILTER_OPTIONS, options_for

__all__ = ["SUITES", "make_run", "make_table"]

_DEFINITIONS: dict[str, Any] = json.loads((files(__package__) / "suites.json").read_text(encoding="utf-8"))


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


def _make_table(
    name: str,
    title: str,
    images: str,
    *,
    round: int = 1,
    methods: str = "all",
    columns: str = "all",
    unknown: str = "svhn-c",
    costs: dict[str, str] | None = None,
) -> Table:
    if costs:
        return _make_costs_table(name, title, images, _DEFINITIONS["methods"][methods], costs)
    rows: dict[str, tuple[str, Mapping[str, Option]]] = {
        method: (method, {}) for method in _DEFINITIONS["methods"][methods]
    }
    return make_table(name, title, images, rows, _DEFINITIONS["columns"][columns], round=round, unknown=unknown)


def make_table(
    name: str,
    title: str,
    images: str,
    rows: Mapping[str, tuple[str, Mapping[str, Option]]],
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
        rows: By name a method, and options that differ from its defaults.
        columns: Measures, each with its stream in brackets.
        round: The round that it shows.
        **common: Fields of all runs.
    """
    entries, lower = [], {}
    for column in columns:
        measure, _, stream = column.removesuffix(")").partition(" (")
        fields = {**common, **_DEFINITIONS["streams"].get(stream, {})}
        place = dict(_DEFINITIONS["measures"][measure])
        lower[column] = not place.pop("higher", False)
        for row, (method, options) in rows.items():
            run = make_run(method, images, **fields).with_options(**options)
            entries.append(TableEntry(row, column, (run,), round=round, **place))
    return Table(name, title, tuple(entries), unit="mixed", lower_is_better=lower)


def _make_costs_table(name: str, title: str, images: str, methods: list[str], costs: dict[str, str]) -> Table:
    """Make a table whose numbers all come from one run, so that they are comparable."""
    run = Spec(",".join(methods), images, "wrn40_2", domains=CORRUPTIONS[:1], measures=(), task="costs")
    run = run.with_options(trials=100, warm_up=20)
    entries = (
        TableEntry(method, column, (run,), metric=metric, domain=method)
        for method in methods
        for column, metric in costs.items()
    )
    return Table(name, title, tuple(entries), unit="mixed")


def make_run(method: str, images: str, **fields: Any) -> Spec:  # noqa: ANN401  # any field of a spec
    """Return a method on WRN-40-2: the paper's hyper-parameters where it has any, else the method's defaults.

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
    spec = Spec(method, images, "wrn40_2", **{"domains": CORRUPTIONS, **fields})
    return spec.with_options(**options, **_DEFINITIONS["options"].get(method, {}))
