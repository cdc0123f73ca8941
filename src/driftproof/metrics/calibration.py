"""Expected calibration error."""

import torch
from torch import Tensor

from driftproof.errors import ConfigurationError
from driftproof.metrics.shapes import check_same_shape

__all__ = ["calibration_error"]


def calibration_error(confidence: Tensor, correct: Tensor, *, bins: int = 15) -> float:
    """Return the expected calibration error (ECE), in [0, 1]; NaN without samples.

    Σ_b n_b / N · |accuracy_b − mean confidence_b| over bins of equal width; a bin includes its upper edge.

    Args:
        confidence: Largest probability of each sample, of any shape.
        correct: Boolean, whether each prediction is correct, same shape.
        bins: Number of bins.

    Examples:
        >>> calibration_error(torch.tensor([0.75, 0.75]), torch.tensor([True, False]))
        0.25
    """
    check_same_shape(confidence=confidence, correct=correct)
    if bins < 1:
        raise ConfigurationError(f"Expected `bins` to be at least 1, but got {bins}.")
    if not confidence.numel():
        return float("nan")
    confidence = confidence.flatten().double()
    index = (confidence * bins).ceil().clamp(1, bins) - 1
    members = index == torch.arange(bins, device=index.device).unsqueeze(1)
    gaps = (members * (correct.flatten().double() - confidence)).sum(dim=1)  # n_b · (accuracy_b − confidence_b)
    return float(gaps.abs().sum() / len(confidence))
