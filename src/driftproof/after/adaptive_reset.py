"""A partial reset when predictions concentrate on few classes (ASR)."""

import math

import torch
from torch import Tensor, nn

from driftproof.after.base import After, Resettable, check_share
from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.network import Network
from driftproof.predictions import entropy, log_probabilities, mean_prediction

__all__ = ["AdaptiveReset"]


class AdaptiveReset(After):
    """Return the later layers to the source when the mean logits concentrate on few classes.

    e = H(softmax(mean logits)) is compared with its own average ē, which starts at ln(start·C). Where e < ē, the share
    r = min(1, share + sharpness·(ē − e)) of the trainable tensors returns, the last in the order of the network; the
    optimizer is cleared and ē starts anew. Otherwise ē ← m ē + (1 − m) e with m = 1 − momentum·(1 − φ), φ the share of
    samples whose class differs from the source model's. Batches should be balanced: few classes lower e too.

    Args:
        start: α₀, the share of the classes that ē starts from.
        momentum: m₀, the share of a batch in ē if the source model agrees with all of it.
        share: r₀, the smallest share of tensors that return.
        sharpness: λ_r, how much more of them return the further e falls.

    Reference:
        Lim et al., "When and Where to Reset Matters for Long-Term Test-Time Adaptation", ICLR 2026.
    """

    resets = True
    average: Tensor

    def __init__(
        self, *, start: float = 0.5, momentum: float = 0.15, share: float = 0.5, sharpness: float = 20.0
    ) -> None:
        super().__init__()
        check_share("momentum", momentum)
        check_share("share", share)
        if not start > 0 or sharpness < 0:
            raise ConfigurationError(
                f"Expected `start` above 0 and `sharpness` of at least 0, but got {start} and {sharpness}."
            )
        self.start = start
        self.momentum = momentum
        self.share = share
        self.sharpness = sharpness
        self.register_buffer("average", torch.full((), math.nan))

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Start the average anew."""
        self.average = torch.full_like(self.average, math.nan)

    def after_step(self, step: Step, state: Resettable) -> None:
        """Compare the batch with the average, and reset or update it."""
        mean = mean_prediction(step.logits.detach(), step.distributed)
        now = entropy(log_probabilities(mean.unsqueeze(0))).squeeze(0).to(self.average.dtype)
        start = math.log(self.start * step.classes)
        average = self.average.nan_to_num(nan=start)
        fell = now < average
        state.reset_where(fell, (self.share + self.sharpness * (average - now)).clamp(self.share, 1.0))
        weight = self.momentum * (1 - step.flip_rate.to(average.dtype))
        self.average = torch.lerp(average, now, weight).masked_fill(fell, start)
