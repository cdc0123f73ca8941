"""Methods by name, with options that are names and numbers."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial, reduce
from operator import and_
from typing import Any, get_args

import torch
from torch import Tensor, nn

from driftproof import methods
from driftproof.adapter import Adapter
from driftproof.after import (
    AdaptiveReset,
    After,
    MomentumFilter,
    PullToSource,
    ResetEvery,
    ResetWhen,
    StochasticRestore,
)
from driftproof.augment import crop_and_flip
from driftproof.components import Step
from driftproof.errors import ConfigurationError, DriftproofError
from driftproof.guards import GUARDS, FallBack, Guard, RollBack
from driftproof.losses import COME, GCE, Entropy, Loss, SoftLikelihoodRatio
from driftproof.methods.oracle import Oracle
from driftproof.named import call_own, is_own, load_named
from driftproof.scopes import everything, norm_affine
from driftproof.scores import NOVELTY_SCORES, msp
from driftproof.selection import (
    ConfidenceAbove,
    ConfidenceDifference,
    EntropyBelow,
    IgnorePadding,
    LabelProbabilityDrop,
    Selection,
    Split,
)
from driftproof.statistics import TTN, Auto, Batch, Blend, Source, Statistics
from driftproof.validation import check_choice

__all__ = [
    "METHODS",
    "SELECTIONS",
    "Option",
    "accepted_options",
    "build_method",
    "method_names",
    "parse_method",
    "resolve_option",
]

Option = str | int | float | bool | None
"""What an option may be where it is written down: on the command line and in result files."""

METHODS: dict[str, Callable[..., Adapter]] = {
    "source": methods.source,
    "bn_adapt": methods.bn_adapt,
    "gce": methods.gce,
    "conjugate": methods.conjugate,
    "ent": methods.ent,
    "tent": methods.tent,
    "eata": methods.eata,
    "swr": methods.swr,
    "cotta": methods.cotta,
    "paf_kip": methods.paf_kip,
    "sentinel": methods.sentinel,
    "ttn": methods.ttn,
    "norm_ema": methods.norm_ema,
    "rotta": methods.rotta,
    "sotta": methods.sotta,
    "stamp": methods.stamp,
    "adapt": methods.adapt,
    "lame": methods.lame,
    "memo": methods.memo,
    "t3a": methods.t3a,
    "ttaug": methods.ttaug,
    "sar": methods.sar,
    "rdumb": methods.rdumb,
    "come": methods.come,
    "roid": methods.roid,
    "cmf": methods.cmf,
    "deyo": methods.deyo,
    "asr": methods.asr,
}

SELECTIONS: dict[str, Callable[..., Selection]] = {
    "crowd": ConfidenceDifference,
    "confident": partial(ConfidenceAbove, 0.9),
    "certain": EntropyBelow,
    "deyo": LabelProbabilityDrop,
    "unient": Split,
    "unient_plus": partial(Split, soft=True),
}
"""Names after the plus sign: the paper's selection, the static thresholds it is compared with, and others."""


_EXTRA_SELECTIONS: dict[str, Callable[[], Selection]] = {"oracle": Oracle, "framed": IgnorePadding}
"""Boolean options that add another selection to the method's own."""


def _paper_novelty(step: Step) -> Tensor:
    """The confidence difference where the method compares with θ_o; else 1 − the largest probability."""
    return 0 - step.confidence_change if step.used_source else msp(step.logits.detach())


_STATISTICS = {
    "auto": Auto(),
    "source": Source(),
    "batch": Batch(),
    "ttn": TTN(),
    # For scenes, with few images in a batch: shorter preparation, and running statistics.
    "online ttn": TTN(momentum=0.1, prior_batches=100, epochs=3, batch_size=4),
    "online blend": Blend(0.5, momentum=0.1),
}

_VIEWS = {"none": None, "crop": crop_and_flip, "crop each image": partial(crop_and_flip, per_image=True)}

_GUARDS: dict[str, tuple[Guard, ...]] = {
    "none": (),
    "fall_back+roll_back": (FallBack(), RollBack()),
} | {name: (kind(),) for name, kind in GUARDS.items()}

_AFTER: dict[str, After] = {
    "reset every 100": ResetEvery(100),
    "reset every 1000": ResetEvery(1000),
    "reset when collapsed": ResetWhen(),
    "adaptive reset": AdaptiveReset(),
    "pull to source": PullToSource(),
    "momentum filter": MomentumFilter(),
    "stochastic restore": StochasticRestore(),
}

_LOSSES: dict[str, Loss] = {
    "entropy": Entropy(),
    "come": COME(),
    "gce": GCE(),
    "likelihood ratio": SoftLikelihoodRatio(),
}

_NAMED_OBJECTS: dict[str, dict[str, Any]] = {
    "optimizer": {"adam": torch.optim.Adam, "sgd": partial(torch.optim.SGD, momentum=0.9)},
    "statistics": _STATISTICS,
    "source_statistics": _STATISTICS,
    "guard": _GUARDS,
    "after": _AFTER,
    "loss": _LOSSES,
    "view": _VIEWS,
    "scope": {"normalization": norm_affine(), "everything": everything()},
    "novelty": {"default": None, "paper": _paper_novelty, **{name: name for name in NOVELTY_SCORES}},
}
"""Options that are objects in Python and names in a spec."""

