"""`driftproof bench report`: one page about results."""

from pathlib import Path
from typing import Annotated

import typer

from driftproof.errors import ConfigurationError

__all__ = ["report_command"]


def report_command(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER…", help="Results folders or archives.")],
    out: Annotated[Path | None, typer.Option(help="Output file; FOLDER/report.html by default.")] = None,
    rows: Annotated[
        Path | None, typer.Option(help="Also write every measured number to this file: .csv or .parquet.")
    ] = None,
) -> None:
    """Write one HTML page: which method is best, is it safe, tables, curves, costs and protocol; works offline."""
    from driftproof.bench import Results
    from driftproof.paper.comparison import caption_of, fill_tables, to_frame
    from driftproof.report.page import ReportTable, write_report

    if rows is not None and rows.suffix not in (".csv", ".parquet"):
        raise ConfigurationError(f"Expected `--rows` to end with .csv or .parquet, but got {rows}.")
    if rows is not None:
        from driftproof.bench.frames import load

        measures = load(*folders)
        rows.parent.mkdir(parents=True, exist_ok=True)
        if rows.suffix == ".csv":
            measures.write_csv(rows)
        else:
            measures.write_parquet(rows)
        typer.echo(rows)
    filled = [table for folder in folders for table in fill_tables(Results(folder)) if table.table.reference]
    tables = [ReportTable(table.table.title, to_frame(table), caption_of(table)) for table in filled]
    typer.echo(write_report(folders, out or folders[0] / "report.html", tables=tables))
