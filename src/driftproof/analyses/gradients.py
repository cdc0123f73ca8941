"""Which way single samples pull: the gradient of each one's entropy, and how the gradients of groups agree."""

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
    """The gradient of every sample's own H(ŷ_i) with respect to the weight γ of one batch norm.

    All batch norms take the statistics of the batch. So behind the layer samples mix: what one sample's γ does reaches
    the predictions of all others, and one backward pass of the sum is not enough. Every sample gets a pass of its own,
    many of them at a time, which ends at the layer.

    Args:
        model: The trained model; it is copied.
        layer: Name of a batch norm, such as `block3.layer.5.bn2`.
        mixing: Whether samples mix behind the layer. If not, as behind a network's last batch norm, one backward pass
            is enough: γ's gradient is Σ δ·x̂ over the sample's positions.

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
        """The gradients, (N, D), and the logits, (N, C).

        Args:
            images: A batch.
        """
        with torch.enable_grad():
            return self._each(images) if self._mixing else self._at_once(images)

    def _each(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits = self._model(images)
        entropies = entropy(log_probabilities(logits))
        samples = torch.eye(len(images), dtype=logits.dtype, device=logits.device)
        parts = [
            torch.autograd.grad(entropies, self._weight, some, retain_graph=True, is_grads_batched=True)[0]
            for some in torch.split(samples, _CHUNK_SIZE)
        ]
        return torch.cat(parts), logits.detach()

    def _at_once(self, images: Tensor) -> tuple[Tensor, Tensor]:
        norm = self._model.get_submodule(self._layer)
        assert isinstance(norm, _BatchNormOps)  # put there by the constructor
        # A weight of its own for each sample: where nothing mixes, the gradient of the sum falls apart into them.
        norm.own = self._weight.detach().repeat(len(images), 1).requires_grad_()
        try:
            logits = self._model(images)
            (gradients,) = torch.autograd.grad(entropy(log_probabilities(logits)).sum(), norm.own)
        finally:
            norm.own = None
        return gradients, logits.detach()


class _BatchNormOps(nn.Module):
    """A batch norm in plain operations, which can be differentiated in every way."""

    own: Tensor | None = None

    def __init__(self, layer: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        axes, shape = [axis for axis in range(x.ndim) if axis != 1], (-1, x.shape[1], *[1] * (x.ndim - 2))
        centred = x - x.mean(dim=axes, keepdim=True)
        x = centred * torch.rsqrt(centred.square().mean(dim=axes, keepdim=True) + self.eps)
        weight = self.weight if self.own is None else self.own
        if weight is not None:
            x = x * weight.view(shape)
        return x if self.bias is None else x + self.bias.view(shape)


class GradientCosine:
    """The mean cosine between the gradients of samples predicted as class i: those of class j with those of class i.

    With unit vectors u, the mean over all pairs is the product of two means, so sums of u are all that is kept. On the
    diagonal a sample is not paired with itself: (‖Σ u‖² − M)/(M (M − 1)). A gradient of zero has no direction; its
    sample belongs to no group.

    Args:
        classes: How many.
        device: Where the batches are.

    Attributes:
        sizes: (C, C) int64: samples by label and prediction.

    Examples:
        >>> agreement = GradientCosine(2)
        >>> gradients = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
        >>> agreement.add(gradients, torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0]))
        >>> agreement.cosines()
        tensor([[1., nan],
                [0., nan]], dtype=torch.float64)
    """

    def __init__(self, classes: int, *, device: torch.device | str | None = None) -> None:
        self.sizes = torch.zeros(classes, classes, dtype=torch.int64, device=device)
        self._sums: Tensor | None = None

    def add(self, gradients: Tensor, labels: Tensor, predictions: Tensor) -> None:
        """Take in a batch.

        Args:
            gradients: (N, D).
            labels: (N,).
            predictions: (N,).
        """
        classes = len(self.sizes)
        lengths = gradients.double().norm(dim=1, keepdim=True)
        pointing = (lengths > 0).squeeze(1)
        units = torch.where(lengths > 0, gradients.double() / lengths, 0.0)
        groups = labels * classes + predictions
        self.sizes = self.sizes + torch.zeros_like(self.sizes).view(-1).index_add(0, groups, pointing.long()).view(
            classes, classes
        )
        sums = torch.zeros(classes**2, gradients.shape[1], dtype=torch.float64, device=gradients.device)
        sums.index_add_(0, groups, units)
        self._sums = sums if self._sums is None else self._sums + sums

    def cosines(self) -> Tensor:
        """(C, C): row j is the class, column i the prediction.

        NaN where a group is empty, and where one on the diagonal holds a single sample.
        """
        classes, sizes = len(self.sizes), self.sizes.double()
        if self._sums is None:
            return torch.full_like(sizes, math.nan)
        sums = self._sums.view(classes, classes, -1)
        means = sums / sizes.unsqueeze(2)
        right = means.diagonal(dim1=0, dim2=1).T
        cosines = torch.einsum("jid,id->ji", means, right)
        counts = sizes.diagonal()
        within = (sums.diagonal(dim1=0, dim2=1).square().sum(dim=0) - counts) / (counts * (counts - 1))
        within = torch.where(counts > 1, within, math.nan)
        return torch.where(torch.eye(classes, dtype=torch.bool, device=sizes.device), within, cosines)