_RUN_OPTIONS = ("seed", "engine", "precision", "channels_last", "guard")
"""Keywords that every run passes to its method; a function of the user's gets those it takes."""

_NOT_NAMEABLE = {"select", "detector", "views", "scales", "augment"}
"""Keywords whose values have no names, so a spec cannot set them."""


def build_method(
    name: str, model: nn.Module, options: Mapping[str, Option | Statistics | tuple[Guard, ...]]
) -> Adapter:
    """Build an adapter from names.

    Args:
        name: A method, such as `tent`; `tent+crowd` adds the paper's selection, `tent+crowd+unient` two. Or a function
            of yours, such as `my_package.methods:cautious`, that takes the model and keywords and returns an adapter.
        model: The trained model.
        options: Keywords of the method and of its selections. Objects are given by name; guards, and statistics that
            are already prepared, may be objects.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> build_method("tent+crowd", model, {"lr": 1e-4, "margin": -0.2}).select
        ConfidenceDifference(margin=-0.2, on='softmax')
    """
    if is_own(name):
        return _build_own(name, model, options)
    base, names = parse_method(name)
    for key in options:
        check_choice(f"option of {name}", key, accepted_options(name))
    keywords = {key: resolve_option(key, value) for key, value in options.items()}
    extra = [make() for key, make in _EXTRA_SELECTIONS.items() if keywords.pop(key, False)]
    if extra and base not in _methods_with_selection():
        raise ConfigurationError(
            f"Expected a method that takes a selection for {' and '.join(_EXTRA_SELECTIONS)}, but got {name}."
        )
    own = {each: {key: keywords.pop(key) for key in _selection_options(each) if key in keywords} for each in names}
    selections = [*(SELECTIONS[each](**chosen) for each, chosen in own.items()), *extra]
    if selections:
        keywords["select"] = reduce(and_, selections)
    try:
        return METHODS[base](model, **keywords)
    except DriftproofError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"Expected options that {name} understands, but {error}.") from error


def _build_own(name: str, model: nn.Module, options: Mapping[str, Any]) -> Adapter:
    """Build an adapter with the user's function, which need not take the keywords that every run has."""
    function = load_named(name, what="the method")
    parameters = inspect.signature(function).parameters.values() if callable(function) else ()
    named = {parameter.name for parameter in parameters}
    takes_any = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters)
    for key in options:
        if not takes_any and key not in _RUN_OPTIONS:
            check_choice(f"option of {name}", key, sorted(named))
    keywords = {
        key: value if key in named else resolve_option(key, value)
        for key, value in options.items()
        if takes_any or key in named
    }
    adapter = call_own(f"calling {name}", lambda: function(model, **keywords), ConfigurationError)
    if not isinstance(adapter, Adapter):
        raise ConfigurationError(
            f"Expected {name} to return a driftproof.Adapter, but it returned a {type(adapter).__name__}."
        )
    return adapter


def accepted_options(name: str) -> list[str]:
    """List the options that a method and its selections take.

    Examples:
        >>> "margin" in accepted_options("tent+crowd"), "lr" in accepted_options("source")
        (True, False)
    """
    base, selections = parse_method(name)
    return [*(key for each in selections for key in _selection_options(each)), *_keywords(METHODS[base])]


def parse_method(name: str) -> tuple[str, tuple[str, ...]]:
    """Split a name into method and selections; an unknown name raises an error with the nearest names.

    Examples:
        >>> parse_method("tent+crowd+unient")
        ('tent', ('crowd', 'unient'))
    """
    if is_own(name):
        return name, ()
    base, *selections = name.split("+")
    for each in [f"{base}+{selection}" for selection in selections] if len(selections) > 1 else [name]:
        check_choice("method", each, method_names())
    if len(set(selections)) < len(selections):
        raise ConfigurationError(f"Expected each selection once, but got {name}.")
    return base, tuple(selections)


def method_names() -> list[str]:
    """List the library's methods, alone and with each selection."""
    pairs = ((base, selection) for base in _methods_with_selection() for selection in SELECTIONS)
    return [*METHODS, *(f"{base}+{selection}" for base, selection in pairs if base != selection)]


def _selection_options(selection: str) -> list[str]:
    return [key for key in inspect.signature(SELECTIONS[selection]).parameters if key not in _NOT_NAMEABLE]


def _methods_with_selection() -> list[str]:
    return [name for name, method in METHODS.items() if "select" in inspect.signature(method).parameters]


def _keywords(method: Callable[..., Adapter]) -> list[str]:
    parameters = inspect.signature(method).parameters.values()
    own = {parameter.name for parameter in parameters if parameter.kind == parameter.KEYWORD_ONLY}
    (forwarded,) = (parameter.annotation for parameter in parameters if parameter.kind == parameter.VAR_KEYWORD)
    (settings,) = get_args(forwarded)
    return sorted((own | settings.__optional_keys__ | _EXTRA_SELECTIONS.keys()) - _NOT_NAMEABLE)


def resolve_option(key: str, value: Option | Statistics | tuple[Guard, ...]) -> Any:  # noqa: ANN401  # as methods take it
    """Return the object that an option names; anything else is returned as it is."""
    if key not in _NAMED_OBJECTS or value is None or isinstance(value, Statistics | tuple):
        return value
    return _NAMED_OBJECTS[key][check_choice(key, value, _NAMED_OBJECTS[key])]
