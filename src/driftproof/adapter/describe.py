"""The printed form of an adapter."""

import re

from driftproof.adapter.method import Method
from driftproof.adapter.state import State
from driftproof.guards import Warn

__all__ = ["format_repr"]

_HIDDEN = {"average_over": "'selected'", "mean_entropy_over": "'batch'", "output": "before"}
"""Choices that are shown only when they differ from these."""


def format_repr(method: Method, state: State, *, engine: str, channels_last: bool) -> str:
    """What trains, and the choices that matter."""
    total = sum(parameter.numel() for parameter in state.network.model.parameters())
    trainable = sum(parameter.numel() for parameter in state.trainable)
    title = f"Adapter of {type(state.network.model).__name__}: {trainable:,} of {total:,} parameters train"
    chosen = {name: text for name, text in method.describe().items() if _HIDDEN.get(name) != text}
    if state.optimizer is None:
        chosen = {
            name: chosen[name] for name in ("scope", "statistics", "source_statistics", "output") if name in chosen
        }
    else:
        kind, rate = type(state.optimizer).__name__, float(state.optimizer.param_groups[0].get("lr", float("nan")))
        # "Adam" becomes "Adam(lr=0.001)", and "SGD(momentum=0.9)" becomes "SGD(lr=0.1, momentum=0.9)".
        shown = re.sub(rf"^{kind}\((.*)", rf"{kind}(lr={rate:g}, \1", chosen["optimizer"])
        chosen["optimizer"] = re.sub(rf"^{kind}(?!\()", f"{kind}(lr={rate:g})", shown)
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
