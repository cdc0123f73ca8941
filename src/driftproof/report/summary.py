"""Archived results in words and tables: one Markdown page, and the numbers that other pages quote from it."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from driftproof.bench import Measured, Results, Spec
from driftproof.bench.store import ARCHIVED
from driftproof.bench.tables import Entry
from driftproof.corruptions import HELD_OUT
from driftproof.errors import InputError
from driftproof.report.caveats import caveats, caveats_of
from driftproof.report.claims import claims
from driftproof.report.comparison import compared
from driftproof.report.disagreements import FAR_OFF, far_off
from driftproof.report.lines import measured_streams
from driftproof.report.markdown import markdown_table, table_markdown
from driftproof.report.numbers import number
from driftproof.report.protocol import protocol
from driftproof.validation import check_choice

__all__ = ["archives", "beside", "filled_in", "page_text", "quotable", "summary", "written_up"]

_NOTHING = "Nothing has been measured yet."
_MARKED = re.compile(r"<!-- results:(?P<name>.+?) -->(?P<quoted>(?s:(?!<!-- results:).)*?<!-- /results -->)?")
"""What a page quotes, from mark to mark; not closed where the next mark opens."""


def archives(folder: Path) -> list[Results]:
    """Every archive in a folder: those with tables of the paper first, and of these the ones on all images.

    Args:
        folder: Such as `results`.
    """
    return sorted((Results(path.parent) for path in sorted(folder.glob(f"*/{ARCHIVED}"))), key=_place)


def _place(results: Results) -> tuple[bool, bool]:
    return not any(measured.table.paper for measured in results.tables()), results.limited


def written_up(folder: Path, page: Path | None = None) -> str:
    """The summary of a folder: of its archives, with the sections in `notes` and the figures in `figures`.

    Args:
        folder: Such as `results`. A note quotes numbers as other pages do.
        page: Where it is going to be, as figures are shown from there; None is in the folder itself.
    """
    everything = archives(folder)
    if not everything:
        raise InputError(
            f"Expected archives in {folder}, each in a folder of its own, but there are none. "
            "`driftproof bench export` makes them of results folders."
        )
    named = quotable(everything) | beside(folder)
    notes = [filled_in(page_text(path), named) for path in sorted(folder.glob("notes/*.md"))]
    drawn = sorted(folder.glob("figures/**/*.svg"), key=lambda path: (len(path.parts), path))
    home = folder if page is None else page.parent
    figures = {Path(os.path.relpath(path, home)).as_posix(): _caption(path) for path in drawn}
    return summary(everything, notes=notes, figures=figures)


def page_text(path: Path) -> str:
    """What a page says."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"Expected {path} to be text in UTF-8, but it cannot be read: {error}.") from error


def _caption(figure: Path) -> str:
    beside = figure.with_suffix(".json")
    try:
        said = json.loads(page_text(beside)) if beside.exists() else {}
        words = said.get("title"), said.get("caption")
    except (ValueError, AttributeError) as error:
        raise InputError(f"Expected {beside} to describe its figure, but it cannot be read: {error}.") from error
    return ". ".join(filter(None, words)) or figure.stem


