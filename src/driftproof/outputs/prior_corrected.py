"""Prediction corrected for how often each class occurs in the batch (ROID)."""

from typing import Literal

from torch import Tensor

from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.outputs.base import Output
from driftproof.predictions import mean_prediction

__all__ = ["PriorCorrected"]


class PriorCorrected(Output):
    """Weights every class by its smoothed share π̂ of the batch.

    π̂ = (ȳ + t)/(1 + t·C) with t = max(1/N, 1/C)/max ȳ. Use it where the classes of a batch are out of balance.

    Args:
        on: "probabilities" returns ln ŷ + ln π̂, as the paper has it. "logits" returns z·π̂, as the authors' code
            has it: it lowers a negative logit of a rare class less than that of a frequent one.

    Reference:
        Marsden et al., "Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and Prior
        Correction", WACV 2024.
    """

    def __init__(self, on: Literal["probabilities", "logits"] = "probabilities") -> None:
        super().__init__()
        if on not in ("probabilities", "logits"):
            raise ConfigurationError(f'Expected `on` to be "probabilities" or "logits", but got {on!r}.')
        self.on = on

    def predict(self, step: Step) -> Tensor:
        """The corrected prediction."""
        prior = mean_prediction(step.probabilities, step.distributed)
        samples = step.distributed.global_count(step.weights.numel())
        smooth = max(1 / samples, 1 / step.classes) / prior.amax()
        prior = ((prior + smooth) / (1 + smooth * step.classes)).view(1, -1, *([1] * (step.logits.ndim - 2)))
        return step.logits * prior if self.on == "logits" else step.log_probabilities + prior.log()
