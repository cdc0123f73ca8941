"""PAF-KIP: raise the entropy of what neither the network nor its teacher is sure of."""

from typing import Literal

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.augment import crop_and_flip
from driftproof.losses import Entropy
from driftproof.methods._build import MethodOptions, build_adapter, join_filter, with_defaults
from driftproof.outputs import ConfidenceEnsemble
from driftproof.selection import EntropyFilters, Selection
from driftproof.teacher import EMA
from driftproof.validation import check_keywords

__all__ = ["paf_kip"]


@check_keywords
def paf_kip(
    model: nn.Module, *, lr: float = 1e-3, entropy_threshold: float | None = None, repel: float = 2.0,
    attract: Literal["network", "both"] = "network", reweight: bool = True, momentum: float = 0.999,
    confidence_weight: float = 0.1, select: Selection | None = None, **options: Unpack[MethodOptions],
) -> Adapter:  # fmt: skip
    """Entropy minimization on sure samples, maximization on unknown ones, and an ensemble of three networks.

    A random view is trained on and scored. Samples attract if H < τ, weighted by exp(τ − H) of the teacher; they repel
    if both entropies are above τ. The answer is the sum of the logits of the adapting network, the teacher and the
    frozen one, weighted by confidence; the novelty is the adapting network's energy. Four forward passes in all.

    Open choices taken: as in the authors' code, the network alone decides what attracts (their text says both) and one
    crop is for the whole batch; all is in single precision, where theirs, in bfloat16, holds the teacher still.

    Args:
        model: The trained model.
        lr: Learning rate.
        entropy_threshold: τ in nats; None is 0.4 ln C.
        repel: α, the weight of the entropy that is raised: 2 on CIFAR, 0.7 on ImageNet.
        attract: Who has to be sure of a sample that attracts, the "network" or "both" networks.
        reweight: Whether to weight samples by exp(τ − H).
        momentum: Share of itself the teacher keeps at each step.
        confidence_weight: How much more the surer networks count in the answer.
        select: Replaces the filters, or a `Split` before them.
        **options: The keywords all methods share; `view=None` shows the images themselves, which saves a pass.

    Examples:
        >>> import torch, driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.paf_kip(model)(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Lee et al., "Stabilizing Open-Set Test-Time Adaptation via Primary-Auxiliary Filtering and Knowledge-Integrated
        Prediction", BMVC 2025.
    """
    filters = EntropyFilters(entropy_threshold, repel=repel, attract=attract, reweight=reweight)
    ensemble, teacher = ConfidenceEnsemble(confidence_weight), EMA(momentum)
    options = with_defaults(options, teacher=teacher, output=ensemble, view=crop_and_flip, novelty="adapted_energy")
    return build_adapter(model, loss=Entropy(), lr=lr, select=join_filter(filters, select), **options)
