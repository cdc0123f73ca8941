"""`driftproof data`: list, download and verify data sets."""

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

data_commands = typer.Typer(help="List, download and verify data sets.", no_args_is_help=True)

Root = Annotated[Path, typer.Option("--data", help="Folder that holds the data sets.")]


@data_commands.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the data sets with size, license and home page."""
    from driftproof.data import DATASETS

    if as_json:
        print_json([asdict(entry) for entry in DATASETS.values()])
        return
    rows = [(entry.name, _size(entry.files), entry.license, entry.homepage) for entry in DATASETS.values()]
    print_table(("name", "size", "license", "home page"), rows)
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
    """Download, check and unpack data sets; repeat the command to resume after an interruption."""
    from driftproof.data import get_dataset_info

    for entry in [get_dataset_info(name) for name in names]:
        if entry.note:
            typer.echo(f"{entry.name}: {entry.note}", err=True)
        if not entry.files:
            raise DownloadError(
                f"Expected a data set with direct download, but got {entry.name}. Get it by hand from {entry.homepage}."
            )
        for file in entry.files:
            _download(file, root, keep_archives)


@data_commands.command("verify")
def verify_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names; by default all data sets found.", autocompletion=lambda: list(DATA_SETS)),
    ] = None,
    root: Root = Path("data"),
    as_json: AsJson = False,
) -> None:
    """Compare files with the published lengths and checksums; exit code 1 if one is wrong or missing."""
    from driftproof.data import DATASETS, get_dataset_info, verify

    checks = {name: verify(get_dataset_info(name), root) for name in names or DATASETS}
    if not names:
        checks = {
            name: file_checks
            for name, file_checks in checks.items()
            if any(check.state != "missing" for check in file_checks)
        }
    if not checks:
        raise InputError(
            f"Expected a data set with published checksums in {root}, but found none. "
            "Pass the right folder as `--data`, or name a data set to see what is missing."
        )
    if as_json:
        print_json({name: [asdict(check) for check in file_checks] for name, file_checks in checks.items()})
    else:
        rows = [
            (name, check.file, check.state, check.detail)
            for name, file_checks in checks.items()
            for check in file_checks
        ]
        rows += [
            (name, "", "unchecked", "no checksums are published")
            for name, file_checks in checks.items()
            if not file_checks
        ]
        print_table(("set", "file", "state", "detail"), rows)
    if any(_is_bad(check) for file_checks in checks.values() for check in file_checks):
        raise typer.Exit(ExitCode.NEGATIVE)


def _download(file: "RemoteFile", root: Path, keep_archives: bool) -> None:
    from driftproof.data import fetch, unpack

    if file.unpacks_to and all((root / made).exists() for made in file.unpacks_to):
        return
    with progress_bar() as progress:
        task = progress.add_task(file.name, total=file.size)
        archive = fetch(file, root, progress=lambda done, total: progress.update(task, completed=done, total=total))
    if file.unpacks_in is not None and not file.manual:  # manual files are also unpacked by hand, as their note says
        unpack(archive, root / file.unpacks_in)
        if not keep_archives:
            archive.unlink()


def _is_bad(check: "FileCheck") -> bool:
    return check.state not in ("present", "unchecked")


def _size(files: tuple["RemoteFile", ...]) -> str:
    known = [file.size for file in files if file.size is not None]
    return f"{sum(known) / 1e9:.2f} GB" if known else "unknown"
