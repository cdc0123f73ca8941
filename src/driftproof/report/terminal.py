"""Tables and curves for the terminal."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from driftproof.bench import FilledTable
from driftproof.errors import InputError
from driftproof.report.braille_plot import BrailleCanvas
from driftproof.report.comparison import Comparison, TableCell, compare_with_paper
from driftproof.report.numbers import format_number

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

__all__ = ["plot_text", "table_text"]

_MARKERS = {"○": "●", "□": "■", "△": "▲", "◇": "◆", "▽": "▼", "☆": "★"}
"""Markers of plain methods, and of the same methods with a selection."""

_MIN_SPAN = 5.0


def table_text(filled: FilledTable) -> "Table":
    """A `rich` table: our number, and below it in brackets the paper's and the difference.

    Args:
        filled: The table with its numbers.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    comparison = compare_with_paper(filled, digits=1)
    table = Table(
        title=Text(comparison.title, "bold"), caption=Text(_caption(comparison)), box=SIMPLE_HEAD, padding=(0, 1, 0, 0),
        title_justify="left", caption_justify="left",
    )  # fmt: skip
    table.add_column("method", no_wrap=True, min_width=max(map(len, comparison.rows), default=0))
    for column in comparison.columns:
        table.add_column(Text(column.replace("/", "\n", 1)), justify="right", overflow="fold")
    for row in comparison.rows:
        cells = (comparison.cells.get((row, column), TableCell()) for column in comparison.columns)
        table.add_row(Text(row), *(_format_cell(cell) for cell in cells))
    return table


def _caption(comparison: Comparison) -> str:
    brackets = "in brackets the paper's number, and ours minus the paper's" if comparison.reference else ""
    early = "@ the round of a number, if earlier than asked for" if comparison.has_early_rounds else ""
    return "; ".join(filter(None, (comparison.unit, comparison.better, comparison.round_label, brackets, early)))


def _format_cell(cell: TableCell) -> "Text":
    from rich.text import Text

    ours = f"{cell.ours or '–'}{cell.round_note and f' {cell.round_note}'}"
    paper = ", ".join(filter(None, (cell.paper, cell.difference)))
    return Text.assemble((ours, "bold" if cell.is_best else ""), (f"\n({paper})" if paper else "", "dim"))


def plot_text(series: Mapping[str, Sequence[float]], *, width: int = 72, height: int = 14) -> str:
    """Plot curves over rounds with braille characters, each labeled at its end.

    Args:
        series: Values for each round, by name; `tent+crowd` gets the filled form of `tent`'s marker.
        width: Of the plot, in characters.
        height: Of the plot, in lines; grows with the number of curves.

    Examples:
        >>> print(plot_text({"tent": [14, 18, 21], "tent+crowd": [14, 14, 14]}, width=44, height=8))
        21.0 ┤                      ⣀⡠○ ○ tent
             │                ⢀⣀⠤⠒⠊⠉
        18.2 ┤           ⢀○⠔⠒⠉⠁
             │       ⣀⠤⠒⠉⠁
             │   ⣀⠤⠒⠉
        14.0 ┤●⠶⠭⠤⠤⠤⠤⠤⠤⠤⠤⠤●⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤● ● tent+crowd
             └─────────────────────────
              1                       3 rounds
    """
    shown = {name: values for name, values in series.items() if any(map(math.isfinite, values))}
    if not shown:
        raise InputError("Expected at least one curve with at least one finite value, but got none.")
    labels = {name: f"{marker} {name}" for name, marker in _assign_markers(shown).items()}
    low, high = _axis_limits(shown.values())
    lines, margin = max(height - 2, len(shown), 2), max(len(format_number(low)), len(format_number(high))) + 2
    columns, rounds = max(width - margin - max(map(len, labels.values())) - 1, 10), max(map(len, shown.values()))
    canvas, heights = BrailleCanvas(columns, lines), {}
    for name in sorted(shown, key=lambda name: "+" in name):
        x_scale, y_scale = (columns - 1) / max(rounds - 1, 1), (lines - 1) / (high - low)
        finite = [(index, value) for index, value in enumerate(shown[name]) if math.isfinite(value)]
        canvas.draw_line([(x_scale * index, y_scale * (high - value)) for index, value in finite], labels[name][0])
        heights[name] = y_scale * (high - finite[-1][1])
    ends = {row: labels[name] for name, row in _assign_rows(heights, lines).items()}
    ticks = {row: format_number(high - (high - low) * row / (lines - 1)) for row in (0, (lines - 1) // 2, lines - 1)}
    body = [
        f"{ticks.get(row, ''):>{margin - 2}} {'┤' if row in ticks else '│'}{text} {ends.get(row, '')}".rstrip()
        for row, text in enumerate(canvas.to_lines())
    ]
    axis = f"{'└':>{margin}}{'─' * columns}"
    return "\n".join([*body, axis, f"{'':>{margin}}{'1':<{columns - len(str(rounds))}}{rounds} rounds"])


def _assign_rows(heights: Mapping[str, float], lines: int) -> dict[str, int]:
    """Give each label its own row, close to its curve's end and in the same order."""
    rows: dict[str, int] = {}
    for name in sorted(heights, key=lambda name: heights[name]):
        rows[name] = max(max(rows.values(), default=-1) + 1, int(heights[name] + 0.5))
    below = lines
    for name in reversed(rows):
        below = rows[name] = min(rows[name], below - 1)
    return rows


def _assign_markers(names: Mapping[str, object]) -> dict[str, str]:
    bases = list(dict.fromkeys(name.partition("+")[0] for name in names))
    plain = list(_MARKERS)
    chosen = {base: plain[index % len(plain)] for index, base in enumerate(bases)}
    return {name: _MARKERS[chosen[name.partition("+")[0]]] if "+" in name else chosen[name] for name in names}


def _axis_limits(curves: Iterable[Sequence[float]]) -> tuple[float, float]:
    finite = [value for values in curves for value in values if math.isfinite(value)]
    low, high = min(finite), max(finite)
    padding = max(_MIN_SPAN - (high - low), 0) / 2
    return low - padding, high + padding
