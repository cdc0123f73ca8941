"""ASR: ETA that returns its later layers to the source when predictions concentrate."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.after import AdaptiveReset
from driftproof.losses import Entropy, Loss
from driftproof.methods._build import MethodOptions, build_adapter
from driftproof.regularizers import MovingAnchor
from driftproof.selection import EntropyBelow, EntropyWeight, NonRedundant, Selection
from driftproof.validation import check_keywords

__all__ = ["asr"]


@check_keywords
def asr(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    entropy_threshold: float | None = None,
    redundancy: float = 0.4,
    start: float = 0.5,
    memory_weight: float = 5.0,
    loss: Loss | None = None,
    select: Selection | None = None,
    **options: Unpack[MethodOptions],
) -> Adapter:
    """EATA's filter with adaptive, selective resets and a penalty that remembers what mattered before them.

    For another base, pass `after=dp.after.AdaptiveReset()` to its method.

    Open choices taken: the constants are the authors', who tuned them for 1,000 classes; ε = 0.4 as for EATA on CIFAR.
    `reset()` returns to the source model, whatever partial resets came before; in the authors' code it does not.

    Args:
        model: The trained model.
        lr: Learning rate.
        entropy_threshold: E0 in nats; None is 0.4 ln C.
        redundancy: ε, the largest similarity to the average of kept predictions.
        start: α₀, the share of the classes that `after.AdaptiveReset` starts from.
        memory_weight: λ₀ of the penalty, see `regularizers.MovingAnchor`.
        loss: Replaces the entropy, such as `losses.COME()`.
        select: Replaces the filter, weights and all.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch, driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.asr(model)(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Lim et al., "When and Where to Reset Matters for Long-Term Test-Time Adaptation", ICLR 2026.
    """
    certain, weighted = EntropyBelow(entropy_threshold), EntropyWeight(entropy_threshold)
    loss, select = loss or Entropy(), select or certain & NonRedundant(redundancy) & weighted
    anchor, own = MovingAnchor(memory_weight), [AdaptiveReset(start=start)]
    return build_adapter(model, loss=loss, lr=lr, select=select, regularizer=anchor, own_after=own, **options)
