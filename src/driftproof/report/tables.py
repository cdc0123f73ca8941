"""Tables of the page, from data frames of text and numbers."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from driftproof.optional import require

if TYPE_CHECKING:
    import great_tables as gt
    import polars as pl
else:
    gt, pl = (require(name, "Writing tables", "'driftproof[report]'") for name in ("great_tables", "polars"))

__all__ = ["html_table"]


def html_table(
    frame: "pl.DataFrame",
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
