"""Suites: the paper's tables and figures, and our ablations; the paper's hyper-parameters.

`suites.json` lists them. A table is made of grids of rows and columns. The name of a row starts with its method, and
that of a column is made of words; both, and the grid, may name more that its specs have: fields, options of the method,
`setting` (Closed, Open or both with a plus sign), and what the table shows (`metric`, `round`, `domain`).
"""

import itertools
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any

from driftproof.bench.spec import Option, Spec
from driftproof.bench.tables import Suite, Summary, Table, TableEntry
from driftproof.corruptions import CORRUPTIONS
from driftproof.data.scenes.driving import PADDED
from driftproof.paper.printed import PaperTable, paper_table, read_json
from driftproof.validation import check_choice

__all__ = ["FILTER_OPTIONS", "SUITES", "all_tables", "make_spec", "options_for", "suite"]

_DEFINITIONS: dict[str, Any] = read_json("suites.json")
"""The paper's options, datasets and networks, and the suites."""

FILTER_OPTIONS = ("redundancy",)
"""Options of a method's own sample filter, which a selection replaces."""

_SCENES = ("driving", "camvid")
_ANALYZED = ("cifar10-c", "cifar100-c")
_ANALYSIS_METRICS = ("scores", "crowd", "histograms")
_SPEC_FIELDS = {field.name for field in fields(Spec)} | {"analyzed"}


@cache
def suite(name: str) -> Suite:
    """Build a suite by name.

    Examples:
        >>> suite("table2").rounds
        1
    """
    check_choice("suite", name, SUITES)
    (made,) = (each for each in _DEFINITIONS["suites"] if each["name"] == name)
    tables = tuple(_make_table(made["title"], **table) for table in made["tables"])
    return Suite(name, made["title"], tables, made["rounds"], made.get("note", ""))


SUITES: dict[str, Callable[[], Suite]] = {each["name"]: partial(suite, each["name"]) for each in _DEFINITIONS["suites"]}
"""How to make each suite, by name; results are stored under these names."""


@cache
def all_tables() -> tuple[Table, ...]:
    """Return the tables of all suites."""
    return tuple(table for make in SUITES.values() for table in make().tables)


def _make_table(
    about: str,
    name: str,
    grids: Iterable[tuple[Any, Any, dict[str, Any]]],
    *,
    title: str = "",
    paper: str | None = None,
    summaries: dict[str, list[str]] | None = None,
    how: Any = "mean",  # noqa: ANN401
    **fields: Any,  # noqa: ANN401
) -> Table:
    """Make a table; a title that starts with a colon goes on from `about`, the suite's."""
    title = f"{about}{title}" if title[:1] in ("", ":") else title
    entries = tuple(itertools.chain.from_iterable(_make_grid(*grid) for grid in grids))
    columns = tuple(Summary(column, tuple(of), how) for column, of in (summaries or {}).items())
    table = Table(name, title, entries, summaries=columns, **fields)
    return table if paper is None else _add_printed(table, paper_table(paper))


def _make_grid(rows: Any, columns: Any, common: dict[str, Any]) -> Iterable[TableEntry]:  # noqa: ANN401
    """Make the entries of a grid; a column overrides its row, and both override what is common."""
    known = _DEFINITIONS
    rows, columns = known["rows"].get(str(rows), rows), known["columns"].get(str(columns), columns)
    common = {**known["streams"].get(common.get("stream"), {}), **common}
    for row, column in itertools.product(map(_read_row, rows), map(_read_column, columns)):
        yield _make_entry(row[0], column[0], {**row[1], **common, **row[2], **column[1]})


