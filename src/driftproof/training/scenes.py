"""Training of segmentation networks on driving scenes."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from driftproof.data.scenes import UNKNOWN, VOID
from driftproof.errors import InputError, ModelError
from driftproof.metrics import ConfusionMatrix
from driftproof.training.recipes import SceneRecipe
from driftproof.training.trainer import Trainer

__all__ = ["SceneTrainer", "labelled_scenes", "mean_iou", "scaled_crops"]


class LabelledScenes(Protocol):
    """A set of scenes: what training needs to know of it."""

    @property
    def name(self) -> str:
        """What the set is called in messages."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> tuple[Tensor, Tensor | None]:
        """A frame, (3, H, W) uint8, and its label map, (H, W) uint8."""


class SceneTrainer(Trainer):
    """Trains a segmentation network, in place, by a recipe.

    Unknown and void pixels are never learned from. The scenes stay on the device as bytes. Of a last batch of one scene
    nothing is learned in that pass: batch statistics of its pooled features do not exist.

    Args:
        model: Takes images in [0, 1], (N, 3, H, W), and returns logits, (N, classes, H, W).
        images: Bytes of shape (N, 3, H, W), as `labelled_scenes` reads them.
        labels: Label maps, (N, H, W).
        recipe: How to train.
        seed: Seed of every random choice.
        device: Where to train; where the model is, unless given.
        begun_from: See `Trainer`.
        mixed: Compute the network in bfloat16 where that is safe, with channels last, and the loss in single precision:
            faster on GPUs.

    Examples:
        >>> from dataclasses import replace
        >>> from driftproof.training.recipes import DEEPLAB
        >>> images, labels = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8), torch.randint(2, (4, 8, 8))
        >>> trainer = SceneTrainer(nn.Conv2d(3, 2, 1), images, labels, replace(DEEPLAB, epochs=1, crop=8))
        >>> trainer.run()[0].epoch
        1
    """

    recipe: SceneRecipe

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        recipe: SceneRecipe,
        *,
        seed: int = 0,
        device: torch.device | str | None = None,
        begun_from: str | None = None,
        mixed: bool = False,
    ) -> None:
        super().__init__(model, images, labels, recipe, seed=seed, device=device, begun_from=begun_from)
        self.mixed = mixed
        self._layout = torch.channels_last if mixed else torch.contiguous_format
        self.model.to(memory_format=self._layout)  # type: ignore[call-overload]  # torch's stubs know of no such call

    def _described(self) -> dict[str, Any]:
        described = super()._described()
        described["run"]["mixed"] = self.mixed
        return described

    def _batches(self, order: Tensor) -> list[Tensor]:
        return [batch for batch in super()._batches(order) if len(batch) > 1]

    def _step(self, members: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        recipe = self.recipe
        views = scaled_crops(
            self._images[members], self._labels[members], generator, crop=recipe.crop, scales=recipe.scales
        )
        labels = views[1].long().masked_fill(views[1] == UNKNOWN, VOID)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed):
            logits = self.model(views[0].contiguous(memory_format=self._layout))
        taught = labels != VOID
        losses = F.cross_entropy(logits.float(), labels, ignore_index=VOID, reduction="sum")
        loss = losses / taught.sum().clamp(min=1)
        self._learn(loss)
        right = (logits.argmax(dim=1) == labels) & taught
        return loss.detach(), torch.stack([right.sum(), taught.sum()])

    def _expected_labels(self, labels: Tensor, images: Tensor) -> Tensor:
        if len(images) < 2:
            raise InputError(f"Expected at least two scenes to train on, but got {len(images)}.")
        if labels.shape != (len(images), *images.shape[2:]) or labels.is_floating_point():
            raise InputError(
                f"Expected integer label maps of shape {(len(images), *images.shape[2:])}, one label per pixel, "
                f"but got {str(labels.dtype).removeprefix('torch.')} of shape {tuple(labels.shape)}."
            )
        if int(labels.min()) < 0 or int(labels.max()) > VOID:
            raise InputError(f"Expected labels in 0..{VOID}, but got {int(labels.min())}..{int(labels.max())}.")
        return labels.to(torch.uint8)

    def _expect_classes(self) -> None:
        self.model.eval()
        with torch.no_grad():
            logits = self.model(self._images[:1] / 255.0)
        if logits.ndim != 4 or logits.shape[2:] != self._images.shape[2:]:
            raise ModelError(
                f"Expected logits of shape (N, classes, H, W), but the model returns {tuple(logits.shape)}."
            )
        strays = self._labels[(self._labels >= logits.shape[1]) & (self._labels != UNKNOWN) & (self._labels != VOID)]
        if strays.numel():
            raise InputError(
                f"Expected labels in 0..{logits.shape[1] - 1}, or {UNKNOWN} and {VOID} for unknown and void pixels, "
                f"but got {int(strays[0])}. Map the labels to classes first."
            )


