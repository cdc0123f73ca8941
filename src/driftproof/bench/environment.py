"""Environment of a measured row: versions, hardware, time and memory."""

import platform
import sys
import time
from functools import cache
from pathlib import Path

import torch

from driftproof import __version__
from driftproof.bench.store import Row

__all__ = ["VERSIONS", "ResourceMonitor", "hardware"]

VERSIONS = {"driftproof": __version__, "torch": torch.__version__, "python": platform.python_version()}
"""Versions of what computes the rows."""

_CPUINFO = Path("/proc/cpuinfo")


@cache
def hardware(device: torch.device) -> str:
    """Return the name of the GPU or CPU; the architecture, which Python knows everywhere, if the system has no name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    lines = _CPUINFO.read_text().splitlines() if _CPUINFO.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


class ResourceMonitor:
    """Measures time and peak memory of a device since its construction."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._started = time.perf_counter()

    def measure(self, rows: int = 1) -> Row:
        """Return versions, hardware, peak memory in bytes, and elapsed seconds, an equal share for each of the rows."""
        return {
            "seconds": round((time.perf_counter() - self._started) / rows, 3),
            "peak_memory": self._peak_memory(),
            "device": self._device.type,
            "hardware": hardware(self._device),
            "threads": torch.get_num_threads(),
            **VERSIONS,
        }

    def _peak_memory(self) -> int | None:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if sys.platform == "win32":
            return None
        import resource

        # Peak of the whole process, since it started. In bytes on macOS, in KiB elsewhere.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
