"""Which samples to learn from: a weight ≥ 0 per sample (pixel), never an index.

Weights keep every shape static. Combine selections with `&`: the weights multiply.
"""

import math
from typing import SupportsFloat

import torch
from torch import Tensor, nn

from driftproof.components import Component, Compose, Step
from driftproof.errors import ConfigurationError, ModelError
from driftproof.network import Network
from driftproof.predictions import entropy

__all__ = [
    "ConfidenceAbove",
    "ConfidenceDifference",
    "EntropyBelow",
    "EntropyWeight",
    "IgnorePadding",
    "NonRedundant",
    "Product",
    "Selection",
]


class Selection(Component):
    """A weight for every sample; zero leaves the sample out.

    Attributes:
        mean_entropy: The λ_max that goes with this selection unless the caller says otherwise.

    Examples:
        The barest new selection.

        >>> class FirstHalf(Selection):
        ...     def weights(self, step):
        ...         weights = torch.zeros_like(step.weights)
        ...         weights[: len(weights) // 2] = 1
        ...         return weights
    """

    mean_entropy: float = 0.0

    def weights(self, step: Step) -> Tensor:
        """The weight of each sample, (N,) or (N, H, W); no gradient flows through it."""
        raise NotImplementedError

    def present(self, step: Step) -> Tensor | None:
        """Which samples are there at all, as a boolean mask; None is all. The others have no say in ȳ either."""
        return None

    def __and__(self, other: "Selection") -> "Product":
        return Product(self, other)


class Product(Compose, Selection):
    """Several selections at once: the weights multiply."""

    def __init__(self, *parts: Selection) -> None:
        inner = (part.members if isinstance(part, Product) else (part,) for part in parts)
        super().__init__(*(member for members in inner for member in members))

    @property
    def mean_entropy(self) -> float:  # type: ignore[override]  # a class attribute for single selections
        """The largest of the members'."""
        return float(max(part.mean_entropy for part in self.members))

    def weights(self, step: Step) -> Tensor:
        """The product of the members' weights."""
        weights = torch.ones_like(step.weights)
        for part in self.members:
            weights = weights * part.weights(step)
        return weights

    def present(self, step: Step) -> Tensor | None:
        """What is there for every member."""
        masks = [part.present(step) for part in self.members]
        said = [mask for mask in masks if mask is not None]
        return torch.stack(said).all(dim=0) if said else None

    def __repr__(self) -> str:
        return " & ".join(repr(part) for part in self.members)


class ConfidenceDifference(Selection):
    """The wisdom of crowds: learn from samples whose confidence did not fall.

    Φ = 1(ŷ^{c_o} − ỹ^{c_o} ≥ margin), with c_o the class that the original model θ_o predicts. A wrong or unknown
    sample goes against what the many right ones teach, so its confidence in that class falls while theirs rises.
    Exact ≥ at full precision: at the first batch θ_a = θ_o and everything is selected.

    Open choice taken: θ_o normalizes the way θ_a does (`source_statistics=` of the adapter changes that).

    Args:
        margin: 0 for classification; the paper relaxes it to −0.2 for segmentation.
        on: "softmax" compares probabilities; "logits" is the paper's ablation.

    Reference:
        Lee et al., "Towards Open-Set Test-Time Adaptation Utilizing the Wisdom of Crowds in Entropy Minimization",
        ICCV 2023.
    """

    mean_entropy = 0.5

    def __init__(self, margin: float = 0.0, on: str = "softmax") -> None:
        super().__init__()
        if on not in ("softmax", "logits"):
            raise ConfigurationError(f'Expected `on` to be "softmax" or "logits", but got {on!r}.')
        if not isinstance(margin, SupportsFloat) or not math.isfinite(margin):
            raise ConfigurationError(f"Expected `margin` to be a number, but got {margin!r}.")
        self.margin = margin
        self.on = on

    def weights(self, step: Step) -> Tensor:
        """One where the confidence did not fall by more than the margin allows."""
        gain = step.confidence_change if self.on == "softmax" else step.logit_change
        return (gain >= self.margin).to(step.weights.dtype)


class EntropyBelow(Selection):
    """Learn from samples with H(ŷ) < E0.

    Args:
        threshold: E0 in nats; None means 0.4 ln C.
    """

    def __init__(self, threshold: float | None = None) -> None:
        super().__init__()
        self.threshold = threshold

    def weights(self, step: Step) -> Tensor:
        """One where the prediction is sure enough."""
        return (_entropy(step) < _entropy_limit(self.threshold, step)).to(step.weights.dtype)


