"""Sentinel: one copy learns what is unknown, another learns to predict."""

import math
from functools import partial

import torch
from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.after import PullToSource
from driftproof.detectors import Sentinel
from driftproof.errors import ConfigurationError
from driftproof.losses import Entropy
from driftproof.methods._build import MethodOptions, build_adapter, with_defaults
from driftproof.outputs import LogMean
from driftproof.scopes import norm_affine
from driftproof.selection import ConfidenceDifference, EntropyWeight, Selection
from driftproof.statistics import WindowedBlend
from driftproof.statistics.windowed_blend import check_shares
from driftproof.validation import check_keywords

__all__ = ["sentinel"]


@check_keywords
def sentinel(
    model: nn.Module, *, lr: float = 3e-4, eps: float = 1e-2, pull: float = 3e-3, convolutions: float = 1 / 3,
    share: float | tuple[float, float] = (0.2, 0.5), members: str = "network+mirror+source+source_mirror",
    shift: int = 1, detector_lr: float = 1e-3, detector_layers: float = 2 / 3,
    detector_share: float | tuple[float, float] | None = None, detector_momentum: float = 1.0,
    detector_pull: float = 2e-3, repel: float = 2.0, select: Selection | None = None, **options: Unpack[MethodOptions],
) -> Adapter:  # fmt: skip
    """TENT with selection and source statistics, beside a copy that learns to tell known samples from unknown ones.

    The *sentinel* lowers the entropy of what it is sure of and raises that of the rest (`detectors.Sentinel`). Its
    energy is the novelty. The *learner* minimizes the entropy of samples whose confidence did not fall, surer ones with
    more weight. It learns the first convolutions too, since that is where an image's corruption is met first, mixes
    source statistics in, and each step pulls it towards the source. The answer is the mean of log-probabilities: the
    learner's and the source's, of images and of mirror images, which are moved by a pixel. The sentinel does not
    answer: as a classifier it becomes worse in long open streams, while its novelty stays good.

    Open choices taken: the defaults come from four held-out corruptions; `docs/sentinel.md` has every variant tried.

    Args:
        model: The trained model.
        lr: Learning rate.
        eps: Adam's ε. Where gradients are smaller, steps are small as well; with the usual tiny one, each weight of a
            convolution would move by about `lr` at every step, whatever its gradient. Another `optimizer=` has its own.
        pull: Share of the way back to the source after each step.
        convolutions: The share of the convolutions, from the first one on, that learn beside the normalization layers;
            a `scope=` decides this by itself.
        share: α, the share of the stream in the learner's and the frozen network's statistics. A pair is that of the
            first and of the last batch norm, between which it changes linearly.
        members: Whose predictions are averaged, joined by a plus sign; see `outputs.LogMean`.
        shift: By how many pixels mirror images are moved, see there.
        detector_lr: The sentinel's learning rate.
        detector_layers: The share of the normalization layers, the last ones, in which the sentinel learns.
        detector_share: The share of the stream in the sentinel's statistics, a number or a pair; None is the learner's.
        detector_momentum: Of the sentinel's moving average; 1 is the frozen network, which saves a pass.
        detector_pull: Share of the way back to the source after each of the sentinel's steps.
        repel: The weight of the entropy that the sentinel raises.
        select: Which samples to learn from; None is `ConfidenceDifference() & EntropyWeight()`.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch, driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.sentinel(model)(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])
    """
    if not 0 <= eps < math.inf:
        raise ConfigurationError(f"Expected `eps` to be at least 0, but got {eps}. Choose one such as 0.01.")
    blend, own = WindowedBlend(check_shares("share", share)), None
    if detector_share is not None:
        own = WindowedBlend(check_shares("detector_share", detector_share))
    detector = Sentinel(
        lr=detector_lr, repel=repel, momentum=detector_momentum, pull=detector_pull, layers=detector_layers,
        statistics=own,
    )  # fmt: skip
    answer, select = LogMean(members.split("+"), shift), select or ConfidenceDifference() & EntropyWeight()
    options = with_defaults(
        options, statistics=blend, detector=detector, output=answer, accumulate="auto",
        scope=norm_affine(convolutions), optimizer=partial(torch.optim.Adam, eps=eps),
    )  # fmt: skip
    options["novelty"] = options.get("novelty") or "detector"
    return build_adapter(model, loss=Entropy(), lr=lr, select=select, own_after=[PullToSource(pull)], **options)
