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

    above, below = (Text(text, style) if text else None for text, style in ((title, "bold"), (caption, "")))
    table = Table(title=above, caption=below, box=SIMPLE_HEAD, title_justify="left", caption_justify="left")
    table.add_column(Text(frame.columns[0]), no_wrap=True)
    for column in frame.columns[1:]:
        table.add_column(Text(column), justify="right", overflow="fold")
    for name, *cells in frame.iter_rows():
        texts = [
            format_number(cell, digits) if isinstance(cell, float) else "–" if cell is None else str(cell)
            for cell in cells
        ]
        table.add_row(
            Text(str(name)), *(Text(text.lstrip("*"), "bold" if text.startswith("*") else "") for text in texts)
        )
    return table
