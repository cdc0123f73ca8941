"""The paper's claims, each checked against the measured numbers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from driftproof.bench import Results, Value, fill_table
from driftproof.bench.tables import Table, TableEntry
from driftproof.paper.suites import all_tables
from driftproof.report.notes import metadata_notes, relevant_metadata
from driftproof.report.numbers import format_number, format_signed

__all__ = ["Claim", "ClaimCase", "evaluate_claims"]

_CIFAR_SETS = ("CIFAR-10-C", "CIFAR-100-C")
_IMAGE_SETS = (*_CIFAR_SETS, "TinyImageNet-C")
_BASE_METHODS = ("ent", "tent", "eata", "swr")

_DRIVING_TABLES = ("camvid", "camvid_x10", "camvid_x100", "camvid_x1000")

_CLOSE_POINTS, _COLLAPSE_POINTS = 2.0, 20.0
"""Percentage points above BN Adapt: at most the first is as good; at least the second is a collapse."""


@dataclass(frozen=True)
class ClaimCase:
    """One comparison that tests a claim.

    Attributes:
        holds: Whether the claim holds.
        numbers: The measured numbers as text.
        round: The round of the numbers.
        paper_round: The round of the paper's numbers.
        notes: Where the numbers are not comparable with the paper's.
        is_subset: Whether only some images were streamed.
    """

    holds: bool
    numbers: str
    round: int
    paper_round: int
    notes: tuple[str, ...] = ()
    is_subset: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim and all comparisons that test it.

    Attributes:
        text: The claim.
        cases: The comparisons; empty if nothing relevant was measured.
    """

    text: str
    cases: tuple[ClaimCase, ...]

    @property
    def verdict(self) -> str:
        """Whether the claim holds; "so far" and the rounds if runs ended before the paper's round."""
        if not self.cases:
            return "not measured"
        held, total = sum(case.holds for case in self.cases), len(self.cases)
        verdict = "holds" if held == total else "does not hold" if not held else f"holds in {held} of {total} cases"
        early = any(case.round < case.paper_round or case.is_subset for case in self.cases)
        return f"so far, {verdict}{self._format_rounds()}" if early else verdict

    def _format_rounds(self) -> str:
        paper_round = self.cases[0].paper_round
        rounds = sorted({min(case.round, case.paper_round) for case in self.cases})
        span = f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"
        return f" ({span} of {paper_round})" if rounds[0] < paper_round else ""

    @property
    def evidence(self) -> list[str]:
        """The numbers of each case, with the round if it is too early, and notes."""
        return [
            " ".join([f"{case.numbers}{'' if case.holds else ' ✗'}{_format_round(case)}", *_format_notes(case)])
            for case in self.cases
        ]


def _format_round(case: ClaimCase) -> str:
    return "" if case.round >= case.paper_round else f" (round {case.round} of {case.paper_round})"


def _format_notes(case: ClaimCase) -> list[str]:
    return [f"[{' '.join(case.notes)}]"] if case.notes else []


def evaluate_claims(archives: Sequence[Results]) -> list[Claim]:
    """Check every claim of the paper.

    Args:
        archives: Results folders or archives. A case takes all its numbers from the first archive that has them;
            archives with only some of the images come last.
    """
    ordered = sorted(archives, key=lambda results: results.is_subset)
    return [Claim(text, tuple(find_cases(ordered))) for text, find_cases in _CLAIMS.items()]


@dataclass(frozen=True)
class _ColumnValues:
    """Numbers of one column of a table, from the last round that all rows completed."""

    values: dict[str, float]
    round: int
    paper_round: int
    notes: tuple[str, ...]
    is_subset: bool

    def make_case(self, holds: bool, numbers: str) -> ClaimCase:
        return ClaimCase(holds, numbers, self.round, self.paper_round, self.notes, self.is_subset)


def _load_column(archives: Sequence[Results], table: str, column: str, *rows: str) -> _ColumnValues | None:
    entries = {entry.row: entry for entry in _find_table(table).entries if entry.column == column}
    if not set(rows) <= set(entries):
        return None
    for results in archives:
        values = results.compare([entries[row] for row in rows])
        known = {row: value.ours for row, value in zip(rows, values, strict=True) if value.ours is not None}
        if len(known) == len(rows):
            notes = _case_notes(results, [entries[row] for row in rows])
            return _ColumnValues(known, values[0].round or 0, values[0].wanted, notes, results.is_subset)
    return None


