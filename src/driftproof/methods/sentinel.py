"""Sentinel: one copy learns what is unknown, another learns from what is known."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.after import PullToSource
from driftproof.detectors import Sentinel
from driftproof.losses import Entropy, Loss
from driftproof.methods._build import MethodOptions, build_adapter
from driftproof.outputs import LogMean
from driftproof.scopes import norm_affine
from driftproof.selection import ConfidenceDifference, Known, Selection
from driftproof.validation import check_keywords

__all__ = ["sentinel"]


@check_keywords
def sentinel(
    model: nn.Module,
    *,
    lr: float = 3e-4,
    pull: float = 1e-3,
    loss: Loss | None = None,
    select: Selection | None = None,
    **options: Unpack[MethodOptions],
) -> Adapter:
    """A detector of unknown samples beside a network that learns from the known ones.

    Args:
        model: The trained model.
        lr: Learning rate.
        pull: Share of the way back to the source after each step.
        loss: Replaces the entropy.
        select: Which samples to learn from; None is known ones whose confidence did not fall.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.sentinel(model)(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])
    """
    chosen: MethodOptions = {
        "statistics": "auto",
        "detector": Sentinel(),
        "output": LogMean(("network", "mirror", "detector")),
        "accumulate": "auto",
    }
    chosen = {**chosen, **options}
    chosen["novelty"] = options.get("novelty") or "detector"
    select = select or Known() & ConfidenceDifference()
    own = [PullToSource(pull)]
    return build_adapter(
        model, loss=loss or Entropy(), default_scope=norm_affine(), lr=lr, select=select, own_after=own, **chosen
    )
