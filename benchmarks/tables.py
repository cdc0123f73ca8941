"""How the benchmarks write down what they measured."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["conditions", "ratio_table", "write"]


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
    (folder / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
    for page, text in pages.items():
        (folder / f"{page}.md").write_text(text)
