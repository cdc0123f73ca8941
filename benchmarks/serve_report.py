"""Write up the results of `serve_load.py`."""

from collections.abc import Mapping
from typing import Any

from tables import format_protocol

__all__ = ["format_report"]


def format_report(results: Mapping[str, Any]) -> str:
    """Return the results as a page of Markdown."""
    runs = [*results["short"], *([results["long"]["load"]] if results["long"] else [])]
    lines = ["# A server under load", "", *_format_runs(runs)]
    if results["long"] is not None:
        lines += _format_long(results["long"])
    return "\n".join([*lines, *format_protocol(results["protocol"])])


def _format_runs(runs: list[Mapping[str, Any]]) -> list[str]:
    names = list(runs[0]["latency_ms"])
    head = ["connections", "seconds", "requests/s", "images/s", *(f"{name}, ms" for name in names), "accuracy"]
    lines = [_row(head), _row(["---:"] * len(head))]
    for run in runs:
        shown = [run["connections"], run["seconds"], run["requests_per_second"], run["images_per_second"]]
        lines.append(_row([*shown, *run["latency_ms"].values(), f"{run['accuracy']:.1%}"]))
    lines += _format_costs([run for run in runs if "cpu_ms_per_image" in run])
    words = {
        "sent": "requests sent",
        "answered": "answered",
        "lost": "lost: no answer in two minutes",
        "mismatched": "answered for other images",
        "unexpected": "answered with an unexpected error",
        "broken": "attempts that ended with a broken connection, and were sent again",
        "busy": "attempts refused because the server was busy or stopping, and sent again",
    }
    head = ["", *(f"{run['connections']} connections" for run in runs)]
    lines += ["", _row(head), _row(["---", *["---:"] * len(runs)])]
    return lines + [_row([text, *(f"{run[name]:,}" for run in runs)]) for name, text in words.items()]


def _format_costs(runs: list[Mapping[str, Any]]) -> list[str]:
    """Return what the server used; nothing for results without it."""
    if not runs:
        return []
    head = ["connections", "processor time per request, ms", "per image, ms", "images per batch"]
    rows = [
        [run["connections"], run["cpu_ms_per_request"], run["cpu_ms_per_image"], run["images_per_batch"]]
        for run in runs
    ]
    return ["", _row(head), _row(["---:"] * 4), *map(_row, rows)]


def _format_long(long: Mapping[str, Any]) -> list[str]:
    lines = ["", "During the long run:", "", _row(["what was sent", "what came back"]), _row(["---", "---"])]
    for name, counts in long["faults"].items():
        lines.append(_row([name, ", ".join(f"{count:,} × {what}" for what, count in sorted(counts.items()))]))
    lines += [
        "",
        "The server was ended and started again with `--resume` while clients went on:",
        "",
        _row(["signal", "exit code", "seconds away", "batches in the snapshot", "batches after the restart"]),
        _row(["---", "---:", "---:", "---:", "---:"]),
    ]
    for restart in long["restarts"]:
        lines.append(_row([value for name, value in restart.items() if name != "continued"]))
    memory = ", ".join(f"{value / 2**20:.0f}" for value in long["memory"])
    return [
        *lines,
        "",
        f"Resident memory, MiB: {memory} (start of the run, after the faults; then the same after a restart). "
        f"A traceback in the log: {_say(long['traceback_in_log'])}. "
        f"The token in the log: {_say(long['token_in_log'])}.",
    ]


def _say(value: bool) -> str:
    return "yes" if value else "no"


def _row(cells: list[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
