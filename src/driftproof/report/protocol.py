"""The protocol behind the numbers: streams, methods, versions, hardware and cost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from driftproof.bench import Results, Spec
from driftproof.bench.store import Row
from driftproof.report.numbers import format_bytes, format_duration
from driftproof.report.series import MethodSeries, StreamGroup, method_order

__all__ = ["Cost", "Protocol", "TextTable", "build_protocol"]

_VERSIONS = ("driftproof", "torch", "python")


@dataclass(frozen=True)
class TextTable:
    """A table of text.

    Attributes:
        columns: The header.
        rows: The body; the first cell of a row is its name.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Cost:
    """Time and memory of one series.

    Attributes:
        time: Mean time of a round.
        memory: Peak memory.
    """

    time: str
    memory: str


@dataclass(frozen=True)
class Protocol:
    """Everything a reader needs to judge or reproduce the numbers.

    Attributes:
        streams: What was streamed.
        methods: The methods and their options.
        costs: By name of the series, one per stream; None where it was not run.
        facts: Versions, hardware and total time, by name.
        metadata: What all runs share: image limits, replacements, checksums of weights and images.
    """

    streams: TextTable
    methods: TextTable
    costs: dict[str, list[Cost | None]]
    facts: dict[str, str]
    metadata: dict[str, str]


def build_protocol(results: Results, streams: Sequence[StreamGroup]) -> Protocol:
    """Collect the protocol of a results folder.

    Args:
        results: The folder.
        streams: Its streams.
    """
    conditions = [row for spec in results.runs for row in _conditions(results, spec)]
    facts = {name: _join_unique(row.get(name) for row in conditions) for name in _VERSIONS}
    facts |= {
        "hardware": _join_unique(map(_describe_machine, conditions)),
        "engines": _join_unique(map(_describe_engine, conditions)),
        "time measured": format_duration(sum(row.get("seconds") or 0 for row in conditions)),
    }
    head = ("Images", "Unknown", "Network", "Severity", "Batch", "Per domain", "Seeds", "Rounds", "Domains")
    return Protocol(
        streams=TextTable(head, [_describe_stream(results, stream) for stream in streams]),
        methods=TextTable(("Method", "On", "Hyper-parameters", "Components"), list(_describe_methods(results))),
        costs=_collect_costs(results, streams),
        facts=facts,
        metadata=dict(_flatten(results.metadata)),
    )


def _describe_stream(results: Results, stream: StreamGroup) -> list[str]:
    spec, rounds = stream.spec, sorted({series.rounds(results) for series in stream.series})
    return [
        spec.images,
        "within the frames" if stream.is_segmentation else spec.unknown or "none",
        spec.model,
        str(spec.severity),
        str(spec.batch_size),
        "all images" if spec.limit is None else f"first {spec.limit}",
        _join_unique(sorted({spec.seed for series in stream.series for spec in series.specs})),
        f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else str(rounds[0]),
        ", ".join(domain.replace("_", " ") for domain in spec.domains),
    ]


def _describe_methods(results: Results) -> Iterable[list[str]]:
    groups: dict[tuple[Any, ...], list[Spec]] = {}
    for spec in sorted(results.runs, key=lambda spec: method_order(spec.method)):
        components = tuple(results.runs[spec].protocol.items())
        groups.setdefault((spec.method, spec.options, components), []).append(spec)
    names = [method for method, _, _ in groups]
    for (method, options, components), specs in groups.items():
        where = _join_unique(f"{spec.images} {spec.setting}" for spec in specs)
        yield [
            method.replace(",", ", "),
            "everything" if names.count(method) == 1 else where,
            ", ".join(f"{key} {_format_value(value)}" for key, value in options) or "none",
            "; ".join(f"{axis.replace('_', ' ')} {choice}" for axis, choice in components if choice != "None"),
        ]


def _collect_costs(results: Results, streams: Sequence[StreamGroup]) -> dict[str, list[Cost | None]]:
    methods = {series.name: series.method for stream in streams for series in stream.series}
    by_stream = [{series.name: series for series in stream.series} for stream in streams]
    return {
        name: [_measure_cost(results, by_name[name]) if name in by_name else None for by_name in by_stream]
        for name in sorted(methods, key=lambda name: method_order(methods[name]))
    }


def _measure_cost(results: Results, series: MethodSeries) -> Cost:
    rows = [row for spec in series.specs for row in _conditions(results, spec)]
    rounds = len(rows) / len(series.specs[0].domains)
    seconds = sum(row.get("seconds") or 0 for row in rows)
    peaks = [row["peak_memory"] for row in rows if row.get("peak_memory") is not None]
    return Cost(format_duration(seconds / rounds), format_bytes(max(peaks, default=None)))


def _conditions(results: Results, spec: Spec) -> list[Row]:
    return results.runs[spec].conditions[: len(results.rows(spec))]


def _describe_machine(row: Row) -> str:
    threads = f", {row.get('threads')} threads" if row.get("device") == "cpu" else ""
    return f"{row.get('hardware')} ({row.get('device')}{threads})"


def _describe_engine(row: Row) -> str | None:
    return " ".join(filter(None, (row.get("engine"), row.get("precision")))) or None


def _join_unique(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None)) or "–"


def _format_value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _flatten(metadata: dict[str, Any]) -> Iterable[tuple[str, str]]:
    for key, value in metadata.items():
        if isinstance(value, dict):
            yield from ((f"{key} {inner}", str(content)) for inner, content in value.items())
        elif isinstance(value, list):
            yield key, ", ".join(map(str, value)) or "none"
        else:
            yield key, "none" if value is None else str(value)
