"""The paper's claims, each checked against the measured numbers.

`claims.json` lists them. A test compares, in each of its columns, the first of some rows with the best of the others.
It has to be better, by the margin where there is one, and as the table says unless `better` does. A pair of columns
compares the first with the second. Or a test compares the deviations of two rows over the columns of a table.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from driftproof.bench.results import Results, Value, fill_table
from driftproof.bench.tables import Table, TableEntry
from driftproof.paper.comparison import relevant_notes
from driftproof.paper.printed import read_json
from driftproof.paper.suites import all_tables
from driftproof.report.text import format_number, format_signed

__all__ = ["Claim", "ClaimCase", "evaluate_claims"]

_PAIR = "{ours_row} {ours}, {other_row} {other} ({gap})"


@dataclass(frozen=True)
class ClaimCase:
    """One comparison that tests a claim: whether it holds, the numbers as text, their round, and the paper's round.

    Notes say where the numbers are not comparable with the paper's, such as on a subset of the images.
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


def evaluate_claims(archives: Sequence[Results]) -> list[Claim]:
    """Check every claim of the paper.

    A case takes all its numbers from the first archive that has them; those with only some of the images come last.
    """
    ordered = sorted(archives, key=lambda results: results.is_subset)
    return [
        Claim(claim["text"], [case for test in claim["tests"] for case in _evaluate(ordered, **test)])
        for claim in read_json("claims.json")
    ]


def _evaluate(
    archives: Sequence[Results],
    table: str,
    *,
    rows: Sequence[Sequence[str]] = (),
    columns: Sequence[str | Sequence[str]] = (),
    deviation_of: Sequence[str] = (),
    **how: Any,  # noqa: ANN401  # what `_compare` takes
) -> Iterator[ClaimCase]:
    """Yield the cases of a test that were measured: one for every column and row."""
    layout = next(each for each in all_tables() if each.name == table)
    tests: list[Callable[[Results], ClaimCase | None]] = []
    if deviation_of:
        tests.append(partial(_compare_deviations, table=layout, rows=deviation_of, **how))
    for column, (ours, *others) in itertools.product(columns, rows):
        first, last = (column, column) if isinstance(column, str) else column
        places = [(ours, first), *((row, last) for row in others or [ours])]
        tests.append(partial(_compare, table=layout, places=places, **how))
    for test in tests:
        yield from itertools.islice((case for results in archives if (case := test(results)) is not None), 1)


def _compare(
    results: Results,
    table: Table,
    places: Sequence[tuple[str, str]],
    text: str = "{images}: {pair}",
    better: str | None = None,
    margin: float | None = None,
) -> ClaimCase | None:
    """Test the number of the first place against the best of the others; None if one of them was not measured."""
    entries = {(entry.row, entry.column): entry for entry in table.entries}
    chosen, (ours_row, column) = [entries[place] for place in places], places[0]
    # Of entries that ask for different rounds, the first asks for the last.
    is_start = len({entry.round for entry in chosen}) > 1
    values = [results.value(entry) for entry in chosen] if is_start else results.compare(chosen)
    numbers = [value.ours for value in values if value.ours is not None]
    if len(numbers) < len(chosen) or (is_start and values[0].round == 1):
        return None
    sign = -1 if (better or ("lower" if table.is_lower_better(column) else "higher")) == "lower" else 1
    best = max(range(1, len(numbers)), key=lambda index: sign * numbers[index])
    gap = numbers[0] - numbers[best]
    stream, _, measure = column.rpartition(" ")
    images = column.partition("/")[0]
    shown = text.replace("{pair}", _PAIR).format(
        ours=format_number(numbers[0]), other=format_number(numbers[best]), gap=format_signed(gap),
        ours_row=ours_row, other_row=places[best][0], images=images, kind=images.lower(),
        stream=stream, measure=measure,
    )  # fmt: skip
    return _make_case(results, chosen, sign * gap > 0 if margin is None else sign * gap >= margin, shown, values[0])


def _compare_deviations(results: Results, table: Table, rows: Sequence[str], text: str) -> ClaimCase | None:
    """Test whether the first row varies less, at the last round that both have reached; None if it is not known."""
    found = [fill_table(results, table).values[row, "Std"] for row in rows]
    if any(value.ours is None for value in found):
        return None
    round = min(value.round or 0 for value in found)
    limited = replace(table, entries=tuple(replace(each, round=min(each.round, round)) for each in table.entries))
    with_it, without = (fill_table(results, limited).values[row, "Std"].ours or 0.0 for row in rows)
    text = f"{text}: deviation {format_number(with_it)} with selection, {format_number(without)} without"
    return _make_case(results, table.entries, with_it < without, text, replace(found[0], round=round))


def _make_case(results: Results, entries: Sequence[TableEntry], holds: bool, text: str, value: Value) -> ClaimCase:
    notes = relevant_notes(entries, results.metadata, ("limit", "replaced"))
    return ClaimCase(holds, text, value.round or 0, value.wanted, notes, results.is_subset)
