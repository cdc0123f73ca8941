"""The paper's claims, each checked against the measured numbers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from driftproof.bench.results import Results, Value, fill_table
from driftproof.bench.tables import Table, TableEntry
from driftproof.paper.notes import relevant_notes
from driftproof.paper.suites import all_tables
from driftproof.report.numbers import format_number, format_signed

__all__ = ["Claim", "ClaimCase", "evaluate_claims"]

_CIFAR_SETS = ("CIFAR-10-C", "CIFAR-100-C")
_IMAGE_SETS = (*_CIFAR_SETS, "TinyImageNet-C")
_BASE_METHODS = ("ent", "tent", "eata", "swr")
_DRIVING_TABLES = ("camvid", "camvid_x10", "camvid_x100", "camvid_x1000")

_CLOSE_POINTS, _COLLAPSE_POINTS = 2.0, 20.0
"""Percentage points above BN Adapt: at most the first is as good; at least the second is a collapse."""

_PAIR = "{ours_row} {ours}, {other_row} {other} ({gap})"


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

    @property
    def is_early(self) -> bool:
        """Whether the round is earlier than the paper's."""
        return self.round < self.paper_round

    @property
    def text(self) -> str:
        """The numbers, a cross where the claim does not hold, the round if it is too early, and notes."""
        early = f" (round {self.round} of {self.paper_round})" if self.is_early else ""
        return (
            f"{self.numbers}{'' if self.holds else ' ✗'}{early}{f' [{chr(32).join(self.notes)}]' if self.notes else ''}"
        )


@dataclass(frozen=True)
class Claim:
    """A claim and all comparisons that test it; none if nothing relevant was measured."""

    text: str
    cases: tuple[ClaimCase, ...]

    @property
    def verdict(self) -> str:
        """Whether the claim holds; "so far" and the rounds if runs ended before the paper's round."""
        if not self.cases:
            return "not measured"
        held, total = sum(case.holds for case in self.cases), len(self.cases)
        verdict = "holds" if held == total else "does not hold" if not held else f"holds in {held} of {total} cases"
        if not any(case.is_early or case.is_subset for case in self.cases):
            return verdict
        paper_round, rounds = self.cases[0].paper_round, sorted(min(c.round, c.paper_round) for c in self.cases)
        span = f"round {rounds[0]}" if rounds[0] == rounds[-1] else f"rounds {rounds[0]} to {rounds[-1]}"
        return f"so far, {verdict}" + (f" ({span} of {paper_round})" if rounds[0] < paper_round else "")


@dataclass(frozen=True)
class _Test:
    """One number of a table against the best of others, all by row and column.

    Attributes:
        table: The table.
        ours: Which number the claim is about.
        others: What it is compared with.
        text: How to print the numbers.
        sign: 1 if ours should be higher, -1 if lower.
        margin: By how much at least; None for any difference.
    """

    table: str
    ours: tuple[str, str]
    others: tuple[tuple[str, str], ...]
    text: str
    sign: int = -1
    margin: float | None = None

    def evaluate(self, results: Results) -> ClaimCase | None:
        """Compare; None if a number is missing."""
        places = {(entry.row, entry.column): entry for entry in _find_table(self.table).entries}
        chosen = [self.ours, *self.others]
        if not places.keys() >= set(chosen):
            return None
        entries = [places[place] for place in chosen]
        values = _read(results, entries)
        numbers = [value.ours for value in values if value.ours is not None]
        if len(numbers) < len(entries):
            return None
        best = max(range(1, len(numbers)), key=lambda index: self.sign * numbers[index])
        ours, other = numbers[0], numbers[best]
        gap = self.sign * (ours - other)
        text = self.text.format(
            ours=format_number(ours), other=format_number(other), gap=format_signed(ours - other),
            ours_row=self.ours[0], other_row=chosen[best][0],
        )  # fmt: skip
        holds = gap > 0 if self.margin is None else gap >= self.margin
        return _make_case(results, entries, holds, text, values[0])


def _read(results: Results, entries: Sequence[TableEntry]) -> list[Value]:
    """Return comparable numbers; of entries that ask for different rounds, those rounds, if the first is the later."""
    if len({entry.round for entry in entries}) == 1:
        return results.compare(entries)
    values = [results.value(entry) for entry in entries]
    return values if (values[0].round or 0) > 1 else [Value()]


def _make_case(results: Results, entries: Sequence[TableEntry], holds: bool, text: str, value: Value) -> ClaimCase:
    notes = relevant_notes(entries, results.metadata, ("limit", "replaced"))
    return ClaimCase(holds, text, value.round or 0, value.wanted, tuple(notes), results.is_subset)


@dataclass(frozen=True)
class _DeviationTest:
    """Whether the error of TENT with selection varies less across the columns of a table."""

    table: str
    text: str

    def evaluate(self, results: Results) -> ClaimCase | None:
        """Compare at the last round that both have reached; None if a number is missing."""
        table = _find_table(self.table)
        found = self._deviations(results, table)
        if any(value.ours is None for value in found):
            return None
        round = min(value.round or 0 for value in found)
        limited = tuple(replace(entry, round=min(entry.round, round)) for entry in table.entries)
        with_it, without = (value.ours or 0.0 for value in self._deviations(results, replace(table, entries=limited)))
        text = f"{self.text}: deviation {format_number(with_it)} with selection, {format_number(without)} without"
        return _make_case(results, table.entries, with_it < without, text, replace(found[0], round=round))

    def _deviations(self, results: Results, table: Table) -> list[Value]:
        values = fill_table(results, table).values
        return [values[row, "Std"] for row in ("tent+crowd", "tent")]