def _case_notes(results: Results, entries: Sequence[TableEntry]) -> tuple[str, ...]:
    """Notes on image limits and replacements; the other notes stand below the tables."""
    metadata = relevant_metadata([spec for entry in entries for spec in entry.specs], results.metadata)
    return tuple(metadata_notes({key: metadata[key] for key in ("limit", "replaced") if key in metadata}))


@cache
def _find_table(name: str) -> Table:
    return next(table for table in all_tables() if table.name == name)


def _headline(archives: Sequence[Results]) -> Iterator[ClaimCase]:
    for name in _CIFAR_SETS:
        column = _load_column(archives, "table1", f"{name}/Open", "bn_adapt", "tent+crowd")
        if column:
            gap = column.values["tent+crowd"] - column.values["bn_adapt"]
            yield column.make_case(gap <= _CLOSE_POINTS, f"{name}: {_format_pair(column, 'tent+crowd', 'bn_adapt')}")
    column = _load_column(archives, "table1", "CIFAR-10-C/Open", "bn_adapt", "tent")
    if column:
        gap = column.values["tent"] - column.values["bn_adapt"]
        yield column.make_case(gap >= _COLLAPSE_POINTS, f"CIFAR-10-C: {_format_pair(column, 'tent', 'bn_adapt')}")


def _selection_gain(setting: str) -> Callable[[Sequence[Results]], Iterator[ClaimCase]]:
    def find_cases(archives: Sequence[Results]) -> Iterator[ClaimCase]:
        for name, base in product(_IMAGE_SETS, _BASE_METHODS):
            column = _load_column(archives, "table1", f"{name}/{setting}", base, f"{base}+crowd")
            if column:
                is_lower = column.values[f"{base}+crowd"] < column.values[base]
                yield column.make_case(is_lower, f"{name}: {_format_pair(column, f'{base}+crowd', base)}")

    return find_cases


def _score_separation(archives: Sequence[Results]) -> Iterator[ClaimCase]:
    rivals = ("msp", "max_logit", "energy")
    for table, positives in (("table5a", "wrong and unknown"), ("table5b", "unknown")):
        for name, metric in product(("CIFAR-10/SVHN-C", "CIFAR-100/SVHN-C"), ("AUROC", "FPR@TPR95")):
            column = _load_column(archives, table, f"{name} {metric}", "confidence_difference", *rivals)
            if column:
                sign = 1 if metric == "AUROC" else -1
                best = max(rivals, key=lambda rival: sign * column.values[rival])
                ours, other = column.values["confidence_difference"], column.values[best]
                comparison = f"{metric} {format_number(ours)}, the best other {format_number(other)} ({best})"
                yield column.make_case(sign * ours > sign * other, f"{name}, {positives}: {comparison}")


def _softmax_against_logits(archives: Sequence[Results]) -> Iterator[ClaimCase]:
    for name in _IMAGE_SETS:
        column = _load_column(archives, "s5", name, "tent+crowd", "tent+crowd (logits)")
        if column:
            is_lower = column.values["tent+crowd"] < column.values["tent+crowd (logits)"]
            yield column.make_case(is_lower, f"{name}: {_format_pair(column, 'tent+crowd', 'tent+crowd (logits)')}")


def _hyperparameter_robustness(archives: Sequence[Results]) -> Iterator[ClaimCase]:
    for name, parameter in (("table8a", "learning rates"), ("table8b", "batch sizes")):
        for results in archives:
            pair = _std_values(results, _find_table(name))
            if pair is not None:
                round = min(value.round or 0 for value in pair)
                common = _std_values(results, _limit_rounds(_find_table(name), round)) or pair
                with_it, without = (value.ours or 0.0 for value in common)
                stds = f"deviation {format_number(with_it)} with selection, {format_number(without)} without"
                notes = _case_notes(results, _find_table(name).entries)
                yield ClaimCase(
                    with_it < without, f"{parameter}: {stds}", round, pair[0].wanted, notes, results.is_subset
                )
                break


def _std_values(results: Results, table: Table) -> tuple[Value, Value] | None:
    values = fill_table(results, table).values
    with_it, without = values["tent+crowd", "Std"], values["tent", "Std"]
    return None if with_it.ours is None or without.ours is None else (with_it, without)


