"""What the paper claims, held against what was measured."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from driftproof.bench import SUITES, Results, Value, fill_table
from driftproof.bench.tables import Table, TableEntry
from driftproof.report.notes import metadata_notes, relevant_metadata
from driftproof.report.numbers import format_number, format_signed

__all__ = ["Claim", "ClaimCase", "evaluate_claims"]

_CIFAR_SETS = ("CIFAR-10-C", "CIFAR-100-C")
_IMAGE_SETS = (*_CIFAR_SETS, "TinyImageNet-C")
_BASE_METHODS = ("ent", "tent", "eata", "swr")

_DRIVING_TABLES = ("camvid", "camvid_x10", "camvid_x100", "camvid_x1000")

_CLOSE_POINTS, _COLLAPSE_POINTS = 2.0, 20.0
"""Percentage points: within so much of BN Adapt is as good as it; so much above it has collapsed."""


@dataclass(frozen=True)
class ClaimCase:
    """One place where a claim can be tested.

    Attributes:
        holds: Whether it holds there.
        numbers: What was measured.
        round: In which round.
        wanted: In which round the paper looks.
        caveats: How the numbers differ in kind from the paper's.
        limited: Whether only some images were streamed.
    """

    holds: bool
    numbers: str
    round: int
    wanted: int
    caveats: tuple[str, ...] = ()
    limited: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim, and every place where it was tested.

    Attributes:
        text: The claim.
        cases: Where it was tested; none if nothing was measured that bears on it.
    """

    text: str
    cases: tuple[ClaimCase, ...]

    @property
    def verdict(self) -> str:
        """Whether it holds, in a few words; where that is not the end of it, in which rounds it was looked at."""
        if not self.cases:
            return "not measured"
        held, total = sum(case.holds for case in self.cases), len(self.cases)
        word = "holds" if held == total else "does not hold" if not held else f"holds in {held} of {total} cases"
        early = any(case.round < case.wanted or case.limited for case in self.cases)
        return f"so far, {word}{self._reached()}" if early else word

    def _reached(self) -> str:
        rounds, wanted = sorted({min(case.round, case.wanted) for case in self.cases}), self.cases[0].wanted
        span = f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"
        return f" ({span} of {wanted})" if rounds[0] < wanted else ""

    @property
    def evidence(self) -> list[str]:
        """The numbers of each case; where it looked too early, in which round; and what else sets it apart."""
        return [
            " ".join([f"{case.numbers}{'' if case.holds else ' ✗'}{_format_round(case)}", *_format_notes(case)])
            for case in self.cases
        ]


def _format_round(case: ClaimCase) -> str:
    return "" if case.round >= case.wanted else f" (round {case.round} of {case.wanted})"


def _format_notes(case: ClaimCase) -> list[str]:
    return [f"[{' '.join(case.caveats)}]"] if case.caveats else []


def evaluate_claims(everything: Sequence[Results]) -> list[Claim]:
    """The paper's claims, each with its verdict.

    Args:
        everything: Results folders or archives; a case counts in the first one that has all its numbers, those that
            streamed only some images last.
    """
    ordered = sorted(everything, key=lambda results: results.is_subset)
    return [Claim(text, tuple(find(ordered))) for text, find in _CLAIMS.items()]


@dataclass(frozen=True)
class _ColumnValues:
    """Numbers of one table and one column, from the last round that all of them have reached."""

    values: dict[str, float]
    round: int
    wanted: int
    caveats: tuple[str, ...]
    limited: bool

    def case(self, holds: bool, numbers: str) -> ClaimCase:
        return ClaimCase(holds, numbers, self.round, self.wanted, self.caveats, self.limited)


def _load_column(everything: Sequence[Results], table: str, column: str, *rows: str) -> _ColumnValues | None:
    entries = {entry.row: entry for entry in _find_table(table).entries if entry.column == column}
    if not set(rows) <= set(entries):
        return None
    for results in everything:
        found = results.compare([entries[row] for row in rows])
        known = {row: value.ours for row, value in zip(rows, found, strict=True) if value.ours is not None}
        if len(known) == len(rows):
            apart = _case_notes(results, [entries[row] for row in rows])
            return _ColumnValues(known, found[0].round or 0, found[0].wanted, apart, results.is_subset)
    return None


