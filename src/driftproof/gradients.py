"""How the gradient is computed from the objective: plain, sharpness-aware, clipped."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from driftproof.components import Component
from driftproof.errors import ConfigurationError

__all__ = ["Clipped", "Gradient", "Plain", "SharpnessAware"]

Evaluate = Callable[[], tuple[Tensor, ...]]


class Gradient(Component):
    """Computes the gradient that the optimizer gets.

    Examples:
        The smallest new gradient: its sign.

        >>> class Sign(Gradient):
        ...     def compute(self, evaluate, parameters):
        ...         return tuple(gradient.sign() for gradient in evaluate())
    """

    def compute(self, evaluate: Evaluate, parameters: tuple[nn.Parameter, ...]) -> tuple[Tensor, ...]:
        """The gradient for each parameter.

        Args:
            evaluate: Runs forward and backward at the parameters' current values and returns their gradients. The first
                call uses the forward pass of the prediction; each further call runs the network again.
            parameters: The trainable parameters; write to them in place, and restore them.
        """
        raise NotImplementedError


class Plain(Gradient):
    """The gradient of the objective."""

    def compute(self, evaluate: Evaluate, parameters: tuple[nn.Parameter, ...]) -> tuple[Tensor, ...]:
        """One forward and backward pass."""
        return evaluate()


class SharpnessAware(Gradient):
    """The gradient at θ + ρ g/‖g‖, g the plain gradient (SAM): prefers flat minima.

    The selection runs again at the perturbed parameters, and a sample must be selected both times, as in SAR.

    Args:
        rho: ρ, the length of the perturbation; 0 is `Plain`.

    Reference:
        Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization", ICLR 2021.
    """

    def __init__(self, rho: float = 0.05) -> None:
        super().__init__()
        if not rho >= 0:
            raise ConfigurationError(f"Expected `rho` to be at least 0, but got {rho}.")
        self.rho = rho

    def compute(self, evaluate: Evaluate, parameters: tuple[nn.Parameter, ...]) -> tuple[Tensor, ...]:
        """Two forward and backward passes; the second one's gradient."""
        first = evaluate()
        if self.rho == 0:
            return first
        with torch.no_grad():
            start = [parameter.detach().clone() for parameter in parameters]
            scale = self.rho / (_global_norm(first) + 1e-12)
            torch._foreach_add_(list(parameters), torch._foreach_mul(list(first), scale))
        try:
            return evaluate()
        finally:
            with torch.no_grad():
                torch._foreach_copy_(list(parameters), start)


class Clipped(Gradient):
    """Scales a gradient down to a largest norm.

    Args:
        max_norm: The largest norm over all parameters.
        inner: The gradient to clip; None is `Plain`.
    """

    def __init__(self, max_norm: float, inner: Gradient | None = None) -> None:
        super().__init__()
        if not max_norm > 0:
            raise ConfigurationError(f"Expected `max_norm` to be positive, but got {max_norm}.")
        self.max_norm = max_norm
        self.inner = inner or Plain()

    def compute(self, evaluate: Evaluate, parameters: tuple[nn.Parameter, ...]) -> tuple[Tensor, ...]:
        """The inner gradient, clipped."""
        gradients = self.inner.compute(evaluate, parameters)
        scale = (self.max_norm / (_global_norm(gradients) + 1e-6)).clamp(max=1.0)
        return tuple(torch._foreach_mul(list(gradients), scale))


def _global_norm(tensors: tuple[Tensor, ...]) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors))))
    return norm
