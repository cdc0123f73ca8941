"""Keeps the moving averages that health is judged by."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from driftproof.components import Component, Step
from driftproof.distributed import Distributed
from driftproof.kernels import runs_triton
from driftproof.network import Network
from driftproof.predictions import entropy, log_probabilities, mean_prediction, mean_prediction_entropy

__all__ = ["HealthMonitor"]

_WINDOW, _LEAST = 2000, 0.05
_MOST_CLASSES, _DTYPES = 1024, (torch.float32, torch.int64)
_FEW, _CONCENTRATED, _MOVED = 32, 0.67, 0.4
_COMPARED, _GAP, _ENOUGH = 0.5, 0.3, 16
"""Weights of what only extra passes show, since there are few of them. Fewer samples than `_ENOUGH` weigh less."""


class HealthMonitor(Component):
    """Moving averages of mean predictions, of the share kept, and of disagreement with the frozen network.

    They remember about 2,000 samples, at most 20 batches, and start at zero: the sum of a mean prediction says how much
    has come in. What needs the frozen network is taken in by every step that runs it, and by `measure`.

    Attributes:
        compares: Whether steps run the frozen network.
        averages: The answer's mean prediction (C) and kept, the frozen network's (C) and disagreement, then
            distance and statistics gap; None before the first batch. `Health.from_averages` reads it.
        trained: The moving mean prediction with the statistics of training, (C); zero before it is first measured.
    """

    averages: Tensor | None
    trained: Tensor | None
    compares = False

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("averages", None)
        self.register_buffer("trained", None)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget everything; the number of classes too."""
        self.averages = self.trained = None

    def clear(self) -> None:
        """Start anew between two steps, for other weights; what the stream's classes were stays known."""
        if self.averages is not None:
            self.averages.copy_(_empty(self.averages, len(self.averages)))

    def update(self, step: Step, selected: Tensor) -> None:
        """Take in a batch during its step, without gradients."""
        answer, ranks = step.output, step.distributed  # what users get, which may fail where the network does not
        p = step.probabilities if answer is step.logits else log_probabilities(answer).exp()
        if self.compares != step.used_source:
            self.compares = step.used_source
        averages = _empty(p, 2 * (step.classes + 1) + 2) if self.averages is None else self.averages
        if self.trained is None:
            self.trained = torch.zeros_like(averages[: step.classes])
        source = (step.source_probabilities, answer, step.source_classes) if step.used_source else ()
        weight = min(1.0, max(_LEAST, ranks.global_count(selected.numel()) / _WINDOW))
        if ranks.size == 1 and _is_supported(averages, p, selected, *source):
            from driftproof.kernels import triton_conclusion

            self.averages = triton_conclusion.blend_averages(averages, p, selected, *source, weight=weight)
            return
        compared = (step.source_probabilities, answer.argmax(dim=1) != step.source_classes) if source else ()
        now, averages = _means([p, selected, *compared], ranks), averages.clone()
        averages[: len(now)].lerp_(now, weight)
        self.averages = averages

    def measure(
        self,
        logits: Tensor,
        source_logits: Tensor,
        trained_logits: Tensor,
        distance: Tensor,
        distributed: Distributed,
    ) -> None:
        """Take in, between two steps, what extra passes of the frozen network show.

        Args:
            logits: What the adapter answered.
            source_logits: Of the frozen network with the same statistics.
            trained_logits: Of the frozen network with the statistics of its training.
            distance: ‖θ − θ_o‖ / ‖θ_o‖.
            distributed: The ranks that share the batch.
        """
        if self.averages is None or self.trained is None:
            return
        half = (len(self.averages) - 2) // 2
        source = self.averages[half:-2]
        samples = distributed.global_count(logits[:, 0].numel())
        size = min(1.0, samples / _ENOUGH)
        if not self.compares:
            source = torch.lerp(source, _compare(logits, source_logits, distributed), _COMPARED * size)
        surer = _mean_entropy(source_logits, distributed) - _mean_entropy(trained_logits, distributed)
        gap = surer / math.log(max(2, logits.shape[1]))
        if samples >= _FEW:
            # Unknown images widen the gap too, and a shift may drive a network into few classes. Only class-ordered
            # images concentrate the mean prediction on classes that change with time.
            ratio = _diversity(trained_logits, distributed) / _diversity(source_logits, distributed)
            now = mean_prediction(log_probabilities(trained_logits).exp(), distributed)
            total = self.trained.sum()
            moved = 0.5 * (now - self.trained / total.clamp(min=1e-6)).abs().sum()
            is_ordered = (ratio < _CONCENTRATED) & (moved > _MOVED) & (total > 0)
            gap = torch.where(is_ordered, gap, torch.zeros_like(gap))
            self.trained.copy_(torch.where(now.isfinite().all(), torch.lerp(self.trained, now, _GAP), self.trained))
        else:
            gap = 0.5 * gap  # statistics of a few images are coarse, which alone does little harm
        gap = torch.lerp(self.averages[-1].nan_to_num(), gap, _GAP * size)
        now = torch.cat([self.averages[:half], source, torch.stack([distance, gap]).to(source.dtype)])
        finite = now[:-2].isfinite().all() & gap.isfinite()
        self.averages.copy_(torch.where(finite, now, self.averages))


def _is_supported(averages: Tensor, p: Tensor, selected: Tensor, *source: Tensor) -> bool:
    """Whether the kernel takes them: predictions of images for not too many classes, in single precision."""
    if not p.is_cuda or p.ndim != 2 or p.shape[1] > _MOST_CLASSES:
        return False
    single = averages.dtype == p.dtype == torch.float32 and all(one.dtype in _DTYPES for one in source)
    return single and all(one.is_contiguous() for one in (p, selected, *source)) and runs_triton(p.device)


def _empty(like: Tensor, size: int) -> Tensor:
    """No predictions yet, and two numbers that are unknown."""
    averages = torch.zeros(size, dtype=like.dtype, device=like.device)
    averages[-2:] = math.nan
    return averages


def _compare(logits: Tensor, source_logits: Tensor, distributed: Distributed) -> Tensor:
    """The frozen network's mean prediction (C), and the share of predictions that differ from its own."""
    p, differ = log_probabilities(source_logits).exp(), logits.argmax(dim=1) != source_logits.argmax(dim=1)
    return _means([p, differ], distributed)


def _means(parts: Sequence[Tensor], distributed: Distributed) -> Tensor:
    """The means over the samples of all ranks: predictions class by class, then masks, in one vector."""
    samples = parts[-1].numel()
    sums = torch.cat([_sum_over_samples(part, like=parts[-1]) for part in parts])
    return distributed.sum(sums)[0] / distributed.global_count(samples)


def _sum_over_samples(part: Tensor, like: Tensor) -> Tensor:
    if part.ndim == like.ndim:
        return part.sum(dim=0, keepdim=True) if part.ndim == 1 else part.sum().reshape(1)
    return part.sum(dim=[0, *range(2, part.ndim)])


def _diversity(logits: Tensor, distributed: Distributed) -> Tensor:
    return mean_prediction_entropy(log_probabilities(logits).exp(), distributed=distributed)


def _mean_entropy(logits: Tensor, distributed: Distributed) -> Tensor:
    return distributed.mean(entropy(log_probabilities(logits)))
