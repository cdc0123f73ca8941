"""Checks for authors of components."""

import copy
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from driftproof.adapter import Adapter
from driftproof.adapter.engines import StaticEngine
from driftproof.after import After
from driftproof.components import Component
from driftproof.errors import ComponentError, ConfigurationError, ModelError, StateError
from driftproof.gradients import Gradient
from driftproof.losses import Entropy, Loss
from driftproof.memories import Memory
from driftproof.outputs import Output
from driftproof.regularizers import Regularizer
from driftproof.scopes import everything
from driftproof.selection import Selection
from driftproof.statistics import Batch, Statistics
from driftproof.teacher import EMA

__all__ = ["check_component"]

_CHOICES: tuple[tuple[type[Component], str, tuple[str, ...]], ...] = (
    (Loss, "loss", ("per_sample",)),
    (Selection, "select", ("weights", "valid_mask")),
    (Regularizer, "regularizer", ("penalty",)),
    (Statistics, "statistics", ()),
    (Gradient, "gradient", ("compute",)),
    (Memory, "memory", ("update", "images", "weights")),
    (After, "after", ("after_step",)),
    (Output, "output", ("predict", "predict_after")),
)
_OPTIONAL = ("valid_mask", "penalty", "predict_after", "weights")
_ADVICE = "Keep what it remembers in buffers, reset them in `reset_state`, and draw from `step.generator`."
_SYNC = "reads a tensor on the host. Use `torch.where` in place of a branch, or set `dynamic_reason`."


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
        >>> class Reduced(Loss):
        ...     def per_sample(self, step):
        ...         return -step.log_probabilities.amax(dim=1).mean()
        >>> check_component(Reduced())
        Traceback (most recent call last):
        driftproof.errors.ComponentError: Expected Reduced.per_sample to return shape (8,), but got ().
    """
    kinds = [(choice, watched) for kind, choice, watched in _CHOICES if isinstance(component, kind)]
    if not kinds:
        raise ConfigurationError(f"Expected an instance of a component, such as a Loss, but got {component!r}.")
    name = type(component).__name__
    try:
        copied = repr(copy.deepcopy(component))
    except Exception as error:
        raise ComponentError(f"Expected {name} to be copied by `copy.deepcopy`, but: {error}.") from error
    if copied != repr(component):
        raise ComponentError(f"Expected a copy of {name} to have the same `repr`, but {component!r} became {copied}.")
    images = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)) if images is None else images
    models, refused = _small_networks() if model is None else [model], []
    for one in models:
        try:
            _check_with(component, *kinds[0], one, images, forbid_sync=model is None)
        except ModelError as error:
            refused.append(error)
        except ComponentError as error:
            raise ComponentError(str(error) if name in str(error) else f"{name}: {error}") from error
    if len(refused) == len(models):
        raise ComponentError(f"Expected {name} to work with the model, but it refused it: {refused[0]}") from refused[0]


def _check_with(
    component: Component, choice: str, watched: tuple[str, ...], model: nn.Module, images: Tensor, *, forbid_sync: bool
) -> None:
    name = type(component).__name__
    adapter, restored = (_make_adapter(model, choice, component) for _ in range(2))
    watch, other_watch = _Watch(adapter, choice, watched), _Watch(restored, choice, watched)
    with torch.no_grad():
        labels = adapter.source(images).argmax(dim=1)
    adapter.prepare([(images, labels)])
    generator = torch.Generator(images.device).manual_seed(1)
    factors = torch.rand(5, len(images), *[1] * (images.ndim - 1), generator=generator, device=images.device)
    stream = [images * (0.5 + 0.5 * factor) for factor in factors.to(images.dtype)]

    start = _run(adapter, stream[:2])
    middle = adapter.state_dict()
    rest, end = _run(adapter, stream[2:]), adapter.state_dict()
    if repr(watch.component) != repr(component):
        raise ComponentError(f"Expected {name} to keep its `repr`, but it became {watch.component!r}. {_ADVICE}")
    changed = watch.describe_changes(component)
    adapter.reset()
    if not (_equal(start, _run(adapter, stream[:2])) and _equal(middle, adapter.state_dict())):
        raise ComponentError(f"Expected the same results from {name} after `reset()`, but they differ. {changed}{_ADVICE}")

    watch.expects_finite = False
    adapter(images * torch.nan)
    watch.expects_finite = True
    if not _equal(middle, adapter.state_dict()):
        raise ComponentError(f"Expected {name} to be unchanged by a batch of NaN, but its state differs. {_ADVICE}")
    if not (_equal(rest, _run(adapter, stream[2:])) and _equal(end, adapter.state_dict())):
        raise ComponentError(f"Expected {name} to forget a batch of NaN, but later results differ. {changed}{_ADVICE}")

    try:
        restored.load_state_dict(middle)
    except StateError as error:
        advice = "Register every buffer in `__init__`, as None while its shape is unknown."
        raise ComponentError(f"Expected a fresh {name} to load a saved state, but: {error} {advice}") from error
    if not (_equal(rest, _run(restored, stream[2:])) and _equal(end, restored.state_dict())):
        raise ComponentError(f"Expected {name} to continue from a saved state, but results differ. {changed}{_ADVICE}")

    if component.dynamic_reason is None:
        restored.reset()._engine = StaticEngine(restored.method, restored.state)
        static = _run(restored, stream[:1])
        other_watch.forbids_sync = forbid_sync
        if not (_equal(start + rest, static + _run(restored, stream[1:])) and _equal(end, restored.state_dict())):
            advice = "It must not hold on to `step.images`: keep copies in buffers, or set `dynamic_reason`."
            raise ComponentError(f"Expected a static step with {name} to equal the eager one, but it differs. {advice}")


class _Watch:
    """Checks what the component of an adapter returns, at every call."""

    def __init__(self, adapter: Adapter, choice: str, watched: tuple[str, ...]) -> None:
        self.component = adapter.method.after[0] if choice == "after" else getattr(adapter.method, choice)
        self.expects_finite = True
        self.forbids_sync = False
        self._image_shape: torch.Size | None = None
        for method in (*watched, "on_batch", "on_step"):
            setattr(self.component, method, partial(self._call, method, getattr(self.component, method)))

    def _call(self, method: str, call: Any, *args: Any) -> Any:  # noqa: ANN401  # any method of any component
        if not self.forbids_sync:
            value = call(*args)
        else:
            with _ForbidSync(f"{type(self.component).__name__}.{method}"):
                value = call(*args)
        if method not in ("update", "after_step", "on_batch", "on_step") and not (value is None and method in _OPTIONAL):
            self._check(f"{type(self.component).__name__}.{method}", method, value, args)
        return value

    def _check(self, where: str, method: str, value: Any, args: tuple[Any, ...]) -> None:  # noqa: ANN401
        values = list(value) if isinstance(value, tuple | list) else [value]
        if method == "compute" and len(values) != len(args[1]):
            raise ComponentError(f"Expected {where} to return {len(args[1])} gradients, but got {len(values)}.")
        for place, tensor in enumerate(values):
            if tensor is None and method == "weights":  # nothing repels
                continue
            if not isinstance(tensor, Tensor):
                raise ComponentError(f"Expected {where} to return a tensor, but got {type(tensor).__name__}.")
            if method == "images":
                self._image_shape = self._image_shape or tensor.shape
            like, shape = _expectation(method, args, place, tensor, self._image_shape)
            if tensor.shape != shape:
                raise ComponentError(f"Expected {where} to return shape {tuple(shape)}, but got {tuple(tensor.shape)}.")
            allows_bool = method in ("weights", "valid_mask")
            if tensor.device != like.device or not (tensor.is_floating_point() or allows_bool and tensor.dtype == torch.bool):
                kind = f"{tensor.dtype} on {tensor.device}"
                raise ComponentError(f"Expected {where} to return floating-point numbers on {like.device}, but got {kind}.")
            if self.expects_finite and not bool(tensor.isfinite().all()):
                raise ComponentError(f"Expected {where} to return finite numbers, but some are NaN or Inf.")
            if method == "weights" and bool((tensor < 0).any()):
                raise ComponentError(f"Expected {where} to return weights of at least 0, but some are negative.")
            if method == "per_sample" and not tensor.requires_grad:
                raise ComponentError(f"Expected {where} to return losses with a graph. Do not detach `step.logits`.")
