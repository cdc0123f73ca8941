"""Test-time adaptation for PyTorch that survives the long run and the unknown.

Names are loaded when they are first asked for, so that importing the package alone costs nothing, not even torch.

Examples:
    >>> import torch
    >>> import driftproof as dp
    >>> model = torch.nn.Sequential(
    ...     torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(32, 10)
    ... )
    >>> adapter = dp.tent(model, select=dp.ConfidenceDifference())
    >>> logits = adapter(torch.rand(16, 3, 4, 4))
    >>> adapter.last.kept
    1.0
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftproof import (
        after,
        augment,
        errors,
        gradients,
        guards,
        losses,
        memories,
        methods,
        outputs,
        regularizers,
        scopes,
        scores,
        selection,
        statistics,
        testing,
    )
    from driftproof.adapter import Adapter
    from driftproof.alarm import Alarm, Event
    from driftproof.health import Health
    from driftproof.methods import (
        adapt,
        bn_adapt,
        conjugate,
        cotta,
        eata,
        ent,
        gce,
        norm_ema,
        rotta,
        sotta,
        source,
        stamp,
        swr,
        tent,
        ttn,
    )
    from driftproof.problems import Problem, check
    from driftproof.record import Record, StepResult
    from driftproof.selection import ConfidenceAbove, ConfidenceDifference, EntropyBelow, EntropyWeight, NonRedundant
    from driftproof.teacher import EMA

__version__ = "0.1.0"

__all__ = [
    "EMA",
    "Adapter",
    "Alarm",
    "ConfidenceAbove",
    "ConfidenceDifference",
    "EntropyBelow",
    "EntropyWeight",
    "Event",
    "Health",
    "NonRedundant",
    "Problem",
    "Record",
    "StepResult",
    "adapt",
    "after",
    "augment",
    "bn_adapt",
    "check",
    "conjugate",
    "cotta",
    "eata",
    "ent",
    "errors",
    "gce",
    "gradients",
    "guards",
    "losses",
    "memories",
    "methods",
    "norm_ema",
    "outputs",
    "regularizers",
    "rotta",
    "scopes",
    "scores",
    "selection",
    "sotta",
    "source",
    "stamp",
    "statistics",
    "swr",
    "tent",
    "testing",
    "ttn",
]

_CONTENTS = {
    "adapter": ("Adapter",),
    "alarm": ("Alarm", "Event"),
    "health": ("Health",),
    "methods": (
        "adapt",
        "bn_adapt",
        "conjugate",
        "cotta",
        "eata",
        "ent",
        "gce",
        "norm_ema",
        "rotta",
        "sotta",
        "source",
        "stamp",
        "swr",
        "tent",
        "ttn",
    ),
    "problems": ("Problem", "check"),
    "record": ("Record", "StepResult"),
    "selection": ("ConfidenceAbove", "ConfidenceDifference", "EntropyBelow", "EntropyWeight", "NonRedundant"),
    "teacher": ("EMA",),
}
_HOMES = {name: module for module, names in _CONTENTS.items() for name in names}


if not TYPE_CHECKING:  # a type checker that saw this would believe in any name

    def __getattr__(name: str) -> object:
        """Load a public name."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"{__name__}.{_HOMES.get(name, name)}")
        return globals().setdefault(name, getattr(module, name) if name in _HOMES else module)


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
