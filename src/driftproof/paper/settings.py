"""The paper's hyper-parameters of each method on each dataset."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from driftproof.bench.spec import Option, Spec
from driftproof.corruptions import CORRUPTIONS
from driftproof.data.scenes.driving import PADDED
from driftproof.paper.printed import read_json

__all__ = ["DEFINITIONS", "FILTER_OPTIONS", "make_spec", "options_for"]

DEFINITIONS: dict[str, Any] = read_json("suites.json")
"""The paper's options, datasets and networks, and the suites."""

FILTER_OPTIONS = ("redundancy",)
"""Options of a method's own sample filter, which a selection replaces."""

_SCENES = ("driving", "camvid")
_ANALYZED = ("cifar10-c", "cifar100-c")
_ANALYSIS_METRICS = ("scores", "crowd", "histograms")


def options_for(method: str, images: str, domains: Collection[str] = ()) -> dict[str, Option]:
    """Return the paper's hyper-parameters of a method on a dataset, or our documented choice.

    Examples:
        >>> options_for("eata+crowd", "cifar10-c")["fisher"]
        1.0
    """
    known, (base, _, selection) = DEFINITIONS["options"], method.partition("+")
    if "," in method:  # several methods, of which the costs are compared
        return {}
    if images.startswith(_SCENES):
        options = known.get(f"{method} on scenes", {})
        framed = "lr" in options and not PADDED.isdisjoint(domains)
        return {**options, **({"framed": True} if framed else {})}  # padding is excluded from the loss
    options = {**known.get(base, {}), **known.get(f"{base} on {images}", {})}
    if not selection:
        return options
    options = {key: value for key, value in options.items() if key not in FILTER_OPTIONS}
    return {**options, "mean_entropy": 0.5 if selection == "crowd" else 0.0}


def make_spec(method: str, images: str, model: str = "", *, analyzed: bool = True, **fields: Any) -> Spec:  # noqa: ANN401
    """Return a method with the paper's hyper-parameters, on fifteen corruptions at severity 5 or on driving scenes.

    Args:
        method: The method.
        images: Streamed dataset.
        model: Network; the paper's if empty.
        analyzed: Whether plain TENT gets more metrics, as the paper analyzes it: novelty scores, histograms, and the
            quality of the paper's selection, on open streams and on CIFAR also on closed ones.
        fields: Further fields of the spec.
    """
    is_scenes = images.startswith(_SCENES)
    usual = {"batch_size": 2, "measures": ("iou", "selection")} if is_scenes else {"domains": CORRUPTIONS}
    network = model or DEFINITIONS["networks"]["scenes" if is_scenes else images]
    spec = Spec(method, images, network, **{**usual, **fields})
    spec = spec.with_options(**options_for(method, images, spec.domains))
    if is_scenes or not analyzed or method != "tent" or (spec.unknown is None and images not in _ANALYZED):
        return spec
    return replace(spec.with_options(novelty="confidence_difference"), measures=(*spec.measures, *_ANALYSIS_METRICS))
