"""Classifiers that normalize their own input."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from driftproof.errors import ConfigurationError

__all__ = ["Channels", "Normalized"]

Channels = float | Sequence[float]
"""One number for all channels of an image, or one for each of its three."""


class Normalized(nn.Module):
    """An image classifier that takes values in [0, 1] and normalizes them itself.

    So every method and augmentation sees the same images. The mean and the standard deviation move with the module, but
    are not among its weights.

    Args:
        classes: Number of classes.
        mean: Subtracted from the images.
        std: Divides the images then.

    Examples:
        >>> network = Normalized(10, mean=0.5, std=(0.25, 0.5, 1.0))
        >>> network.normalized(torch.ones(1, 3, 1, 1)).flatten()
        tensor([2.0000, 1.0000, 0.5000])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, classes: int, *, mean: Channels, std: Channels) -> None:
        super().__init__()
        if classes < 1:
            raise ConfigurationError(f"Expected `classes` to be at least 1, but got {classes}.")
        if any(value <= 0 for value in ([std] if isinstance(std, int | float) else std)):
            raise ConfigurationError(f"Expected `std` to be above 0, but got {std}.")
        self.classes = classes
        self.register_buffer("mean", _for_images("mean", mean), persistent=False)
        self.register_buffer("std", _for_images("std", std), persistent=False)

    def normalized(self, images: Tensor) -> Tensor:
        """The images as the first layer wants them."""
        return (images - self.mean) / self.std

    def _initialize_convolutions(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _for_images(name: str, values: Channels) -> Tensor:
    if isinstance(values, int | float):
        return torch.tensor(float(values))
    if len(values) != 3:
        raise ConfigurationError(f"Expected `{name}` to be one number or three, but got {len(values)}.")
    return torch.tensor([float(value) for value in values]).view(3, 1, 1)
