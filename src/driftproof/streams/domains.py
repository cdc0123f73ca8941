"""Domains: image sets that share an appearance."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from driftproof.errors import ConfigurationError, InputError
from driftproof.streams.batch import Images, read_pixels

__all__ = ["Domain", "common_size"]


@dataclass(frozen=True, eq=False)
class Domain:
    """Images that share an appearance, such as one corruption at one severity.

    Attributes:
        name: For example `fog`, or `cifar10-c/fog/5`: the set's name, then its appearance.
        images: The set.
    """

    name: str
    images: Images

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
    def appearance(self) -> str:
        """What the images have in common: `fog/5` of `cifar10-c/fog/5`, `fog` of `fog`."""
        return self.name.partition("/")[2] or self.name


def common_size(domains: Sequence[Domain]) -> tuple[int, int]:
    """Height and width of the images, the same in every domain."""
    if not domains:
        raise ConfigurationError("Expected at least one domain, but got none.")
    sizes = [_size(domain.images) for domain in domains]
    for domain, size in zip(domains, sizes, strict=True):
        if size != sizes[0]:
            raise InputError(
                f"Expected images of one size in a stream, but got {sizes[0]} in domain {domains[0].name} and {size} "
                f"in domain {domain.name}. Read them at one size."
            )
    return sizes[0]


def _size(images: Images) -> tuple[int, int]:
    height, width = read_pixels(images, torch.zeros(1, dtype=torch.long)).shape[2:]
    return height, width
