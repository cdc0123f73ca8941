"""Models and streams from files."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from driftproof.bench.scenes import SourceScenes
from driftproof.bench.datasets import DATASETS, DatasetConfig
from driftproof.bench.spec import Spec
from driftproof.components import Progress, SourceBatches
from driftproof.corruptions import FrostPhotos, find_frost_photos, procedural_frost
from driftproof.data import ImageSet
from driftproof.errors import InputError
from driftproof.files import sha256
from driftproof.models import build, load_checkpoint, read_checkpoint, restore
from driftproof.streams import Continual, Domain, OpenSet
from driftproof.validation import check_choice

__all__ = ["LocalFiles", "SourceImageBatches"]

_PUBLIC_WEIGHTS = {
    ("wrn40_2", "cifar10"): "cifar10/corruptions/Hendrycks2020AugMix_WRN.pt",
    ("wrn40_2", "cifar100"): "cifar100/corruptions/Hendrycks2020AugMix_WRN.pt",
    ("wrn28_10", "cifar10"): "cifar10/corruptions/Standard.pt",
    ("resnext29", "cifar100"): "cifar100/corruptions/Hendrycks2020AugMix_ResNeXt.pt",
    ("resnet50", "imagenet"): "resnet50-0676ba61.pth",
}
"""Where RobustBench and torchvision keep them."""


@dataclass(frozen=True)
class LocalFiles:
    """A workbench over official files.

    Attributes:
        data: The folder that holds the data sets; corrupted sets that are not there are made in it.
        weights: The folder that holds the source weights: `wrn40_2_cifar10.pt`, or as RobustBench lays them out.
        frost: Folder of frost photos; None looks for the `imagecorruptions-imaug` package.
        use_procedural_frost: Take procedural frost instead.
        device: Where sets are made.
        prepared_on_test: Sets whose clean test images stand in for their source images, where those are not at hand.
    """

    data: Path
    weights: Path
    frost: Path | None = None
    use_procedural_frost: bool = False
    device: str = "cpu"
    prepared_on_test: Collection[str] = ()
    _opened: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # What is open here is opened again elsewhere, by a process that may stand in another folder.
        paths = (path and path.absolute() for path in (self.data, self.weights, self.frost))
        return LocalFiles, (*paths, self.use_procedural_frost, self.device, tuple(self.prepared_on_test))

    def model(self, spec: Spec) -> nn.Module:
        """The source model of a cell, with its weights."""
        path, classes = self._weights_of(spec), _set(spec.images).classes
        meta = read_checkpoint(path).meta
        if "arch" not in meta:
            return load_checkpoint(build(spec.model, classes=classes), path).eval()
        model = restore(path)
        if meta["arch"] != spec.model or getattr(model, "classes", classes) != classes:
            raise InputError(
                f"Expected {path} to hold a {spec.model} for the {classes} classes of {spec.images}, "
                f"but it says it is a {meta['arch']} for {getattr(model, 'classes', 'other')}."
            )
        return model

    def stream(self, spec: Spec, rounds: int, progress: Progress | None = None) -> Continual:
        """The stream of a cell, from its beginning; tells `progress` which sets it makes."""
        closed = self._domains(spec.images, spec, progress)
        order = _set(spec.images).order(spec.seed)
        settings: dict[str, Any] = {
            "rounds": rounds,
            "batch_size": spec.batch_size,
            "order": order,
            "limit": spec.limit,
        }
        if spec.unknown is None:
            return Continual(closed, **settings)
        return OpenSet(closed, self._domains(spec.unknown, spec, progress), **settings)

    def source(self, spec: Spec, device: str) -> SourceBatches:
        """Labelled source images of a cell, or what stands in for them, in a fixed random order."""
        chosen, stand_in = _set(spec.images), spec.images in self.prepared_on_test
        if chosen.source_scenes is not None and not stand_in:
            return SourceScenes(chosen.source_scenes(self.data), device=device)
        read = chosen.clean if stand_in else chosen.source
        if read is None:
            raise InputError(f"Expected source images for {spec.images}, but none are known.")
        return SourceImageBatches(read(self.data), device=device)

    def fingerprints(self, spec: Spec, progress: Progress | None = None) -> dict[str, str]:
        """Fingerprints of the weights and of the images that a cell rests on; tells `progress` which sets it makes."""
        path = self._weights_of(spec)
        found = {f"weights {spec.model} {spec.images}": self._once(path, lambda: sha256(path))}
        for name in filter(None, (spec.images, spec.unknown)):
            images = self._images(name, spec.domains[0], spec, progress)
            label = f"images {name} {spec.domains[0]} {spec.severity}"
            found[label] = self._once(label, images.fingerprint)
        return found

    def _domains(self, name: str, spec: Spec, progress: Progress | None) -> list[Domain]:
        return [
            _set(name).domain(domain, self.data, self._images(name, domain, spec, progress)) for domain in spec.domains
        ]

    def _images(self, name: str, domain: str, spec: Spec, progress: Progress | None) -> ImageSet:
        make = spec.limit is None  # a few images are computed sooner than a set is made

        def read() -> ImageSet:
            how = {"frost_photos": self._photos(domain), "device": self.device, "make": make, "progress": progress}
            return _with_all_classes(_set(name), _set(name).images(self.data, domain, spec.severity, **how))

        images: ImageSet = self._once((name, domain, spec.severity, make), read)
        return images

    def _photos(self, domain: str) -> FrostPhotos | None:
        # Without a folder they are looked for when a set has to be made: a published one needs none.
        if domain != "frost" or not (self.use_procedural_frost or self.frost):
            return None
        return procedural_frost() if self.use_procedural_frost else find_frost_photos(self.frost)

    def _once(self, key: object, make: Any) -> Any:  # noqa: ANN401  # whatever is made
        if key not in self._opened:
            self._opened[key] = make()
        return self._opened[key]

    def _weights_of(self, spec: Spec) -> Path:
        trained_on = _set(spec.images).trained_on
        if trained_on is None:
            raise InputError(f"Expected a set that networks are trained for, but {spec.images} only ever is unknown.")
        names = [f"{spec.model}_{trained_on}{suffix}" for suffix in (".safetensors", ".pt", ".pth")]
        public = _PUBLIC_WEIGHTS.get((spec.model, trained_on))
        there = [path for name in [*names, *filter(None, [public])] if (path := self.weights / name).exists()]
        if not there:
            raise InputError(
                f"Expected weights of {spec.model} for {trained_on} in {self.weights}, as {' or '.join(names[:2])}"
                f"{f' or {public}' if public else ''}, but they are not there. Train them with `driftproof train`."
            )
        return there[0]


class SourceImageBatches:
    """Batches of labelled source images, the same at every pass.

    Args:
        images: The set.
        device: Where the batches are wanted.
        batch_size: Images per batch.
    """

    def __init__(self, images: ImageSet, *, device: str = "cpu", batch_size: int = 200) -> None:
        self._images = images
        self._device = device
        places = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        self._places = torch.split(places, batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for places in self._places:
            pixels = self._images.batch(places).to(self._device)
            yield pixels.float() / 255, self._images.labels[places].to(self._device)


def _with_all_classes(described: DatasetConfig, images: ImageSet) -> ImageSet:
    """Images as they were read; a folder that is missing would have given the classes after it the labels of others."""
    if described.classes is not None and images.classes and len(images.classes) != described.classes:
        raise InputError(
            f"Expected {images.name} to have all {described.classes} classes, but it has {len(images.classes)}."
        )
    return images


def _set(name: str) -> DatasetConfig:
    return DATASETS[check_choice("image set", name, DATASETS)]
