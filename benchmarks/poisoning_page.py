"""The tables of the poisoning benchmark."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from driftproof.files import atomic_write
from poisoning_attacks import ATTACKS
from tables import format_protocol

__all__ = ["LIMIT", "MAIN_SHARE", "breaking_share", "fill_page", "format_page", "format_summary", "lost", "read_runs"]

LIMIT = 3.0
"""Points of accuracy that an attack may cost."""

MAIN_SHARE = 0.1
"""The share of the stream that must be withstood."""

_START, _END = "<!-- poisoning: start -->", "<!-- poisoning: end -->"

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
    columns = [column for column in columns if column[1] == "guards"] or columns
    for when in ("after", "during"):
        page += [f"## Smallest share that costs more than {LIMIT:g} points {when} the attack", ""]
        page += ["| attack | " + " | ".join(map(_title, columns)) + " |", "|---|" + "---:|" * len(columns)]
        for name in mixed:
            found = [_of(lines, name, column) for column in columns]
            cells = [_show_share(some, when) if some else "" for some in found]
            page.append(f"| {name} | " + " | ".join(cells) + " |")
        page += [""]
    return "\n".join([*page, *format_protocol(protocol)])


def format_summary(lines: Sequence[Line], protocol: dict[str, Any]) -> str:
    """Return what the page on security shows: a sentence for each method, the main table, and breaking shares."""
    main = [line for line in lines if line["share"] == MAIN_SHARE]
    columns = list(dict.fromkeys((line["method"], line["arm"]) for line in sorted(main, key=_column_order)))
    attacks = [name for name in ATTACKS if any(line["attack"] == name for line in main)]
    guarded = [column for column in columns if column[1] == "guards"]
    page = [f"With {MAIN_SHARE:.0%} of the stream, and the guards of `dp.adapt`:", ""]
    page += [f"- {_describe(main, column)}" for column in guarded]
    page += ["", "Points of accuracy lost after the attack, and in parentheses while it lasts:", ""]
    page += _table(main, attacks, columns, lambda line: f"{lost(line):.1f} ({lost(line, 'during'):.1f})")
    targeted = [name for name in attacks if ATTACKS[name].is_targeted]
    page += ["", "Automobiles taken for trucks, in points above the run without an attack:", ""]
    page += _table(main, targeted, columns, lambda line: f"{gained(line):.1f} ({gained(line, 'during'):.1f})")
    page += [
        "",
        f"Smallest share of the stream that costs more than {LIMIT:g} points after the attack, and in parentheses",
        "while it lasts, with guards. Where no share does, the largest that was tried. Empty cells were not run.",
        "",
    ]
    page += [
        "| attack | " + " | ".join(f"`{method}`" for method, _ in guarded) + " |",
        "|---|" + "---:|" * len(guarded),
    ]
    for name in [name for name in attacks if not ATTACKS[name].whole_batches]:
        found = [_of(lines, name, column) for column in guarded]
        cells = [f"{_show_share(some, 'after')} ({_show_share(some, 'during')})" if some else "" for some in found]
        page.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*page, *format_protocol(protocol)])


def fill_page(path: Path, lines: Sequence[Line], protocol: dict[str, Any]) -> None:
    """Write the summary between the two marks of a page."""
    before, rest = path.read_text(encoding="utf-8").split(_START)
    _, after = rest.split(_END)
    text = f"{before}{_START}\n\n{format_summary(lines, protocol)}\n{_END}{after}"
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def _describe(lines: Sequence[Line], column: tuple[str, str]) -> str:
    """One sentence about how a method with guards fares."""
    own = [line for line in lines if (line["method"], line["arm"]) == column]
    held = [line for line in own if lost(line) <= LIMIT]
    worst, worst_during = max(own, key=lost), max(own, key=lambda line: lost(line, "during"))
    return (
        f"`{column[0]}` stays within {LIMIT:g} points of the unattacked run after {len(held)} of {len(own)} attacks; "
        f"the worst, {worst['attack']}, costs {lost(worst):.1f}. While an attack lasts, the worst, "
        f"{worst_during['attack']}, costs {lost(worst_during, 'during'):.1f}."
    )


def _show_share(lines: Sequence[Line], when: str) -> str:
    """Name the breaking share, or the largest one that was tried and did not break."""
    share = breaking_share(lines, when)
    return f"> {max(line['share'] for line in lines):.0%}" if share is None else f"{share:.0%}"


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
