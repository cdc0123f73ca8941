"""What is far from the paper, how much of that is in network and images, and what experiments say of the rest."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from driftproof.bench import Measured, Results, Value
from driftproof.bench.suites.settings import options_for
from driftproof.bench.tables import Entry
from driftproof.report.caveats import caveats, concerning
from driftproof.report.markdown import markdown_table
from driftproof.report.numbers import number, signed

__all__ = ["FAR_OFF", "far_off"]

FAR_OFF = 3.0
"""Percentage points from the paper that call for an explanation."""

_HEAD = ["table", "method", "setting", "ours", "paper", "difference", "BN Adapt's", "what experiments change"]
_LEGEND = (
    "BN Adapt learns nothing: its difference is that of the network and the images. The last column tells by how many "
    "points the error changes where one choice is made differently, on the held-out corruptions of the table named, in "
    "the last round that both have reached."
)

_Experiment = tuple[Measured, Results]


def far_off(everything: Sequence[Results]) -> str:
    """Every number that is far from the paper's, as a table in Markdown; runs on only some images stay out.

    Args:
        everything: The archives.
    """
    whole = [
        (measured, results)
        for results in everything
        if not results.shared.get("limit")
        for measured in results.tables()
    ]
    experiments = [(measured, results) for measured, results in whole if measured.table.name.startswith("choice_")]
    rows = [row for measured, results in whole for row in _rows(measured, results, experiments)]
    return f"{markdown_table(_HEAD, rows)}\n\n{_LEGEND}" if rows else "None."


def _rows(measured: Measured, results: Results, experiments: Sequence[_Experiment]) -> Iterator[list[str]]:
    for entry in measured.table.entries:
        value = measured.values[entry.row, entry.column]
        if measured.table.unit != "mixed" and _is_far_off(value):
            bystander = measured.values.get(("bn_adapt", entry.column), Value()).difference
            yield [
                measured.table.name, entry.row, entry.column,
                number(value.ours or 0.0, 2), number(value.paper or 0.0, 2), signed(value.difference or 0.0, 2),
                "" if bystander is None else signed(bystander, 2), _told(entry, results, experiments),
            ]  # fmt: skip


def _is_far_off(value: Value) -> bool:
    return value.complete and value.difference is not None and abs(value.difference) > FAR_OFF


def _told(entry: Entry, results: Results, experiments: Sequence[_Experiment]) -> str:
    apart = caveats({"replaced": concerning(entry.specs, results.shared)["replaced"]})
    base = entry.row.partition("+")[0]
    tried = _tried(experiments, entry.row, entry.column) or _tried(experiments, base, entry.column)
    return "<br>".join([*apart, *tried]) or "not tried yet"


def _tried(experiments: Sequence[_Experiment], method: str, column: str) -> list[str]:
    told = []
    for measured, results in experiments:
        entries = [
            entry for entry in measured.table.entries if entry.column == column and entry.specs[0].method == method
        ]
        usual = [entry for entry in entries if _is_usual(entry)]
        changes = [(entry.row, _change(results, entry, usual[0])) for entry in entries if usual and entry not in usual]
        known = [f"{row} {signed(change)}" for row, change in changes if change is not None]
        told += [f"`{measured.table.name}`: {'; '.join(known)}"] if known else []
    return told


def _is_usual(entry: Entry) -> bool:
    (spec,) = entry.specs
    return spec.batch_size == 200 and dict(spec.options) == options_for(spec.method, spec.images)


def _change(results: Results, entry: Entry, beside: Entry) -> float | None:
    reached = [results.value(each).round for each in (entry, beside)]
    if None in reached:
        return None
    last = min(round for round in reached if round is not None)
    ours, usual = (results.value(replace(each, round=last)).ours for each in (entry, beside))
    return None if ours is None or usual is None else ours - usual
