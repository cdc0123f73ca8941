"""An examiner who whispers: what a method would do if it were told which pixels are unknown."""

from torch import Tensor

from driftproof.adapter import Adapter
from driftproof.components import Step
from driftproof.errors import StateError
from driftproof.selection import Product, Selection
from driftproof.streams import Batch

__all__ = ["Oracle", "find_oracle"]


class Oracle(Selection):
    """Learn from samples of known classes only, as the labels tell.

    No method can know that; this bounds what a selection could gain by leaving unknown objects out. The labels come in
    by `set_known_mask`, which the run calls before every batch, and by no other way.
    """

    dynamic_reason = "it is told before every batch which samples are known"

    def __init__(self) -> None:
        super().__init__()
        self._known: Tensor | None = None

    def set_known_mask(self, batch: Batch) -> None:
        """Say which samples of the coming batch are known."""
        self._known = batch.known

    def weights(self, step: Step) -> Tensor:
        """One where the label is that of a known class."""
        if self._known is None or self._known.shape != step.weights.shape:
            raise StateError("Expected to be told which samples of this batch are known, but was not. Call `set_known_mask`.")
        return self._known.to(step.weights.dtype)


def find_oracle(adapter: Adapter) -> Oracle | None:
    """The oracle among what an adapter selects by, if there is one."""
    select = adapter.select
    parts = select.members if isinstance(select, Product) else [select]
    return next((part for part in parts if isinstance(part, Oracle)), None)
