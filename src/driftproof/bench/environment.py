"""Under what conditions a row was measured."""

import platform
import sys
import time
from functools import cache
from pathlib import Path

import torch

from driftproof import __version__
from driftproof.bench.store import Row

__all__ = ["ResourceMonitor", "hardware"]

_PROCESSORS = Path("/proc/cpuinfo")


def hardware(device: torch.device) -> str:
    """The name of the processor that does the work."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _processor(_PROCESSORS)


@cache
def _processor(listed: Path) -> str:
    """Its model where Linux tells it, else its kind, which is all that Python knows everywhere."""
    lines = listed.read_text().splitlines() if listed.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


class ResourceMonitor:
    """Time and memory from its making on.

    Args:
        device: Whose memory is watched.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._started = time.perf_counter()

    def measure(self, rows: int = 1) -> Row:
        """Versions, hardware, seconds since the making, and the largest memory use in bytes.

        Args:
            rows: How many were measured together, which share the time.
        """
        return {
            "seconds": round((time.perf_counter() - self._started) / rows, 3),
            "peak_memory": self._peak_memory(),
            "device": self._device.type,
            "hardware": hardware(self._device),
            "threads": torch.get_num_threads(),
            "driftproof": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }

    def _peak_memory(self) -> int | None:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if sys.platform == "win32":
            return None
        import resource

        # Of the whole process: main memory has no meter of its own. In bytes on macOS and in KiB elsewhere.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
