"""The tables of the poisoning benchmark."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from poisoning_attacks import ATTACKS
from tables import format_protocol

__all__ = ["LIMIT", "breaking_share", "format_page", "lost", "read_runs"]

LIMIT = 3.0
"""Points of accuracy that an attack may cost."""

Line = dict[str, Any]


def read_runs(folder: Path) -> list[Line]:
    """Read the runs of all parts, in an order that does not depend on the parts."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("runs-*.jsonl"))]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return sorted(lines, key=lambda line: (list(ATTACKS).index(line["attack"]), line["share"], *_column_order(line)))


def lost(line: Line, when: str = "after") -> float:
    """Points of accuracy that an attack cost, of images that are not the attacker's."""
    return float(line[f"unattacked {when}"] - line[f"attacked {when}"])


def gained(line: Line, when: str = "after") -> float:
    """By how much more often the victim is taken for the target, in points."""
    return float(line[f"attacked taken {when}"] - line[f"unattacked taken {when}"])


def breaking_share(lines: Sequence[Line], when: str = "after") -> float | None:
    """The smallest share that costs more than three points; None if none does.

    Examples:
        >>> lines = [{"share": s, "unattacked after": 80.0, "attacked after": 80.0 - 20 * s} for s in (0.1, 0.2, 0.4)]
        >>> breaking_share(lines)
        0.2
    """
    return min((line["share"] for line in lines if lost(line, when) > LIMIT), default=None)


def format_page(lines: Sequence[Line], protocol: dict[str, Any]) -> str:
    """Return all tables as Markdown."""
    columns = list(dict.fromkeys((line["method"], line["arm"]) for line in sorted(lines, key=_column_order)))
    attacks = [name for name in ATTACKS if any(line["attack"] == name for line in lines)]
    shares = sorted({line["share"] for line in lines})
    source = f"Accuracy without an attack, in %; the source network has {lines[0]['source after']:.1f}:"
    page = [source, "", *_unattacked(lines, columns), ""]
    for share in shares:
        some = [line for line in lines if line["share"] == share]
        present = [name for name in attacks if any(line["attack"] == name for line in some)]
        page += [f"## {share:.0%} of the stream", "", "Points lost after the attack (and while it lasts):", ""]
        page += _table(some, present, columns, lambda line: f"{lost(line):.1f} ({lost(line, 'during'):.1f})")
        targeted = [name for name in present if ATTACKS[name].is_targeted]
        page += ["", "Victims taken for the target, in points above the run without an attack:", ""]
        page += _table(some, targeted, columns, lambda line: f"{gained(line):.1f} ({gained(line, 'during'):.1f})")
        page += [""]
    mixed = [name for name in attacks if not ATTACKS[name].whole_batches]
    for when in ("after", "during"):
        page += [f"## Smallest share that costs more than {LIMIT:g} points {when} the attack", ""]
        page += ["| attack | " + " | ".join(map(_title, columns)) + " |", "|---|" + "---:|" * len(columns)]
        for name in mixed:
            cells = [breaking_share(_of(lines, name, column), when) for column in columns]
            page.append(f"| {name} | " + " | ".join("none" if cell is None else f"{cell:.0%}" for cell in cells) + " |")
        page += [""]
    return "\n".join([*page, *format_protocol(protocol)])


def _unattacked(lines: Sequence[Line], columns: Sequence[tuple[str, str]]) -> list[str]:
    firsts = [next(line for line in lines if (line["method"], line["arm"]) == column) for column in columns]
    header = ["| | " + " | ".join(map(_title, columns)) + " |", "|---|" + "---:|" * len(columns)]
    return [*header, "| after | " + " | ".join(f"{line['unattacked after']:.1f}" for line in firsts) + " |"]


def _table(
    lines: Sequence[Line], attacks: Sequence[str], columns: Sequence[tuple[str, str]], show: Callable[[Line], str]
) -> list[str]:
    rows = ["| attack | " + " | ".join(map(_title, columns)) + " |", "|---|" + "---:|" * len(columns)]
    for name in attacks:
        found = [_of(lines, name, column) for column in columns]
        rows.append(f"| {name} | " + " | ".join(show(some[0]) if some else "" for some in found) + " |")
    return rows


def _of(lines: Sequence[Line], attack: str, column: tuple[str, str]) -> list[Line]:
    return [line for line in lines if line["attack"] == attack and (line["method"], line["arm"]) == column]


def _title(column: tuple[str, str]) -> str:
    return f"`{column[0]}`, {column[1]}"


def _column_order(line: Line) -> tuple[str, str]:
    return (line["method"], line["arm"])
