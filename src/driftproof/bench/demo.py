"""The demo: a small network on corrupted digits, with unknown digits mixed in."""

from driftproof.bench.spec import Option, Spec
from driftproof.bench.tables import Suite, Table, TableEntry
from driftproof.corruptions import CORRUPTIONS

__all__ = ["demo"]

_ROUNDS = 5
# A confident prediction's cosine with a uniform one is 1/√6 = 0.41, so EATA's 0.4, meant for ten classes, rejects all.
_OPTIONS: dict[str, dict[str, Option]] = {
    "tent": {"lr": 1e-3},
    "tent+crowd": {"lr": 1e-3},
    "eata": {"lr": 1e-3, "redundancy": 0.5},
    "eata+crowd": {"lr": 1e-3},
}
_METHODS = ("source", "bn_adapt", "tent", "tent+crowd", "eata", "eata+crowd")


def demo() -> Suite:
    """Digits 0 to 5 are known, 6 to 9 are unknown."""
    title = "Digits with unknown ones among them"
    entries = [
        TableEntry(method, f"Round {round}", (spec.with_options(**_OPTIONS.get(method, {})),), round=round)
        for method in _METHODS
        for spec in [Spec(method, "digits-c", "five_layers", "digits-unknown-c", domains=CORRUPTIONS, batch_size=100)]
        for round in (1, 3, _ROUNDS)
    ]
    return Suite("demo", title, (Table("demo", title, tuple(entries)),), _ROUNDS, command="driftproof demo")
