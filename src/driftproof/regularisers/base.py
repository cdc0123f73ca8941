"""What the regularisers have in common."""

from torch import Tensor

from driftproof.parts import Part, Several, Step

__all__ = ["Regulariser", "Sum"]


class Regulariser(Part):
    """A pull on the parameters.

    Examples:
        The barest new regulariser: weight decay towards the source.

        >>> class Decay(Regulariser):
        ...     def penalty(self, step):
        ...         pairs = zip(step.parameters, step.source_parameters)
        ...         return sum(((moved - start) ** 2).sum() for moved, start in pairs)
    """

    def penalty(self, step: Step) -> Tensor | None:
        """The term to add to the loss, of no dimension; None where there is none."""
        return None

    def __add__(self, other: "Regulariser") -> "Sum":
        return Sum(self, other)


class Sum(Several, Regulariser):
    """Several regularisers at once: the penalties add up."""

    def __init__(self, *parts: Regulariser) -> None:
        inner = (part.members if isinstance(part, Sum) else (part,) for part in parts)
        super().__init__(*(member for members in inner for member in members))

    def penalty(self, step: Step) -> Tensor | None:
        """The sum of the members' penalties."""
        terms = [term for part in self.members if (term := part.penalty(step)) is not None]
        return sum(terms[1:], start=terms[0]) if terms else None

    def __repr__(self) -> str:
        return " + ".join(repr(part) for part in self.members)
