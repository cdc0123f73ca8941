"""The keywords that every method hands on to its adapter."""

from collections.abc import Callable
from typing import Literal, TypedDict

from torch import Tensor

from driftproof.adapter.engines import EngineName
from driftproof.network import LogitsAccessor, Precision
from driftproof.parts import Step
from driftproof.ranks import RankGroup
from driftproof.statistics import Statistics

__all__ = ["Novelty", "Settings"]

Novelty = Callable[[Step], Tensor]


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
    ranks: RankGroup
