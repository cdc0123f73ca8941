"""The paper's hyper-parameters of each method on each dataset."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from driftproof.bench.spec import Option, Spec
from driftproof.corruptions import CORRUPTIONS
from driftproof.data.scenes.driving import PADDED

__all__ = ["FILTER_OPTIONS", "UNKNOWN", "make_spec", "options_for"]

_DEFAULTS: dict[str, dict[str, Option]] = {
    "gce": {"lr": 1e-3, "q": 0.8},
    "conjugate": {"lr": 1e-3, "epsilon": 6.0},
    "ent": {"lr": 1e-4},
    "tent": {"lr": 1e-3},
    "eata": {"lr": 1e-3, "fisher_samples": 2000, "fisher_batch_size": 200},
    "swr": {"lr": 1e-4, "strength": 250.0},
    "cotta": {"lr": 1e-3, "threshold": 0.92},
}
_OVERRIDES: dict[tuple[str, str], dict[str, Option]] = {
    ("eata", "cifar10-c"): {"fisher": 1.0, "redundancy": 0.4},
    ("eata", "cifar100-c"): {"fisher": 1.0, "redundancy": 0.4},
    ("eata", "tiny-imagenet-c"): {"fisher": 2000.0, "redundancy": 0.05},
    ("tent", "imagenet-c"): {"lr": 2.5e-4, "optimizer": "sgd"},
    ("swr", "imagenet-c"): {"lr": 2.5e-4, "optimizer": "sgd", "anchor": "source"},
    ("cotta", "cifar100-c"): {"threshold": 0.72},
}
_ON_SCENES: dict[str, dict[str, Option]] = {
    "ttn": {"statistics": "online ttn"},
    "tent": {"lr": 1e-6, "statistics": "online ttn"},
    "swr": {
        "lr": 1e-6, "statistics": "online ttn", "prototypes": False, "drift_samples": 400, "drift_batch_size": 2,
    },
    "cotta": {"lr": 7.5e-6, "threshold": None},
    "tent+crowd": {"lr": 1e-6, "statistics": "online ttn", "margin": -0.2, "mean_entropy": 0.5},
}  # fmt: skip
_ON_SCENES["swr+crowd"] = _ON_SCENES["swr"] | {"margin": -0.2, "mean_entropy": 0.2}
_SCENES = ("driving", "camvid")

FILTER_OPTIONS = ("redundancy",)
"""Options of a method's own sample filter, which a selection replaces."""

UNKNOWN = dict.fromkeys(("cifar10-c", "cifar100-c"), "svhn-c")
UNKNOWN |= {"tiny-imagenet-c": "imagenet-o-c-64", "imagenet-c": "imagenet-o-c-224"}
"""The dataset of unknown images for each dataset."""

_NETWORKS = {"cifar10-c": "wrn40_2", "cifar100-c": "wrn40_2", "tiny-imagenet-c": "resnet50", "imagenet-c": "resnet50"}
_ANALYZED = ("cifar10-c", "cifar100-c")
_ANALYSIS_METRICS = ("scores", "crowd", "histograms")


def options_for(method: str, images: str, domains: Collection[str] = ()) -> dict[str, Option]:
    """Return the paper's hyper-parameters of a method on a dataset, or our documented choice.

    Examples:
        >>> options_for("eata+crowd", "cifar10-c")["fisher"]
        1.0
    """
    base, _, selection = method.partition("+")
    if "," in method:  # several methods, of which the costs are compared
        return {}
    if images.startswith(_SCENES):
        framed = {"framed": True} if not PADDED.isdisjoint(domains) else {}  # padding is excluded from the loss
        options = _ON_SCENES.get(method, {})
        return options | framed if "lr" in options else dict(options)
    options = _DEFAULTS.get(base, {}) | _OVERRIDES.get((base, images), {})
    if not selection:
        return options
    options = {key: value for key, value in options.items() if key not in FILTER_OPTIONS}
    return options | {"mean_entropy": 0.5 if selection == "crowd" else 0.0}


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
    spec = Spec(method, images, model or _NETWORKS.get(images, "deeplabv3plus_resnet50"), **usual | fields)
    spec = spec.with_options(**options_for(method, images, spec.domains))
    if is_scenes or not analyzed or method != "tent" or (spec.unknown is None and images not in _ANALYZED):
        return spec
    return replace(spec.with_options(novelty="confidence_difference"), measures=(*spec.measures, *_ANALYSIS_METRICS))
