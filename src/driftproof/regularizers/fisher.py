"""Hold what mattered on source data (EATA)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftproof.components import PrepareContext, Step, flatten
from driftproof.errors import ConfigurationError
from driftproof.network import Network
from driftproof.regularizers.base import Regularizer

__all__ = ["Fisher"]


class Fisher(Regularizer):
    """β Σ_j F_j (θ_j − θ_{o,j})², with F the diagonal Fisher information on source images.

    F = mean over mini-batches of the squared gradient of the batch-mean cross-entropy with the model's own labels, the
    network being configured as for adaptation. Its scale falls with the batch size.

    Open choices taken: source *training* images, mini-batches of 200.

    Args:
        weight: β; 1 for the CIFAR sets, 2000 for Tiny-ImageNet and ImageNet.
        samples: Source images to use.
        batch_size: Images per mini-batch.
    """

    importance: Tensor | None
    start: Tensor | None

    def __init__(self, weight: float = 1.0, samples: int = 2000, batch_size: int = 200) -> None:
        super().__init__()
        if weight < 0 or samples < 1 or batch_size < 1:
            raise ConfigurationError(
                "Expected `weight` of at least 0, `samples` and `batch_size` of at least 1, "
                f"but got {weight}, {samples} and {batch_size}."
            )
        self.weight = weight
        self.samples = samples
        self.batch_size = batch_size
        self.register_buffer("importance", None)
        self.register_buffer("start", None)

    @property
    def prepared(self) -> bool:
        """Whether the Fisher information is known, or not wanted."""
        return self.weight == 0 or self.importance is not None

    def prepare(self, context: PrepareContext) -> None:
        """Measure which parameters the predictions on source images depend on."""
        if self.weight == 0:
            return
        total, batches = torch.zeros_like(flatten(context.parameters)), 0
        for images, _ in context.batches("Fisher", size=self.batch_size, limit=self.samples):
            logits = context.network(images)
            loss = F.cross_entropy(logits, logits.argmax(dim=1))
            gradients = torch.autograd.grad(loss, context.parameters, materialize_grads=True)
            total, batches = total + flatten(gradients) ** 2, batches + 1
        self.importance = total / batches

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Remember where the parameters started."""
        self.start = flatten(parameters).detach()

    def penalty(self, step: Step) -> Tensor | None:
        """The weighted squared distance from the start."""
        if self.weight == 0:
            return None
        assert self.importance is not None and self.start is not None  # prepare() and reset_state() come first
        return self.weight * (self.importance * (flatten(step.parameters) - self.start) ** 2).sum()
