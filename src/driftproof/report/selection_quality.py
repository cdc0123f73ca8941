"""Precision and recall of a round, over all its samples."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from driftproof.bench import Results, Spec

__all__ = ["SelectionCounts", "selection_quality_per_round"]


@dataclass(frozen=True)
class SelectionCounts:
    """How right it was to learn from some samples of a round and not from others.

    Attributes:
        selected: How many were learned from.
        rejected: How many were not.
        right: How many of the selected were predicted correctly.
        wrong: How many of the rejected were not.
    """

    selected: int
    rejected: int
    right: int
    wrong: int

    @property
    def precision(self) -> float:
        """Correct among the selected, in percent."""
        return _percent(self.right, self.selected)

    @property
    def recall(self) -> float:
        """Selected among the correct, in percent."""
        return _percent(self.right, self.right + self.rejected - self.wrong)

    @property
    def negative_precision(self) -> float:
        """Wrong among the rejected, in percent."""
        return _percent(self.wrong, self.rejected)

    @property
    def rejected_share(self) -> float:
        """Rejected among all, in percent."""
        return _percent(self.rejected, self.selected + self.rejected)


def selection_quality_per_round(results: Results, spec: Spec, prefix: str = "") -> list[SelectionCounts]:
    """The quality of selection in each complete round of a cell; empty where it was not measured.

    Rows hold shares of each domain; the counts they come from can be told from them exactly.

    Args:
        results: Where the cell is.
        spec: The cell.
        prefix: `crowd/` for what the paper's selection would have rejected; nothing for what the method itself did.
    """
    rows, each = results.rows(spec), len(spec.domains)
    if not rows or rows[0].get(f"{prefix}rejected") is None:
        return []
    rounds = range(results.rounds(spec))
    return [_add_counts(_row_counts(row, prefix) for row in rows[round * each : (round + 1) * each]) for round in rounds]


def _row_counts(row: Mapping[str, Any], prefix: str) -> SelectionCounts:
    samples = row["samples"]
    rejected = round(row[f"{prefix}rejected"] * samples)
    right = round((row[f"{prefix}precision"] or 0) * (samples - rejected))
    return SelectionCounts(samples - rejected, rejected, right, round((row[f"{prefix}npv"] or 0) * rejected))


def _add_counts(counts: Iterable[SelectionCounts]) -> SelectionCounts:
    columns = zip(*((q.selected, q.rejected, q.right, q.wrong) for q in counts), strict=True)
    return SelectionCounts(*map(sum, columns))


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else float("nan")
