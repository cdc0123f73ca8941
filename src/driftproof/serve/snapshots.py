"""Save the state of an adapter, and follow the state that another process saves."""

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from driftproof.errors import StateError
from driftproof.files import atomic_write, remove_unfinished

if TYPE_CHECKING:
    from driftproof.adapter import Adapter
    from driftproof.alarm import Alarm

__all__ = ["Follower", "load_snapshot", "load_state", "save_snapshot"]

_LOG = logging.getLogger("driftproof.serve")


def save_snapshot(adapter: "Adapter", path: Path, alarm: "Alarm | None" = None) -> None:
    """Write the state with what the alarm remembers, and beside it what guards remember; each atomically.

    The guards' file is written first and names its batch and its guards. After a kill between the two, or with other
    guards, it does not belong to the state and is ignored.
    """
    guards = _guards_path(path)
    remove_unfinished(guards)
    with atomic_write(guards) as unfinished:
        memories = [guard.get_memory() for guard in adapter.method.guards]
        torch.save({"belongs_to": _identify(adapter), "memories": memories}, unfinished)
    adapter.save(path, alarm=alarm)


def load_state(adapter: "Adapter", path: Path, alarm: "Alarm | None" = None) -> None:
    """Continue from a state; the log says so if the alarm begins anew because it was saved with other options."""
    try:
        adapter.load(path, alarm=alarm)
    except StateError as error:
        adapter.load(path)  # unless the state does not fit either
        if alarm is not None and alarm.rate is not None:
            _LOG.warning("the alarm begins anew: %s", error)


def load_snapshot(adapter: "Adapter", path: Path, alarm: "Alarm | None" = None) -> None:
    """Continue from `save_snapshot`; guards start anew if their file is missing or belongs to another state."""
    load_state(adapter, path, alarm)
    guards = _guards_path(path)
    if not guards.is_file():
        return
    try:
        saved = torch.load(guards, map_location=adapter.device, weights_only=True)
        if saved["belongs_to"] == _identify(adapter):
            for guard, memory in zip(adapter.method.guards, saved["memories"], strict=True):
                guard.set_memory(memory)
    except OSError:
        raise
    # A damaged file may raise almost anything.
    except Exception as error:
        raise StateError(
            f"Expected {guards} to hold what guards remember, but it is damaged. Remove it to have guards start anew."
        ) from error


class Follower:
    """Loads a state file whenever another process has replaced it.

    A file that is damaged or does not fit is left out, and the adapter keeps its state.

    Args:
        adapter: The adapter.
        path: The state file.

    Attributes:
        num_loaded: How many states were loaded.
        num_failed: How many could not be.
        last_error: Why the last one could not be; None if it could.
    """

    def __init__(self, adapter: "Adapter", path: Path) -> None:
        self.adapter, self.path = adapter, path
        self.num_loaded = self.num_failed = 0
        self.last_error: str | None = None
        self._seen: tuple[int, ...] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a state was loaded."""
        return self.num_loaded > 0

    def is_changed(self) -> bool:
        """Whether the file is another one than the last time it was loaded."""
        return self._identify() not in (None, self._seen)

    def reload(self) -> bool:
        """Load the file if it has changed; returns whether a state was loaded."""
        found = self._identify()
        if found in (None, self._seen):
            return False
        self._seen = found  # a damaged file is tried once
        try:
            self.adapter.load(self.path)
        except (StateError, OSError) as error:
            self.num_failed += 1
            self.last_error = str(error)
            return False
        self.num_loaded += 1
        self.last_error = None
        return True

    def _identify(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self.path)  # noqa: PTH116  # as short
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def _guards_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.guards")


def _identify(adapter: "Adapter") -> list[str]:
    return [str(adapter.state.guard_counters.get("num_batches", 0)), *map(repr, adapter.method.guards)]
