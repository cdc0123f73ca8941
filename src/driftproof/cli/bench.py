"""`driftproof bench`: run the paper's tables, compare and report them."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from driftproof.cli.completion import METHODS, SUITES
from driftproof.cli.device import Device, resolve_device
from driftproof.cli.options import MAX_SEED
from driftproof.cli.output import AsJson, print_json
from driftproof.errors import ConfigurationError

if TYPE_CHECKING:
    from driftproof.bench.tables import Suite

__all__ = ["bench_commands"]

bench_commands = typer.Typer(help="Run the paper's tables, compare and report them.", no_args_is_help=True)

SuiteNames = Annotated[
    list[str],
    typer.Argument(metavar="SUITE…", help="Suites from `driftproof bench list`.", autocompletion=lambda: list(SUITES)),
]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Results folder of `bench run --out`.")]


@bench_commands.command("list")
def list_command(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every run with its hyper-parameters.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the suites, or with -v every run and its hyper-parameters."""
    from driftproof.paper import SUITES as BUILDERS

    suites = [build() for build in BUILDERS.values()]
    if as_json:
        print_json({suite.name: [spec.as_data() for spec in suite.specs()] for suite in suites})
        return
    console = Console()
    for suite in suites:
        if verbose:
            console.print(_suite_table(suite), suite.note, "")
    if not verbose:
        console.print(_overview_table(suites))


@bench_commands.command("run")
def run_command(
    names: SuiteNames,
    data: Annotated[Path, typer.Option(help="Folder that holds the data sets.")] = Path("data"),
    weights: Annotated[Path, typer.Option(help="Folder that holds the source weights.")] = Path("weights"),
    out: Annotated[Path, typer.Option(help="Results folder.")] = Path("bench"),
    methods: Annotated[
        str | None,
        typer.Option(help="Run only these methods, separated by commas.", autocompletion=lambda: list(METHODS)),
    ] = None,
    sets: Annotated[str | None, typer.Option(help="Run only on these data sets, separated by commas.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds; by default as many as the tables need.")] = None,
    opened: Annotated[
        bool | None, typer.Option("--open/--closed", help="Run only with, or only without, unknown images.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Use only the first images of each domain, this many.")] = None,
    seeds: Annotated[
        str, typer.Option(help="Seeds, separated by commas, one run each; all but 0 shuffle the images.")
    ] = "0",
    task: Annotated[str | None, typer.Option(help="Run only this task: stream, costs or gradients.")] = None,
    trials: Annotated[int | None, typer.Option(help="Number of timed steps where costs are measured.")] = None,
    replace: Annotated[
        list[str] | None, typer.Option(help="Replace a data set or network by another, as OLD=NEW; repeatable.")
    ] = None,
    prepare_on_test: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SET",
            help="Prepare on the clean test images of this data set, not its training images; repeatable.",
        ),
    ] = None,
    device: Device = "cpu",
    executor: Annotated[str, typer.Option(help="Executor of the runs: local, or ray for a cluster.")] = "local",
    engine: Annotated[str, typer.Option(help="Engine of the steps: auto, eager, compile or graph.")] = "auto",
    precision: Annotated[str | None, typer.Option(help="fp32, tf32 or bf16; by default torch's own setting.")] = None,
    channels_last: Annotated[bool, typer.Option(help="Use the channels-last memory format, for tensor cores.")] = False,
    save_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 30.0,
    frost: Annotated[Path | None, typer.Option(help="Folder of frost photos.")] = None,
    procedural: Annotated[
        bool, typer.Option("--procedural-frost", help="Use procedural frost; results say so.")
    ] = False,
) -> None:
    """Run suites or parts of them; repeat the command to resume, or with more rounds to continue."""
    from driftproof.bench import Store
    from driftproof.paper import suite
    from driftproof.bench.executors import EXECUTORS, Failures
    from driftproof.bench.local_files import LocalFiles
    from driftproof.bench.plan import RunFilter, plan_runs
    from driftproof.bench.runner import RunSettings, stage_progress
    from driftproof.cli.bench_progress import progress_display
    from driftproof.validation import check_choice

    run = EXECUTORS[check_choice("executor", executor, EXECUTORS)]
    run_filter = RunFilter(
        methods=_parse_list("--methods", methods),
        sets=_parse_list("--sets", sets),
        setting=None if opened is None else "open" if opened else "closed",
        task=task,
        rounds=rounds,
        limit=limit,
        seeds=[_parse_seed("--seeds", word) for word in _parse_list("--seeds", seeds)],
        replaced=dict(_parse_replacement(text) for text in replace or ()),
        prepared_on_test=prepare_on_test or (),
        trials=trials,
    )
    settings = RunSettings(device, save_every, engine, precision, channels_last)
    chosen = [suite(name) for name in names]
    for each in chosen:
        if each.command is not None:
            raise ConfigurationError(
                f"Expected a suite that reads data sets, but got {each.name}. Run `{each.command}`."
            )
    jobs = plan_runs(chosen, run_filter)
    resolve_device(device)
    files = LocalFiles(data, weights, frost, procedural, device, run_filter.prepared_on_test)
    store, metadata = Store(out), run_filter.metadata() | {"frost": "made up" if procedural else "photos"}
    if store.metadata:  # fail on a mismatch before data sets are generated
        store.update_metadata(metadata)
    with progress_display(job.spec for job in jobs) as on_progress:
        ready, failures = [], Failures(on_progress)
        for job in jobs:
            with failures.collect(job):
                metadata |= files.fingerprints(job.spec, stage_progress(job.spec, on_progress))
                ready.append(job)
        if not ready:
            failures.raise_if_any()
        store.update_metadata(metadata)
        run(ready, out, files, settings, on_progress, failures)
    folder = shlex.quote(str(out))
    typer.echo(f"Done. See `driftproof bench compare {folder}` or `driftproof bench report {folder}`.", err=True)