def scaled_crops(
    images: Tensor, labels: Tensor, generator: Generator, *, crop: int, scales: tuple[float, float] = (0.5, 2.0)
) -> tuple[Tensor, Tensor]:
    """A square part of every scene at a random scale, every other one mirrored.

    Where a part reaches beyond its scene, it is black and void. Pixels are interpolated, labels are those of the
    nearest pixel.

    Args:
        images: Bytes of shape (N, 3, H, W).
        labels: Label maps, (N, H, W).
        generator: Source of every random choice.
        crop: Side of the parts.
        scales: Smallest and largest factor.

    Returns:
        (N, 3, crop, crop) in [0, 1], and their label maps.

    Examples:
        >>> images, labels = torch.zeros(2, 3, 9, 12, dtype=torch.uint8), torch.zeros(2, 9, 12, dtype=torch.uint8)
        >>> views, maps = scaled_crops(images, labels, torch.Generator().manual_seed(0), crop=6)
        >>> views.shape, maps.shape
        (torch.Size([2, 3, 6, 6]), torch.Size([2, 6, 6]))
    """
    count, (height, width), device = len(images), images.shape[2:], images.device
    draws = torch.rand(4, count, 1, generator=generator, device=generator.device, dtype=torch.float64)
    steps = 1.0 / (scales[0] + (scales[1] - scales[0]) * draws[0])
    centres = torch.arange(crop, device=generator.device, dtype=torch.float64) + 0.5
    # The range of starts is negative where the enlarged scene is smaller than the part.
    rows = (draws[1] * (height - crop * steps) + centres * steps).to(device)
    columns = draws[2] * (width - crop * steps) + centres * steps
    columns = torch.where(draws[3] < 0.5, columns.flip(1), columns).to(device)
    inside = _within(rows, height).unsqueeze(2) & _within(columns, width).unsqueeze(1)
    place = torch.arange(count, device=device).view(-1, 1, 1)
    nearest = labels[place, _pixel(rows, height).unsqueeze(2), _pixel(columns, width).unsqueeze(1)]
    across, down = (2 * columns / width - 1).float(), (2 * rows / height - 1).float()
    grid = torch.stack([across.unsqueeze(1).expand_as(inside), down.unsqueeze(2).expand_as(inside)], dim=3)
    views = F.grid_sample(images / 255.0, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return views * inside.unsqueeze(1), nearest.masked_fill(~inside, VOID)


def _within(places: Tensor, side: int) -> Tensor:
    return (places >= 0) & (places < side)


def _pixel(places: Tensor, side: int) -> Tensor:
    return places.floor().long().clamp(0, side - 1)


def labelled_scenes(scenes: LabelledScenes) -> tuple[Tensor, Tensor]:
    """Every frame of a set and its label map, as bytes: (N, 3, H, W) and (N, H, W).

    Raises:
        InputError: If a frame has no label map.
    """
    pairs = [scenes.read(index) for index in range(len(scenes))]
    if unlabelled := [index for index, (_, labels) in enumerate(pairs) if labels is None]:
        raise InputError(f"Expected a label map for every scene of {scenes.name}, but scene {unlabelled[0]} has none.")
    frames: Sequence[Tensor] = [frame for frame, _ in pairs]
    return torch.stack(list(frames)), torch.stack([labels for _, labels in pairs if labels is not None])


def mean_iou(model: nn.Module, images: Tensor, labels: Tensor, *, classes: int, batch_size: int = 4) -> float:
    """Mean intersection over union in [0, 1]; unknown and void pixels do not count.

    Args:
        model: The network, in evaluation mode.
        images: Bytes of shape (N, 3, H, W).
        labels: Label maps, (N, H, W).
        classes: How many there are.
        batch_size: Scenes per batch.
    """
    device = next(model.parameters()).device
    confusion = ConfusionMatrix(classes, ignore=VOID, device=device)
    with torch.no_grad():
        for frames, maps in zip(torch.split(images, batch_size), torch.split(labels, batch_size), strict=True):
            truth = maps.to(device)
            predicted = model(frames.to(device) / 255.0).argmax(dim=1)
            confusion.add(predicted, truth.long().masked_fill(truth == UNKNOWN, VOID))
    return confusion.mean_iou()
