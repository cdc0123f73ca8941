"""Datasets that can be streamed, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from driftproof.bench.scenes import CLEAN, camvid_scenes, driving, driving_source
from driftproof.components import Progress
from driftproof.data import (
    Corrupted,
    ImageSet,
    ResizeShorterSide,
    array_folder,
    cache_to_disk,
    cifar10,
    cifar10_c,
    cifar100,
    cifar100_c,
    folder,
    imagenet_c,
    imagenet_o_c,
    svhn_c,
    tiny_imagenet,
    tiny_imagenet_c,
)
from driftproof.data.corrupted import PUBLISHED_QUALITY
from driftproof.data.scenes import SceneImages, Scenes, camvid_classes
from driftproof.streams import Domain, Order, Shuffled, Stored, make_scene_domain

__all__ = ["DATASETS", "DatasetConfig"]


@dataclass(frozen=True)
class DatasetConfig:
    """How to read a dataset in each of its domains.

    Attributes:
        images: Reads one domain: `images(root, domain, severity, frost_photos=…, device=…, make=…, progress=…)`.
        shuffled: Whether to shuffle, because it is stored class by class.
        trained_on: Dataset name in the file names of source weights; None for datasets of unknown images.
        classes: Number of classes; None as above.
        source: Reads labeled source images, for methods that prepare.
        clean: Reads the uncorrupted test images, which can replace source images.
        scenes: Reads the scenes with the label maps of a domain; None if an image has one label.
        source_scenes: Reads labeled source scenes instead of source images.
    """

    images: Callable[..., ImageSet]
    shuffled: bool = False
    trained_on: str | None = None
    classes: int | None = None
    source: Callable[[Path], ImageSet] | None = None
    clean: Callable[[Path], ImageSet] | None = None
    scenes: Callable[[Path, str], Scenes] | None = None
    source_scenes: Callable[[Path], Scenes] | None = None

    def domain(self, name: str, root: Path, images: ImageSet) -> Domain:
        """Return the images as a domain, with label maps if the dataset has them."""
        return Domain(name, images) if self.scenes is None else make_scene_domain(name, self.scenes(root, name), images)

    def order(self, seed: int) -> Order:
        """Return the order of the images: seed 0 keeps the dataset's own, other seeds shuffle.

        Most methods use no random numbers, so other seeds would otherwise repeat the same run. Video frames are never
        shuffled.
        """
        return Shuffled(seed) if self.shuffled or (seed and self.scenes is None) else Stored()


def _load_or_generate(
    root: Path,
    domain: str,
    severity: int,
    *,
    published: Callable[[Path, str, int], ImageSet],
    clean: Callable[[Path], ImageSet],
    home: str,
    **how: Any,  # noqa: ANN401  # relayed to `Corrupted`
) -> ImageSet:
    if (root / home).exists():
        return published(root, domain, severity)
    return _generate(root, domain, severity, clean=clean, home=home, **how)


def _generate(
    root: Path,
    domain: str,
    severity: int,
    *,
    clean: Callable[[Path], ImageSet],
    home: str,
    make: bool = True,
    progress: Progress | None = None,
    **how: Any,  # noqa: ANN401  # relayed to `Corrupted`
) -> ImageSet:
    images = Corrupted(clean(root), domain, severity, **how)
    return cache_to_disk(images, root / f"{home}-made", make=make, progress=progress)


def _camvid(home: str, split: str, height: int | None = None) -> DatasetConfig:
    scenes = partial(camvid_scenes, split=split, height=height)

    def images(root: Path, domain: str, severity: int, **how: Any) -> ImageSet:  # noqa: ANN401  # relayed
        clean = SceneImages(scenes(root))
        return clean if domain == CLEAN else _generate(root, domain, severity, clean=lambda _: clean, home=home, **how)

    return DatasetConfig(
        images,
        trained_on="camvid" if height is None else f"camvid-{height}",
        classes=len(camvid_classes()),
        scenes=lambda root, domain: scenes(root),
        source_scenes=partial(camvid_scenes, split="train", height=height),
    )


def _frames(root: Path, domain: str, severity: int, *, split: str, **how: Any) -> ImageSet:  # noqa: ANN401  # likewise
    return SceneImages(driving(root, domain, split=split))


def _imagenet_other(root: Path) -> ImageSet:
    return array_folder(root / "imagenet64-other")


DATASETS: dict[str, DatasetConfig] = {
    "cifar10-c": DatasetConfig(
        partial(_load_or_generate, published=cifar10_c, clean=cifar10, home="CIFAR-10-C"),
        trained_on="cifar10", classes=10, source=partial(cifar10, train=True), clean=cifar10,
    ),
    "cifar100-c": DatasetConfig(
        partial(_load_or_generate, published=cifar100_c, clean=cifar100, home="CIFAR-100-C"),
        trained_on="cifar100", classes=100, source=partial(cifar100, train=True), clean=cifar100,
    ),
    "tiny-imagenet-c": DatasetConfig(
        partial(
            _load_or_generate, published=tiny_imagenet_c, clean=tiny_imagenet, home="Tiny-ImageNet-C",
            resave=PUBLISHED_QUALITY,
        ),
        shuffled=True, trained_on="tinyimagenet", classes=200,
        source=partial(tiny_imagenet, train=True), clean=tiny_imagenet,
    ),
    "imagenet-c": DatasetConfig(
        lambda root, domain, severity, **how: imagenet_c(root, domain, severity),
        shuffled=True, trained_on="imagenet", classes=1000,
        source=lambda root: folder(root / "imagenet" / "train", size=ResizeShorterSide(256, crop=224)),
    ),
    "svhn-c": DatasetConfig(svhn_c),
    "imagenet-o-c-64": DatasetConfig(partial(imagenet_o_c, side=64), shuffled=True),
    "imagenet-o-c-224": DatasetConfig(partial(imagenet_o_c, side=224), shuffled=True),
    "imagenet64-other-c": DatasetConfig(
        partial(_generate, clean=_imagenet_other, home="ImageNet64-Other-C", constants=64, resave=PUBLISHED_QUALITY),
        shuffled=True,
    ),
    "camvid-c": _camvid("CamVid-C", "val+test"),
    "camvid-train-c": _camvid("CamVid-Train-C", "train"),
    "camvid-c-180": _camvid("CamVid-C-180", "val+test", 180),
    "camvid-train-c-180": _camvid("CamVid-Train-C-180", "train", 180),
    "driving-train": DatasetConfig(
        partial(_frames, split="train"), trained_on="gtav", classes=19,
        scenes=partial(driving, split="train"), source_scenes=partial(driving_source, name="gtav"),
    ),
    "driving-val": DatasetConfig(
        partial(_frames, split="val"), trained_on="cityscapes", classes=19,
        scenes=partial(driving, split="val"), source_scenes=partial(driving_source, name="cityscapes"),
    ),
}  # fmt: skip
