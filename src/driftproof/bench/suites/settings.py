"""The paper's settings: which hyper-parameters go with which method on which images."""

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

_RATES: dict[str, dict[str, Option]] = {
    "gce": {"lr": 1e-3, "q": 0.8},
    "conjugate": {"lr": 1e-3, "epsilon": 6.0},
    "ent": {"lr": 1e-4},
    "tent": {"lr": 1e-3},
    "eata": {"lr": 1e-3, "fisher_samples": 2000, "fisher_batch_size": 200},
    "swr": {"lr": 1e-4, "strength": 250.0},
    "cotta": {"lr": 1e-3, "threshold": 0.92},
}

_ON_SETS: dict[tuple[str, str], dict[str, Option]] = {
    ("eata", "cifar10-c"): {"fisher": 1.0, "redundancy": 0.4},
    ("eata", "cifar100-c"): {"fisher": 1.0, "redundancy": 0.4},
    ("eata", "tiny-imagenet-c"): {"fisher": 2000.0, "redundancy": 0.05},
    ("tent", "imagenet-c"): {"lr": 2.5e-4, "optimizer": "sgd"},
    ("swr", "imagenet-c"): {"lr": 2.5e-4, "optimizer": "sgd", "anchor": "source"},
    ("cotta", "cifar100-c"): {"threshold": 0.72},
}
"""What differs from the rates above on some sets."""

FILTER_OPTIONS = ("redundancy",)
"""Options of a method's own filter, which a selection replaces."""


_LOOKED_INTO = ("cifar10-c", "cifar100-c")
_INSIGHTS = ("scores", "crowd", "histograms")


def options_for(method: str, images: str) -> dict[str, Option]:
    """The paper's hyper-parameters of a method on a set; where the paper is silent, the documented choice.

    Examples:
        >>> options_for("eata+crowd", "cifar10-c")["fisher"]
        1.0
    """
    base, _, selection = method.partition("+")
    chosen = _RATES.get(base, {}) | _ON_SETS.get((base, images), {})
    if not selection:
        return dict(chosen)
    kept = {key: value for key, value in chosen.items() if key not in FILTER_OPTIONS}
    return kept | {"mean_entropy": 0.5 if selection == "crowd" else 0.0}


def make_spec(method: str, images: str, model: str, *, unknown: str | None = None, batch_size: int = 200) -> Spec:
    """A method on the fifteen corruptions at severity 5, with the paper's hyper-parameters.

    Plain TENT is what the paper looks into: among unknown images, and on CIFAR without them, novelty scores and what
    its selection would have made of the samples are measured as well.
    """
    spec = Spec(method, images, model, unknown, domains=CORRUPTIONS, batch_size=batch_size)
    spec = spec.with_options(**options_for(method, images))
    if method != "tent" or (unknown is None and images not in _LOOKED_INTO):
        return spec
    return replace(spec.with_options(novelty="confidence_difference"), measures=(*spec.measures, *_INSIGHTS))
