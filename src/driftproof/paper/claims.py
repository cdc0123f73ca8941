"""The paper's claims, each checked against the measured numbers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

from driftproof.bench.results import Results, Value, fill_table
from driftproof.bench.tables import Table, TableEntry
from driftproof.paper.notes import relevant_notes
from driftproof.paper.suites import all_tables
from driftproof.report.numbers import format_number, format_signed

__all__ = ["Claim", "ClaimCase", "evaluate_claims"]

_CIFAR_SETS = ("CIFAR-10-C", "CIFAR-100-C")
_IMAGE_SETS = (*_CIFAR_SETS, "TinyImageNet-C")
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
    notes: Sequence[str] = ()
    is_subset: bool = False

    @property
    def text(self) -> str:
        """The numbers, a cross where the claim does not hold, the round if it is too early, and notes."""
        early = [f"(round {self.round} of {self.paper_round})"] if self.round < self.paper_round else []
        notes = [f"[{' '.join(self.notes)}]"] if self.notes else []
        return " ".join([self.numbers, *([] if self.holds else ["✗"]), *early, *notes])


@dataclass(frozen=True)
class Claim:
    """A claim and all comparisons that test it; none if nothing relevant was measured."""

    text: str
    cases: Sequence[ClaimCase]

    @property
    def verdict(self) -> str:
        """Whether the claim holds; "so far" and the rounds if runs ended before the paper's round."""
        if not self.cases:
            return "not measured"
        held, total = sum(case.holds for case in self.cases), len(self.cases)
        verdict = "holds" if held == total else "does not hold" if not held else f"holds in {held} of {total} cases"
        wanted, rounds = self.cases[0].paper_round, sorted(min(case.round, case.paper_round) for case in self.cases)
        span = f"round {rounds[0]}" if rounds[0] == rounds[-1] else f"rounds {rounds[0]} to {rounds[-1]}"
        early = f" ({span} of {wanted})" if rounds[0] < wanted else ""
        return f"so far, {verdict}{early}" if early or any(case.is_subset for case in self.cases) else verdict


_Test = Callable[[Results], ClaimCase | None]
_Place = tuple[str, str]
"""Row and column."""


def evaluate_claims(archives: Sequence[Results]) -> list[Claim]:
    """Check every claim of the paper.

    Args:
        archives: Results folders or archives. A case takes all its numbers from the first archive that has them;
            archives with only some of the images come last.
    """
    ordered = sorted(archives, key=lambda results: results.is_subset)
    found = {text: [_evaluate(test, ordered) for test in tests] for text, tests in _list_claims().items()}
    return [Claim(text, [case for case in cases if case is not None]) for text, cases in found.items()]


def _evaluate(test: _Test, archives: Sequence[Results]) -> ClaimCase | None:
    return next((case for results in archives if (case := test(results)) is not None), None)


@cache
def _find_table(name: str) -> Table:
    return next(table for table in all_tables() if table.name == name)


def _compare(
    results: Results,
    table: str,
    ours: _Place,
    others: Sequence[_Place],
    text: str,
    sign: int = -1,
    margin: float | None = None,
) -> ClaimCase | None:
    """Test whether a number is higher (`sign` 1) or lower (-1) than the best of others, by a margin or at all."""
    entries = {(entry.row, entry.column): entry for entry in _find_table(table).entries}
    chosen = [entries[place] for place in (ours, *others)]
    # Of entries that ask for different rounds, the first asks for the last.
    is_start = len({entry.round for entry in chosen}) > 1
    values = [results.value(entry) for entry in chosen] if is_start else results.compare(chosen)
    numbers = [value.ours for value in values if value.ours is not None]
    if len(numbers) < len(chosen) or (is_start and values[0].round == 1):
        return None
    best = max(range(1, len(numbers)), key=lambda index: sign * numbers[index])
    gap = numbers[0] - numbers[best]
    shown = text.format(
        ours=format_number(numbers[0]), other=format_number(numbers[best]), gap=format_signed(gap),
        ours_row=ours[0], other_row=others[best - 1][0],
    )  # fmt: skip
    return _make_case(results, chosen, sign * gap > 0 if margin is None else sign * gap >= margin, shown, values[0])


def _compare_deviations(results: Results, table: str, text: str) -> ClaimCase | None:
    """Test whether the error of TENT varies less with selection, at the last round that both have reached."""
    layout, rows = _find_table(table), ("tent+crowd", "tent")
    found = [fill_table(results, layout).values[row, "Std"] for row in rows]
    if any(value.ours is None for value in found):
        return None
    round = min(value.round or 0 for value in found)
    limited = replace(layout, entries=tuple(replace(e, round=min(e.round, round)) for e in layout.entries))
    filled = fill_table(results, limited).values
    with_it, without = (filled[row, "Std"].ours or 0.0 for row in rows)
    text = f"{text}: deviation {format_number(with_it)} with selection, {format_number(without)} without"
    return _make_case(results, layout.entries, with_it < without, text, replace(found[0], round=round))


