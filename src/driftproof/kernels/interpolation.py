"""Statistics that a batch norm layer mixes with those of the batch."""

from typing import NamedTuple

from torch import Tensor

__all__ = ["Interpolation"]


class Interpolation(NamedTuple):
    """Statistics that a layer mixes with those of the batch, all of shape (C,).

    With the mean μ and the biased variance σ² of the batch, the stream statistics become μ_t ← lerp(μ_t, μ, share) and
    σ_t² ← lerp(σ_t², σ², share), or μ and σ² without stream statistics. The layer normalizes with the mean
    μ_s + α (μ_t − μ_s) and the variance α σ_t² + (1 − α) σ_s² + α (1 − α) (μ_t − μ_s)².

    Attributes:
        source_mean: μ_s, of the source data.
        source_var: σ_s².
        stream_mean: μ_t of the stream before this batch, or None.
        stream_var: σ_t², or None.
        alpha: α, with one element or one per channel.
        share: The share of this batch in the stream statistics; not used without them.
    """

    source_mean: Tensor
    source_var: Tensor
    stream_mean: Tensor | None
    stream_var: Tensor | None
    alpha: Tensor
    share: float

    @property
    def batch_share(self) -> float:
        """The share of this batch in the mean that is mixed with the source's."""
        return 1.0 if self.stream_mean is None else self.share
