"""The paper's tables on segmentation, and CamVid, a small public dataset, under changing weather."""

from typing import Any

from driftproof.bench.tables import Suite, Table
from driftproof.corruptions import HELD_OUT
from driftproof.data.scenes.driving import CLEAN
from driftproof.paper.suites.layout import COSTS, Cells, list_rows, make_grid, make_table

__all__ = ["SUITES"]

_METHODS = ("source", "bn_adapt", "ttn", "tent", "tent+crowd", "swr", "swr+crowd")
_STREAM = {"Cityscapes": "cityscapes", "BDD-100K": "bdd100k", "Mapillary": "mapillary"}
_TARGETS = {"BDD-100K": "bdd100k", "Mapillary": "mapillary", "GTAV": "gtav", "SYNTHIA": "synthia"}
_NOTE = "Frames of height 800, in the order of their names; Mapillary's cut or padded to 1422 columns."
_ORACLE: Cells = {"tent (no unknown pixels)": {"method": "tent", "oracle": True}}

_WEATHER = (CLEAN, "fog", "snow", "brightness", "frost", "motion_blur")
_UNKNOWN_CLASSES = "with pedestrians, bicyclists and signs unknown"
_CAMVID_NOTE = (
    "Train its model with `driftproof train --model deeplabv3plus_resnet50 --images camvid`. Severity 3; brightness is "
    "glare: the published corruptions include no night."
)
_SEARCH_NOTE = (
    "Learning rates are chosen here, on training frames under corruptions that no other CamVid suite uses. "
    "They are never chosen on the frames or the weather of reported numbers."
)
_COST_OPTIONS = {  # a fixed interpolation costs as much as TTN and needs no preparation
    "tent.statistics": "online blend", "swr.statistics": "online blend", "swr.prototypes": False,
    "swr.drift_samples": 8, "swr.drift_batch_size": 2, "cotta.threshold": 0.69, "tent+crowd.margin": -0.2,
}  # fmt: skip


def _continual(name: str, title: str, rows: Cells, paper: str) -> Suite:
    """Return the GTAV model on three domains in a row."""
    columns: Cells = {column: {"domain": domain} for column, domain in _STREAM.items()}
    stream = {"images": "driving-train", "domains": tuple(_STREAM.values())}
    entries = make_grid(rows, columns, **stream, metric="mean_iou")
    table = make_table(name, title, entries, paper, summaries={"Average": tuple(_STREAM)}, unit="mIoU %")
    return Suite(name, title, (table,), 1, _NOTE)


def _table4() -> Suite:
    title, rounds = "Segmentation, a fixed domain over ten rounds", (1, 10)
    columns: Cells = {
        f"{column}/Round {round}": {"domains": (domain,), "domain": domain, "round": round}
        for column, domain in _TARGETS.items()
        for round in rounds
    }
    averages = {f"Average/Round {round}": [f"{column}/Round {round}" for column in _TARGETS] for round in rounds}
    entries = make_grid(list_rows(*_METHODS), columns, images="driving-val", metric="mean_iou")
    table = make_table("table4", title, entries, "T4_seg_fixed", summaries=averages, unit="mIoU %")
    return Suite("table4", title, (table,), 10, _NOTE)


def _s4() -> Suite:
    methods, title = ("tent", "swr", "cotta", "tent+crowd"), "Memory and time of a step on 800 × 1455 frames"
    stream = {"images": "driving-train", "domains": ("gtav",), "measures": (), "task": "costs", "domain": "{row}"}
    rows: Cells = {name: {"method": ",".join(methods), "trials": 500, "warm_up": 50} for name in methods}
    entries = make_grid(rows, COSTS, **stream, **_COST_OPTIONS)
    return Suite("s4", title, (make_table("s4", title, entries, "S4_cost_seg", unit="mixed"),), 1)


def _at_rates(*factors: int) -> Cells:
    """Return the methods that have a learning rate, at multiples of the paper's: CamVid has far fewer frames."""
    rates = [round(factor * 1e-6, 12) for factor in factors]  # rounded, so that ten times 1e-6 is exactly 1e-5
    return {f"{name} (lr {rate:.0e})": {"method": name, "lr": rate} for rate in rates for name in _METHODS[3:]}