def _make_case(results: Results, entries: Sequence[TableEntry], holds: bool, text: str, value: Value) -> ClaimCase:
    notes = relevant_notes(entries, results.metadata, ("limit", "replaced"))
    return ClaimCase(holds, text, value.round or 0, value.wanted, notes, results.is_subset)


def _pair(
    table: str, column: str, ours: str, other: str, label: str = "", sign: int = -1, margin: float | None = None
) -> _Test:
    text = f"{label or column.partition('/')[0] + ':'} {{ours_row}} {{ours}}, {{other_row}} {{other}} ({{gap}})"
    others = [(other, column)]
    return partial(_compare, table=table, ours=(ours, column), others=others, text=text, sign=sign, margin=margin)


def _selection_gain(setting: str) -> list[_Test]:
    pairs = product(_IMAGE_SETS, ("ent", "tent", "eata", "swr"))
    return [_pair("table1", f"{name}/{setting}", f"{base}+crowd", base) for name, base in pairs]


def _score_separation() -> Iterator[_Test]:
    positives = {"table5a": "wrong and unknown", "table5b": "unknown"}
    for table, name, (metric, sign) in product(positives, _CIFAR_SETS, (("AUROC", 1), ("FPR@TPR95", -1))):
        images = f"{name.removesuffix('-C')}/SVHN-C"
        column = f"{images} {metric}"
        text = f"{images}, {positives[table]}: {metric} {{ours}}, the best other {{other}} ({{other_row}})"
        ours, others = ("confidence_difference", column), [(row, column) for row in ("msp", "max_logit", "energy")]
        yield partial(_compare, table=table, ours=ours, others=others, text=text, sign=sign)


def _driving_rows() -> Iterator[tuple[str, str, str]]:
    """Each driving table with its rows of TENT and SWR, without and with selection."""
    for name in _DRIVING_TABLES:
        rows = {entry.specs[0].method: entry.row for entry in _find_table(name).entries}
        yield from ((name, rows[base], rows[f"{base}+crowd"]) for base in ("tent", "swr"))


def _driving_stability(table: str, row: str) -> _Test:
    text = "CamVid: mIoU of {ours_row} {other}, then {ours}"
    start, end = (row, "Round 1"), (row, "Round 5")
    return partial(_compare, table=table, ours=end, others=[start], text=text, sign=1, margin=0.0)


def _driving_detection(table: str, row: str, pixels: str) -> _Test:
    text = f"CamVid, {{ours_row}}, {pixels.lower()}: AUROC {{ours}}, MSP {{other}}"
    ours, others = (row, f"{pixels}/By novelty"), [(row, f"{pixels}/By largest probability")]
    return partial(_compare, table=f"{table}_auroc", ours=ours, others=others, text=text, sign=1)


@cache
def _list_claims() -> dict[str, list[_Test]]:
    """Return the tests of every claim."""
    near = [_pair("table1", f"{name}/Open", "tent+crowd", "bn_adapt", margin=-_CLOSE_POINTS) for name in _CIFAR_SETS]
    far = _pair("table1", "CIFAR-10-C/Open", "tent", "bn_adapt", sign=1, margin=_COLLAPSE_POINTS)
    driving = list(_driving_rows())
    return {
        f"Among unknown images, TENT with selection ends at most {_CLOSE_POINTS:g} points above BN Adapt on both CIFAR "
        f"sets, and plain TENT ends at least {_COLLAPSE_POINTS:g} points above it on CIFAR-10-C": [*near, far],
        "Selection improves long-term adaptation: without unknown images, every method ends with a lower error":
            _selection_gain("Closed"),
        "Selection improves open-set adaptation: among unknown images, every method ends with a lower error":
            _selection_gain("Open"),
        "The confidence difference separates better than MSP, max logit and energy": list(_score_separation()),
        "Selection by softmax beats selection by logits":
            [_pair("s5", name, "tent+crowd", "tent+crowd (logits)") for name in _IMAGE_SETS],
        "Selection makes TENT robust to learning rate and batch size: its error varies less across them": [
            partial(_compare_deviations, table="table8a", text="learning rates"),
            partial(_compare_deviations, table="table8b", text="batch sizes"),
        ],
        "SWR among unknown images remains hard: even with selection it ends above BN Adapt":
            [_pair("table1", f"{name}/Open", "swr+crowd", "bn_adapt", sign=1) for name in _CIFAR_SETS],
        "On driving scenes, every method ends with a higher mIoU with selection, at the learning rates that were run":
            [_pair(table, "Round 5", row, base, "CamVid: mIoU", sign=1) for table, base, row in driving],
        "On driving scenes, a method with selection ends no lower than it started":
            [_driving_stability(table, row) for table, _, row in driving],
        "On driving scenes, the confidence difference ranks wrong and unknown pixels better than MSP, over all pixels":
            [_driving_detection(table, row, kind) for table, _, row in driving for kind in ("Wrong", "Unknown")],
    }  # fmt: skip