@cache
def _find_table(name: str) -> Table:
    return next(table for table in all_tables() if table.name == name)


def _make_pair(table: str, column: str, ours: str, other: str, label: str = "", **how: object) -> _Test:
    return _Test(table, (ours, column), ((other, column),), f"{label or column.partition('/')[0] + ':'} {_PAIR}", **how)  # type: ignore[arg-type]


def _selection_gain(setting: str) -> list[_Test]:
    return [
        _make_pair("table1", f"{name}/{setting}", f"{base}+crowd", base)
        for name in _IMAGE_SETS
        for base in _BASE_METHODS
    ]


def _score_separation() -> Iterator[_Test]:
    for table, positives in (("table5a", "wrong and unknown"), ("table5b", "unknown")):
        for name in ("CIFAR-10/SVHN-C", "CIFAR-100/SVHN-C"):
            for metric, sign in (("AUROC", 1), ("FPR@TPR95", -1)):
                column = f"{name} {metric}"
                text = f"{name}, {positives}: {metric} {{ours}}, the best other {{other}} ({{other_row}})"
                others = tuple((rival, column) for rival in ("msp", "max_logit", "energy"))
                yield _Test(table, ("confidence_difference", column), others, text, sign)


def _driving_tests(make: Callable[[str, str, str], Sequence[_Test]]) -> list[_Test]:
    """Return the tests of TENT and SWR in each driving table, by its rows without and with selection."""
    tests: list[_Test] = []
    for name in _DRIVING_TABLES:
        rows = {entry.specs[0].method: entry.row for entry in _find_table(name).entries}
        tests += [test for base in ("tent", "swr") for test in make(name, rows[base], rows[f"{base}+crowd"])]
    return tests


def _driving_gain(table: str, base: str, selecting: str) -> list[_Test]:
    return [_make_pair(table, "Round 5", selecting, base, "CamVid: mIoU", sign=1)]


def _driving_stability(table: str, _: str, selecting: str) -> list[_Test]:
    text = "CamVid: mIoU of {ours_row} {other}, then {ours}"
    return [_Test(table, (selecting, "Round 5"), ((selecting, "Round 1"),), text, sign=1, margin=0.0)]


def _driving_detection(table: str, _: str, selecting: str) -> list[_Test]:
    return [
        _Test(
            f"{table}_auroc", (selecting, f"{pixels}/By novelty"), ((selecting, f"{pixels}/By largest probability"),),
            f"CamVid, {{ours_row}}, {pixels.lower()}: AUROC {{ours}}, MSP {{other}}", sign=1,
        )
        for pixels in ("Wrong", "Unknown")
    ]  # fmt: skip


@cache
def _list_claims() -> dict[str, Sequence[_Test | _DeviationTest]]:
    open_columns = [f"{name}/Open" for name in _CIFAR_SETS]
    collapse = _make_pair("table1", open_columns[0], "tent", "bn_adapt", sign=1, margin=_COLLAPSE_POINTS)
    return {
        f"Among unknown images, TENT with selection ends at most {_CLOSE_POINTS:g} points above BN Adapt on both CIFAR "
        f"sets, and plain TENT ends at least {_COLLAPSE_POINTS:g} points above it on CIFAR-10-C": [
            *(_make_pair("table1", column, "tent+crowd", "bn_adapt", margin=-_CLOSE_POINTS) for column in open_columns),
            collapse,
        ],
        "Selection improves long-term adaptation: without unknown images, every method ends with a lower error": (
            _selection_gain("Closed")
        ),
        "Selection improves open-set adaptation: among unknown images, every method ends with a lower error": (
            _selection_gain("Open")
        ),
        "The confidence difference separates better than MSP, max logit and energy": list(_score_separation()),
        "Selection by softmax beats selection by logits": [
            _make_pair("s5", name, "tent+crowd", "tent+crowd (logits)") for name in _IMAGE_SETS
        ],
        "Selection makes TENT robust to learning rate and batch size: its error varies less across them": [
            _DeviationTest("table8a", "learning rates"),
            _DeviationTest("table8b", "batch sizes"),
        ],
        "SWR among unknown images remains hard: even with selection it ends above BN Adapt": [
            _make_pair("table1", column, "swr+crowd", "bn_adapt", sign=1) for column in open_columns
        ],
        "On driving scenes, every method ends with a higher mIoU with selection, at the learning rates that were run": (
            _driving_tests(_driving_gain)
        ),
        "On driving scenes, a method with selection ends no lower than it started": _driving_tests(_driving_stability),
        "On driving scenes, the confidence difference ranks wrong and unknown pixels better than MSP, over all "
        "pixels": _driving_tests(_driving_detection),
    }


def evaluate_claims(archives: Sequence[Results]) -> list[Claim]:
    """Check every claim of the paper.

    Args:
        archives: Results folders or archives. A case takes all its numbers from the first archive that has them;
            archives with only some of the images come last.
    """
    ordered = sorted(archives, key=lambda results: results.is_subset)
    claims = []
    for text, tests in _list_claims().items():
        found = (next(filter(None, map(test.evaluate, ordered)), None) for test in tests)
        claims.append(Claim(text, tuple(case for case in found if case is not None)))
    return claims
