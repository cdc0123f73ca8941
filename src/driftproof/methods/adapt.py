"""adapt: the one call for people who do not know test-time adaptation."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.after import PullToSource
from driftproof.guards import FallBack, RollBack
from driftproof.methods._build import MethodOptions
from driftproof.methods.tent import tent
from driftproof.norms import batch_norms
from driftproof.selection import ConfidenceDifference, Selection
from driftproof.validation import check_keywords

__all__ = ["adapt"]


@check_keywords
def adapt(
    model: nn.Module, *, lr: float | None = None, select: Selection | None = None, **options: Unpack[MethodOptions]
) -> Adapter:
    """Adapt a model to a stream that nobody has looked at.

    TENT with selection by confidence difference, with changes for safety. Statistics choose their share
    (`statistics.Auto`) and hold back in small batches and class-ordered streams. The learning rate is half of TENT's,
    a step is taken for every 64 images, and each step pulls the weights a little towards the source. The mean-entropy
    term is over selected samples, and over all of them where predictions concentrate on few classes. If adaptation
    still goes wrong, the frozen network answers and the weights roll back.

    Without batch norm no statistics tell whether the stream has shifted, and where it has not, learning does harm. So a
    network without batch norm learns a fifth as fast, is pulled ten times as far, and its answer is the mean of the
    adapted and the frozen network's. Where much has shifted this gives up most of what learning would gain.

    Args:
        model: Any module that maps a batch to logits (N, C) or (N, C, H, W).
        lr: Learning rate; None is 5e-4, or 1e-4 without batch norm.
        select: Which samples to learn from; None is `ConfidenceDifference()`.
        **options: Any choice of `tent`, in place of the ones above.

    Examples:
        >>> import torch
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> adapter = dp.adapt(model)
        >>> adapter(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])
        >>> adapter.last.health.state
        'healthy'
    """
    has_statistics = isinstance(model, nn.Module) and any(batch_norms(model))  # other models are refused below
    chosen: MethodOptions = {
        "statistics": "auto",
        "accumulate": "auto",
        "after": PullToSource(1e-3 if has_statistics else 1e-2),
        "mean_entropy_over": "auto",
        "guard": (FallBack(), RollBack()),
        "output": "before" if has_statistics else "ensemble",
    }
    lr = (5e-4 if has_statistics else 1e-4) if lr is None else lr
    return tent(model, lr=lr, select=select or ConfidenceDifference(), **(chosen | options))
