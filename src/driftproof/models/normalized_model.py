"""Networks that normalize their own input."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from driftproof.errors import ConfigurationError

__all__ = ["ChannelValues", "NormalizedInput", "NormalizedModel"]

ChannelValues = float | Sequence[float]
"""One value for all channels of an image, or one for each of the three."""


class _Normalization(nn.Module):
    """Module with the mean and standard deviation of an input normalization, as non-persistent buffers."""

    mean: Tensor
    std: Tensor

    def __init__(self, *, mean: ChannelValues, std: ChannelValues) -> None:
        super().__init__()
        if any(value <= 0 for value in ([std] if isinstance(std, int | float) else std)):
            raise ConfigurationError(f"Expected `std` to be above 0, but got {std}.")
        self.register_buffer("mean", _to_buffer("mean", mean), persistent=False)
        self.register_buffer("std", _to_buffer("std", std), persistent=False)

    def normalize(self, images: Tensor) -> Tensor:
        """Return the normalized images."""
        return (images - self.mean) / self.std


class NormalizedModel(_Normalization):
    """Base class of networks that take images in [0, 1] and normalize them themselves.

    So every method and augmentation sees the same images.

    Args:
        classes: Number of classes.
        mean: Mean of the input normalization.
        std: Standard deviation of the input normalization.

    Examples:
        >>> network = NormalizedModel(10, mean=0.5, std=(0.25, 0.5, 1.0))
        >>> network.normalize(torch.ones(1, 3, 1, 1)).flatten()
        tensor([2.0000, 1.0000, 0.5000])
    """

    def __init__(self, classes: int, *, mean: ChannelValues, std: ChannelValues) -> None:
        if classes < 1:
            raise ConfigurationError(f"Expected `classes` to be at least 1, but got {classes}.")
        super().__init__(mean=mean, std=std)
        self.classes = classes

    def _initialize_convolutions(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class NormalizedInput(_Normalization):
    """Wraps a model that takes normalized images, so that it takes images in [0, 1].

    Args:
        model: The model.
        mean: Mean of the input normalization.
        std: Standard deviation of the input normalization.

    Examples:
        >>> wrapped = NormalizedInput(nn.Flatten(), mean=0.5, std=0.25)
        >>> wrapped(torch.ones(1, 3, 1, 1))
        tensor([[2., 2., 2.]])
    """

    def __init__(self, model: nn.Module, *, mean: ChannelValues, std: ChannelValues) -> None:
        super().__init__(mean=mean, std=std)
        self.model = model

    def forward(self, images: Tensor) -> Any:  # noqa: ANN401  # whatever the model returns
        """Return the model's output for images in [0, 1]."""
        return self.model(self.normalize(images))


def _to_buffer(name: str, values: ChannelValues) -> Tensor:
    if isinstance(values, int | float):
        return torch.tensor(float(values))
    if len(values) != 3:
        raise ConfigurationError(f"Expected `{name}` to be one number or three, but got {len(values)}.")
    return torch.tensor([float(value) for value in values]).view(3, 1, 1)
