"""SWR + NSP: hold shift-agnostic weights, align features with source prototypes."""

from typing import Literal

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.augment import Augment, photometric
from driftproof.losses import Entropy
from driftproof.methods._build import MethodOptions, build_adapter
from driftproof.regularizers import NearestPrototypes, ShiftAgnosticPenalty
from driftproof.scopes import everything
from driftproof.selection import Selection
from driftproof.validation import check_keywords

__all__ = ["swr"]


@check_keywords
def swr(
    model: nn.Module, *, lr: float = 1e-4, strength: float = 250.0, anchor: Literal["previous", "source"] = "previous",
    prototypes: bool | NearestPrototypes = True, augment: Augment = photometric, drift_samples: int = 2000,
    drift_batch_size: int = 32, select: Selection | None = None, **options: Unpack[MethodOptions],
) -> Adapter:  # fmt: skip
    """Entropy minimization on every parameter, with weighted regularization and a prototype task; needs `prepare`.

    A re-implementation without the authors' code. Selection applies to the main loss alone. Open choices taken: weight
    1 on the sample entropy and 0.5 on the mean entropy; λ_r = 250, which held-out corruptions bear out against 25 and
    2500. For segmentation the paper's timing needs `prototypes=False`; with selection take `mean_entropy=0.2` there.

    Args:
        model: The trained model.
        lr: Learning rate.
        strength: λ_r of the regularizer.
        anchor: What the parameters are held to: "previous" iteration (the paper's default) or "source".
        prototypes: Whether to add the nearest-source-prototypes task; a `NearestPrototypes` sets it up.
        augment: The change of appearance used to prepare, and for the transformed copy at test time.
        drift_samples: Source images that `prepare` measures the weights on, the first that come: shuffle them before.
        drift_batch_size: How many at a time.
        select: Which samples to learn from; None is all of them.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch, driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> source = [(torch.rand(8, 3, 4, 4), torch.arange(8) % 5)]
        >>> dp.swr(model, prototypes=False).prepare(source)(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Choi et al., "Improving Test-Time Adaptation via Shift-agnostic Weight Regularization and Nearest Source
        Prototypes", ECCV 2022.
    """
    task = NearestPrototypes(augment=augment) if prototypes is True else prototypes
    drift = ShiftAgnosticPenalty(strength, anchor, samples=drift_samples, batch_size=drift_batch_size, augment=augment)
    return build_adapter(
        model, loss=Entropy(), lr=lr, select=select, regularizer=drift + task if task else drift,
        default_scope=everything(), default_mean_entropy=0.5, **options,
    )  # fmt: skip
