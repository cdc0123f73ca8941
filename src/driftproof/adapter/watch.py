"""Reads the health of an adapter from time to time and lets its guards act."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from driftproof.adapter.control import StateControl
from driftproof.adapter.method import Method
from driftproof.adapter.predict_step import predict_frozen
from driftproof.adapter.state import State
from driftproof.components import flatten
from driftproof.guards import LOOK_EVERY, Warn
from driftproof.health import Health
from driftproof.quarantine import mask_like, replace_bad
from driftproof.record import StepResult
from driftproof.statistics import Source
from driftproof.statistics.base import ProbedLogits

__all__ = ["Watch"]

_MEASURE_EARLY, _MEASURE, _MEASURE_SMALL, _PROBE = (5, 10, 20, 50), 100, 20, 2
_SMALL = 64

RunFrozen = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""`EagerEngine.run_frozen`."""


class PendingTensor:
    """A small tensor on its way from a device; reading it waits for what came before it, not for what came after."""

    def __init__(self, tensor: Tensor) -> None:
        self._event = torch.cuda.Event() if tensor.is_cuda else None  # type: ignore[no-untyped-call]  # of torch
        if self._event is None:
            self._value = tensor.clone()
        else:
            self._value = torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
            self._event.record()

    def read(self) -> Tensor:
        """Wait for it and return it."""
        if self._event is not None:
            self._event.synchronize()
        return self._value


class Watch(StateControl):
    """Lets guards act on the health of an adapter.

    It reads health from the device every tenth batch, and in each of the first ten of more than 64 images. After
    batches 5, 10, 20 and 50 and every hundredth, or every twentieth of fewer than 64 images, it also runs the frozen
    network twice: with the same statistics, and with those of its training. `statistics.Auto` asks for two more, and
    for all four after the second batch. It may ask for more, which come one batch later. So do warnings on a CUDA
    device: nothing waits for the device. Without guards it does nothing.
    """

    def __init__(self, method: Method, state: State) -> None:
        super().__init__(state)
        # A network that neither learns nor takes statistics from the stream cannot go wrong.
        fixed = not method.learns and isinstance(method.statistics, Source)
        self._guards = () if fixed else method.guards
        self._statistics = method.statistics
        self._only_warns = all(type(guard) is Warn for guard in self._guards)
        self._pending: PendingTensor | None = None
        self._asked: PendingTensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_pending": None, "_asked": None}  # events cannot be copied

    def reset(self) -> None:
        """Forget the stream; the state was reset."""
        self._warned, self._pending = False, None
        self.forget_snapshots()

    def forget_snapshots(self) -> None:
        """Have guards forget what they keep; the state is another."""
        self._asked = None
        for guard in self._guards:
            guard.reset()

    def after_batch(self, images: Tensor, result: StepResult, run_frozen: RunFrozen) -> StepResult:
        """Count a batch and its step, let the guards act if it is time, and return what to answer."""
        if not self._guards:
            return result
        self._state.guard_counters["num_batches"] = number = self.num_batches + 1
        self._actions = []
        if self._pending is not None:
            averages, self._pending = self._pending.read(), None
            self._act(averages)
        count = self._state.distributed.global_count(len(images))
        is_small = count < _SMALL
        interval = _MEASURE_SMALL if is_small else _MEASURE
        measures = number in _MEASURE_EARLY or number % interval == 0
        measures |= self._statistics.probes and number == _PROBE
        is_asked = self._statistics.probes and self._read_asked()
        if measures:
            result = self._measure(images, result, run_frozen)
        elif is_asked:
            result = self._probe(images, result)
        if measures or number % LOOK_EVERY == 0 or (number < LOOK_EVERY and count > _SMALL):
            self._look()
        logits, record = result
        if self.falls_back:
            self._actions.append("fell back")
            logits = predict_frozen(self._state, images, ~record.quarantined)
        return StepResult(logits, replace(record, actions=tuple(self._actions))) if self._actions else result

    def _look(self) -> None:
        averages = self._state.health.averages
        if averages is not None and averages.is_cuda and self._only_warns:
            self._pending = PendingTensor(averages)  # a warning can come a batch later; to wait would idle the device
        else:
            self._act(averages)

    def _act(self, averages: Tensor | None) -> None:
        health = Health() if averages is None else Health.from_averages(averages.tolist())
        for guard in self._guards:
            guard.act(health, self)
        self._state.paused.fill_(self.is_paused)
        self._state.guard_counters["of_training"] = int(health.blames_statistics)

    @torch.no_grad()
    def _measure(self, images: Tensor, result: StepResult, run_frozen: RunFrozen) -> StepResult:
        """Compare with the frozen network; the record then shows it."""
        good = ~result.record.quarantined
        same, trained = run_frozen(images, good)
        logits = result.logits.where(mask_like(good, same), same)
        if self._statistics.probes:
            result = self._probe(images, result, trained, same)
        self._state.source.rollback()
        distance = _measure_distance(self._state) if self._state.names else logits.new_zeros(())
        self._state.health.measure(logits, same, trained, distance, self._state.distributed)
        averages = self._state.health.averages
        if averages is None:
            return result
        return result._replace(record=replace(result.record, averages=averages.clone()))

    @torch.no_grad()
    def _probe(
        self, images: Tensor, result: StepResult, trained: Tensor | None = None, same: Tensor | None = None
    ) -> StepResult:
        """Run the frozen network as the statistics ask, and answer as they decide."""
        source, good, probed = self._state.source, ~result.record.quarantined, []
        images = replace_bad(images, good)
        if trained is None:
            with source.statistics_of_training():
                trained = source(images)
        for share in self._statistics.probed_shares:
            with self._statistics.probing(share):
                probed.append(source(images))
        source.rollback()
        logits = ProbedLogits(result.logits, tuple(probed), trained, same)
        answer = self._statistics.judge_probe(logits, self._state.distributed)
        return result._replace(logits=answer.where(mask_like(good, answer), torch.nan))

    def _read_asked(self) -> bool:
        """Whether the batch before asked for extra passes."""
        asked: Tensor = self._statistics.asked  # type: ignore[assignment]  # statistics that probe have this buffer
        is_asked = bool(asked[1]) if self._asked is None else bool(self._asked.read())
        self._asked = PendingTensor(asked[0])
        return is_asked


def _measure_distance(state: State) -> Tensor:
    """How far the weights moved from the source, relative to their norm."""
    start = flatten(state.source_parameters)
    moved, length = torch.linalg.vector_norm(flatten(state.trainable) - start), torch.linalg.vector_norm(start)
    distance: Tensor = moved / length.clamp(min=torch.finfo(start.dtype).tiny)
    return distance
