"""The base class of memories."""

from torch import Tensor

from driftproof.augment import Augment
from driftproof.components import Component, Step

__all__ = ["Memory", "expand_to_samples"]


class Memory(Component):
    """Holds the images that the step learns from, in place of the batch.

    Its images form a batch of fixed size, so every step has the same shapes. A bad batch is not remembered: what
    `update` changed is undone with the rest of the step.

    Examples:
        The smallest new memory: the batch itself, which is the same as none.

        >>> class ThisBatch(Memory):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("batch", None)
        ...     def update(self, step):
        ...         self.batch = step.images
        ...     def images(self):
        ...         return self.batch

    Attributes:
        augment: The random view that the adapting network learns on; `step.images` are the images themselves, which a
            teacher can see. None is no view.
        is_copied: Whether ranks that share a batch hold the same images; else each holds some of its own rows.
    """

    augment: Augment | None = None
    is_copied = False

    def update(self, step: Step) -> None:
        """Take in a batch: replace buffers, as in `Component`."""
        raise NotImplementedError

    def images(self) -> Tensor:
        """The images to learn from, always of the same shape."""
        raise NotImplementedError

    def mask(self) -> Tensor | None:
        """Which of the images are remembered ones, boolean; the others fill up the batch. None is all of them."""
        return None

    def weights(self, step: Step) -> Tensor | None:
        """A weight ≥ 0 for each remembered sample, multiplied with the selection's; None is one for all.

        By default one for the images of `mask`.
        """
        mask = self.mask()
        return None if mask is None else expand_to_samples(mask, step)


def expand_to_samples(values: Tensor, step: Step) -> Tensor:
    """One number per image as one per sample of `step.weights`: pixels, where labels are maps."""
    shape = (len(values), *([1] * (step.weights.ndim - 1)))
    return values.to(step.weights.dtype).view(shape).expand_as(step.weights)
