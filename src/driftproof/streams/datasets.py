"""Datasets that can be streamed: by name, from a function of the user's, or from a folder of images."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from driftproof import data
from driftproof.components import Progress
from driftproof.corruptions import CORRUPTIONS, procedural_frost
from driftproof.data.corrupted import PUBLISHED_QUALITY
from driftproof.data.images import ImageSet, Size
from driftproof.data.scenes import SceneImages, Scenes, camvid_classes
from driftproof.data.scenes.driving import CLEAN, camvid_scenes, driving
from driftproof.errors import ConfigurationError, InputError
from driftproof.named import call_own, is_own, load_named
from driftproof.streams.domains import Domain
from driftproof.streams.order import Order, Shuffled, Stored
from driftproof.streams.scenes import make_scene_domain
from driftproof.validation import check_choice

__all__ = ["DATASETS", "DatasetConfig", "default_domains", "find_dataset", "folder_dataset", "own_source"]


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
    images = data.Corrupted(clean(root), domain, severity, **how)
    return data.cache_to_disk(images, root / f"{home}-made", make=make, progress=progress)


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
    return data.array_folder(root / "imagenet64-other")


def _digits(root: Path, domain: str, severity: int, *, clean: Callable[[], ImageSet], **how: Any) -> ImageSet:  # noqa: ANN401  # likewise
    photos = procedural_frost() if domain == "frost" else None
    images = data.Corrupted(clean(), domain, severity, constants=32, frost_photos=photos)
    return data.ArraySet(images.batch(range(len(images))), images.labels, classes=images.classes, name=images.name)


DATASETS: dict[str, DatasetConfig] = {
    "cifar10-c": DatasetConfig(
        partial(_load_or_generate, published=data.cifar10_c, clean=data.cifar10, home="CIFAR-10-C"),
        trained_on="cifar10", classes=10, source=partial(data.cifar10, train=True), clean=data.cifar10,
    ),
    "cifar100-c": DatasetConfig(
        partial(_load_or_generate, published=data.cifar100_c, clean=data.cifar100, home="CIFAR-100-C"),
        trained_on="cifar100", classes=100, source=partial(data.cifar100, train=True), clean=data.cifar100,
    ),
    "tiny-imagenet-c": DatasetConfig(
        partial(
            _load_or_generate, published=data.tiny_imagenet_c, clean=data.tiny_imagenet, home="Tiny-ImageNet-C",
            resave=PUBLISHED_QUALITY,
        ),
        shuffled=True, trained_on="tinyimagenet", classes=200,
        source=partial(data.tiny_imagenet, train=True), clean=data.tiny_imagenet,
    ),
    "imagenet-c": DatasetConfig(
        lambda root, domain, severity, **how: data.imagenet_c(root, domain, severity),
        shuffled=True, trained_on="imagenet", classes=1000,
        source=lambda root: data.folder(root / "imagenet" / "train", size=data.ResizeShorterSide(256, crop=224)),
    ),
    "digits-c": DatasetConfig(
        partial(_digits, clean=data.digits), trained_on="digits", classes=6, source=lambda root: data.digits(train=True)
    ),
    "digits-unknown-c": DatasetConfig(partial(_digits, clean=data.digits_unknown)),
    "svhn-c": DatasetConfig(data.svhn_c),
    "textures-c": DatasetConfig(
        partial(_generate, clean=lambda root: data.textures(), home="Textures-C", constants=32)
    ),
    "imagenet-o-c-64": DatasetConfig(partial(data.imagenet_o_c, side=64), shuffled=True),
    "imagenet-o-c-224": DatasetConfig(partial(data.imagenet_o_c, side=224), shuffled=True),
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
        scenes=partial(driving, split="train"), source_scenes=partial(driving, domain="gtav", split="train"),
    ),
    "driving-val": DatasetConfig(
        partial(_frames, split="val"), trained_on="cityscapes", classes=19,
        scenes=partial(driving, split="val"), source_scenes=partial(driving, domain="cityscapes", split="train"),
    ),
}  # fmt: skip


def find_dataset(name: str) -> DatasetConfig:
    """Return the dataset of a name, or the one that a function of the user's makes.

    Such a function takes a domain and a severity. It returns images and labels: uint8 of shape (N, H, W, 3) or
    (N, 3, H, W), or floats in 0..1, as an array or a tensor, and one integer per image. For unknown images, labels may
    be left out. An `ImageSet` is fine as well.
    """
    if not is_own(name):
        return DATASETS[check_choice("image set", name, DATASETS)]

    def images(root: Path, domain: str, severity: int, **how: Any) -> ImageSet:  # noqa: ANN401  # not needed
        call = f"{name}({domain!r}, {severity})"
        read = load_named(name, what="the images")
        return data.to_image_set(call_own(f"calling {call}", lambda: read(domain, severity), InputError), call)

    return DatasetConfig(images)


def folder_dataset(path: Path, size: Size = None) -> DatasetConfig:
    """Return a folder of images, one sub-folder per class, as a dataset of corrupted versions."""
    clean = partial(data.folder, path, size=size)
    home = f"{path.absolute().name}-c"
    return DatasetConfig(partial(_generate, clean=lambda _: clean(), home=home), shuffled=True)


def own_source(name: str, size: Size = None) -> ImageSet:
    """Read the user's labeled source images: a folder per class, or a function without arguments."""
    if is_own(name):
        return data.to_image_set(call_own(f"calling {name}()", load_named(name), InputError), name)
    return data.folder(Path(name), size=size)


def default_domains(images: str) -> tuple[str, ...]:
    """Return the `DOMAINS` next to the user's function, or for images that we corrupt the fifteen corruptions."""
    if not is_own(images):
        return CORRUPTIONS
    load_named(images, what="the images")
    module = images.partition(":")[0]
    try:
        return tuple(load_named(f"{module}:DOMAINS"))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"Expected the names of the domains of {images}, but got none. Define `DOMAINS = (…)` in {module}, "
            "or pass `domains`."
        ) from error
