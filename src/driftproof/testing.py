"""Checks for authors of components."""

import copy
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from driftproof.adapter import Adapter
from driftproof.adapter.engines import StaticEngine
from driftproof.after import After
from driftproof.components import Component, Detection
from driftproof.detectors import Detector
from driftproof.errors import ComponentError, ConfigurationError, ModelError, NotPreparedError, StateError
from driftproof.gradients import Gradient
from driftproof.losses import Entropy, Loss
from driftproof.memories import Memory
from driftproof.network import Network
from driftproof.outputs import Output
from driftproof.regularizers import Regularizer
from driftproof.scopes import everything
from driftproof.selection import Selection
from driftproof.statistics import Batch, Statistics
from driftproof.teacher import EMA

__all__ = ["check_component"]

_KINDS = (Loss, Selection, Regularizer, Statistics, Gradient, Memory, Detector, After, Output)
_CHOICES = ("loss", "select", "regularizer", "statistics", "gradient", "memory", "detector", "after", "output")
_REQUIRED = ("per_sample", "compute", "images", "predict", "detect")
_OPTIONAL = ("weights", "valid_mask", "penalty", "predict_after", "update", "after_step", "on_batch", "on_step")
_STATE = "Keep all state in buffers of `__init__`, reset it in `reset_state`, and draw from `step.generator`."
_STATIC = "Copy images, use `torch.where` for branches, or set `dynamic_reason` to say why it cannot be captured."


def check_component(component: Component, *, model: nn.Module | None = None, images: Tensor | None = None) -> None:
    """Check that a component keeps the rules an adapter relies on.

    The component becomes part of a small method, which adapts a network with rank-2 logits and one with rank-4 logits;
    a network that the component refuses with `ModelError` is left out. Checked are the values it returns, that its
    state is complete, is undone with a bad batch, reset, saved and loaded, that it replaces buffers rather than writing
    into them, that a static step equals an eager one, and its description.

    Args:
        component: A loss, selection, regularizer, statistics rule, gradient, memory, output, or what follows a step.
        model: The model to adapt in place of the small networks.
        images: A batch of at least two images; None is eight color images of 8 × 8 pixels.

    Raises:
        ComponentError: It breaks a rule; the message names the component and says what to do.

    Examples:
        >>> class Confidence(Loss):
        ...     def per_sample(self, step):
        ...         return -step.log_probabilities.amax(dim=1)
        >>> check_component(Confidence())
    """
    choice = next((name for kind, name in zip(_KINDS, _CHOICES, strict=True) if isinstance(component, kind)), None)
    if choice is None:
        raise ConfigurationError(f"Expected an instance of a component, such as a Loss, but got {component!r}.")
    name, refused = type(component).__name__, []
    images = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)) if images is None else images
    models = _small_networks() if model is None else [model]
    try:
        _expect(repr(copy.deepcopy(component)) == repr(component), f"a copy of {name} to have the same `repr`")
        for one in models:
            try:
                _check_on(one, images, choice, component, forbid_sync=model is None)
            except ModelError as error:
                refused.append(error)
    except ComponentError as error:
        raise ComponentError(str(error) if name in str(error) else f"{name}: {error}") from error
    _expect(len(refused) < len(models), f"{name} to work with the model", "; ".join(map(str, refused)))


def _check_on(model: nn.Module, images: Tensor, choice: str, component: Component, *, forbid_sync: bool) -> None:
    name, (adapter, other) = type(component).__name__, (_make_adapter(model, choice, component) for _ in range(2))
    watch, other_watch = (_Watch(one, choice) for one in (adapter, other))
    with torch.no_grad():
        labels = adapter.network.with_source_statistics()(images).argmax(dim=1)
    adapter.prepare([(images, labels)])
    generator = torch.Generator(images.device).manual_seed(1)
    factors = torch.rand(4, len(images), *[1] * (images.ndim - 1), generator=generator, device=images.device)
    stream = [images * (0.5 + 0.5 * factor) for factor in factors.to(images.dtype)]

    start, saved = _run(adapter, stream[:2]), adapter.state_dict()
    rest, now = _run(adapter, stream[2:]), repr(watch.component)
    _expect(now == repr(component), f"{name} to keep its `repr`", f"it became {now}", _STATE)
    again = _run(adapter.reset(), stream[:2])
    _expect(_equal(start, again), f"{name} to do the same after `reset()`", "results differ", _STATE)

    watch.expects_finite = False
    adapter(images * torch.nan)
    watch.expects_finite = True
    unchanged = _equal(saved.values(), adapter.state_dict().values())
    _expect(unchanged, f"{name} to ignore a batch of NaN", "its state changed", _STATE)
    again = _run(adapter, stream[2:])
    _expect(_equal(rest, again), f"{name} to ignore a batch of NaN", "later results differ", _STATE)

    try:
        other.load_state_dict(saved)
        again = _run(other, stream[2:])
    except (StateError, NotPreparedError) as error:
        raise ComponentError(f"Expected {name} to continue from a saved state, but: {error} {_STATE}") from error
    _expect(_equal(rest, again), f"{name} to continue from a saved state", "results differ", _STATE)

    if component.dynamic_reason is None:
        engine = StaticEngine(other.reset().method, other.state)
        _run(other, stream[:1], engine)  # eager, as the first batch of a shape is
        other_watch.forbids_sync = forbid_sync
        again = _run(other, stream[1:], engine)[-len(rest) :]
        _expect(_equal(rest, again), f"a static step with {name} to equal the eager one", "results differ", _STATIC)


