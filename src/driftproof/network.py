"""A private copy of the user's model whose normalisation follows a rule of ours."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from driftproof.errors import ForwardError, ModelError
from driftproof.norms import BatchNorm, batch_norms

__all__ = ["LayerRule", "LogitsAccessor", "Network", "NormalisationRule"]

_FAST_PATHED = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)

LogitsAccessor = str | int | Callable[[Any], Tensor]


class LayerRule(nn.Module):
    """Decides, for one batch-norm layer and one forward pass, which statistics that layer uses.

    The layer's own running statistics are swapped while the network runs and are back afterwards, so between passes the
    model is an ordinary one. What a rule remembers (buffers) changes only in `commit`, never during a pass.
    """

    def __init__(self, layer: BatchNorm) -> None:
        super().__init__()
        self._layer = (layer,)  # in a tuple: the layer belongs to the model, it is no child of its rule
        self._source: list[Tensor | None] = []  # while a pass runs: what the layer came with
        self._handle: RemovableHandle | None = None

    @property
    def layer(self) -> BatchNorm:
        """The batch-norm layer this rule belongs to."""
        return self._layer[0]

    @property
    def source_statistics(self) -> tuple[Tensor | None, Tensor | None]:
        """The mean and variance that came with the model."""
        mean, variance = self._source or (self.layer.running_mean, self.layer.running_var)
        return mean, variance

    def use(self, mean: Tensor | None, variance: Tensor | None) -> None:
        """Make the layer normalise with these until the pass is over; None means with the batch's own."""
        buffers = self.layer._buffers  # a module's attribute access is slow, and this runs for every layer
        if not self._source:
            self._source.extend((buffers["running_mean"], buffers["running_var"]))
        buffers["running_mean"], buffers["running_var"] = mean, variance

    def enter(self, layer: BatchNorm, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Called before the layer runs; may return other inputs."""
        raise NotImplementedError

    def attach(self) -> None:
        """Start deciding."""
        self._handle = self.layer.register_forward_pre_hook(self.enter)

    def detach(self) -> None:
        """Leave the layer as it was found."""
        if self._handle is not None:
            self._handle.remove()

    def leave(self) -> None:
        """Give the layer its own statistics back."""
        if self._source:
            buffers = self.layer._buffers
            buffers["running_mean"], buffers["running_var"] = self._source
            self._source.clear()

    def begin(self) -> None:
        """Forget everything seen."""

    def commit(self) -> None:
        """Keep what the last pass saw."""

    def discard(self) -> None:
        """Drop what the last pass saw."""


class NormalisationRule(Protocol):
    """What a network asks of `driftproof.statistics`."""

    def rule_for(self, index: int, name: str, layer: BatchNorm) -> LayerRule | None:
        """The rule of one batch-norm layer; None where the layer is left alone."""


class Network(nn.Module):
    """A model in evaluation mode, its normalisation rule, and the way to its logits.

    Args:
        model: Taken over, not copied.
        statistics: The rule for its batch-norm layers; None leaves them with the statistics of their training.
        logits: Where the logits are in the model's output: a key, an attribute, an index or a function.
        classifier: Name of the layer whose input is the feature vector; None means the last linear layer.
    """

    __call__: Callable[..., Tensor]

    def __init__(
        self,
        model: nn.Module,
        statistics: NormalisationRule | None = None,
        *,
        logits: LogitsAccessor | None = None,
        classifier: str | None = None,
    ) -> None:
        super().__init__()
        self.model = model.eval()
        self._statistics = (statistics,)  # in a tuple: several networks may follow one rule, none owns it
        self._logits = logits
        self._classifier = classifier
        named = enumerate(batch_norms(model)) if statistics is not None else ()
        rules = (statistics.rule_for(index, name, layer) for index, (name, layer) in named) if statistics else ()
        self.layer_rules = tuple(rule for rule in rules if rule is not None)
        self.rules = nn.ModuleList(self.layer_rules)  # so that what they remember moves and is saved
        self._every_module = tuple(model.modules())
        self._attends = any(isinstance(module, _FAST_PATHED) for module in self._every_module)
        for rule in self.layer_rules:
            rule.attach()

    def forward(self, images: Tensor) -> Tensor:
        """The logits for `images`."""
        if any(module.training for module in self._every_module):
            self.model.eval()
        try:
            with _one_kind_of_attention(self._attends):
                output = self.model(images)
        except Exception as error:
            message = f"The model failed on images of shape {tuple(images.shape)} and type {images.dtype}: {error}"
            raise ForwardError(message) from error
        finally:
            for rule in self.layer_rules:
                rule.leave()
        return read_logits(output, self._logits)

    def with_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The logits for `images`, and the features that entered the classifier."""
        name, layer = self._find_classifier()
        entered: list[Tensor] = []

        def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            entered.append(inputs[0])

        handle = layer.register_forward_pre_hook(note)
        try:
            logits = self(images)
        finally:
            handle.remove()
        features = entered[-1].flatten(start_dim=1) if entered else None
        if features is None or features.shape[0] != images.shape[0]:
            raise ModelError(
                f"Expected layer `{name}` to see one feature vector per image. Name the right `classifier`."
            )
        return logits, features

    def plain(self) -> nn.Module:
        """A copy of the model as an ordinary module: no rules, no storage shared."""
        for rule in self.layer_rules:
            rule.detach()
        try:
            return copy.deepcopy(self.model)
        finally:
            for rule in self.layer_rules:
                rule.attach()

    def clone(self) -> "Network":
        """A network of its own over a copy of the model, under the same rule."""
        return Network(self.plain(), self._statistics[0], logits=self._logits, classifier=self._classifier)

    def with_source_statistics(self) -> "Network":
        """A network of its own over a copy of the model, normalising as on the day it was trained."""
        return Network(self.plain(), logits=self._logits, classifier=self._classifier)

    def begin(self) -> None:
        """Forget every statistic of the stream."""
        for rule in self.layer_rules:
            rule.begin()

    def commit(self) -> None:
        """Keep what the last pass saw of the stream."""
        for rule in self.layer_rules:
            rule.commit()

    def discard(self) -> None:
        """Drop what the last pass saw of the stream."""
        for rule in self.layer_rules:
            rule.discard()

    def _find_classifier(self) -> tuple[str, nn.Module]:
        if self._classifier is not None:
            try:
                return self._classifier, self.model.get_submodule(self._classifier)
            except AttributeError as error:
                raise ModelError(f"Expected `classifier` to name a layer of the model, but {error}.") from None
        linear = [(name, layer) for name, layer in self.model.named_modules() if isinstance(layer, nn.Linear)]
        if not linear:
            raise ModelError("Expected a linear layer whose input is the feature vector. Name one with `classifier`.")
        return linear[-1]


@contextmanager
def _one_kind_of_attention(needed: bool) -> Iterator[None]:
    """Keep attention on the kernels that can be differentiated.

    Without a gradient to compute, torch takes a fused path whose rounding differs. The frozen and the adapting network
    have to agree to the last bit while their weights do, or selection would start from noise.
    """
    fast = needed and torch.backends.mha.get_fastpath_enabled()
    if fast:
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        if fast:
            torch.backends.mha.set_fastpath_enabled(True)


def read_logits(output: Any, accessor: LogitsAccessor | None) -> Tensor:  # noqa: ANN401  # a model may return anything
    """Find the logits in a model's output."""
    found = output
    try:
        if callable(accessor):
            found = accessor(output)
        elif isinstance(accessor, int) or (isinstance(accessor, str) and isinstance(output, Mapping)):
            found = output[accessor]
        elif isinstance(accessor, str):
            found = getattr(output, accessor)
    except (KeyError, IndexError, AttributeError, TypeError) as error:
        raise ModelError(f"`logits={accessor!r}` finds nothing in the model's output, {_shape_of(output)}.") from error
    if not isinstance(found, Tensor):
        raise ModelError(f"Expected a tensor of logits, but the model returned {_shape_of(found)}. Pass `logits=`.")
    if found.ndim < 2 or not torch.is_floating_point(found):
        raise ModelError(
            "Expected logits of shape (N, C) or (N, C, H, W) in floating point, "
            f"but got {tuple(found.shape)} of {found.dtype}."
        )
    return found


def _shape_of(output: Any) -> str:  # noqa: ANN401  # a model may return anything
    if isinstance(output, Mapping):
        return f"a {type(output).__name__} with the keys {list(output)}"
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)}"
    return f"a {type(output).__name__}"
