"""Keep what guards remember, so that a resumed run acts as one that was never stopped."""

from pathlib import Path
from typing import TYPE_CHECKING

from driftproof.errors import StateError
from driftproof.files import atomic_write

if TYPE_CHECKING:
    from driftproof.adapter import Adapter

__all__ = ["read_guards", "write_guards"]


def write_guards(adapter: "Adapter", path: Path) -> None:
    """Write what the guards of an adapter remember, atomically."""
    import torch

    with atomic_write(path) as unfinished:
        torch.save([guard.get_memory() for guard in adapter.method.guards], unfinished)


def read_guards(adapter: "Adapter", path: Path) -> None:
    """Have the guards of an adapter remember what was written; only tensors, numbers and containers are read."""
    import torch

    try:
        memories = torch.load(path, map_location=adapter.device, weights_only=True)
        for guard, memory in zip(adapter.method.guards, memories, strict=True):
            guard.set_memory(memory)
    except OSError:
        raise
    # A damaged file may raise almost anything.
    except Exception as error:
        raise StateError(
            f"Expected {path} to hold what guards remember, but it is damaged. Start anew with `--force`."
        ) from error
