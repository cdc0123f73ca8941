"""Oracle selection: an upper bound that knows which samples are unknown."""

from torch import Tensor

from driftproof.adapter import Adapter
from driftproof.components import Step
from driftproof.errors import StateError
from driftproof.selection import Product, Selection

__all__ = ["Oracle", "find_oracle"]


class Oracle(Selection):
    """Select samples of known classes only, by their labels.

    No method can know these; the oracle bounds what a selection can gain by leaving unknown objects out. Call
    `set_known_mask` before every batch; the benchmark does.
    """

    dynamic_reason = "the oracle gets a new mask of known samples before every batch"

    def __init__(self) -> None:
        super().__init__()
        self._known: Tensor | None = None

    def set_known_mask(self, known: Tensor) -> None:
        """Set which samples of the next batch are known."""
        self._known = known

    def weights(self, step: Step) -> Tensor:
        """Return 1 for samples of known classes, else 0."""
        if self._known is None or self._known.shape != step.weights.shape:
            raise StateError("Expected a mask of known samples for this batch, but got none. Call `set_known_mask`.")
        return self._known.to(step.weights.dtype)


def find_oracle(adapter: Adapter) -> Oracle | None:
    """Return the oracle in an adapter's selection, or None."""
    select = adapter.select
    selections = list(select.components) if isinstance(select, Product) else [select]
    return next((one for one in selections if isinstance(one, Oracle)), None)
