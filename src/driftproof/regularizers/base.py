"""The base class of regularizers."""

from torch import Tensor

from driftproof.components import Component, Compose, Step

__all__ = ["Regularizer", "Sum"]


class Regularizer(Component):
    """A term of the objective that holds the parameters.

    Examples:
        The smallest regularizer: weight decay towards the source.

        >>> class Decay(Regularizer):
        ...     def penalty(self, step):
        ...         pairs = zip(step.parameters, step.source_parameters)
        ...         return sum(((now - start) ** 2).sum() for now, start in pairs)
    """

    def penalty(self, step: Step) -> Tensor | None:
        """The term to add to the loss, a 0-d tensor; None where there is none."""
        return None

    def __add__(self, other: "Regularizer") -> "Sum":
        return Sum(self, other)


class Sum(Compose, Regularizer):
    """Several regularizers: their penalties add up."""

    def __init__(self, *regularizers: Regularizer) -> None:
        inner = (one.components if isinstance(one, Sum) else (one,) for one in regularizers)
        super().__init__(*(component for components in inner for component in components))

    def penalty(self, step: Step) -> Tensor | None:
        """The sum of the penalties."""
        terms = [term for one in self.components if (term := one.penalty(step)) is not None]
        return sum(terms[1:], start=terms[0]) if terms else None

    def __repr__(self) -> str:
        return " + ".join(repr(one) for one in self.components)
