"""Precision and recall of the selection, over all samples of a round."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from driftproof.bench import Results, Spec

__all__ = ["SelectionCounts", "selection_quality_per_round"]


@dataclass(frozen=True)
class SelectionCounts:
    """Counts of selected and rejected samples of a round.

    Attributes:
        selected: Samples that were learned from.
        rejected: Samples that were not.
        correct: Selected samples with a correct prediction.
        wrong: Rejected samples with a wrong prediction.
    """

    selected: int
    rejected: int
    correct: int
    wrong: int

    @property
    def precision(self) -> float:
        """Correct samples among the selected, in percent."""
        return _percent(self.correct, self.selected)

    @property
    def recall(self) -> float:
        """Selected samples among the correct, in percent."""
        return _percent(self.correct, self.correct + self.rejected - self.wrong)

    @property
    def negative_precision(self) -> float:
        """Wrong samples among the rejected, in percent."""
        return _percent(self.wrong, self.rejected)

    @property
    def rejected_share(self) -> float:
        """Rejected samples among all, in percent."""
        return _percent(self.rejected, self.selected + self.rejected)


def selection_quality_per_round(results: Results, spec: Spec, prefix: str = "") -> list[SelectionCounts]:
    """The selection counts of each complete round of a run; empty if they were not measured.

    Rows contain shares per domain, from which the counts are recovered exactly.

    Args:
        results: The results folder.
        spec: The run.
        prefix: `crowd/` for what the paper's selection would reject; empty for what the method itself rejects.
    """
    rows, domains = results.rows(spec), len(spec.domains)
    if not rows or rows[0].get(f"{prefix}rejected") is None:
        return []
    rounds = range(results.rounds(spec))
    return [
        _add_counts(_row_counts(row, prefix) for row in rows[round * domains : (round + 1) * domains])
        for round in rounds
    ]


def _row_counts(row: Mapping[str, Any], prefix: str) -> SelectionCounts:
    samples = row["samples"]
    rejected = round(row[f"{prefix}rejected"] * samples)
    correct = round((row[f"{prefix}precision"] or 0) * (samples - rejected))
    return SelectionCounts(samples - rejected, rejected, correct, round((row[f"{prefix}npv"] or 0) * rejected))


def _add_counts(counts: Iterable[SelectionCounts]) -> SelectionCounts:
    columns = zip(*((q.selected, q.rejected, q.correct, q.wrong) for q in counts), strict=True)
    return SelectionCounts(*map(sum, columns))


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else float("nan")
