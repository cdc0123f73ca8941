"""`driftproof train`: train a source model."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from torch import nn

from driftproof.data import ImageSet, cifar10, cifar100, tiny_imagenet
from driftproof.errors import ConfigurationError
from driftproof.models import build, load_checkpoint, save_checkpoint
from driftproof.training import CIFAR_RESNET50, RESNEXT_AUGMIX, TINY_RESNET50, WRN_AUGMIX, EpochRecord, Recipe, Trainer

__all__ = ["train_command"]

RECIPES: dict[str, Recipe] = {
    "wrn10_1": WRN_AUGMIX,
    "wrn16_1": WRN_AUGMIX,
    "wrn40_2": WRN_AUGMIX,
    "wrn28_10": WRN_AUGMIX,
    "resnext29": RESNEXT_AUGMIX,
    "resnet50_cifar": CIFAR_RESNET50,
    "resnet50": TINY_RESNET50,
}
SETS = {"cifar10": cifar10, "cifar100": cifar100, "tiny-imagenet": tiny_imagenet}


def train_command(
    model: Annotated[str, typer.Argument(help=f"One of {', '.join(RECIPES)}.")],
    data: Annotated[Path, typer.Option(help="Folder with the data set's official files.")],
    out: Annotated[Path, typer.Option(help="Where the weights go; a checkpoint to resume from lies beside them.")],
    dataset: Annotated[str, typer.Option("--set", help=f"One of {', '.join(SETS)}.")] = "cifar10",
    start: Annotated[Path | None, typer.Option(help="Weights to start from, all but the last layer's.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Fewer than the recipe's.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    device: Annotated[str, typer.Option(help="Where to train, such as cuda.")] = "cpu",
) -> None:
    """Train a source model as the paper's were; run the same command again to go on after an interruption."""
    for kind, value, known in (("model", model, RECIPES), ("set", dataset, SETS)):
        if value not in known:
            raise ConfigurationError(f"Expected the {kind} to be one of {', '.join(known)}, but got {value!r}.")
    recipe = RECIPES[model] if epochs is None else replace(RECIPES[model], epochs=epochs)
    train, test = SETS[dataset](data, train=True), SETS[dataset](data, train=False)
    torch.manual_seed(seed)
    network = build(model, classes=len(train.classes))
    if start is not None:
        load_checkpoint(network, start, new_head=True)
    trainer = Trainer(network, train.batch(range(len(train))), train.labels, recipe, seed=seed, device=device)
    console = Console(stderr=True)
    meta = {"arch": model, "set": dataset, "seed": seed, "epochs": recipe.epochs}

    def told(record: EpochRecord) -> None:
        shares = f"{100 * record.accuracy:.2f} % train, {100 * (record.evaluation or 0):.2f} % test"
        epoch = f"epoch {record.epoch} of {recipe.epochs}"
        console.print(f"{epoch}: loss {record.loss:.3f}, accuracy {shares}, {record.seconds:.0f} s", highlight=False)

    history = trainer.run(
        checkpoint=out.with_suffix(".training.pt"),
        progress=told,
        evaluate=lambda network: _accuracy(network, test, device),
    )
    save_checkpoint(out, network, {**meta, "accuracy": history[-1].evaluation})


def _accuracy(network: nn.Module, images: ImageSet, device: str, batch_size: int = 500) -> float:
    right = 0
    with torch.no_grad():
        for places in torch.split(torch.arange(len(images)), batch_size):
            predicted = network(images.batch(places).to(device).float() / 255).argmax(1).cpu()
            right += int((predicted == images.labels[places]).sum())
    return right / len(images)
