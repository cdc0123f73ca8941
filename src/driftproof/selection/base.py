"""What every selection gives: a weight ≥ 0 per sample (pixel), never an index."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from driftproof.components import Component, Compose, Step

__all__ = ["Product", "SampleWeights", "Selection"]


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
        average_over: The `average_over` that goes with this selection unless the caller says otherwise.
        keeps_filter: Whether a filter of the method's own acts beside this selection; else this replaces it.

    Examples:
        The smallest new selection.

        >>> class FirstHalf(Selection):
        ...     def weights(self, step):
        ...         weights = torch.zeros_like(step.weights)
        ...         weights[: len(weights) // 2] = 1
        ...         return weights
    """

    mean_entropy: float = 0.0
    average_over: Literal["selected", "batch"] = "selected"
    keeps_filter: bool = False

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

    @property
    def average_over(self) -> Literal["selected", "batch"]:  # type: ignore[override]
        """The batch only if all selections say so: one that leaves samples out averages over the others."""
        return "batch" if all(one.average_over == "batch" for one in self.components) else "selected"

    @property
    def keeps_filter(self) -> bool:  # type: ignore[override]
        """Whether no selection replaces the method's filter."""
        return all(one.keeps_filter for one in self.components)

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
