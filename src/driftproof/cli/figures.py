"""`driftproof analyze selection | scores | gradients | curves | figures`: the paper's figures from results."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from driftproof.cli.output import AsJson, print_json
from driftproof.errors import InputError
from driftproof.files import atomic_write

__all__ = ["curves_command", "figures_command", "gradients_command", "scores_command", "selection_command"]

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Results folder or archive.")]
Out = Annotated[Path | None, typer.Option(help="Output folder; FOLDER/figures by default.")]


def selection_command(folder: Folder, out: Out = None, as_json: AsJson = False) -> None:
    """Draw precision and recall of TENT for each selection rule, and the confidence losses of plain TENT.

    Needs runs of the suite `rules`, or those it shares with `table1`.
    """
    _draw("selection", folder, out, as_json)


def scores_command(
    folder: Folder,
    out: Out = None,
    round: Annotated[int | None, typer.Option(min=1, help="Round; by default the last complete one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw histograms of confidence and its change for correct, wrong and unknown predictions of TENT.

    Needs runs of `tent` of the suites `table1` or `rules`.
    """
    _draw("scores", folder, out, as_json, round=round)


def gradients_command(folder: Folder, out: Out = None, as_json: AsJson = False) -> None:
    """Draw the matrix of cosine similarities between per-sample gradients, by class and prediction.

    Needs runs of the suite `gradients`.
    """
    _draw("gradients", folder, out, as_json)


def curves_command(folder: Folder, out: Out = None, as_json: AsJson = False) -> None:
    """Draw the error of every method in each round. Needs runs of more than one round."""
    _draw("curves", folder, out, as_json)


def figures_command(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER…", help="Results folders or archives.")],
    out: Out = None,
) -> None:
    """Draw all of these that the results have numbers for; of several folders, each into a subfolder of its own."""
    for folder in folders:
        _draw("", folder, out / folder.name if out and len(folders) > 1 else out, as_json=False)


def _draw(name: str, folder: Path, out: Path | None, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    from driftproof.bench import Results
    from driftproof.paper.figures import ANALYSES
    from driftproof.report.figures import save
    from driftproof.report.text import metadata_notes

    results = Results(folder)
    drawn = [figure for each in ([name] if name else ANALYSES) for figure in ANALYSES[each](results, **options)]
    if not drawn:
        raise InputError(
            f"Expected results in {folder} that `analyze {name or 'figures'}` can draw, but found none. "
            f"`driftproof analyze --help` says what can be drawn."
        )
    if as_json:
        print_json({figure.name: figure.numbers for figure in drawn})
        return
    destination = out or folder / "figures"
    destination.mkdir(parents=True, exist_ok=True)
    for figure in drawn:
        save(figure.draw(), destination / f"{figure.name}.svg")
        caption = " ".join([figure.caption, *metadata_notes({"limit": results.metadata.get("limit")})])
        content = {"title": figure.title, "caption": caption, "numbers": figure.numbers}
        with atomic_write(destination / f"{figure.name}.json") as unfinished:
            unfinished.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
        typer.echo(destination / f"{figure.name}.svg")
