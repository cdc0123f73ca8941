"""A private copy of the user's model with its own normalization statistics."""

import copy
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.hooks import RemovableHandle

from driftproof.distributed import Distributed
from driftproof.errors import DistributedError, EngineError, ForwardError, ModelError
from driftproof.network.batch_norm_hook import BatchNormHook, PassSettings, StatisticsRule, hooked_forward
from driftproof.network.buffer_guard import BufferGuard
from driftproof.network.cached_tensors import detach_in, holds_graph
from driftproof.network.forward_override import restore_forwards
from driftproof.network.frozen_conv import (
    FrozenConvs,
    cache_bf16_weights,
    clear_cache,
    conv_forward,
    plain_conv_forward,
    use_plain_convs,
)
from driftproof.network.logits import LogitsAccessor, read_logits
from driftproof.network.precision import Precision, autocast_mode, to_float32
from driftproof.network.recurrent import recurrent_forward, use_native_recurrence
from driftproof.norms import batch_norms

__all__ = ["Network"]

_IS_TRAINING = operator.attrgetter("training")
_WITH_FASTPATH = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)


class Network(nn.Module):
    """A model in evaluation mode, the statistics of its batch norms, and the way to its logits.

    Args:
        model: Taken over, not copied.
        statistics: The rule for its batch-norm layers; None leaves them with the statistics of their training.
        logits: Where the logits are in the model's output: a key, an attribute, an index or a function.
        classifier: Name of the layer whose input is the feature vector; None means the last linear layer.
        precision: Numeric precision; logits and features come out in at least single precision.
        distributed: The ranks that share each batch; None is this process alone.
        frozen: Whether no pass may change the model's own buffers.

    Attributes:
        compiled_forward: A compiled form of the model that is called in its place; None calls the model itself.
        hooks: The hooks of the batch-norm layers that have one.
    """

    __call__: Callable[..., Tensor]
    compiled_forward: Callable[[Tensor], Any] | None = None
    _caching_modules: tuple[nn.Module, ...] | None = None
    _directions: tuple[Any, Tensor] | None = None

    def __init__(
        self,
        model: nn.Module,
        statistics: StatisticsRule | None = None,
        *,
        logits: LogitsAccessor | None = None,
        classifier: str | None = None,
        precision: Precision | None = None,
        distributed: Distributed | None = None,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        model.eval()  # not chained: a model's own `train` may forget to return the model
        self.model = model
        self.precision = precision
        self.distributed = distributed or Distributed()
        self._pass = PassSettings()
        self._statistics = (statistics,)  # in a tuple: several networks may share one rule, none owns it
        self._logits = logits
        self._classifier = classifier
        self._hooks = tuple(self._make_hooks())
        self.hooks = nn.ModuleList(self._hooks)  # so that their buffers move and are saved
        self._every_module = tuple(model.modules())
        self._parameter_tables = tuple(module._parameters for module in self._every_module if module._parameters)
        self._has_attention = any(isinstance(module, _WITH_FASTPATH) for module in self._every_module)
        self._guard = BufferGuard(model) if frozen else None
        self._feature_hook: _FeatureHook | None = None
        self._convs: FrozenConvs | None = None
        if not frozen or precision == "bf16":
            self._convs = FrozenConvs(model)
        else:
            use_plain_convs(model)  # it saves nothing for gradients
        use_native_recurrence(model)
        for hook in self._hooks:
            hook.distributed, hook.settings = self.distributed, self._pass
            hook.attach()
        self._swapping = tuple(hook for hook in self._hooks if hook.handle is not None)
        self._tracking = tuple(hook for hook in self._hooks if hook.tracks_stream)

    def forward(self, images: Tensor) -> Tensor:
        """The logits for `images`."""
        if any(map(_IS_TRAINING, self._every_module)):
            self.model.eval()
        if self.precision == "bf16":
            cache_bf16_weights(self.model, torch.bfloat16)
        # Statistics of masked samples have a gradient of their own, which torch.compile would break the network at.
        compiled = self.compiled_forward if self._pass.mask is None else None
        if self._convs is not None:
            self._convs.match(images, is_compiled=compiled is not None)
        try:
            with self._preserve_buffers(), self._no_fastpath(), autocast_mode(self.precision, images.device):
                # The model gets a copy, since it may write into its input and the other networks see the same images.
                output = (compiled or self.model)(images.clone())
        except (EngineError, DistributedError):
            raise
        except Exception as error:
            message = f"The model failed on images of shape {tuple(images.shape)} and type {images.dtype}: {error}"
            raise ForwardError(message) from error
        finally:
            self.restore_batch_norms()
        return to_float32(read_logits(output, self._logits), self.precision)

    def with_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The logits for `images`, and the features that entered the classifier."""
        logits, features = self.try_features(images)
        if features is None:
            raise self.missing_features()
        return logits, features

    def try_features(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """The logits for `images`, and the features; None if no layer sees one feature vector per image."""
        if self._feature_hook is None:
            if self._classifier is None and not self._linear_layers():
                return self(images), None
            self._feature_hook = _FeatureHook(self.find_classifier()[1])
        logits = self(images)
        captured, self._feature_hook.captured = self._feature_hook.captured, None
        features = None if captured is None else captured.flatten(start_dim=1)
        if features is None or features.shape[0] != images.shape[0]:
            return logits, None
        return logits, to_float32(features, self.precision)

    def missing_features(self) -> ModelError:
        """The error for a model without features."""
        name, _ = self.find_classifier()
        return ModelError(f"Expected layer `{name}` to see one feature vector per image. Name the right `classifier`.")

    @property
    def classifier_rows(self) -> Tensor | None:
        """The weight of a linear classifier, (C, D), once features were asked for; None if there is none."""
        layer = None if self._feature_hook is None else self._feature_hook.layer
        return layer.weight if isinstance(layer, nn.Linear) else None

    @property
    def classifier_directions(self) -> Tensor | None:
        """`classifier_rows` of length 1 each, without a graph; a frozen network computes them once."""
        rows = self.classifier_rows
        if rows is None:
            return None
        if self._guard is None or torch.compiler.is_compiling():  # a compiler cannot compare addresses
            return _to_directions(rows)
        now = (rows.device, rows.dtype, rows.data_ptr(), rows._version)
        if self._directions is None or self._directions[0] != now:
            self._directions = now, _to_directions(rows)
        return self._directions[1]

    @contextmanager
    def statistics_of(self, mask: Tensor | None) -> Iterator[None]:
        """Take batch statistics from the masked samples alone, (N,) or (N, H, W); None changes nothing."""
        earlier = self._pass.mask
        self._pass.mask = earlier if mask is None else mask
        try:
            yield
        finally:
            self._pass.mask = earlier

    @contextmanager
    def replace_parameters(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """Run the passes with other values in the place of parameters, by name; gradients flow to them."""
        replaced: list[tuple[dict[str, Any], str, Tensor]] = []
        try:
            for name, value in values.items():
                path, _, leaf = name.rpartition(".")
                table: dict[str, Any] = self.model.get_submodule(path)._parameters
                replaced.append((table, leaf, table[leaf]))
                table[leaf] = value.view_as(table[leaf]).to(table[leaf].dtype)
            yield
        finally:
            for table, leaf, parameter in replaced:
                table[leaf] = parameter

    @contextmanager
    def learning(self, mask: Tensor | None = None) -> Iterator[None]:
        """Learn from the passes: a context.

        Args:
            mask: For their batch statistics, as in `statistics_of`.
        """
        earlier = self._pass.learns
        self._pass.learns = True
        try:
            with self.statistics_of(mask):
                yield
        finally:
            self._pass.learns = earlier

    def predict_unless_learning(self) -> None:
        """Have passes outside of `learning` only predict, for statistics that follow what is learned from."""
        self._pass.learns = False

    @contextmanager
    def statistics_of_training(self) -> Iterator[None]:
        """Have batch norms use the statistics of their training, whatever the rule."""
        self._pass.of_training = True
        try:
            yield
        finally:
            self._pass.of_training = False

    def addresses(self) -> list[int]:
        """Where the model's parameters are, found faster than a module lists them."""
        return [one.data_ptr() for table in self._parameter_tables for one in table.values() if one is not None]

    # --- copies -------------------------------------------------------------------------------------------------------

    @torch.inference_mode(mode=False)
    def to_plain_module(self) -> nn.Module:
        """A copy of the model as an ordinary module: no hooks, no storage shared."""
        self.detach_all()
        # Hooks are removed from the copy: compiled code must be rebuilt whenever a hook comes or goes.
        attached: list[BatchNormHook | _FeatureHook] = [*self._hooks]
        attached += [] if self._feature_hook is None else [self._feature_hook]
        plain = copy.deepcopy(self.model, {id(hook): hook for hook in attached})
        restore_forwards(plain, conv_forward, plain_conv_forward, hooked_forward, recurrent_forward)
        clear_cache(plain)
        handles = [hook.handle.id for hook in attached if hook.handle is not None]
        for layer in plain.modules():
            for handle in handles:
                layer._forward_pre_hooks.pop(handle, None)
                layer._forward_pre_hooks_with_kwargs.pop(handle, None)
        return plain

    def clone(self) -> "Network":
        """A network over a copy of the model, under the same statistics rule."""
        return Network(
            self.to_plain_module(),
            self._statistics[0],
            logits=self._logits,
            classifier=self._classifier,
            precision=self.precision,
            distributed=self.distributed,
        )

    def with_source_statistics(self) -> "Network":
        """A network over a copy of the model that uses the statistics of its training."""
        return Network(self.to_plain_module(), logits=self._logits, classifier=self._classifier)

    def detach_all(self) -> None:
        """Detach tensors the model caches between calls (e.g. attention maps): torch does not copy graphs."""
        for module in self._every_module:
            detach_in(vars(module))

    def detach_cached(self) -> None:
        """Detach tensors the model caches between calls; the caching modules are found once, on the first call."""
        if self._caching_modules is None:
            self._caching_modules = tuple(module for module in self._every_module if holds_graph(vars(module)))
        for module in self._caching_modules:
            detach_in(vars(module))

    # --- statistics of the stream -------------------------------------------------------------------------------------

    def restore_batch_norms(self) -> None:
        """Give every layer its own statistics back.

        Called after a forward pass, and after a backward pass, in which activation checkpointing runs layers again.
        """
        for hook in self._swapping:
            hook.restore()

    def reset_statistics(self) -> None:
        """Forget all statistics of the stream."""
        for hook in self._hooks:
            hook.reset()

    def commit(self, learned: Tensor | None = None) -> None:
        """Keep what the last pass saw of the stream; see `BatchNormHook.commit`."""
        for hook in self._tracking:
            hook.commit(learned)

    def rollback(self) -> None:
        """Drop what the last pass saw of the stream."""
        self.restore_batch_norms()
        for hook in self._tracking:
            hook.rollback()
        if self._feature_hook is not None:
            self._feature_hook.captured = None

    # --- internals ----------------------------------------------------------------------------------------------------

    def _make_hooks(self) -> Iterator[BatchNormHook]:
        rule = self._statistics[0]
        for index, (name, layer) in enumerate(batch_norms(self.model)):
            hook = None if rule is None else rule.make_hook(index, name, layer)
            if hook is not None:
                yield hook

    def _preserve_buffers(self) -> AbstractContextManager[None]:
        return nullcontext() if self._guard is None else self._guard.preserved()

    def _no_fastpath(self) -> AbstractContextManager[None]:
        return _no_mha_fastpath() if self._has_attention else nullcontext()

    def find_classifier(self) -> tuple[str, nn.Module]:
        """The name and the layer whose input is the feature vector."""
        if self._classifier is not None:
            try:
                return self._classifier, self.model.get_submodule(self._classifier)
            except AttributeError as error:
                raise ModelError(f"Expected `classifier` to name a layer of the model, but {error}.") from None
        linear = self._linear_layers()
        if not linear:
            raise ModelError("Expected a linear layer whose input is the feature vector. Name one with `classifier`.")
        return linear[-1]

    def _linear_layers(self) -> list[tuple[str, nn.Module]]:
        return [(name, layer) for name, layer in self.model.named_modules() if isinstance(layer, nn.Linear)]


class _FeatureHook:
    """Captures a layer's input.

    It stays attached between passes: compiled code must be rebuilt whenever a hook comes or goes.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.captured: Tensor | None = None
        self.handle: RemovableHandle | None = layer.register_forward_pre_hook(self._capture, with_kwargs=True)

    def _capture(self, _: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        self.captured = (inputs or tuple(named.values()))[0]


def _to_directions(rows: Tensor) -> Tensor:
    return normalize(rows.detach().to(torch.promote_types(rows.dtype, torch.float32)))


@contextmanager
def _no_mha_fastpath() -> Iterator[None]:
    """Keep attention on the kernels that can be differentiated.

    Without gradients torch takes a fused path that rounds differently. The frozen and the adapting network must agree
    to the last bit while their weights do, or selection would start from rounding noise.
    """
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
