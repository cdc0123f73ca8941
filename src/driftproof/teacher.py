"""A moving average of the adapting network, shared by every component that reads it."""

from dataclasses import dataclass

from driftproof.errors import ConfigurationError

__all__ = ["EMA"]


@dataclass(frozen=True)
class EMA:
    """The teacher's parameters are an exponential moving average of the adapting network's.

    The teacher starts equal to the model and moves after every optimizer step, unless the step is undone. Components
    read it as `step.teacher` and `step.teacher_logits`.

    Args:
        momentum: Share of itself the teacher keeps at each step; 1 freezes it.
    """

    momentum: float = 0.999

    def __post_init__(self) -> None:
        if not 0.0 <= self.momentum <= 1.0:
            raise ConfigurationError(f"Expected `momentum` to be in 0..1, but got {self.momentum}.")
