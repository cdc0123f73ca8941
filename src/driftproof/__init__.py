"""Test-time adaptation for PyTorch that survives the long run and the unknown.

Example:
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

from driftproof import augment, errors, losses, methods, regularisers, scopes, scores, selection, statistics
from driftproof.adapter import Adapter
from driftproof.alarm import Alarm, Event
from driftproof.check import Problem, check
from driftproof.methods import bn_adapt, conjugate, cotta, eata, ent, gce, source, swr, tent, ttn
from driftproof.record import Record
from driftproof.selection import ConfidenceAbove, ConfidenceDifference, EntropyBelow, EntropyWeight, NonRedundant

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "Alarm",
    "ConfidenceAbove",
    "ConfidenceDifference",
    "EntropyBelow",
    "EntropyWeight",
    "Event",
    "NonRedundant",
    "Problem",
    "Record",
    "augment",
    "bn_adapt",
    "check",
    "conjugate",
    "cotta",
    "eata",
    "ent",
    "errors",
    "gce",
    "losses",
    "methods",
    "regularisers",
    "scopes",
    "scores",
    "selection",
    "source",
    "statistics",
    "swr",
    "tent",
    "ttn",
]
