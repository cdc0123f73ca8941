"""`driftproof train`: train a source model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from driftproof.cli.device import Device, resolve_device
from driftproof.cli.options import MAX_SEED
from driftproof.cli.train_scenes import SCENE_RECIPES, SCENE_SETS, train_on_scenes
from driftproof.errors import ConfigurationError
from driftproof.validation import check_choice

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftproof.data import ImageSet
    from driftproof.training import EpochRecord, Recipe

__all__ = ["RECIPES", "SETS", "train_command"]

RECIPES = {
    "wrn10_1": "WRN_AUGMIX",
    "wrn16_1": "WRN_AUGMIX",
    "wrn40_2": "WRN_AUGMIX",
    "wrn28_10": "WRN_AUGMIX",
    "resnext29": "RESNEXT_AUGMIX",
    "resnet50_cifar": "CIFAR_RESNET50",
    "resnet50": "TINY_RESNET50",
}
"""Networks and the names of their recipes in `driftproof.training`."""

SETS = {"cifar10": "cifar10", "cifar100": "cifar100", "tiny-imagenet": "tiny_imagenet"}
"""Data sets and the names of their readers in `driftproof.data`."""

_NETWORKS, _ALL_SETS = (*RECIPES, *SCENE_RECIPES), (*SETS, *SCENE_SETS)


def train_command(
    model: Annotated[str, typer.Option(help=f"One of {', '.join(_NETWORKS)}.", autocompletion=lambda: list(_NETWORKS))],
    data: Annotated[Path, typer.Option(help="Folder with the official files of the data set.")],
    out: Annotated[
        Path, typer.Option(help="Output file for the weights; a checkpoint for resuming is saved next to it.")
    ],
    dataset: Annotated[
        str, typer.Option("--images", help=f"One of {', '.join(_ALL_SETS)}.", autocompletion=lambda: list(_ALL_SETS))
    ] = "cifar10",
    start: Annotated[
        Path | None,
        typer.Option(
            "--weights", help="Initial weights; the last layer is not loaded. For scenes, weights of a backbone."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Number of epochs; by default that of the recipe.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Random seed.")] = 0,
    height: Annotated[int | None, typer.Option(min=16, help="For scenes: resize frames to this height.")] = None,
    mixed: Annotated[bool, typer.Option("--mixed", help="For scenes: use bfloat16 autocast.")] = False,
    device: Device = "cpu",
) -> None:
    """Train a source model as in the paper; repeat the command to resume after an interruption."""
    if model in SCENE_RECIPES:
        target = resolve_device(device)
        train_on_scenes(
            model,
            dataset,
            data,
            out,
            start=start,
            epochs=epochs,
            height=height,
            seed=seed,
            device=target,
            mixed=mixed,
        )
        return
    for option, given in {"--mixed": mixed, "--height": height is not None}.items():
        if given:
            raise ConfigurationError(f"Expected `{option}` with one of {', '.join(SCENE_RECIPES)}, but got {model}.")
    import torch

    from driftproof.files import check_writable, sha256
    from driftproof.models import build_model, load_checkpoint, save_checkpoint
    from driftproof.training import Trainer

    recipe = _recipe(model, epochs)
    check_writable(out)
    train, test = (_read(dataset, data, train=train) for train in (True, False))
    target = resolve_device(device)
    torch.manual_seed(seed)
    network = build_model(model, classes=len(train.classes))
    if start is not None:
        load_checkpoint(network, start, new_head=True)
    begun_from = None if start is None else sha256(start)
    images = train.batch(range(len(train)))
    trainer = Trainer(network, images, train.labels, recipe, seed=seed, device=target, begun_from=begun_from)
    history = trainer.run(
        checkpoint=out.with_suffix(".training.pt"),
        progress=_progress_printer(recipe),
        evaluate=lambda network: _accuracy(network, test, target),
    )
    meta = {"arch": model, "set": dataset, "seed": seed, "epochs": recipe.epochs}
    save_checkpoint(out, network, {**meta, "accuracy": history[-1].evaluation})


def _recipe(model: str, epochs: int | None) -> "Recipe":
    from driftproof import training

    recipe: Recipe = getattr(training, RECIPES[check_choice("model to train", model, _NETWORKS)])
    return recipe if epochs is None else replace(recipe, epochs=epochs)


def _read(name: str, root: Path, *, train: bool) -> "ImageSet":
    from driftproof import data

    images: ImageSet = getattr(data, SETS[check_choice("data set to train on", name, SETS)])(root, train=train)
    return images


def _progress_printer(recipe: "Recipe") -> "Callable[[EpochRecord], None]":
    console = Console(stderr=True)

    def print_epoch(record: "EpochRecord") -> None:
        accuracies = f"{100 * record.accuracy:.2f} % train, {100 * (record.evaluation or 0):.2f} % test"
        epoch = f"epoch {record.epoch} of {recipe.epochs}"
        console.print(
            f"{epoch}: loss {record.loss:.3f}, accuracy {accuracies}, {record.seconds:.0f} s", highlight=False
        )

    return print_epoch


def _accuracy(network: "nn.Module", images: "ImageSet", device: "torch.device", batch_size: int = 500) -> float:
    import torch

    correct = 0
    with torch.no_grad():
        for indices in torch.split(torch.arange(len(images)), batch_size):
            predicted = network(images.batch(indices).to(device).float() / 255).argmax(1).cpu()
            correct += int((predicted == images.labels[indices]).sum())
    return correct / len(images)
