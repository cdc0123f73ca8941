"""Where adaptation left the healthy state, and what guards did."""

from collections import Counter
from collections.abc import Sequence

from driftproof.bench import Results
from driftproof.bench.store import Row
from driftproof.report.protocol import TextTable
from driftproof.report.series import MethodSeries, StreamGroup

__all__ = ["first_unhealthy_round", "health_table"]

_COLUMNS = ("Method", "On", "Not healthy from", "Domains", "At the end", "Guards, in batches", "Quarantined images")


def health_table(results: Results, streams: Sequence[StreamGroup]) -> TextTable | None:
    """One row per method that left the healthy state, or on which guards acted; None if no run recorded health."""
    runs = [(stream, series, _rows(results, series)) for stream in streams for series in stream.series]
    if not any(rows for _, _, rows in runs):
        return None
    described = (_describe(stream, series, rows) for stream, series, rows in runs)
    return TextTable(_COLUMNS, [row for row in described if any(cell for cell in row[2:])])


def first_unhealthy_round(results: Results, series: MethodSeries) -> int | None:
    """The first round in which a seed was not healthy; None if all were, or health was not recorded."""
    return min((row["round"] for row in _rows(results, series) if _is_unhealthy(row)), default=None)


def _describe(stream: StreamGroup, series: MethodSeries, rows: Sequence[Row]) -> list[str]:
    unhealthy = [row for row in rows if _is_unhealthy(row)]
    first = min(unhealthy, key=lambda row: (row["round"], stream.spec.domains.index(row["domain"])), default=None)
    last = Counter(row["health"] for row in rows if row["round"] == max(row["round"] for row in rows))
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("guard/"))
    actions = {name.removeprefix("guard/"): sum(row.get(name) or 0 for row in rows) for name in names}
    quarantined = sum(row["quarantined"] for row in rows)
    return [
        series.name,
        stream.name,
        f"round {first['round']}, {first['domain']}" if first else "",
        f"{len(unhealthy)} of {len(rows)}" if first else "",
        ", ".join(f"{count} {state}" for state, count in last.items()) if first else "",
        ", ".join(f"{name} {count}" for name, count in actions.items()),
        str(quarantined or ""),
    ]


def _is_unhealthy(row: Row) -> bool:
    return row["health"] != "healthy" or bool(row["health/unhealthy"])


def _rows(results: Results, series: MethodSeries) -> list[Row]:
    """The rows of all seeds that hold health."""
    return [row for spec in series.specs for row in results.rows(spec) if row.get("health") is not None]
