"""The networks compiled; on a CUDA device the step around them recorded as well."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from driftproof.adapter.engines.eager import Eager
from driftproof.adapter.engines.fusion import fused_alone, fused_inductor
from driftproof.adapter.engines.graph import Graph, can_record, expect_recordable
from driftproof.adapter.engines.shapes import Shapes, shape_key
from driftproof.adapter.engines.static import Draw
from driftproof.adapter.lesson import Lesson, draw_lesson
from driftproof.components import Step
from driftproof.errors import EngineError
from driftproof.kernels import can_compile
from driftproof.network import Network
from driftproof.record import Record

if TYPE_CHECKING:
    from driftproof.adapter.adapter import Adapter

__all__ = ["Compiled", "Fused", "compiled_lesson"]

_Call = Callable[[Tensor], Any]


class Compiled(Eager):
    """Passes through both networks are compiled for every shape that comes a third time.

    Args:
        records: Whether the method's step can be recorded; then, on a CUDA device, it is.
        backend: What torch compiles with; None is inductor, on a CUDA device after `fuse`.
        draw: How a recorded step draws its lesson; None is compiled like the networks.
    """

    _work = "torch.compile"
    _remedy = 'On a CPU it needs a C++ compiler such as g++; `engine="eager"` does without.'

    def __init__(
        self, *, records: bool, backend: str | Callable[..., Any] | None = None, draw: Draw | None = None
    ) -> None:
        self._records = records
        self._backend = backend
        self._shapes = Shapes(after=2)
        self._eager, self._graph = Eager(), Graph(draw or compiled_lesson(backend or "inductor"))
        self._forms: dict[Network, _Call] = {}

    def run(self, adapter: "Adapter", images: Tensor) -> tuple[Tensor, Record]:
        """As `Eager.run`, through the compiled networks."""
        inner = self._graph if self._records and can_record(adapter.device) else self._eager
        key = shape_key(images)
        if not self._shapes.worth(key):
            self._shapes.meet(key)
            return inner.run_eagerly(adapter, images)
        with self._through(adapter.network, images), self._through(adapter.source, images), self._named_errors():
            return inner.run(adapter, images)

    def equip(self, optimizer: torch.optim.Optimizer) -> None:
        """Set up the optimizer for recording, where that will happen."""
        (self._graph if self._records else self._eager).equip(optimizer)

    def settle(self, adapter: "Adapter") -> None:
        """Bring to the host what only the device knows."""
        self._graph.settle(adapter)

    def drop(self) -> None:
        """Forget the recordings; compiled code looks up where tensors are."""
        self._graph.drop()

    @contextmanager
    def _through(self, network: Network, images: Tensor) -> Iterator[None]:
        if network not in self._forms:
            backend = self._backend or (fused_inductor if can_record(images.device) else "inductor")
            self._forms[network] = self._compiled(network.model, backend)
        network.through = self._forms[network]
        try:
            yield
        finally:
            network.through = None

    def _compiled(self, model: nn.Module, backend: str | Callable[..., Any]) -> _Call:
        def call(images: Tensor) -> Any:  # noqa: ANN401  # a model may return anything
            return model(images)

        compiled: _Call = torch.compile(_own(call), dynamic=False, backend=backend)

        def run(images: Tensor) -> Any:  # noqa: ANN401
            with self._named_errors():
                return compiled(images)

        return run

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        from torch._dynamo.exc import TorchDynamoException  # takes a second to import

        try:
            yield
        except TorchDynamoException as error:
            # What went wrong may be named in the second line; where and how to see more comes in further paragraphs.
            first = " ".join(str(error).strip().partition("\n\n")[0].split()).rstrip(".")
            raise EngineError(f"{self._work} failed: {first}. {self._remedy}") from error


class Fused(Compiled):
    """Recorded steps in which normalization is fused with its neighbours, and nothing else is compiled.

    So each operation rounds as in the eager step, and the steps agree to the last bit. Where our kernels cannot be
    compiled, the steps are recorded as they are.
    """

    _work = "Tracing the network for what can be fused"
    _remedy = "With `channels_last=False` the step is recorded without."

    def __init__(self) -> None:
        super().__init__(records=True, backend=fused_alone, draw=draw_lesson)

    def run(self, adapter: "Adapter", images: Tensor) -> tuple[Tensor, Record]:
        """As `Graph.run`."""
        expect_recordable(adapter.device)
        if not can_compile(adapter.device):
            return self._graph.run(adapter, images)
        return super().run(adapter, images)


def compiled_lesson(backend: str | Callable[..., Any] = "inductor") -> Draw:
    """Drawing a lesson as few operations: there are fifty small ones between the forward and the backward pass."""
    compiled: Draw = torch.compile(_own(draw_lesson), dynamic=False, backend=backend)

    def draw(adapter: "Adapter", step: Step) -> Lesson:
        with warnings.catch_warnings():
            # Of every tensor it meets, torch.compile asks whether it has a `grad`; inductor tells how it adds up.
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
            warnings.filterwarnings("ignore", message=r"\s*Online softmax is disabled on the fly")
            return compiled(adapter, step)

    return draw


def _own(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function apart: torch keeps compiled code, up to a limit, with the code object."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__.replace(), function.__globals__, closure=function.__closure__)
