"""Models and streams from local files, and from functions of the user's."""

import copy
import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from driftproof.bench.spec import Spec
from driftproof.components import Progress, SourceBatches
from driftproof.corruptions import FrostPhotos, find_frost_photos, procedural_frost
from driftproof.data import ImageSet, LabeledBatches
from driftproof.data.images import Size
from driftproof.data.scenes import SourceScenes
from driftproof.errors import InputError
from driftproof.files import sha256
from driftproof.models import MODELS, build_from_checkpoint, build_model, load_checkpoint, read_checkpoint
from driftproof.named import is_own, load_own_model
from driftproof.streams import Continual, Domain, LabelShifted, OpenSet
from driftproof.streams.datasets import DatasetConfig, find_dataset, folder_dataset, own_source
from driftproof.training.digits import FIVE_LAYERS, build_five_layers
from driftproof.validation import check_choice

__all__ = ["NETWORKS", "LocalFiles"]

NETWORKS = (*MODELS, FIVE_LAYERS)
"""Names of the library's networks."""

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
    """Provides models, streams and source data.

    Attributes:
        data: Folder with the datasets; missing corrupted datasets are generated in it.
        weights: Folder with the source weights, as `wrn40_2_cifar10.pt` or as RobustBench lays them out; or one file.
            None is the folder `weights`, and no file for a model of the user's.
        frost: Folder of frost photos; None looks for the `imagecorruptions-imaug` package.
        device: Device on which datasets are generated.
        prepared_on_test: Datasets whose clean test images replace the source images.
        folders: Folders of images, by the names they have in specs; their images are resized to `size`.
        source_images: Labeled source images that replace the dataset's: a folder, or a function of the user's.
    """

    data: Path
    weights: Path | None = None
    frost: Path | None = None
    use_procedural_frost: bool = False
    device: str = "cpu"
    prepared_on_test: Collection[str] = ()
    folders: Mapping[str, Path] = field(default_factory=dict)
    source_images: str | None = None
    size: Size = None
    _cache: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        # The cache is not pickled, and another process may have another working directory.
        paths = {name: path and path.absolute() for name, path in vars(self).items() if isinstance(path, Path)}
        folders = {name: path.absolute() for name, path in self.folders.items()}
        source = self.source_images
        source = source if source is None or is_own(source) else str(Path(source).absolute())
        return vars(self) | paths | {"folders": folders, "source_images": source, "_cache": {}}

    def model(self, spec: Spec) -> nn.Module:
        """Return the source model with its weights."""
        path = self._find_weights(spec)
        if is_own(spec.model):
            return copy.deepcopy(self._own_model(spec.model, path))
        assert path is not None
        classes, meta = self._dataset(spec.images).classes, read_checkpoint(path).meta
        if "arch" not in meta:
            network = build_five_layers() if spec.model == FIVE_LAYERS else build_model(spec.model, classes=classes)
            return load_checkpoint(network, path).eval()
        model = build_from_checkpoint(path)
        found = getattr(model, "classes", classes)
        if meta["arch"] != spec.model or (classes is not None and found != classes):
            raise InputError(
                f"Expected {path} to hold a {spec.model} for the {classes or 'same'} classes of {spec.images}, "
                f"but it holds a {meta['arch']} for {getattr(model, 'classes', 'other')}."
            )
        return model

    def stream(self, spec: Spec, rounds: int, progress: Progress | None = None) -> Continual:
        """Return the stream from its beginning; report to `progress` which datasets are generated."""
        known, order = self._domains(spec.images, spec, progress), self._dataset(spec.images).order(spec.seed)
        if spec.label_shift is not None:
            order = LabelShifted(spec.label_shift, spec.seed)
        settings: dict[str, Any] = {"batch_size": spec.batch_size, "order": order, "limit": spec.limit}
        if spec.unknown is None:
            return Continual(known, rounds=rounds, **settings)
        settings |= {"ratio": spec.unknown_share, "mixing": spec.unknown_mixing}
        return OpenSet(known, self._domains(spec.unknown, spec, progress), rounds=rounds, **settings)

    def source(self, spec: Spec, device: str) -> SourceBatches:
        """Return labeled source images, or the clean test images that replace them, in a fixed random order."""
        if self.source_images is not None:
            return LabeledBatches(own_source(self.source_images, self.size), device=device)
        config, use_test = self._dataset(spec.images), spec.images in self.prepared_on_test
        if config.source_scenes is not None and not use_test:
            return SourceScenes(config.source_scenes(self.data), device=device)
        read = config.clean if use_test else config.source
        if read is None:
            raise InputError(
                f"Expected source images for {spec.images}, since {spec.method} is prepared on them, but none are "
                "known. Pass them as `source`: a folder per class, or a function."
            )
        return LabeledBatches(read(self.data), device=device)

    def fingerprints(self, spec: Spec, progress: Progress | None = None) -> dict[str, str]:
        """Return checksums of weights and images; raise an error if anything is missing, frost photos included."""
        path = self._find_weights(spec)
        make = self._hash_own_model if path is None else lambda _: sha256(path)
        versions = {name: f"{name} {source}" for name, source in spec.code}  # a changed function is another one
        model, images = (versions.get(name, name) for name in (spec.model, spec.images))
        found = {f"weights {model} {images}": self._cached(path or spec.model, lambda: make(spec.model))}
        for name in filter(None, (spec.images, spec.unknown)):
            if "frost" in spec.domains and not is_own(name):
                self._images(name, "frost", spec, None, make=False)
            read = self._images(name, spec.domains[0], spec, progress)
            label = f"images {versions.get(name, name)} {spec.domains[0]} {spec.severity}"
            found[label] = self._cached(label, read.fingerprint)
        return found

    def metadata(self) -> dict[str, str]:
        """Return what all runs of a results folder have to share."""
        return {"frost": "made up" if self.use_procedural_frost else "photos"}

    def _own_model(self, name: str, path: Path | None) -> nn.Module:
        def build() -> nn.Module:
            model = load_own_model(name)
            return (model if path is None else load_checkpoint(model, path)).eval()

        model: nn.Module = self._cached(("model", name, path), build)
        return model

    def _hash_own_model(self, name: str) -> str:
        content = hashlib.sha256()
        for key, tensor in self._own_model(name, None).state_dict().items():
            content.update(key.encode() + tensor.cpu().numpy().tobytes())
        return content.hexdigest()

    def _dataset(self, name: str) -> DatasetConfig:
        return folder_dataset(self.folders[name], self.size) if name in self.folders else find_dataset(name)

    def _domains(self, name: str, spec: Spec, progress: Progress | None) -> list[Domain]:
        return [
            self._dataset(name).domain(domain, self.data, self._images(name, domain, spec, progress))
            for domain in spec.domains
        ]

    def _images(
        self, name: str, domain: str, spec: Spec, progress: Progress | None, *, make: bool | None = None
    ) -> ImageSet:
        make = spec.limit is None if make is None else make  # a few images are faster to compute than a whole dataset

        def read() -> ImageSet:
            photos: FrostPhotos | None = None  # without a folder, looked for only if the dataset has to be generated
            if domain == "frost" and (self.use_procedural_frost or self.frost):
                photos = procedural_frost() if self.use_procedural_frost else find_frost_photos(self.frost)
            config, how = self._dataset(name), {"device": self.device, "make": make, "progress": progress}
            images = config.images(self.data, domain, spec.severity, frost_photos=photos, **how)
            if config.classes is not None and images.classes and len(images.classes) != config.classes:
                # A missing class folder would shift the labels of later classes.
                raise InputError(
                    f"Expected {images.name} to have all {config.classes} classes, but it has {len(images.classes)}."
                )
            return images

        images: ImageSet = self._cached((name, domain, spec.severity, make), read)
        return images

    def _cached(self, key: object, make: Callable[[], Any]) -> Any:  # noqa: ANN401  # whatever is made
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def _find_weights(self, spec: Spec) -> Path | None:
        """Return the file of weights; None for a model of the user's without one."""
        if self.weights is not None and self.weights.is_file():
            return self.weights
        if is_own(spec.model):
            if self.weights is None:
                return None
            raise InputError(f"Expected {self.weights} to be a file of weights for {spec.model}, but it is not a file.")
        check_choice("model", spec.model, NETWORKS)
        trained_on, folder = self._dataset(spec.images).trained_on, self.weights or Path("weights")
        if trained_on is None:
            raise InputError(
                f"Expected a dataset with trained networks, but {spec.images} has none. Pass a file as `weights`."
            )
        names = [f"{spec.model}_{trained_on}{suffix}" for suffix in (".safetensors", ".pt", ".pth")]
        public = _PUBLIC_WEIGHTS.get((spec.model, trained_on))
        found = [path for name in [*names, *filter(None, [public])] if (path := folder / name).exists()]
        if not found:
            raise InputError(
                f"Expected weights of {spec.model} for {trained_on} in {folder}, as {' or '.join(names[:2])}"
                f"{f' or {public}' if public else ''}, but they are not there. Train them with `driftproof train`."
            )
        return found[0]
