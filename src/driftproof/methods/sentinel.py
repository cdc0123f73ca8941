"""Sentinel: one copy learns what is unknown, another learns to predict."""

from functools import reduce
from operator import and_

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
from driftproof.statistics import Batch, WindowedBlend
from driftproof.validation import check_keywords

__all__ = ["sentinel"]


@check_keywords
def sentinel(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    pull: float = 1e-2,
    share: float = 0.3,
    members: str = "network+mirror+detector+source",
    known: bool = False,
    difference: bool = True,
    detector_lr: float = 1e-3,
    detector_share: float | None = 1.0,
    repel: float = 2.0,
    loss: Loss | None = None,
    select: Selection | None = None,
    **options: Unpack[MethodOptions],
) -> Adapter:
    """TENT with selection and source statistics, beside a copy that learns to tell known samples from unknown ones.

    The *sentinel* lowers the entropy of what it is sure of and raises that of the rest (`detectors.Sentinel`). Its
    energy is the novelty, and its opinion counts in the answer. The *learner* minimizes the entropy of samples whose
    confidence did not fall (`ConfidenceDifference`). It mixes source statistics in, and each step pulls it towards the
    source. The answer is the mean of log-probabilities of the learner on the images and their mirror images, of the
    sentinel on the mirror images, and of the frozen network.

    Open choices taken: the defaults come from the four held-out corruptions of CIFAR-10-C and CIFAR-100-C;
    `docs/sentinel.md` has every variant that was tried.

    Args:
        model: The trained model.
        lr: Learning rate.
        pull: Share of the way back to the source after each step.
        share: α, the share of the stream in the learner's statistics.
        members: Whose predictions are averaged, joined by a plus sign; see `outputs.LogMean`.
        known: Whether to learn only from samples that the sentinel takes for known. On the held-out corruptions that
            cost more known samples than it kept unknown ones out.
        difference: Whether samples must not have lost confidence to be learned from.
        detector_lr: The sentinel's learning rate.
        detector_share: The share of the batch in the sentinel's statistics; None is the learner's.
        repel: The weight of the entropy that the sentinel raises.
        loss: Replaces the entropy.
        select: Which samples to learn from, in place of `known` and `difference`.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch
        >>> import driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> adapter = dp.sentinel(model)
        >>> adapter(torch.rand(8, 3, 4, 4)).shape, adapter.last.novelty.shape
        (torch.Size([8, 5]), torch.Size([8]))
    """
    own_statistics = None if detector_share is None else _blend(detector_share)
    chosen: MethodOptions = {
        "statistics": WindowedBlend(share),
        "detector": Sentinel(lr=detector_lr, repel=repel, statistics=own_statistics),
        "output": LogMean(members.split("+")),
        "accumulate": "auto",
        **options,
    }
    chosen["novelty"] = options.get("novelty") or "detector"
    rules = [*([Known()] if known else []), *([ConfidenceDifference()] if difference else [])]
    return build_adapter(
        model,
        loss=loss or Entropy(),
        default_scope=norm_affine(),
        lr=lr,
        select=select or (reduce(and_, rules) if rules else None),
        default_mean_entropy=ConfidenceDifference.mean_entropy,
        own_after=[PullToSource(pull)],
        **chosen,
    )


def _blend(share: float) -> Batch | WindowedBlend:
    return Batch() if share == 1.0 else WindowedBlend(share)
