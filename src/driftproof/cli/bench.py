"""`driftproof bench`: the paper's tables, run, compared and shown."""

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

bench_commands = typer.Typer(help="The paper's tables: run them, compare them, show them.", no_args_is_help=True)

SuiteNames = Annotated[
    list[str],
    typer.Argument(metavar="SUITE…", help="From `driftproof bench list`.", autocompletion=lambda: list(SUITES)),
]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A results folder: what `bench run --out` was given.")]


@bench_commands.command("list")
def list_command(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Every cell with its hyper-parameters.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the suites; with -v every cell and its hyper-parameters."""
    from driftproof.bench import SUITES as MAKERS

    suites = [make() for make in MAKERS.values()]
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
    out: Annotated[Path, typer.Option(help="The results folder.")] = Path("bench"),
    methods: Annotated[
        str | None,
        typer.Option(help="Only these, separated by commas.", autocompletion=lambda: list(METHODS)),
    ] = None,
    sets: Annotated[str | None, typer.Option(help="Only cells on these sets, separated by commas.")] = None,
    rounds: Annotated[int | None, typer.Option(help="As many as the tables need, if not said.")] = None,
    opened: Annotated[
        bool | None, typer.Option("--open/--closed", help="Only with, or only without, unknown images.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Only the first so many images of each domain, as they come.")
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="One run for each, separated by commas; all but 0 shuffle the images.")
    ] = "0",
    task: Annotated[str | None, typer.Option(help="Only cells that do this: stream, costs or gradients.")] = None,
    trials: Annotated[int | None, typer.Option(help="How often a step is timed where costs are measured.")] = None,
    replace: Annotated[
        list[str] | None, typer.Option(help="Take one set or network for another, as OLD=NEW; repeatable.")
    ] = None,
    prepare_on_test: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SET",
            help="Prepare on the clean test images of this set, not on its training images; repeatable.",
        ),
    ] = None,
    device: Device = "cpu",
    executor: Annotated[str, typer.Option(help="Where cells run: local, or ray for a cluster.")] = "local",
    engine: Annotated[str, typer.Option(help="How a step runs: eager, compile or graph.")] = "eager",
    precision: Annotated[str | None, typer.Option(help="fp32, tf32 or bf16; torch's defaults if not said.")] = None,
    channels_last: Annotated[bool, typer.Option(help="Lay images out with channels last, for tensor cores.")] = False,
    save_every: Annotated[float, typer.Option(help="Seconds between snapshots.")] = 30.0,
    frost: Annotated[Path | None, typer.Option(help="Folder of frost photos.")] = None,
    procedural: Annotated[bool, typer.Option("--procedural-frost", help="Use made-up frost; results say so.")] = False,
) -> None:
    """Run suites, or the chosen part of them; run them again to go on after an interruption, or for more rounds."""
    from driftproof.bench import Store, suite
    from driftproof.bench.executors import EXECUTORS, Failures
    from driftproof.bench.local_files import LocalFiles
    from driftproof.bench.plan import RunFilter, plan_runs
    from driftproof.bench.runner import RunSettings, stage_progress
    from driftproof.cli.bench_progress import progress_display
    from driftproof.validation import check_choice

    run = EXECUTORS[check_choice("executor", executor, EXECUTORS)]
    choice = RunFilter(
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
    jobs = plan_runs(chosen, choice)
    resolve_device(device)
    workbench = LocalFiles(data, weights, frost, procedural, device, choice.prepared_on_test)
    store, facts = Store(out), choice.metadata() | {"frost": "made up" if procedural else "photos"}
    if store.metadata:  # what will be refused is refused before sets are made for it
        store.update_metadata(facts)
    with progress_display(job.spec for job in jobs) as told:
        ready, failures = [], Failures(told)
        for job in jobs:
            with failures.collect(job):
                facts |= workbench.fingerprints(job.spec, stage_progress(job.spec, told))
                ready.append(job)
        if not ready:
            failures.raise_if_any()
        store.update_metadata(facts)
        run(ready, out, workbench, settings, told, failures)
    place = shlex.quote(str(out))
    typer.echo(f"Done. See `driftproof bench compare {place}` or `driftproof bench report {place}`.", err=True)


@bench_commands.command("compare")
def compare_command(folder: Folder, as_json: AsJson = False) -> None:
    """Show every table that has numbers, ours beside the paper's."""
    from driftproof.bench import Results
    from driftproof.report import table_notes, table_text

    results = Results(folder)
    tables = results.tables()
    if as_json:
        print_json([measured.as_data() for measured in tables])
        return
    console = Console()
    if not tables:
        console.print("No table has a number yet.")
    for measured in tables:
        console.print(table_text(measured), *table_notes(measured, results), "", sep="\n", highlight=False)


@bench_commands.command("report")
def report_command(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="Where it goes; FOLDER/report if not said.")] = None,
) -> None:
    """Write one self-contained HTML page, the figures as PNG and SVG, and all rows as CSV and Parquet."""
    from driftproof.bench import Results
    from driftproof.report import write_report

    typer.echo(write_report(Results(folder), out or folder / "report"))