class _Watch:
    """Checks what the component of an adapter returns, at every call."""

    def __init__(self, adapter: Adapter, choice: str) -> None:
        self.component = adapter.method.after[0] if choice == "after" else getattr(adapter.method, choice)
        self.expects_finite, self.forbids_sync = True, False
        self._device, self._image_shape = adapter.device, torch.Size()
        for method in filter(partial(hasattr, self.component), (*_REQUIRED, *_OPTIONAL)):
            setattr(self.component, method, partial(self._call, method, getattr(self.component, method)))

    def _call(self, method: str, call: Any, *args: Any) -> Any:  # noqa: ANN401  # any method of any component
        where = f"{type(self.component).__name__}.{method}"
        with _ForbidSync(where) if self.forbids_sync else nullcontext():
            value = call(*args)
        if method == "detect":
            return self._check_detection(where, value)
        values = list(value) if isinstance(value, tuple | list) else [value]
        likes = args[1] if method == "compute" else (args or (None,))[:1] * len(values)
        _expect(len(values) == len(likes), f"{where} to return {len(likes)} tensors", f"got {len(values)}")
        for one, like in zip(values, likes, strict=True):
            if one is not None or method in _REQUIRED:
                self._check(f"{where} to return", method, one, like)
        return value

    def _check_detection(self, where: str, value: Any) -> Any:  # noqa: ANN401
        _expect(isinstance(value, Detection), f"{where} to return a Detection", f"got {type(value).__name__}")
        shape = (len(value.logits), *value.logits.shape[2:])
        for name in ("known", "novelty"):
            found = tuple(getattr(value, name).shape)
            _expect(found == shape, f"{where} to return `{name}` of shape {shape}", f"got {found}")
        _expect(value.known.dtype == torch.bool, f"{where} to return `known` as booleans", f"got {value.known.dtype}")
        free = not value.logits.requires_grad and not value.novelty.requires_grad
        _expect(free, f"{where} to return nothing with a graph", "it is part of one")
        return value

    def _check(self, returns: str, method: str, value: Any, like: Any) -> None:  # noqa: ANN401
        _expect(isinstance(value, Tensor), f"{returns} a tensor", f"got {type(value).__name__}")
        self._image_shape = self._image_shape or value.shape
        shape = self._image_shape if method == "images" else torch.Size()
        if method not in ("images", "penalty"):
            shape = (like if method == "compute" else like.logits if "predict" in method else like.weights).shape
        is_number = value.is_floating_point() or (value.dtype == torch.bool and method in ("weights", "valid_mask"))
        got = f"got {value.dtype} on {value.device}"
        _expect(value.shape == shape, f"{returns} shape {tuple(shape)}", f"got {tuple(value.shape)}")
        _expect(is_number and value.device == self._device, f"{returns} floats on {self._device}", got)
        _expect(not self.expects_finite or bool(value.isfinite().all()), f"{returns} finite numbers", "got NaN or Inf")
        _expect(method != "weights" or not bool((value < 0).any()), f"{returns} weights of at least 0", "got less")
        _expect(method != "per_sample" or value.requires_grad, f"{returns} a loss with a graph", "it is detached")


class _ForbidSync(TorchDispatchMode):
    """Raises where a value is read on the host or decides a shape, which cannot be captured."""

    def __init__(self, where: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._where = where

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        aten = torch.ops.aten
        by_mask = func is aten.index.Tensor and any(one is not None and one.dtype == torch.bool for one in args[1])
        is_sync = by_mask or func in (aten._local_scalar_dense.default, aten.nonzero.default)
        _expect(not is_sync, f"{self._where} to stay on the device", f"it uses {func}", _STATIC)
        return func(*args, **(kwargs or {}))


class _SureHalf(Detector):
    """Calls the surer half of the samples known: something to read for what reads a detector, at one pass."""

    @torch.no_grad()
    def detect(self, images: Tensor, network: Network, *_: Any) -> Detection:  # noqa: ANN401
        logits = network(images)
        novelty = -logits.logsumexp(dim=1)
        return Detection(novelty <= novelty.nanmedian(), novelty, logits)


def _make_adapter(model: nn.Module, choice: str, component: Component) -> Adapter:
    options: dict[str, Any] = {"statistics": Batch(), "loss": Entropy(), "teacher": EMA(0.9), "guard": ()}
    options["detector"] = None if choice == "memory" else _SureHalf()
    options[choice] = component
    make_optimizer = partial(torch.optim.SGD, lr=1e-2, momentum=0.9)
    return Adapter(model, scope=everything(), mean_entropy=0.1, optimizer=make_optimizer, engine="eager", **options)


def _small_networks() -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        stem = [nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU()]
        return [nn.Sequential(*stem, nn.Flatten(), nn.Linear(512, 5)), nn.Sequential(*stem, nn.Conv2d(8, 5, 1))]


def _run(adapter: Adapter, stream: Iterable[Tensor], engine: StaticEngine | None = None) -> list[Tensor]:
    """The output and the selected samples of every batch, and the state at the end."""
    tensors: list[Tensor] = []
    for images in stream:
        logits, record = adapter.step(images) if engine is None else engine.run(images)
        _expect("NaN" not in (record.skipped or ""), "finite numbers from finite images", f"got {record.skipped}")
        tensors += [logits, record.selected]
    return [*tensors, *adapter.state_dict().values()]


def _equal(first: Iterable[Tensor], second: Iterable[Tensor]) -> bool:
    """Whether all tensors are equal to the last bit, NaN included."""
    one, other = ([tensor.reshape(-1).view(torch.uint8) for tensor in tensors] for tensors in (first, second))
    return len(one) == len(other) and all(map(torch.equal, one, other))


def _expect(holds: bool, expected: str, got: str = "it differs", advice: str = "") -> None:
    if not holds:
        raise ComponentError(f"Expected {expected}, but {got}. {advice}".rstrip())
