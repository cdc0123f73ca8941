"""Selection of the pixels that are not padding."""

from torch import Tensor

from driftproof.components import Step
from driftproof.errors import ModelError
from driftproof.selection.base import Selection

__all__ = ["IgnorePadding"]


class IgnorePadding(Selection):
    """Learn from no pixel of the black bars that a frame was padded with, neither by itself nor as part of ȳ.

    A bar is made of whole columns, or whole rows, of black pixels along an edge of the frame.

    Examples:
        >>> import torch
        >>> frame = torch.ones(1, 3, 2, 5)
        >>> frame[..., :1] = frame[..., 3:] = 0.0
        >>> _content_mask(frame)
        tensor([[[False,  True,  True, False, False],
                 [False,  True,  True, False, False]]])
    """

    def weights(self, step: Step) -> Tensor:
        """One for every pixel of the picture itself."""
        inside = _content_mask(step.images)
        if inside.shape != step.weights.shape:
            raise ModelError(
                f"Expected a model with a prediction for every pixel, {tuple(inside.shape)}, for `IgnorePadding`, "
                f"but its predictions are {tuple(step.weights.shape)}."
            )
        return inside.to(step.weights.dtype)

    def valid_mask(self, step: Step) -> Tensor:
        """The pixels of the picture itself."""
        return _content_mask(step.images)


def _content_mask(images: Tensor) -> Tensor:
    black = (images == 0).all(dim=1)
    columns, rows = _connected_to_edge(black.all(dim=1)), _connected_to_edge(black.all(dim=2))
    return ~(columns.unsqueeze(1) | rows.unsqueeze(2))


def _connected_to_edge(dark: Tensor) -> Tensor:
    """The dark ones from which there are only dark ones up to one of the ends."""
    before = dark.byte().cummin(dim=1).values
    after = dark.flip(1).byte().cummin(dim=1).values.flip(1)
    return (before | after).bool()
