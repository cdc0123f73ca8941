"""How the benchmarks write down what they measured."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driftproof.files import atomic_write

__all__ = ["conditions", "ratio_table", "write", "write_json"]


def ratio_table(ratios: Mapping[str, float], limits: Mapping[str, float]) -> list[str]:
    """Ratios beside what they may be, as lines of Markdown."""
    rows = (f"| {name} | {ratio:.3f} | {limits[name]:.2f} |" for name, ratio in ratios.items())
    return ["| | ratio | at most |", "|---|---:|---:|", *rows]


def conditions(protocol: Mapping[str, Any]) -> list[str]:
    """Where and how it was measured, as the last lines of a page."""
    return ["", ", ".join(f"{key} {value}" for key, value in protocol.items()), ""]


def write(folder: Path, name: str, found: Mapping[str, Any], **pages: str) -> None:
    """Write what was found as JSON, and pages of tables beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", found)
    for page, text in pages.items():
        with atomic_write(folder / f"{page}.md") as unfinished:
            unfinished.write_text(text, encoding="utf-8")


def write_json(path: Path, found: Mapping[str, Any]) -> None:
    """Write what was found as JSON."""
    with atomic_write(path) as unfinished:
        unfinished.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
