"""The printed form of an adapter."""

from driftproof.adapter.method import Method
from driftproof.adapter.state import State
from driftproof.guards import Warn

__all__ = ["format_repr"]

_HIDDEN = {"average_over": "'selected'", "mean_entropy_over": "'batch'", "output": "before"}
"""Choices that are shown only when they differ from these."""
_FIXED = ("scope", "statistics", "source_statistics", "output")
"""Choices that matter where nothing learns."""


def format_repr(method: Method, state: State, *, engine: str, channels_last: bool) -> str:
    """What trains, and the choices that matter."""
    total = sum(parameter.numel() for parameter in state.network.model.parameters())
    trainable = sum(parameter.numel() for parameter in state.trainable)
    title = f"Adapter of {type(state.network.model).__name__}: {trainable:,} of {total:,} parameters train"
    groups = [] if state.optimizer is None else state.optimizer.param_groups
    described = method.describe(lr=float(groups[0].get("lr", float("nan"))) if groups else None)
    chosen = {
        name: text for name, text in described.items() if _HIDDEN.get(name) != text and (groups or name in _FIXED)
    }
    guards = ", ".join(map(repr, method.guards)) or "none"
    if guards != repr(Warn()):
        chosen["guard"] = guards
    precision, source_precision = state.network.precision, state.source.precision
    running = [
        engine,
        precision or "",
        f"frozen network {source_precision}" if source_precision != precision else "",
        "channels last" if channels_last else "",
    ]
    if running != ["auto", "", "", ""]:
        chosen["engine"] = ", ".join(filter(None, running))
    if state.distributed.size > 1:
        chosen["rank"] = f"{state.distributed.rank} of {state.distributed.size}"
    lines = (f"  {name:<18} {text}" for name, text in chosen.items() if text != "None")
    return "\n".join([title, *lines])
