"""Scopes: which parameters of a model are trained.

Only the scope decides. `requires_grad` of the given model is ignored, because models loaded for inference often have it
switched off throughout. Exclude parameters with `without`.
"""

import math
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import torch
from torch import nn
from typing_extensions import Self

from driftproof.errors import ConfigurationError, ModelError
from driftproof.norms import norm_layers

__all__ = ["Everything", "Named", "NormAffine", "Nothing", "Scope", "everything", "named", "norm_affine", "nothing"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_MAX_LISTED = 6
"""Most parameter names that an error message lists."""


@dataclass(frozen=True, repr=False)
class Scope:
    """Selects the parameters of a model that are trained.

    Args:
        excluded: Name patterns (with `*` and `?`) of parameters to leave out.
    """

    excluded: tuple[str, ...] = ()

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return the trained parameters by name; a tied parameter appears once."""
        excluded = _match_ids(model, self.excluded)
        selected = {
            name: parameter
            for name, parameter in self._candidates(model).items()
            if torch.is_floating_point(parameter) and id(parameter) not in excluded
        }
        if not selected:
            raise ModelError(
                f"Expected {self} to select parameters of {type(model).__name__}, but it selects none. "
                "`driftproof.check(model)` lists the methods that still work."
            )
        return selected

    def without(self, *patterns: str) -> Self:
        """Return this scope without the parameters whose names match a pattern.

        Examples:
            >>> norm_affine().without("layer4.*")
            norm_affine().without('layer4.*')
        """
        return replace(self, excluded=(*self.excluded, *patterns))

    def __repr__(self) -> str:
        return self._own_repr() + (f".without({_format_patterns(self.excluded)})" if self.excluded else "")

    def _own_repr(self) -> str:
        raise NotImplementedError

    def _candidates(self, model: nn.Module) -> dict[str, nn.Parameter]:
        raise NotImplementedError


class Nothing(Scope):
    """Selects no parameter; the adapter only predicts."""

    def _own_repr(self) -> str:
        return "nothing()"

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return an empty dict."""
        return {}


@dataclass(frozen=True, repr=False)
class NormAffine(Scope):
    """Selects weight and bias of all batch, group, instance, layer and RMS norms, and weights of early convolutions.

    Args:
        convolutions: The share of the convolutions, from the first one on, whose weights are trained too.
    """

    convolutions: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.convolutions <= 1:
            raise ConfigurationError(f"Expected `convolutions` to be in 0..1, but got {self.convolutions}.")

    def _own_repr(self) -> str:
        return f"norm_affine({f'convolutions={self.convolutions:.3g}' if self.convolutions else ''})"

    def _candidates(self, model: nn.Module) -> dict[str, nn.Parameter]:
        chosen = {id(p) for _, layer in norm_layers(model) for p in layer.parameters(recurse=False)}
        convolutions = [layer.weight for layer in model.modules() if isinstance(layer, _CONVOLUTIONS)]
        chosen |= {id(weight) for weight in convolutions[: math.floor(self.convolutions * len(convolutions) + 1e-9)]}
        return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in chosen}


class Everything(Scope):
    """Selects every parameter, including the classifier."""

    def _own_repr(self) -> str:
        return "everything()"

    def _candidates(self, model: nn.Module) -> dict[str, nn.Parameter]:
        return dict(model.named_parameters())


@dataclass(frozen=True, repr=False)
class Named(Scope):
    """Selects the parameters whose names match one of `patterns`."""

    patterns: tuple[str, ...] = ()

    def _own_repr(self) -> str:
        return f"named({_format_patterns(self.patterns)})"

    def _candidates(self, model: nn.Module) -> dict[str, nn.Parameter]:
        matching = _match_ids(model, self.patterns)
        return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in matching}


def nothing() -> Nothing:
    """Select no parameter."""
    return Nothing()


def norm_affine(convolutions: float = 0.0) -> NormAffine:
    """Select the weight and bias of every normalization layer.

    Args:
        convolutions: The share of the convolutions, from the first one on, whose weights are trained too.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3))
        >>> list(norm_affine(convolutions=1 / 2).parameters(model))
        ['0.weight', '1.weight', '1.bias']
    """
    return NormAffine(convolutions=convolutions)


def everything() -> Everything:
    """Select every parameter, including the classifier."""
    return Everything()


def named(*patterns: str) -> Named:
    """Select the parameters whose names match a pattern (with `*` and `?`).

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        >>> list(named("1.*").parameters(model))
        ['1.weight', '1.bias']
    """
    return Named(patterns=patterns)


def _format_patterns(patterns: tuple[str, ...]) -> str:
    return ", ".join(repr(pattern) for pattern in patterns)


def _match_ids(model: nn.Module, patterns: tuple[str, ...]) -> set[int]:
    """Return the ids of the matching parameters; a tied parameter matches by any of its names."""
    named = dict(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise ModelError(
                f"Expected {pattern!r} to match parameters of {type(model).__name__}, but it matches none. "
                f"Its parameters are {_format_names(list(named))}."
            )
    return {
        id(parameter) for name, parameter in named.items() if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def _format_names(names: list[str]) -> str:
    listed = ", ".join(names[:_MAX_LISTED])
    return listed if len(names) <= _MAX_LISTED else f"{listed} and {len(names) - _MAX_LISTED} more"
