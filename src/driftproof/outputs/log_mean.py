"""The mean of the log-probabilities of several networks."""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

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
        shift: By how many pixels mirror images are moved, so that opinions differ more: the network's to the right and
            down, the source's to the left and up, with the pixels of the edge in the gap. Not where every pixel has a
            label.

    Examples:
        >>> LogMean(("network", "mirror"))
        LogMean(members=('network', 'mirror'), shift=0)
    """

    def __init__(self, members: Sequence[str] = ("network", "source"), shift: int = 0) -> None:
        super().__init__()
        if not members:
            raise ConfigurationError("Expected `members` to name at least one network, but got none.")
        for member in members:
            check_choice("member", member, get_args(Member))
        if shift < 0:
            raise ConfigurationError(f"Expected `shift` to be at least 0, but got {shift}.")
        self.members = tuple(members)
        self.shift = shift

    def predict(self, step: Step) -> Tensor:
        """The mean; not normalized, which changes no prediction."""
        opinions = {member: opinion(step) for member, opinion in _OPINIONS.items() if member in self.members}
        passes = {member: run for member, run in self._passes.items() if member in self.members}

        def average() -> Tensor:
            found = opinions | {member: log_probabilities(run(step)) for member, run in passes.items()}
            return torch.stack([found[member] for member in self.members]).mean(dim=0)

        return step.predict_beside(average) if passes else average()

    def source_view(self) -> Callable[[Network, Tensor, Tensor], Tensor] | None:
        """The frozen network's pass over the mirror images, if it is a member."""
        return self._predict_source_mirror if "source_mirror" in self.members else None

    @property
    def _passes(self) -> dict[str, Callable[[Step], Tensor]]:
        """The passes that the answer alone needs."""
        return {
            "mirror": lambda step: _predict_mirror(step.network, step.images, step.logits, self.shift),
            "source_mirror": lambda step: (
                self._predict_source_mirror(step.source, step.images, step.logits)
                if step.source_view is None
                else step.source_view
            ),
        }

    def _predict_source_mirror(self, source: Network, images: Tensor, logits: Tensor) -> Tensor:
        return _predict_mirror(source, images, logits, -self.shift)


def _predict_mirror(network: Network, images: Tensor, logits: Tensor, shift: int) -> Tensor:
    """A network's logits of the mirror images; of pixels, where the pixels are, if the images' own `logits` are."""
    if images.ndim != 4:
        return network(images)
    mirrored = images.flip(-1)
    return network(mirrored).flip(-1) if logits.ndim == 4 else network(_move(mirrored, shift))


def _move(images: Tensor, shift: int) -> Tensor:
    """Move images by some pixels to the right and down; negative is to the left and up."""
    if shift == 0:
        return images
    height, width, far = *images.shape[-2:], abs(shift)
    edges = (far, 0, far, 0) if shift > 0 else (0, far, 0, far)
    padded = pad(images, edges, mode="replicate")
    return padded[..., :height, :width] if shift > 0 else padded[..., far:, far:]


_OPINIONS: dict[str, Callable[[Step], Tensor]] = {
    "network": lambda step: step.log_probabilities,
    "source": lambda step: step.source_log_probabilities,
    "teacher": lambda step: log_probabilities(step.teacher_logits),
    "detector": lambda step: log_probabilities(step.detection.logits),
}
