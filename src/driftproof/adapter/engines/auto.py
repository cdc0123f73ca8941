"""Captured steps where that works, eager ones where it does not."""

from torch import Tensor

from driftproof.adapter.engines.cuda_graph import supports_cuda_graphs
from driftproof.adapter.engines.eager import EagerEngine
from driftproof.errors import EngineError
from driftproof.record import StepResult
from driftproof.warn import warn_caller

__all__ = ["AutoEngine"]


class AutoEngine(EagerEngine):
    """Captures steps on a CUDA device; if that fails, warns once and runs eagerly from then on."""

    def __init__(self, captured: EagerEngine) -> None:
        super().__init__(captured.method, captured.state)
        self._captured: EagerEngine | None = captured

    def run(self, images: Tensor) -> StepResult:
        """As `EagerEngine.run`, captured where that works."""
        if self._captured is None or not supports_cuda_graphs(self.state.device):
            return super().run(images)
        try:
            return self._captured.run(images)
        except EngineError as error:
            reason = str(error)
        # Outside of the handler: the error's traceback keeps the failed step's graph alive.
        self._captured.invalidate()
        self._captured = None
        warn_caller(f'Steps run eagerly, which is slower: {reason} Pass `engine="eager"` to silence this.')
        return super().run(images)

    def run_frozen(self, images: Tensor, good: Tensor) -> tuple[Tensor, Tensor]:
        """As `EagerEngine.run_frozen`, captured where steps are."""
        return super().run_frozen(images, good) if self._captured is None else self._captured.run_frozen(images, good)

    def invalidate(self) -> None:
        """Drop captured steps."""
        if self._captured is not None:
            self._captured.invalidate()
