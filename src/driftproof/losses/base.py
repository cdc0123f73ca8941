"""The base class of losses."""

from torch import Tensor

from driftproof.components import Component, Compose, Step

__all__ = ["Loss", "Sum"]


class Loss(Component):
    """A loss per sample; the adapter weights and averages it.

    Examples:
        The smallest new loss.

        >>> class Confidence(Loss):
        ...     def per_sample(self, step):
        ...         return -step.log_probabilities.amax(dim=1)
    """

    def per_sample(self, step: Step) -> Tensor:
        """The loss of each sample, (N,) or (N, H, W)."""
        raise NotImplementedError

    def __add__(self, other: "Loss") -> "Sum":
        return Sum(self, other)


class Sum(Compose, Loss):
    """Several losses: they add up, sample by sample."""

    def __init__(self, *losses: Loss) -> None:
        inner = (one.components if isinstance(one, Sum) else (one,) for one in losses)
        super().__init__(*(component for components in inner for component in components))

    def per_sample(self, step: Step) -> Tensor:
        """The sum of the losses of each sample."""
        first, *others = self.components
        total: Tensor = first.per_sample(step)
        for one in others:
            total = total + one.per_sample(step)
        return total

    def __repr__(self) -> str:
        return " + ".join(repr(one) for one in self.components)
