"""How a step runs: as written, compiled, or captured and replayed. The results are the same."""

from driftproof.adapter.engines.auto import AutoEngine
from driftproof.adapter.engines.compiled import CompiledEngine, FusedCudaGraphEngine
from driftproof.adapter.engines.cuda_graph import CudaGraphEngine, reject_dynamic
from driftproof.adapter.engines.eager import EagerEngine
from driftproof.adapter.engines.static import StaticEngine
from driftproof.adapter.method import EngineName, Method
from driftproof.adapter.state import State
from driftproof.errors import ConfigurationError
from driftproof.statistics import Batch
from driftproof.statistics.blend import InterpolatedStatistics

__all__ = [
    "AutoEngine",
    "CompiledEngine",
    "CudaGraphEngine",
    "EagerEngine",
    "FusedCudaGraphEngine",
    "StaticEngine",
    "make_engine",
]


def make_engine(name: EngineName, method: Method, state: State, *, channels_last: bool) -> EagerEngine:
    """The engine of a name."""
    if name in ("compile", "graph") and state.distributed.size > 1:
        raise ConfigurationError(
            f'Expected `engine="auto"` or "eager" with `process_group`, but got {name!r}. '
            "Collectives are neither compiled nor captured."
        )
    # Fused kernels read channels-last images and take statistics from all samples.
    is_fusible = isinstance(method.statistics, Batch | InterpolatedStatistics) and method.statistics.of is None
    make_captured = FusedCudaGraphEngine if channels_last and is_fusible else CudaGraphEngine
    if name == "graph":
        reject_dynamic(method, state.device)
        return make_captured(method, state)
    if name == "compile":
        return CompiledEngine(method, state)
    if name == "auto" and method.dynamic_reason is None and state.distributed.size == 1:
        return AutoEngine(make_captured(method, state))
    return EagerEngine(method, state)
