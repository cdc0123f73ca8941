"""Scores of one network's logits, or of the answer."""

import math
from collections.abc import Callable
from typing import Literal

from torch import Tensor

from driftproof.components import Step
from driftproof.scores.base import NoveltyScore, Of, check_of, is_adapted
from driftproof.scores.functions import energy, entropy, local_entropy, max_logit, msp
from driftproof.validation import check_choice

__all__ = ["LOGIT_SCORES", "FromLogits"]

LOGIT_SCORES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[float, float]]] = {
    "msp": (msp, (0.0, 1.0)),
    "energy": (energy, (-math.inf, math.inf)),
    "max_logit": (max_logit, (-math.inf, math.inf)),
    "entropy": (entropy, (0.0, math.inf)),
    "local_entropy": (local_entropy, (0.0, math.inf)),
}


class FromLogits(NoveltyScore):
    """A score of one network's logits, or of what the adapter answers.

    Args:
        score: `msp`, `energy`, `max_logit`, `entropy` or `local_entropy`.
        of: The frozen network θ_o, the adapted one θ_a, or the "answer", which may be of several networks or views.
    """

    def __init__(self, score: str, *, of: Of | Literal["answer"] = "frozen") -> None:
        super().__init__()
        self._function, self.bounds = LOGIT_SCORES[check_choice("score of logits", score, LOGIT_SCORES)]
        self.score = score
        self.of = of if of == "answer" else check_of(of)

    def forward(self, step: Step) -> Tensor:
        """Return the score of each sample or pixel."""
        if self.of == "answer":
            return self._function(step.output)
        return self._function(step.logits if is_adapted(self.of, step) else step.source_logits)
