"""Conjugate: learn from conjugate pseudo-labels."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.losses import Conjugate
from driftproof.methods._build import MethodOptions, build_adapter
from driftproof.selection import Selection
from driftproof.validation import check_keywords

__all__ = ["conjugate"]


@check_keywords
def conjugate(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    epsilon: float = 0.0,
    temperature: float = 1.0,
    select: Selection | None = None,
    **options: Unpack[MethodOptions],
) -> Adapter:
    """Minimize the conjugate of the training loss, on normalization's affine parameters.

    For a model trained with cross-entropy (ε = 0, T = 1) this is `tent`, step for step. The paper's row differs from
    its TENT row, so it was probably run with the reference code's default for PolyLoss models, ε = 6 (ImageNet: 8).

    Open choices taken: ε = 0 by default, since it is what a cross-entropy model calls for; the prediction is the one
    before the update (the reference code: `output="after"`).

    Args:
        model: The trained model.
        lr: Learning rate.
        epsilon: ε of the PolyLoss the model was trained with.
        temperature: T, divides the logits inside the loss.
        select: Which samples to learn from; None is all of them.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> adapter = dp.conjugate(model, epsilon=6.0)
        >>> adapter(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Goyal et al., "Test-Time Adaptation via Conjugate Pseudo-labels", NeurIPS 2022.
    """
    return build_adapter(model, loss=Conjugate(epsilon, temperature), lr=lr, select=select, **options)
