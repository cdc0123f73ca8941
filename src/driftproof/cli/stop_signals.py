"""End a run cleanly when it is asked to stop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

__all__ = ["StopRequest", "catch_stop_signals"]

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


@dataclass
class StopRequest:
    """Whether a run was asked to stop.

    Attributes:
        number: The signal that asked; None if none did.
    """

    number: int | None = None

    @property
    def exit_code(self) -> int:
        """128 plus the number of the signal, as shells count."""
        return 128 + (self.number or 0)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:  # asked twice: stop at once
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
    """Note interrupts, termination and hang-ups instead of dying of them; a second one interrupts at once.

    Signals that the process ignores stay ignored, as under `nohup`. Outside of the main thread nothing is noted.
    """
    request = StopRequest()
    previous = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
        previous = {number: signal.getsignal(number) for number in numbers}
        previous = {number: handler for number, handler in previous.items() if handler not in (signal.SIG_IGN, None)}
    try:
        for number in previous:
            signal.signal(number, request._note)  # noqa: SLF001  # its own class
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