def _limit_rounds(table: Table, round: int) -> Table:
    return replace(table, entries=tuple(replace(entry, round=min(entry.round, round)) for entry in table.entries))


def _swr_open_set(archives: Sequence[Results]) -> Iterator[ClaimCase]:
    for name in _CIFAR_SETS:
        column = _load_column(archives, "table1", f"{name}/Open", "swr+crowd", "bn_adapt")
        if column:
            is_higher = column.values["swr+crowd"] > column.values["bn_adapt"]
            yield column.make_case(is_higher, f"{name}: {_format_pair(column, 'swr+crowd', 'bn_adapt')}")


def _driving_rows() -> Iterator[tuple[str, str, str]]:
    """Each driving table with its rows of TENT and SWR, without and with selection."""
    for name in _DRIVING_TABLES:
        rows = {entry.specs[0].method: entry.row for entry in _find_table(name).entries}
        yield from ((name, rows[base], rows[f"{base}+crowd"]) for base in ("tent", "swr"))


def _driving_gain(archives: Sequence[Results]) -> Iterator[ClaimCase]:
    for name, base, selecting in _driving_rows():
        column = _load_column(archives, name, _find_table(name).entries[-1].column, base, selecting)
        if column:
            is_higher = column.values[selecting] > column.values[base]
            yield column.make_case(is_higher, f"CamVid: mIoU {_format_pair(column, selecting, base)}")


def _driving_stability(archives: Sequence[Results]) -> Iterator[ClaimCase]:
    for name, _, selecting in _driving_rows():
        columns = [entry.column for entry in _find_table(name).entries if entry.row == selecting]
        start, end = (_load_column(archives, name, column, selecting) for column in (columns[0], columns[-1]))
        if start and end and end.round > 1:
            first, last = start.values[selecting], end.values[selecting]
            numbers = f"CamVid: mIoU of {selecting} {format_number(first)}, then {format_number(last)}"
            yield end.make_case(last >= first, numbers)


def _driving_detection(archives: Sequence[Results]) -> Iterator[ClaimCase]:
    for name, _, selecting in _driving_rows():
        for pixels in ("Wrong", "Unknown"):
            scores = (f"{pixels}/By novelty", f"{pixels}/By largest probability")
            columns = [_load_column(archives, f"{name}_auroc", score, selecting) for score in scores]
            if columns[0] and columns[1]:
                ours, other = (column.values[selecting] for column in columns if column)
                aurocs = f"AUROC {format_number(ours)}, MSP {format_number(other)}"
                yield columns[0].make_case(ours > other, f"CamVid, {selecting}, {pixels.lower()}: {aurocs}")


def _format_pair(column: _ColumnValues, ours: str, other: str) -> str:
    gap = format_signed(column.values[ours] - column.values[other], 1)
    return f"{ours} {format_number(column.values[ours])}, {other} {format_number(column.values[other])} ({gap})"


_CLAIMS: dict[str, Callable[[Sequence[Results]], Iterator[ClaimCase]]] = {
    f"Among unknown images, TENT with selection ends at most {_CLOSE_POINTS:g} points above BN Adapt on both CIFAR "
    f"sets, and plain TENT ends at least {_COLLAPSE_POINTS:g} points above it on CIFAR-10-C": _headline,
    "Selection improves long-term adaptation: without unknown images, every method ends with a lower error": (
        _selection_gain("Closed")
    ),
    "Selection improves open-set adaptation: among unknown images, every method ends with a lower error": (
        _selection_gain("Open")
    ),
    "The confidence difference separates better than MSP, max logit and energy": _score_separation,
    "Selection by softmax beats selection by logits": _softmax_against_logits,
    "Selection makes TENT robust to learning rate and batch size: its error varies less across them": (
        _hyperparameter_robustness
    ),
    "SWR among unknown images remains hard: even with selection it ends above BN Adapt": _swr_open_set,
    "On driving scenes, every method ends with a higher mIoU with selection, at the learning rates that were run": (
        _driving_gain
    ),
    "On driving scenes, a method with selection ends no lower than it started": _driving_stability,
    "On driving scenes, the confidence difference ranks wrong and unknown pixels better than MSP, over all pixels": (
        _driving_detection
    ),
}
