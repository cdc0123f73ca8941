"""An adapter in words."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftproof.adapter.adapter import Adapter

__all__ = ["described", "found", "shown"]

# Where an object lies in memory is its process's own affair.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def described(adapter: "Adapter") -> dict[str, str]:
    """The choice on each axis; two adapters that agree here are the same method."""
    optimizer = type(adapter.optimizer).__name__ if adapter.moving else "None"
    chosen = {
        "scope": repr(adapter.scope),
        "statistics": repr(adapter.statistics),
        "source_statistics": repr(adapter.source_statistics),
        "loss": repr(adapter.loss),
        "select": repr(adapter.select),
        "mean_entropy": repr(adapter.mean_entropy),
        "regularizer": repr(adapter.regularizer),
        "optimizer": optimizer if adapter.accumulate == 1 else f"{optimizer}, every {adapter.accumulate} batches",
        "average_over": adapter.average_over,
        "mean_entropy_over": adapter.mean_entropy_over,
    }
    return {axis: _ADDRESS.sub("", choice) for axis, choice in chosen.items()}


def found(adapter: "Adapter") -> dict[str, float]:
    """What its parts have found in source data, by name."""
    return {name: value for part in adapter._parts for name, value in part.found.items()}


def shown(adapter: "Adapter") -> str:
    """The printed form: what moves, and the choices that matter."""
    every = sum(parameter.numel() for parameter in adapter.network.model.parameters())
    some = sum(parameter.numel() for parameter in adapter.moving.values())
    title = f"Adapter of {type(adapter.network.model).__name__}: {some:,} of {every:,} parameters move"
    chosen = described(adapter)
    if not adapter.moving:
        chosen = {axis: chosen[axis] for axis in ("scope", "statistics")}
    else:
        kind, rate = type(adapter.optimizer).__name__, adapter.optimizer.param_groups[0].get("lr")
        chosen["optimizer"] = chosen["optimizer"].replace(kind, f"{kind}(lr={rate})")
    apart = adapter.source.precision != adapter.precision
    running = [
        adapter.engine,
        adapter.precision or "",
        f"frozen network {adapter.source.precision}" if apart else "",
        "channels last" if adapter.channels_last else "",
    ]
    if running != ["eager", "", "", ""]:
        chosen["engine"] = ", ".join(filter(None, running))
    if adapter.distributed.size > 1:
        chosen["rank"] = f"{adapter.distributed.rank} of {adapter.distributed.size}"
    lines = (f"  {axis:<18} {choice}" for axis, choice in chosen.items() if choice != "None")
    return "\n".join([title, *lines])
