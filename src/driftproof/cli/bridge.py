"""Temporary: what the core does not have yet. Remove when guards, health and `adapt` have landed."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from driftproof.record import Record


def quarantined(record: "Record") -> "Tensor":
    """Mask of quarantined images."""
    found: Tensor = getattr(record, "quarantined", record.selected.new_zeros(record.selected.shape))
    return found


def actions(record: "Record") -> tuple[str, ...]:
    """What guards did."""
    return tuple(getattr(record, "actions", ()))


def health(record: "Record") -> Any:  # noqa: ANN401
    """Health, or None."""
    return getattr(record, "health", None)


def has_guards() -> bool:
    """Whether guards are there."""
    return find_spec("driftproof.guards") is not None


def method_name(name: str) -> str:
    """The method that stands in."""
    from driftproof.bench.methods import METHODS

    return "tent+crowd" if name == "adapt" and "adapt" not in METHODS else name
