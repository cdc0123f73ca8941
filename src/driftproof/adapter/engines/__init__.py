"""How a step runs: as written, compiled, or recorded and replayed. What it computes is the same."""

from typing import TYPE_CHECKING, Literal

from driftproof.adapter.engines.compiled import Compiled, Fused
from driftproof.adapter.engines.eager import Eager
from driftproof.adapter.engines.fixed import Fixed
from driftproof.adapter.engines.graph import Graph, refuse_varying
from driftproof.errors import ConfigurationError
from driftproof.statistics import Batch

if TYPE_CHECKING:
    from driftproof.adapter.adapter import Adapter

__all__ = ["Compiled", "Eager", "EngineName", "Fixed", "Fused", "Graph", "engine_for"]

EngineName = Literal["eager", "compile", "graph"]


def engine_for(adapter: "Adapter") -> Eager:
    """The engine that an adapter asks for by name."""
    if adapter.engine != "eager" and adapter.distributed.size > 1:
        raise ConfigurationError(
            f'Expected `engine="eager"` with `process_group`, but got {adapter.engine!r}. '
            "Collectives are not captured or compiled."
        )
    if adapter.engine == "graph":
        refuse_varying(adapter)
        return Fused() if adapter.channels_last and isinstance(adapter.statistics, Batch) else Graph()
    if adapter.engine == "compile":
        return Compiled(records=all(part.dynamic_reason is None for part in adapter._parts))
    return Eager()
