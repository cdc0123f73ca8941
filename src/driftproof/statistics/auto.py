"""Statistics that choose their own share of the batch."""

import math

import torch
from torch import Tensor, nn

from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.network import Network
from driftproof.predictions import mean_prediction, upcast
from driftproof.statistics.blend import InterpolatedStatistics

__all__ = ["Auto"]

_START, _RISE = 0.1, 0.1
_MEMORY = 2000
_PIXELS = 32 * 32


class Auto(InterpolatedStatistics):
    """A mixture of source, running and batch statistics for streams that nobody has looked at.

    Batch statistics assume many images and all classes in every batch. A batch of one or a folder read class by class
    breaks that assumption, and half of the predictions with it. Two rules guard against this:

    - Batches of fewer than `window` images enter running statistics that remember about `window` images. In a layer
      with more than 32 × 32 positions an image counts for more.
    - The share α of these statistics starts at 0.1 and rises by 0.1 with every balanced batch, up to `share`. Balanced
      means that the entropy of the mean prediction is close to that of the stream so far, which starts out uniform.
      The further it falls below, the further α falls, to zero: the statistics of training. Predictions are those of the
      frozen network where the method runs it. A mixture mixes classes up and hides that they were ordered, so the
      threshold is higher for a larger α: 0.985 − 0.315 exp(−α / 0.12) of the expected entropy.

    The weight of the mean-entropy term follows α, and falls with the number of images below `window`. Label maps hold
    many samples each, and the classes in view change from scene to scene, so α is always `share` there.

    Open choices taken: share, window and threshold come from two networks (WRN-40-2 with AugMix and a small ResNet) on
    clean CIFAR-10 images and the four held-out corruptions, shuffled and sorted by class.

    Args:
        share: The largest α, in [0, 1].
        window: How many images make good statistics.

    Attributes:
        alpha: α, as a tensor of one element.
    """

    alpha: Tensor
    recent: Tensor | None
    overall: Tensor | None

    def __init__(self, share: float = 0.5, window: int = 64) -> None:
        super().__init__(momentum=1.0, start="source")
        if not 0.0 <= share <= 1.0:
            raise ConfigurationError(f"Expected `share` to be in 0..1, but got {share}.")
        if window < 1:
            raise ConfigurationError(f"Expected `window` to be at least 1, but got {window}.")
        self.share = share
        self.window = window
        self.register_buffer("alpha", torch.full((1,), min(_START, share)))
        self.register_buffer("recent", None)
        self.register_buffer("overall", None)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Start with a small share and a uniform stream."""
        self.alpha = torch.full_like(self.alpha, min(_START, self.share))
        self.recent = self.overall = None

    def alpha_for(self, index: int) -> Tensor:
        """The same for all layers."""
        return self.alpha

    def momentum_for(self, x: Tensor, ranks: int) -> float:
        """The number of images over `window`, at most 1."""
        positions = math.prod(x.shape[2:])
        return min(1.0, x.shape[0] * ranks * max(1.0, positions / _PIXELS) / self.window)

    def trust(self, step: Step) -> Tensor | float:
        """α relative to `share`, and less for fewer than `window` images."""
        images = step.images.shape[0] * step.distributed.size
        size = min(1.0, (images - 1) / max(1, self.window - 1))
        return size * (self.alpha[0] / self.share if self.share else 0.0)

    def on_batch(self, step: Step) -> None:
        """Compare the batch's mean prediction with the stream's, and choose the next α."""
        logits = upcast(step.source_logits if step.used_source else step.logits.detach())
        if logits.ndim > 2:
            self.alpha = torch.full_like(self.alpha, self.share)
            return
        count, classes = logits.shape[0] * step.distributed.size, logits.shape[1]
        now = mean_prediction(logits.softmax(dim=1), step.distributed)
        overall = torch.full_like(now, 1.0 / classes) if self.overall is None else self.overall
        self.overall = torch.lerp(overall, now, count / (count + _MEMORY))
        recent = now if self.recent is None else self.recent
        self.recent = torch.lerp(recent, now, min(1.0, count / self.window))
        # A few samples of many classes have less entropy than the classes have.
        usual = _entropy(self.overall)
        expected = usual - torch.log1p((usual.exp() - 1) / (2 * max(count, self.window)))
        relative = _entropy(self.recent) / expected.clamp(min=1e-3)
        threshold = 0.985 - 0.315 * torch.exp(-self.alpha / 0.12)
        step_size = _RISE * min(1.0, count / self.window)
        change = step_size * ((relative - threshold) / 0.01).clamp(-5.0, 1.0)
        self.alpha = (self.alpha + change).clamp(0.0, self.share).to(self.alpha.dtype)


def _entropy(p: Tensor) -> Tensor:
    return -torch.xlogy(p, p).sum()
