"""Sentences that state what the numbers show."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from driftproof.bench import Results
from driftproof.report.numbers import format_number
from driftproof.report.series import MethodSeries, StreamGroup, group_streams

__all__ = ["Finding", "overall_summary", "stream_findings", "summary_sentences"]

_MIN_CHANGE = 0.5
"""Percentage points; a smaller change over the rounds counts as no change."""

_PERCENT, _ARROW = "\u00a0%", "\u00a0→\u00a0"


@dataclass(frozen=True)
class Finding:
    """What happened on one stream.

    Attributes:
        title: The stream and its number of rounds.
        sentences: One for each method that ran with and without selection, and one on the best method.
    """

    title: str
    sentences: tuple[str, ...]


def summary_sentences(results: Results) -> list[str]:
    """All findings of a results folder, with the overall summary last."""
    streams = group_streams(results)
    sentences = [sentence for finding in stream_findings(results, streams) for sentence in finding.sentences]
    return [*sentences, *filter(None, [overall_summary(results, streams)])]


def stream_findings(results: Results, streams: Sequence[StreamGroup]) -> list[Finding]:
    """For each stream, the results with and without selection, and the best method."""
    return [Finding(_finding_title(results, stream), tuple(_finding_sentences(results, stream))) for stream in streams]


def overall_summary(results: Results, streams: Sequence[StreamGroup]) -> str:
    """In how many comparisons selection ended better, and the exceptions; empty if there are none."""
    better, exceptions, early = 0, [], False
    for stream in streams:
        sign = 1 if stream.metric.lower_is_better else -1
        for _, selecting, without, with_it in _paired_values(results, stream):
            early = early or len(without) < stream.rounds(results)
            if sign * (with_it[-1] - without[-1]) < 0:
                better += 1
            else:
                exceptions.append(f"{selecting.name} on {stream.name}")
    total = better + len(exceptions)
    if not total:
        return ""
    metrics = {(stream.metric.label, stream.metric.lower_is_better) for stream in streams}
    [(label, lower)] = metrics if len(metrics) == 1 else [("result", None)]
    comparative = "better" if lower is None else "lower" if lower else "higher"
    listed = f" Exception{'s' * (len(exceptions) > 1)}: {'; '.join(exceptions)}." if better and exceptions else ""
    last = "last common round" if early else "last round"
    share = f"{better} of {_count_comparisons(total)}"
    return f"With selection, the {label} of the {last} is {comparative} in {share}.{listed}"


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
    finished = [series for series in stream.series if series.rounds(results) == rounds or series.is_stateless(results)]
    ends = {series.name: series.per_round(results, stream.metric.key)[-1] for series in finished}
    last = {name: value for name, value in ends.items() if math.isfinite(value)}
    if len(last) > 1:
        best = (min if stream.metric.lower_is_better else max)(last.values())
        names = ", ".join(name for name, value in last.items() if value == best)
        is_complete = len(finished) == len(stream.series)
        scope = "Best in the last round" if is_complete else f"Best of those that reached round {rounds}"
        yield f"{scope}: {names}, {format_number(best)}{_PERCENT}."


def _paired_values(
    results: Results, stream: StreamGroup
) -> Iterator[tuple[MethodSeries, MethodSeries, list[float], list[float]]]:
    """Each method without and with selection, over the rounds that both have completed."""
    for plain, selecting in stream.pairs():
        without, with_it = (series.per_round(results, stream.metric.key) for series in (plain, selecting))
        rounds = min(len(without), len(with_it))
        if math.isfinite(without[rounds - 1] + with_it[rounds - 1]):
            yield plain, selecting, without[:rounds], with_it[:rounds]


def _describe_change(values: Sequence[float]) -> str:
    change = values[-1] - values[0]
    if len(values) == 1:
        return f"is at {_format_ends(values)}"
    if abs(change) < _MIN_CHANGE:
        return f"is stable, {_format_ends(values)}"
    verb = "rose" if change > 0 else "fell"
    return f"{verb} from {format_number(values[0])} to {format_number(values[-1])}{_PERCENT}"


def _format_ends(values: Sequence[float]) -> str:
    ends = values[:1] if len(values) == 1 else (values[0], values[-1])
    return f"{_ARROW.join(map(format_number, ends))}{_PERCENT}"
