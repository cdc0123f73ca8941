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

__all__ = ["SceneTrainer", "evaluate_mean_iou", "load_labeled_scenes", "scaled_crop_and_flip"]


class LabeledScenes(Protocol):
    """Set of scenes as training needs it."""

    @property
    def name(self) -> str:
        """Name of the set, for messages."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> tuple[Tensor, Tensor | None]:
        """Return a frame, (3, H, W) uint8, and its label map, (H, W) uint8."""


class SceneTrainer(Trainer):
    """Trains a segmentation network in place.

    Unknown and void pixels do not contribute to the loss. The scenes stay on the device as uint8. A last batch of one
    scene is dropped in that epoch, because its pooled features have no batch statistics.

    Args:
        model: Takes images in [0, 1], (N, 3, H, W), and returns logits, (N, classes, H, W).
        images: uint8 images, (N, 3, H, W), as `load_labeled_scenes` returns them.
        labels: Label maps, (N, H, W).
        recipe: Hyper-parameters.
        seed: Random seed.
        device: Training device; None for the device of the model.
        begun_from: See `Trainer`.
        mixed: Use bfloat16 autocast and channels last for the network, and float32 for the loss; faster on GPUs.

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
        self.model.to(memory_format=self._layout)  # type: ignore[call-overload]  # missing in torch's stubs

    def _describe_run(self) -> dict[str, Any]:
        description = super()._describe_run()
        description["run"]["mixed"] = self.mixed
        return description

    def _split_batches(self, order: Tensor) -> list[Tensor]:
        return [batch for batch in super()._split_batches(order) if len(batch) > 1]

    def _step(self, members: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        recipe = self.recipe
        images, labels = scaled_crop_and_flip(
            self._images[members], self._labels[members], generator, crop=recipe.crop, scales=recipe.scales
        )
        labels = labels.long().masked_fill(labels == UNKNOWN, VOID)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed):
            logits = self.model(images.contiguous(memory_format=self._layout))
        labeled = labels != VOID
        total = F.cross_entropy(logits.float(), labels, ignore_index=VOID, reduction="sum")
        loss = total / labeled.sum().clamp(min=1)
        self._update(loss)
        correct = (logits.argmax(dim=1) == labels) & labeled
        return loss.detach(), torch.stack([correct.sum(), labeled.sum()])

    def _validate_labels(self, labels: Tensor, images: Tensor) -> Tensor:
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

    def _check_classes(self) -> None:
        self.model.eval()
        with torch.no_grad():
            logits = self.model(self._images[:1] / 255.0)
        if logits.ndim != 4 or logits.shape[2:] != self._images.shape[2:]:
            raise ModelError(
                f"Expected logits of shape (N, classes, H, W), but the model returns {tuple(logits.shape)}."
            )
        invalid = self._labels[(self._labels >= logits.shape[1]) & (self._labels != UNKNOWN) & (self._labels != VOID)]
        if invalid.numel():
            raise InputError(
                f"Expected labels in 0..{logits.shape[1] - 1}, or {UNKNOWN} and {VOID} for unknown and void pixels, "
                f"but got {int(invalid[0])}. Map the labels to classes first."
            )


def scaled_crop_and_flip(
    images: Tensor, labels: Tensor, generator: Generator, *, crop: int, scales: tuple[float, float] = (0.5, 2.0)
) -> tuple[Tensor, Tensor]:
    """Crop a square from every scene at a random scale, and flip it with probability 0.5.

    A crop that extends beyond its scene is black and void there. Pixels are interpolated bilinearly, labels are taken
    from the nearest pixel.

    Args:
        images: uint8 images, (N, 3, H, W).
        labels: Label maps, (N, H, W).
        generator: Random number generator.
        crop: Side of the crops.
        scales: Smallest and largest scale.

    Returns:
        Images, (N, 3, crop, crop) in [0, 1], and their label maps.

    Examples:
        >>> images, labels = torch.zeros(2, 3, 9, 12, dtype=torch.uint8), torch.zeros(2, 9, 12, dtype=torch.uint8)
        >>> views, maps = scaled_crop_and_flip(images, labels, torch.Generator().manual_seed(0), crop=6)
        >>> views.shape, maps.shape
        (torch.Size([2, 3, 6, 6]), torch.Size([2, 6, 6]))
    """
    count, (height, width), device = len(images), images.shape[2:], images.device
    draws = torch.rand(4, count, 1, generator=generator, device=generator.device, dtype=torch.float64)
    steps = 1.0 / (scales[0] + (scales[1] - scales[0]) * draws[0])
    centers = torch.arange(crop, device=generator.device, dtype=torch.float64) + 0.5
    # The range of offsets is negative where the scaled scene is smaller than the crop.
    rows = (draws[1] * (height - crop * steps) + centers * steps).to(device)
    columns = draws[2] * (width - crop * steps) + centers * steps
    columns = torch.where(draws[3] < 0.5, columns.flip(1), columns).to(device)
    inside = _is_inside(rows, height).unsqueeze(2) & _is_inside(columns, width).unsqueeze(1)
    scene = torch.arange(count, device=device).view(-1, 1, 1)
    nearest = labels[scene, _nearest_pixel(rows, height).unsqueeze(2), _nearest_pixel(columns, width).unsqueeze(1)]
    across, down = (2 * columns / width - 1).float(), (2 * rows / height - 1).float()
    grid = torch.stack([across.unsqueeze(1).expand_as(inside), down.unsqueeze(2).expand_as(inside)], dim=3)
    views = F.grid_sample(images / 255.0, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return views * inside.unsqueeze(1), nearest.masked_fill(~inside, VOID)


def _is_inside(coordinates: Tensor, side: int) -> Tensor:
    return (coordinates >= 0) & (coordinates < side)


def _nearest_pixel(coordinates: Tensor, side: int) -> Tensor:
    return coordinates.floor().long().clamp(0, side - 1)


def load_labeled_scenes(scenes: LabeledScenes) -> tuple[Tensor, Tensor]:
    """Read all frames, (N, 3, H, W) uint8, and label maps, (N, H, W) uint8, of a set.

    Raises:
        InputError: If a frame has no label map.
    """
    pairs = [scenes.read(index) for index in range(len(scenes))]
    if unlabeled := [index for index, (_, labels) in enumerate(pairs) if labels is None]:
        raise InputError(f"Expected a label map for every scene of {scenes.name}, but scene {unlabeled[0]} has none.")
    frames: Sequence[Tensor] = [frame for frame, _ in pairs]
    return torch.stack(list(frames)), torch.stack([labels for _, labels in pairs if labels is not None])


def evaluate_mean_iou(model: nn.Module, images: Tensor, labels: Tensor, *, classes: int, batch_size: int = 4) -> float:
    """Return the mean IoU of a model, in [0, 1]; unknown and void pixels are ignored.

    Args:
        model: The network, in evaluation mode.
        images: uint8 images, (N, 3, H, W).
        labels: Label maps, (N, H, W).
        classes: Number of classes.
        batch_size: Scenes per batch.
    """
    device = next(model.parameters()).device
    confusion = ConfusionMatrix(classes, ignore_index=VOID, device=device)
    with torch.no_grad():
        for frames, maps in zip(torch.split(images, batch_size), torch.split(labels, batch_size), strict=True):
            truth = maps.to(device)
            predicted = model(frames.to(device) / 255.0).argmax(dim=1)
            confusion.update(predicted, truth.long().masked_fill(truth == UNKNOWN, VOID))
    return confusion.mean_iou()