def summary(
    everything: Sequence[Results], *, notes: Sequence[str] = (), figures: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The page: every table beside the paper's, then its claims, what is far off, explanations, and the protocol.

    Args:
        everything: The archives.
        notes: Sections written by hand, in Markdown, that explain what the numbers alone do not.
        figures: Captions of the figures to show, by their paths as seen from the page.
    """
    sections = [
        *(f"## {results.folder.name}\n\n{_about(results)}\n\n{_tables(results, everything)}" for results in everything),
        f"## The paper's claims\n\n{_claims(everything)}",
        f"## More than {FAR_OFF:g} points from the paper\n\n{far_off(everything)}",
        *([_gallery(figures)] if figures else []),
        *notes,
        *([f"## Protocol\n\n{_protocol(everything)}"] if everything else []),
    ]
    beginning = (
        "# Results\n\nMade by `make results` from the archives beside this page, and from the notes in `notes`. "
        "Errors are in percent, of the predictions made while adapting. `@5` marks a number from round 5 where the "
        "table asks for a later one: no later one was reached by all runs behind it. Bold is the best of those that "
        "have come furthest."
    )
    return "\n\n".join(section.strip() for section in (beginning, _contents(sections), *sections)) + "\n"


def _contents(sections: Sequence[str]) -> str:
    """Links to the sections, as GitHub calls their headings."""
    titles = [section.strip().partition("\n")[0].removeprefix("## ") for section in sections]
    places = (re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)
    return " · ".join(f"[{title}](#{place})" for title, place in zip(titles, places, strict=True))


def quotable(everything: Sequence[Results]) -> dict[str, str]:
    """What other pages can quote, by name: `claims`, `verdicts`, `table1`, `table1/tent+crowd/CIFAR-10-C/Open`.

    With `@5` behind it, a number of a table is that of round 5. What was measured on some images alone says so.

    Args:
        everything: The archives; of a table or number that several have, the first counts, those on all images before
            the others.
    """
    named = {"claims": f"\n\n{_claims(everything)}\n\n", "verdicts": f"\n\n{_verdicts(everything)}\n\n"}
    for results in sorted(everything, key=lambda results: results.limited):
        for measured in results.tables():
            few = caveats({"limit": results.shared.get("limit")})
            table = "\n\n".join([table_markdown(measured), *few])
            named.setdefault(measured.table.name, f"\n\n{table}\n\n")
            for place, quotes in _quotes(results, measured):
                if place not in named:
                    named |= quotes
    return named


def _quotes(results: Results, measured: Measured) -> Iterator[tuple[str, dict[str, str]]]:
    """The name of each number that a table has, and what can be quoted of it: itself and those of single rounds."""
    few = [f"first {results.shared['limit']} images"] if results.limited else []
    entries = {(entry.row, entry.column): entry for entry in measured.table.entries}
    for (row, column), value in measured.values.items():
        if value.ours is not None:
            place = f"{measured.table.name}/{row}/{column}"
            early = [] if value.complete else [f"round {value.round}"]
            single = _by_round(results, entries[row, column]) if (row, column) in entries else {}
            quotes = {f"{place}@{round}": _quote(ours, few) for round, ours in single.items()}
            yield place, {place: _quote(value.ours, [*early, *few]), **quotes}


def _by_round(results: Results, entry: Entry) -> dict[int, float]:
    """The number of every round that has been reached, as far as the entry wants it."""
    rounds = range(1, (results.value(entry).round or 0) + 1)
    found = {round: results.value(replace(entry, round=round)).ours for round in rounds}
    return {round: ours for round, ours in found.items() if ours is not None}


def _quote(ours: float, said: Sequence[str]) -> str:
    return f"{number(ours)} ({', '.join(said)})" if said else number(ours)


def beside(folder: Path) -> dict[str, str]:
    """What other pages can quote of the tables that benchmarks wrote beside the archives, such as `speed/gpu`.

    Args:
        folder: Such as `results`.
    """
    pages = sorted(set(folder.glob("*/*.md")) - set(folder.glob("notes/*.md")))
    texts = {f"{page.parent.name}/{page.stem}": page.read_text(encoding="utf-8").strip() for page in pages}
    return {name: f"\n\n{text}\n\n" for name, text in texts.items()}


def filled_in(text: str, named: Mapping[str, str]) -> str:
    """A page with everything it quotes put between its marks, `<!-- results:claims -->` and `<!-- /results -->`.

    Args:
        text: The page; what stands between the marks is replaced.
        named: What can be quoted.

    Examples:
        >>> filled_in("error <!-- results:x --><!-- /results --> %", {"x": "12.3"})
        'error <!-- results:x -->12.3<!-- /results --> %'
    """
    return _MARKED.sub(lambda match: _filled(match, named), text)


def _filled(match: re.Match[str], named: Mapping[str, str]) -> str:
    name = check_choice("result", match["name"], named)
    if match["quoted"] is None:
        raise InputError(
            f"Expected `<!-- /results -->` after `<!-- results:{name} -->`, but the next mark, or the end, comes first."
        )
    return f"<!-- results:{name} -->{named[name]}<!-- /results -->"


def _claims(everything: Sequence[Results]) -> str:
    if not everything:
        return _NOTHING
    rows = [[claim.text, claim.verdict, "<br>".join(claim.evidence)] for claim in claims(everything)]
    return markdown_table(["claim", "verdict", "numbers"], rows).replace("---:", "---")


def _verdicts(everything: Sequence[Results]) -> str:
    """The claims without the numbers."""
    rows = [[claim.text, claim.verdict] for claim in claims(everything)]
    return markdown_table(["claim", "in our runs"], rows).replace("---:", "---")


def _about(results: Results) -> str:
    """What an archive holds, in a sentence."""
    images, unknown, models = (
        ", ".join(sorted({name for spec in results.cells if (name := getattr(spec, kind))}))
        for kind in ("images", "unknown", "model")
    )
    held_out = " under held-out corruptions" * all(spec.domains == HELD_OUT for spec in results.cells)
    severities = sorted({spec.severity for spec in results.cells} - {Spec.severity})
    milder = f" at severity {' and '.join(map(str, severities))}" if severities else ""
    among = f", also among unknown images of {unknown}" if unknown else ""
    return f"{models} on {images}{held_out}{milder}{among}."


def _tables(results: Results, everything: Sequence[Results]) -> str:
    """What was measured on all images is not shown again on a few."""
    known = _numbers(other for other in everything if not other.limited) if results.limited else set()
    shown = [measured for measured in results.tables() if not _places(measured) <= known]
    return "\n\n".join(_table(results, measured) for measured in shown) or _NOTHING


def _numbers(everything: Iterable[Results]) -> set[tuple[str, str, str]]:
    return {place for results in everything for measured in results.tables() for place in _places(measured)}


def _places(measured: Measured) -> set[tuple[str, str, str]]:
    """Where a table has numbers."""
    return {(measured.table.name, *place) for place, value in measured.values.items() if value.ours is not None}


def _table(results: Results, measured: Measured) -> str:
    comparison = compared(measured)
    where = ", ".join(filter(None, (comparison.reference, comparison.unit, comparison.better, comparison.looks)))
    parts = [f"### {comparison.title}", f"`{comparison.name}`: {where}.", table_markdown(measured)]
    if comparison.missing:
        parts.append(f"Not measured: {', '.join(comparison.missing)}.")
    if comparison.empty:
        parts.append(f"Settings without numbers here: {', '.join(comparison.empty)}.")
    return "\n\n".join([*parts, *caveats_of(measured, results)])


def _gallery(figures: Mapping[str, str]) -> str:
    shown = (f"![{Path(path).stem}]({path})\n\n{caption}" for path, caption in figures.items())
    return "\n\n".join(["## Figures", *shown])


def _protocol(everything: Sequence[Results]) -> str:
    """What every number rests on; the spec and the protocol of each cell are in the archive."""
    head, rows = ["archive", "cells", "versions", "hardware", "engines", "time measured", "seeds", "shared"], []
    for results in everything:
        told = protocol(results, measured_streams(results))
        versions = ", ".join(f"{name} {told.facts[name]}" for name in ("driftproof", "torch", "python"))
        shared = "; ".join(f"{key}: {value}" for key, value in told.shared.items())
        seeds = ", ".join(map(str, sorted({spec.seed for spec in results.cells})))
        facts = [versions, *(told.facts[name] for name in ("hardware", "engines", "time measured")), seeds, shared]
        rows.append([results.folder.name, str(len(results.cells)), *facts])
    return markdown_table(head, rows).replace("---:", "---")
