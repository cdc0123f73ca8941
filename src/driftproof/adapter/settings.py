"""The keywords that every method hands on to its adapter."""

from collections.abc import Callable
from typing import Literal, TypedDict

from torch import Tensor

from driftproof.adapter.engines import EngineName
from driftproof.components import Step
from driftproof.distributed import RankGroup
from driftproof.errors import ConfigurationError
from driftproof.losses import Loss
from driftproof.network import LogitsAccessor, Precision
from driftproof.regularizers import Regularizer
from driftproof.scopes import Scope
from driftproof.selection import Selection
from driftproof.statistics import Statistics

__all__ = ["Novelty", "Settings", "expect_axes", "expect_choices"]

Novelty = Callable[[Step], Tensor]

_CHOICES: dict[str, tuple[str | None, ...]] = {
    "average_over": ("selected", "batch"),
    "mean_entropy_over": ("selected", "batch"),
    "output": ("before", "after"),
    "engine": ("eager", "compile", "graph"),
    "precision": (None, "fp32", "tf32", "bf16"),
    "source_precision": (None, "bf16"),
}

_KINDS: dict[str, type] = {
    "scope": Scope,
    "statistics": Statistics,
    "loss": Loss,
    "select": Selection,
    "regularizer": Regularizer,
    "source_statistics": Statistics,
}
_NEEDED = ("scope", "statistics")


class Settings(TypedDict, total=False):
    """What every method hands on to its `Adapter`, which documents them."""

    accumulate: int
    source_statistics: Statistics | None
    average_over: Literal["selected", "batch"]
    mean_entropy_over: Literal["selected", "batch"]
    output: Literal["before", "after"]
    novelty: Novelty | None
    logits: LogitsAccessor | None
    classifier: str | None
    seed: int
    engine: EngineName
    precision: Precision | None
    source_precision: Literal["bf16"] | None
    channels_last: bool
    process_group: RankGroup


def expect_choices(**chosen: str | None) -> None:
    """Refuse a value that is not among the choices for its keyword."""
    for name, value in chosen.items():
        if value not in _CHOICES[name]:
            allowed = ", ".join(filter(None, _CHOICES[name]))
            raise ConfigurationError(f"Expected `{name}` to be one of {allowed}, but got {value!r}.")


def expect_axes(accumulate: int, **parts: object) -> None:
    """Refuse what is of another kind than its axis: most often a class in the place of one of its objects."""
    if not isinstance(accumulate, int) or accumulate < 1:
        raise ConfigurationError(f"Expected `accumulate` to be at least 1, in whole batches, but got {accumulate!r}.")
    for axis, part in parts.items():
        kind = _KINDS[axis]
        if isinstance(part, kind) or (part is None and axis not in _NEEDED):
            continue
        called = f" Call it: `{part.__name__}(...)`." if callable(part) and hasattr(part, "__name__") else ""
        raise ConfigurationError(f"Expected `{axis}` to be a {kind.__name__}, but got {part!r}.{called}")
