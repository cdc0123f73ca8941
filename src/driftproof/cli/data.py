"""`driftproof data`: where data sets come from, getting them, checking them."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from driftproof.cli.progress import counting
from driftproof.data import SOURCES, Finding, RemoteFile, fetch, source, unpack, verify

__all__ = ["data_commands"]

data_commands = typer.Typer(help="Data sets: where they come from, their licence, getting and checking them.")

Root = Annotated[Path, typer.Option("--root", help="The folder that holds the data sets.")]
AsJson = Annotated[bool, typer.Option("--json", help="For scripts.")]


@data_commands.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the data sets, their size, licence and home page."""
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in SOURCES.values()], indent=2))
        return
    table = Table("name", "size", "licence", "home page")
    for entry in SOURCES.values():
        table.add_row(entry.name, _size(entry.files), entry.licence, entry.homepage)
    console = Console()
    console.print(table)
    for entry in SOURCES.values():
        if entry.note:
            console.print(f"{entry.name}: {entry.note}", highlight=False)


@data_commands.command("get")
def get_command(
    names: Annotated[list[str], typer.Argument(help="Names from `driftproof data list`.")],
    root: Root = Path("data"),
    keep_archives: Annotated[bool, typer.Option(help="Keep the archives after unpacking.")] = True,
) -> None:
    """Download data sets, check them and unpack them; run it again to go on after an interruption."""
    entries = [source(name) for name in names]
    for entry in entries:
        if entry.note:
            Console(stderr=True).print(f"{entry.name}: {entry.note}", highlight=False)
        for file in entry.files:
            _get(file, root, keep_archives)


@data_commands.command("verify")
def verify_command(
    names: Annotated[list[str] | None, typer.Argument(help="Names; all that are there if not said.")] = None,
    root: Root = Path("data"),
    as_json: AsJson = False,
) -> None:
    """Compare what is on disk with the published lengths and checksums; status 1 if anything is wrong or missing."""
    findings = {entry.name: verify(entry, root) for entry in ([source(name) for name in names or SOURCES])}
    if not names:
        findings = {name: found for name, found in findings.items() if any(one.state != "missing" for one in found)}
    if as_json:
        typer.echo(json.dumps({name: [asdict(one) for one in found] for name, found in findings.items()}, indent=2))
    else:
        Console().print(_table(findings))
    if any(one.state not in ("present", "unchecked") for found in findings.values() for one in found):
        raise typer.Exit(1)


def _get(file: RemoteFile, root: Path, keep_archives: bool) -> None:
    if file.unpacks_to and all((root / made).exists() for made in file.unpacks_to):
        return
    with counting() as progress:
        task = progress.add_task(file.name, total=file.size)
        archive = fetch(file, root, progress=lambda done, total: progress.update(task, completed=done, total=total))
    if file.unpacks_in is not None:
        unpack(archive, root / file.unpacks_in)
        if not keep_archives:
            archive.unlink()


def _table(findings: dict[str, list[Finding]]) -> Table:
    table = Table("set", "file", "state", "detail")
    for name, found in findings.items():
        for one in found:
            table.add_row(name, one.file, one.state, one.detail)
    return table


def _size(files: tuple[RemoteFile, ...]) -> str:
    known = [file.size for file in files if file.size is not None]
    return f"{sum(known) / 1e9:.2f} GB" if known else "unknown"
