"""Steps captured in CUDA graphs: one launch for a whole step."""

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from driftproof.adapter.engines.eager import run_frozen
from driftproof.adapter.engines.static import StaticEngine, StaticStep, shape_key
from driftproof.adapter.method import Method
from driftproof.adapter.state import State
from driftproof.errors import ConfigurationError, EngineError
from driftproof.record import StepResult

__all__ = ["CudaGraphEngine", "reject_dynamic", "require_cuda", "supports_cuda_graphs"]

_MOST_COLLECTIONS = 1000  # one frees the graph of one layer
_SEEN = "driftproof: seen before a capture"

_Result = TypeVar("_Result")


class CudaGraphEngine(StaticEngine):
    """Captures each static step when it is first repeated, and replays it from then on.

    Of every shape the first batch runs eagerly, the second as a static step, and the third is captured. A graph reads
    and writes the addresses it was captured with; the state keeps them, and whatever moves them drops the graphs. With
    a compiled objective there is one more warm-up run.
    """

    def __init__(self, method: Method, state: State, **options: Any) -> None:  # noqa: ANN401  # relayed
        super().__init__(method, state, **options)
        self._captures_frozen = method.uses_batch_statistics

    def _clear(self) -> None:
        super()._clear()
        self._graphs: dict[StaticStep, tuple[torch.cuda.CUDAGraph, StepResult]] = {}
        self._frozen: dict[StaticStep, tuple[torch.cuda.CUDAGraph, tuple[Tensor, Tensor]] | None] = {}
        # Graphs of one adapter never run at once and keep nothing from run to run, so they share their memory.
        self._pool: Any = None

    def run(self, images: Tensor) -> StepResult:
        """As `EagerEngine.run`, replayed."""
        require_cuda(self.state.device)
        return super().run(images)

    @torch.no_grad()
    def run_frozen(self, images: Tensor, good: Tensor) -> tuple[Tensor, Tensor]:
        """As `EagerEngine.run_frozen`; for a shape whose step is replayed, replayed from the third time on."""
        static = self._steps.get(shape_key(images))
        if static not in self._graphs or not self._captures_frozen:
            return super().run_frozen(images, good)
        if static not in self._frozen:
            self._frozen[static] = None
            return super().run_frozen(images, good)
        captured = self._frozen[static]
        if captured is None:
            try:
                # The step left the batch, with its bad images replaced, where the next one will be.
                captured = self._capture(partial(run_frozen, self.state.source, static.images))
            except EngineError:
                self._captures_frozen = False
                return super().run_frozen(images, good)
            self._frozen[static] = captured
        graph, logits = captured
        graph.replay()
        return logits

    def invalidate(self) -> None:
        """Forget every graph, once the last replay has finished."""
        if self._graphs:
            torch.cuda.synchronize(self.state.device)
        super().invalidate()

    def _execute(self, step: StaticStep) -> StepResult:
        if step.uses_rng is None:
            _reject_copied_optimizer(self.state)
            return self._warm_up(step)
        if step.uses_source and step.side_stream is None:
            step.side_stream = _shared_stream("side", self.state.device)
        if step.objective is not self._objective_fn(step):
            return self._warm_up(step)
        if step not in self._graphs:
            self._graphs[step] = self._capture(partial(step.run, self.method, self.state), step.generator)
        graph, result = self._graphs[step]
        graph.replay()
        return result.clone()

    def _warm_up(self, step: StaticStep) -> StepResult:
        """Run once for real on the capture stream, so that whatever is set up on first use exists."""
        free_earlier_graphs(self.state.trainable)
        stream = _shared_stream("capture", self.state.device)
        current = torch.cuda.current_stream(self.state.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            result = super()._execute(step).clone()
        current.wait_stream(stream)
        for tensor in (result.logits, result.record.selected, result.record.novelty):
            tensor.record_stream(current)
        return result

    def _capture(
        self, run: Callable[[], _Result], generator: torch.Generator | None = None
    ) -> tuple[torch.cuda.CUDAGraph, _Result]:
        graph = torch.cuda.CUDAGraph()
        if generator is not None:
            graph.register_generator_state(generator)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        free_earlier_graphs(self.state.trainable)
        try:
            with _pause_collector(), _undo_failed_capture(self.state.device, self._pool):
                # Threads that load data may allocate meanwhile; only this one must not.
                stream = _shared_stream("capture", self.state.device)
                with torch.cuda.graph(graph, self._pool, stream, capture_error_mode="thread_local"):
                    result = run()
        except Exception as error:
            self.invalidate()
            raise _to_engine_error(error) from error
        return graph, result


def free_earlier_graphs(parameters: Sequence[nn.Parameter]) -> None:
    """Free what reference cycles still hold of the autograd graphs of earlier steps.

    Nodes for the gradients of parameters belong to the stream on which they were made. A step on another stream that
    finds one alive waits for the first, of which torch warns, and which a capture does not survive. `torch.compile`
    keeps the inputs of an autograd function that it traced in such a cycle, and only once these are freed can those of
    the function before it be.
    """
    for _ in range(_MOST_COLLECTIONS):
        if not gc.collect() or not _has_gradient_nodes(parameters):
            return


def _has_gradient_nodes(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether anything holds the gradient node of a parameter: one that nothing holds is made anew when asked for."""
    for parameter in parameters:
        _notes(parameter)[_SEEN] = True
    return any(_SEEN in _notes(parameter) for parameter in parameters)


def _notes(parameter: nn.Parameter) -> dict[str, object]:
    """The dictionary of the gradient node of a parameter, free for anyone to write to; it ends with the node."""
    notes: dict[str, object] = get_gradient_edge(parameter).node.metadata  # type: ignore[assignment]  # not a method
    return notes


_streams = threading.local()


def _shared_stream(role: str, device: torch.device) -> torch.cuda.Stream:
    """One stream per role, thread and device: each new stream costs a workspace of cuBLAS that is never freed."""
    key = f"{role}:{device.index or 0}"
    stream: torch.cuda.Stream | None = getattr(_streams, key, None)
    if stream is None:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        setattr(_streams, key, stream)
    return stream


_capturing = threading.RLock()


@contextmanager
def _pause_collector() -> Iterator[None]:
    """Keep the garbage collector off while a step is captured: freeing another CUDA graph would end the capture.

    The collector is the process's, so captures of several threads wait for each other.
    """
    with _capturing:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()


@contextmanager
def _undo_failed_capture(device: torch.device, pool: Any) -> Iterator[None]:  # noqa: ANN401  # torch's handle
    """Leave the process as if a failed capture had never been tried.

    Torch ends a capture that went wrong half-way: the current stream stays the capture stream, the allocator goes on
    serving that stream from the graph's pool, and the device's random generator believes that it is captured.
    """
    stream = torch.cuda.current_stream(device)
    generator = torch.cuda.default_generators[device.index or 0]
    random_state = generator.clone_state()
    try:
        yield
    except BaseException:
        torch.cuda.set_stream(stream)
        with suppress(RuntimeError):  # where the capture's own end got so far
            torch._C._cuda_endAllocateToPool(device.index or 0, pool)
        generator.graphsafe_set_state(random_state.graphsafe_get_state())
        torch.cuda.synchronize(device)
        raise


def supports_cuda_graphs(device: torch.device) -> bool:
    """Whether steps on this device can be captured."""
    return device.type == "cuda"


def require_cuda(device: torch.device) -> None:
    """Refuse a device on which steps cannot be captured."""
    if not supports_cuda_graphs(device):
        raise ConfigurationError(
            f'Expected the model on a CUDA device, since `engine="graph"` captures CUDA graphs, but it is on {device}. '
            'Move the adapter there, or choose `engine="eager"` or `engine="compile"`.'
        )


def reject_dynamic(method: Method, device: torch.device) -> None:
    """Refuse a method whose step cannot be captured, and a machine without CUDA."""
    if method.dynamic_reason is not None:
        raise ConfigurationError(
            f'Expected `engine` to be "auto", "eager" or "compile", since {method.dynamic_reason}. '
            "Such a step cannot be captured."
        )
    if not supports_cuda_graphs(device) and not torch.cuda.is_available():
        raise ConfigurationError(
            'Expected a CUDA device for `engine="graph"`, which captures CUDA graphs, but there is none. '
            'Choose `engine="eager"` or `engine="compile"`.'
        )


def _reject_copied_optimizer(state: State) -> None:
    """Refuse an optimizer that must be copied to be undone: only the host can do that."""
    optimizer = state.storage.copied_optimizer
    if optimizer is not None:
        raise EngineError(
            "Expected an optimizer of torch.optim that keeps its state on the device, such as Adam or SGD without "
            f'dampening, but got {type(optimizer).__name__}. Choose another, or `engine="eager"`.'
        )


def _to_engine_error(error: Exception) -> EngineError:
    # Ending a failed capture fails as well; the reason is the first error.
    reasons: list[BaseException] = [error]
    while reasons[-1].__context__ is not None:
        reasons.append(reasons[-1].__context__)
    first = reasons[-1]
    named = next((reason for reason in reasons if isinstance(reason, EngineError)), None)
    if named is not None:
        return named
    if any(isinstance(reason, torch.OutOfMemoryError) for reason in reasons):
        return EngineError(
            f"The device ran out of memory while the step was captured: {first}. Nothing was lost. Free memory, use "
            'smaller batches, or choose `engine="eager"`.'
        )
    return EngineError(
        f"The step could not be captured: {first}. A component or model that copies between host and device cannot be; "
        'choose `engine="eager"`.'
    )
