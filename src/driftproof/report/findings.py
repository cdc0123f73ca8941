"""What the numbers say, in sentences made from nothing but the numbers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from driftproof.bench import Results
from driftproof.report.numbers import format_number
from driftproof.report.series import MethodSeries, StreamGroup, group_streams

__all__ = ["Finding", "overall_summary", "stream_findings", "summary_sentences"]

_MIN_CHANGE = 0.5
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


def summary_sentences(results: Results) -> list[str]:
    """What a results folder says, one sentence after the other, the conclusion last."""
    streams = group_streams(results)
    sentences = [sentence for finding in stream_findings(results, streams) for sentence in finding.what]
    return [*sentences, *filter(None, [overall_summary(results, streams)])]


def stream_findings(results: Results, streams: Sequence[StreamGroup]) -> list[Finding]:
    """For each stream, how every method fared with and without selection, and which ended best."""
    return [Finding(_finding_title(results, stream), tuple(_finding_sentences(results, stream))) for stream in streams]


def overall_summary(results: Results, streams: Sequence[StreamGroup]) -> str:
    """How often selection ended better, and where it did not; empty where nothing can be compared."""
    better, others, early = 0, [], False
    for stream in streams:
        sign = 1 if stream.quantity.lower_is_better else -1
        for _, selecting, without, with_it in _paired_values(results, stream):
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
    return f"With selection, the {words} of the {last} is {comparative} in {better} of {_count_comparisons(total)}.{exceptions}"


def _count_comparisons(total: int) -> str:
    return "1 comparison" if total == 1 else f"{total} comparisons"


def _finding_title(results: Results, stream: StreamGroup) -> str:
    rounds = stream.rounds(results)
    return f"{stream.name}, {'one round' if rounds == 1 else f'{rounds} rounds'}"


def _finding_sentences(results: Results, stream: StreamGroup) -> Iterator[str]:
    rounds = stream.rounds(results)
    for plain, selecting, without, with_it in _paired_values(results, stream):
        early = f" (round {len(without)})" if len(without) < rounds else ""
        yield f"{plain.name} {_describe_change(without)}; {selecting.name} {_format_ends(with_it)}{early}."
    there = [line for line in stream.lines if line.rounds(results) == rounds or line.steady(results)]
    ends = {line.name: line.per_round(results, stream.quantity.measure)[-1] for line in there}
    last = {name: value for name, value in ends.items() if math.isfinite(value)}
    if len(last) > 1:
        best = (min if stream.quantity.lower_is_better else max)(last.values())
        names = ", ".join(name for name, value in last.items() if value == best)
        everybody = len(there) == len(stream.lines)
        which = "Best in the last round" if everybody else f"Best of those that came to round {rounds}"
        yield f"{which}: {names}, {format_number(best)}{_PERCENT}."


def _paired_values(results: Results, stream: StreamGroup) -> Iterator[tuple[MethodSeries, MethodSeries, list[float], list[float]]]:
    """Each method without and with selection, over the rounds that both have completed."""
    for plain, selecting in stream.pairs():
        without, with_it = (line.per_round(results, stream.quantity.measure) for line in (plain, selecting))
        rounds = min(len(without), len(with_it))
        if math.isfinite(without[rounds - 1] + with_it[rounds - 1]):
            yield plain, selecting, without[:rounds], with_it[:rounds]


def _describe_change(values: Sequence[float]) -> str:
    change = values[-1] - values[0]
    if len(values) == 1:
        return f"is at {_format_ends(values)}"
    if abs(change) < _MIN_CHANGE:
        return f"held, {_format_ends(values)}"
    return f"{'rose' if change > 0 else 'fell'} from {format_number(values[0])} to {format_number(values[-1])}{_PERCENT}"


def _format_ends(values: Sequence[float]) -> str:
    numbers = values[:1] if len(values) == 1 else (values[0], values[-1])
    return f"{_ARROW.join(map(format_number, numbers))}{_PERCENT}"
