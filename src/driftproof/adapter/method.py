"""A method: one choice for each part of a test-time adaptation step."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, SupportsFloat, TypedDict, get_args

import torch
from torch import Tensor

from driftproof.after import After
from driftproof.augment import Augment
from driftproof.components import Component, Step
from driftproof.components.describe import describe_value
from driftproof.detectors import Detector
from driftproof.distributed import RankGroup
from driftproof.errors import ConfigurationError
from driftproof.gradients import Gradient
from driftproof.guards import Guard, Warn
from driftproof.losses import Loss
from driftproof.memories import Memory
from driftproof.network import LogitsAccessor, Precision
from driftproof.optimizers import MakeOptimizer
from driftproof.outputs import AfterUpdate, BeforeUpdate, Ensemble, Output, Teacher
from driftproof.regularizers import Regularizer
from driftproof.scopes import Nothing, Scope
from driftproof.scores import Unfamiliarity, make_novelty
from driftproof.selection import Selection
from driftproof.statistics import Auto, Batch, Statistics
from driftproof.teacher import EMA

__all__ = [
    "AdapterOptions",
    "AverageOver",
    "EngineName",
    "MeanEntropyOver",
    "Method",
    "Novelty",
    "OutputName",
    "Schedule",
    "check_engine_options",
    "make_method",
]

Novelty = Callable[[Step], Tensor]
Schedule = Callable[[Tensor], Tensor]
EngineName = Literal["auto", "eager", "compile", "graph"]
OutputName = Literal["before", "after", "teacher", "ensemble"]
AverageOver = Literal["selected", "batch"]
MeanEntropyOver = Literal["selected", "batch", "auto"]

_OUTPUTS = {"before": BeforeUpdate, "after": AfterUpdate, "teacher": Teacher, "ensemble": Ensemble}
_NAMED: dict[str, dict[str, Any]] = {
    "statistics": {"auto": Auto},
    "source_statistics": {"auto": Auto},
    "output": _OUTPUTS,
}
_CHOICES: dict[str, tuple[str | None, ...]] = {
    "average_over": get_args(AverageOver),
    "mean_entropy_over": get_args(MeanEntropyOver),
    "engine": get_args(EngineName),
    "precision": (None, *get_args(Precision)),
    "source_precision": (None, "bf16"),
} | {name: tuple(kinds) for name, kinds in _NAMED.items()}


class AdapterOptions(TypedDict, total=False):
    """Keywords that every method passes on to its `Adapter`, which documents them."""

    accumulate: int | Literal["auto"]
    source_statistics: Statistics | Literal["auto"] | None
    average_over: AverageOver | None
    mean_entropy_over: MeanEntropyOver
    view: Augment | None
    output: OutputName | Output
    novelty: str | Novelty | None
    guard: Guard | Sequence[Guard] | None
    logits: LogitsAccessor | None
    classifier: str | None
    seed: int
    engine: EngineName
    precision: Precision | None
    source_precision: Literal["bf16"] | None
    channels_last: bool
    process_group: RankGroup


@dataclass(frozen=True, kw_only=True, repr=False)
class Method:
    """The choices of a method, validated; `Adapter` documents each. It holds no tensors but its components' own."""

    scope: Scope
    statistics: Statistics
    source_statistics: Statistics | None = None
    loss: Loss | None = None
    select: Selection | None = None
    mean_entropy: float = 0.0
    regularizer: Regularizer | None = None
    gradient: Gradient | None = None
    optimizer: MakeOptimizer | None = None
    lr_schedule: Schedule | None = None
    accumulate: int | Literal["auto"] = 1
    memory: Memory | None = None
    teacher: EMA | None = None
    detector: Detector | None = None
    view: Augment | None = None
    after: tuple[After, ...] = ()
    output: Output | None = None
    novelty: Novelty = field(default_factory=Unfamiliarity)
    average_over: AverageOver = "selected"
    mean_entropy_over: MeanEntropyOver = "batch"
    guards: tuple[Guard, ...] = ()

    def __post_init__(self) -> None:
        _check_choice("average_over", self.average_over)
        _check_choice("mean_entropy_over", self.mean_entropy_over)
        for name, kind in _KINDS.items():
            values = self.after if name == "after" else (getattr(self, name),)
            for value in values:
                _check_kind(name, value, kind, required=name in ("scope", "statistics"))
        for name in ("optimizer", "lr_schedule", "view", "novelty"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ConfigurationError(f"Expected `{name}` to be a function, but got {value!r}.")
        if isinstance(self.optimizer, torch.optim.Optimizer):
            raise ConfigurationError(
                "Expected `optimizer` to be a function that makes an optimizer from parameters, such as "
                "`functools.partial(torch.optim.Adam, lr=1e-3)`, but got an optimizer."
            )
        is_count = isinstance(self.accumulate, int) and not isinstance(self.accumulate, bool) and self.accumulate >= 1
        if not is_count and self.accumulate != "auto":
            raise ConfigurationError(
                f'Expected `accumulate` to be a number of batches ≥ 1 or "auto", but got {self.accumulate!r}.'
            )
        for guard in self.guards:
            _check_kind("guard", guard, Guard, required=True)
        is_number = isinstance(self.mean_entropy, SupportsFloat) and not isinstance(self.mean_entropy, bool)
        if not is_number or not math.isfinite(self.mean_entropy):
            raise ConfigurationError(f"Expected `mean_entropy` to be a finite number, but got {self.mean_entropy!r}.")
        object.__setattr__(self, "mean_entropy", float(self.mean_entropy))  # 0 and numpy's 0.0 are the same method
        if self.detector is not None and self.memory is not None:
            raise ConfigurationError("Expected no `detector` with a `memory`: it judges batches, not what is recalled.")
        self._check_learning()

    def _check_learning(self) -> None:
        if self.learns:
            if self.loss is None or self.optimizer is None:
                raise ConfigurationError(f"Expected a `loss` and an `optimizer`, since {self.scope} trains parameters.")
            return
        given = [name for name in _LEARNING if getattr(self, name) not in (None, (), 0.0)]
        if given:
            raise ConfigurationError(
                f"Expected no {', '.join(f'`{name}`' for name in given)} with {self.scope}: nothing learns. "
                "Choose another `scope`, such as `norm_affine()`."
            )

    @property
    def learns(self) -> bool:
        """Whether any parameter is trained."""
        return not isinstance(self.scope, Nothing)

    def accumulate_for(self, images: int) -> int:
        """The number of batches of so many images that make one step."""
        return self.accumulate if isinstance(self.accumulate, int) else math.ceil(_IMAGES_PER_STEP / max(1, images))

    @cached_property
    def components(self) -> dict[str, Component]:
        """The components by the names of their choices; several `after` are numbered."""
        named: dict[str, Any] = {name: getattr(self, name) for name in _COMPONENTS}
        named |= {f"after_{number}": component for number, component in enumerate(self.after)}
        named |= {"novelty": self.novelty} if isinstance(self.novelty, Component) else {}
        return {name: component for name, component in named.items() if component is not None}

    @property
    def uses_batch_statistics(self) -> bool:
        """Whether both networks normalize with statistics of the whole batch and nothing else."""
        rules = (self.statistics, self.source_statistics or self.statistics)
        return all(type(rule) is Batch and rule.of is None for rule in rules)

    @property
    def dynamic_reason(self) -> str | None:
        """Why a step cannot be captured in a CUDA graph, with the component's name; None if it can."""
        for component in self.components.values():
            if component.dynamic_reason is not None:
                return f"{type(component).__name__} is data-dependent: {component.dynamic_reason}"
        return None

    @property
    def prepared_values(self) -> dict[str, float]:
        """What the components found in source data, by name."""
        return {name: value for one in self.components.values() for name, value in one.prepared_values.items()}

    def describe(self, *, lr: float | None = None) -> dict[str, str]:
        """The choices as text, with a learning rate if it is given; two methods that agree here learn the same."""
        optimizer = "None" if self.optimizer is None else _describe_optimizer(self.optimizer, lr)
        described = {name: describe_value(getattr(self, name)) for name in _DESCRIBED}
        waits = f"{_IMAGES_PER_STEP} images" if self.accumulate == "auto" else f"{self.accumulate} batches"
        described["optimizer"] = optimizer if self.accumulate == 1 else f"{optimizer}, every {waits}"
        described["output"] = next(
            (name for name, kind in _OUTPUTS.items() if repr(self.output) == repr(kind())), describe_value(self.output)
        )
        optional = {name: getattr(self, name) for name in _OPTIONAL}
        return described | {name: describe_value(value) for name, value in optional.items() if value not in (None, ())}


_KINDS: dict[str, type] = {
    "scope": Scope,
    "statistics": Statistics,
    "source_statistics": Statistics,
    "loss": Loss,
    "select": Selection,
    "regularizer": Regularizer,
    "gradient": Gradient,
    "memory": Memory,
    "teacher": EMA,
    "detector": Detector,
    "after": After,
    "output": Output,
}
_COMPONENTS = tuple(name for name, kind in _KINDS.items() if issubclass(kind, Component) and name != "after")
_DESCRIBED = (
    "scope", "statistics", "source_statistics", "loss", "select", "mean_entropy", "regularizer", "average_over",
    "mean_entropy_over",
)  # fmt: skip
_OPTIONAL = ("gradient", "lr_schedule", "memory", "teacher", "detector", "view", "after")
_IMAGES_PER_STEP = 64
_LEARNING = ("loss", "select", "regularizer", "gradient", "optimizer", "lr_schedule", "memory", "after", "mean_entropy")


def make_method(*, guard: Guard | Sequence[Guard] | None, **choices: Any) -> Method:  # noqa: ANN401  # of many types
    """The method that an adapter's keywords describe.

    Names and None are replaced by what they stand for. Components are copied, since they remember a stream.
    """
    for name, kinds in _NAMED.items():
        if isinstance(choices[name], str):
            _check_choice(name, choices[name])
            choices[name] = kinds[choices[name]]()
    novelty = choices["novelty"]
    if novelty is None or isinstance(novelty, str):
        choices["novelty"] = Unfamiliarity() if novelty is None else make_novelty(novelty)
    defaults = choices["select"] if isinstance(choices["select"], Selection) else Selection
    for name in ("mean_entropy", "average_over"):
        if choices[name] is None:
            choices[name] = getattr(defaults, name)
    after, guards = choices["after"], Warn() if guard is None else guard
    choices["after"] = (after,) if isinstance(after, After) else tuple(after)
    choices["guards"] = tuple(guards) if isinstance(guards, list | tuple) else (guards,)
    # A component that is passed for two choices stays one, but each network has statistics of its own.
    memo: dict[int, Any] = {}
    for name in (*_COMPONENTS, "after", "guards"):
        choices[name] = copy.deepcopy(choices[name], {} if name.endswith("statistics") else memo)
    if isinstance(novelty, Component):
        choices["novelty"] = copy.deepcopy(novelty)
    return Method(**choices)


def check_engine_options(**chosen: str | None) -> None:
    """Refuse an `engine`, `precision` or `source_precision` that does not exist."""
    for name, value in chosen.items():
        _check_choice(name, value)


def _check_choice(name: str, value: object) -> None:
    if value not in _CHOICES[name]:
        allowed = ", ".join(filter(None, _CHOICES[name]))
        raise ConfigurationError(f"Expected `{name}` to be one of {allowed}, but got {value!r}.")


def _check_kind(name: str, value: object, kind: type, *, required: bool) -> None:
    """Refuse an object of another kind: most often a class in place of an instance."""
    if isinstance(value, kind) or (value is None and not required):
        return
    hint = f" Call it: `{value.__name__}(...)`." if callable(value) and hasattr(value, "__name__") else ""
    raise ConfigurationError(f"Expected `{name}` to be of type {kind.__name__}, but got {value!r}.{hint}")


def _describe_optimizer(make: MakeOptimizer, lr: float | None) -> str:
    """The optimizer by its class and settings; the learning rate may be changed midway, and is shown if given."""
    function, keywords = getattr(make, "func", make), dict(getattr(make, "keywords", {}))
    while hasattr(function, "func"):  # nested partials
        function, keywords = function.func, {**function.keywords, **keywords}
    settings = [] if lr is None or not isinstance(function, type) else [f"lr={lr:g}"]
    settings += [f"{name}={describe_value(value)}" for name, value in keywords.items() if name != "lr"]
    name = describe_value(function)
    return f"{name}({', '.join(settings)})" if settings else name
