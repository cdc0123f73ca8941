"""Domains: image sets that share an appearance."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError, InputError
from driftproof.streams.batch import Images, Part, read_pixels

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

    varied = False
    """Whether other domains of the stream may have images of another size."""

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

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        height, width = read_pixels(self.images, torch.zeros(1, dtype=torch.long)).shape[2:]
        return height, width

    def part(self, indices: Tensor) -> Part:
        """Some of the images."""
        return Part(self.images, indices)


def common_size(domains: Sequence[Domain]) -> tuple[int, int]:
    """Height and width of the images, the same in every domain unless they may vary."""
    if not domains:
        raise ConfigurationError("Expected at least one domain, but got none.")
    first = domains[0].size
    for domain in domains:
        if not domain.varied and domain.size != first:
            raise InputError(
                f"Expected images of one size in a stream, but got {first} in domain {domains[0].name} and "
                f"{domain.size} in domain {domain.name}. Read them at one size."
            )
    return first
