"""`driftproof data`: where data sets come from, getting them, checking them."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftproof.cli.completion import DATA_SETS
from driftproof.cli.exit_codes import ExitCode
from driftproof.cli.output import AsJson, print_json, print_table
from driftproof.cli.progress import progress_bar
from driftproof.errors import DownloadError, InputError

if TYPE_CHECKING:
    from driftproof.data import FileCheck, RemoteFile

__all__ = ["data_commands"]

data_commands = typer.Typer(
    help="Data sets: where they come from, their licence, getting and checking them.", no_args_is_help=True
)

Root = Annotated[Path, typer.Option("--root", help="The folder that holds the data sets.")]


@data_commands.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the data sets, their size, licence and home page."""
    from driftproof.data import DATASETS

    if as_json:
        print_json([asdict(entry) for entry in DATASETS.values()])
        return
    rows = [(entry.name, _size(entry.files), entry.licence, entry.homepage) for entry in DATASETS.values()]
    print_table(("name", "size", "licence", "home page"), rows)
    for entry in DATASETS.values():
        if entry.note:
            typer.echo(f"{entry.name}: {entry.note}")


@data_commands.command("get")
def get_command(
    names: Annotated[
        list[str],
        typer.Argument(help="Names from `driftproof data list`.", autocompletion=lambda: list(DATA_SETS)),
    ],
    root: Root = Path("data"),
    keep_archives: Annotated[bool, typer.Option(help="Keep the archives after unpacking.")] = True,
) -> None:
    """Download data sets, check them and unpack them; run it again to go on after an interruption."""
    from driftproof.data import get_dataset_info

    for entry in [get_dataset_info(name) for name in names]:
        if entry.note:
            typer.echo(f"{entry.name}: {entry.note}", err=True)
        if not entry.files:
            raise DownloadError(
                f"Expected {entry.name} to be free to download, but it has to be got by hand: see {entry.homepage}."
            )
        for file in entry.files:
            _download(file, root, keep_archives)


@data_commands.command("verify")
def verify_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names; all that are there if not said.", autocompletion=lambda: list(DATA_SETS)),
    ] = None,
    root: Root = Path("data"),
    as_json: AsJson = False,
) -> None:
    """Compare what is on disk with the published lengths and checksums; status 1 if anything is wrong or missing."""
    from driftproof.data import DATASETS, get_dataset_info, verify

    findings = {name: verify(get_dataset_info(name), root) for name in names or DATASETS}
    if not names:
        findings = {name: found for name, found in findings.items() if any(one.state != "missing" for one in found)}
    if not findings:
        raise InputError(
            f"Expected a data set with published checksums in {root}, but found none. "
            "Say with `--root` where they are, or name one to see what is missing."
        )
    if as_json:
        print_json({name: [asdict(one) for one in found] for name, found in findings.items()})
    else:
        rows = [(name, one.file, one.state, one.detail) for name, found in findings.items() for one in found]
        rows += [(name, "", "unchecked", "no checksums are published") for name, found in findings.items() if not found]
        print_table(("set", "file", "state", "detail"), rows)
    if any(_is_bad(one) for found in findings.values() for one in found):
        raise typer.Exit(ExitCode.NEGATIVE)


def _download(file: "RemoteFile", root: Path, keep_archives: bool) -> None:
    from driftproof.data import fetch, unpack

    if file.unpacks_to and all((root / made).exists() for made in file.unpacks_to):
        return
    with progress_bar() as progress:
        task = progress.add_task(file.name, total=file.size)
        archive = fetch(file, root, progress=lambda done, total: progress.update(task, completed=done, total=total))
    if file.unpacks_in is not None and not file.manual:  # what is got by hand is sorted by hand, as its note says
        unpack(archive, root / file.unpacks_in)
        if not keep_archives:
            archive.unlink()


def _is_bad(finding: "FileCheck") -> bool:
    return finding.state not in ("present", "unchecked")


def _size(files: tuple["RemoteFile", ...]) -> str:
    known = [file.size for file in files if file.size is not None]
    return f"{sum(known) / 1e9:.2f} GB" if known else "unknown"
