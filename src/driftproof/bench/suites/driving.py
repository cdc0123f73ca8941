"""Tables 3 and 4 and the supplement's on segmentation: driving scenes, pixel by pixel."""

from dataclasses import replace

from driftproof.bench.scenes import CLEAN
from driftproof.bench.spec import Option, Spec
from driftproof.bench.suites.settings import PAPER_NAMES
from driftproof.bench.tables import Entry, Suite, Summary, Table

__all__ = ["camvid", "camvid_rates", "s1", "s3b", "s4", "table3", "table4"]

_METHODS = ("source", "bn_adapt", "ttn", "tent", "tent+crowd", "swr", "swr+crowd")
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
_WEATHER = (CLEAN, "fog", "snow", "brightness", "frost", "motion_blur")
_ROUNDS = 5


def _cell(method: str, images: str, domains: tuple[str, ...], **options: Option) -> Spec:
    base, _, selection = method.partition("+")
    chosen = dict(_OPTIONS.get(base, {}))
    if selection:
        chosen |= {"margin": -0.2, "mean_entropy": _MEAN_ENTROPY[base]}
    if "mapillary" in domains and base in _MEAN_ENTROPY:
        chosen["framed"] = True  # its frames are padded, and nothing is to be learned from that
    spec = Spec(method, images, _MODEL, domains=domains, batch_size=2, measures=("iou", "selection"))
    return spec.with_options(**chosen, **options)


def _changing(methods: dict[str, str]) -> tuple[Entry, ...]:
    """GTAV's model through three cities' worth of domains, one after the other."""
    return tuple(
        Entry(
            method, column, (_cell(method, "driving-train", tuple(_STREAM.values())),),
            measure="mean_iou", domain=domain, paper_row=paper_row,
        )
        for method, paper_row in methods.items()
        for column, domain in _STREAM.items()
    )  # fmt: skip


def table3() -> Suite:
    """Table 3: domains that change while one drives."""
    title = "Segmentation, continually changing domains"
    entries = _changing({method: PAPER_NAMES[method] for method in _METHODS})
    table = Table("table3", title, entries, "T3a_seg_continual", (_AVERAGE,), "mIoU %", lower_is_better=False)
    return Suite("table3", title, (table,), 1, _NOTE)


def table4() -> Suite:
    """Table 4: one domain, again and again."""
    entries = tuple(
        Entry(
            method, f"{column}/Round {round}", (_cell(method, "driving-val", (domain,)),),
            measure="mean_iou", round=round, domain=domain, paper_row=PAPER_NAMES[method],
        )
        for method in _METHODS
        for column, domain in _TARGETS.items()
        for round in (1, 10)
    )  # fmt: skip
    averages = tuple(
        Summary(f"Average/Round {round}", tuple(f"{column}/Round {round}" for column in _TARGETS)) for round in (1, 10)
    )
    title = "Segmentation, a fixed domain over ten rounds"
    table = Table("table4", title, entries, "T4_seg_fixed", averages, "mIoU %", lower_is_better=False)
    return Suite("table4", title, (table,), 10, _NOTE)


def s1() -> Suite:
    """The supplement's oracle, which drops the pixels of unknown objects."""
    title = "Segmentation without unknown pixels, an oracle"
    oracle = _cell("tent", "driving-train", tuple(_STREAM.values()), oracle=True)
    entries = (
        *_changing({"tent": "TENT"}),
        *(
            Entry(
                "tent (no unknown pixels)", column, (oracle,),
                measure="mean_iou", domain=domain, paper_row="TENT w/o open-set",
            )
            for column, domain in _STREAM.items()
        ),
        *_changing({"tent+crowd": "TENT + Ours"}),
    )  # fmt: skip
    table = Table("s1", title, entries, "S1_seg_no_openset", (_AVERAGE,), "mIoU %", lower_is_better=False)
    return Suite("s1", title, (table,), 1, _NOTE)


def s3b() -> Suite:
    """The supplement's comparison with CoTTA on segmentation."""
    title = "Comparison with CoTTA on segmentation"
    entries = _changing({method: PAPER_NAMES[method] for method in ("tent", "cotta", "tent+crowd")})
    table = Table("s3b", title, entries, "S3b_cotta_seg", (_AVERAGE,), "mIoU %", lower_is_better=False)
    return Suite("s3b", title, (table,), 1, _NOTE)


def s4() -> Suite:
    """The supplement's costs of segmentation."""
    methods, title = ("tent", "swr", "cotta", "tent+crowd"), "Memory and time of a step on 800 × 1455 frames"
    # A blend of fixed shares costs what TTN's does, and needs no preparation.
    options: dict[str, Option] = {
        "tent.statistics": "online blend", "swr.statistics": "online blend", "swr.prototypes": False,
        "swr.drift_samples": 8, "swr.drift_batch_size": 2, "cotta.threshold": 0.69, "tent+crowd.margin": -0.2,
    }  # fmt: skip
    spec = Spec(
        ",".join(methods), "driving-train", _MODEL, domains=("gtav",), batch_size=2, measures=(), task="costs"
    ).with_options(trials=500, warm_up=50, **options)
    entries = tuple(
        Entry(method, column, (spec,), measure=measure, domain=method, paper_row=PAPER_NAMES[method])
        for method in methods
        for column, measure in (("Memory (MB)", "memory"), ("Time (ms)", "milliseconds"))
    )
    return Suite("s4", title, (Table("s4", title, entries, "S4_cost_seg", unit="mixed"),), 1)


_UNTAUGHT = "with pedestrians, bicyclists and signs unknown"
_TOLD = (
    "Train its model with `driftproof train deeplabv3plus_resnet50 --set camvid`. Severity 3; brightness is glare: the "
    "published corruptions know no night."
)


def _through_weather(method: str, **options: Option) -> Spec:
    spec = _cell(method, "camvid-c", _WEATHER)
    return replace(spec, severity=3, measures=(*spec.measures, "pixels")).with_options(**options)


def _by_round(name: str, title: str, cells: dict[str, Spec], measure: str) -> Table:
    entries = tuple(
        Entry(row, f"Round {round}", (spec,), measure=measure, round=round)
        for row, spec in cells.items()
        for round in range(1, _ROUNDS + 1)
    )
    return Table(name, title, entries, unit="%", lower_is_better=False)


def camvid() -> Suite:
    """CamVid through changing weather, with objects that were never taught."""
    title, cells = f"CamVid through changing weather, {_UNTAUGHT}", {name: _through_weather(name) for name in _METHODS}
    tables = (
        _by_round("camvid", f"{title}: mIoU", cells, "mean_iou"),
        _by_round("camvid_wrong", f"{title}: AUROC of novelty, wrong pixels", cells, "novelty/wrong/auroc"),
        _by_round("camvid_unknown", f"{title}: AUROC of novelty, unknown pixels", cells, "novelty/unknown/auroc"),
    )
    return Suite("camvid", title, tables, _ROUNDS, _TOLD)


def camvid_rates() -> Suite:
    """The same at larger learning rates: as many more steps would take it, had CamVid as many frames as the paper's."""
    title = f"CamVid at larger learning rates, {_UNTAUGHT}"
    cells = {
        f"{method} (lr {rate:g})": _through_weather(method, lr=rate)
        for rate in (1e-5, 1e-4)
        for method in _METHODS
        if "lr" in _OPTIONS.get(method.partition("+")[0], {})
    }
    return Suite("camvid_rates", title, (_by_round("camvid_rates", title, cells, "mean_iou"),), _ROUNDS, _TOLD)
