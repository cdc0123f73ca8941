"""Under what protocol the numbers came about, and what they cost."""

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
    """A table of words.

    Attributes:
        columns: Its head.
        rows: The rest; the first of each row is its name.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Cost:
    """What one line of a stream took.

    Attributes:
        time: Of a round, on average.
        memory: The most that was in use.
    """

    time: str
    memory: str


@dataclass(frozen=True)
class Protocol:
    """Everything a reader needs to judge the numbers, or to get them again.

    Attributes:
        streams: What was streamed.
        methods: What was run on it.
        costs: By name of the line, for each stream in order; None where it was not run.
        facts: Versions, hardware and time, by name.
        shared: What the results rest on besides: limits, stand-ins, checksums of weights and images.
    """

    streams: TextTable
    methods: TextTable
    costs: dict[str, list[Cost | None]]
    facts: dict[str, str]
    shared: dict[str, str]


def build_protocol(results: Results, streams: Sequence[StreamGroup]) -> Protocol:
    """The protocol of everything in a results folder.

    Args:
        results: The folder.
        streams: Its streams.
    """
    every = [row for spec in results.runs for row in _conditions(results, spec)]
    facts = {name: _join_unique(row.get(name) for row in every) for name in _VERSIONS}
    facts |= {
        "hardware": _join_unique(map(_describe_machine, every)),
        "engines": _join_unique(" ".join(filter(None, (row.get("engine"), row.get("precision")))) or None for row in every),
        "time measured": format_duration(sum(row.get("seconds") or 0 for row in every)),
    }
    head = ("Images", "Unknown", "Network", "Severity", "Batch", "Per domain", "Seeds", "Rounds", "Domains")
    return Protocol(
        streams=TextTable(head, [_describe_stream(results, stream) for stream in streams]),
        methods=TextTable(("Method", "On", "Hyper-parameters", "In its own words"), list(_describe_methods(results))),
        costs=_collect_costs(results, streams),
        facts=facts,
        shared=dict(_flatten(results.metadata)),
    )


def _describe_stream(results: Results, stream: StreamGroup) -> list[str]:
    spec, rounds = stream.spec, sorted({line.rounds(results) for line in stream.lines})
    return [
        spec.images,
        "within the frames" if stream.of_pixels else spec.unknown or "none",
        spec.model,
        str(spec.severity),
        str(spec.batch_size),
        "all images" if spec.limit is None else f"first {spec.limit}",
        _join_unique(sorted({cell.seed for line in stream.lines for cell in line.cells})),
        f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else str(rounds[0]),
        ", ".join(domain.replace("_", " ") for domain in spec.domains),
    ]


def _describe_methods(results: Results) -> Iterable[list[str]]:
    groups: dict[tuple[Any, ...], list[Spec]] = {}
    for spec in sorted(results.runs, key=lambda spec: method_order(spec.method)):
        described = tuple(results.runs[spec].protocol.items())
        groups.setdefault((spec.method, spec.options, described), []).append(spec)
    names = [method for method, _, _ in groups]
    for (method, options, described), cells in groups.items():
        where = _join_unique(f"{spec.images} {spec.setting}" for spec in cells)
        yield [
            method.replace(",", ", "),
            "everything" if names.count(method) == 1 else where,
            ", ".join(f"{key} {_format_value(value)}" for key, value in options) or "none",
            "; ".join(f"{axis.replace('_', ' ')} {choice}" for axis, choice in described if choice != "None"),
        ]


def _collect_costs(results: Results, streams: Sequence[StreamGroup]) -> dict[str, list[Cost | None]]:
    methods = {line.name: line.method for stream in streams for line in stream.lines}
    names = sorted(methods, key=lambda name: method_order(methods[name]))
    by_stream = [{line.name: line for line in stream.lines} for stream in streams]
    return {name: [_measure_cost(results, lines[name]) if name in lines else None for lines in by_stream] for name in names}


def _measure_cost(results: Results, line: MethodSeries) -> Cost:
    rows = [row for cell in line.cells for row in _conditions(results, cell)]
    rounds = len(rows) / len(line.cells[0].domains)
    peaks = [row["peak_memory"] for row in rows if row.get("peak_memory") is not None]
    return Cost(format_duration(sum(row.get("seconds") or 0 for row in rows) / rounds), format_bytes(max(peaks, default=None)))


def _conditions(results: Results, spec: Spec) -> list[Row]:
    return results.runs[spec].conditions[: len(results.rows(spec))]


def _describe_machine(row: Row) -> str:
    threads = f", {row.get('threads')} threads" if row.get("device") == "cpu" else ""
    return f"{row.get('hardware')} ({row.get('device')}{threads})"


def _join_unique(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None)) or "–"


def _format_value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _flatten(shared: dict[str, Any]) -> Iterable[tuple[str, str]]:
    for key, value in shared.items():
        if isinstance(value, dict):
            yield from ((f"{key} {inner}", str(content)) for inner, content in value.items())
        elif isinstance(value, list):
            yield key, ", ".join(map(str, value)) or "none"
        else:
            yield key, "none" if value is None else str(value)