def _case_notes(results: Results, entries: Sequence[TableEntry]) -> tuple[str, ...]:
    """What was prepared on, and made-up frost, are said beside the tables."""
    said = relevant_metadata([spec for entry in entries for spec in entry.specs], results.metadata)
    return tuple(metadata_notes({key: said[key] for key in ("limit", "replaced") if key in said}))


@cache
def _find_table(name: str) -> Table:
    return next(table for make in SUITES.values() for table in make().tables if table.name == name)


def _headline(everything: Sequence[Results]) -> Iterator[ClaimCase]:
    for name in _CIFAR_SETS:
        found = _load_column(everything, "table1", f"{name}/Open", "bn_adapt", "tent+crowd")
        if found:
            gap = found.values["tent+crowd"] - found.values["bn_adapt"]
            yield found.case(gap <= _CLOSE_POINTS, f"{name}: {_format_pair(found, 'tent+crowd', 'bn_adapt')}")
    found = _load_column(everything, "table1", "CIFAR-10-C/Open", "bn_adapt", "tent")
    if found:
        gap = found.values["tent"] - found.values["bn_adapt"]
        yield found.case(gap >= _COLLAPSE_POINTS, f"CIFAR-10-C: {_format_pair(found, 'tent', 'bn_adapt')}")


def _selection_gain(setting: str) -> Callable[[Sequence[Results]], Iterator[ClaimCase]]:
    def find(everything: Sequence[Results]) -> Iterator[ClaimCase]:
        for name in _IMAGE_SETS:
            for base in _BASE_METHODS:
                found = _load_column(everything, "table1", f"{name}/{setting}", base, f"{base}+crowd")
                if found:
                    better = found.values[f"{base}+crowd"] < found.values[base]
                    yield found.case(better, f"{name}: {_format_pair(found, f'{base}+crowd', base)}")

    return find


def _score_separation(everything: Sequence[Results]) -> Iterator[ClaimCase]:
    rivals = ("msp", "max_logit", "energy")
    for table, protocol in (("table5a", "wrong and unknown"), ("table5b", "unknown")):
        for name, measure in product(("CIFAR-10/SVHN-C", "CIFAR-100/SVHN-C"), ("AUROC", "FPR@TPR95")):
            found = _load_column(everything, table, f"{name} {measure}", "confidence_difference", *rivals)
            if found:
                sign = 1 if measure == "AUROC" else -1
                best = max(rivals, key=lambda rival: sign * found.values[rival])
                ours, other = found.values["confidence_difference"], found.values[best]
                numbers = f"{name}, {protocol}: {measure} {format_number(ours)}, the best other {format_number(other)} ({best})"
                yield found.case(sign * ours > sign * other, numbers)


def _softmax_against_logits(everything: Sequence[Results]) -> Iterator[ClaimCase]:
    for name in _IMAGE_SETS:
        found = _load_column(everything, "s5", name, "tent+crowd", "tent+crowd (logits)")
        if found:
            better = found.values["tent+crowd"] < found.values["tent+crowd (logits)"]
            yield found.case(better, f"{name}: {_format_pair(found, 'tent+crowd', 'tent+crowd (logits)')}")


def _hyperparameter_robustness(everything: Sequence[Results]) -> Iterator[ClaimCase]:
    for name, words in (("table8a", "learning rates"), ("table8b", "batch sizes")):
        for results in everything:
            pair = _std_values(results, _find_table(name))
            if pair is not None:
                round = min(value.round or 0 for value in pair)
                with_it, without = (
                    value.ours or 0.0 for value in _std_values(results, _limit_rounds(_find_table(name), round)) or pair
                )
                numbers = f"{words}: deviation {format_number(with_it)} with selection, {format_number(without)} without"
                apart, limited = _case_notes(results, _find_table(name).entries), results.is_subset
                yield ClaimCase(with_it < without, numbers, round, pair[0].wanted, apart, limited)
                break


def _std_values(results: Results, table: Table) -> tuple[Value, Value] | None:
    values = fill_table(results, table).values
    with_it, without = values["tent+crowd", "Std"], values["tent", "Std"]
    return None if with_it.ours is None or without.ours is None else (with_it, without)


