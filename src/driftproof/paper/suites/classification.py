"""The paper's tables and figures on classification."""

from dataclasses import replace

from driftproof.bench.tables import Suite, TableEntry
from driftproof.paper.suites.layout import CIFAR, COSTS, SETS, Cells, add_settings, list_rows, make_grid, make_table

__all__ = ["SUITES"]

_ROUNDS = 50
_SETTINGS: Cells = {"Closed": {"setting": "Closed"}, "Open": {"setting": "Open"}}
_COMPARED = list_rows("source", "bn_adapt", "tent", "tent+crowd", "swr", "swr+crowd")


def _main_suite(name: str, title: str, rounds: int, paper: str, note: str) -> Suite:
    """Return every method on three datasets, closed and open."""
    rows: Cells = {
        **list_rows("source", "bn_adapt", "gce", "conjugate"),
        "conjugate (ε = 0)": {"method": "conjugate", "epsilon": 0.0},
        **list_rows("ent", "ent+crowd", "tent", "tent+crowd", "eata", "eata+crowd", "swr", "swr+crowd"),
    }
    averages = {f"Average/{setting}": [f"{name}/{setting}" for name in SETS] for setting in _SETTINGS}
    entries = make_grid(rows, add_settings(SETS), round=rounds)
    return Suite(name, title, (make_table(name, title, entries, paper, summaries=averages),), rounds, note)


def _score_entries(protocol: str) -> tuple[TableEntry, ...]:
    """Return how well four scores of plain TENT detect wrong and unknown samples."""
    rows: Cells = {name: {} for name in ("msp", "max_logit", "energy", "confidence_difference")}
    columns: Cells = {
        f"{name.removesuffix('-C')}/SVHN-C {kind}": {**cell, "metric": f"{{row}}/{protocol}/{metric}"}
        for name, cell in CIFAR.items()
        for kind, metric in (("AUROC", "auroc"), ("FPR@TPR95", "fpr"))
    }
    return make_grid(rows, columns, method="tent", setting="Open", round=_ROUNDS)


def _cost_entries(methods: Cells, trials: int) -> tuple[TableEntry, ...]:
    stream = {"images": "cifar10-c", "domains": ("gaussian_noise",), "measures": (), "task": "costs", "domain": "{row}"}
    rows: Cells = {name: {"method": ",".join(methods)} for name in methods}
    return make_grid(rows, COSTS, **stream, trials=trials, warm_up=50)


def _robustness_entries(columns: Cells) -> tuple[TableEntry, ...]:
    stream = {"images": "tiny-imagenet-c", "round": 10}
    source = make_grid(list_rows("source"), {name: {} for name in columns}, **stream)  # depends on no option
    return source + make_grid(list_rows("tent", "tent+crowd"), columns, **stream)


def _cotta_entries() -> tuple[TableEntry, ...]:
    columns: Cells = {
        f"{name}/{letter}": {**CIFAR[name], **model}
        for name, own in (("CIFAR-10-C", "wrn28_10"), ("CIFAR-100-C", "resnext29"))
        for letter, model in (("(a)", {"model": own}), ("(b)", {}), ("(c)", {}))
    }
    derived = {name: {**cell, "threshold": None} if "(c)" in name else cell for name, cell in columns.items()}
    grids = (("tent", columns), ("cotta", derived), ("tent+crowd", columns))
    return sum((make_grid(list_rows(method), cells, round=_ROUNDS) for method, cells in grids), ())


def _long_and_short(
    name: str, title: str, cells: Cells, rounds: int, papers: tuple[str, str], **stream: object
) -> Suite:
    """Return a suite of two tables: after all rounds, and after the first."""
    averages = None if "/" in min(cells) else {"Average": tuple(cells)}
    words = {50: "50 rounds", 10: "ten rounds", 1: "one round"}
    tables = (
        make_table(
            f"{name}{letter}", f"{title.removesuffix(' on CIFAR-10-C')} after {words[round]}",
            make_grid(_COMPARED, cells, round=round, **stream), paper, summaries=averages,
        )
        for letter, round, paper in zip("ab", (rounds, 1), papers, strict=True)
    )  # fmt: skip
    return Suite(name, title, tuple(tables), rounds)


def _table5() -> Suite:
    tables = (
        make_table(
            name, f"Novelty scores, {protocol} wrong predictions on known images", _score_entries(protocol), paper
        )
        for name, protocol, paper in (
            ("table5a", "including", "T5a_ood_incl"),
            ("table5b", "excluding", "T5b_ood_excl"),
        )
    )
    title = "Novelty scores of plain TENT among unknown images"
    return Suite("table5", title, tuple(replace(table, unit="%") for table in tables), _ROUNDS, "Reads table1's runs.")


