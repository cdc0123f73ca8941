"""What the numbers say, in sentences made from nothing but the numbers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from driftproof.bench import Results
from driftproof.report.lines import Line, Stream, measured_streams
from driftproof.report.numbers import number

__all__ = ["Finding", "conclusion", "findings", "told"]

_NOTICEABLE = 0.5
"""Percentage points; a smaller change over the rounds is called no change."""

_PERCENT, _ARROW = "\u00a0%", "\u00a0→\u00a0"


@dataclass(frozen=True)
class Finding:
    """What happened on one stream.

    Attributes:
        where: The stream, and over how many rounds.
        what: A sentence for each method that was run with and without selection, and one on the best.
    """

    where: str
    what: tuple[str, ...]


def told(results: Results) -> list[str]:
    """What a results folder says, one sentence after the other, the conclusion last."""
    streams = measured_streams(results)
    sentences = [sentence for finding in findings(results, streams) for sentence in finding.what]
    return [*sentences, *filter(None, [conclusion(results, streams)])]


def findings(results: Results, streams: Sequence[Stream]) -> list[Finding]:
    """For each stream, how every method fared with and without selection, and which ended best."""
    return [Finding(_where(results, stream), tuple(_what(results, stream))) for stream in streams]


def conclusion(results: Results, streams: Sequence[Stream]) -> str:
    """How often selection ended better, and where it did not; empty where nothing can be compared."""
    better, others, early = 0, [], False
    for stream in streams:
        sign = 1 if stream.quantity.lower_is_better else -1
        for _, selecting, without, with_it in _compared(results, stream):
            early = early or len(without) < stream.rounds(results)
            if sign * (with_it[-1] - without[-1]) < 0:
                better += 1
            else:
                others.append(f"{selecting.name} on {stream.name}")
    total = better + len(others)
    if not total:
        return ""
    kinds = {(stream.quantity.words, stream.quantity.lower_is_better) for stream in streams}
    [(words, lower)] = kinds if len(kinds) == 1 else [("result", None)]
    comparative = "better" if lower is None else "lower" if lower else "higher"
    exceptions = f" The exception{'s' * (len(others) > 1)}: {'; '.join(others)}." if better and others else ""
    last = "last round that both have come to" if early else "last round"
    return f"With selection, the {words} of the {last} is {comparative} in {better} of {_times(total)}.{exceptions}"


def _times(total: int) -> str:
    return "1 comparison" if total == 1 else f"{total} comparisons"


def _where(results: Results, stream: Stream) -> str:
    rounds = stream.rounds(results)
    return f"{stream.name}, {'one round' if rounds == 1 else f'{rounds} rounds'}"


def _what(results: Results, stream: Stream) -> Iterator[str]:
    rounds = stream.rounds(results)
    for plain, selecting, without, with_it in _compared(results, stream):
        early = f" (round {len(without)})" if len(without) < rounds else ""
        yield f"{plain.name} {_course(without)}; {selecting.name} {_ends(with_it)}{early}."
    there = [line for line in stream.lines if line.rounds(results) == rounds or line.steady(results)]
    ends = {line.name: line.per_round(results, stream.quantity.measure)[-1] for line in there}
    last = {name: value for name, value in ends.items() if math.isfinite(value)}
    if len(last) > 1:
        best = (min if stream.quantity.lower_is_better else max)(last.values())
        names = ", ".join(name for name, value in last.items() if value == best)
        everybody = len(there) == len(stream.lines)
        which = "Best in the last round" if everybody else f"Best of those that came to round {rounds}"
        yield f"{which}: {names}, {number(best)}{_PERCENT}."


def _compared(results: Results, stream: Stream) -> Iterator[tuple[Line, Line, list[float], list[float]]]:
    """Each method without and with selection, over the rounds that both have completed."""
    for plain, selecting in stream.pairs():
        without, with_it = (line.per_round(results, stream.quantity.measure) for line in (plain, selecting))
        rounds = min(len(without), len(with_it))
        if math.isfinite(without[rounds - 1] + with_it[rounds - 1]):
            yield plain, selecting, without[:rounds], with_it[:rounds]


def _course(values: Sequence[float]) -> str:
    change = values[-1] - values[0]
    if len(values) == 1:
        return f"is at {_ends(values)}"
    if abs(change) < _NOTICEABLE:
        return f"held, {_ends(values)}"
    return f"{'rose' if change > 0 else 'fell'} from {number(values[0])} to {number(values[-1])}{_PERCENT}"


def _ends(values: Sequence[float]) -> str:
    numbers = values[:1] if len(values) == 1 else (values[0], values[-1])
    return f"{_ARROW.join(map(number, numbers))}{_PERCENT}"
