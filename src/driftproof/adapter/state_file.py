"""State files: safetensors whose metadata holds a checksum over every other byte.

A file is read once, and its checksum is compared before anything else is looked at. Files of format 3 carry no
checksum: of these, the description and the form of every tensor are checked.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from driftproof.adapter.snapshot import read_meta
from driftproof.errors import InputError, StateError
from driftproof.files import atomic_write, open_regular, remove_unfinished

__all__ = ["read", "write"]

_BLANK = b"0" * 64
_MARK = b'{"__metadata__":{"sha256":"'
"""What comes before the checksum."""
_MAX_HEADER = 2**25
_MAX_BYTES = 2**34
_CHECKED_FORMAT = 4
"""The first format whose files carry a checksum."""


def write(saved: dict[str, Tensor], path: Path) -> None:
    """Write a state beside its destination, then move it there atomically; sweep what killed saves left."""
    remove_unfinished(path)
    content = bytearray(save(saved, metadata={"sha256": _BLANK.decode()}))
    start = content.index(_MARK) + len(_MARK)
    content[start : start + len(_BLANK)] = _compute_checksum(content, start)
    with atomic_write(path) as unfinished:
        # The library's own writer sets the file's mode; bytes written here follow the folder's defaults.
        unfinished.write_bytes(content)


def read(path: Path, device: torch.device, *, model_bytes: int = 0) -> dict[str, Tensor]:
    """Read a state and compare its checksum; a damaged file is refused before a tensor is made.

    Args:
        path: A regular file; anything else is refused.
        device: Where the tensors go.
        model_bytes: The size of the model. A file of more than 64 times that, and of more than 16 GiB, is refused.
    """
    try:
        with open_regular(path) as file:
            content = _read_whole(file, path, limit=max(_MAX_BYTES, 64 * model_bytes))
        has_checksum = _check_checksum(content, path)
        saved = load(content)
    except InputError as error:
        raise StateError(str(error)) from error
    except MemoryError as error:
        raise StateError(
            f"Expected {path} to fit into memory, but it does not. Load it where there is more."
        ) from error
    except StateError:
        raise
    except (SafetensorError, AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    try:
        form = read_meta(saved)["format"]
    except StateError as error:
        raise StateError(f"{error} The file is {path}.") from error
    if form >= _CHECKED_FORMAT and not has_checksum:
        raise _damaged(path, "its checksum is missing")
    return {name: tensor.to(device) for name, tensor in saved.items()}


def _read_whole(file: BinaryIO, path: Path, limit: int) -> bytes:
    """The bytes of a file whose header describes exactly what follows it."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if length > min(_MAX_HEADER, size - 8):
        raise _damaged(path, f"its header should have {length:,} bytes, the file has {size:,}")
    try:
        header = json.loads(file.read(length))
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        is_whole = bool(8 + length + end == size)
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise _damaged(path, "its header cannot be read") from error
    if not is_whole:
        raise _damaged(path, f"its header describes {end:,} bytes of values, the file has {size - 8 - length:,}")
    if size > limit:
        raise StateError(f"Expected a state of at most {limit:,} bytes, but {path} has {size:,}. Choose another file.")
    file.seek(0)
    content = file.read(size)
    if len(content) != size:
        raise _damaged(path, "it became shorter while it was read")
    return content


def _check_checksum(content: bytes, path: Path) -> bool:
    """Compare the checksum; return whether there is one."""
    if not content.startswith(_MARK, 8):
        return False
    start = 8 + len(_MARK)
    if _compute_checksum(content, start) != content[start : start + len(_BLANK)]:
        raise _damaged(path, "its checksum differs")
    return True


def _compute_checksum(content: bytes | bytearray, start: int) -> bytes:
    """The SHA-256 of a file, with the place of the checksum itself filled with zeros."""
    with memoryview(content) as view:
        total = hashlib.sha256(view[:start])
        total.update(_BLANK)
        total.update(view[start + len(_BLANK) :])
    return total.hexdigest().encode()


def _damaged(path: Path, found: str) -> StateError:
    return StateError(
        f"Expected {path} to be a saved state, but it is damaged or something else: {found}. Load an earlier state."
    )
