"""A private copy of the user's model whose normalization follows a rule of ours."""

import copy
import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from driftproof.distributed import Distributed
from driftproof.errors import DistributedError, EngineError, ForwardError, ModelError
from driftproof.network.batch_norm import make_alike, normalize
from driftproof.network.batch_norm_hook import BatchNormHook, StatisticsRule
from driftproof.network.buffer_guard import BufferGuard
from driftproof.network.forward_override import restore_forwards
from driftproof.network.frozen_conv import convolve, forget_rounded, make_sparing, round_weights
from driftproof.network.logits import LogitsAccessor, read_logits
from driftproof.network.precision import Precision, mixed, restored
from driftproof.norms import batch_norms

__all__ = ["Network"]

_FAST_PATHED = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)


class Network(nn.Module):
    """A model in evaluation mode, its normalization rule, and the way to its logits.

    Args:
        model: Taken over, not copied.
        statistics: The rule for its batch-norm layers; None leaves them with the statistics of their training.
        logits: Where the logits are in the model's output: a key, an attribute, an index or a function.
        classifier: Name of the layer whose input is the feature vector; None means the last linear layer.
        precision: With how many digits to compute; logits and features come out in at least single precision.
        distributed: Among whom batches are shared out; None is this process alone.
        frozen: Whether no pass may change what the model keeps of its own.

    Attributes:
        through: What the model is called through while a compiled form of it stands in; None is the model itself.
    """

    __call__: Callable[..., Tensor]
    through: Callable[[Tensor], Any] | None = None
    _keeping: tuple[nn.Module, ...] | None = None

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
        model.eval()  # a model's own `train` may forget to return the model
        self.model = model
        self.precision = precision
        self.distributed = distributed or Distributed()
        self._statistics = (statistics,)  # in a tuple: several networks may follow one rule, none owns it
        self._logits = logits
        self._classifier = classifier
        named = enumerate(batch_norms(model)) if statistics is not None else ()
        rules = (statistics.rule_for(index, name, layer) for index, (name, layer) in named) if statistics else ()
        self.layer_rules = tuple(rule for rule in rules if rule is not None)
        for rule in self.layer_rules:
            rule.distributed = self.distributed
        self.rules = nn.ModuleList(self.layer_rules)  # so that what they remember moves and is saved
        self._every_module = tuple(model.modules())
        self._attends = any(isinstance(module, _FAST_PATHED) for module in self._every_module)
        self._keepsake = BufferGuard(model) if frozen else None
        self._tap: _Tap | None = None
        make_sparing(model)
        make_alike(model)
        for rule in self.layer_rules:
            rule.attach()

    def forward(self, images: Tensor) -> Tensor:
        """The logits for `images`."""
        if any(module.training for module in self._every_module):
            self.model.eval()
        if self.precision == "bf16":
            round_weights(self.model, torch.bfloat16)
        try:
            with self._kept(), _one_kind_of_attention(self._attends), mixed(self.precision, images.device):
                # A model may write into its input, which is the caller's and which others are to see, too.
                output = (self.through or self.model)(images.clone())
        except (EngineError, DistributedError):
            raise
        except Exception as error:
            message = f"The model failed on images of shape {tuple(images.shape)} and type {images.dtype}: {error}"
            raise ForwardError(message) from error
        finally:
            self.leave()
        return restored(read_logits(output, self._logits), self.precision)

    def with_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The logits for `images`, and the features that entered the classifier."""
        name, layer = self._find_classifier()
        if self._tap is None:
            self._tap = _Tap(layer)
        logits = self(images)
        entered, self._tap.entered = self._tap.entered, None
        features = None if entered is None else entered.flatten(start_dim=1)
        if features is None or features.shape[0] != images.shape[0]:
            raise ModelError(
                f"Expected layer `{name}` to see one feature vector per image. Name the right `classifier`."
            )
        return logits, restored(features, self.precision)

    @torch.inference_mode(mode=False)
    def plain(self) -> nn.Module:
        """A copy of the model as an ordinary module: no rules, no storage shared."""
        self.cut_graphs()
        # What is attached is taken off the copy: compiled code has to be made anew whenever a hook comes or goes.
        attached: list[BatchNormHook | _Tap] = [*self.layer_rules, *([] if self._tap is None else [self._tap])]
        copied = copy.deepcopy(self.model, {id(one): one for one in attached})
        restore_forwards(copied, convolve, normalize)
        forget_rounded(copied)
        numbers = [one.handle.id for one in attached if one.handle is not None]
        for layer in copied.modules():
            for number in numbers:
                layer._forward_pre_hooks.pop(number, None)
                layer._forward_pre_hooks_with_kwargs.pop(number, None)
        return copied

    def cut_graphs(self) -> None:
        """Cut what the model keeps of its last pass, such as attention maps, off the graph: torch copies no graphs."""
        for module in self._every_module:
            _without_graph(vars(module))

    def let_go(self) -> None:
        """Cut what the model keeps of a pass off the graph, so that the next pass can start from it.

        Which modules keep anything is found out once: to look through all of them takes long.
        """
        if self._keeping is None:
            self._keeping = tuple(module for module in self._every_module if _holds_graph(vars(module)))
        for module in self._keeping:
            _without_graph(vars(module))

    def clone(self) -> "Network":
        """A network of its own over a copy of the model, under the same rule."""
        return Network(
            self.plain(),
            self._statistics[0],
            logits=self._logits,
            classifier=self._classifier,
            precision=self.precision,
            distributed=self.distributed,
        )

    def with_source_statistics(self) -> "Network":
        """A network of its own over a copy of the model, normalizing as on the day it was trained."""
        return Network(self.plain(), logits=self._logits, classifier=self._classifier)

    def leave(self) -> None:
        """Give every layer its own statistics back.

        A pass ends with it. So does a backward pass, in which a model that checkpoints activations runs layers anew.
        """
        for rule in self.layer_rules:
            rule.leave()

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
        self.leave()
        for rule in self.layer_rules:
            rule.discard()
        if self._tap is not None:
            self._tap.entered = None

    def _kept(self) -> AbstractContextManager[None]:
        return nullcontext() if self._keepsake is None else self._keepsake.kept()

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


class _Tap:
    """Notes what enters a layer.

    It stays attached between passes: compiled code has to be made anew whenever a hook comes or goes.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.entered: Tensor | None = None
        self.handle: RemovableHandle | None = layer.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, _: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        self.entered = (inputs or tuple(named.values()))[0]


def _without_graph(value: Any) -> Any:  # noqa: ANN401  # a model may keep anything
    """A tensor cut off its graph; tensors in a plain dictionary or list are exchanged in it."""
    if isinstance(value, Tensor):
        return value if value.is_leaf else value.detach()
    if type(value) is tuple:
        cut = tuple(map(_without_graph, value))
        return value if all(map(operator.is_, cut, value)) else cut
    if type(value) in (dict, list):
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            cut = _without_graph(item)
            if cut is not item:
                value[key] = cut
    return value


def _holds_graph(value: Any) -> bool:  # noqa: ANN401  # a model may keep anything
    if isinstance(value, Tensor):
        return not value.is_leaf
    if type(value) in (dict, list, tuple):
        return any(map(_holds_graph, value.values() if isinstance(value, dict) else value))
    return False


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
