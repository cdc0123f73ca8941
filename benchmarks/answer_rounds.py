"""Leave out, in all but some rounds, the passes that the answer of `sentinel` alone needs.

What an adapter learns does not depend on its answer, so a long run can be measured in a few rounds. In the others the
learner answers alone, and the names of measures start with `learner/`.
"""

from collections.abc import Collection
from dataclasses import dataclass

from torch import Tensor

from driftproof.adapter import Adapter
from driftproof.components import Step
from driftproof.outputs import LogMean


@dataclass(frozen=True)
class AnswerRounds:
    """Called before each domain of a run, with its adapter and the round.

    Attributes:
        rounds: Those in which the adapter answers as it always does.
    """

    rounds: Collection[int]

    def __call__(self, adapter: Adapter, number: int) -> str:
        """Choose how the adapter answers in this round; returns what names of measures start with."""
        output = adapter.method.output
        if not isinstance(output, LogMean):
            return ""
        is_short, shall_be_short = "predict" in vars(output), number not in self.rounds
        if shall_be_short and not is_short:
            vars(output).update(predict=_answer_alone, source_view=_no_view)
        elif is_short and not shall_be_short:
            del vars(output)["predict"], vars(output)["source_view"]
        if is_short != shall_be_short:
            adapter._engine.invalidate()  # captured steps have the answer built in
        return "learner/" if shall_be_short else ""


def _answer_alone(step: Step) -> Tensor:
    return step.logits


def _no_view() -> None:
    return None
