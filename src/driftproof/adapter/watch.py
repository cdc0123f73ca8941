"""Reads the health of an adapter from time to time and lets its guards act."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from driftproof.adapter.method import Method
from driftproof.adapter.predict_step import predict_frozen
from driftproof.adapter.state import State
from driftproof.adapter.weights import Weights, copy_weights, measure_distance, reset_weights, restore_weights
from driftproof.guards import LOOK_EVERY, Warn
from driftproof.health import Health
from driftproof.quarantine import mask_like, replace_bad
from driftproof.record import StepResult
from driftproof.statistics import Source
from driftproof.statistics.base import ProbedLogits
from driftproof.warn import warn_caller

__all__ = ["Watch"]

_MEASURE_EARLY, _MEASURE, _MEASURE_SMALL, _PROBE = (5, 10, 20, 50), 100, 20, 2
_SMALL = 64

_FOR_STATISTICS = 'Shuffle the stream, or pass `statistics="auto"`, which suits small and class-ordered batches.'
_FOR_WEIGHTS = (
    "Lower the learning rate, pass `select=ConfidenceDifference()`, or have it undone with `guard=guards.RollBack()`."
)


RunFrozen = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


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


class Watch:
    """Implements `guards.Control` for one adapter.

    It reads health from the device every tenth batch, and in each of the first ten of more than 64 images. After
    batches 5, 10, 20 and 50 and every hundredth, or every twentieth of fewer than 64 images, it also runs the frozen
    network twice: with the same statistics, and with those of its training. `statistics.Auto` asks for two more, and
    for all four after the second batch. It may ask for more, which come one batch later. So do warnings on a CUDA
    device: nothing waits for the device. Without guards it does nothing.

    Args:
        method: Its guards act on health, in their order.
        state: The adapter's.
    """

    def __init__(self, method: Method, state: State) -> None:
        # A network that neither learns nor takes statistics from the stream cannot go wrong.
        fixed = not method.learns and isinstance(method.statistics, Source)
        self._guards = () if fixed else method.guards
        self._statistics = method.statistics
        self._state = state
        self._only_warns = all(type(guard) is Warn for guard in self._guards)
        self._warned = False
        self._pending: PendingTensor | None = None
        self._asked: PendingTensor | None = None
        self._actions: list[str] = []

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

    @property
    def num_batches(self) -> int:
        """How many batches came since the start or the last reset."""
        return self._state.guard_counters.get("num_batches", 0)

    @property
    def falls_back(self) -> bool:
        """Whether the frozen network answers at the moment."""
        return self._is_before("falls_back_until")

    @property
    def uses_training(self) -> bool:
        """Whether it answers with the statistics of its training."""
        return self.falls_back and bool(self._state.guard_counters.get("of_training"))

    def _is_before(self, name: str) -> bool:
        return self.num_batches < self._state.guard_counters.get(name, 0)

    def _extend(self, name: str, batches: int) -> None:
        counters = self._state.guard_counters
        counters[name] = max(counters.get(name, 0), self.num_batches + batches)

    def after_batch(self, images: Tensor, result: StepResult, run_frozen: RunFrozen) -> StepResult:
        """Count a batch, let the guards act if it is time, and return what to answer.

        Args:
            images: The batch.
            result: What its step answered.
            run_frozen: Runs the frozen network on it, as `EagerEngine.run_frozen` does.
        """
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
        self._state.paused.fill_(self._is_before("paused_until"))
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
        distance = measure_distance(self._state) if self._state.names else logits.new_zeros(())
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

    # --- what guards may do -------------------------------------------------------------------------------------------

    def warn(self, health: Health) -> None:
        """Say what is wrong and what to do, once."""
        if not self._warned:
            self._warned = True
            advice = _FOR_STATISTICS if health.blames_statistics else _FOR_WEIGHTS
            warn_caller(f"Adaptation is {health.state} after {self.num_batches} batches: {health.reason}. {advice}")

    def pause(self, batches: int) -> None:
        """Learn nothing from the next so many batches."""
        self._extend("paused_until", batches)
        self._actions.append("paused")

    def fall_back(self, batches: int) -> None:
        """Answer the next so many batches, this one included, with the frozen network's predictions."""
        self._extend("falls_back_until", batches)

    def reset_weights(self, share: float) -> None:
        """Move the weights this share of the way back to the source; optimizer and health start anew."""
        reset_weights(self._state, share)
        self._state.health.clear()
        self._actions.append("reset")

    def take_snapshot(self) -> Weights:
        """Copy weights and optimizer."""
        return copy_weights(self._state)

    def restore(self, snapshot: Weights) -> None:
        """Return to a snapshot; health starts anew."""
        restore_weights(self._state, Weights(*snapshot))  # a saved one is a plain tuple
        self._state.health.clear()
        self._actions.append("rolled back")
