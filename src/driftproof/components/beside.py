"""Run one thing while another runs."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

__all__ = ["run_beside"]

_Result = TypeVar("_Result")


def run_beside(stream: torch.cuda.Stream | None, run: Callable[[], _Result]) -> tuple[_Result, Callable[[], None]]:
    """Start something on a CUDA stream of its own; return its result, and what waits for it.

    Until that was called, nothing may read the result or change what it is made from.

    Args:
        stream: Where to run; None runs at once.
        run: Launches the work.
    """
    if stream is None:
        return run(), partial(_wait, None, run)
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        result = run()
    return result, partial(_wait, stream, run)


def _wait(stream: torch.cuda.Stream | None, run: Callable[[], object]) -> None:
    """Wait; until then `run` is held, so that the memory of what it reads is not given to others."""
    if stream is not None:
        torch.cuda.current_stream(stream.device).wait_stream(stream)
