"""Resets: at fixed times, or when an indicator asks for one."""

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from driftproof.after.base import After, Resettable, check_share
from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.network import Network
from driftproof.predictions import entropy

__all__ = ["Indicator", "ResetEvery", "ResetWhen", "selected_entropy"]


class ResetEvery(After):
    """Return to the source after every n-th step (RDumb).

    Args:
        steps: n.
    """

    resets = True
    count: Tensor

    def __init__(self, steps: int = 1000) -> None:
        super().__init__()
        if steps < 1:
            raise ConfigurationError(f"Expected `steps` to be at least 1, but got {steps}.")
        self.steps = steps
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Count from zero."""
        self.count = torch.zeros_like(self.count)

    def after_step(self, step: Step, state: Resettable) -> None:
        """Count the step and reset when it is due."""
        self.count = (self.count + 1) % self.steps
        state.reset_where(self.count == 0)


class ResetWhen(After):
    """Return to the source when the moving average of an indicator falls below a threshold (SAR).

    Args:
        indicator: Maps the step to a 0-d tensor, such as `selected_entropy` does; NaN leaves the average as it is.
        threshold: The lowest average to accept; None is 0.029 ln C, SAR's 0.2 for the 1,000 classes of ImageNet.
        momentum: Share of itself the average keeps at each step.
    """

    resets = True
    average: Tensor

    def __init__(
        self, indicator: "Indicator | None" = None, threshold: float | None = None, momentum: float = 0.9
    ) -> None:
        super().__init__()
        check_share("momentum", momentum)
        self.indicator = indicator or selected_entropy
        self.threshold = threshold
        self.momentum = momentum
        self.register_buffer("average", torch.full((), math.nan))

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget the average."""
        self.average = torch.full_like(self.average, math.nan)

    def after_step(self, step: Step, state: Resettable) -> None:
        """Update the average and reset when it is too low; it then starts anew."""
        now = self.indicator(step).detach().to(self.average.dtype)
        average = torch.where(self.average.isnan(), now, torch.lerp(now, self.average, self.momentum))
        average = torch.where(now.isnan(), self.average, average)
        threshold = 0.029 * math.log(step.classes) if self.threshold is None else self.threshold
        fell = average < threshold
        state.reset_where(fell)
        self.average = torch.where(fell, torch.full_like(average, math.nan), average)


class Indicator(Protocol):
    """A 0-d tensor computed from a step, small when adaptation goes wrong."""

    def __call__(self, step: Step) -> Tensor:
        """The indicator of the batch."""


def selected_entropy(step: Step) -> Tensor:
    """The mean entropy of the selected samples: it falls towards zero when a network collapses; NaN of none."""
    selected = (step.weights > 0).to(step.weights.dtype)
    values = entropy(step.log_probabilities.detach(), step.probabilities.detach())
    total, count = step.distributed.sum((values * selected).sum(), selected.sum())
    return total / count
