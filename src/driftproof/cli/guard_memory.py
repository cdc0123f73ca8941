"""Keep what guards remember, so that a resumed run acts as one that was never stopped."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from driftproof.cli.run_files import make_damage_error, read_checked, write_checked

if TYPE_CHECKING:
    from driftproof.adapter import Adapter

__all__ = ["read_guards", "write_guards"]


def write_guards(adapter: "Adapter", path: Path) -> None:
    """Write what the guards of an adapter remember, atomically."""
    import torch

    content = BytesIO()
    torch.save([guard.get_memory() for guard in adapter.method.guards], content)
    write_checked(path, content.getvalue())


def read_guards(adapter: "Adapter", path: Path) -> None:
    """Have the guards of an adapter remember what was written; only tensors, numbers and containers are read."""
    import torch

    content = BytesIO(read_checked(path))
    try:
        memories = torch.load(content, map_location=adapter.device, weights_only=True)
        for guard, memory in zip(adapter.method.guards, memories, strict=True):
            guard.set_memory(memory)
    # The file of another method may raise almost anything.
    except Exception as error:
        raise make_damage_error(path) from error
