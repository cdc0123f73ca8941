"""Format and write the results of the benchmarks."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driftproof.files import atomic_write

__all__ = ["format_protocol", "format_ratios", "write_json", "write_results"]


def format_ratios(ratios: Mapping[str, float], limits: Mapping[str, float]) -> list[str]:
    """Return ratios and their limits, where they have one, as lines of Markdown."""
    shown = {name: f"{limit:.2f}" for name, limit in limits.items()}
    rows = (f"| {name} | {ratio:.3f} | {shown.get(name, '')} |" for name, ratio in ratios.items())
    return ["| | ratio | at most |", "|---|---:|---:|", *rows]


def format_protocol(protocol: Mapping[str, Any]) -> list[str]:
    """Return the versions, the hardware and the settings as the last lines of a page."""
    return ["", ", ".join(f"{key} {value}" for key, value in protocol.items()), ""]


def write_results(folder: Path, name: str, results: Mapping[str, Any], **pages: str) -> None:
    """Write the results as JSON, and Markdown pages next to it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", results)
    for page, text in pages.items():
        with atomic_write(folder / f"{page}.md") as unfinished:
            unfinished.write_text(text, encoding="utf-8")


def write_json(path: Path, results: Mapping[str, Any]) -> None:
    """Write the results as JSON."""
    with atomic_write(path) as unfinished:
        unfinished.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
