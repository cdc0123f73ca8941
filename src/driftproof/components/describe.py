"""Text descriptions of components and functions, for printing and for telling methods apart."""

import functools
import hashlib
import inspect
import re
from numbers import Number
from types import CodeType, FunctionType

__all__ = ["describe_value"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def describe_value(value: object) -> str:
    """Describe a constructor argument; never raises, and equal text means equal behavior as far as can be seen.

    Functions are shown by name. A lambda or a nested function also carries a digest of its code, since its name says
    nothing. Memory addresses are left out.

    Examples:
        >>> describe_value(0.5), describe_value(len)
        ('0.5', 'len')
        >>> describe_value(lambda step: step.logits) == describe_value(lambda step: -step.logits)
        False
    """
    try:
        if isinstance(value, functools.partial):
            arguments = [*map(describe_value, value.args)]
            arguments += [f"{name}={describe_value(item)}" for name, item in value.keywords.items()]
            return f"{describe_value(value.func)}({', '.join(arguments)})"
        if isinstance(value, FunctionType):
            named = "<" not in value.__qualname__
            return value.__qualname__ if named else f"{value.__qualname__}#{_digest_function(value)}"
        if inspect.isclass(value) or inspect.isroutine(value):
            return value.__qualname__
        if type(value).__module__ == "numpy" and isinstance(value, Number):
            value = value.item()  # type: ignore[attr-defined]  # numpy writes np.float64(0.5) for 0.5
        return _ADDRESS.sub("", repr(value))
    except Exception:  # a user's own __repr__ may raise anything
        return f"<{type(value).__qualname__}>"


def _digest_function(function: FunctionType) -> str:
    """Digest what a function does: its code, defaults and enclosed values."""
    enclosed = [cell.cell_contents for cell in function.__closure__ or () if _has_contents(cell)]
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *enclosed]
    content = [_code_text(function.__code__), *map(describe_value, (v for v in values if v is not function))]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:8]


def _code_text(code: CodeType) -> str:
    return "\n".join([code.co_code.hex(), *map(_constant_text, code.co_consts), *code.co_names])


def _constant_text(value: object) -> str:
    if isinstance(value, frozenset):  # its order differs from process to process
        return str(sorted(map(repr, value)))
    return _code_text(value) if isinstance(value, CodeType) else repr(value)


def _has_contents(cell: object) -> bool:
    try:
        cell.cell_contents  # type: ignore[attr-defined]  # noqa: B018
    except ValueError:  # the enclosed name has no value yet
        return False
    return True
