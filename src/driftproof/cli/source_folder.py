"""Source images, for methods that learn from them before the first batch."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from driftproof.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from driftproof.adapter import Adapter
    from driftproof.data import ImageSet

__all__ = ["SourceFolder", "check_class_count"]


class SourceFolder:
    """Labelled images of a folder in batches, mixed, and in the same order on every pass.

    Args:
        root: A folder with one sub-folder per class, whose names in sorted order are the model's classes.
        size: Side of the square to scale to; None for as stored.
        batch_size: Images per batch.
        seed: Of the order.
    """

    def __init__(self, root: Path, *, size: int | None = None, batch_size: int = 200, seed: int = 0) -> None:
        from driftproof.data import folder

        self.images: ImageSet = folder(root, size=None if size is None else (size, size))
        if not self.images.classes:
            raise InputError(f"Expected {root} to hold one sub-folder per class, but it holds loose images.")
        self._batch_size = batch_size
        self._seed = seed

    def __iter__(self) -> "Iterator[tuple[Tensor, Tensor]]":
        import torch

        order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(self._seed))
        for places in torch.split(order, self._batch_size):
            yield self.images.batch(places).float().div_(255), self.images.labels[places]


def check_class_count(adapter: "Adapter", source: SourceFolder) -> None:
    """Refuse source images whose classes cannot be the model's, before a part stumbles over their labels."""
    import torch

    with torch.no_grad():
        first = source.images.batch([0]).to(adapter.device).float() / 255
        outputs = adapter.network.with_source_statistics()(first).shape[1]
    if len(source.images.classes) != outputs:
        raise InputError(
            f"Expected one sub-folder in {source.images.name} for each of the model's {outputs} classes, "
            f"but got {len(source.images.classes)}."
        )
