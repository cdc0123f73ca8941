"""TTN: a share per channel, learned from source data."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, count, islice

import torch
from torch import Tensor, nn

from driftproof.augment import Augment, photometric
from driftproof.components import PrepareContext, supervised_loss
from driftproof.errors import ConfigurationError, ModelError
from driftproof.network import BatchNormHook
from driftproof.norms import BatchNorm, batch_norms
from driftproof.statistics.blend import InterpolatedStatistics, mixture
from driftproof.statistics.moments import batch_statistics, per_channel

__all__ = ["TTN"]


class TTN(InterpolatedStatistics):
    """A mixture of batch and source statistics whose share α is learned per channel from source data.

    `prepare` first finds a prior: channels whose affine gradients disagree between an image and its augmented copy are
    sensitive to shift and trust the test batch, 𝒜 = (1 − ½(s_γ + s_β))² with s the min–max-normalized sign agreement.
    Then α, starting at the prior, is trained on augmented source batches with cross-entropy + λ·mean (α − 𝒜)².

    Open choices taken: photometric augmentation, prior from 200 batches of 200, Adam at 1e-3, λ = 1, 30 passes, α
    clipped to [0, 1] after each step; online momentum 0.1 is recommended for segmentation and off by default.

    Args:
        momentum: See `InterpolatedStatistics`.
        prior_batches: Batches for the prior, drawn by passing over the source data as often as needed.
        epochs: Passes over the source data that train α.
        lr: Learning rate of α.
        prior_weight: λ, the weight of the term that holds α at its prior.
        batch_size: Images per batch.
        augment: The change of appearance α should learn to bear.

    Reference:
        Lim et al., "TTN: A Domain-Shift Aware Batch Normalization in Test-Time Adaptation", ICLR 2023.
    """

    def __init__(
        self,
        momentum: float | None = None,
        *,
        prior_batches: int = 200,
        epochs: int = 30,
        lr: float = 1e-3,
        prior_weight: float = 1.0,
        batch_size: int = 200,
        augment: Augment = photometric,
    ) -> None:
        super().__init__(momentum)
        if prior_batches < 1 or epochs < 0 or batch_size < 2:
            raise ConfigurationError(
                "Expected `prior_batches` of at least 1, `epochs` of at least 0 and `batch_size` of at least 2, "
                f"but got {prior_batches}, {epochs} and {batch_size}."
            )
        self.prior_batches = prior_batches
        self.epochs = epochs
        self.lr = lr
        self.prior_weight = prior_weight
        self.batch_size = batch_size
        self.augment = augment

    def make_hook(self, index: int, name: str, layer: BatchNorm) -> BatchNormHook:
        """A hook with its own share for each channel."""
        if not hasattr(self, _alpha_name(index)):
            self.register_buffer(_alpha_name(index), None)
        return super().make_hook(index, name, layer)

    @property
    def alphas(self) -> list[Tensor | None]:
        """The shares, one vector per batch-norm layer; None before `prepare`."""
        return [buffer for name, buffer in self._buffers.items() if name.startswith("alpha_")]

    @property
    def prepared(self) -> bool:
        """Whether every layer has its shares."""
        return all(alpha is not None for alpha in self.alphas)

    def alpha_for(self, index: int) -> Tensor:
        """The learned shares of one layer."""
        alpha: Tensor = getattr(self, _alpha_name(index))
        return alpha

    def prepare(self, context: PrepareContext) -> None:
        """Find the prior and train α."""
        named_layers = list(batch_norms(context.source_network.model))
        for name, layer in named_layers:
            if layer.weight is None or layer.bias is None:
                raise ModelError(
                    f"TTN's prior needs the affine gradients of batch-norm layer `{name}`, which has none."
                )
        layers = [layer for _, layer in named_layers]
        if not layers:
            return
        prior = self._prior(context, layers)
        alphas = [values.clone().requires_grad_() for values in prior]
        optimizer = torch.optim.Adam(alphas, lr=self.lr)
        with _differentiable_blend(layers, alphas):
            for epoch in range(self.epochs):
                stage = f"TTN shares, pass {epoch + 1} of {self.epochs}"
                for images, labels in context.batches(stage, size=self.batch_size):
                    view = context.augment(images, self.augment)
                    distance = torch.cat([(a - p) ** 2 for a, p in zip(alphas, prior, strict=True)]).mean()
                    loss = supervised_loss(context.source_network(view), labels) + self.prior_weight * distance
                    gradients = torch.autograd.grad(loss, alphas)
                    for alpha, gradient in zip(alphas, gradients, strict=True):
                        alpha.grad = gradient
                    optimizer.step()
                    with torch.no_grad():
                        for alpha in alphas:
                            alpha.clamp_(0.0, 1.0)
        for index, alpha in enumerate(alphas):
            setattr(self, _alpha_name(index), alpha.detach())

    def _prior(self, context: PrepareContext, layers: list[BatchNorm]) -> list[Tensor]:
        affine = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
        agreement = [torch.zeros_like(parameter) for parameter in affine]

        def gradients(images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
            loss = supervised_loss(context.source_network(images), labels)
            return torch.autograd.grad(loss, affine, materialize_grads=True)

        for parameter in affine:
            parameter.requires_grad_(True)
        for images, labels in self._prior_data(context):
            clean = gradients(images, labels)
            shifted = gradients(context.augment(images, self.augment), labels)
            # For scalars the cosine g·g'/(|g||g'|) is the agreement of their signs.
            agreement = [total + a.sign() * b.sign() for total, a, b in zip(agreement, clean, shifted, strict=True)]
        for parameter in affine:
            parameter.requires_grad_(False)
        all_agreement = torch.cat(agreement)
        low, span = all_agreement.min(), (all_agreement.max() - all_agreement.min()).clamp(min=1e-12)
        scaled = [(total - low) / span for total in agreement]
        pairs = zip(scaled[::2], scaled[1::2], strict=True)
        return [(1 - 0.5 * (of_weight + of_bias)) ** 2 for of_weight, of_bias in pairs]

    def _prior_data(self, context: PrepareContext) -> Iterator[tuple[Tensor, Tensor]]:
        passes = (context.batches("TTN prior", size=self.batch_size) for _ in count())
        return islice(chain.from_iterable(passes), self.prior_batches)


def _alpha_name(index: int) -> str:
    return f"alpha_{index}"


@contextmanager
def _differentiable_blend(layers: list[BatchNorm], alphas: list[Tensor]) -> Iterator[None]:
    """Let `layers` blend their statistics with a gradient for α, by re-standardizing their inputs."""

    def restandardize(
        layer: BatchNorm, alpha: Tensor, _: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        x = (inputs or tuple(named.values()))[0]
        source_mean, source_variance = layer.running_mean, layer.running_var
        assert source_mean is not None  # make_hook refuses other layers
        assert source_variance is not None
        mean, variance = mixture(alpha, *batch_statistics(x), source_mean, source_variance)
        ratio = torch.sqrt((source_variance + layer.eps) / (variance + layer.eps))
        standard = (x - per_channel(mean, x)) * per_channel(ratio, x) + per_channel(source_mean, x)
        return (standard.to(x.dtype),), {}

    handles = [
        layer.register_forward_pre_hook(partial(restandardize, layer, alpha), with_kwargs=True)
        for layer, alpha in zip(layers, alphas, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
