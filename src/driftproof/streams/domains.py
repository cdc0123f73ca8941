"""Domains: image sets under one kind of distribution shift."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError, InputError
from driftproof.streams.batch import BatchSlice, Images, read_pixels

__all__ = ["Domain", "common_size"]


@dataclass(frozen=True, eq=False)
class Domain:
    """Images under one shift, such as one corruption at one severity.

    Attributes:
        name: For example `fog`, or `cifar10-c/fog/5`: name of the set, then name of the shift.
        images: The set.
    """

    name: str
    images: Images

    mixed_sizes = False
    """Whether domains of one stream may have images of different sizes."""

    def __post_init__(self) -> None:
        count, labels = len(self.images), self.images.labels
        if count == 0:
            raise InputError(
                f"Expected domain {self.name} to hold at least one image, but {self.images.name} is empty."
            )
        if labels.shape != (count,) or labels.is_floating_point():
            raise InputError(
                f"Expected one integer label for each of the {count} images of domain {self.name}, "
                f"but got {labels.dtype} of shape {tuple(labels.shape)}."
            )

    @property
    def shift_name(self) -> str:
        """Name of the shift: `fog/5` for `cifar10-c/fog/5`, `fog` for `fog`."""
        return self.name.partition("/")[2] or self.name

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        height, width = read_pixels(self.images, torch.zeros(1, dtype=torch.long)).shape[2:]
        return height, width

    def slice(self, indices: Tensor) -> BatchSlice:
        """Return the images at these indices as part of a batch."""
        return BatchSlice(self.images, indices)


def common_size(domains: Sequence[Domain]) -> tuple[int, int]:
    """Return height and width of the images, and check that the domains agree unless they may differ."""
    if not domains:
        raise ConfigurationError("Expected at least one domain, but got none.")
    first = domains[0].size
    for domain in domains:
        if not domain.mixed_sizes and domain.size != first:
            raise InputError(
                f"Expected images of one size in a stream, but got {first} in domain {domains[0].name} and "
                f"{domain.size} in domain {domain.name}. Resize them to one size."
            )
    return first
