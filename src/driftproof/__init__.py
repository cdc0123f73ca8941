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
        detectors,
        errors,
        gradients,
        guards,
        losses,
        memories,
        methods,
        monitor,
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
        asr,
        bn_adapt,
        cmf,
        come,
        conjugate,
        cotta,
        deyo,
        eata,
        ent,
        gce,
        lame,
        memo,
        norm_ema,
        paf_kip,
        rdumb,
        roid,
        rotta,
        sar,
        sentinel,
        sotta,
        source,
        stamp,
        swr,
        t3a,
        tent,
        ttaug,
        ttn,
    )
    from driftproof.problems import Problem, check
    from driftproof.record import Record, StepResult
    from driftproof.selection import ConfidenceAbove, ConfidenceDifference, EntropyBelow, EntropyWeight, NonRedundant
    from driftproof.teacher import EMA

__version__ = "0.2.0"

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
    "asr",
    "augment",
    "bn_adapt",
    "check",
    "cmf",
    "come",
    "conjugate",
    "cotta",
    "detectors",
    "deyo",
    "eata",
    "ent",
    "errors",
    "gce",
    "gradients",
    "guards",
    "lame",
    "losses",
    "memo",
    "memories",
    "methods",
    "monitor",
    "norm_ema",
    "outputs",
    "paf_kip",
    "rdumb",
    "regularizers",
    "roid",
    "rotta",
    "sar",
    "scopes",
    "scores",
    "selection",
    "sentinel",
    "sotta",
    "source",
    "stamp",
    "statistics",
    "swr",
    "t3a",
    "tent",
    "testing",
    "ttaug",
    "ttn",
]

_CONTENTS = {
    "adapter": ("Adapter",),
    "alarm": ("Alarm", "Event"),
    "health": ("Health",),
    "methods": (
        *("adapt", "bn_adapt", "conjugate", "cotta", "eata", "ent", "gce", "source", "swr", "tent", "ttn"),
        *("asr", "cmf", "come", "deyo", "lame", "memo", "norm_ema", "paf_kip", "rdumb", "roid", "rotta", "sar"),
        *("sentinel", "sotta", "stamp", "t3a", "ttaug"),
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
