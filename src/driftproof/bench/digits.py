"""Resources of the demo: scikit-learn's digits, and a small network trained on the spot."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from driftproof.bench.local_files import SourceImageBatches
from driftproof.bench.spec import Spec
from driftproof.components import Progress, SourceBatches
from driftproof.corruptions import procedural_frost
from driftproof.data import ArraySet, Corrupted, ImageSet, digits, digits_unknown
from driftproof.files import atomic_write, sha256
from driftproof.streams import Continual, Domain, OpenSet

__all__ = ["Digits"]

_EPOCHS = 15


@dataclass(frozen=True)
class Digits:
    """Resource provider of the demo: trains its network and generates corrupted digits, without downloads.

    Attributes:
        folder: Folder of the trained network.
        seed: Seed of the initial weights and of the order of training images.
    """

    folder: Path
    seed: int = 0
    _domains: dict[tuple[str, str, int], Domain] = field(default_factory=dict, init=False, repr=False, compare=False)

    def model(self, spec: Spec) -> nn.Module:
        """Return the network; train it on the first call."""
        if not self._weights.exists():
            self.train()
        network = _build_network()
        network.load_state_dict(load_file(self._weights))
        return network.eval()

    def stream(self, spec: Spec, rounds: int, progress: Progress | None = None) -> Continual:
        """Return a stream of known digits, mixed with unknown ones if the spec is open."""
        settings: dict[str, Any] = {"rounds": rounds, "batch_size": spec.batch_size, "limit": spec.limit}
        known = [self._domain("known", name, spec.severity) for name in spec.domains]
        if spec.unknown is None:
            return Continual(known, **settings)
        return OpenSet(known, [self._domain("unknown", name, spec.severity) for name in spec.domains], **settings)

    def source(self, spec: Spec, device: str) -> SourceBatches:
        """Return the digits that the network was trained on."""
        return SourceImageBatches(digits(train=True), device=device)

    def fingerprints(self, spec: Spec, progress: Progress | None = None) -> dict[str, str]:
        """Return checksums of network and digits, and that frost is procedural."""
        if not self._weights.exists():
            self.train(progress)
        return {"weights": sha256(self._weights), "images": digits().fingerprint(), "frost": "made up"}

    def train(self, progress: Progress | None = None) -> None:
        """Train the network on the clean digits and save it.

        Args:
            progress: Called with the stage and the number of images done.
        """
        images = digits(train=True)
        pixels = images.batch(range(len(images))).float() / 255
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = _build_network()
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _EPOCHS)
            for epoch in range(_EPOCHS):
                for chosen in torch.split(torch.randperm(len(images)), 50):
                    optimizer.zero_grad()
                    F.cross_entropy(network(pixels[chosen]), images.labels[chosen]).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                schedule.step()
                if progress is not None:
                    progress("training", (epoch + 1) * len(images))
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self._weights) as unfinished:
            save_file(network.state_dict(), unfinished)

    @property
    def _weights(self) -> Path:
        return self.folder / f"network-{self.seed}.safetensors"

    def _domain(self, kind: str, corruption: str, severity: int) -> Domain:
        if (kind, corruption, severity) not in self._domains:
            clean = digits() if kind == "known" else digits_unknown()
            corrupted = Corrupted(clean, corruption, severity, constants=32, frost_photos=procedural_frost())
            self._domains[kind, corruption, severity] = Domain(corruption, _in_memory(corrupted))
        return self._domains[kind, corruption, severity]


def _in_memory(images: ImageSet) -> ImageSet:
    return ArraySet(images.batch(range(len(images))), images.labels, classes=images.classes, name=images.name)


def _build_network() -> nn.Module:
    widths = ((3, 8, 2), (8, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1))
    blocks = [
        nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
        for before, after, stride in widths
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 6))
