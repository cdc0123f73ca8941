"""Source data for components that prepare from it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftproof.augment import Augment, check_unit_range
from driftproof.errors import InputError
from driftproof.network import Network

__all__ = ["PrepareContext", "Progress", "SourceBatches", "supervised_loss"]

SourceBatches = Iterable[tuple[Tensor, Tensor]]
Progress = Callable[[str, int], None]

_IGNORED_PIXEL = 255


class PrepareContext:
    """What a component may use in `prepare`.

    Args:
        source: Labeled source batches (images, labels): a DataLoader or a list, since some components iterate over it
            several times.
        network: The network configured as for adaptation.
        trainable: Its trainable parameters, by name.
        seed: Seed of every random choice.
        progress: Called with the stage and the number of images done in it.
    """

    def __init__(
        self,
        source: SourceBatches,
        *,
        network: Network,
        trainable: Mapping[str, nn.Parameter],
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        if iter(source) is source:
            raise InputError(
                "Expected source data that can be iterated more than once, but got an iterator. "
                "Pass a DataLoader or a list of (images, labels)."
            )
        self._source = source
        self._progress = progress
        self.network = network
        self._trainable = trainable
        self.device = next(network.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(seed)

    @cached_property
    def source_network(self) -> Network:
        """A copy of the network that normalizes with the statistics of its training."""
        return self.network.with_source_statistics().requires_grad_(False)

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The trainable parameters of the network."""
        return tuple(self._trainable.values())

    def matching_parameters(self, network: Network) -> tuple[nn.Parameter, ...]:
        """The same parameters in a copy of the network."""
        return tuple(network.model.get_parameter(name) for name in self._trainable)

    def batches(self, stage: str, *, size: int | None, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The source data in batches of exactly `size` (the last may be smaller), whatever the loader's batches are.

        Args:
            stage: What this pass is for, in words; reported as progress.
            size: Images per batch; None leaves the loader's, for components to which it makes no difference.
            limit: Stop after so many images.
        """
        done = 0
        for images, labels in _rebatch(self._source, size):
            room = images.shape[0] if limit is None else min(images.shape[0], limit - done)
            if room <= 0:
                return
            yield _check_finite(images[:room].to(self.device)), labels[:room].to(self.device)
            done += room
            if self._progress is not None:
                self._progress(stage, done)
        if done == 0:
            raise InputError("Expected at least one source batch, but the source data is empty.")

    def augment(self, images: Tensor, augment: Augment) -> Tensor:
        """A random view of source images."""
        check_unit_range(images, augment)
        return augment(images, self.generator)


def supervised_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy with true labels; in segmentation pixels labelled 255 are left out."""
    _check_shape(labels, logits)
    pixels, classes = logits.ndim > 2, logits.shape[1]
    ignored = _IGNORED_PIXEL if pixels else -100
    invalid = labels[((labels < 0) | (labels >= classes)) & (labels != ignored)]
    if len(invalid):  # on a GPU cross_entropy would end the process's use of the device
        allowed = f"0..{classes - 1}" + (f", or {ignored} where a pixel is not to count" if pixels else "")
        raise InputError(
            f"Expected source labels in {allowed}, but got {int(invalid[0])}. "
            "Map them to the classes that the model was trained on."
        )
    return F.cross_entropy(logits, labels, ignore_index=ignored)


def _check_shape(labels: Tensor, logits: Tensor) -> None:
    count, _, *places = logits.shape
    if labels.shape != (count, *places):
        raise InputError(
            f"Expected source labels of the shape of the model's predictions, {(count, *places)}, "
            f"but got {tuple(labels.shape)}."
        )


def _check_finite(images: Tensor) -> Tensor:
    if not images.isfinite().all():
        raise InputError("Expected finite source images, but there is NaN or Inf in some. Leave those out.")
    return images


def _rebatch(source: SourceBatches, size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    if size is None:
        yield from map(_check_item, source)
        return
    pending: list[tuple[Tensor, Tensor]] = []
    count = 0
    for item in source:
        pending.append(_check_item(item))
        count += pending[-1][0].shape[0]
        if count < size:
            continue
        images, labels = _concatenate(pending)
        whole = count - count % size
        yield from zip(torch.split(images[:whole], size), torch.split(labels[:whole], size), strict=True)
        pending, count = [(images[whole:], labels[whole:])], count - whole
    if count:
        yield _concatenate(pending)


def _concatenate(batches: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])


def _check_item(item: object) -> tuple[Tensor, Tensor]:
    if not (isinstance(item, tuple | list) and len(item) == 2 and all(isinstance(side, Tensor) for side in item)):
        raise InputError(f"Expected source data to yield (images, labels) tensors, but got {type(item).__name__}.")
    images, labels = item
    if images.shape[:1] != labels.shape[:1] or torch.is_floating_point(labels):
        raise InputError(
            "Expected one integer label (map) per source image, but got "
            f"images {tuple(images.shape)} and labels {tuple(labels.shape)} of {labels.dtype}."
        )
    return images, labels.long()
