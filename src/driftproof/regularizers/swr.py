"""Hold shift-agnostic weights, let shift-sensitive ones move (SWR)."""

from typing import Literal

import torch
from torch import Tensor, nn

from driftproof.augment import Augment, photometric
from driftproof.components import PrepareContext, Step, flatten, supervised_loss
from driftproof.errors import ConfigurationError
from driftproof.network import Network
from driftproof.regularizers.base import Regularizer

__all__ = ["ShiftAgnosticPenalty"]


class ShiftAgnosticPenalty(Regularizer):
    """λ_r Σ_l w_l ‖θ_l − θ*_l‖², one weight per parameter tensor.

    `prepare` compares, for source batches and their augmented copies, the gradients of each tensor: s_l is their mean
    cosine and w = ν(s)² with ν the min–max normalization over tensors. w near 1 means the gradients agree, so the
    tensor is shift-agnostic and held; near 0 it is free. A tensor that no gradient reaches, as in an auxiliary head,
    has no cosine and does not count in ν.

    Open choices taken: the square; mini-batches of 32 over 2,000 images; photometric augmentation; θ* at "previous"
    is the parameters before the previous update, so the first step is free.

    Args:
        weight: λ_r.
        anchor: θ*: "previous" damps successive moves; "source" pulls to the start (the paper's choice for ImageNet-C).
        samples: Source images to use.
        batch_size: Images per mini-batch.
        augment: The change of appearance to compare under.

    Reference:
        Choi et al., "Improving Test-Time Adaptation via Shift-agnostic Weight Regularization and Nearest Source
        Prototypes", ECCV 2022.
    """

    tensor_weights: Tensor | None
    anchor_params: Tensor | None

    def __init__(
        self,
        weight: float = 250.0,
        anchor: Literal["previous", "source"] = "previous",
        *,
        samples: int = 2000,
        batch_size: int = 32,
        augment: Augment = photometric,
    ) -> None:
        super().__init__()
        if weight < 0 or samples < 1 or batch_size < 1:
            raise ConfigurationError(
                "Expected `weight` of at least 0, `samples` and `batch_size` of at least 1, "
                f"but got {weight}, {samples} and {batch_size}."
            )
        if anchor not in ("previous", "source"):
            raise ConfigurationError(f'Expected `anchor` to be "previous" or "source", but got {anchor!r}.')
        self.weight = weight
        self.anchor = anchor
        self.samples = samples
        self.batch_size = batch_size
        self.augment = augment
        self.register_buffer("tensor_weights", None)
        self.register_buffer("anchor_params", None)
        self._params_before: Tensor | None = None

    @property
    def prepared(self) -> bool:
        """Whether the penalty of each tensor is known."""
        return self.tensor_weights is not None

    def prepare(self, context: PrepareContext) -> None:
        """Measure which tensors' gradients survive a change of appearance."""
        network = context.source_network
        parameters = context.matching_parameters(network)
        total, batches = torch.zeros(len(parameters), device=context.device), 0
        reached = torch.zeros_like(total, dtype=torch.bool)
        for parameter in parameters:
            parameter.requires_grad_(True)
        for images, labels in context.batches("SWR weights", size=self.batch_size, limit=self.samples):
            clean, shifted = (
                torch.autograd.grad(supervised_loss(network(view), labels), parameters, materialize_grads=True)
                for view in (images, context.augment(images, self.augment))
            )
            cosines = [
                torch.cosine_similarity(a.flatten(), b.flatten(), dim=0) for a, b in zip(clean, shifted, strict=True)
            ]
            total, batches = total + torch.stack(cosines), batches + 1
            reached = reached | torch.stack([gradient.any() for gradient in clean])
        for parameter in parameters:
            parameter.requires_grad_(False)
        self.tensor_weights = _min_max(total / batches, reached) ** 2

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Anchor at the start."""
        self.anchor_params = flatten(parameters).detach()

    def penalty(self, step: Step) -> Tensor:
        """The weighted squared distance from the anchor."""
        assert self.tensor_weights is not None  # prepare() comes first
        assert self.anchor_params is not None  # reset_state() comes first
        now = flatten(step.parameters)
        self._params_before = now.detach()
        sizes = [parameter.numel() for parameter in step.parameters]
        squares = torch.split((now - self.anchor_params) ** 2, sizes)
        return self.weight * (self.tensor_weights * torch.stack([square.sum() for square in squares])).sum()

    def on_step(self, step: Step) -> None:
        """Anchor the next step at where this one started."""
        if self.anchor == "previous":
            self.anchor_params = self._params_before


def _min_max(agreement: Tensor, reached: Tensor) -> Tensor:
    """Min–max over what gradients reach, zero elsewhere."""
    low = agreement.where(reached, agreement.new_tensor(torch.inf)).min()
    high = agreement.where(reached, agreement.new_tensor(-torch.inf)).max()
    return torch.where(reached, (agreement - low) / (high - low).clamp(min=1e-12), 0.0)
