"""`driftproof bench run`: suites of the library, and methods, models and images of the user's."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from driftproof.cli.completion import METHODS, NETWORKS
from driftproof.cli.device import Device, resolve_device
from driftproof.cli.exit_codes import ExitCode
from driftproof.cli.options import MAX_SEED, parse_list, parse_option_value
from driftproof.cli.output import make_table
from driftproof.cli.suites import SuiteNames, find_suite, is_toml
from driftproof.errors import ConfigurationError, ExecutionError

if TYPE_CHECKING:
    from driftproof.bench.jobs import Job
    from driftproof.bench.local_files import LocalFiles

__all__ = ["run_command"]


def run_command(
    context: typer.Context,
    names: SuiteNames = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas: names, or functions of yours as `module:function`. With a suite, only "
            "these of its methods, and functions of yours on its streams.",
            autocompletion=lambda: list(METHODS),
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            help="Images to stream: a data set, a function of yours as `module:function`, or a folder with one "
            "sub-folder per class. With a suite, only these of its data sets, separated by commas."
        ),
    ] = None,
    unknown: Annotated[
        str | None, typer.Option(help="Images of unknown classes: a data set, a function or a folder.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Network, or a function of yours as `module:function`.", autocompletion=lambda: list(NETWORKS)
        ),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="File of weights; for networks of the library, a folder of them.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Training images, for methods that need them: a folder or a function.")
    ] = None,
    domains: Annotated[
        str | None, typer.Option(help="Domains of a round, separated by commas; by default fifteen corruptions.")
    ] = None,
    severity: Annotated[int | None, typer.Option(help="Severity from 1 to 5; 5 by default.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per batch; 200 by default.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Resize images of folders to squares of this side.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="Option of a method, such as tent.lr=0.0001; repeatable.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder that holds the data sets; `data` by default.")] = None,
    out: Annotated[Path, typer.Option(help="Results folder.")] = Path("bench"),
    rounds: Annotated[int | None, typer.Option(help="Number of rounds; by default as many as the suite needs.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use only the first images of each domain, this many.")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds, separated by commas, one run each; all but 0 shuffle the images.")
    ] = None,
    opened: Annotated[
        bool | None, typer.Option("--open/--closed", help="Of a suite, only runs with, or without, unknown images.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Of a suite, only this task: stream, costs or gradients.")] = None,
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
    """Run suites, or methods on a model and images; repeat the command to resume, or with more rounds to continue."""
    from driftproof.bench.execute import execute, hide_folders
    from driftproof.bench.runner import RunSettings
    from driftproof.cli.bench_progress import progress_display

    settings = RunSettings(device, save_every, engine, precision, channels_last)
    own = {
        "unknown": unknown, "model": model, "source": source, "severity": severity, "batch_size": batch_size,
        "size": size, "domains": _parse("--domains", domains), "options": _parse_method_options(option),
    }  # fmt: skip
    of_suites = {
        "--open": opened, "--task": task, "--trials": trials, "--replace": replace, "--prepare-on-test": prepare_on_test
    }  # fmt: skip
    shared: dict[str, Any] = {
        "methods": _parse("--methods", methods), "rounds": rounds, "limit": limit, "seeds": _parse_seeds(seeds),
    }  # fmt: skip
    where = {"data": data, "weights": weights, "frost": frost, "procedural_frost": procedural or None}
    if not names or any(map(is_toml, names)):
        _refuse(of_suites, "with a suite of the library")
        jobs, files, metadata = _plan_own(names or [], _given(own | shared | where | {"images": images}), device)
    else:
        _refuse({f"--{name.replace('_', '-')}": value for name, value in own.items()}, "without a suite of the library")
        run_filter = _given(shared) | {
            "images": _parse("--images", images) or (),
            "setting": None if opened is None else "open" if opened else "closed",
            "task": task,
            "trials": trials,
            "replaced": dict(_parse_replacement(text) for text in replace or ()),
            "prepared_on_test": prepare_on_test or (),
        }
        jobs, files, metadata = _plan_suites(names, run_filter, where, device)
    resolve_device(device)
    with progress_display(job.spec for job in jobs) as on_progress:
        failed = None
        try:
            execute(
                jobs, files, out, settings=settings, callback=on_progress, executor=executor,
                metadata=metadata | files.metadata(),
                command=shlex.join(["driftproof", *map(hide_folders, context.obj)]),
                notify=lambda sentence: typer.echo(sentence, err=True),
            )  # fmt: skip
        except ExecutionError as error:
            failed = error
    if failed is not None:
        _print_failures(failed)
        raise typer.Exit(ExitCode.NEGATIVE)
    folder = shlex.quote(str(out))
    typer.echo(f"Done. See `driftproof bench compare {folder}` or `driftproof bench report {folder}`.", err=True)


def _plan_own(
    names: list[str], given: Mapping[str, Any], device: str
) -> "tuple[list[Job], LocalFiles, dict[str, Any]]":
    from driftproof.bench.benchmark import Benchmark, read_toml
    from driftproof.bench.plan import plan_runs

    if len(names) > 1:
        raise ConfigurationError(f"Expected one file of a suite alone, but got {' and '.join(names)}.")
    stored = read_toml(Path(names[0])) if names else {}
    benchmark = Benchmark.from_data({**stored, **given}, names[0] if names else "the options, or a suite")
    suite = benchmark.suite(Path(names[0]).stem if names else "own")
    run_filter = benchmark.run_filter()
    return plan_runs(suite, run_filter), benchmark.files(device), run_filter.metadata()


def _plan_suites(
    names: list[str], run_filter: Mapping[str, Any], where: Mapping[str, Any], device: str
) -> "tuple[list[Job], LocalFiles, dict[str, Any]]":
    from driftproof.bench.local_files import LocalFiles
    from driftproof.bench.plan import RunFilter, plan_runs

    chosen, suites = RunFilter(**run_filter), [find_suite(name) for name in names]
    files = LocalFiles(
        where["data"] or Path("data"), where["weights"], where["frost"], bool(where["procedural_frost"]), device,
        chosen.prepared_on_test,
    )  # fmt: skip
    return plan_runs(suites, chosen), files, chosen.metadata()


def _print_failures(error: ExecutionError) -> None:
    """Print the failed runs as a table, those with the same reason together, and how many there are."""
    methods: dict[tuple[str, str, str], dict[str, None]] = {}
    for spec, reason in error.failures.items():
        methods.setdefault((spec.images, spec.model, str(reason)), {})[spec.method] = None
    table = make_table("methods", "images", "model", "what went wrong")
    for cells, names in methods.items():
        table.add_row(*(Text(cell) for cell in (", ".join(names), *cells)))
    console = Console(stderr=True)
    console.print(table)
    console.print(f"[bold red]error[/]: {str(error).splitlines()[0]}", highlight=False)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _refuse(options: Mapping[str, Any], where: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigurationError(f"Expected `{name}` {where} only. Leave it out, or see `bench run --help`.")


def _parse(option: str, text: str | None) -> list[str] | None:
    return None if text is None else parse_list(option, text)


def _parse_seeds(text: str | None) -> list[int] | None:
    return None if text is None else [_parse_seed(word) for word in parse_list("--seeds", text)]


def _parse_seed(word: str) -> int:
    try:
        number = int(word)
    except ValueError as error:
        raise ConfigurationError(f"Expected `--seeds` to be integers, but got {word!r}.") from error
    if not 0 <= number <= MAX_SEED:
        raise ConfigurationError(f"Expected `--seeds` to be from 0 to {MAX_SEED}, but got {word}.")
    return number


def _parse_replacement(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise ConfigurationError(f"Expected `--replace` to be OLD=NEW, but got {text!r}.")
    return old, new


def _parse_method_options(texts: list[str] | None) -> dict[str, dict[str, Any]] | None:
    """Parse METHOD.NAME=VALUE; a function's name holds dots itself."""
    found: dict[str, dict[str, Any]] = {}
    for text in texts or ():
        place, _, value = text.partition("=")
        method, _, name = place.rpartition(".")
        if not (method and name and value):
            raise ConfigurationError(f"Expected `--option` to be METHOD.NAME=VALUE, but got {text!r}.")
        found.setdefault(method, {})[name] = parse_option_value(value)
    return found or None
