"""A reader of pickles of integer arrays, lists, dictionaries, strings and numbers.

It interprets the opcodes itself: nothing is imported or called, and memory and time are bounded by the file's length.
Byte strings of Python 2 stay bytes.
"""

import pickletools
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from driftproof.errors import InputError
from driftproof.files import check_regular_file

__all__ = ["read_pickle"]

_MAX_BYTES = 1 << 29
_MAX_OPCODES = 2_000_000
_DTYPE = re.compile(r"[|<>=]?[iu][1248]")

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_CONTAINERS: dict[str, type] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
_NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_TEXTS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_BYTES = {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_BYTE_STRINGS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = {"PROTO", "FRAME", "STOP"}


class _Global(NamedTuple):
    name: str


class _DType:
    """An integer type that is being built."""

    def __init__(self, code: object) -> None:
        text = _to_text(code)
        if not _DTYPE.fullmatch(text):
            raise ValueError(f"it holds an array of type {text[:20]!r}")
        self.dtype = np.dtype(text)

    def set_state(self, state: tuple[Any, ...]) -> None:
        order = _to_text(state[1])
        self.dtype = self.dtype if order == "|" else self.dtype.newbyteorder(order)  # type: ignore[arg-type]


class _Array:
    """An array that is being built."""

    values: npt.NDArray[Any] | None = None

    def set_state(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, columns_first, raw = state
        self.values = np.frombuffer(raw, kind.dtype).reshape(shape, order="F" if columns_first else "C")


_RECONSTRUCT = {f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")}
_FROM_BUFFER = {f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core")}
_GLOBALS = {"_codecs.encode", "numpy.dtype", "numpy.ndarray", *_RECONSTRUCT, *_FROM_BUFFER}


def read_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary that a pickle holds: arrays of integers, lists, numbers, strings and bytes by name.

    Raises:
        InputError: If it is damaged, too large, or holds or asks for anything else.
    """
    check_regular_file(path)
    if path.stat().st_size > _MAX_BYTES:
        raise InputError(f"Expected {path} to have at most {_MAX_BYTES:,} bytes, but it has {path.stat().st_size:,}.")
    raw = path.read_bytes()
    try:
        content = _Machine(len(raw)).run(raw)
    except InputError as error:
        raise InputError(f"Expected {path} to hold only arrays, lists and numbers, but it loads {error}.") from error
    # A damaged pickle can raise almost anything.
    except Exception as error:
        raise InputError(f"Expected {path} to be a complete pickle, but it cannot be read: {error!r}.") from error
    if not isinstance(content, dict):
        raise InputError(f"Expected {path} to hold a dictionary, but it holds {type(content).__name__}.")
    return {_to_text(key): value.values if isinstance(value, _Array) else value for key, value in content.items()}


class _Machine:
    """The stack machine that a pickle is a program of."""

    def __init__(self, length: int) -> None:
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._encodable = length  # every text is encoded once at most

    def run(self, raw: bytes) -> object:
        """Return what the pickle holds."""
        for count, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
            if count == _MAX_OPCODES:
                raise ValueError(f"it has more than {_MAX_OPCODES:,} opcodes")
            self._execute(opcode.name, argument)
        return self._stack.pop()

    def _execute(self, name: str, argument: Any) -> None:  # noqa: ANN401  # as the opcode has it
        stack = self._stack
        if name in _NUMBERS or name in _TEXTS or name in _BYTES:
            stack.append(argument)
        elif name in _BYTE_STRINGS:
            stack.append(argument.encode("latin1"))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _CONTAINERS:
            stack.append(_CONTAINERS[name]())
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name == "MARK":
            self._below.append(stack)
            self._stack = []
        elif name not in _IGNORED:
            self._combine(name, argument)

    def _combine(self, name: str, argument: Any) -> None:  # noqa: ANN401  # as the opcode has it
        """Execute an opcode that takes values from the stack."""
        if name in ("APPEND", "SETITEM"):
            count = 1 if name == "APPEND" else 2
            self._extend(self._take(count))
        elif name in ("APPENDS", "SETITEMS"):
            self._extend(self._take_marked())
        elif name in ("TUPLE", "LIST", "DICT"):
            items = self._take_marked()
            self._stack.append(tuple(items) if name == "TUPLE" else [] if name == "LIST" else {})
            if name != "TUPLE":
                self._extend(items)
        elif name in _TUPLES:
            self._stack.append(tuple(self._take(_TUPLES[name])))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            words = argument.split(" ") if name == "GLOBAL" else self._take(2)
            self._stack.append(_find_global(".".join(map(_to_text, words))))
        elif name == "REDUCE":
            function, arguments = self._take(2)
            self._stack.append(self._call(function.name, *arguments))
        elif name == "BUILD":
            (state,) = self._take(1)
            self._stack[-1].set_state(state)
        elif name == "POP":
            self._take(1)
        else:
            raise ValueError(f"it has the opcode {name}")

    def _call(self, name: str, *arguments: Any) -> object:  # noqa: ANN401  # as the pickle has them
        """Return what a call of one of the known functions would build."""
        if name == "numpy.dtype":
            return _DType(arguments[0])
        if name in _RECONSTRUCT:
            return _Array()
        if name in _FROM_BUFFER:
            raw, kind, shape, order = arguments
            array = _Array()
            array.set_state((1, shape, kind, _to_text(order) == "F", raw))
            return array
        if name == "_codecs.encode":
            self._encodable -= len(arguments[0])
            if self._encodable >= 0:
                return arguments[0].encode("latin1")
        raise ValueError(f"it calls {name} unexpectedly")

    def _extend(self, items: list[Any]) -> None:
        """Add items to the list or dictionary on top of the stack."""
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(items)
        else:
            # Hashing anything but text could take forever.
            keys = [key for key in items[::2] if isinstance(key, str | bytes)]
            target.update(zip(keys, items[1::2], strict=True))

    def _take(self, count: int) -> list[Any]:
        taken = self._stack[len(self._stack) - count :]
        if len(self._stack) < count:
            raise ValueError("its stack is empty")
        del self._stack[-count:]
        return taken

    def _take_marked(self) -> list[Any]:
        items, self._stack = self._stack, self._below.pop()
        return items


def _find_global(name: str) -> _Global:
    if name not in _GLOBALS:
        raise InputError(f"`{name}`; nothing was executed. Download the archive again")
    return _Global(name)


def _to_text(value: object) -> str:
    if not isinstance(value, str | bytes):
        raise TypeError(f"got {type(value).__name__} for a text")
    return value.decode("latin1") if isinstance(value, bytes) else value
