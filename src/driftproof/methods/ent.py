"""ENT: minimize entropy by every parameter."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.losses import Entropy
from driftproof.methods._build import MethodOptions, build_adapter
from driftproof.scopes import everything
from driftproof.selection import Selection
from driftproof.validation import check_keywords

__all__ = ["ent"]


@check_keywords
def ent(
    model: nn.Module, *, lr: float = 1e-4, select: Selection | None = None, **options: Unpack[MethodOptions]
) -> Adapter:
    """Entropy minimization on every parameter with batch statistics.

    As `tent`, but all parameters move, at a tenth of its learning rate.

    Examples:
        >>> import torch
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> adapter = dp.ent(model, select=dp.ConfidenceDifference())
        >>> adapter(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])
    """
    return build_adapter(model, loss=Entropy(), default_scope=everything(), lr=lr, select=select, **options)
