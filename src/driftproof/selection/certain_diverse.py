"""Weights for samples that are both certain and unlike the average (ROID)."""

import torch
from torch import Tensor, nn

from driftproof.components import Step
from driftproof.network import Network
from driftproof.predictions import entropy, mean_prediction
from driftproof.selection.base import Selection

__all__ = ["CertainAndDiverse"]


class CertainAndDiverse(Selection):
    """Weight samples by exp(sharpness·a·b): a says how diverse a prediction is, b how certain.

    a = 1 − cos(p̃, ŷ), with p̃ a moving average of the mean prediction that starts uniform, and b = −H(ŷ). Both are
    scaled to [0, 1] over the batch; samples with a below its mean are left out, about half of them. Where all
    samples are equal, none is left out and all weigh one.

    Args:
        sharpness: 1/temperature; at 3 weights go from 1 to 20.
        momentum: Share of itself the average keeps.
    """

    average: Tensor | None

    def __init__(self, sharpness: float = 3.0, momentum: float = 0.9) -> None:
        super().__init__()
        self.sharpness = sharpness
        self.momentum = momentum
        self.register_buffer("average", None)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget the average."""
        self.average = None

    def on_reset(self, step: Step, condition: Tensor) -> None:
        """Forget the average together with the weights."""
        self.average = torch.where(condition, _uniform(step), self._average(step))

    def weights(self, step: Step) -> Tensor:
        """The weight of each sample; zero for the less diverse ones."""
        p = step.probabilities.detach()
        average = self._average(step).view(1, -1, *([1] * (p.ndim - 2)))
        diverse = 1 - torch.cosine_similarity(average, p, dim=1)
        certain = -entropy(step.log_probabilities.detach(), p)
        both = torch.stack([diverse, certain])
        flat, shape = both.flatten(1), (2, *([1] * diverse.ndim))
        bounds = step.distributed.max(torch.stack([flat.amax(dim=1), -flat.amin(dim=1)]))
        low, span = -bounds[1], (bounds[0] + bounds[1]).clamp(min=torch.finfo(both.dtype).tiny)
        diverse, certain = (both - low.view(shape)) / span.view(shape)
        kept = diverse >= step.distributed.mean(diverse)
        weights: Tensor = torch.exp(self.sharpness * diverse * certain) * kept
        return weights

    def on_batch(self, step: Step) -> None:
        """Move the average towards the mean prediction of the batch."""
        mean = mean_prediction(step.probabilities.detach(), step.distributed)
        self.average = torch.lerp(mean, self._average(step), self.momentum)

    def _average(self, step: Step) -> Tensor:
        return _uniform(step) if self.average is None else self.average


def _uniform(step: Step) -> Tensor:
    return torch.full((step.classes,), 1 / step.classes, dtype=step.weights.dtype, device=step.weights.device)
