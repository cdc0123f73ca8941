"""Agreement with a slowly moving teacher (CoTTA)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftproof.augment import Augment, check_unit_range, cotta_view
from driftproof.components import PrepareContext, Step
from driftproof.errors import ConfigurationError
from driftproof.losses.base import Loss
from driftproof.network import Network
from driftproof.predictions import log_probabilities

__all__ = ["Consistency", "MultiScale", "RandomViews"]

_BINS = 2**16

Predict = Callable[[Tensor], Tensor]


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
        total = teacher(step.view(self.augment))
        for _ in range(self.count - 1):
            total = total + teacher(step.view(self.augment))
        return total / self.count

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


class Consistency(Loss):
    """Cross-entropy with a teacher that is an exponential moving average of the student.

    Where the frozen model is unsure, the teacher answers for an ensemble of views; elsewhere for the plain batch. The
    adapter returns the teacher's answer.

    Classification: the rule is per batch (mean of the frozen model's largest probability below the threshold) and the
    targets are soft. The views are computed only when they are used, which is why a host–device synchronization stands
    in this step. Segmentation (rank-4 logits): the rule is per pixel, the targets are hard labels and the answer is a
    map of log-probabilities.

    Open choices taken: the threshold rule's quantile is over all source images, with the source model in evaluation
    mode; in segmentation the ensemble is five scales with mirroring.

    Args:
        threshold: p_th; None takes the 5 % quantile of the source model's largest probability, less 0.05, from
            `prepare`.
        momentum: Share of itself the teacher keeps at each step.
        views: The ensemble for rank-2 logits.
        scales: The ensemble for rank-4 logits.
        symmetric: Also train the teacher's answer's view of the student, ½[CE(z*→z) + CE(z→z*)], as CoTTA does on
            ImageNet.
    """

    dynamic_reason = "its teacher looks at more views only when the frozen model is unsure"

    def __init__(
        self,
        threshold: float | None = None,
        momentum: float = 0.999,
        *,
        views: RandomViews | None = None,
        scales: MultiScale | None = None,
        symmetric: bool = False,
    ) -> None:
        super().__init__()
        if not 0.0 <= momentum <= 1.0:
            raise ConfigurationError(f"Expected `momentum` to be in 0..1, but got {momentum}.")
        self.threshold = threshold
        self.momentum = momentum
        self.views = views or RandomViews()
        self.scales = scales or MultiScale()
        self.symmetric = symmetric
        self.teacher: Network | None = None
        self.register_buffer("source_threshold", None)

    @property
    def prepared(self) -> bool:
        """Whether the threshold is known."""
        return self.threshold is not None or self.source_threshold is not None

    def prepare(self, preparation: PrepareContext) -> None:
        """Find the threshold from the source model's confidence on its own data."""
        if self.threshold is not None:
            return
        histogram = torch.zeros(_BINS, device=preparation.device, dtype=torch.float64)
        with torch.no_grad():
            for images, _ in preparation.batches("CoTTA threshold", size=None):
                top = log_probabilities(preparation.source_network(images)).amax(dim=1).exp()
                histogram += torch.histc(top.float(), bins=_BINS, min=0.0, max=1.0)
        self.source_threshold = _quantile(histogram, 0.05) - 0.05

    @property
    def found(self) -> dict[str, float]:
        """The threshold, where it comes from source data."""
        return {} if self.source_threshold is None else {"threshold": float(self.source_threshold)}

    def begin(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """The teacher starts where the student starts."""
        self.teacher = network.clone().requires_grad_(False)

    def predict(self, step: Step) -> Tensor:
        """The teacher's answer."""
        self._network.discard()  # what it saw of a batch from which nothing was learned
        with torch.no_grad():
            plain = self._teach(step.images)
            top = log_probabilities(step.source_logits).amax(dim=1).exp()
            threshold = self.threshold if self.threshold is not None else self.source_threshold
            if step.logits.ndim == 2:
                return self.views(self._teach, step) if step.distributed.mean(top) < threshold else plain
            return torch.where((top > threshold).unsqueeze(1), log_probabilities(plain), self.scales(self._teach, step))

    def per_sample(self, step: Step) -> Tensor:
        """Cross-entropy with the teacher's answer: soft for images, its label for pixels."""
        if step.logits.ndim > 2:
            labels = step.answer.argmax(dim=1, keepdim=True)
            return -step.log_probabilities.gather(1, labels).squeeze(1)
        target = log_probabilities(step.answer)
        forth = -(target.exp() * step.log_probabilities).sum(dim=1)
        if not self.symmetric:
            return forth
        back = -(step.log_probabilities.exp() * target).sum(dim=1)
        return 0.5 * (forth + back)

    def on_batch(self, step: Step) -> None:
        """Keep the teacher's statistics of the stream, where its rule has any."""
        self._network.commit()

    def on_step(self, step: Step) -> None:
        """Move the teacher a little towards the student."""
        ours, theirs = (_fractional(network.model) for network in (self._network, step.network))
        with torch.no_grad():
            torch._foreach_lerp_(ours, theirs, 1.0 - self.momentum)

    @property
    def _network(self) -> Network:
        assert self.teacher is not None, "begin() comes first"
        return self.teacher

    def _teach(self, images: Tensor) -> Tensor:
        return self._network(images)


def _fractional(model: nn.Module) -> list[Tensor]:
    """The parameters that are not whole numbers, and can move a little."""
    return [parameter for parameter in model.parameters() if parameter.is_floating_point()]


def _quantile(histogram: Tensor, share: float) -> Tensor:
    """The value in [0, 1] below which `share` of a histogram lies, to within one bin.

    A histogram because the values may be the pixels of thousands of images.
    """
    reached = histogram.cumsum(0) >= share * histogram.sum()
    return reached.to(torch.uint8).argmax() / _BINS
