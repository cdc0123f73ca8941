"""Steps that read a batch from a fixed place, so that they can be captured."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from driftproof.adapter.engines.eager import EagerEngine
from driftproof.adapter.method import Method
from driftproof.adapter.objective import compute_objective
from driftproof.adapter.state import State
from driftproof.adapter.train_step import ObjectiveFn, train_step
from driftproof.augment import Augment
from driftproof.components import Step, batch_seed
from driftproof.record import StepResult

__all__ = ["MAX_SHAPES", "ShapeTracker", "StaticEngine", "StaticStep", "shape_key"]

MAX_SHAPES = 4
_MAX_COUNTED = 64

ShapeKey = tuple[Any, ...]


class ShapeTracker:
    """Counts batches by shape and decides for which ones a captured or compiled step pays off.

    Such a step holds for one shape. The first batches of a shape run without, and after a few shapes no further one is
    captured: memory and patience are finite.

    Args:
        after: How many batches of a shape run without.
    """

    def __init__(self, after: int) -> None:
        self._after = after
        self._counts: Counter[ShapeKey] = Counter()
        self._chosen: set[ShapeKey] = set()

    def record(self, key: ShapeKey) -> None:
        """Count a batch of this shape."""
        if len(self._counts) >= _MAX_COUNTED:
            self._counts.clear()
        self._counts[key] += 1

    def should_capture(self, key: ShapeKey) -> bool:
        """Whether the next batch of this shape is captured or compiled, or replayed."""
        if key not in self._chosen and self._counts[key] >= self._after and len(self._chosen) < MAX_SHAPES:
            self._chosen.add(key)
        return key in self._chosen


def shape_key(images: Tensor) -> ShapeKey:
    """What a captured step depends on besides the state: the batch's shape and dtype, and the caller's autocast."""
    kind = images.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return (tuple(images.shape), images.dtype, autocast)


class StaticStep:
    """One step for batches of the shape of `images`: its input, its random numbers, and what it was found to use.

    Attributes:
        images: Where the batch is read from.
        generator: The source of random numbers.
        uses_rng: Whether any component draws some; None before the first run.
        uses_source: Whether any component read the frozen network in the last run.
        side_stream: The stream on which the frozen network runs; None runs it on demand.
        objective: `compute_objective`, or a compiled form of it.
    """

    def __init__(self, images: Tensor) -> None:
        self.images = torch.empty_like(images)
        self.generator = torch.Generator(images.device)
        self.uses_rng: bool | None = None
        self.uses_source = False
        self.side_stream: torch.cuda.Stream | None = None
        self.objective: ObjectiveFn = compute_objective

    def run(self, method: Method, state: State) -> StepResult:
        """Run `train_step` on the batch that `images` holds."""
        made: list[Step] = []

        def make_step(images: Tensor, _: Step | None = None, student_view: Augment | None = None) -> Step:
            if not made:
                images = self.images.copy_(images)  # bad images were replaced; the batch stays in its place
            step = state.make_step(images, self.generator, student_view, self.side_stream)
            made.append(step)
            if self.uses_source:
                step.source_logits  # noqa: B018  # before the objective: a compiled one contains no network
            return step

        parts: dict[str, Any] = {"make_step": make_step, "objective": self.objective, "side_stream": self.side_stream}
        result = train_step(method, state, self.images, **parts)
        self.uses_rng = any(step.used_rng for step in made)
        self.uses_source = any(step.used_source for step in made)
        return result


class StaticEngine(EagerEngine):
    """One static step for each shape of batch.

    All batches up to the first optimizer step and the first batch of each shape run eagerly, because lazy buffers must
    exist before their addresses are fixed; so do batches of rare shapes. Eager and static steps share one state. Here
    static steps run as they are; `CudaGraphEngine` captures them. `objective` is used where nothing draws random
    numbers.
    """

    def __init__(self, method: Method, state: State, objective: ObjectiveFn = compute_objective) -> None:
        super().__init__(method, state)
        self._objective = objective
        self._clear()

    def _clear(self) -> None:
        self._shapes = ShapeTracker(after=1)
        self._steps: dict[ShapeKey, StaticStep] = {}
        self._depends_on: Any = None
        self._initialized = False

    def run(self, images: Tensor) -> StepResult:
        """As `EagerEngine.run`; the record is fetched from the device on access."""
        key = shape_key(images)
        if not self._shapes.should_capture(key):
            result = super().run(images)
            if self._is_initialized():
                self._shapes.record(key)
            return result
        depends_on = self._dependencies()
        if depends_on != self._depends_on:
            if self._steps:
                self.invalidate()
                return self.run(images)
            self._depends_on = depends_on
        step = self._steps.get(key)
        if step is None:
            step = self._steps[key] = StaticStep(images)
        if step.uses_rng is not False:
            # Random numbers follow the count of good batches, which has to be fetched.
            step.generator.manual_seed(batch_seed(self.state.seed, int(self.state.index)))
        step.images.copy_(images)
        return self._execute(step)

    def invalidate(self) -> None:
        """Forget every static step."""
        self._clear()

    def _is_initialized(self) -> bool:
        """Whether a step was taken, so that every buffer exists that components create in their first one."""
        if not self._initialized:
            count = self.state.num_steps if self.state.names else self.state.index
            self._initialized = int(count) > 0
        return self._initialized

    def _dependencies(self) -> Any:  # noqa: ANN401  # compared with `==` only
        """What a captured step has built in: addresses of tensors and the optimizer's settings."""
        optimizer = self.state.optimizer
        groups = [] if optimizer is None else optimizer.param_groups
        settings = [
            (key, _setting(value, self.state.device))
            for group in groups
            for key, value in group.items()
            if key != "params"
        ]
        return self.state.addresses(), settings

    def _objective_fn(self, step: StaticStep) -> Callable[..., Any]:
        # Random numbers are for further views of the batch, on which a network has to run.
        return self._objective if step.uses_rng is False else compute_objective

    def _execute(self, step: StaticStep) -> StepResult:
        step.objective = self._objective_fn(step)
        return step.run(self.method, self.state)


def _setting(value: Any, device: torch.device) -> Any:  # noqa: ANN401  # an optimizer may keep anything
    """What of an optimizer's setting a captured step depends on: of a tensor on the device, only which one it is."""
    if isinstance(value, Tensor):
        return id(value) if value.device == device else value.tolist()
    return value
