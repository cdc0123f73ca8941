"""`driftproof try`: which method suits your model and your images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from driftproof.cli.class_names import parse_classes
from driftproof.cli.completion import METHODS
from driftproof.cli.device import Device, move_model, resolve_device
from driftproof.cli.exit_codes import ExitCode
from driftproof.cli.guards import build_guarded
from driftproof.cli.images import check_sizes, find_images, load_batches
from driftproof.cli.labels import LabelSource, read_labels
from driftproof.cli.model import Classes, ModelName, Weights, load_model
from driftproof.cli.options import parse_list
from driftproof.cli.order import OrderName, OrderSeed, arrange
from driftproof.cli.output import AsJson, print_json
from driftproof.cli.preprocessing import Crop, Mean, Preset, Side, Std, resolve_preprocessing
from driftproof.cli.progress import progress_bar
from driftproof.cli.recommendation import recommend
from driftproof.cli.source_folder import load_or_prepare
from driftproof.cli.trial import Trial
from driftproof.cli.trial_table import print_trials, to_json
from driftproof.errors import DriftproofError

if TYPE_CHECKING:
    from driftproof.bench.spec import Option

__all__ = ["try_command"]

_CANDIDATES = ("bn_adapt", "tent+crowd", "eata+crowd", "adapt")


def try_command(
    images: Annotated[list[Path], typer.Argument(help="Image files and folders of images.")],
    model: ModelName = None,
    weights: Weights = None,
    classes: Classes = None,
    preset: Preset = None,
    mean: Mean = None,
    std: Std = None,
    size: Side = None,
    crop: Crop = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"Methods to try, separated by commas; by default {', '.join(_CANDIDATES)}.",
            autocompletion=lambda: list(METHODS),
        ),
    ] = None,
    labels: LabelSource = None,
    source: Annotated[
        Path | None,
        typer.Option(help="Training images of the model, one folder per class, for methods that need them."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of images per step.")] = 200,
    limit: Annotated[int | None, typer.Option(min=1, help="Try only so many images, the first of the order.")] = None,
    order: OrderName = "random",
    seed: OrderSeed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Try methods on images and recommend one.

    Every method starts from the model as it is, goes through the same images in the same order, and has the guards of
    `driftproof adapt`. With labels, a method is recommended only if it is better than the model as it is by a paired
    test; without, only if it ended healthy. Nothing is written.
    """
    paths, target = find_images(images), resolve_device(device)
    preprocessing = resolve_preprocessing(preset, mean=mean, std=std, size=size, crop=crop)
    _, names = parse_classes(classes)
    known = None if labels is None else read_labels(labels, paths, names, images)
    arranged, unreadable = arrange(paths, order, seed)[:limit], 0
    named = None if methods is None else parse_list("--methods", methods)
    with progress_bar() as progress:
        network = move_model(load_model(model, weights, classes, preprocessing), target)
        trials: list[Trial] = []
        for name in dict.fromkeys(("source", *(named or _CANDIDATES))):
            try:
                adapter = build_guarded(name, network, _source_free_options(name, source))
                load_or_prepare(adapter, source, preprocessing.size, progress)
            except DriftproofError as error:
                if name == "source" or named:  # asked for by name
                    raise
                progress.console.print(Text(f"{name} is left out: {error}"), soft_wrap=True)
                continue
            trials.append(Trial(name, adapter, known, names))
        task = progress.add_task("trying", total=len(arranged))
        for batch in load_batches(paths, arranged, batch_size=batch_size, size=preprocessing.size):
            check_sizes(batch)
            for message in batch.unreadable.values():
                progress.console.print(Text(message), soft_wrap=True)
            unreadable += len(batch.unreadable)
            for trial in trials:
                trial.step(batch)
            progress.advance(task, len(batch.indices) + len(batch.unreadable))
    outcomes = [trial.outcome(trials[0]) for trial in trials]
    advice = recommend(outcomes[0], outcomes[1:])
    if as_json:
        print_json(to_json(trials, outcomes, advice))
    else:
        print_trials(trials, outcomes, advice)
    if unreadable:
        raise typer.Exit(ExitCode.NEGATIVE)


def _source_free_options(method: str, source: Path | None) -> "dict[str, Option]":
    """EATA without its Fisher penalty needs no source images."""
    return {"fisher": 0.0} if source is None and method.partition("+")[0] == "eata" else {}