@bench_commands.command("compare")
def compare_command(folder: Folder, as_json: AsJson = False) -> None:
    """Show every table that has results, with the paper's numbers."""
    from driftproof.bench import Results
    from driftproof.paper import all_tables
    from driftproof.report import table_notes, table_text

    results = Results(folder)
    tables = results.tables(all_tables())
    if as_json:
        print_json([table.as_data() for table in tables])
        return
    console = Console()
    if not tables:
        console.print("No table has results yet.")
    for table in tables:
        console.print(table_text(table), *table_notes(table, results), "", sep="\n", highlight=False)


@bench_commands.command("report")
def report_command(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="Output folder; FOLDER/report by default.")] = None,
) -> None:
    """Write a self-contained HTML page, the figures as PNG and SVG, and all rows as CSV and Parquet."""
    from driftproof.bench import Results
    from driftproof.report import write_report

    typer.echo(write_report(Results(folder), out or folder / "report"))


@bench_commands.command("export")
def export_command(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER…", help="Results folders or archives.")],
    out: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="Output file; an existing archive is replaced.")],
    snapshots: Annotated[
        bool, typer.Option("--snapshots", help="Include the checkpoints that resuming needs.")
    ] = False,
) -> None:
    """Write all results into one small archive."""
    from driftproof.bench.archive import write_archive

    write_archive(folders, out, snapshots=snapshots)
    typer.echo(f"See `driftproof bench compare {shlex.quote(str(out))}`.", err=True)


@bench_commands.command("unpack")
def unpack_command(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="Written with `bench export --snapshots`.")],
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="New results folder.")],
) -> None:
    """Unpack the runs of an archive that have checkpoints, to resume them with `bench run`."""
    from driftproof.bench.archive import unpack

    unpack(archive, out)
    typer.echo(f"Resume with `driftproof bench run … --out {shlex.quote(str(out))}`.", err=True)


@bench_commands.command("summarize")
def summarize_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of archives, such as `results`.")],
    out: Annotated[Path | None, typer.Option(help="Output file; FOLDER/RESULTS.md by default.")] = None,
    fill: Annotated[list[Path] | None, typer.Option(help="Page with placeholders to fill in; repeatable.")] = None,
) -> None:
    """Write one Markdown page about all archives, and fill in the numbers other pages quote.

    The page includes FOLDER/notes/*.md and shows FOLDER/figures/*.svg with their captions. Other pages can also quote
    whole tables that are stored next to the archives.
    """
    from driftproof.files import atomic_write
    from driftproof.paper.summary import (
        benchmark_tables,
        citable_values,
        load_archives,
        read_page,
        render_placeholders,
        render_results_page,
    )

    page = out or folder / "RESULTS.md"
    texts = {page: render_results_page(folder, page)}
    if fill:
        named = citable_values(load_archives(folder)) | benchmark_tables(folder)
        texts |= {path: render_placeholders(read_page(path), named) for path in fill}
    for path, text in texts.items():
        with atomic_write(path) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
        typer.echo(path)


def _parse_list(option: str, text: str | None) -> list[str]:
    """Split a comma-separated option; raise an error if it is given but empty, as from an unset variable."""
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if text is not None and not words:
        raise ConfigurationError(f"Expected `{option}` to be a list separated by commas, but got {text!r}.")
    return words


def _parse_seed(option: str, word: str) -> int:
    try:
        number = int(word)
    except ValueError as error:
        raise ConfigurationError(f"Expected `{option}` to be integers, but got {word!r}.") from error
    if not 0 <= number <= MAX_SEED:
        raise ConfigurationError(f"Expected `{option}` to be from 0 to {MAX_SEED}, but got {word}.")
    return number


def _parse_replacement(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise ConfigurationError(f"Expected `--replace` to be OLD=NEW, but got {text!r}.")
    return old, new


def _overview_table(suites: "list[Suite]") -> Table:
    table = _wrapping_table("suite", "title", "rounds", "runs", "note")
    for suite in suites:
        table.add_row(suite.name, suite.title, str(suite.rounds), str(len(list(suite.specs()))), suite.note)
    return table


def _suite_table(suite: "Suite") -> Table:
    table = _wrapping_table("method", "images", "unknown", "network", "batch", "options")
    table.title = f"{suite.name}: {suite.title}"
    for spec in suite.specs():
        options = ", ".join(f"{key} = {value}" for key, value in spec.options)
        table.add_row(spec.method, spec.images, spec.unknown or "", spec.model, str(spec.batch_size), options)
    return table


def _wrapping_table(*headings: str) -> Table:
    """Return a table that wraps its cells on a narrow terminal instead of truncating them."""
    table = Table()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
