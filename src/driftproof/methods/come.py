"""COME: minimize the entropy of an opinion that may be uncertain."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.losses import COME
from driftproof.methods._build import MethodOptions, build_adapter
from driftproof.selection import Selection
from driftproof.validation import check_keywords

__all__ = ["come"]


@check_keywords
def come(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    uncertain_mass: float | None = None,
    select: Selection | None = None,
    **options: Unpack[MethodOptions],
) -> Adapter:
    """TENT with the entropy of a subjective opinion, which may say that it does not know.

    Pass `loss=losses.COME()` to `eata`, `sar` and others for the same change there.

    Open choices taken: K is the number of classes (the authors' code fixes 1000); selections read the entropy of the
    softmax, which their thresholds were set for, where the authors filter by the loss itself.

    Args:
        model: The trained model.
        lr: Learning rate.
        uncertain_mass: K, the mass of "I do not know"; None is the number of classes.
        select: Which samples to learn from; None is all of them.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> adapter = dp.come(model)
        >>> adapter(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Zhang et al., "COME: Test-time Adaption by Conservatively Minimizing Entropy", ICLR 2025.
    """
    loss = COME(uncertain_mass)
    return build_adapter(model, loss=loss, lr=lr, select=select, **options)
