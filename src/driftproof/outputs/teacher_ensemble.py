"""The teacher's prediction, averaged over views where the source model is unsure (CoTTA)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from driftproof.augment import Augment, check_unit_range, cotta_view
from driftproof.components import PrepareContext, Step
from driftproof.errors import ConfigurationError
from driftproof.outputs.base import Output
from driftproof.outputs.views import Predict, average_views
from driftproof.predictions import log_probabilities

__all__ = ["MultiScale", "RandomViews", "TeacherEnsemble"]

_BINS = 2**16


class RandomViews:
    """The mean of the teacher's logits over randomly augmented copies of the batch.

    Args:
        count: How many copies.
        augment: How each is made.
    """

    def __init__(self, count: int = 32, augment: Augment = cotta_view) -> None:
        if count < 1:
            raise ConfigurationError(f"Expected `count` to be at least 1, but got {count}.")
        self.count = count
        self.augment = augment

    def __call__(self, teacher: Predict, step: Step) -> Tensor:
        """The averaged logits."""
        check_unit_range(step.images, self.augment)
        return average_views(teacher, step, self.augment, self.count)

    def __repr__(self) -> str:
        return f"RandomViews(count={self.count}, augment={getattr(self.augment, '__qualname__', self.augment)})"


class MultiScale:
    """The log of the teacher's mean probabilities over rescaled and mirrored copies, pixel by pixel.

    Args:
        scales: Factors on height and width.
    """

    def __init__(self, scales: tuple[float, ...] = (0.5, 0.75, 1.0, 1.25, 1.5)) -> None:
        if not scales or min(scales) <= 0:
            raise ConfigurationError(f"Expected `scales` to be positive factors, but got {scales}.")
        self.scales = scales

    def __call__(self, teacher: Predict, step: Step) -> Tensor:
        """The averaged prediction as log-probabilities."""
        size = step.logits.shape[2:]
        total = torch.zeros_like(step.log_probabilities)
        for scale in self.scales:
            resized = [max(1, round(side * scale)) for side in step.images.shape[2:]]
            view = F.interpolate(step.images, size=resized, mode="bilinear", align_corners=False)
            for mirrored in (False, True):
                logits = teacher(view.flip(-1) if mirrored else view)
                logits = logits.flip(-1) if mirrored else logits
                aligned = F.interpolate(logits, size=list(size), mode="bilinear", align_corners=False)
                total = total + log_probabilities(aligned).exp()
        return (total / (2 * len(self.scales))).clamp(min=1e-8).log()

    def __repr__(self) -> str:
        return f"MultiScale(scales={self.scales})"


class TeacherEnsemble(Output):
    """The teacher's logits; where the source model is unsure, averaged over several views. Needs `teacher=`.

    Classification: the rule is per batch (mean of the source model's largest probability below the threshold). The
    views are computed only when they are used, so the host waits for the device in this step. Segmentation (rank-4
    logits): the rule is per pixel and the output is a map of log-probabilities.

    Open choices taken: the threshold's quantile is over all source images, with the source model in evaluation mode; in
    segmentation the ensemble is five scales with mirroring.

    Args:
        threshold: p_th; None takes the 5 % quantile of the source model's largest probability, less 0.05, from
            `prepare`.
        views: The ensemble for rank-2 logits; None is 32 random views.
        scales: The ensemble for rank-4 logits; None is five scales.
    """

    dynamic_reason = "its teacher looks at more views only when the source model is unsure"

    def __init__(
        self, threshold: float | None = None, *, views: RandomViews | None = None, scales: MultiScale | None = None
    ) -> None:
        super().__init__()
        self.threshold = threshold
        self.views = views or RandomViews()
        self.scales = scales or MultiScale()
        self.register_buffer("source_threshold", None)

    @property
    def prepared(self) -> bool:
        """Whether the threshold is known."""
        return self.threshold is not None or self.source_threshold is not None

    def prepare(self, context: PrepareContext) -> None:
        """Find the threshold from the source model's confidence on its own data."""
        if self.threshold is not None:
            return
        histogram = torch.zeros(_BINS, device=context.device, dtype=torch.float64)
        with torch.no_grad():
            for images, _ in context.batches("CoTTA threshold", size=None):
                top = log_probabilities(context.source_network(images)).amax(dim=1).exp()
                histogram += torch.histc(top.float(), bins=_BINS, min=0.0, max=1.0)
        self.source_threshold = _quantile(histogram, 0.05) - 0.05

    @property
    def prepared_values(self) -> dict[str, float]:
        """The threshold, where it comes from source data."""
        return {} if self.source_threshold is None else {"threshold": float(self.source_threshold)}

    def predict(self, step: Step) -> Tensor:
        """The teacher's answer, plain or averaged."""
        plain = step.teacher_logits
        top = log_probabilities(step.source_logits).amax(dim=1).exp()
        threshold = self.threshold if self.threshold is not None else self.source_threshold
        if step.logits.ndim == 2:
            return self.views(step.teacher, step) if step.distributed.mean(top) < threshold else plain
        return torch.where((top > threshold).unsqueeze(1), log_probabilities(plain), self.scales(step.teacher, step))


def _quantile(histogram: Tensor, share: float) -> Tensor:
    """The value in [0, 1] below which `share` of a histogram lies, to within one bin.

    A histogram because the values may be the pixels of thousands of images.
    """
    reached = histogram.cumsum(0) >= share * histogram.sum()
    return reached.to(torch.uint8).argmax() / _BINS
