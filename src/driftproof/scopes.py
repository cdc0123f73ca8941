"""Which parameters move.

A scope is chosen by the caller, not by the model: whether a parameter had `requires_grad` set when the model was
wrapped plays no role (models loaded for inference often have it switched off throughout). Leave layers out with
`without`.
"""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import torch
from torch import nn
from typing_extensions import Self

from driftproof.errors import ModelError
from driftproof.norms import norm_layers

__all__ = ["Everything", "Named", "NormAffine", "Nothing", "Scope", "everything", "named", "norm_affine", "nothing"]

_MANY = 6
"""Names of parameters that an error has room for."""


@dataclass(frozen=True, repr=False)
class Scope:
    """Which parameters of a model move.

    Args:
        excluded: Name patterns (`*` and `?` as in file names) of parameters that stay where they are.
    """

    excluded: tuple[str, ...] = ()

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters that move, by name; a tied parameter appears once."""
        staying = _matching(model, self.excluded)
        chosen = {
            name: parameter
            for name, parameter in self._candidates(model).items()
            if torch.is_floating_point(parameter) and id(parameter) not in staying
        }
        if not chosen:
            raise ModelError(
                f"{self} finds no parameter in {type(model).__name__}, so nothing could adapt. "
                "`driftproof.check(model)` lists what remains possible."
            )
        return chosen

    def without(self, *patterns: str) -> Self:
        """The same scope, less the parameters whose names match a pattern.

        Examples:
            >>> norm_affine().without("layer4.*")
            norm_affine().without('layer4.*')
        """
        return replace(self, excluded=(*self.excluded, *patterns))

    def __repr__(self) -> str:
        return self._own_repr() + (f".without({_quoted(self.excluded)})" if self.excluded else "")

    def _own_repr(self) -> str:
        raise NotImplementedError

    def _candidates(self, model: nn.Module) -> dict[str, nn.Parameter]:
        raise NotImplementedError


class Nothing(Scope):
    """No parameter moves; the adapter only predicts."""

    def _own_repr(self) -> str:
        return "nothing()"

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """None."""
        return {}


class NormAffine(Scope):
    """The weight and bias of every normalization layer: batch, group, instance, layer and RMS norm."""

    def _own_repr(self) -> str:
        return "norm_affine()"

    def _candidates(self, model: nn.Module) -> dict[str, nn.Parameter]:
        affine = {id(p) for _, layer in norm_layers(model) for p in layer.parameters(recurse=False)}
        return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in affine}


class Everything(Scope):
    """Every parameter, the classifier included."""

    def _own_repr(self) -> str:
        return "everything()"

    def _candidates(self, model: nn.Module) -> dict[str, nn.Parameter]:
        return dict(model.named_parameters())


@dataclass(frozen=True, repr=False)
class Named(Scope):
    """The parameters whose names match one of `patterns`."""

    patterns: tuple[str, ...] = ()

    def _own_repr(self) -> str:
        return f"named({_quoted(self.patterns)})"

    def _candidates(self, model: nn.Module) -> dict[str, nn.Parameter]:
        matching = _matching(model, self.patterns)
        return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in matching}


def nothing() -> Nothing:
    """No parameter moves."""
    return Nothing()


def norm_affine() -> NormAffine:
    """The weight and bias of every normalization layer."""
    return NormAffine()


def everything() -> Everything:
    """Every parameter, the classifier included."""
    return Everything()


def named(*patterns: str) -> Named:
    """The parameters whose names match a pattern, `*` and `?` as in file names.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        >>> list(named("1.*").parameters(model))
        ['1.weight', '1.bias']
    """
    return Named(patterns=patterns)


def _quoted(patterns: tuple[str, ...]) -> str:
    return ", ".join(repr(pattern) for pattern in patterns)


def _matching(model: nn.Module, patterns: tuple[str, ...]) -> set[int]:
    """The identities of the parameters one of whose names, a tied one has several, matches a pattern."""
    named = dict(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise ModelError(
                f"Expected {pattern!r} to name parameters of {type(model).__name__}, but it names none. "
                f"Its parameters are called {_some(list(named))}."
            )
    return {
        id(parameter) for name, parameter in named.items() if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= _MANY else f"{', '.join(names[:_MANY])} and so on"
