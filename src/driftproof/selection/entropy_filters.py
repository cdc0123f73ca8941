"""Selection by the entropy of the adapting network and of its teacher (PAF-KIP)."""

from typing import Literal

import torch

from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.predictions import entropy, log_probabilities
from driftproof.selection.base import SampleWeights, Selection
from driftproof.selection.entropy import entropy_limit
from driftproof.validation import check_choice

__all__ = ["EntropyFilters"]

_LARGEST = 10.0


class EntropyFilters(Selection):
    """Attract samples that the network is sure of; repel those of which neither it nor its teacher is.

    With τ the threshold, h the entropy of the adapting network and h_e that of the teacher, each on a fresh view if the
    method has a `view`: samples with h < τ attract with weight exp(τ − h_e), samples with h ≥ τ and h_e ≥ τ repel, and
    the others take no part. Needs `teacher=`.

    Args:
        threshold: τ in nats; None is 0.4 ln C.
        repel: α, the weight of repelling samples.
        attract: Who has to be sure of a sample that attracts: the "network" alone, or "both" networks.
        reweight: Whether attracting samples are weighted, at most by e^10; else each counts one.
    """

    def __init__(
        self,
        threshold: float | None = None,
        *,
        repel: float = 2.0,
        attract: Literal["network", "both"] = "network",
        reweight: bool = True,
    ) -> None:
        super().__init__()
        check_choice("attract", attract, ("network", "both"))
        if not repel >= 0:
            raise ConfigurationError(f"Expected `repel` to be at least 0, but got {repel}.")
        self.threshold, self.repel, self.attract, self.reweight = threshold, repel, attract, reweight

    def weights(self, step: Step) -> SampleWeights:
        """The weights of the two groups."""
        limit = entropy_limit(self.threshold, step.logits)
        with torch.no_grad():
            logits = step.logits if step.view is None else step.network(step.draw_view())
            own, teachers = entropy(log_probabilities(logits)), entropy(log_probabilities(step.teacher_logits))
            attract = own < limit if self.attract == "network" else (own < limit) & (teachers < limit)
            repel = (own >= limit) & (teachers >= limit)
            weight = (limit - teachers).clamp(-_LARGEST, _LARGEST).exp() if self.reweight else torch.ones_like(own)
            return SampleWeights(attract * weight, self.repel * repel.to(weight.dtype))
