"""`driftproof bench`: run benchmarks, compare and report them."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from driftproof.cli.bench_run import run_command
from driftproof.cli.compare import compare_command
from driftproof.cli.leaderboard import leaderboard_command
from driftproof.cli.output import AsJson, make_table, print_json
from driftproof.cli.report import report_command
from driftproof.cli.suites import new_command, suite_builders
from driftproof.cli.summarize import summarize_command

if TYPE_CHECKING:
    from driftproof.bench.tables import Suite

__all__ = ["bench_commands"]

bench_commands = typer.Typer(help="Run benchmarks, compare and report them.", no_args_is_help=True)


@bench_commands.command("list")
def list_command(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every run with its hyper-parameters.")] = False,
    as_json: AsJson = False,
) -> None:
    """List suites, methods, measures, data sets and networks; with -v every run and its hyper-parameters."""
    from driftproof.bench.local_files import NETWORKS
    from driftproof.bench.metrics import MEASURES
    from driftproof.methods.by_name import method_names
    from driftproof.streams.datasets import DATASETS

    suites = [build() for build in suite_builders().values()]
    names = {"methods": method_names(), "images": list(DATASETS), "networks": list(NETWORKS)}
    if as_json:
        specs = {suite.name: [spec.as_data() for spec in suite.specs()] for suite in suites}
        print_json({"suites": specs, **names, "measures": MEASURES})
        return
    console = Console()
    if verbose:
        for suite in suites:
            console.print(_suite_table(suite), suite.note, "")
        return
    console.print(_overview_table(suites))
    table = make_table("measure", "meaning")
    for name, meaning in MEASURES.items():
        table.add_row(name, meaning)
    console.print(table)
    for kind, known in names.items():
        console.print(f"\n[bold]{kind}[/]: {', '.join(known)}", highlight=False)
    console.print("\nFunctions of your own are named `module:function`; see `driftproof bench new`.", highlight=False)


bench_commands.command("run")(run_command)
bench_commands.command("new")(new_command)
bench_commands.command("compare")(compare_command)
bench_commands.command("report")(report_command)


@bench_commands.command("export")
def export_command(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER…", help="Results folders or archives.")],
    out: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="Output folder; an existing archive is replaced.")],
) -> None:
    """Write all results into one small archive."""
    from driftproof.bench.archive import write_archive

    write_archive(folders, out)
    typer.echo(f"See `driftproof bench compare {shlex.quote(str(out))}`.", err=True)


bench_commands.command("summarize")(summarize_command)
bench_commands.command("leaderboard")(leaderboard_command)


def _overview_table(suites: "list[Suite]") -> Table:
    table = make_table("suite", "title", "rounds", "runs", "note")
    for suite in suites:
        table.add_row(suite.name, suite.title, str(suite.rounds), str(len(list(suite.specs()))), suite.note)
    return table


def _suite_table(suite: "Suite") -> Table:
    table = make_table("method", "images", "unknown", "network", "batch", "options")
    table.title = f"{suite.name}: {suite.title}"
    for spec in suite.specs():
        options = ", ".join(f"{key} = {value}" for key, value in spec.options)
        table.add_row(spec.method, spec.images, spec.unknown or "", spec.model, str(spec.batch_size), options)
    return table
