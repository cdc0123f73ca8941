"""Compiled networks; on a CUDA device the step around them is captured as well."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from driftproof.adapter.engines.cuda_graph import CudaGraphEngine, require_cuda, supports_cuda_graphs
from driftproof.adapter.engines.eager import EagerEngine
from driftproof.adapter.engines.static import ShapeTracker, shape_key
from driftproof.adapter.method import Method
from driftproof.adapter.objective import Objective, compute_objective
from driftproof.adapter.state import State
from driftproof.adapter.train_step import ObjectiveFn
from driftproof.components import Step
from driftproof.errors import EngineError
from driftproof.kernels import can_compile
from driftproof.kernels.fusion import fuse_only_backend, fused_inductor
from driftproof.network import Network
from driftproof.record import StepResult

__all__ = ["CompiledEngine", "FusedCudaGraphEngine", "compile_objective"]

_Forward = Callable[[Tensor], Any]


class CompiledEngine(EagerEngine):
    """Compiles the networks for every shape that comes a third time.

    `backend` None is inductor, on a CUDA device after fusing batch norms. `objective` None, for captured steps, is
    compiled like the networks.
    """

    _task = "torch.compile"
    _hint = 'On a CPU it needs a C++ compiler such as g++; `engine="eager"` does without.'

    def __init__(
        self,
        method: Method,
        state: State,
        *,
        backend: str | Callable[..., Any] | None = None,
        objective: ObjectiveFn | None = None,
    ) -> None:
        super().__init__(method, state)
        self._backend = backend
        self._shapes = ShapeTracker(after=2)
        compiled = objective or compile_objective(backend or "inductor")
        self._graph = CudaGraphEngine(method, state, objective=compiled)
        self._captures = method.dynamic_reason is None
        self._forwards: dict[Network, _Forward] = {}

    def run(self, images: Tensor) -> StepResult:
        """As `EagerEngine.run`, through the compiled networks."""
        captures = self._captures and supports_cuda_graphs(self.state.device)
        key = shape_key(images)
        if not self._shapes.should_capture(key):
            self._shapes.record(key)
            return super().run(images)
        with self._use_compiled(images), self._named_errors():
            return self._graph.run(images) if captures else super().run(images)

    def run_frozen(self, images: Tensor, good: Tensor) -> tuple[Tensor, Tensor]:
        """As `EagerEngine.run_frozen`, captured where steps are; the frozen network is compiled for steps alone."""
        return self._graph.run_frozen(images, good)

    def invalidate(self) -> None:
        """Forget the graphs; compiled code looks up where tensors are."""
        self._graph.invalidate()

    @contextmanager
    def _use_compiled(self, images: Tensor) -> Iterator[None]:
        networks = [self.state.network, self.state.source]
        networks += [] if self.state.detector is None else [self.state.detector]
        for network in networks:
            if network not in self._forwards:
                on_cuda = supports_cuda_graphs(images.device)
                backend = self._backend or (fused_inductor if on_cuda else "inductor")
                self._forwards[network] = self._compile(network.model, backend)
            network.compiled_forward = self._forwards[network]
        try:
            yield
        finally:
            for network in networks:
                network.compiled_forward = None

    def _compile(self, model: nn.Module, backend: str | Callable[..., Any]) -> _Forward:
        def call(images: Tensor) -> Any:  # noqa: ANN401  # a model may return anything
            return model(images)

        compiled: _Forward = torch.compile(_clone_function(call), dynamic=False, backend=backend)

        def run(images: Tensor) -> Any:  # noqa: ANN401
            with self._named_errors(), _ignore_comments():
                return compiled(images)

        return run

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        from torch._dynamo.exc import TorchDynamoException  # takes a second to import

        try:
            yield
        except TorchDynamoException as error:
            # What went wrong may be named in the second line; advice on debugging comes in further paragraphs.
            first = " ".join(str(error).strip().partition("\n\n")[0].split()).rstrip(".")
            raise EngineError(f"{self._task} failed: {first}. {self._hint}") from error


class FusedCudaGraphEngine(CompiledEngine):
    """Captured steps in which batch norm is fused with its neighbors, and nothing else is compiled.

    Each operation rounds as in the eager step, so the steps agree to the last bit. Where our kernels cannot be
    compiled, steps are captured without them.
    """

    _task = "Tracing the network for fusion"
    _hint = "With `channels_last=False` the step is captured without."

    def __init__(self, method: Method, state: State) -> None:
        super().__init__(method, state, backend=fuse_only_backend, objective=compute_objective)

    def run(self, images: Tensor) -> StepResult:
        """As `CudaGraphEngine.run`."""
        require_cuda(self.state.device)
        if not can_compile(self.state.device):
            return self._graph.run(images)
        return super().run(images)


def compile_objective(backend: str | Callable[..., Any] = "inductor") -> ObjectiveFn:
    """Compile the computation of the objective: some fifty small operations between forward and backward."""
    compiled: ObjectiveFn = torch.compile(_clone_function(compute_objective), dynamic=False, backend=backend)

    def compute(method: Method, step: Step, selected_before: Tensor | None = None) -> Objective:
        with _ignore_comments():
            return compiled(method, step, selected_before)

    return compute


@contextmanager
def _ignore_comments() -> Iterator[None]:
    """Keep warnings about what torch.compile itself does from users, who may have made them errors."""
    with warnings.catch_warnings():
        # It asks every tensor it meets for its `grad`; inductor comments on how it sums.
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
        warnings.filterwarnings("ignore", message=r"\s*Online softmax is disabled on the fly")
        yield


def _clone_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a function: torch stores compiled code, up to a limit, with the code object."""
    assert isinstance(function, FunctionType)
    code, defaults, closure = function.__code__.replace(), function.__defaults__, function.__closure__
    return FunctionType(code, function.__globals__, argdefs=defaults, closure=closure)
