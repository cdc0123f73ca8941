"""What to do when adaptation goes wrong.

An adapter reads its `Health` every ten batches and shows it to its guards. Published methods have `Warn()`, which says
what is wrong; `driftproof.adapt` falls back and rolls back. `after.ResetEvery` resets on a schedule instead.
"""

from typing import Any, Protocol

from driftproof.errors import ConfigurationError
from driftproof.health import Health

__all__ = ["GUARDS", "LOOK_EVERY", "Control", "FallBack", "Guard", "Pause", "Reset", "RollBack", "Warn"]

LOOK_EVERY = 10
"""Batches between two looks at health."""
_PAUSE, _PAUSE_FACTOR = 1000, 4


class Control(Protocol):
    """What guards may do with an adapter."""

    @property
    def num_batches(self) -> int:
        """How many batches came since the start or the last reset."""

    def warn(self, health: Health) -> None:
        """Say what is wrong and what to do, once per adapter."""

    def pause(self, batches: int) -> None:
        """Learn nothing from the next so many batches."""

    def fall_back(self, batches: int) -> None:
        """Answer the next so many batches with the frozen network's predictions."""

    def reset_weights(self, share: float) -> None:
        """Move the weights this share of the way back to the source; optimizer and health start anew."""

    def take_snapshot(self) -> Any:  # noqa: ANN401  # only handed back
        """Copy weights and optimizer."""

    def restore(self, snapshot: Any) -> None:  # noqa: ANN401
        """Return to a snapshot; health starts anew."""


class Guard:
    """Looks at health every ten batches and acts.

    Examples:
        The smallest new one: stop learning for good once the weights moved far.

        >>> class StopWhenFar(Guard):
        ...     def act(self, health, control):
        ...         if health.distance > 0.5:
        ...             control.pause(10**9)
    """

    def act(self, health: Health, control: Control) -> None:
        """Act on what health says."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget the stream; the adapter was reset."""

    def get_memory(self) -> dict[str, Any]:
        """Return what the guard remembers of the stream, as tensors, numbers and containers of them."""
        return {}

    def set_memory(self, memory: dict[str, Any]) -> None:
        """Remember what `get_memory` returned."""

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({settings})"


class Warn(Guard):
    """Warn once, with the reason and what to do."""

    def act(self, health: Health, control: Control) -> None:
        """Warn when the state is not healthy."""
        if health.state != "healthy":
            control.warn(health)


class Pause(Guard):
    """Learn nothing while the state is not healthy. Predictions are those of the network as it is."""

    def act(self, health: Health, control: Control) -> None:
        """Pause until the next look."""
        if health.state != "healthy":
            control.warn(health)
            control.pause(LOOK_EVERY)


class FallBack(Guard):
    """Answer with the frozen network's predictions, and learn nothing, while the state is "collapsed".

    The frozen network uses the statistics of its training where those of the stream are at fault, and else the same
    statistics as the adapting one.
    """

    def act(self, health: Health, control: Control) -> None:
        """Fall back until the next look."""
        if health.state == "collapsed":
            control.warn(health)
            control.fall_back(LOOK_EVERY)
            control.pause(LOOK_EVERY)


class RollBack(Guard):
    """Return to the last healthy snapshot when the weights have collapsed; to the source if there is none.

    What collapsed once will collapse again, so learning pauses: for 1,000 batches at first, then four times as long as
    the last time. If the state is "collapsed" again during the pause, the snapshot was at fault: the source follows.
    Averages show a collapse late, so a snapshot counts only once it is twice `every` batches old.

    Args:
        keep: How many snapshots to keep in memory, besides the last two, which are too young. Each rollback uses one
            up, so the next goes further back.
        every: Take a snapshot after so many healthy batches.
    """

    def __init__(self, keep: int = 4, every: int = 50) -> None:
        for name, value in (("keep", keep), ("every", every)):
            if value < 1:
                raise ConfigurationError(f"Expected `{name}` to be at least 1, but got {value}.")
        self.keep = keep
        self.every = every
        self.reset()

    def reset(self) -> None:
        """Drop the snapshots."""
        self._snapshots: list[tuple[int, Any]] = []
        self._last = 0
        self._pause = _PAUSE
        self._paused_until = 0

    def get_memory(self) -> dict[str, Any]:
        """Return the snapshots and the pauses."""
        snapshots = [(taken, tuple(snapshot)) for taken, snapshot in self._snapshots]
        return {"snapshots": snapshots, "last": self._last, "pause": self._pause, "paused_until": self._paused_until}

    def set_memory(self, memory: dict[str, Any]) -> None:
        """Continue with these snapshots and pauses."""
        self._snapshots = list(memory["snapshots"])
        self._last, self._pause, self._paused_until = memory["last"], memory["pause"], memory["paused_until"]

    def act(self, health: Health, control: Control) -> None:
        """Take a snapshot, or return to one."""
        now = control.num_batches
        if health.state == "healthy":
            if now - self._last >= self.every:
                self._snapshots = [*self._snapshots, (now, control.take_snapshot())][-self.keep - 2 :]
                self._last = now
        elif health.state == "collapsed" and not health.blames_statistics:
            control.warn(health)
            old_enough = [taken for taken in self._snapshots if now - taken[0] >= 2 * self.every]
            if old_enough and now >= self._paused_until:
                control.restore(old_enough.pop()[1])
                self._snapshots = old_enough
            else:
                control.reset_weights(1.0)
                self._snapshots = []
            control.pause(self._pause)
            self._paused_until = now + self._pause
            self._pause *= _PAUSE_FACTOR
            self._last = now


class Reset(Guard):
    """Move the weights back towards the source when they have collapsed.

    Args:
        share: How far, in (0, 1]; 1 is the source itself.
    """

    def __init__(self, share: float = 1.0) -> None:
        if not 0.0 < share <= 1.0:
            raise ConfigurationError(f"Expected `share` to be in (0, 1], but got {share}.")
        self.share = share

    def act(self, health: Health, control: Control) -> None:
        """Reset when the weights are at fault."""
        if health.state == "collapsed" and not health.blames_statistics:
            control.warn(health)
            control.reset_weights(self.share)


GUARDS: dict[str, type[Guard]] = {
    "fall_back": FallBack,
    "roll_back": RollBack,
    "pause": Pause,
    "reset": Reset,
    "warn": Warn,
}
"""Guards by the names that commands and benchmark specs use."""
