"""RDumb: ETA that starts anew at fixed times."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.after import ResetEvery
from driftproof.losses import Entropy, Loss
from driftproof.methods._build import MethodOptions, build_adapter
from driftproof.selection import EntropyBelow, EntropyWeight, NonRedundant, Selection
from driftproof.validation import check_keywords

__all__ = ["rdumb"]


@check_keywords
def rdumb(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    entropy_threshold: float | None = None,
    redundancy: float = 0.4,
    reset_every: int = 1000,
    loss: Loss | None = None,
    select: Selection | None = None,
    **options: Unpack[MethodOptions],
) -> Adapter:
    """EATA without its Fisher penalty, returned to the source model every n steps; needs no source data.

    A reset takes back the weights, the optimizer and the average of kept predictions.

    Open choices taken: a period counts optimizer steps, not batches; ε = 0.4 as for EATA on CIFAR (0.05 on ImageNet).

    Args:
        model: The trained model.
        lr: Learning rate.
        entropy_threshold: E0 in nats; None is 0.4 ln C.
        redundancy: ε, the largest similarity to the average of kept predictions.
        reset_every: n, the number of steps between resets.
        loss: Replaces the entropy, such as `losses.COME()`.
        select: Replaces the filter, weights and all.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> adapter = dp.rdumb(model, reset_every=500)
        >>> adapter(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Press et al., "RDumb: A simple approach that questions our progress in continual test-time adaptation",
        NeurIPS 2023.
    """
    certain, weighted = EntropyBelow(entropy_threshold), EntropyWeight(entropy_threshold)
    loss, select = loss or Entropy(), select or certain & NonRedundant(redundancy) & weighted
    own = [ResetEvery(reset_every)]
    return build_adapter(model, loss=loss, lr=lr, select=select, own_after=own, **options)
