"""Streams and networks on the device, for `sentinel_research.py`."""

import copy
import math
from pathlib import Path

import torch
from torch import Tensor, nn

from driftproof.corruptions import corrupt, find_frost_photos
from driftproof.data.cifar import cifar10, cifar100
from driftproof.data.svhn import svhn
from driftproof.network import Network
from driftproof.scopes import everything, norm_affine
from driftproof.statistics import Batch, Statistics, WindowedBlend
from driftproof.statistics.blend import InterpolatedStatistics

NORMS = (nn.BatchNorm2d,)
CONVOLUTIONS = {"earlier": 1 / 6, "fifth": 1 / 5, "early": 1 / 3, "half": 1 / 2}
"""What share of the convolutions learns in a scope, from the first one on."""
Shares = tuple[float, float]
"""The share of the batch in the first and in the last layer."""


class PerLayer(InterpolatedStatistics):
    """A share of the batch that goes linearly from the first layer to the last."""

    def __init__(self, first: float, last: float, layers: int) -> None:
        super().__init__(momentum=None)
        self.shares = [first + (last - first) * index / max(1, layers - 1) for index in range(layers)]

    def alpha_for(self, index: int) -> float:
        """The share of the layer."""
        return self.shares[index]


class Stream:
    """All batches of a stream on the device, as bytes, and what is known of them."""

    def __init__(self, name: str, batches: Tensor, labels: Tensor, known: int, per_domain: int) -> None:
        self.name, self.batches, self.labels = name, batches, labels
        self.known, self.per_domain = known, per_domain
        self.steps = len(batches)
        self.frozen: dict[tuple[Shares, int], dict[str, Tensor]] = {}


def make_streams(
    sets: list[str],
    data: Path,
    limit: int,
    device: torch.device,
    corruptions: list[str],
    batch: int,
    frost: Path | None,
) -> dict[tuple[str, str], Stream]:
    """Corrupt the images on the device and cut them into batches."""
    half = batch // 2
    read = {"cifar10": lambda: cifar10(data), "cifar100": lambda: cifar100(data)}
    digits = svhn(data, limit=limit).batch(range(limit)).to(device)
    streams = {}
    for name in sets:
        source = read[name]()
        images, labels = source.batch(range(limit)).to(device), source.labels[:limit].to(device)
        closed, opened, closed_labels, open_labels = [], [], [], []
        for corruption in corruptions:
            photos = find_frost_photos(frost) if corruption == "frost" else None
            known = corrupt(images, corruption, 5, dataset=name, frost_photos=photos)
            unknown = corrupt(digits, corruption, 5, dataset="svhn", frost_photos=photos)
            closed.append(known.view(-1, batch, 3, 32, 32))
            closed_labels.append(labels.view(-1, batch))
            halves = (known.view(-1, half, 3, 32, 32), unknown.view(-1, half, 3, 32, 32))
            opened.append(torch.cat(halves, dim=1))
            open_labels.append(labels.view(-1, half))
        streams[name, "closed"] = Stream("closed", torch.cat(closed), torch.cat(closed_labels), batch, limit // batch)
        streams[name, "open"] = Stream("open", torch.cat(opened), torch.cat(open_labels), half, limit // half)
    return streams


def make_network(model: nn.Module, alpha: Shares, device: torch.device, window: int = 0) -> Network:
    """A copy of the model under a rule for statistics, which remember so many images; 0 is each batch by itself."""
    model = copy.deepcopy(model).to(device)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    layers = sum(isinstance(module, NORMS) for module in model.modules())
    rule: Statistics = Batch() if alpha == (1.0, 1.0) else PerLayer(*alpha, layers)
    if window:
        rule = WindowedBlend(alpha[0], window)
    network = Network(model, rule, precision="bf16" if device.type == "cuda" else None)
    network.reset_statistics()
    return network


def running_statistics(network: Network) -> list[Tensor]:
    """The running statistics of all layers; empty without a window."""
    return [tensor for hook in network.hooks for tensor in hook.buffers()]


def keep_statistics(network: Network) -> None:
    """Keep what the last pass saw of the stream, in its place."""
    seen = [tensor for hook in network.hooks for tensor in getattr(hook, "seen", None) or ()]
    if seen:
        torch._foreach_copy_(running_statistics(network), seen)
        network.rollback()


def trainable(network: Network, scope: str, layers: float = 1.0) -> list[Tensor]:
    """The parameters that learn: "all", or the "affine" ones of the norms with some of the convolutions.

    Args:
        network: The network.
        scope: Which of them.
        layers: The share of the norms that learn, the last ones, with "affine".
    """
    if scope == "middle":
        convolutions = norm_affine(convolutions=2 / 3).parameters(network.model)
        early = norm_affine(convolutions=1 / 3).parameters(network.model)
        left_out = {name for name, parameter in early.items() if parameter.ndim == 4}
        chosen: list[Tensor] = [parameter for name, parameter in convolutions.items() if name not in left_out]
    else:
        rule = everything() if scope == "all" else norm_affine(convolutions=CONVOLUTIONS.get(scope, 0.0))
        chosen = list(rule.parameters(network.model).values())
    if layers < 1:
        chosen = chosen[-2 * math.ceil(layers * len(chosen) / 2 - 1e-9) :]
    for parameter in chosen:
        parameter.requires_grad_(True)
    return chosen
