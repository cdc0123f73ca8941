"""Runs behind the paper's figures: selection rules on TENT, and per-sample gradients."""

from driftproof.bench.spec import Spec
from driftproof.bench.tables import Suite
from driftproof.corruptions import CORRUPTIONS
from driftproof.paper.suites.layout import PaperEntry, make_table
from driftproof.paper.suites.settings import make_spec

__all__ = ["gradients", "selection_rules"]

_ROUNDS = 50
_SETS = {"CIFAR-10-C": "cifar10-c", "CIFAR-100-C": "cifar100-c"}
_RULES = ("tent", "tent+confident", "tent+certain", "tent+crowd")


def selection_rules() -> Suite:
    """TENT on all samples, on confident ones, on low-entropy ones, and with the paper's selection."""
    title = "TENT under four rules of selection, 50 rounds"
    entries = tuple(
        PaperEntry(rule, f"{column}/{setting}", (make_spec(rule, images, "wrn40_2", unknown=unknown),), round=_ROUNDS)
        for rule in _RULES
        for column, images in _SETS.items()
        for setting, unknown in (("Closed", None), ("Open", "svhn-c"))
    )
    note = "Shares tent and tent+crowd with table1. `driftproof analyze selection` draws precision and recall."
    return Suite("rules", title, (make_table("rules", title, entries),), _ROUNDS, note)


def gradients() -> Suite:
    """Cosines between gradients of wrong and right samples."""
    title = "Cosine of per-sample gradients, un-updated network"
    spec = Spec("bn_adapt", "cifar10-c", "wrn40_2", domains=CORRUPTIONS, measures=(), task="gradients")
    exact = spec.with_options(layer="block3.layer.5.bn2", mixing=True)
    cheap = spec.with_options(layer="bn1", mixing=False)
    entries = tuple(
        PaperEntry(row, column, (spec,), metric=metric, domain="all")
        for row, spec in (("last block", exact), ("last layer", cheap))
        for column, metric in (("Right with right", "right"), ("Wrong with right", "wrong"))
    )
    note = "`driftproof analyze gradients` draws the matrices."
    table = make_table("gradients", title, entries, unit="cosine", lower_is_better=None)
    return Suite("gradients", title, (table,), 1, note)
