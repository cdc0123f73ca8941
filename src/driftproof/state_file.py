"""State files: safetensors whose metadata holds a checksum over every other byte."""

import hashlib
import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from driftproof.errors import InputError, StateError
from driftproof.files import atomic_write, open_regular, remove_unfinished

__all__ = ["read_state", "write_state"]

_MARK = b'{"__metadata__":{"sha256":"'
_START = 8 + len(_MARK)
"""Where the checksum begins: after the length of the header and the mark."""
_BLANK = b"0" * 64
_MAX_BYTES = 2**34


def write_state(saved: dict[str, Tensor], path: Path) -> None:
    """Write a state beside its destination, then move it there atomically; sweep what killed saves left."""
    remove_unfinished(path)
    content = bytearray(save(saved, metadata={"sha256": _BLANK.decode()}))
    content[_START : _START + len(_BLANK)] = _compute_checksum(content)
    with atomic_write(path) as unfinished:
        # The library's own writer sets the file's mode; bytes written here follow the folder's defaults.
        unfinished.write_bytes(content)


def read_state(path: Path, device: torch.device, *, model_bytes: int = 0) -> dict[str, Tensor]:
    """Read a state and compare its checksum; a damaged file is refused before a tensor is made.

    Args:
        path: A regular file; anything else is refused.
        device: Where the tensors go.
        model_bytes: The size of the model. A file of more than 64 times that, and of more than 16 GiB, is refused.
    """
    try:
        content = _read_whole(path, limit=max(_MAX_BYTES, 64 * model_bytes))
    except InputError as error:
        raise StateError(str(error)) from error
    except MemoryError as error:
        raise StateError(
            f"Expected {path} to fit into memory, but it does not. Load it where there is more."
        ) from error
    if content[_START : _START + len(_BLANK)] != _compute_checksum(content):
        raise _damaged(path, "its checksum differs")
    try:
        return {name: tensor.to(device) for name, tensor in load(content).items()}
    except (SafetensorError, AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise _damaged(path, str(error)) from error


def _read_whole(path: Path, limit: int) -> bytes:
    """The bytes of a file that begins as a state does; nothing else is read."""
    with open_regular(path) as file:
        if not file.read(_START).endswith(_MARK):
            raise _damaged(path, "its checksum is missing")
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise StateError(
                f"Expected a state of at most {limit:,} bytes, but {path} has {size:,}. Choose another file."
            )
        file.seek(0)
        return file.read(size)


def _compute_checksum(content: bytes | bytearray) -> bytes:
    """The SHA-256 of a file, with the place of the checksum itself filled with zeros."""
    with memoryview(content) as view:
        total = hashlib.sha256(view[:_START])
        total.update(_BLANK)
        total.update(view[_START + len(_BLANK) :])
    return total.hexdigest().encode()


def _damaged(path: Path, found: str) -> StateError:
    return StateError(
        f"Expected {path} to be a saved state, but it is damaged or something else: {found}. Load an earlier state."
    )
