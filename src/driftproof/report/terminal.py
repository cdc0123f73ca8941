"""Tables for the terminal."""

from typing import TYPE_CHECKING

from driftproof.report.numbers import format_number

if TYPE_CHECKING:
    import polars as pl
    from rich.table import Table

__all__ = ["frame_table"]


def frame_table(frame: "pl.DataFrame", *, title: str = "", caption: str = "", digits: int = 2) -> "Table":
    """Return a data frame as a table of `rich`.

    Args:
        frame: The first column names the rows. A text that starts with `*` is printed bold.
        title: Above the table.
        caption: Below it.
        digits: Of numbers, after the decimal point.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title, "bold") if title else None, caption=Text(caption) if caption else None, box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0), title_justify="left", caption_justify="left",
    )  # fmt: skip
    first, *others = frame.columns
    table.add_column(Text(first), no_wrap=True)
    for column in others:
        table.add_column(Text(column), justify="right", overflow="fold")
    for name, *cells in frame.iter_rows():
        texts = (
            "–" if cell is None else format_number(cell, digits) if isinstance(cell, float) else str(cell)
            for cell in cells
        )
        table.add_row(
            Text(str(name)), *(Text(text.removeprefix("*"), "bold" if text[:1] == "*" else "") for text in texts)
        )
    return table
