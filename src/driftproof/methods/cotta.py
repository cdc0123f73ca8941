"""CoTTA: follow a slowly moving teacher, forget a little at every step."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.after import StochasticRestore
from driftproof.losses import Consistency
from driftproof.methods._build import MethodOptions, build_adapter, with_defaults
from driftproof.outputs import MultiScale, RandomViews, TeacherEnsemble
from driftproof.scopes import everything
from driftproof.selection import Selection
from driftproof.teacher import EMA
from driftproof.validation import check_keywords

__all__ = ["cotta"]


@check_keywords
def cotta(
    model: nn.Module, *, lr: float = 1e-3, threshold: float | None = 0.92, momentum: float = 0.999,
    restore: float = 0.01, views: RandomViews | None = None, scales: MultiScale | None = None,
    symmetric: bool = False, select: Selection | None = None, **options: Unpack[MethodOptions],
) -> Adapter:  # fmt: skip
    """Consistency with an averaged, augmented teacher on every parameter, with stochastic restoration.

    The answer is the teacher's, from before the update. With rank-4 logits the teacher's ensemble is multi-scale and
    the targets are per pixel, see `outputs.TeacherEnsemble`.

    Args:
        model: The trained model.
        lr: Learning rate; 1e-3 on CIFAR, 7.5e-6 in segmentation.
        threshold: p_th below which the teacher answers for its augmented ensemble: 0.92 on CIFAR-10, 0.72 on CIFAR-100.
            None derives it from source data in `prepare`.
        momentum: Share of itself the teacher keeps at each step.
        restore: Probability with which a scalar returns to its source value after each step.
        views: The ensemble for classification; None is 32 random views.
        scales: The ensemble for segmentation; None is five scales with mirroring.
        symmetric: The symmetrized loss CoTTA uses on ImageNet.
        select: Which samples to learn from; None is all of them.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch, driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.cotta(model, threshold=0.1)(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Wang et al., "Continual Test-Time Domain Adaptation", CVPR 2022.
    """
    ensemble = TeacherEnsemble(threshold, views=views, scales=scales)
    options = with_defaults(options, teacher=EMA(momentum), after=StochasticRestore(restore), output=ensemble)
    loss, scope = Consistency(symmetric=symmetric), everything()
    return build_adapter(model, loss=loss, default_scope=scope, lr=lr, select=select, **options)
