"""Limits on weights files: what one asks for must fit into its length."""

import mmap
import pickletools
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import IO, cast

import torch
from torch import Tensor

__all__ = ["check_pickles", "check_tensors"]

_ZIP = b"PK\x03\x04"
_INTEGERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"}
_STORES = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_MAX_OPCODES = 5_000_000
_LEGACY_PICKLES = 5


def check_pickles(path: Path) -> None:
    """Raise an exception if a torch file is damaged, or would allocate more than its length when loaded."""
    length = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(_ZIP)) == _ZIP:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                if sum(entry.file_size for entry in entries) > length:
                    raise ValueError("its entries are longer than the file")
                for entry in entries:
                    if entry.filename.endswith(".pkl"):
                        _check_pickle(BytesIO(archive.read(entry)), length)
            return
        # Reading from a map returns what there is, and allocates no more than that.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            for _ in range(_LEGACY_PICKLES):
                _check_pickle(cast("IO[bytes]", mapped), length)


def _check_pickle(stream: IO[bytes], length: int) -> None:
    largest, previous = 0, ""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        name = opcode.name
        if name in _INTEGERS:
            largest = max(largest, abs(cast("int", argument)))
        elif name == "MARK":
            largest = 0
        elif name in _STORES and previous in _INTEGERS:
            raise ValueError("it refers to a number")  # which no pickler writes
        elif name == "BINPERSID" and largest > length:
            raise ValueError(f"it asks for a storage of {largest:,} numbers, but has {length:,} bytes")
        elif name == "GLOBAL" and argument in ("builtins bytearray", "__builtin__ bytearray"):
            raise ValueError("it asks for empty bytes")
        if count == _MAX_OPCODES:
            raise ValueError(f"it has more than {_MAX_OPCODES:,} opcodes")
        previous = name


def check_tensors(state: Mapping[str, Tensor], length: int) -> None:
    """Raise an exception if a tensor is not a plain one in memory, or is larger than the file it is from."""
    for name, tensor in state.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_complex():
            raise ValueError(f"{name} is no plain tensor of real numbers")
        if tensor.numel() * tensor.element_size() > length:
            raise ValueError(f"{name} of shape {tuple(tensor.shape)} is larger than the file, {length:,} bytes")
