"""Models and streams from local files."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from driftproof.bench.datasets import DATASETS, DatasetConfig
from driftproof.bench.scenes import SourceScenes
from driftproof.bench.spec import Spec
from driftproof.components import Progress, SourceBatches
from driftproof.corruptions import FrostPhotos, find_frost_photos, procedural_frost
from driftproof.data import ImageSet
from driftproof.errors import InputError
from driftproof.files import sha256
from driftproof.models import build_from_checkpoint, build_model, load_checkpoint, read_checkpoint
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
"""Paths of public weights, as RobustBench and torchvision lay them out."""


@dataclass(frozen=True)
class LocalFiles:
    """Resource provider that reads official files.

    Attributes:
        data: Folder with the datasets; missing corrupted datasets are generated in it.
        weights: Folder with the source weights: `wrn40_2_cifar10.pt`, or as RobustBench lays them out.
        frost: Folder of frost photos; None looks for the `imagecorruptions-imaug` package.
        use_procedural_frost: Whether to use procedural frost instead of photos.
        device: Device on which datasets are generated.
        prepared_on_test: Datasets whose clean test images replace the source images.
    """

    data: Path
    weights: Path
    frost: Path | None = None
    use_procedural_frost: bool = False
    device: str = "cpu"
    prepared_on_test: Collection[str] = ()
    _cache: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # The cache is not pickled, and another process may have another working directory.
        paths = (path and path.absolute() for path in (self.data, self.weights, self.frost))
        return LocalFiles, (*paths, self.use_procedural_frost, self.device, tuple(self.prepared_on_test))

    def model(self, spec: Spec) -> nn.Module:
        """Return the source model with its weights."""
        path, classes = self._find_weights(spec), _dataset(spec.images).classes
        meta = read_checkpoint(path).meta
        if "arch" not in meta:
            return load_checkpoint(build_model(spec.model, classes=classes), path).eval()
        model = build_from_checkpoint(path)
        if meta["arch"] != spec.model or getattr(model, "classes", classes) != classes:
            raise InputError(
                f"Expected {path} to hold a {spec.model} for the {classes} classes of {spec.images}, "
                f"but it holds a {meta['arch']} for {getattr(model, 'classes', 'other')}."
            )
        return model

    def stream(self, spec: Spec, rounds: int, progress: Progress | None = None) -> Continual:
        """Return the stream from its beginning; report to `progress` which datasets are generated."""
        closed = self._domains(spec.images, spec, progress)
        order = _dataset(spec.images).order(spec.seed)
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
        """Return labeled source images, or the clean test images that replace them, in a fixed random order."""
        config, use_test = _dataset(spec.images), spec.images in self.prepared_on_test
        if config.source_scenes is not None and not use_test:
            return SourceScenes(config.source_scenes(self.data), device=device)
        read = config.clean if use_test else config.source
        if read is None:
            raise InputError(f"Expected source images for {spec.images}, but none are known.")
        return SourceImageBatches(read(self.data), device=device)

    def fingerprints(self, spec: Spec, progress: Progress | None = None) -> dict[str, str]:
        """Return checksums of weights and images; report to `progress` which datasets are generated."""
        path = self._find_weights(spec)
        found = {f"weights {spec.model} {spec.images}": self._cached(path, lambda: sha256(path))}
        for name in filter(None, (spec.images, spec.unknown)):
            images = self._images(name, spec.domains[0], spec, progress)
            label = f"images {name} {spec.domains[0]} {spec.severity}"
            found[label] = self._cached(label, images.fingerprint)
        return found

    def _domains(self, name: str, spec: Spec, progress: Progress | None) -> list[Domain]:
        return [
            _dataset(name).domain(domain, self.data, self._images(name, domain, spec, progress))
            for domain in spec.domains
        ]

    def _images(self, name: str, domain: str, spec: Spec, progress: Progress | None) -> ImageSet:
        make = spec.limit is None  # a few images are faster to compute than a whole dataset

        def read() -> ImageSet:
            how = {"frost_photos": self._photos(domain), "device": self.device, "make": make, "progress": progress}
            return _check_classes(_dataset(name), _dataset(name).images(self.data, domain, spec.severity, **how))

        images: ImageSet = self._cached((name, domain, spec.severity, make), read)
        return images

    def _photos(self, domain: str) -> FrostPhotos | None:
        # Without a folder, photos are only looked for if the dataset has to be generated.
        if domain != "frost" or not (self.use_procedural_frost or self.frost):
            return None
        return procedural_frost() if self.use_procedural_frost else find_frost_photos(self.frost)

    def _cached(self, key: object, make: Any) -> Any:  # noqa: ANN401  # whatever is made
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def _find_weights(self, spec: Spec) -> Path:
        trained_on = _dataset(spec.images).trained_on
        if trained_on is None:
            raise InputError(
                f"Expected a dataset with trained networks, but {spec.images} is only used for unknown images."
            )
        names = [f"{spec.model}_{trained_on}{suffix}" for suffix in (".safetensors", ".pt", ".pth")]
        public = _PUBLIC_WEIGHTS.get((spec.model, trained_on))
        found = [path for name in [*names, *filter(None, [public])] if (path := self.weights / name).exists()]
        if not found:
            raise InputError(
                f"Expected weights of {spec.model} for {trained_on} in {self.weights}, as {' or '.join(names[:2])}"
                f"{f' or {public}' if public else ''}, but they are not there. Train them with `driftproof train`."
            )
        return found[0]


class SourceImageBatches:
    """Batches of labeled source images, the same at every pass.

    Args:
        images: The dataset.
        device: Device of the batches.
        batch_size: Images per batch.
    """

    def __init__(self, images: ImageSet, *, device: str = "cpu", batch_size: int = 200) -> None:
        self._images = images
        self._device = device
        indices = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        self._indices = torch.split(indices, batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in self._indices:
            pixels = self._images.batch(indices).to(self._device)
            yield pixels.float() / 255, self._images.labels[indices].to(self._device)


def _check_classes(config: DatasetConfig, images: ImageSet) -> ImageSet:
    """Return the images; raise an error if a class folder is missing, which would shift the labels of later classes."""
    if config.classes is not None and images.classes and len(images.classes) != config.classes:
        raise InputError(
            f"Expected {images.name} to have all {config.classes} classes, but it has {len(images.classes)}."
        )
    return images


def _dataset(name: str) -> DatasetConfig:
    return DATASETS[check_choice("image set", name, DATASETS)]
