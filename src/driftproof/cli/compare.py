"""`driftproof bench compare`: tables of results, with the paper's numbers."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from driftproof.cli.output import AsJson, print_json
from driftproof.cli.suites import find_suite, is_toml, suite_builders
from driftproof.validation import check_choice

__all__ = ["compare_command"]


def compare_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FOLDER]… [SUITE]…",
            help="Results folders or archives, `bench` by default; suites, all by default.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show tables of results, with the paper's numbers in brackets: every table that has any, or those of suites."""
    from driftproof.bench import Results
    from driftproof.paper.comparison import caption_of, table_notes, to_frame
    from driftproof.report.sections import result_table
    from driftproof.report.series import label_measures, label_runs
    from driftproof.report.tables import frame_table

    known = suite_builders()
    names = [word for word in words or () if not Path(word).is_dir()]
    suites = [find_suite(n if is_toml(n) else check_choice("results folder or suite", n, known)) for n in names]
    chosen = tuple(table for suite in suites or [build() for build in known.values()] for table in suite.tables)
    found = [Results(Path(word)) for word in words or () if word not in names] or [Results(Path("bench"))]
    filled = [(table, results) for results in found for table in results.tables(chosen)]
    if as_json:
        about = [{"table": each.table.name, "title": each.table.title, "unit": each.table.unit} for each, _ in filled]
        values = [each.frame.drop("runs").to_dicts() for each, _ in filled]
        print_json([{**each, "values": numbers} for each, numbers in zip(about, values, strict=True)])
        return
    console = Console()
    for table, results in filled:
        console.print(frame_table(to_frame(table), title=table.table.title, caption=caption_of(table)))
        console.print(*table_notes(table, results), "", sep="\n", highlight=False)
    for results in found if not filled and not suites else ():  # runs of no suite
        numbers = label_measures(results.frames.measures, label_runs(results.frames.runs))
        console.print(frame_table(result_table(numbers)[0], title=str(results.folder)))
    if not filled and suites:
        console.print(f"No table of {', '.join(names)} has results yet.", highlight=False)
