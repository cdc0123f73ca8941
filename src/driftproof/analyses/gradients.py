"""Per-sample gradients of the entropy, and the cosine similarity between groups of them."""

import copy
import math

import torch
from torch import Tensor, nn

from driftproof.errors import ModelError
from driftproof.norms import batch_norms
from driftproof.predictions import entropy, log_probabilities

__all__ = ["GradientCosine", "SampleGradients"]

_CHUNK_SIZE = 32


class SampleGradients:
    """Compute the gradient of each sample's entropy H(ŷ_i) with respect to the weight γ of one batch norm.

    All batch norms use batch statistics. Later layers therefore mix samples: each prediction depends on all samples,
    and one backward pass of the sum does not give per-sample gradients. Each sample gets its own backward pass down
    to the layer, many of them batched.

    Args:
        model: The trained model; it is copied.
        layer: Name of a batch norm, such as `block3.layer.5.bn2`.
        mixing: Whether a later batch norm mixes samples. If not, as for the last batch norm of a network, one backward
            pass is enough: γ's gradient is Σ δ·x̂ over the sample's positions.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> gradients, logits = SampleGradients(model, "1")(torch.rand(8, 3, 4, 4))
        >>> gradients.shape, logits.shape
        (torch.Size([8, 4]), torch.Size([8, 5]))
    """

    def __init__(self, model: nn.Module, layer: str, *, mixing: bool = True) -> None:
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        norms = dict(batch_norms(self._model))
        if layer not in norms or norms[layer].weight is None:
            raise ModelError(f"Expected `layer` to name a batch norm with a weight, but got {layer!r}.")
        for name, norm in norms.items():
            self._model.set_submodule(name, _BatchNormOps(norm))
        self._layer = layer
        self._weight = self._model.get_parameter(f"{layer}.weight").requires_grad_()
        self._mixing = mixing

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the gradients, (N, D), and the logits, (N, C).

        Args:
            images: A batch.
        """
        with torch.enable_grad():
            return self._per_sample(images) if self._mixing else self._batched(images)

    def _per_sample(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits = self._model(images)
        entropies = entropy(log_probabilities(logits))
        samples = torch.eye(len(images), dtype=logits.dtype, device=logits.device)
        gradients = [
            torch.autograd.grad(entropies, self._weight, chunk, retain_graph=True, is_grads_batched=True)[0]
            for chunk in torch.split(samples, _CHUNK_SIZE)
        ]
        return torch.cat(gradients), logits.detach()

    def _batched(self, images: Tensor) -> tuple[Tensor, Tensor]:
        norm = self._model.get_submodule(self._layer)
        assert isinstance(norm, _BatchNormOps)  # set by the constructor
        # With one weight per sample and no mixing, the gradient of the sum consists of the per-sample gradients.
        norm.sample_weight = self._weight.detach().repeat(len(images), 1).requires_grad_()
        try:
            logits = self._model(images)
            (gradients,) = torch.autograd.grad(entropy(log_probabilities(logits)).sum(), norm.sample_weight)
        finally:
            norm.sample_weight = None
        return gradients, logits.detach()


class _BatchNormOps(nn.Module):
    """Batch norm in elementary operations, which supports batched gradients."""

    sample_weight: Tensor | None = None

    def __init__(self, layer: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        axes, shape = [axis for axis in range(x.ndim) if axis != 1], (-1, x.shape[1], *[1] * (x.ndim - 2))
        centered = x - x.mean(dim=axes, keepdim=True)
        x = centered * torch.rsqrt(centered.square().mean(dim=axes, keepdim=True) + self.eps)
        weight = self.weight if self.sample_weight is None else self.sample_weight
        if weight is not None:
            x = x * weight.view(shape)
        return x if self.bias is None else x + self.bias.view(shape)


class GradientCosine:
    """Mean cosine between the gradients of samples predicted as class i: those of class j and those of class i.

    With unit vectors u, the mean over all pairs is the product of two means, so only sums of u are stored. On the
    diagonal a sample is not paired with itself: (‖Σ u‖² − M)/(M (M − 1)). Samples with a zero gradient are ignored.

    Args:
        classes: Number of classes.
        device: Device of the batches.

    Attributes:
        sizes: (C, C) int64: number of samples by label and prediction.

    Examples:
        >>> cosine = GradientCosine(2)
        >>> gradients = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
        >>> cosine.update(gradients, torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0]))
        >>> cosine.compute()
        tensor([[1., nan],
                [0., nan]], dtype=torch.float64)
    """

    def __init__(self, classes: int, *, device: torch.device | str | None = None) -> None:
        self.sizes = torch.zeros(classes, classes, dtype=torch.int64, device=device)
        self._sums: Tensor | None = None

    def update(self, gradients: Tensor, labels: Tensor, predictions: Tensor) -> None:
        """Add a batch.

        Args:
            gradients: (N, D).
            labels: (N,).
            predictions: (N,).
        """
        classes = len(self.sizes)
        norms = gradients.double().norm(dim=1, keepdim=True)
        nonzero = (norms > 0).squeeze(1)
        units = torch.where(norms > 0, gradients.double() / norms, 0.0)
        groups = labels * classes + predictions
        self.sizes = self.sizes + torch.zeros_like(self.sizes).view(-1).index_add(0, groups, nonzero.long()).view(
            classes, classes
        )
        sums = torch.zeros(classes**2, gradients.shape[1], dtype=torch.float64, device=gradients.device)
        sums.index_add_(0, groups, units)
        self._sums = sums if self._sums is None else self._sums + sums

    def compute(self) -> Tensor:
        """The mean cosines, (C, C): row j is the class, column i the prediction.

        NaN for an empty group, and on the diagonal for a group of one sample.
        """
        classes, sizes = len(self.sizes), self.sizes.double()
        if self._sums is None:
            return torch.full_like(sizes, math.nan)
        sums = self._sums.view(classes, classes, -1)
        means = sums / sizes.unsqueeze(2)
        correct = means.diagonal(dim1=0, dim2=1).T
        cosines = torch.einsum("jid,id->ji", means, correct)
        counts = sizes.diagonal()
        within = (sums.diagonal(dim1=0, dim2=1).square().sum(dim=0) - counts) / (counts * (counts - 1))
        within = torch.where(counts > 1, within, math.nan)
        return torch.where(torch.eye(classes, dtype=torch.bool, device=sizes.device), within, cosines)
