"""Tables 1, 2 and 5: every method on three datasets, closed and open, after one round and after fifty."""

from driftproof.bench.spec import Spec
from driftproof.bench.tables import Suite, Summary
from driftproof.paper.suites.layout import PaperEntry, make_table
from driftproof.paper.suites.settings import PAPER_NAMES, make_spec

__all__ = ["table1", "table2", "table5"]

_ROUNDS = 50

_COLUMNS = {
    "CIFAR-10-C": ("cifar10-c", "wrn40_2", "svhn-c"),
    "CIFAR-100-C": ("cifar100-c", "wrn40_2", "svhn-c"),
    "TinyImageNet-C": ("tiny-imagenet-c", "resnet50", "imagenet-o-c-64"),
}

_METHODS = (
    "source", "bn_adapt", "gce", "conjugate", "ent", "ent+crowd", "tent", "tent+crowd", "eata", "eata+crowd", "swr",
    "swr+crowd",
)  # fmt: skip

_SCORES = {
    "MSP": "msp",
    "Max Logit": "max_logit",
    "Energy": "energy",
    "Ours": "confidence_difference",
}

_PLAIN_CONJUGATE = "conjugate (ε = 0)"


def _make_spec(method: str, column: str, setting: str) -> Spec:
    images, model, unknown = _COLUMNS[column]
    return make_spec(method, images, model, unknown=unknown if setting == "Open" else None)


def _entries(round: int) -> tuple[PaperEntry, ...]:
    entries = []
    for method in _METHODS:
        for column in _COLUMNS:
            for setting in ("Closed", "Open"):
                spec, name = _make_spec(method, column, setting), f"{column}/{setting}"
                entries.append(PaperEntry(method, name, (spec,), round=round, paper_row=PAPER_NAMES[method]))
                if method == "conjugate":
                    plain = spec.with_options(epsilon=0.0)
                    entries.append(PaperEntry(_PLAIN_CONJUGATE, name, (plain,), round=round))
    return tuple(entries)


def _averages() -> tuple[Summary, ...]:
    return tuple(
        Summary(f"Average/{setting}", tuple(f"{column}/{setting}" for column in _COLUMNS))
        for setting in ("Closed", "Open")
    )


def table1() -> Suite:
    """Table 1: fifty rounds."""
    title = "Error after 50 rounds"
    table = make_table("table1", title, _entries(_ROUNDS), "T1_rounds50", _averages())
    return Suite("table1", title, (table,), _ROUNDS, "Shares every run with table2 and table5.")


def table2() -> Suite:
    """Table 2: one round."""
    title = "Error after one round"
    table = make_table("table2", title, _entries(1), "T2_round1", _averages())
    return Suite("table2", title, (table,), 1, "Shares every run with table1, which goes on from here.")


def table5() -> Suite:
    """Table 5: how well four scores detect wrong and unknown samples."""
    tables = tuple(
        make_table(
            f"table5{letter}", f"Novelty scores, {protocol} wrong predictions on known images",
            tuple(_score_entries(protocol)), paper, unit="%", lower_is_better=False,
        )
        for letter, protocol, paper in (("a", "including", "T5a_ood_incl"), ("b", "excluding", "T5b_ood_excl"))
    )  # fmt: skip
    return Suite("table5", "Novelty scores of plain TENT among unknown images", tables, _ROUNDS, "Reads table1's runs.")


def _score_entries(protocol: str) -> list[PaperEntry]:
    sets = {"CIFAR-10/SVHN-C": "CIFAR-10-C", "CIFAR-100/SVHN-C": "CIFAR-100-C"}
    kinds = {"AUROC": "auroc", "FPR@TPR95": "fpr"}
    return [
        PaperEntry(
            score, f"{shown} {kind}", (_make_spec("tent", column, "Open"),),
            metric=f"{score}/{protocol}/{metric}", round=_ROUNDS, paper_row=paper_row,
        )
        for paper_row, score in _SCORES.items()
        for shown, column in sets.items()
        for kind, metric in kinds.items()
    ]  # fmt: skip
