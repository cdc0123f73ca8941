"""GCE: robust pseudo-labelling (RPL)."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.losses import GCE
from driftproof.methods._build import MethodOptions, build_adapter
from driftproof.selection import Selection
from driftproof.validation import check_keywords

__all__ = ["gce"]


@check_keywords
def gce(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    q: float = 0.8,
    select: Selection | None = None,
    **options: Unpack[MethodOptions],
) -> Adapter:
    """Generalized cross-entropy with the model's own labels, on normalization's affine parameters.

    Open choice taken: the prediction is the one before the update, for comparability; the reference code predicts after
    it, which is `output="after"`.

    Args:
        model: The trained model.
        lr: Learning rate.
        q: q of the loss.
        select: Which samples to learn from; None is all of them.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> adapter = dp.gce(model, q=0.8)
        >>> adapter(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Rusak et al., "If your data distribution shifts, use self-learning", TMLR 2022.
    """
    return build_adapter(model, loss=GCE(q), lr=lr, select=select, **options)
