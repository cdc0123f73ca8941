"""Tables 3 and 4 and the supplement's on segmentation: driving scenes, pixel by pixel."""

from dataclasses import replace

from driftproof.bench.scenes import CLEAN
from driftproof.bench.spec import Option, Spec
from driftproof.bench.suites.settings import PAPER_NAMES
from driftproof.bench.tables import Entry, Suite, Summary, Table
from driftproof.corruptions import HELD_OUT

__all__ = [
    "camvid",
    "camvid_rates",
    "camvid_x10",
    "camvid_x100",
    "camvid_x1000",
    "s1",
    "s3b",
    "s4",
    "table3",
    "table4",
]

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
_CHOOSING = 2


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


def _seen_by(method: str, images: str, domains: tuple[str, ...], factor: int = 1) -> Spec:
    spec = _cell(method, images, domains)
    rates = {name: factor * rate for name, rate in spec.options if name == "lr" and isinstance(rate, float)}
    return replace(spec, severity=3, measures=(*spec.measures, "pixels")).with_options(**rates)


def _at_rates(images: str, domains: tuple[str, ...], factors: tuple[int, ...]) -> dict[str, Spec]:
    """The methods that have a learning rate, at multiples of the paper's."""
    return {
        f"{method} (lr {dict(spec.options)['lr']:.0e})": spec
        for factor in factors
        for method in _METHODS
        if "lr" in dict((spec := _seen_by(method, images, domains, factor)).options)
    }


def _by_round(name: str, title: str, cells: dict[str, Spec], measure: str, rounds: int = _ROUNDS) -> Table:
    entries = tuple(
        Entry(row, f"Round {round}", (spec,), measure=measure, round=round)
        for row, spec in cells.items()
        for round in range(1, rounds + 1)
    )
    return Table(name, title, entries, unit="%", lower_is_better=False)


def _through_weather(name: str, title: str, cells: dict[str, Spec]) -> Suite:
    tables = (
        _by_round(name, f"{title}: mIoU", cells, "mean_iou"),
        _by_round(f"{name}_wrong", f"{title}: AUROC of novelty, wrong pixels", cells, "novelty/wrong/auroc"),
        _by_round(f"{name}_unknown", f"{title}: AUROC of novelty, unknown pixels", cells, "novelty/unknown/auroc"),
    )
    return Suite(name, title, tables, _ROUNDS, _TOLD)


def camvid() -> Suite:
    """CamVid through changing weather, with objects that were never taught."""
    cells = {name: _seen_by(name, "camvid-c", _WEATHER) for name in _METHODS}
    return _through_weather("camvid", f"CamVid through changing weather, {_UNTAUGHT}", cells)


def camvid_x10() -> Suite:
    """The same at ten times the paper's learning rates."""
    return _faster(10)


def camvid_x100() -> Suite:
    """The same at a hundred times the paper's learning rates."""
    return _faster(100)


def camvid_x1000() -> Suite:
    """The same at a thousand times the paper's learning rates."""
    return _faster(1000)


def _faster(factor: int) -> Suite:
    """CamVid has far fewer frames than the paper's sets, and so takes far fewer steps."""
    title = f"CamVid at {factor} times the paper's learning rates, {_UNTAUGHT}"
    return _through_weather(f"camvid_x{factor}", title, _at_rates("camvid-c", _WEATHER, (factor,)))


def camvid_rates() -> Suite:
    """Where a learning rate is chosen: on other frames than those of `camvid`, and in other conditions."""
    title, cells = f"CamVid's learning rates, {_UNTAUGHT}", _at_rates("camvid-train-c", HELD_OUT, (1, 10, 100, 1000))
    note = (
        "Rates are chosen here, on the training frames under corruptions that no other suite of CamVid uses, and never "
        "on the frames or in the weather of the numbers that are reported."
    )
    table = _by_round("camvid_rates", f"{title}: mIoU", cells, "mean_iou", _CHOOSING)
    return Suite("camvid_rates", title, (table,), _CHOOSING, note)
