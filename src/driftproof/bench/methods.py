"""Methods by the names that the command line and result files use."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial, reduce
from operator import and_
from typing import Any, get_args

import torch
from torch import Tensor, nn

from driftproof import methods
from driftproof.adapter import Adapter
from driftproof.bench.oracle import Oracle
from driftproof.bench.spec import Option
from driftproof.components import Step
from driftproof.errors import ConfigurationError, DriftproofError
from driftproof.selection import ConfidenceAbove, ConfidenceDifference, EntropyBelow, IgnorePadding, Selection
from driftproof.statistics import TTN, Batch, Blend, Source, Statistics
from driftproof.validation import check_choice

__all__ = ["METHODS", "SELECTIONS", "accepted_options", "build_method", "parse_method"]

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
    "ttn": methods.ttn,
}

SELECTIONS: dict[str, Callable[..., Selection]] = {
    "crowd": ConfidenceDifference,
    "confident": partial(ConfidenceAbove, 0.9),
    "certain": EntropyBelow,
}
"""What follows the plus sign: the paper's selection, and the static thresholds it is compared with."""


_LEFT_OUT: dict[str, Callable[[], Selection]] = {"oracle": Oracle, "framed": IgnorePadding}
"""Switches that leave more samples out than the selection does."""


def _confidence_difference(step: Step) -> Tensor:
    return -step.confidence_change


_STATISTICS = {
    "source": Source(),
    "batch": Batch(),
    "ttn": TTN(),
    # On scenes, of which a batch holds a few: fewer images for the prior, fewer passes, and statistics that go along.
    "online ttn": TTN(momentum=0.1, prior_batches=100, epochs=3, batch_size=4),
    "online blend": Blend(0.5, momentum=0.1),
}

_MEANINGS: dict[str, dict[str, Any]] = {
    "optimizer": {"adam": torch.optim.Adam, "sgd": partial(torch.optim.SGD, momentum=0.9)},
    "statistics": _STATISTICS,
    "source_statistics": _STATISTICS,
    "novelty": {"confidence_difference": _confidence_difference},
}
"""Options that are objects in Python and words in a spec."""

_WITHOUT_WORDS = {"select", "scope", "views", "scales", "augment"}
"""Keywords that take objects which no word stands for."""


def build_method(name: str, model: nn.Module, options: Mapping[str, Option | Statistics]) -> Adapter:
    """An adapter from words.

    Args:
        name: A method, with `+crowd` for the paper's selection.
        model: The trained model.
        options: Keywords of the method and of its selection; objects are given by their names, but statistics that have
            been prepared as they are.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> build_method("tent+crowd", model, {"lr": 1e-4, "margin": -0.2}).select
        ConfidenceDifference(margin=-0.2, on='softmax')
    """
    base, selection = parse_method(name)
    method, own = METHODS[base], _options_of_selection(selection)
    for key in options:
        check_choice(f"option of {name}", key, accepted_options(name))
    chosen = {key: _meaning(key, value) for key, value in options.items()}
    selections = [make() for key, make in _LEFT_OUT.items() if chosen.pop(key, False)]
    if selections and base not in _selecting():
        raise ConfigurationError(f"Expected a method that learns from a selection to be told more, but got {name}.")
    if selection:
        selections.insert(0, SELECTIONS[selection](**{key: chosen.pop(key) for key in own if key in chosen}))
    if selections:
        chosen["select"] = reduce(and_, selections)
    try:
        return method(model, **chosen)
    except DriftproofError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"Expected options that {name} understands, but {error}.") from error


def accepted_options(name: str) -> list[str]:
    """The names of the options that a method and its selection take.

    Examples:
        >>> "margin" in accepted_options("tent+crowd"), "lr" in accepted_options("source")
        (True, False)
    """
    base, selection = parse_method(name)
    return [*_options_of_selection(selection), *_keywords(METHODS[base])]


def parse_method(name: str) -> tuple[str, str | None]:
    """The method and the selection that a name stands for; anything else is answered with the nearest names."""
    combined = [f"{base}+{selection}" for base in _selecting() for selection in SELECTIONS]
    base, _, selection = check_choice("method", name, [*METHODS, *combined]).partition("+")
    return base, selection or None


def _options_of_selection(selection: str | None) -> list[str]:
    return list(inspect.signature(SELECTIONS[selection]).parameters) if selection else []


def _selecting() -> list[str]:
    return [name for name, method in METHODS.items() if "select" in inspect.signature(method).parameters]


def _keywords(method: Callable[..., Adapter]) -> list[str]:
    parameters = inspect.signature(method).parameters.values()
    own = {parameter.name for parameter in parameters if parameter.kind == parameter.KEYWORD_ONLY}
    (handed_on,) = (parameter.annotation for parameter in parameters if parameter.kind == parameter.VAR_KEYWORD)
    (settings,) = get_args(handed_on)
    return sorted((own | settings.__optional_keys__ | _LEFT_OUT.keys()) - _WITHOUT_WORDS)


def _meaning(key: str, value: Option | Statistics) -> Any:  # noqa: ANN401  # whatever the method takes
    if key not in _MEANINGS or value is None or isinstance(value, Statistics):
        return value
    return _MEANINGS[key][check_choice(key, value, _MEANINGS[key])]
