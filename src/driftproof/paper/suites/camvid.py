"""CamVid, a small public dataset, under changing weather."""

from dataclasses import replace

from driftproof.bench.scenes import CLEAN
from driftproof.bench.spec import Spec
from driftproof.bench.tables import Suite, Table
from driftproof.corruptions import HELD_OUT
from driftproof.paper.suites.driving import METHODS, make_driving_spec
from driftproof.paper.suites.layout import PaperEntry, make_table

__all__ = ["camvid", "camvid_ablation", "camvid_lr_search", "camvid_x10", "camvid_x100", "camvid_x1000"]

_WEATHER = (CLEAN, "fog", "snow", "brightness", "frost", "motion_blur")
_ROUNDS, _SEARCH_ROUNDS = 5, 2
_HELD_OUT_CLASSES = "with pedestrians, bicyclists and signs unknown"
_NOTE = (
    "Train its model with `driftproof train deeplabv3plus_resnet50 --set camvid`. Severity 3; brightness is glare: the "
    "published corruptions include no night."
)
_SAME_NOTE = "As `camvid`."


def _make_spec(method: str, images: str, domains: tuple[str, ...], factor: int = 1) -> Spec:
    spec = make_driving_spec(method, images, domains)
    # Rounded, so that ten times 1e-6 is exactly 1e-5.
    rates = {key: round(factor * rate, 12) for key, rate in spec.options if key == "lr" and isinstance(rate, float)}
    return replace(spec, severity=3, measures=(*spec.measures, "pixels")).with_options(**rates)


def _at_rates(images: str, domains: tuple[str, ...], factors: tuple[int, ...]) -> dict[str, Spec]:
    """Return the methods that have a learning rate, at multiples of the paper's."""
    return {
        f"{method} (lr {dict(spec.options)['lr']:.0e})": spec
        for factor in factors
        for method in METHODS
        if "lr" in dict((spec := _make_spec(method, images, domains, factor)).options)
    }


def _by_round(name: str, title: str, specs: dict[str, Spec], metric: str, rounds: int = _ROUNDS) -> Table:
    entries = tuple(
        PaperEntry(row, f"Round {round}", (spec,), metric=metric, round=round)
        for row, spec in specs.items()
        for round in range(1, rounds + 1)
    )
    return make_table(name, title, entries, unit="%", lower_is_better=False)


_PIXELS = {
    f"{pixels.capitalize()}/By {score}": f"{metric}/{pixels}"
    for pixels in ("wrong", "unknown")
    for score, metric in (("novelty", "novelty"), ("largest probability", "msp"))
}
_REJECTED = {
    "Precision": "rejection/precision",
    "Wrong or unknown of all": "rejection/chance",
    "Recall/Wrong": "rejection/recall_wrong",
    "Recall/Unknown": "rejection/recall_unknown",
}


def _last_round(
    name: str, title: str, specs: dict[str, Spec], columns: dict[str, str], *, lower_is_better: bool | None = False
) -> Table:
    entries = tuple(
        PaperEntry(row, column, (spec,), metric=metric, round=_ROUNDS)
        for row, spec in specs.items()
        for column, metric in columns.items()
    )
    return make_table(name, title, entries, unit="%", lower_is_better=lower_is_better)


def _weather_suite(name: str, title: str, specs: dict[str, Spec]) -> Suite:
    selecting = {row: spec for row, spec in specs.items() if "+" in spec.method}
    scores = {kind: {column: f"{metric}/{kind}" for column, metric in _PIXELS.items()} for kind in ("auroc", "fpr")}
    tables = (
        _by_round(name, f"{title}: mIoU", specs, "mean_iou"),
        _last_round(f"{name}_auroc", f"{title}: AUROC against right pixels", specs, scores["auroc"]),
        _last_round(
            f"{name}_fpr", f"{title}: FPR@TPR95 against right pixels", specs, scores["fpr"], lower_is_better=True
        ),
        # No column is the best on its own: precision compares with chance, recall with precision.
        _last_round(f"{name}_rejected", f"{title}: rejected pixels", selecting, _REJECTED, lower_is_better=None),
    )
    return Suite(name, title, tables, _ROUNDS, _NOTE if name == "camvid" else _SAME_NOTE)


def camvid() -> Suite:
    """CamVid under changing weather, with object classes held out of training."""
    specs = {name: _make_spec(name, "camvid-c", _WEATHER) for name in METHODS}
    return _weather_suite("camvid", f"CamVid through changing weather, {_HELD_OUT_CLASSES}", specs)


def camvid_x10() -> Suite:
    """The same at ten times the paper's learning rates."""
    return _scaled_lr(10)


def camvid_x100() -> Suite:
    """The same at a hundred times the paper's learning rates."""
    return _scaled_lr(100)


def camvid_x1000() -> Suite:
    """The same at a thousand times the paper's learning rates."""
    return _scaled_lr(1000)


def _scaled_lr(factor: int) -> Suite:
    """Scale the learning rates: CamVid has far fewer frames than the paper's datasets, so far fewer steps."""
    title = f"CamVid at {factor} times the paper's learning rates, {_HELD_OUT_CLASSES}"
    return _weather_suite(f"camvid_x{factor}", title, _at_rates("camvid-c", _WEATHER, (factor,)))


def camvid_ablation() -> Suite:
    """Ablation of selection and mean entropy: the paper changes λ_max along with selection."""
    plain, shares = _at_rates("camvid-c", _WEATHER, (100,)), {"tent": (0.0, 0.5), "swr": (0.5, 0.2)}
    specs: dict[str, Spec] = {}
    for row, spec in plain.items():
        base, _, selection = spec.method.partition("+")
        usual, other = reversed(shares[base]) if selection else shares[base]
        specs |= {
            f"{row}, mean entropy {usual:g}": spec,
            f"{row}, mean entropy {other:g}": spec.with_options(mean_entropy=other),
        }
    title = f"CamVid at 100 times the paper's learning rates, selection and mean entropy apart, {_HELD_OUT_CLASSES}"
    table = _by_round("camvid_parts", f"{title}: mIoU", specs, "mean_iou")
    return Suite("camvid_parts", title, (table,), _ROUNDS, _SAME_NOTE)


def camvid_lr_search() -> Suite:
    """Search of the learning rate, on other frames and other corruptions than `camvid`."""
    title, specs = (
        f"CamVid's learning rates, {_HELD_OUT_CLASSES}",
        _at_rates("camvid-train-c", HELD_OUT, (1, 10, 100, 1000)),
    )
    note = (
        "Learning rates are chosen here, on training frames under corruptions that no other CamVid suite uses. "
        "They are never chosen on the frames or the weather of reported numbers."
    )
    table = _by_round("camvid_rates", f"{title}: mIoU", specs, "mean_iou", _SEARCH_ROUNDS)
    return Suite("camvid_rates", title, (table,), _SEARCH_ROUNDS, note)
