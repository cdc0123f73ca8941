"""A finding of `check`."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Problem", "Severity"]

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Problem:
    """A finding of `check` about a model or its images.

    Attributes:
        severity: "error": the model cannot be adapted as it is, or not to these images; "warning": some methods have no
            or less effect, or predictions suffer; "note": for information.
        message: What was found.
        fix: What to do about it.
        layers: Names of the layers concerned.
    """

    severity: Severity
    message: str
    fix: str
    layers: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" ({_format_names(self.layers)})" if self.layers else ""
        return f"{self.severity}: {self.message}{where}. {self.fix}"


def _format_names(names: tuple[str, ...], limit: int = 3) -> str:
    listed = ", ".join(names[:limit])
    return listed if len(names) <= limit else f"{listed} and {len(names) - limit} more"
