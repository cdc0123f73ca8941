"""Runs static steps, and the eager one wherever those do not hold."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from driftproof.adapter.engines.eager import Eager
from driftproof.adapter.engines.shapes import Key, Shapes, shape_key
from driftproof.adapter.engines.static import Draw, Result, StaticStep
from driftproof.adapter.engines.storage import Storage
from driftproof.adapter.lesson import draw_lesson
from driftproof.components import batch_seed
from driftproof.record import Record

if TYPE_CHECKING:
    from driftproof.adapter.adapter import Adapter

__all__ = ["Fixed"]


class Fixed(Eager):
    """One static step for each shape of batch.

    Until the first step has been taken, and for the first batch of every shape, steps are eager: what they leave behind
    has to be there before it can be held in place. Batches of a rare shape stay eager. Both kinds share their state:
    whichever runs next finds what the other left.

    Here static steps run as they are; `Graph` records them.

    Args:
        draw: How lessons are drawn that look at nothing but the networks' answers.
    """

    def __init__(self, draw: Draw = draw_lesson) -> None:
        self._draw = draw
        self._shapes = Shapes(after=1)
        self._begin()

    def _begin(self) -> None:
        self._steps: dict[Key, StaticStep] = {}
        self._storage: Storage | None = None
        self._groups: list[Any] = []
        self._host_knows = True
        self._device_knows = False

    def run(self, adapter: "Adapter", images: Tensor) -> tuple[Tensor, Record]:
        """As `Eager.run`; the record is fetched from the device when it is asked for."""
        key = shape_key(images)
        if not (self._all_there(adapter) and self._shapes.worth(key) and self._in_place(adapter)):
            answer, record = self.run_eagerly(adapter, images)
            self._shapes.meet(key)
            return answer, record
        assert self._storage is not None  # in place
        step = self._steps.get(key)
        if step is None:
            step = self._steps[key] = StaticStep(images, self._storage)
        if step.draws is not False:
            # Random numbers follow the count of good batches, which has to be asked for.
            self.settle(adapter)
            step.seed = batch_seed(adapter.seed, adapter._index)
        step.images.copy_(images)
        result = self._execute(step, adapter)
        self._host_knows = False
        return result.delivered()

    def settle(self, adapter: "Adapter") -> None:
        """Bring the counts to the host."""
        if not self._host_knows:
            assert self._storage is not None  # the device counted in it
            self._storage.tell(adapter)
            self._host_knows = True

    def drop(self) -> None:
        """Forget every static step."""
        self._shapes.forget()
        self._begin()

    def run_eagerly(self, adapter: "Adapter", images: Tensor) -> tuple[Tensor, Record]:
        """Run operation by operation, with what the static steps left and for them to find."""
        self.settle(adapter)
        self._device_knows = False
        return super().run_eagerly(adapter, images)

    def _all_there(self, adapter: "Adapter") -> bool:
        """Whether every buffer and the optimizer's state exist; they come with the first step."""
        return not adapter._names or adapter._stepper.taken > 0

    def _in_place(self, adapter: "Adapter") -> bool:
        """See to it that the storage holds the adapter's state; False where the recordings no longer fit it."""
        groups = _hyper_parameters(adapter)
        if self._storage is None:
            self._storage, self._groups = Storage(adapter), groups
        fits = groups == self._groups and self._storage.stands()
        if fits and not self._device_knows:
            fits = self._device_knows = self._storage.adopt(adapter)
        if not fits:
            self.settle(adapter)
            self.drop()
        return fits

    def _lesson_of(self, step: StaticStep) -> Draw:
        # Random numbers are for further views of the batch, which a network has to look at.
        return self._draw if step.draws is False else draw_lesson

    def _execute(self, step: StaticStep, adapter: "Adapter") -> Result:
        step.draw = self._lesson_of(step)
        step.reseed()
        return step.run(adapter)


def _hyper_parameters(adapter: "Adapter") -> list[Any]:
    """The optimizer's settings: a recording has them built in."""
    groups = adapter._stepper.optimizer.param_groups if adapter._names else []
    return [(key, _fixed(value, adapter.device)) for group in groups for key, value in group.items() if key != "params"]


def _fixed(value: Any, device: torch.device) -> Any:  # noqa: ANN401  # an optimizer may keep anything
    """What of a setting a recording depends on: of a tensor on the device, only which one it is."""
    if isinstance(value, Tensor):
        return id(value) if value.device == device else value.tolist()
    return value