def _read_row(row: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:  # noqa: ANN401
    """Return the name of a row, the method that it starts with, and what it names besides."""
    name, cell = (row, {}) if isinstance(row, str) else row
    symbols = _DEFINITIONS["symbols"]
    found = re.findall(rf"\b({'|'.join(symbols)}) =? ?([\d.e-]+)", name)
    method = re.match(r"[\w+]+", name)
    return name, {"method": method[0] if method else name}, {symbols[key]: float(text) for key, text in found} | cell


def _read_column(column: Any) -> tuple[str, dict[str, Any]]:  # noqa: ANN401
    name, cell = (column, {}) if isinstance(column, str) else column
    words = (_DEFINITIONS["words"].get(word, {}) for word in name.split("/"))
    return name, dict(itertools.chain.from_iterable(each.items() for each in (*words, cell)))


def _make_entry(row: str, column: str, cell: dict[str, Any]) -> TableEntry:
    cell.pop("stream", None)
    settings = cell.pop("setting", "Closed").split("+")
    place = {name: cell.pop(name) for name in ("metric", "round", "domain") if name in cell}
    place |= {name: text.format(row=row) for name, text in place.items() if isinstance(text, str)}
    chosen = {name: cell.pop(name) for name in _SPEC_FIELDS & cell.keys()}
    chosen |= {name: tuple(value) for name, value in chosen.items() if isinstance(value, list)}
    unknown = {"Closed": None, "Open": _DEFINITIONS["unknown"].get(chosen["images"])}
    specs = (make_spec(**chosen, unknown=unknown[setting]).with_options(**cell) for setting in settings)
    return TableEntry(row, column, tuple(specs), **place)


def _add_printed(table: Table, printed: PaperTable) -> Table:
    """Put the paper's numbers next to ours."""
    names = {entry.row: _find_row(entry.row, printed) for entry in table.entries}
    rows = {row: printed.rows[name] for row, name in names.items() if name}
    entries = (replace(each, reference=rows.get(each.row, {}).get(each.column)) for each in table.entries)
    summaries = (
        replace(each, references={row: values[each.column] for row, values in rows.items()}) for each in table.summaries
    )
    better = {column: better == "lower" for column, better in printed.better.items()}
    table = replace(table, reference=printed.reference, lower_is_better=better)
    return replace(table, entries=tuple(entries), summaries=tuple(summaries))


def _find_row(row: str, printed: PaperTable) -> str:
    """Return the name of a row in the paper's table; empty if it has none."""
    known, (base, plus, _) = _DEFINITIONS["printed"], row.partition("+")
    name = known.get(row) or f"{known.get(base)}{' + Ours' * bool(plus)}"
    return next((found for found in (name, f"{name} (softmax)") if found in printed.rows), "")


def options_for(method: str, images: str, domains: Collection[str] = ()) -> dict[str, Option]:
    """Return the paper's hyper-parameters of a method on a dataset, or our documented choice.

    Examples:
        >>> options_for("eata+crowd", "cifar10-c")["fisher"]
        1.0
    """
    known, (base, _, selection) = _DEFINITIONS["options"], method.partition("+")
    if "," in method:  # several methods, of which the costs are compared
        return {}
    if images.startswith(_SCENES):
        options = known.get(f"{method} on scenes", {})
        framed = "lr" in options and not PADDED.isdisjoint(domains)
        return {**options, **({"framed": True} if framed else {})}  # padding is excluded from the loss
    options = {**known.get(base, {}), **known.get(f"{base} on {images}", {})}
    if not selection:
        return options
    options = {key: value for key, value in options.items() if key not in FILTER_OPTIONS}
    return {**options, "mean_entropy": 0.5 if selection == "crowd" else 0.0}


def make_spec(method: str, images: str, model: str = "", *, analyzed: bool = True, **fields: Any) -> Spec:  # noqa: ANN401
    """Return a method with the paper's hyper-parameters, on fifteen corruptions at severity 5 or on driving scenes.

    The network is the paper's if none is named. Plain TENT is analyzed as in the paper, with novelty scores, histograms
    and the quality of the paper's selection, on open streams and on CIFAR also on closed ones.
    """
    is_scenes = images.startswith(_SCENES)
    usual = {"batch_size": 2, "measures": ("iou", "selection")} if is_scenes else {"domains": CORRUPTIONS}
    network = model or _DEFINITIONS["networks"]["scenes" if is_scenes else images]
    spec = Spec(method, images, network, **{**usual, **fields})
    spec = spec.with_options(**options_for(method, images, spec.domains))
    if is_scenes or not analyzed or method != "tent" or (spec.unknown is None and images not in _ANALYZED):
        return spec
    return replace(spec.with_options(novelty="confidence_difference"), measures=(*spec.measures, *_ANALYSIS_METRICS))
