"""Leave out, in all but some rounds of a long run of `sentinel`, what no row of it needs.

What an adapter learns does not depend on its answer, so a long run can be measured in a few rounds. In the others

- the learner answers alone, and the names of measures start with `learner/`;
- the frozen network runs in the first of these rounds only, since it sees the same batches in every round;
- on closed streams, where nothing measures its score, the sentinel rests.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from driftproof.adapter import Adapter
from driftproof.components import Detection, Step
from driftproof.outputs import LogMean
from driftproof.record import StepResult
from driftproof.statistics import WindowedBlend


class AnswerRounds:
    """Called before each domain of a run, with its adapter, the round and the domain; one for every run.

    Args:
        rounds: Those in which the adapter answers as it always does.
        is_closed: Whether the stream has no unknown images.
    """

    def __init__(self, rounds: Collection[int], *, is_closed: bool = False) -> None:
        self._rounds, self._is_closed = rounds, is_closed
        self._frozen: FrozenLogits | None = None
        self._mode = "whole"

    def __call__(self, adapter: Adapter, number: int, domain: str) -> str:
        """Choose how the adapter answers in this round; returns what names of measures start with."""
        output = adapter.method.output
        if not isinstance(output, LogMean):
            return ""
        if self._frozen is None:
            self._frozen = FrozenLogits(adapter)
        is_short = number not in self._rounds
        mode = self._frozen.enter(domain) if is_short else "whole"
        if mode != self._mode:
            self._mode = mode
            replaced: dict[Any, dict[str, Any]] = {output: {"predict": _answer_alone, "source_view": _no_view}}
            replaced |= {adapter._engine: {"run": self._frozen.run}}
            replaced |= {adapter.state: {"_run_source": self._frozen.run_source}}
            replaced |= {adapter.method.detector: {"detect": _rest}} if self._is_closed else {}
            for owner, methods in replaced.items():
                for name, method in methods.items():
                    vars(owner).pop(name, None)
                    vars(owner).update({name: method} if is_short else {})
            adapter._engine.invalidate()  # captured steps have all of this built in
        return "learner/" if is_short else ""


class FrozenLogits:
    """The frozen network's logits of every batch of a round, kept from the first visit of a domain for the next ones.

    They are kept where they depend on the batch alone: not in streams with batches whose statistics are running ones. A
    round has the same batches as the one before, and no image of it is quarantined.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._engine, self._state = adapter._engine, adapter.state
        rule = adapter.method.source_statistics or adapter.method.statistics
        self._least = rule.window if isinstance(rule, WindowedBlend) else None
        self._kept: dict[str, list[Tensor]] = {}
        self._slots: dict[int, Tensor] = {}  # where a captured step reads or writes the logits of a batch
        self._domain, self._index, self._reads = "", 0, False

    def enter(self, domain: str) -> str:
        """Begin a visit of a domain; returns whether its logits are to "read" or to "write"."""
        self._domain, self._index, self._reads = domain, 0, domain in self._kept
        self._kept.setdefault(domain, [])
        return "read" if self._reads else "write"

    def run(self, images: Tensor) -> StepResult:
        """As the engine's, with logits handed to the step or taken from it."""
        size, kept = len(images), self._kept[self._domain]
        if self._least is not None and size < self._least:
            self._least = None
        if self._keeps and self._reads:
            self._slots[size].copy_(kept[self._index])
            self._index += 1
        result = type(self._engine).run(self._engine, images)
        if self._keeps and not self._reads:
            kept.append(self._slots[size].clone())
        return result

    def run_source(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """As the state's, without a pass where the logits are there."""
        if self._keeps and self._reads:
            return self._slots[len(images)], None
        logits, features = type(self._state)._run_source(self._state, images)
        if self._keeps:
            # The first batch of a shape is not captured, so this is not memory of a graph.
            self._slots.setdefault(len(images), torch.empty_like(logits)).copy_(logits)
        return logits, features

    @property
    def _keeps(self) -> bool:
        return self._least is not None


def _answer_alone(step: Step) -> Tensor:
    return step.logits


def _no_view() -> None:
    return None


def _rest(images: Tensor, network: object, good: Tensor, read_source: Any) -> Detection:  # noqa: ANN401  # see Detector
    """Judge nothing and learn nothing."""
    return Detection(torch.ones_like(good), torch.full_like(good, torch.nan, dtype=torch.float32), read_source())
