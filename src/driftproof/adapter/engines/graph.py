"""Static steps recorded in CUDA graphs: one launch for the whole step."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from driftproof.adapter.engines.fixed import Fixed
from driftproof.adapter.engines.static import Result, StaticStep
from driftproof.errors import ConfigurationError, EngineError
from driftproof.record import Record

if TYPE_CHECKING:
    from driftproof.adapter.adapter import Adapter

__all__ = ["Graph", "can_record", "expect_recordable", "refuse_varying"]


class Graph(Fixed):
    """Records each static step when it is first repeated, and replays it from then on.

    Of every shape the first batch runs eagerly, the second as a static step, the third is recorded. A graph reads
    and writes the addresses it was recorded with; `Storage` owns them, and whatever moves them drops the graphs.
    With a compiled lesson, the step is rehearsed once more before it is recorded.
    """

    def _begin(self) -> None:
        super()._begin()
        self._graphs: dict[StaticStep, tuple[torch.cuda.CUDAGraph, Result]] = {}
        # Graphs of one adapter never run at once and keep nothing from run to run, so they can share their memory.
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def run(self, adapter: "Adapter", images: Tensor) -> tuple[Tensor, Record]:
        """As `Eager.run`, replayed."""
        expect_recordable(adapter.device)
        return super().run(adapter, images)

    def equip(self, optimizer: torch.optim.Optimizer) -> None:
        """As `Eager.equip`; and have the optimizer keep its counters on the device."""
        super().equip(optimizer)
        for group in optimizer.param_groups:
            if all(can_record(parameter.device) for parameter in group["params"]) and "capturable" in group:
                group["capturable"] = True
                # Its first steps are not recorded; torch would remark on that.
                optimizer._warned_capturable_if_run_uncaptured = True

    def drop(self) -> None:
        """Forget every recording, once the last one has run its course."""
        if self._graphs:
            torch.cuda.synchronize()
        super().drop()

    def _execute(self, step: StaticStep, adapter: "Adapter") -> Result:
        if step.draws is None:
            _refuse_host_state(adapter)
            return self._rehearsed(step, adapter)
        if step.compares and step.beside is None:
            step.beside = torch.cuda.Stream(adapter.device)  # type: ignore[no-untyped-call]
        if step.draw is not self._lesson_of(step):
            return self._rehearsed(step, adapter)
        if step not in self._graphs:
            self._graphs[step] = self._recorded(step, adapter)
        graph, result = self._graphs[step]
        step.reseed()
        graph.replay()
        return result

    def _rehearsed(self, step: StaticStep, adapter: "Adapter") -> Result:
        """Run once for real where it will be recorded, so that whatever is set up on first use is there."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(adapter.device)  # type: ignore[no-untyped-call]
        here = torch.cuda.current_stream(adapter.device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            result = super()._execute(step, adapter)
        here.wait_stream(self._stream)
        for tensor in result:
            if tensor is not None:
                tensor.record_stream(here)
        return result

    def _recorded(self, step: StaticStep, adapter: "Adapter") -> tuple[torch.cuda.CUDAGraph, Result]:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(step.generator)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        step.reseed()
        here = torch.cuda.current_stream(adapter.device)
        try:
            # Threads that load data may allocate meanwhile; only this one must not.
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                result = step.run(adapter)
        except Exception as error:
            torch.cuda.set_stream(here)  # a recording that ends badly does not lead back by itself
            self._pool = self._stream = None
            step.draws = None
            raise _explained(error) from error
        return graph, result


def can_record(device: torch.device) -> bool:
    """Whether steps on this device can be recorded."""
    return device.type == "cuda"


def expect_recordable(device: torch.device) -> None:
    """Refuse a device on which steps cannot be recorded."""
    if not can_record(device):
        raise ConfigurationError(
            f'Expected the model on a CUDA device, since `engine="graph"` records CUDA graphs, but it is on {device}. '
            'Move the adapter there, or choose `engine="eager"` or `engine="compile"`.'
        )


def refuse_varying(adapter: "Adapter") -> None:
    """Refuse a method whose step is not the same for every batch, and a machine on which nothing can be recorded."""
    for part in adapter._parts:
        if part.dynamic_reason is not None:
            raise ConfigurationError(
                f'Expected `engine` to be "eager" or "compile" with {type(part).__name__}, since {part.dynamic_reason}: '
                "such a step cannot be recorded once and replayed."
            )
    if not can_record(adapter.device) and not torch.cuda.is_available():
        raise ConfigurationError(
            'Expected a CUDA device for `engine="graph"`, which records CUDA graphs, but there is none. '
            'Choose `engine="eager"` or `engine="compile"`.'
        )


def _refuse_host_state(adapter: "Adapter") -> None:
    """Refuse an optimizer that counts on the host: a replayed step would not count."""
    if not adapter._names:
        return
    optimizer = adapter._stepper.optimizer
    for state in optimizer.state.values():
        for key, value in state.items():
            counts = isinstance(value, int | float) and not isinstance(value, bool)
            if counts or (isinstance(value, Tensor) and value.device != adapter.device):
                raise ConfigurationError(
                    f"Expected an optimizer that keeps its state on the device, such as Adam or SGD, but "
                    f'{type(optimizer).__name__} keeps `{key}` on the host. Choose another, or `engine="eager"`.'
                )


def _explained(error: Exception) -> EngineError:
    # Ending a recording that has failed fails as well; the reason is what came first.
    reasons: list[BaseException] = [error]
    while reasons[-1].__context__ is not None:
        reasons.append(reasons[-1].__context__)
    first = reasons[-1]
    named = next((reason for reason in reasons if isinstance(reason, EngineError)), None)
    if named is not None:
        return named
    if any(isinstance(reason, torch.OutOfMemoryError) for reason in reasons):
        return EngineError(
            f"The device ran out of memory while the step was recorded: {first}. Nothing was lost. Free memory, use "
            'smaller batches, or choose `engine="eager"`.'
        )
    return EngineError(
        f"The step could not be recorded: {first}. A part or a model that fetches numbers from the device cannot be; "
        'choose `engine="eager"`.'
    )
