"""`driftproof bench summarize`: write the results page and fill in the numbers that other pages cite."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["summarize_command"]


def summarize_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of archives, such as `results`.")],
    out: Annotated[Path | None, typer.Option(help="Output file; FOLDER/RESULTS.md by default.")] = None,
    fill: Annotated[list[Path] | None, typer.Option(help="Page with placeholders to fill in; repeatable.")] = None,
) -> None:
    """Write one Markdown page about all archives, and fill in the numbers other pages quote.

    The page includes FOLDER/notes/*.md and shows FOLDER/figures/*.svg with their captions. Other pages can also quote
    whole tables that are stored next to the archives.
    """
    from driftproof.files import atomic_write, read_text
    from driftproof.paper.summary import Citations, load_archives, render_placeholders, render_results_page

    page, archives = out or folder / "RESULTS.md", load_archives(folder)
    citations = Citations(archives, folder)
    texts = {page: render_results_page(folder, page, archives, citations)}
    texts |= {path: render_placeholders(read_text(path), citations) for path in fill or ()}
    for path, text in texts.items():
        with atomic_write(path) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
        typer.echo(path)