class EntropyWeight(Selection):
    """Weigh samples by exp(E0 − H(ŷ)): the surer, the more.

    Args:
        threshold: E0 in nats; None means 0.4 ln C.
    """

    def __init__(self, threshold: float | None = None) -> None:
        super().__init__()
        self.threshold = threshold

    def weights(self, step: Step) -> Tensor:
        """Larger where the prediction is surer."""
        return torch.exp(_entropy_limit(self.threshold, step) - _entropy(step))


class ConfidenceAbove(Selection):
    """Learn from samples with max_k ŷ^k ≥ threshold.

    Args:
        threshold: The least confidence.
    """

    def __init__(self, threshold: float = 0.9) -> None:
        super().__init__()
        if not 0.0 <= threshold <= 1.0:
            raise ConfigurationError(f"Expected `threshold` to be in 0..1, but got {threshold}.")
        self.threshold = threshold

    def weights(self, step: Step) -> Tensor:
        """One where the prediction is confident enough."""
        return (step.log_probabilities.detach().amax(dim=1).exp() >= self.threshold).to(step.weights.dtype)


class NonRedundant(Selection):
    """Learn from samples unlike what was learned before: |cos(m, ŷ)| < ε.

    m is a moving average of the mean kept prediction, m ← 0.9 m + 0.1·mean, counted after every other selection has
    had its say; while nothing has been kept yet, all samples pass.

    Args:
        similarity: ε.
        momentum: Share of itself the average keeps.
    """

    average: Tensor | None

    def __init__(self, similarity: float, momentum: float = 0.9) -> None:
        super().__init__()
        self.similarity = similarity
        self.momentum = momentum
        self.register_buffer("average", None)

    def begin(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Nothing has been kept yet."""
        self.average = None

    def weights(self, step: Step) -> Tensor:
        """One where the prediction points away from the average."""
        if self.average is None:
            return torch.ones_like(step.weights)
        p = step.log_probabilities.detach().exp()
        average = self.average.view(1, -1, *([1] * (p.ndim - 2)))
        cosine = torch.cosine_similarity(p, average, dim=1)
        return (cosine.abs() < self.similarity).to(step.weights.dtype)

    def on_batch(self, step: Step) -> None:
        """Move the average towards what was kept; where nothing was, leave it."""
        kept = (step.weights > 0).to(step.weights.dtype)
        p = step.log_probabilities.detach().exp().transpose(0, 1)
        total, count = step.distributed.sum((p * kept).flatten(start_dim=1).sum(dim=1), kept.sum())
        mean = total / count.clamp(min=1)
        # A zero vector stands for "nothing kept yet": its cosine with everything is zero.
        before = torch.zeros_like(mean) if self.average is None else self.average
        moved = torch.where(before.any(), torch.lerp(mean, before, self.momentum), mean)
        self.average = torch.where(count > 0, moved, before)


class IgnorePadding(Selection):
    """Learn from no pixel of the black bars that a frame was padded with, neither by itself nor as part of ȳ.

    A bar is made of whole columns, or whole rows, of black pixels along an edge of the frame.

    Examples:
        >>> frame = torch.ones(1, 3, 2, 5)
        >>> frame[..., :1] = frame[..., 3:] = 0.0
        >>> _frames_of(frame)
        tensor([[[False,  True,  True, False, False],
                 [False,  True,  True, False, False]]])
    """

    def weights(self, step: Step) -> Tensor:
        """One for every pixel of the picture itself."""
        inside = _frames_of(step.images)
        if inside.shape != step.weights.shape:
            raise ModelError(
                f"Expected a model with a prediction for every pixel, {tuple(inside.shape)}, for `IgnorePadding`, "
                f"but its predictions are {tuple(step.weights.shape)}."
            )
        return inside.to(step.weights.dtype)

    def present(self, step: Step) -> Tensor:
        """The picture itself."""
        return _frames_of(step.images)


def _frames_of(images: Tensor) -> Tensor:
    black = (images == 0).all(dim=1)
    columns, rows = _at_the_edges(black.all(dim=1)), _at_the_edges(black.all(dim=2))
    return ~(columns.unsqueeze(1) | rows.unsqueeze(2))


def _at_the_edges(dark: Tensor) -> Tensor:
    """The dark ones from which there are only dark ones up to one of the ends."""
    before = dark.byte().cummin(dim=1).values
    after = dark.flip(1).byte().cummin(dim=1).values.flip(1)
    return (before | after).bool()


def _entropy(step: Step) -> Tensor:
    return entropy(step.log_probabilities.detach(), step.probabilities.detach())


def _entropy_limit(threshold: float | None, step: Step) -> float:
    return 0.4 * math.log(step.classes) if threshold is None else threshold
