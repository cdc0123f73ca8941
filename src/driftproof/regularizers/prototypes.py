"""Align features with the nearest source prototypes (NSP, of SWR)."""

import logging
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from driftproof.augment import Augment, photometric
from driftproof.components import PrepareContext, Step
from driftproof.errors import ConfigurationError, ModelError
from driftproof.predictions import entropy, log_probabilities, mean_prediction_entropy
from driftproof.regularizers.base import Regularizer

__all__ = ["NearestPrototypes"]

_log = logging.getLogger(__name__)

_PROJECTION = ("hidden_weight", "hidden_bias", "output_weight", "output_bias")


class NearestPrototypes(Regularizer):
    """λ_a1·mean H(π) − λ_a2·H(π̄) + λ_s·mean CE(π(x) → π(x')), with π the similarity to source prototypes.

    π^k(x) = softmax_k(cos(h(f(x)), q_k)/τ): f the features that enter the classifier, h a two-layer projection, q_k
    the mean projected source feature of class k. `prepare` trains h with labels on source images and their augmented
    copies, then freezes it and computes q over all source data. At test time only the encoder learns from this term,
    and no selection applies to it.

    Open choices taken: projection to 128 dimensions, τ = 0.1, Adam at 1e-3 for 10 passes of batches of 200, prototypes
    averaged with momentum 0.99 while h trains; λ_a1 = 0.8, λ_a2 = 0.25, λ_s = 0.1; π(x) is a constant in the last term.

    Args:
        sample_entropy: λ_a1.
        mean_entropy: λ_a2.
        consistency_weight: λ_s.
        temperature: τ.
        dimensions: Width of the projection's output.
        epochs: Passes over the source data that train h.
        lr: Learning rate of h.
        batch_size: Images per batch.
        augment: Makes the transformed copy x'.
    """

    needs_features = True
    prototypes: Tensor | None
    source_accuracy: Tensor | None

    def __init__(
        self,
        *,
        sample_entropy: float = 0.8,
        mean_entropy: float = 0.25,
        consistency_weight: float = 0.1,
        temperature: float = 0.1,
        dimensions: int = 128,
        epochs: int = 10,
        lr: float = 1e-3,
        batch_size: int = 200,
        augment: Augment = photometric,
    ) -> None:
        super().__init__()
        if temperature <= 0 or dimensions < 1 or epochs < 0 or batch_size < 1:
            raise ConfigurationError(
                "Expected a positive `temperature`, `dimensions` and `batch_size` of at least 1 and `epochs` of at "
                f"least 0, but got {temperature}, {dimensions}, {batch_size} and {epochs}."
            )
        self.sample_entropy = sample_entropy
        self.mean_entropy = mean_entropy
        self.consistency_weight = consistency_weight
        self.temperature = temperature
        self.dimensions = dimensions
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.augment = augment
        for name in (*_PROJECTION, "prototypes", "source_accuracy"):
            self.register_buffer(name, None)

    @property
    def prepared(self) -> bool:
        """Whether the projection and the prototypes are known."""
        return self.prototypes is not None

    def prepare(self, context: PrepareContext) -> None:
        """Train the projection, then compute the prototypes over all source data."""
        projection, prototypes = self._initial(context)
        optimizer = torch.optim.Adam(projection, lr=self.lr)
        for epoch in range(self.epochs):
            stage = f"SWR projection, pass {epoch + 1} of {self.epochs}"
            for images, labels in context.batches(stage, size=self.batch_size):
                plain = _features(context, images)
                view = _features(context, context.augment(images, self.augment))
                projected = _project(plain, projection)
                prototypes = _update_average(prototypes, projected.detach(), labels, momentum=0.99)
                similarity = torch.cat([projected, _project(view, projection)]) @ prototypes.T
                # The sum over the two views of their mean losses.
                loss = 2 * F.cross_entropy(similarity / self.temperature, labels.repeat(2))
                for weight, gradient in zip(projection, torch.autograd.grad(loss, projection), strict=True):
                    weight.grad = gradient
                optimizer.step()
        for name, weight in zip(_PROJECTION, projection, strict=True):
            setattr(self, name, weight.detach())
        self.prototypes = self._mean_features(context, prototypes)
        self.source_accuracy = self._measure_source_accuracy(context)

    def penalty(self, step: Step) -> Tensor:
        """The auxiliary loss of the batch and its transformed copy."""
        log_pi = self._log_assignment(step.features)
        pi = log_pi.exp()
        sample = step.distributed.mean(entropy(log_pi, pi))
        mean = mean_prediction_entropy(pi, distributed=step.distributed)
        loss = self.sample_entropy * sample - self.mean_entropy * mean
        if self.consistency_weight > 0:
            log_pi_view = self._log_assignment(step.network.with_features(step.augment(self.augment))[1])
            loss = loss - self.consistency_weight * step.distributed.mean((pi.detach() * log_pi_view).sum(dim=1))
        return loss

    def _log_assignment(self, features: Tensor) -> Tensor:
        assert self.prototypes is not None  # prepare() comes first
        projected = _project(features, [getattr(self, name) for name in _PROJECTION])
        return log_probabilities(projected @ self.prototypes.T / self.temperature)

    def _initial(self, context: PrepareContext) -> tuple[list[Tensor], Tensor]:
        images, _ = next(context.batches("SWR projection", size=1))
        with torch.no_grad():
            logits, features = context.source_network.with_features(images)
        if logits.ndim != 2:
            raise ModelError(
                "Nearest source prototypes need one prediction per image; use `swr(..., prototypes=False)`."
            )
        width, classes = features.shape[1], logits.shape[1]

        def draw(*shape: int) -> Tensor:
            values = torch.rand(shape, generator=context.generator, device=context.device, dtype=features.dtype)
            return torch.mul(2 * values - 1, width**-0.5).requires_grad_()

        projection = [draw(width, width), draw(width), draw(self.dimensions, width), draw(self.dimensions)]
        return projection, features.new_zeros(classes, self.dimensions)

    def _mean_features(self, context: PrepareContext, like: Tensor) -> Tensor:
        projection = [getattr(self, name) for name in _PROJECTION]
        total = torch.zeros_like(like)
        for images, labels in context.batches("SWR prototypes", size=self.batch_size):
            total.index_add_(0, labels, _project(_features(context, images), projection))
        return F.normalize(total, dim=1)

    def _measure_source_accuracy(self, context: PrepareContext) -> Tensor:
        """Accuracy on source data: of the prototypes, and of the classifier."""
        right, seen = torch.zeros(2, device=context.device), 0
        for images, labels in context.batches("SWR acceptance", size=self.batch_size):
            with torch.no_grad():
                logits, features = context.source_network.with_features(images)
                answers = torch.stack([self._log_assignment(features).argmax(dim=1), logits.argmax(dim=1)])
            right, seen = right + (answers == labels).sum(dim=1), seen + len(labels)
        accuracy = right / seen
        if accuracy[0] < accuracy[1] - 0.01:
            _log.warning(
                "Nearest source prototypes are right on %.2f %% of the source data, the classifier on %.2f %%; "
                "expected them within one point. Train the projection longer (`epochs`).",
                *(100 * accuracy).tolist(),
            )
        return accuracy


def _features(context: PrepareContext, images: Tensor) -> Tensor:
    with torch.no_grad():
        return context.source_network.with_features(images)[1]


def _project(features: Tensor, projection: Sequence[Tensor]) -> Tensor:
    hidden_weight, hidden_bias, output_weight, output_bias = projection
    hidden = F.relu(F.linear(features, hidden_weight, hidden_bias))
    return F.normalize(F.linear(hidden, output_weight, output_bias), dim=1)


def _update_average(prototypes: Tensor, projected: Tensor, labels: Tensor, *, momentum: float) -> Tensor:
    """Move the prototypes of the classes in the batch; one met for the first time becomes the batch's mean."""
    total = torch.zeros_like(prototypes).index_add_(0, labels, projected)
    count = torch.bincount(labels, minlength=len(prototypes)).unsqueeze(1)
    mean = total / count.clamp(min=1)
    known = prototypes.any(dim=1, keepdim=True)
    moved = torch.where(known, torch.lerp(mean, prototypes, momentum), mean)
    return torch.where(count > 0, F.normalize(moved, dim=1), prototypes)
