"""Tables 3 and 4 and the supplement's tables on segmentation."""

from driftproof.bench.scenes import PADDED
from driftproof.bench.spec import Option, Spec
from driftproof.bench.tables import Suite, Summary
from driftproof.paper.suites.layout import PaperEntry, make_table
from driftproof.paper.suites.settings import PAPER_NAMES

__all__ = ["METHODS", "make_driving_spec", "s1", "s3b", "s4", "table3", "table4"]

METHODS = ("source", "bn_adapt", "ttn", "tent", "tent+crowd", "swr", "swr+crowd")
_STREAM = {"Cityscapes": "cityscapes", "BDD-100K": "bdd100k", "Mapillary": "mapillary"}
_TARGETS = {"BDD-100K": "bdd100k", "Mapillary": "mapillary", "GTAV": "gtav", "SYNTHIA": "synthia"}
_MODEL = "deeplabv3plus_resnet50"
_NOTE = "Frames of height 800, in the order of their names; Mapillary's cut or padded to 1422 columns."
_AVERAGE = Summary("Average", tuple(_STREAM))

_OPTIONS: dict[str, dict[str, Option]] = {
    "ttn": {"statistics": "online ttn"},
    "tent": {"lr": 1e-6, "statistics": "online ttn"},
    "swr": {
        "lr": 1e-6,
        "statistics": "online ttn",
        "prototypes": False,
        "drift_samples": 400,
        "drift_batch_size": 2,
    },
    "cotta": {"lr": 7.5e-6, "threshold": None},
}
_MEAN_ENTROPY = {"tent": 0.5, "swr": 0.2}


def make_driving_spec(method: str, images: str, domains: tuple[str, ...], **options: Option) -> Spec:
    """Return a method on driving scenes with the paper's hyper-parameters: two frames per batch."""
    base, _, selection = method.partition("+")
    defaults = dict(_OPTIONS.get(base, {}))
    if selection:
        defaults |= {"margin": -0.2, "mean_entropy": _MEAN_ENTROPY[base]}
    if "lr" in defaults and not PADDED.isdisjoint(domains):
        defaults["framed"] = True  # padding is excluded from the loss
    spec = Spec(method, images, _MODEL, domains=domains, batch_size=2, measures=("iou", "selection"))
    return spec.with_options(**defaults, **options)


def _continual(methods: dict[str, str]) -> tuple[PaperEntry, ...]:
    """Return the entries of the GTAV model on three domains in a row."""
    return tuple(
        PaperEntry(
            method, column, (make_driving_spec(method, "driving-train", tuple(_STREAM.values())),),
            metric="mean_iou", domain=domain, paper_row=paper_row,
        )
        for method, paper_row in methods.items()
        for column, domain in _STREAM.items()
    )  # fmt: skip


def table3() -> Suite:
    """Table 3: continually changing domains."""
    title = "Segmentation, continually changing domains"
    entries = _continual({method: PAPER_NAMES[method] for method in METHODS})
    table = make_table("table3", title, entries, "T3a_seg_continual", (_AVERAGE,), "mIoU %", lower_is_better=False)
    return Suite("table3", title, (table,), 1, _NOTE)


def table4() -> Suite:
    """Table 4: one fixed domain over ten rounds."""
    entries = tuple(
        PaperEntry(
            method, f"{column}/Round {round}", (make_driving_spec(method, "driving-val", (domain,)),),
            metric="mean_iou", round=round, domain=domain, paper_row=PAPER_NAMES[method],
        )
        for method in METHODS
        for column, domain in _TARGETS.items()
        for round in (1, 10)
    )  # fmt: skip
    averages = tuple(
        Summary(f"Average/Round {round}", tuple(f"{column}/Round {round}" for column in _TARGETS)) for round in (1, 10)
    )
    title = "Segmentation, a fixed domain over ten rounds"
    table = make_table("table4", title, entries, "T4_seg_fixed", averages, "mIoU %", lower_is_better=False)
    return Suite("table4", title, (table,), 10, _NOTE)


def s1() -> Suite:
    """Supplement, table 1: an oracle that drops the pixels of unknown objects."""
    title = "Segmentation without unknown pixels, an oracle"
    oracle = make_driving_spec("tent", "driving-train", tuple(_STREAM.values()), oracle=True)
    entries = (
        *_continual({"tent": "TENT"}),
        *(
            PaperEntry(
                "tent (no unknown pixels)", column, (oracle,),
                metric="mean_iou", domain=domain, paper_row="TENT w/o open-set",
            )
            for column, domain in _STREAM.items()
        ),
        *_continual({"tent+crowd": "TENT + Ours"}),
    )  # fmt: skip
    table = make_table("s1", title, entries, "S1_seg_no_openset", (_AVERAGE,), "mIoU %", lower_is_better=False)
    return Suite("s1", title, (table,), 1, _NOTE)


def s3b() -> Suite:
    """Supplement, table 3: comparison with CoTTA on segmentation."""
    title = "Comparison with CoTTA on segmentation"
    entries = _continual({method: PAPER_NAMES[method] for method in ("tent", "cotta", "tent+crowd")})
    table = make_table("s3b", title, entries, "S3b_cotta_seg", (_AVERAGE,), "mIoU %", lower_is_better=False)
    return Suite("s3b", title, (table,), 1, _NOTE)


def s4() -> Suite:
    """Supplement, table 4: costs of segmentation."""
    methods, title = ("tent", "swr", "cotta", "tent+crowd"), "Memory and time of a step on 800 × 1455 frames"
    # A fixed interpolation costs as much as TTN and needs no preparation.
    options: dict[str, Option] = {
        "tent.statistics": "online blend", "swr.statistics": "online blend", "swr.prototypes": False,
        "swr.drift_samples": 8, "swr.drift_batch_size": 2, "cotta.threshold": 0.69, "tent+crowd.margin": -0.2,
    }  # fmt: skip
    spec = Spec(
        ",".join(methods), "driving-train", _MODEL, domains=("gtav",), batch_size=2, measures=(), task="costs"
    ).with_options(trials=500, warm_up=50, **options)
    entries = tuple(
        PaperEntry(method, column, (spec,), metric=measure, domain=method, paper_row=PAPER_NAMES[method])
        for method in methods
        for column, measure in (("Memory (MB)", "memory"), ("Time (ms)", "milliseconds"))
    )
    return Suite("s4", title, (make_table("s4", title, entries, "S4_cost_seg", unit="mixed"),), 1)
