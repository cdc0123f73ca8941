"""Hold what mattered in earlier stretches of the stream (ASR)."""

import torch
from torch import Tensor, nn

from driftproof.components import Step, flatten
from driftproof.errors import ConfigurationError
from driftproof.network import Network
from driftproof.regularizers.base import Regularizer

__all__ = ["MovingAnchor"]


class MovingAnchor(Regularizer):
    """weight·φ²·Σ_j F̄_j (θ_j − θ̄_j)², with importance F̄ and anchor θ̄ from the stretches between resets.

    Between two resets the squared gradients of the other terms and the parameters before each step are averaged. A
    reset folds these averages into F̄ and θ̄; before the first there is no penalty. φ is the share of samples whose
    class differs from the source model's. Use it with an `after` that resets.

    Open choice taken: φ is that of the batch itself; the authors' code takes the previous batch's.

    Args:
        weight: λ₀.
        rate: Share of a stretch in F̄ and θ̄; the first one counts whole.

    Reference:
        Lim et al., "When and Where to Reset Matters for Long-Term Test-Time Adaptation", ICLR 2026.
    """

    importance: Tensor | None
    anchor: Tensor | None
    squares: Tensor | None
    total: Tensor | None
    count: Tensor | None
    folds: Tensor | None

    def __init__(self, weight: float = 5.0, rate: float = 0.1) -> None:
        super().__init__()
        if weight < 0 or not 0 <= rate <= 1:
            raise ConfigurationError(
                f"Expected `weight` of at least 0 and `rate` in 0..1, but got {weight} and {rate}."
            )
        self.weight = weight
        self.rate = rate
        for name in ("importance", "anchor", "squares", "total", "count", "folds"):
            self.register_buffer(name, None)
        self._params_before: Tensor | None = None
        self._own_gradient: Tensor | None = None

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget all stretches."""
        self.anchor = flatten(parameters).detach()
        self.importance, self.squares, self.total = (torch.zeros_like(self.anchor) for _ in range(3))
        self.count, self.folds = self.anchor.new_zeros(()), self.anchor.new_zeros(())

    def penalty(self, step: Step) -> Tensor:
        """The weighted squared distance from the anchor."""
        assert self.importance is not None and self.anchor is not None  # reset_state() comes first
        now = flatten(step.parameters)
        pull = self.weight * step.flip_rate.to(now.dtype) ** 2 * self.importance * (now - self.anchor)
        self._params_before, self._own_gradient = now.detach(), 2 * pull.detach()
        return (pull * (now - self.anchor)).sum()

    def on_step(self, step: Step) -> None:
        """Add the step to the current stretch."""
        assert self.squares is not None and self.total is not None and self.count is not None
        assert self._params_before is not None and self._own_gradient is not None  # penalty() comes first
        self.squares = self.squares + (flatten(step.gradients) - self._own_gradient) ** 2
        self.total, self.count = self.total + self._params_before, self.count + 1

    def on_reset(self, step: Step, condition: Tensor) -> None:
        """Fold the stretch that ends into importance and anchor."""
        assert self.importance is not None and self.anchor is not None and self.squares is not None
        assert self.total is not None and self.count is not None and self.folds is not None
        rate = torch.where(self.folds == 0, 1.0, self.rate).to(self.anchor.dtype) * condition
        self.importance = torch.lerp(self.importance, self.squares / self.count, rate)
        self.anchor = torch.lerp(self.anchor, self.total / self.count, rate)
        self.squares, self.total, self.count = (
            sums.masked_fill(condition, 0.0) for sums in (self.squares, self.total, self.count)
        )
        self.folds = self.folds + condition
