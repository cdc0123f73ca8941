"""`driftproof check`: report problems of a model and of images, and how to fix them."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from driftproof.cli.device import Device, move_model, resolve_device
from driftproof.cli.exit_codes import ExitCode
from driftproof.cli.images import check_sizes, find_images, load_batches
from driftproof.cli.model import Classes, ModelName, Weights, load_model
from driftproof.cli.order import OrderName, OrderSeed, arrange
from driftproof.cli.output import AsJson, print_json, print_table
from driftproof.cli.preprocessing import Crop, Mean, Preset, Side, Std, resolve_preprocessing

if TYPE_CHECKING:
    from torch import Tensor

    from driftproof.data.images import Size
    from driftproof.problems import Problem

__all__ = ["check_command"]

_STYLES = {"error": "bold red", "warning": "yellow", "note": ""}


def check_command(
    images: Annotated[
        list[Path] | None, typer.Argument(help="Image files and folders of images that the model is to adapt to.")
    ] = None,
    model: ModelName = None,
    weights: Weights = None,
    classes: Classes = None,
    preset: Preset = None,
    mean: Mean = None,
    std: Std = None,
    size: Side = None,
    crop: Crop = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of images per step.")] = 200,
    order: OrderName = "random",
    seed: OrderSeed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Report problems of a model and how to fix them; exit code 1 if it cannot be adapted.

    With images, also report how they differ from training's in scale, normalization or color, outputs that are no
    logits, a stream ordered by class, and small batches. About 1000 images are read, from all parts of the stream.
    """
    from driftproof.problems import check

    target = resolve_device(device)
    preprocessing = resolve_preprocessing(preset, mean=mean, std=std, size=size, crop=crop)
    network = move_model(load_model(model, weights, classes, preprocessing), target)
    if images:
        paths = find_images(images)
        positions = _spread(arrange(paths, order, seed), batch_size)
        problems = check(network, _read_batches(paths, positions, batch_size, preprocessing.size))
    else:
        problems = check(network)
    if as_json:
        print_json([asdict(problem) for problem in problems])
    elif problems:
        print_table(("severity", "what", "where", "what to do"), map(_row, problems))
    else:
        typer.echo("No problems: every method applies as in the paper.")
    if any(problem.severity == "error" for problem in problems):
        raise typer.Exit(ExitCode.NEGATIVE)


def _spread(positions: Sequence[int], batch_size: int) -> list[int]:
    """Return the positions of as many batches as `check` reads, evenly spread over the stream."""
    from driftproof.problems import MAX_IMAGES

    starts = range(0, len(positions), batch_size)
    count = min(len(starts), max(1, MAX_IMAGES // batch_size))
    chosen = [starts[index * len(starts) // count] for index in range(count)]
    return [position for start in chosen for position in positions[start : start + batch_size]]


def _read_batches(paths: Sequence[Path], positions: Sequence[int], batch_size: int, size: "Size") -> "Iterator[Tensor]":
    for batch in load_batches(paths, positions, batch_size=batch_size, size=size):
        check_sizes(batch)
        for message in batch.unreadable.values():
            typer.echo(message, err=True)
        if batch.pixels is not None:
            yield batch.pixels.float().div_(255)


def _row(problem: "Problem") -> tuple[Text, str, str, str]:
    where = ", ".join(problem.layers[:3]) + (f" and {len(problem.layers) - 3} more" if problem.layers[3:] else "")
    return Text(problem.severity, _STYLES[problem.severity]), problem.message, where, problem.fix