def _table6() -> Suite:
    methods = list_rows("ent", "swr", "tent", "eata", "tent+crowd")
    columns = {f"{name} error": cell for name, cell in CIFAR.items()}
    entries = make_grid(methods, columns, setting="Closed+Open", round=_ROUNDS) + _cost_entries(methods, 5000)
    title = "Error (mean of closed and open after 50 rounds), memory and time of a step"
    table = make_table("table6", title, entries, "T6_cost_cls", unit="mixed")
    return Suite("table6", title, (table,), _ROUNDS, "Shares its runs with table1.")


def _table8() -> Suite:
    rates: Cells = {f"lr={rate:g}": {"lr": rate} for rate in (5e-3, 1e-3, 5e-4, 1e-4)}
    sizes: Cells = {f"bs={n}": {"batch_size": n, "lr": 1e-4, "accumulate": 200 // n} for n in (64, 32, 16, 8)}
    tables = (
        make_table(name, title, _robustness_entries(columns), paper, summaries={"Std": tuple(columns)}, how="deviation")
        for name, title, columns, paper in (
            ("table8a", "Learning rates", rates, "T8a_lr"), ("table8b", "Batch sizes", sizes, "T8b_bs"),
        )
    )  # fmt: skip
    note = "The paper does not say how many rounds: ten here. Small batches accumulate the gradients of 200 images."
    return Suite("table8", "Robustness to learning rate and batch size", tuple(tables), 10, note)


def _s3() -> Suite:
    title = "CoTTA, closed, 50 rounds: (a) its own networks, (b) WRN-40-2 with its threshold, (c) with one derived anew"
    entries = _cotta_entries() + _cost_entries(list_rows("tent", "cotta", "tent+crowd"), 500)
    table = make_table("s3a", title, entries, "S3a_cotta_cls", unit="mixed")
    return Suite("s3", "Comparison with CoTTA on classification", (table,), _ROUNDS)


def _s5() -> Suite:
    selecting: Cells = {"tent+crowd (logits)": {"method": "tent+crowd", "on": "logits"}, **list_rows("tent+crowd")}
    entries = make_grid({**list_rows("source", "bn_adapt", "tent"), **selecting}, SETS, round=_ROUNDS)
    rejected = make_grid(selecting, SETS, round=_ROUNDS, metric="rejected")
    title = "Selection by softmax and by logits, closed, 50 rounds"
    tables = (
        make_table("s5", title, entries, "S5_logit_variant"),
        make_table("s5_rejected", "What selection rejects", rejected, unit="share of images", lower_is_better=None),
    )
    return Suite("s5", title, tables, _ROUNDS, "Shares its runs with table1.")


def _rules() -> Suite:
    title = "TENT under four rules of selection, 50 rounds"
    rows = list_rows("tent", "tent+confident", "tent+certain", "tent+crowd")
    table = make_table("rules", title, make_grid(rows, add_settings(CIFAR), round=_ROUNDS))
    note = "Shares tent and tent+crowd with table1. `driftproof analyze selection` draws precision and recall."
    return Suite("rules", title, (table,), _ROUNDS, note)


def _gradients() -> Suite:
    title, stream = "Cosine of per-sample gradients, un-updated network", {"method": "bn_adapt", "images": "cifar10-c"}
    rows: Cells = {
        "last block": {"layer": "block3.layer.5.bn2", "mixing": True},
        "last layer": {"layer": "bn1", "mixing": False},
    }
    columns: Cells = {"Right with right": {"metric": "right"}, "Wrong with right": {"metric": "wrong"}}
    entries = make_grid(rows, columns, **stream, measures=(), task="gradients", domain="all")
    table = make_table("gradients", title, entries, unit="cosine", lower_is_better=None)
    return Suite("gradients", title, (table,), 1, "`driftproof analyze gradients` draws the matrices.")


_NETWORKS: Cells = {"ResNet50": {"model": "resnet50_cifar"}, "WRN28": {"model": "wrn28_10"}}
_IMAGENET, _IMAGENET_PAPERS = {"images": "imagenet-c", "batch_size": 64}, ("S2a_imagenetc_long", "S2b_imagenetc_short")

SUITES = (
    _main_suite("table1", "Error after 50 rounds", 50, "T1_rounds50", "Shares every run with table2 and table5."),
    _main_suite("table2", "Error after one round", 1, "T2_round1", "Shares every run with table1, which goes on."),
    _table5(),
    _table6(),
    _long_and_short(
        "table7", "Other networks on CIFAR-10-C", add_settings(_NETWORKS), 50, ("T7a_arch_long", "T7b_arch_short"),
        images="cifar10-c",
    ),
    _table8(),
    _long_and_short("s2", "ImageNet-C", _SETTINGS, 10, _IMAGENET_PAPERS, **_IMAGENET),
    _s3(),
    _s5(),
    _rules(),
    _gradients(),
)  # fmt: skip
