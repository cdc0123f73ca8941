"""The paper's hyper-parameters of each method on each dataset."""

from dataclasses import replace

from driftproof.bench.spec import Option, Spec
from driftproof.corruptions import CORRUPTIONS

__all__ = ["FILTER_OPTIONS", "PAPER_NAMES", "make_spec", "options_for"]

PAPER_NAMES = {
    "source": "Source",
    "bn_adapt": "BN Adapt",
    "gce": "GCE",
    "conjugate": "Conjugate",
    "ent": "ENT",
    "ent+crowd": "ENT + Ours",
    "tent": "TENT",
    "tent+crowd": "TENT + Ours",
    "eata": "EATA",
    "eata+crowd": "EATA + Ours",
    "swr": "SWR",
    "swr+crowd": "SWR + Ours",
    "cotta": "CoTTA",
    "ttn": "TTN",
}

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
"""What differs from the defaults on some datasets."""

FILTER_OPTIONS = ("redundancy",)
"""Options of a method's own sample filter, which a selection replaces."""


_ANALYZED = ("cifar10-c", "cifar100-c")
_ANALYSIS_METRICS = ("scores", "crowd", "histograms")


def options_for(method: str, images: str) -> dict[str, Option]:
    """Return the paper's hyper-parameters of a method on a dataset, or our documented choice.

    Examples:
        >>> options_for("eata+crowd", "cifar10-c")["fisher"]
        1.0
    """
    base, _, selection = method.partition("+")
    options = _DEFAULTS.get(base, {}) | _OVERRIDES.get((base, images), {})
    if not selection:
        return dict(options)
    options = {key: value for key, value in options.items() if key not in FILTER_OPTIONS}
    return options | {"mean_entropy": 0.5 if selection == "crowd" else 0.0}


def make_spec(method: str, images: str, model: str, *, unknown: str | None = None, batch_size: int = 200) -> Spec:
    """Return a method on the fifteen corruptions at severity 5, with the paper's hyper-parameters.

    The paper analyzes plain TENT. So on open streams, and on CIFAR also on closed ones, it gets additional metrics:
    novelty scores, histograms, and the quality of the paper's selection.
    """
    spec = Spec(method, images, model, unknown, domains=CORRUPTIONS, batch_size=batch_size)
    spec = spec.with_options(**options_for(method, images))
    if method != "tent" or (unknown is None and images not in _ANALYZED):
        return spec
    return replace(spec.with_options(novelty="confidence_difference"), measures=(*spec.measures, *_ANALYSIS_METRICS))
