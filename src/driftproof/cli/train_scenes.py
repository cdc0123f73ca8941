"""`driftproof train` on driving scenes."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from driftproof.validation import check_choice

if TYPE_CHECKING:
    import torch

    from driftproof.training import EpochRecord, SceneRecipe

__all__ = ["SCENE_RECIPES", "SCENE_SETS", "train_on_scenes"]

SCENE_RECIPES = {
    "deeplabv3plus_resnet50": "DEEPLAB",
    "deeplabv3plus_resnet18": "DEEPLAB",
    "deeplabv3plus_small": "DEEPLAB",
}
"""Segmentation networks and the names of their recipes in `driftproof.training`."""

SCENE_SETS = {"camvid": "camvid"}
"""Data sets of scenes and the names of their readers in `driftproof.data.scenes`."""

_STRIDE = 16
_CHECKPOINT_SECONDS = 30.0  # on a GPU, an epoch takes less time than its checkpoint


def train_on_scenes(
    model: str,
    dataset: str,
    data: Path,
    out: Path,
    *,
    start: Path | None,
    epochs: int | None,
    height: int | None,
    seed: int,
    device: "torch.device",
    mixed: bool,
) -> None:
    """Train a segmentation network on the train split, evaluate it on val, and save it."""
    import torch

    from driftproof import training
    from driftproof.data import FitHeight
    from driftproof.data import scenes as readers
    from driftproof.files import check_writable, sha256
    from driftproof.models import build_model, load_backbone, save_checkpoint

    console = Console(stderr=True)
    recipe = _recipe(model, epochs, height)
    check_writable(out)
    read = getattr(readers, SCENE_SETS[check_choice("set of scenes to train on", dataset, SCENE_SETS)])
    size = None if height is None else FitHeight(height)
    train_scenes, val_scenes = (read(data, split=split, size=size) for split in ("train", "val"))
    images, labels = training.load_labeled_scenes(val_scenes)
    torch.manual_seed(seed)
    network = build_model(model, classes=len(train_scenes.classes))
    if start is not None:
        console.print(f"{start}: {load_backbone(network, start)}", highlight=False)
    scenes = training.load_labeled_scenes(train_scenes)
    begun_from = None if start is None else sha256(start)
    trainer = training.SceneTrainer(
        network, *scenes, recipe, seed=seed, device=device, begun_from=begun_from, mixed=mixed
    )

    def print_epoch(record: "EpochRecord") -> None:
        scores = f"pixels {100 * record.accuracy:.2f} % right, mIoU {100 * (record.evaluation or 0):.2f} %"
        epoch = f"epoch {record.epoch} of {recipe.epochs}"
        console.print(f"{epoch}: loss {record.loss:.3f}, {scores}, {record.seconds:.0f} s", highlight=False)

    history = trainer.run(
        checkpoint=out.with_suffix(".training.pt"),
        checkpoint_every=_CHECKPOINT_SECONDS,
        progress=print_epoch,
        evaluate=lambda network: training.evaluate_mean_iou(network, images, labels, classes=len(train_scenes.classes)),
    )
    meta = {
        "arch": model,
        "set": dataset,
        "seed": seed,
        "epochs": recipe.epochs,
        "height": train_scenes.extent[0],
        "classes": list(train_scenes.classes),
        "mixed": mixed,
        "begun_from": begun_from,
    }
    save_checkpoint(out, network, {**meta, "mean_iou": history[-1].evaluation})


def _recipe(model: str, epochs: int | None, height: int | None) -> "SceneRecipe":
    from driftproof import training

    recipe: SceneRecipe = getattr(training, SCENE_RECIPES[model])
    if height is not None:  # the largest multiple of the stride of the network, as in the recipe
        recipe = replace(recipe, crop=height - height % _STRIDE)
    return recipe if epochs is None else replace(recipe, epochs=epochs)
