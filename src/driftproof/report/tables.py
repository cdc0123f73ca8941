"""Tables of the page and of the terminal, from data frames of text and numbers."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from driftproof.bench.libraries import pl
from driftproof.optional import require
from driftproof.report.text import format_number

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["frame_table", "html_table"]


def html_table(
    frame: pl.DataFrame,
    *,
    name: str,
    group: str | None = None,
    spanners: Mapping[str, tuple[str, str]] | None = None,
    digits: int = 2,
    align: Literal["left", "right"] = "right",
) -> str:
    """Return a table as HTML without styles: those of the page follow its mode.

    Args:
        frame: The first column names the rows. A text that starts with `*` is the best of its column.
        name: Of the element.
        group: Column by whose values rows are grouped.
        spanners: For columns, the heading over several of them and the heading of its own.
        digits: Of numbers, after the decimal point.
        align: Of all columns but the first; texts on the left wrap.
    """
    gt = require("great_tables", "Writing tables", "'driftproof[report]'")
    first, *others = [column for column in frame.columns if column != group]
    texts = frame.with_columns(pl.selectors.string().exclude(first).str.strip_prefix("*"))
    table = gt.GT(texts, rowname_col=first, groupname_col=group, id=name).tab_stubhead(first)
    table = table.fmt_number(columns=pl.selectors.float(), decimals=digits).sub_missing(missing_text="–")
    table = table.cols_align(align, columns=others)
    for column in others:
        if frame[column].dtype == pl.String:
            best = [index for index, text in enumerate(frame[column]) if text and text.startswith("*")]
            table = table.tab_style(gt.style.text(weight="bold"), gt.loc.body(columns=column, rows=best))
    for column, (heading, own) in (spanners or {}).items():
        alike = [each for each, (other, _) in (spanners or {}).items() if other == heading]
        table = table.cols_label({column: own})
        table = table.tab_spanner(heading, columns=alike) if column == alike[0] else table
    return re.sub(r"<style>.*?</style>", "", table.as_raw_html(), flags=re.DOTALL)


def frame_table(frame: pl.DataFrame, *, title: str = "", caption: str = "") -> "Table":
    """Return a data frame as a table of `rich`; the first column names the rows, and a text after `*` is bold."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    above, below = (Text(text, style) if text else None for text, style in ((title, "bold"), (caption, "")))
    table = Table(title=above, caption=below, box=SIMPLE_HEAD, title_justify="left", caption_justify="left")
    first, *others = (Text(column) for column in frame.columns)
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right", overflow="fold")
    for name, *cells in frame.iter_rows():
        known = ("–" if cell is None else cell for cell in cells)
        texts = (format_number(cell, 2) if isinstance(cell, float) else str(cell) for cell in known)
        table.add_row(Text(str(name)), *(Text(each.lstrip("*"), "bold" * each.startswith("*")) for each in texts))
    return table
