"""Which samples to learn from: a weight ≥ 0 per sample (pixel), never an index.

Weights keep every shape static. Combine selections with `&`: the weights multiply.
"""

import math
from typing import Literal, NamedTuple, SupportsFloat

import torch
from torch import Tensor, nn

from driftproof.components import Component, Compose, Step
from driftproof.errors import ConfigurationError, ModelError
from driftproof.network import Network
from driftproof.predictions import entropy, log_probabilities

__all__ = [
    "ConfidenceAbove",
    "ConfidenceDifference",
    "EntropyBelow",
    "EntropyWeight",
    "IgnorePadding",
    "NonRedundant",
    "Product",
    "SampleWeights",
    "Selection",
]

WhichNetwork = Literal["adapting", "source"]


class SampleWeights(NamedTuple):
    """Two weights ≥ 0 for every sample, (N,) or (N, H, W).

    Attributes:
        attract: The loss of these samples is minimized.
        repel: The loss of these samples is maximized; None is none of them.
    """

    attract: Tensor
    repel: Tensor | None = None


class Selection(Component):
    """A weight for every sample; zero leaves the sample out.

    Attributes:
        mean_entropy: The λ_max that goes with this selection unless the caller says otherwise.

    Examples:
        The smallest new selection.

        >>> class FirstHalf(Selection):
        ...     def weights(self, step):
        ...         weights = torch.zeros_like(step.weights)
        ...         weights[: len(weights) // 2] = 1
        ...         return weights
    """

    mean_entropy: float = 0.0

    def weights(self, step: Step) -> Tensor | SampleWeights:
        """The weight of each sample, (N,) or (N, H, W), or `SampleWeights`; no gradient flows through it."""
        raise NotImplementedError

    def valid_mask(self, step: Step) -> Tensor | None:
        """Which samples are real, as a boolean mask; None is all. The others do not count in ȳ either."""
        return None

    def __and__(self, other: "Selection") -> "Product":
        return Product(self, other)


class Product(Compose, Selection):
    """Several selections: their weights multiply."""

    def __init__(self, *selections: Selection) -> None:
        inner = (one.components if isinstance(one, Product) else (one,) for one in selections)
        super().__init__(*(component for components in inner for component in components))

    @property
    def mean_entropy(self) -> float:  # type: ignore[override]  # a class attribute for single selections
        """The largest of the selections'."""
        return float(max(one.mean_entropy for one in self.components))

    def weights(self, step: Step) -> Tensor | SampleWeights:
        """The product of the weights; repelling weights come from the selections that give some."""
        attract, repel = torch.ones_like(step.weights), None
        for one in self.components:
            given = one.weights(step)
            if isinstance(given, SampleWeights):
                repel = given.repel if repel is None or given.repel is None else repel * given.repel
                given = given.attract
            attract = attract * given
        return attract if repel is None else SampleWeights(attract, repel)

    def valid_mask(self, step: Step) -> Tensor | None:
        """Which samples are real for every selection."""
        found = [one.valid_mask(step) for one in self.components]
        masks = [mask for mask in found if mask is not None]  # torch.compile cannot trace `:=` in a comprehension
        return torch.stack(masks).all(dim=0) if masks else None

    def __repr__(self) -> str:
        return " & ".join(repr(one) for one in self.components)


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
        network: Whose prediction to read, the "adapting" or the "source" network's.
    """

    def __init__(self, threshold: float | None = None, network: WhichNetwork = "adapting") -> None:
        super().__init__()
        _check_network(network)
        self.threshold = threshold
        self.network = network

    def weights(self, step: Step) -> Tensor:
        """One where the prediction is certain enough."""
        if self.network == "source":
            log_p = log_probabilities(step.source_logits)
            return (entropy(log_p) < _entropy_limit(self.threshold, log_p)).to(step.weights.dtype)
        return (_entropy(step) < _entropy_limit(self.threshold, step.logits)).to(step.weights.dtype)


class EntropyWeight(Selection):
    """Weight samples by exp(E0 − H(ŷ)): the more certain, the more.

    Args:
        threshold: E0 in nats; None means 0.4 ln C.
    """

    def __init__(self, threshold: float | None = None) -> None:
        super().__init__()
        self.threshold = threshold

    def weights(self, step: Step) -> Tensor:
        """Larger where the prediction is more certain."""
        return torch.exp(_entropy_limit(self.threshold, step.logits) - _entropy(step))


class ConfidenceAbove(Selection):
    """Learn from samples with max_k ŷ^k ≥ threshold.

    Args:
        threshold: The lowest confidence.
        network: Whose prediction to read, the "adapting" or the "source" network's.
    """

    def __init__(self, threshold: float = 0.9, network: WhichNetwork = "adapting") -> None:
        super().__init__()
        if not 0.0 <= threshold <= 1.0:
            raise ConfigurationError(f"Expected `threshold` to be in 0..1, but got {threshold}.")
        _check_network(network)
        self.threshold = threshold
        self.network = network

    def weights(self, step: Step) -> Tensor:
        """One where the prediction is confident enough."""
        from_source = self.network == "source"
        log_p = log_probabilities(step.source_logits) if from_source else step.log_probabilities.detach()
        return (log_p.amax(dim=1).exp() >= self.threshold).to(step.weights.dtype)


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

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget the average."""
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
        >>> _content_mask(frame)
        tensor([[[False,  True,  True, False, False],
                 [False,  True,  True, False, False]]])
    """

    def weights(self, step: Step) -> Tensor:
        """One for every pixel of the picture itself."""
        inside = _content_mask(step.images)
        if inside.shape != step.weights.shape:
            raise ModelError(
                f"Expected a model with a prediction for every pixel, {tuple(inside.shape)}, for `IgnorePadding`, "
                f"but its predictions are {tuple(step.weights.shape)}."
            )
        return inside.to(step.weights.dtype)

    def valid_mask(self, step: Step) -> Tensor:
        """The pixels of the picture itself."""
        return _content_mask(step.images)


def _content_mask(images: Tensor) -> Tensor:
    black = (images == 0).all(dim=1)
    columns, rows = _connected_to_edge(black.all(dim=1)), _connected_to_edge(black.all(dim=2))
    return ~(columns.unsqueeze(1) | rows.unsqueeze(2))


def _connected_to_edge(dark: Tensor) -> Tensor:
    """The dark ones from which there are only dark ones up to one of the ends."""
    before = dark.byte().cummin(dim=1).values
    after = dark.flip(1).byte().cummin(dim=1).values.flip(1)
    return (before | after).bool()


def _entropy(step: Step) -> Tensor:
    return entropy(step.log_probabilities.detach(), step.probabilities.detach())


def _entropy_limit(threshold: float | None, logits: Tensor) -> float:
    return 0.4 * math.log(logits.shape[1]) if threshold is None else threshold


def _check_network(network: str) -> None:
    if network not in ("adapting", "source"):
        raise ConfigurationError(f'Expected `network` to be "adapting" or "source", but got {network!r}.')