def _camvid_table(
    name: str,
    title: str,
    rows: Cells,
    columns: Cells,
    lower_is_better: bool | None = False,
    **stream: Any,  # noqa: ANN401
) -> Table:
    usual = {"images": "camvid-c", "domains": _WEATHER, "metric": "mean_iou", "round": 5}
    common = usual | stream | {"severity": 3, "measures": ("iou", "selection", "pixels")}
    return make_table(name, title, make_grid(rows, columns, **common), unit="%", lower_is_better=lower_is_better)


def _rounds(last: int) -> Cells:
    return {f"Round {round}": {"round": round} for round in range(1, last + 1)}


def _weather(name: str, title: str, rows: Cells, note: str = "As `camvid`.") -> Suite:
    title = f"{title}, {_UNKNOWN_CLASSES}"
    auroc, fpr = (
        {
            f"{pixels.capitalize()}/By {score}": {"metric": f"{metric}/{pixels}/{kind}"}
            for pixels in ("wrong", "unknown")
            for score, metric in (("novelty", "novelty"), ("largest probability", "msp"))
        }
        for kind in ("auroc", "fpr")
    )
    rejected: Cells = {
        "Precision": {"metric": "rejection/precision"},
        "Wrong or unknown of all": {"metric": "rejection/chance"},
        "Recall/Wrong": {"metric": "rejection/recall_wrong"},
        "Recall/Unknown": {"metric": "rejection/recall_unknown"},
    }
    selecting = {row: cell for row, cell in rows.items() if "+" in cell["method"]}
    tables = (
        _camvid_table(name, f"{title}: mIoU", rows, _rounds(5)),
        _camvid_table(f"{name}_auroc", f"{title}: AUROC against right pixels", rows, auroc),
        _camvid_table(f"{name}_fpr", f"{title}: FPR@TPR95 against right pixels", rows, fpr, lower_is_better=True),
        # No column is the best on its own: precision compares with chance, recall with precision.
        _camvid_table(f"{name}_rejected", f"{title}: rejected pixels", selecting, rejected, lower_is_better=None),
    )
    return Suite(name, title, tables, 5, note)


def _camvid_parts() -> Suite:
    """Selection and mean entropy apart: the paper changes λ_max along with selection."""
    shares = {"tent": (0.0, 0.5), "tent+crowd": (0.5, 0.0), "swr": (0.5, 0.2), "swr+crowd": (0.2, 0.5)}
    rows: dict[str, Any] = {}
    for row, cell in _at_rates(100).items():
        usual, other = shares[cell["method"]]
        rows[f"{row}, mean entropy {usual:g}"] = cell
        rows[f"{row}, mean entropy {other:g}"] = {**cell, "mean_entropy": other}
    title = f"CamVid at 100 times the paper's learning rates, selection and mean entropy apart, {_UNKNOWN_CLASSES}"
    return Suite(
        "camvid_parts", title, (_camvid_table("camvid_parts", f"{title}: mIoU", rows, _rounds(5)),), 5, "As `camvid`."
    )


def _camvid_rates() -> Suite:
    """Search of the learning rate, on other frames and other corruptions than `camvid`."""
    title, rows = f"CamVid's learning rates, {_UNKNOWN_CLASSES}", _at_rates(1, 10, 100, 1000)
    frames: dict[str, Any] = {"images": "camvid-train-c", "domains": HELD_OUT}
    table = _camvid_table("camvid_rates", f"{title}: mIoU", rows, _rounds(2), **frames)
    return Suite("camvid_rates", title, (table,), 2, _SEARCH_NOTE)


SUITES = (
    _continual("table3", "Segmentation, continually changing domains", list_rows(*_METHODS), "T3a_seg_continual"),
    _table4(),
    _continual(
        "s1", "Segmentation without unknown pixels, an oracle",
        {**list_rows("tent"), **_ORACLE, **list_rows("tent+crowd")}, "S1_seg_no_openset",
    ),
    _continual(
        "s3b", "Comparison with CoTTA on segmentation", list_rows("tent", "cotta", "tent+crowd"), "S3b_cotta_seg"
    ),
    _s4(),
    _weather("camvid", "CamVid through changing weather", list_rows(*_METHODS), _CAMVID_NOTE),
    *(
        _weather(f"camvid_x{factor}", f"CamVid at {factor} times the paper's learning rates", _at_rates(factor))
        for factor in (10, 100, 1000)
    ),
    _camvid_parts(),
    _camvid_rates(),
)  # fmt: skip