def _limit_rounds(table: Table, round: int) -> Table:
    return replace(table, entries=tuple(replace(entry, round=min(entry.round, round)) for entry in table.entries))


def _swr_open_set(everything: Sequence[Results]) -> Iterator[ClaimCase]:
    for name in _CIFAR_SETS:
        found = _load_column(everything, "table1", f"{name}/Open", "swr+crowd", "bn_adapt")
        if found:
            worse = found.values["swr+crowd"] > found.values["bn_adapt"]
            yield found.case(worse, f"{name}: {_format_pair(found, 'swr+crowd', 'bn_adapt')}")


def _driving_rows() -> Iterator[tuple[str, str, str]]:
    """The tables of driving scenes, with their rows of each method that takes steps: without selection, and with it."""
    for name in _DRIVING_TABLES:
        rows = {entry.specs[0].method: entry.row for entry in _find_table(name).entries}
        yield from ((name, rows[base], rows[f"{base}+crowd"]) for base in ("tent", "swr"))


def _driving_gain(everything: Sequence[Results]) -> Iterator[ClaimCase]:
    for name, base, selecting in _driving_rows():
        found = _load_column(everything, name, _find_table(name).entries[-1].column, base, selecting)
        if found:
            higher = found.values[selecting] > found.values[base]
            yield found.case(higher, f"CamVid: mIoU {_format_pair(found, selecting, base)}")


def _driving_stability(everything: Sequence[Results]) -> Iterator[ClaimCase]:
    for name, _, selecting in _driving_rows():
        columns = [entry.column for entry in _find_table(name).entries if entry.row == selecting]
        begun, ended = (_load_column(everything, name, column, selecting) for column in (columns[0], columns[-1]))
        if begun and ended and ended.round > 1:
            first, last = begun.values[selecting], ended.values[selecting]
            yield ended.case(last >= first, f"CamVid: mIoU of {selecting} {format_number(first)}, then {format_number(last)}")


def _driving_detection(everything: Sequence[Results]) -> Iterator[ClaimCase]:
    for name, _, selecting in _driving_rows():
        for pixels in ("Wrong", "Unknown"):
            scores = (f"{pixels}/By novelty", f"{pixels}/By largest probability")
            found = [_load_column(everything, f"{name}_auroc", score, selecting) for score in scores]
            if found[0] and found[1]:
                ours, other = (each.values[selecting] for each in found if each)
                numbers = f"CamVid, {selecting}, {pixels.lower()}: AUROC {format_number(ours)}, MSP {format_number(other)}"
                yield found[0].case(ours > other, numbers)


def _format_pair(found: _ColumnValues, ours: str, other: str) -> str:
    gap = found.values[ours] - found.values[other]
    return f"{ours} {format_number(found.values[ours])}, {other} {format_number(found.values[other])} ({format_signed(gap, 1)})"


_CLAIMS: dict[str, Callable[[Sequence[Results]], Iterator[ClaimCase]]] = {
    f"Among unknown images, TENT with selection ends within {_CLOSE_POINTS:g} points of BN Adapt or better on both CIFAR sets, "
    f"while plain TENT ends at least {_COLLAPSE_POINTS:g} points above it on CIFAR-10-C": _headline,
    "Selection rescues long-term adaptation: without unknown images, every method ends better with it": _selection_gain(
        "Closed"
    ),
    "Selection rescues open-set adaptation: among unknown images, every method ends better with it": _selection_gain("Open"),
    "The confidence difference separates better than MSP, max logit and energy": _score_separation,
    "Selecting by softmax beats selecting by logits": _softmax_against_logits,
    "Selection makes TENT robust to learning rate and batch size: its error deviates less over them": _hyperparameter_robustness,
    "SWR among unknown images stays hard: even with selection it ends above BN Adapt": _swr_open_set,
    "On driving scenes every method ends with a higher mIoU if it selects, at the rates that were run": (
        _driving_gain
    ),
    "On driving scenes a method that selects ends no lower than it began": _driving_stability,
    "On driving scenes the confidence difference ranks wrong and unknown pixels better than MSP, over all pixels": (
        _driving_detection
    ),
}
