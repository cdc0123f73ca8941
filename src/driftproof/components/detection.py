"""What a detector says of a batch."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

__all__ = ["Detection"]


class Detection(NamedTuple):
    """What a detector says of each sample, (N,) or (N, H, W); nothing of it is part of a graph.

    Attributes:
        known: Whether the sample looks known, as a boolean mask.
        novelty: How unfamiliar the sample is; larger is more novel.
        logits: The detector's own prediction, (N, C) or (N, C, H, W).
        learn: Takes the detector's step, where `detect` has left it to run beside the adapting network; None if not.
    """

    known: Tensor
    novelty: Tensor
    logits: Tensor
    learn: Callable[[], None] | None = None
