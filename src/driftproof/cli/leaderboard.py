"""`driftproof bench leaderboard`: write the page of the open-set suites."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["leaderboard_command"]


def leaderboard_command(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[FOLDER]…", help="Results folders or archives of these suites.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Output file.")] = Path("leaderboard.md"),
) -> None:
    """Write one Markdown page about the suites openset, openset_long, ...; what was not run is marked."""
    from driftproof.bench import Results
    from driftproof.files import atomic_write
    from driftproof.leaderboard.page import render_page

    text = render_page([Results(folder) for folder in folders or ()])
    with atomic_write(out) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    typer.echo(out)