@bench_commands.command("export")
def export_command(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER…", help="Results folders, or archives of some.")],
    out: Annotated[
        Path, typer.Argument(metavar="ARCHIVE", help="Where it goes; an archive that is there is replaced.")
    ],
    snapshots: Annotated[bool, typer.Option("--snapshots", help="Keep what going on needs, too.")] = False,
) -> None:
    """Write everything that was measured into one small file, to keep and to compare."""
    from driftproof.bench.archive import write_archive

    write_archive(folders, out, snapshots=snapshots)
    typer.echo(f"See `driftproof bench compare {shlex.quote(str(out))}`.", err=True)


@bench_commands.command("unpack")
def unpack_command(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="Written with `bench export --snapshots`.")],
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new results folder.")],
) -> None:
    """Make a results folder of an archive's cells that can be gone on with; `bench run` then does."""
    from driftproof.bench.archive import unpack

    unpack(archive, out)
    typer.echo(f"Go on with `driftproof bench run … --out {shlex.quote(str(out))}`.", err=True)


@bench_commands.command("summarize")
def summarize_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of archives, such as `results`.")],
    out: Annotated[Path | None, typer.Option(help="Where it goes; FOLDER/RESULTS.md if not said.")] = None,
    fill: Annotated[list[Path] | None, typer.Option(help="A page that quotes results; repeatable.")] = None,
) -> None:
    """Write every archive up in one Markdown page, and fill in the numbers that other pages quote.

    The page takes in FOLDER/notes/*.md, and shows FOLDER/figures/*.svg with their captions. Other pages can quote whole
    tables that lie beside the archives as well.
    """
    from driftproof.files import atomic_write
    from driftproof.report import (
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
    """What an option names; if it is given at all it has to name something, which an empty variable would not."""
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if text is not None and not words:
        raise ConfigurationError(f"Expected `{option}` to name something, but got {text!r}.")
    return words


def _parse_seed(option: str, word: str) -> int:
    try:
        number = int(word)
    except ValueError as error:
        raise ConfigurationError(f"Expected `{option}` to be whole numbers, but got {word!r}.") from error
    if not 0 <= number <= MAX_SEED:
        raise ConfigurationError(f"Expected `{option}` to be from 0 to {MAX_SEED}, but got {word}.")
    return number


def _parse_replacement(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise ConfigurationError(f"Expected `--replace` to be given as OLD=NEW, but got {text!r}.")
    return old, new


def _overview_table(suites: "list[Suite]") -> Table:
    table = _wrapping("suite", "shows", "rounds", "cells", "note")
    for suite in suites:
        table.add_row(suite.name, suite.title, str(suite.rounds), str(len(list(suite.specs()))), suite.note)
    return table


def _suite_table(suite: "Suite") -> Table:
    table = _wrapping("method", "images", "unknown", "network", "batch", "options")
    table.title = f"{suite.name}: {suite.title}"
    for spec in suite.specs():
        options = ", ".join(f"{key} = {value}" for key, value in spec.options)
        table.add_row(spec.method, spec.images, spec.unknown or "", spec.model, str(spec.batch_size), options)
    return table


def _wrapping(*headings: str) -> Table:
    """A table that loses no letter on a narrow terminal."""
    table = Table()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
