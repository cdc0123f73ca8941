"""The step without a host: always the same operations, over tensors that stay where they are."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from driftproof.adapter.engines.storage import Storage
from driftproof.adapter.flat import Flat
from driftproof.adapter.lesson import Lesson, draw_lesson
from driftproof.components import Step
from driftproof.record import LazyOutcome, Record

if TYPE_CHECKING:
    from driftproof.adapter.adapter import Adapter

__all__ = ["Draw", "Result", "StaticStep", "finite_groups"]

Draw = Callable[["Adapter", Step], Lesson]


class Result(NamedTuple):
    """What a static step leaves on the device for its caller.

    Attributes:
        answer: The logits.
        selected: The samples the step learned from.
        novelty: How unfamiliar each sample looks.
        flags: As `LazyOutcome` takes them.
        objective: The loss; None where nothing learns.
    """

    answer: Tensor
    selected: Tensor
    novelty: Tensor
    flags: Tensor
    objective: Tensor | None

    def delivered(self) -> tuple[Tensor, Record]:
        """The answer and the record, in copies: the next step writes over what is here."""
        objective = None if self.objective is None else self.objective.clone()
        outcome = LazyOutcome(self.flags.clone())
        return self.answer.clone(), Record(self.selected.clone(), self.novelty.clone(), objective, outcome)


class StaticStep:
    """One step of an adapter for batches of one shape.

    No operation depends on what the data holds, and nothing is fetched from the device: what the eager step decides by
    a branch, this one computes either way and keeps or not with `torch.where`. So it can be recorded once and replayed.

    Args:
        images: A batch of that shape.
        storage: Where the adapter's tensors are.

    Attributes:
        images: Where the batch is read from.
        generator: Where random numbers come from.
        seed: What they are seeded with.
        draws: Whether any part draws some; not known before the first run.
        compares: Whether any part asked for the frozen network in the last run.
        beside: Where the frozen network runs while the adapting one does; None runs it when it is asked for.
        draw: How the lesson is drawn: `draw_lesson`, or a compiled form of it.
    """

    def __init__(self, images: Tensor, storage: Storage) -> None:
        self.images = torch.empty_like(images)
        self.generator = torch.Generator(images.device)
        self.seed = 0
        self.draws: bool | None = None
        self.compares = False
        self.beside: torch.cuda.Stream | None = None
        self.draw: Draw = draw_lesson
        self._storage = storage

    def reseed(self) -> None:
        """Have the next run draw the numbers of its batch."""
        self.generator.manual_seed(self.seed)

    def run(self, adapter: "Adapter") -> Result:
        """Do what `Eager.run` does with the batch that `images` holds."""
        with self._nothing_lost(adapter):
            step = adapter._look(self.images, generator=self.generator, beside=self.beside)
            if self.compares:
                step.source_logits  # noqa: B018  # before the lesson is drawn: a compiled one holds no network
            result = self._learn(adapter, step) if adapter._names else self._predict(adapter, step)
            self.draws = step.drew
            self.compares = step.compared_with_source
            return result

    def _predict(self, adapter: "Adapter", step: Step) -> Result:
        novelty = adapter._novelty(step)
        sound, seen_well = finite_groups([step.logits], [step.images])
        self._commit(adapter, step, sound)
        self._storage.index.add_(sound)
        nobody = torch.zeros_like(step.weights, dtype=torch.bool)
        yes = torch.ones_like(sound)
        flags = torch.stack([sound, yes, ~yes, seen_well, sound, yes])
        return Result(step.answer, nobody, novelty, flags, None)

    def _learn(self, adapter: "Adapter", step: Step) -> Result:
        lesson = self.draw(adapter, step)
        stepper, objective = adapter._stepper, lesson.objective
        gradients = torch.autograd.grad(objective, stepper.parameters, materialize_grads=True)
        adapter.network.leave()
        if self._storage.total:
            gradients = tuple(torch._foreach_add(self._storage.total, gradients))
        live = self._storage.live
        before = live.copied()
        try:
            stepper.step(gradients)
            self._storage.absorb()
            due = self._storage.waiting + 1 == stepper.accumulate
            stepped_well, gathered_well, finite, *healthy = finite_groups(
                live.fractional(),
                Flat.of(gradients).fractional() if self._storage.total else [],
                *([objective], [step.images], [step.logits]),
            )
            sound = finite & (torch.where(due, stepped_well, gathered_well) if self._storage.total else stepped_well)
            good = sound & lesson.useful
            stepped = good & due
            self._tell_parts(adapter, step, good, stepped)
            live.choose(stepped, before)
            answer = step.answer.detach()
            if adapter.output == "after":
                with torch.no_grad():
                    answer = torch.where(sound, adapter.network(step.images), answer)
        except BaseException:
            live.restore(before)
            raise
        self._commit(adapter, step, sound)
        self._count(gradients, sound, good, stepped)
        flags = torch.stack([sound, lesson.useful, stepped, *healthy, finite])
        return Result(answer, lesson.selected & sound, lesson.novelty, flags, objective.detach())

    def _commit(self, adapter: "Adapter", step: Step, sound: Tensor) -> None:
        self._storage.absorb()  # what the models themselves replaced while they ran
        self._storage.keep(adapter.network.commit, sound)
        if step.compared_with_source:
            self._storage.keep(adapter.source.commit, sound)

    def _tell_parts(self, adapter: "Adapter", step: Step, good: Tensor, stepped: Tensor) -> None:
        with torch.no_grad():
            for part in adapter._parts:
                self._storage.keep(lambda part=part: part.on_batch(step), good)  # type: ignore[misc]
                self._storage.keep(lambda part=part: part.on_step(step), stepped)  # type: ignore[misc]

    def _count(self, gradients: tuple[Tensor, ...], sound: Tensor, good: Tensor, stepped: Tensor) -> None:
        storage = self._storage
        storage.index.add_(sound)
        storage.taken.add_(stepped)
        if storage.total:
            storage.waiting.copy_((storage.waiting + good) * ~stepped)
            sums = Flat.of(gradients).where(~stepped, Flat.of([torch.zeros_like(gradient) for gradient in gradients]))
            sums.where(good, Flat.of(storage.total)).pour(storage.total)

    @contextmanager
    def _nothing_lost(self, adapter: "Adapter") -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._storage.put_back()
            raise
        finally:
            adapter.network.discard()
            adapter.source.discard()


def finite_groups(*groups: list[Tensor]) -> tuple[Tensor, ...]:
    """For each group, whether none of its numbers is NaN or infinite; a group of none is well."""
    with torch.no_grad():
        # One pass over each tensor, where `isfinite` takes five: both kinds show in the largest absolute value.
        largest = [torch.linalg.vector_norm(tensor, math.inf) for group in groups for tensor in group]
        kind = reduce(torch.promote_types, (norm.dtype for norm in largest))
        well = torch.stack([norm.to(kind) for norm in largest]) < math.inf
        return tuple(
            some[0] if len(some) == 1 else some.all() for some in torch.split(well, [len(group) for group in groups])
        )
