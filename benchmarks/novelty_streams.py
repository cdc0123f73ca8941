"""Streams with unknown images or unknown objects, kept in the memory of the device."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from driftproof.corruptions import CORRUPTIONS, HELD_OUT, FrostPhotos, corrupt
from driftproof.data import ImageSet, cifar10, cifar100
from driftproof.data.scenes import UNKNOWN, SceneImages
from driftproof.data.scenes.driving import CLEAN, camvid_scenes
from driftproof.data.svhn import svhn
from driftproof.streams import Domain, OpenSet
from driftproof.training import load_labeled_scenes

__all__ = ["LabeledBatch", "open_images", "scenes"]

_CLEAN_IMAGES: dict[str, Callable[[Path], ImageSet]] = {"cifar10": cifar10, "cifar100": cifar100}
_WEATHER = {"camvid-c": (CLEAN, "fog", "snow", "brightness", "frost", "motion_blur"), "camvid-held-out": HELD_OUT}


@dataclass(frozen=True)
class LabeledBatch:
    """A batch of a stream.

    Attributes:
        domain: Name of the domain.
        images: In 0..1, (N, 3, H, W).
        labels: (N,) or (N, H, W): a class, −1 for unknown, 255 for unlabeled.
    """

    domain: str
    images: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class _Pixels:
    """An image set in the memory of a device."""

    name: str
    labels: Tensor
    pixels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Sequence[int] | Tensor) -> Tensor:
        return self.pixels[torch.as_tensor(indices, device=self.pixels.device)]


def open_images(
    images: str,
    data: Path,
    *,
    batch: int,
    limit: int | None,
    device: torch.device,
    photos: FrostPhotos,
    unknown_share: float = 0.5,
) -> Callable[[], Iterator[LabeledBatch]]:
    """Return a function that goes through one round of corruptions of severity 5, a share of each batch SVHN-C.

    Args:
        images: `cifar10-c` or `cifar100-c` for the fifteen corruptions, `cifar10-held-out` or `cifar100-held-out`.
        data: Folder of the clean sets.
        batch: Images per batch, known and unknown together.
        limit: Only the first so many images of each set; None is all.
        device: Where the images are corrupted and kept.
        photos: For the corruption frost.
        unknown_share: Share of SVHN-C.
    """
    name, kind = images.split("-", 1)
    corruptions = HELD_OUT if kind == "held-out" else CORRUPTIONS
    known, unknown = (
        _corrupt_all(clean, corruptions, limit, device, photos)
        for clean in (_CLEAN_IMAGES[name](data), svhn(data, limit=10_000))
    )
    plans = list(OpenSet(known, unknown, ratio=unknown_share, batch_size=batch).plans())

    def iterate() -> Iterator[LabeledBatch]:
        for plan in plans:
            read = plan.read(lambda tensor: tensor.to(device, non_blocking=True))
            yield LabeledBatch(read.domain, read.images, read.labels)

    return iterate


def _corrupt_all(
    clean: ImageSet, corruptions: Sequence[str], limit: int | None, device: torch.device, photos: FrostPhotos
) -> list[Domain]:
    indices = torch.arange(min(limit or len(clean), len(clean)))
    pixels, labels = clean.batch(indices).to(device), clean.labels[indices]
    return [
        Domain(name, _Pixels(name, labels, corrupt(pixels, name, 5, dataset=clean.name, frost_photos=photos)))
        for name in corruptions
    ]


def scenes(
    images: str,
    data: Path,
    *,
    batch: int,
    limit: int | None,
    height: int | None,
    device: torch.device,
    photos: FrostPhotos,
) -> Callable[[], Iterator[LabeledBatch]]:
    """Return a function that goes through one round of CamVid's test frames, in several conditions of severity 3.

    Args:
        images: `camvid-c` for six kinds of weather, `camvid-held-out` for the held-out corruptions.
        data: Folder of CamVid.
        batch: Frames per batch.
        limit: Only so many frames, evenly spaced; None is all.
        height: Height to resize the frames to; None is the stored one.
        device: Where the frames are corrupted and kept.
        photos: For the corruption frost.
    """
    read = camvid_scenes(data, split="val+test", height=height)
    chosen = torch.linspace(0, len(read) - 1, min(limit or len(read), len(read))).long()
    frames, maps = (tensor[chosen].to(device) for tensor in load_labeled_scenes(read))
    name = SceneImages(read).name
    weather = {
        kind: frames if kind == CLEAN else corrupt(frames, kind, 3, dataset=name, indices=chosen, frost_photos=photos)
        for kind in _WEATHER[images]
    }

    def iterate() -> Iterator[LabeledBatch]:
        for kind, pixels in weather.items():
            for part, labels in zip(torch.split(pixels, batch), torch.split(maps, batch), strict=True):
                labels = labels.long()
                yield LabeledBatch(kind, part.float() / 255, labels.masked_fill(labels == UNKNOWN, -1))

    return iterate
