"""What the regularizers have in common."""

from torch import Tensor

from driftproof.components import Component, Compose, Step

__all__ = ["Regularizer", "Sum"]


class Regularizer(Component):
    """A pull on the parameters.

    Examples:
        The barest new regularizer: weight decay towards the source.

        >>> class Decay(Regularizer):
        ...     def penalty(self, step):
        ...         pairs = zip(step.parameters, step.source_parameters)
        ...         return sum(((moved - start) ** 2).sum() for moved, start in pairs)
    """

    def penalty(self, step: Step) -> Tensor | None:
        """The term to add to the loss, of no dimension; None where there is none."""
        return None

    def __add__(self, other: "Regularizer") -> "Sum":
        return Sum(self, other)


class Sum(Compose, Regularizer):
    """Several regularizers at once: the penalties add up."""

    def __init__(self, *parts: Regularizer) -> None:
        inner = (part.members if isinstance(part, Sum) else (part,) for part in parts)
        super().__init__(*(member for members in inner for member in members))

    def penalty(self, step: Step) -> Tensor | None:
        """The sum of the members' penalties."""
        terms = [term for part in self.members if (term := part.penalty(step)) is not None]
        return sum(terms[1:], start=terms[0]) if terms else None

    def __repr__(self) -> str:
        return " + ".join(repr(part) for part in self.members)
