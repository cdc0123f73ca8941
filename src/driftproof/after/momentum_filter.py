"""A filtered average of the parameters that they are pulled to (CMF)."""

import torch
from torch import Tensor, nn

from driftproof.after.base import After, Resettable, check_share
from driftproof.components import Step, flatten
from driftproof.network import Network

__all__ = ["MomentumFilter"]


class MomentumFilter(After):
    """Pull the parameters to a hidden model that follows them as a Kalman filter does, and is pulled to the source.

    Each step: θ_h ← θ_h + pull·(θ_o − θ_h); v ← (1 − pull)² v + q; β = r/(v + r) with r = 1 − q, at least 0.89;
    v ← β v; θ_h ← β θ_h + (1 − β) θ; θ ← θ + rate·(θ_h − θ). After some hundred steps β is constant. A reset clears
    θ_h and v, which the authors' code keeps.

    Args:
        rate: Share of the way to the hidden model, in [0, 1].
        pull: Share of the hidden model's way back to the source, in [0, 1].
        noise: q, how much the hidden model is expected to move; None is 0.005 for 38,400 trainable parameters, in
            proportion to their number and at most 0.5. At 0 it stays at the source.

    Reference:
        Lee and Chang, "Continual Momentum Filtering on Parameter Space for Online Test-time Adaptation", ICLR 2024.
    """

    hidden: Tensor | None
    variance: Tensor | None

    def __init__(self, rate: float = 0.01, pull: float = 0.01, noise: float | None = None) -> None:
        super().__init__()
        check_share("rate", rate)
        check_share("pull", pull)
        check_share("noise", 0.0 if noise is None else noise)
        self.rate = rate
        self.pull = pull
        self.noise = noise
        self.register_buffer("hidden", None)
        self.register_buffer("variance", None)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Return the hidden model to the source."""
        self.hidden = flatten(parameters).detach()
        self.variance = self.hidden.new_zeros(())

    def on_reset(self, step: Step, condition: Tensor) -> None:
        """Return the hidden model to the source together with the weights."""
        assert self.hidden is not None and self.variance is not None  # reset_state() comes first
        self.hidden = torch.where(condition, flatten(step.source_parameters), self.hidden)
        self.variance = self.variance.masked_fill(condition, 0.0)

    def after_step(self, step: Step, state: Resettable) -> None:
        """Move the hidden model towards the parameters, and the parameters towards it."""
        assert self.hidden is not None and self.variance is not None  # reset_state() comes first
        sizes = [parameter.numel() for parameter in step.parameters]
        noise = min(0.5, 0.005 * sum(sizes) / 38_400) if self.noise is None else self.noise
        variance = (1 - self.pull) ** 2 * self.variance + noise
        gain = ((1 - noise) / (variance + 1 - noise)).clamp(min=0.89)
        gain = torch.where(gain >= 0.9999, torch.ones_like(gain), gain)
        hidden = torch.lerp(self.hidden, flatten(step.source_parameters), self.pull)
        self.hidden = torch.lerp(hidden, flatten(step.parameters), 1 - gain)
        self.variance = gain * variance
        pieces = torch.split(self.hidden, sizes)
        targets = [piece.view_as(parameter) for piece, parameter in zip(pieces, step.parameters, strict=True)]
        torch._foreach_lerp_(list(step.parameters), targets, self.rate)
