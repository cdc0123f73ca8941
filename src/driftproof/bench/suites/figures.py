"""What the paper's figures look into: rules of selection on TENT, and the gradients of its samples."""

from driftproof.bench.spec import Spec
from driftproof.bench.suites.settings import make_spec
from driftproof.bench.tables import TableEntry, Suite, Table
from driftproof.corruptions import CORRUPTIONS

__all__ = ["gradients", "rules"]

_ROUNDS = 50
_SETS = {"CIFAR-10-C": "cifar10-c", "CIFAR-100-C": "cifar100-c"}
_RULES = ("tent", "tent+confident", "tent+certain", "tent+crowd")


def rules() -> Suite:
    """TENT that learns from all samples, from confident ones, from certain ones, and from those of the crowd."""
    title = "TENT under four rules of selection, 50 rounds"
    entries = tuple(
        TableEntry(rule, f"{column}/{setting}", (make_spec(rule, images, "wrn40_2", unknown=unknown),), round=_ROUNDS)
        for rule in _RULES
        for column, images in _SETS.items()
        for setting, unknown in (("Closed", None), ("Open", "svhn-c"))
    )
    note = "Shares tent and tent+crowd with table1. `driftproof analyze selection` draws precision and recall."
    return Suite("rules", title, (Table("rules", title, entries),), _ROUNDS, note)


def gradients() -> Suite:
    """How the gradients of wrong samples point, compared with those of right ones."""
    title = "Cosine of per-sample gradients, un-updated network"
    spec = Spec("bn_adapt", "cifar10-c", "wrn40_2", domains=CORRUPTIONS, measures=(), task="gradients")
    exact = spec.with_options(layer="block3.layer.5.bn2", mixing=True)
    cheap = spec.with_options(layer="bn1", mixing=False)
    entries = tuple(
        TableEntry(row, column, (cell,), metric=measure, domain="all")
        for row, cell in (("last block", exact), ("last layer", cheap))
        for column, measure in (("Right with right", "right"), ("Wrong with right", "wrong"))
    )
    note = "`driftproof analyze gradients` draws the matrices."
    table = Table("gradients", title, entries, unit="cosine", lower_is_better=None)
    return Suite("gradients", title, (table,), 1, note)
