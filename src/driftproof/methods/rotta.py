"""RoTTA: a teacher answers, and a student learns from a bank that is balanced over classes and time."""

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter
from driftproof.augment import Augment, strong_view
from driftproof.losses import FollowTeacher
from driftproof.memories import CSTU
from driftproof.methods._build import MethodOptions, build_adapter, with_defaults
from driftproof.selection import Selection
from driftproof.statistics import Running
from driftproof.teacher import EMA
from driftproof.validation import check_keywords

__all__ = ["rotta"]


@check_keywords
def rotta(
    model: nn.Module, *, lr: float = 1e-3, capacity: int = 64, update_every: int = 64, momentum: float = 0.999,
    statistics_momentum: float = 0.05, augment: Augment = strong_view, select: Selection | None = None,
    **options: Unpack[MethodOptions],
) -> Adapter:  # fmt: skip
    """A teacher's answers, taught to a student on strong views of a balanced bank, with slow statistics.

    The teacher answers with running statistics that start at the source and move with the bank alone. The student sees
    a view of the bank, the teacher the images themselves; young images weigh more. Made for streams whose classes come
    in order. It collapses on long streams.

    Open choices taken: one step per batch, also where a batch of 200 images made three or four in the published code;
    the view's color jitter has a fixed order, so that a step can be captured; novelty is the energy of the answer.

    Args:
        model: The trained model.
        lr: Learning rate.
        capacity: How many images the bank holds, at most `capacity` / C of a class (one where that is below one).
        update_every: Images from one step to the next.
        momentum: Share of itself the teacher keeps at each step, 1 − ν.
        statistics_momentum: α, the share of a new batch in the running statistics.
        augment: The student's view.
        select: Which images of the bank to learn from; None is all of them.
        **options: The keywords all methods share, see `driftproof.methods`.

    Examples:
        >>> import torch, driftproof as dp
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.rotta(model)(torch.rand(8, 3, 4, 4)).shape
        torch.Size([8, 5])

    Reference:
        Yuan et al., "Robust Test-Time Adaptation in Dynamic Scenarios", CVPR 2023.
    """
    options = with_defaults(
        options, memory=CSTU(capacity, update_every=update_every, augment=augment), teacher=EMA(momentum),
        statistics=Running(statistics_momentum), output="teacher", novelty="answer_energy",
    )  # fmt: skip
    return build_adapter(model, loss=FollowTeacher(), lr=lr, select=select, **options)
