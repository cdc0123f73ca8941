"""EATA: learn from reliable, non-redundant samples and hold what mattered on source data."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.losses import Entropy, Loss
from driftproof.methods._build import MethodOptions, build_adapter, join_filter
from driftproof.regularizers import Fisher
from driftproof.selection import EntropyBelow, EntropyWeight, NonRedundant, Selection
from driftproof.validation import check_keywords

__all__ = ["eata"]


@check_keywords
def eata(
    model: nn.Module, *, lr: float = 1e-3, entropy_threshold: float | None = None, redundancy: float = 0.4,
    reweight: bool = True, fisher: float = 1.0, fisher_samples: int = 2000, fisher_batch_size: int = 200,
    loss: Loss | None = None, select: Selection | None = None, **options: Unpack[MethodOptions],
) -> Adapter:  # fmt: skip
    """Entropy minimization on selected, weighted samples with a Fisher penalty; needs `prepare`.

    Samples count if H(ŷ) < E0 and their prediction differs from the average of what was kept; they are weighted by
    exp(E0 − H). A batch without such samples takes no step. A given `select` replaces that filter, weights and all, but
    for a `Split`, whose known group it filters.

    Open choices taken: ε = 0.4 (CIFAR; 0.05 is recommended for Tiny-ImageNet and ImageNet); Fisher from source training
    images in batches of 200; with `ConfidenceDifference` the weights go too (add them with `& EntropyWeight()`).

    Args:
        model: The trained model.
        lr: Learning rate.
        entropy_threshold: E0 in nats; None is 0.4 ln C.
        redundancy: ε, the largest similarity to the average of kept predictions.
        reweight: Whether to weight samples by exp(E0 − H).
        fisher: β, the strength of the Fisher penalty; 1 on CIFAR, 2000 on ImageNet. 0 needs no source data.
        fisher_samples: Source images for the Fisher information, the first that come: shuffle what is stored by class.
        fisher_batch_size: Source images per mini-batch.
        loss: Replaces the entropy, such as `losses.COME()`.
        select: Replaces the filter, or a `Split` before it.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch, driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> source = [(torch.rand(8, 3, 4, 4), torch.arange(8) % 5)]
        >>> dp.eata(model).prepare(source)(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Niu et al., "Efficient Test-Time Model Adaptation without Forgetting", ICML 2022.
    """
    own = EntropyBelow(entropy_threshold) & NonRedundant(redundancy)
    own = own & EntropyWeight(entropy_threshold) if reweight else own
    loss, penalty = loss or Entropy(), Fisher(fisher, fisher_samples, fisher_batch_size)
    return build_adapter(model, loss=loss, lr=lr, select=join_filter(own, select), regularizer=penalty, **options)
