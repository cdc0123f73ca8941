"""CamVid, a small set that anyone can have, through weather that changes again and again."""

from dataclasses import replace

from driftproof.bench.scenes import CLEAN
from driftproof.bench.spec import Spec
from driftproof.bench.suites.driving import METHODS, make_driving_spec
from driftproof.bench.tables import TableEntry, Suite, Table
from driftproof.corruptions import HELD_OUT

__all__ = ["camvid", "camvid_parts", "camvid_rates", "camvid_x10", "camvid_x100", "camvid_x1000"]

_WEATHER = (CLEAN, "fog", "snow", "brightness", "frost", "motion_blur")
_ROUNDS, _CHOOSING = 5, 2
_UNTAUGHT = "with pedestrians, bicyclists and signs unknown"
_TOLD = (
    "Train its model with `driftproof train deeplabv3plus_resnet50 --set camvid`. Severity 3; brightness is glare: the "
    "published corruptions know no night."
)
_LIKEWISE = "As `camvid`."


def _seen_by(method: str, images: str, domains: tuple[str, ...], factor: int = 1) -> Spec:
    spec = make_driving_spec(method, images, domains)
    # Rounded, so that ten times 1e-6 is 1e-5 to the last bit.
    rates = {key: round(factor * rate, 12) for key, rate in spec.options if key == "lr" and isinstance(rate, float)}
    return replace(spec, severity=3, measures=(*spec.measures, "pixels")).with_options(**rates)


def _at_rates(images: str, domains: tuple[str, ...], factors: tuple[int, ...]) -> dict[str, Spec]:
    """The methods that have a learning rate, at multiples of the paper's."""
    return {
        f"{method} (lr {dict(spec.options)['lr']:.0e})": spec
        for factor in factors
        for method in METHODS
        if "lr" in dict((spec := _seen_by(method, images, domains, factor)).options)
    }


def _by_round(name: str, title: str, cells: dict[str, Spec], measure: str, rounds: int = _ROUNDS) -> Table:
    entries = tuple(
        TableEntry(row, f"Round {round}", (spec,), metric=measure, round=round)
        for row, spec in cells.items()
        for round in range(1, rounds + 1)
    )
    return Table(name, title, entries, unit="%", lower_is_better=False)


_PIXELS = {
    f"{pixels.capitalize()}/By {score}": f"{measure}/{pixels}"
    for pixels in ("wrong", "unknown")
    for score, measure in (("novelty", "novelty"), ("largest probability", "msp"))
}
_REJECTED = {
    "Precision": "rejection/precision",
    "Wrong or unknown of all": "rejection/chance",
    "Recall/Wrong": "rejection/recall_wrong",
    "Recall/Unknown": "rejection/recall_unknown",
}


def _at_the_end(
    name: str, title: str, cells: dict[str, Spec], columns: dict[str, str], *, lower_is_better: bool | None = False
) -> Table:
    entries = tuple(
        TableEntry(row, column, (spec,), metric=measure, round=_ROUNDS)
        for row, spec in cells.items()
        for column, measure in columns.items()
    )
    return Table(name, title, entries, unit="%", lower_is_better=lower_is_better)


def _through_weather(name: str, title: str, cells: dict[str, Spec]) -> Suite:
    selecting = {row: spec for row, spec in cells.items() if "+" in spec.method}
    found = {kind: {column: f"{measure}/{kind}" for column, measure in _PIXELS.items()} for kind in ("auroc", "fpr")}
    tables = (
        _by_round(name, f"{title}: mIoU", cells, "mean_iou"),
        _at_the_end(f"{name}_auroc", f"{title}: AUROC against right pixels", cells, found["auroc"]),
        _at_the_end(
            f"{name}_fpr", f"{title}: FPR@TPR95 against right pixels", cells, found["fpr"], lower_is_better=True
        ),
        # One is read beside another: precision beside what chance would reach, recall beside precision.
        _at_the_end(f"{name}_rejected", f"{title}: rejected pixels", selecting, _REJECTED, lower_is_better=None),
    )
    return Suite(name, title, tables, _ROUNDS, _TOLD if name == "camvid" else _LIKEWISE)


def camvid() -> Suite:
    """CamVid through changing weather, with objects that were never taught."""
    cells = {name: _seen_by(name, "camvid-c", _WEATHER) for name in METHODS}
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


def camvid_parts() -> Suite:
    """What selection and the mean entropy do apart: the paper gives methods with selection another share of it."""
    plain, shares = _at_rates("camvid-c", _WEATHER, (100,)), {"tent": (0.0, 0.5), "swr": (0.5, 0.2)}
    cells: dict[str, Spec] = {}
    for row, spec in plain.items():
        base, _, selection = spec.method.partition("+")
        usual, other = reversed(shares[base]) if selection else shares[base]
        cells |= {
            f"{row}, mean entropy {usual:g}": spec,
            f"{row}, mean entropy {other:g}": spec.with_options(mean_entropy=other),
        }
    title = f"CamVid at 100 times the paper's learning rates, selection and mean entropy apart, {_UNTAUGHT}"
    table = _by_round("camvid_parts", f"{title}: mIoU", cells, "mean_iou")
    return Suite("camvid_parts", title, (table,), _ROUNDS, _LIKEWISE)


def camvid_rates() -> Suite:
    """Where a learning rate is chosen: on other frames than those of `camvid`, and in other conditions."""
    title, cells = f"CamVid's learning rates, {_UNTAUGHT}", _at_rates("camvid-train-c", HELD_OUT, (1, 10, 100, 1000))
    note = (
        "Rates are chosen here, on the training frames under corruptions that no other suite of CamVid uses, and never "
        "on the frames or in the weather of the numbers that are reported."
    )
    table = _by_round("camvid_rates", f"{title}: mIoU", cells, "mean_iou", _CHOOSING)
    return Suite("camvid_rates", title, (table,), _CHOOSING, note)
