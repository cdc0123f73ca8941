"""What the paper claims, held against what was measured."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from driftproof.bench import SUITES, Results, Value, filled
from driftproof.bench.tables import Entry, Table
from driftproof.report.caveats import caveats, concerning
from driftproof.report.numbers import number, signed

__all__ = ["Case", "Claim", "claims"]

_CIFAR = ("CIFAR-10-C", "CIFAR-100-C")
_SETS = (*_CIFAR, "TinyImageNet-C")
_BASES = ("ent", "tent", "eata", "swr")

_DRIVES = ("camvid", "camvid_x10", "camvid_x100", "camvid_x1000")

_NEAR, _FAR = 2.0, 20.0
"""Percentage points: within so much of BN Adapt is as good as it; so much above it has collapsed."""


@dataclass(frozen=True)
class Case:
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
    cases: tuple[Case, ...]

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
            " ".join([f"{case.numbers}{'' if case.holds else ' ✗'}{_early(case)}", *_apart(case)])
            for case in self.cases
        ]


def _early(case: Case) -> str:
    return "" if case.round >= case.wanted else f" (round {case.round} of {case.wanted})"


def _apart(case: Case) -> list[str]:
    return [f"[{' '.join(case.caveats)}]"] if case.caveats else []


def claims(everything: Sequence[Results]) -> list[Claim]:
    """The paper's claims, each with its verdict.

    Args:
        everything: Results folders or archives; a case counts in the first one that has all its numbers, those that
            streamed only some images last.
    """
    ordered = sorted(everything, key=lambda results: results.limited)
    return [Claim(text, tuple(find(ordered))) for text, find in _CLAIMS.items()]


@dataclass(frozen=True)
class _Numbers:
    """Numbers of one table and one column, from the last round that all of them have reached."""

    values: dict[str, float]
    round: int
    wanted: int
    caveats: tuple[str, ...]
    limited: bool

    def case(self, holds: bool, numbers: str) -> Case:
        return Case(holds, numbers, self.round, self.wanted, self.caveats, self.limited)


def _numbers(everything: Sequence[Results], table: str, column: str, *rows: str) -> _Numbers | None:
    entries = {entry.row: entry for entry in _table(table).entries if entry.column == column}
    if not set(rows) <= set(entries):
        return None
    for results in everything:
        found = results.together([entries[row] for row in rows])
        known = {row: value.ours for row, value in zip(rows, found, strict=True) if value.ours is not None}
        if len(known) == len(rows):
            apart = _caveats(results, [entries[row] for row in rows])
            return _Numbers(known, found[0].round or 0, found[0].wanted, apart, results.limited)
    return None


def _caveats(results: Results, entries: Sequence[Entry]) -> tuple[str, ...]:
    """What was prepared on, and made-up frost, are said beside the tables."""
    said = concerning([spec for entry in entries for spec in entry.specs], results.shared)
    return tuple(caveats({key: said[key] for key in ("limit", "replaced") if key in said}))


@cache
def _table(name: str) -> Table:
    return next(table for make in SUITES.values() for table in make().tables if table.name == name)


def _centre(everything: Sequence[Results]) -> Iterator[Case]:
    for name in _CIFAR:
        found = _numbers(everything, "table1", f"{name}/Open", "bn_adapt", "tent+crowd")
        if found:
            gap = found.values["tent+crowd"] - found.values["bn_adapt"]
            yield found.case(gap <= _NEAR, f"{name}: {_pair(found, 'tent+crowd', 'bn_adapt')}")
    found = _numbers(everything, "table1", "CIFAR-10-C/Open", "bn_adapt", "tent")
    if found:
        gap = found.values["tent"] - found.values["bn_adapt"]
        yield found.case(gap >= _FAR, f"CIFAR-10-C: {_pair(found, 'tent', 'bn_adapt')}")


def _rescue(setting: str) -> Callable[[Sequence[Results]], Iterator[Case]]:
    def find(everything: Sequence[Results]) -> Iterator[Case]:
        for name in _SETS:
            for base in _BASES:
                found = _numbers(everything, "table1", f"{name}/{setting}", base, f"{base}+crowd")
                if found:
                    better = found.values[f"{base}+crowd"] < found.values[base]
                    yield found.case(better, f"{name}: {_pair(found, f'{base}+crowd', base)}")

    return find


def _separation(everything: Sequence[Results]) -> Iterator[Case]:
    rivals = ("msp", "max_logit", "energy")
    for table, protocol in (("table5a", "wrong and unknown"), ("table5b", "unknown")):
        for name, measure in product(("CIFAR-10/SVHN-C", "CIFAR-100/SVHN-C"), ("AUROC", "FPR@TPR95")):
            found = _numbers(everything, table, f"{name} {measure}", "confidence_difference", *rivals)
            if found:
                sign = 1 if measure == "AUROC" else -1
                best = max(rivals, key=lambda rival: sign * found.values[rival])
                ours, other = found.values["confidence_difference"], found.values[best]
                numbers = f"{name}, {protocol}: {measure} {number(ours)}, the best other {number(other)} ({best})"
                yield found.case(sign * ours > sign * other, numbers)


def _softmax(everything: Sequence[Results]) -> Iterator[Case]:
    for name in _SETS:
        found = _numbers(everything, "s5", name, "tent+crowd", "tent+crowd (logits)")
        if found:
            better = found.values["tent+crowd"] < found.values["tent+crowd (logits)"]
            yield found.case(better, f"{name}: {_pair(found, 'tent+crowd', 'tent+crowd (logits)')}")


def _robust(everything: Sequence[Results]) -> Iterator[Case]:
    for name, words in (("table8a", "learning rates"), ("table8b", "batch sizes")):
        for results in everything:
            pair = _deviations(results, _table(name))
            if pair is not None:
                round = min(value.round or 0 for value in pair)
                with_it, without = (
                    value.ours or 0.0 for value in _deviations(results, _until(_table(name), round)) or pair
                )
                numbers = f"{words}: deviation {number(with_it)} with selection, {number(without)} without"
                apart, limited = _caveats(results, _table(name).entries), results.limited
                yield Case(with_it < without, numbers, round, pair[0].wanted, apart, limited)
                break


def _deviations(results: Results, table: Table) -> tuple[Value, Value] | None:
    values = filled(results, table).values
    with_it, without = values["tent+crowd", "Std"], values["tent", "Std"]
    return None if with_it.ours is None or without.ours is None else (with_it, without)


def _until(table: Table, round: int) -> Table:
    return replace(table, entries=tuple(replace(entry, round=min(entry.round, round)) for entry in table.entries))


def _hard(everything: Sequence[Results]) -> Iterator[Case]:
    for name in _CIFAR:
        found = _numbers(everything, "table1", f"{name}/Open", "swr+crowd", "bn_adapt")
        if found:
            worse = found.values["swr+crowd"] > found.values["bn_adapt"]
            yield found.case(worse, f"{name}: {_pair(found, 'swr+crowd', 'bn_adapt')}")


def _drives() -> Iterator[tuple[str, str, str]]:
    """The tables of driving scenes, with their rows of each method that takes steps: without selection, and with it."""
    for name in _DRIVES:
        rows = {entry.specs[0].method: entry.row for entry in _table(name).entries}
        yield from ((name, rows[base], rows[f"{base}+crowd"]) for base in ("tent", "swr"))


def _rescue_on_the_road(everything: Sequence[Results]) -> Iterator[Case]:
    for name, base, selecting in _drives():
        found = _numbers(everything, name, _table(name).entries[-1].column, base, selecting)
        if found:
            higher = found.values[selecting] > found.values[base]
            yield found.case(higher, f"CamVid: mIoU {_pair(found, selecting, base)}")


def _kept_on_the_road(everything: Sequence[Results]) -> Iterator[Case]:
    for name, _, selecting in _drives():
        columns = [entry.column for entry in _table(name).entries if entry.row == selecting]
        begun, ended = (_numbers(everything, name, column, selecting) for column in (columns[0], columns[-1]))
        if begun and ended and ended.round > 1:
            first, last = begun.values[selecting], ended.values[selecting]
            yield ended.case(last >= first, f"CamVid: mIoU of {selecting} {number(first)}, then {number(last)}")


def _found_on_the_road(everything: Sequence[Results]) -> Iterator[Case]:
    for name, _, selecting in _drives():
        for pixels in ("Wrong", "Unknown"):
            scores = (f"{pixels}/By novelty", f"{pixels}/By largest probability")
            found = [_numbers(everything, f"{name}_auroc", score, selecting) for score in scores]
            if found[0] and found[1]:
                ours, other = (each.values[selecting] for each in found if each)
                numbers = f"CamVid, {selecting}, {pixels.lower()}: AUROC {number(ours)}, MSP {number(other)}"
                yield found[0].case(ours > other, numbers)


def _pair(found: _Numbers, ours: str, other: str) -> str:
    gap = found.values[ours] - found.values[other]
    return f"{ours} {number(found.values[ours])}, {other} {number(found.values[other])} ({signed(gap, 1)})"


_CLAIMS: dict[str, Callable[[Sequence[Results]], Iterator[Case]]] = {
    f"Among unknown images, TENT with selection ends within {_NEAR:g} points of BN Adapt or better on both CIFAR sets, "
    f"while plain TENT ends at least {_FAR:g} points above it on CIFAR-10-C": _centre,
    "Selection rescues long-term adaptation: without unknown images, every method ends better with it": _rescue(
        "Closed"
    ),
    "Selection rescues open-set adaptation: among unknown images, every method ends better with it": _rescue("Open"),
    "The confidence difference separates better than MSP, max logit and energy": _separation,
    "Selecting by softmax beats selecting by logits": _softmax,
    "Selection makes TENT robust to learning rate and batch size: its error deviates less over them": _robust,
    "SWR among unknown images stays hard: even with selection it ends above BN Adapt": _hard,
    "On driving scenes every method ends with a higher mIoU if it selects, at the rates that were run": (
        _rescue_on_the_road
    ),
    "On driving scenes a method that selects ends no lower than it began": _kept_on_the_road,
    "On driving scenes the confidence difference ranks wrong and unknown pixels better than MSP, over all pixels": (
        _found_on_the_road
    ),
}
