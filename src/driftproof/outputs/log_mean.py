"""The mean of the log-probabilities of several networks."""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.network import Network
from driftproof.outputs.base import Output
from driftproof.predictions import log_probabilities
from driftproof.validation import check_choice

__all__ = ["LogMean"]

Member = Literal["network", "mirror", "source", "source_mirror", "teacher", "detector"]


class LogMean(Output):
    """The mean of log-probabilities, which is the product of opinions: one that is sure that it is not a class counts.

    Args:
        members: Whose: the adapting "network"'s, also of the "mirror" images (a further pass), the frozen "source"'s,
            also of the mirror images ("source_mirror", likewise), the "teacher"'s or the "detector"'s.

    Examples:
        >>> LogMean(("network", "mirror"))
        LogMean(members=('network', 'mirror'))
    """

    def __init__(self, members: Sequence[str] = ("network", "source")) -> None:
        super().__init__()
        if not members:
            raise ConfigurationError("Expected `members` to name at least one network, but got none.")
        for member in members:
            check_choice("member", member, get_args(Member))
        self.members = tuple(members)

    def predict(self, step: Step) -> Tensor:
        """The mean; not normalized, which changes no prediction."""
        opinions = {member: opinion(step) for member, opinion in _OPINIONS.items() if member in self.members}
        passes = {member: run for member, run in _PASSES.items() if member in self.members}

        def average() -> Tensor:
            found = opinions | {member: log_probabilities(run(step)) for member, run in passes.items()}
            return torch.stack([found[member] for member in self.members]).mean(dim=0)

        return step.predict_beside(average) if passes else average()

    def source_view(self) -> Callable[[Network, Tensor], Tensor] | None:
        """The frozen network's pass over the mirror images, if it is a member."""
        return _predict_mirror if "source_mirror" in self.members else None


def _predict_mirror(network: Network, images: Tensor) -> Tensor:
    """A network's logits of the mirror images; of pixels, where the pixels are."""
    mirrors = images.ndim == 4
    logits = network(images.flip(-1) if mirrors else images)
    return logits.flip(-1) if mirrors and logits.ndim == 4 else logits


_OPINIONS: dict[str, Callable[[Step], Tensor]] = {
    "network": lambda step: step.log_probabilities,
    "source": lambda step: step.source_log_probabilities,
    "teacher": lambda step: log_probabilities(step.teacher_logits),
    "detector": lambda step: log_probabilities(step.detection.logits),
}
_PASSES: dict[str, Callable[[Step], Tensor]] = {
    "mirror": lambda step: _predict_mirror(step.network, step.images),
    "source_mirror": lambda step: (
        _predict_mirror(step.source, step.images) if step.source_view is None else step.source_view
    ),
}
