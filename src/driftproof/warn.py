"""Warnings that name the line of the user's code."""

import inspect
import warnings

__all__ = ["warn_caller"]

_NOT_THE_CALLER = ("driftproof", "torch", "contextlib")


def warn_caller(message: str) -> None:
    """Warn with the line of the caller's code, however deep inside this package the reason was found."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_CALLER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level + 1)
