"""Archived results in words and tables: one Markdown page, and the numbers that other pages quote from it."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from driftproof.bench import FilledTable, Results, Spec
from driftproof.bench.store import ARCHIVE_FILE
from driftproof.bench.tables import TableEntry
from driftproof.corruptions import HELD_OUT
from driftproof.errors import InputError
from driftproof.report.claims import evaluate_claims
from driftproof.report.comparison import compare_with_paper
from driftproof.report.deviations import LARGE_DEVIATION, large_deviations
from driftproof.report.markdown import format_markdown_table, render_table
from driftproof.report.notes import metadata_notes, table_notes
from driftproof.report.numbers import format_number
from driftproof.report.protocol import build_protocol
from driftproof.report.series import group_streams
from driftproof.validation import check_choice

__all__ = ["benchmark_tables", "citable_values", "load_archives", "read_page", "render_placeholders", "render_results_page", "render_summary"]

_NO_RESULTS = "Nothing has been measured yet."
_PLACEHOLDER = re.compile(r"<!-- results:(?P<name>.+?) -->(?P<quoted>(?s:(?!<!-- results:).)*?<!-- /results -->)?")
"""What a page quotes, from mark to mark; not closed where the next mark opens."""


def load_archives(folder: Path) -> list[Results]:
    """Every archive in a folder: those with tables of the paper first, and of these the ones on all images.

    Args:
        folder: Such as `results`.
    """
    return sorted((Results(path.parent) for path in sorted(folder.glob(f"*/{ARCHIVE_FILE}"))), key=_archive_order)


def _archive_order(results: Results) -> tuple[bool, bool]:
    return not any(measured.table.paper for measured in results.tables()), results.is_subset


def render_results_page(folder: Path, page: Path | None = None) -> str:
    """The summary of a folder: of its archives, with the sections in `notes` and the figures in `figures`.

    Args:
        folder: Such as `results`. A note quotes numbers as other pages do.
        page: Where it is going to be, as figures are shown from there; None is in the folder itself.
    """
    everything = load_archives(folder)
    if not everything:
        raise InputError(
            f"Expected archives in {folder}, each in a folder of its own, but there are none. "
            "`driftproof bench export` makes them of results folders."
        )
    named = citable_values(everything) | benchmark_tables(folder)
    notes = [render_placeholders(read_page(path), named) for path in sorted(folder.glob("notes/*.md"))]
    drawn = sorted(folder.glob("figures/**/*.svg"), key=lambda path: (len(path.parts), path))
    home = folder if page is None else page.parent
    figures = {Path(os.path.relpath(path, home)).as_posix(): _read_caption(path) for path in drawn}
    return render_summary(everything, notes=notes, figures=figures)


def read_page(path: Path) -> str:
    """What a page says."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"Expected {path} to be text in UTF-8, but it cannot be read: {error}.") from error


def _read_caption(figure: Path) -> str:
    beside = figure.with_suffix(".json")
    try:
        said = json.loads(read_page(beside)) if beside.exists() else {}
        words = said.get("title"), said.get("caption")
    except (ValueError, AttributeError) as error:
        raise InputError(f"Expected {beside} to describe its figure, but it cannot be read: {error}.") from error
    return ". ".join(filter(None, words)) or figure.stem


def render_summary(
    everything: Sequence[Results], *, notes: Sequence[str] = (), figures: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The page: every table beside the paper's, then its claims, what is far off, explanations, and the protocol.

    Args:
        everything: The archives.
        notes: Sections written by hand, in Markdown, that explain what the numbers alone do not.
        figures: Captions of the figures to show, by their paths as seen from the page.
    """
    sections = [
        *(f"## {results.folder.name}\n\n{_describe_archive(results)}\n\n{_render_tables(results, everything)}" for results in everything),
        f"## The paper's claims\n\n{_render_claims(everything)}",
        f"## More than {LARGE_DEVIATION:g} points from the paper\n\n{large_deviations(everything)}",
        *([_render_gallery(figures)] if figures else []),
        *notes,
        *([f"## Protocol\n\n{_render_protocol(everything)}"] if everything else []),
    ]
    beginning = (
        "# Results\n\nMade by `make results` from the archives beside this page, and from the notes in `notes`. "
        "Errors are in percent, of the predictions made while adapting. `@5` marks a number from round 5 where the "
        "table asks for a later one: no later one was reached by all runs behind it. Bold is the best of those that "
        "have come furthest."
    )
    return "\n\n".join(section.strip() for section in (beginning, _render_contents(sections), *sections)) + "\n"


def _render_contents(sections: Sequence[str]) -> str:
    """Links to the sections, as GitHub calls their headings."""
    titles = [section.strip().partition("\n")[0].removeprefix("## ") for section in sections]
    places = (re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)
    return " · ".join(f"[{title}](#{place})" for title, place in zip(titles, places, strict=True))


def citable_values(everything: Sequence[Results]) -> dict[str, str]:
    """What other pages can quote, by name: `claims`, `verdicts`, `table1`, `table1/tent+crowd/CIFAR-10-C/Open`.

    With `@5` behind it, a number of a table is that of round 5. What was measured on some images alone says so.

    Args:
        everything: The archives; of a table or number that several have, the first counts, those on all images before
            the others.
    """
    named = {"claims": f"\n\n{_render_claims(everything)}\n\n", "verdicts": f"\n\n{_render_verdicts(everything)}\n\n"}
    for results in sorted(everything, key=lambda results: results.is_subset):
        for measured in results.tables():
            few = metadata_notes({"limit": results.metadata.get("limit")})
            table = "\n\n".join([render_table(measured), *few])
            named.setdefault(measured.table.name, f"\n\n{table}\n\n")
            for place, quotes in _citable_numbers(results, measured):
                if place not in named:
                    named |= quotes
    return named


def _citable_numbers(results: Results, measured: FilledTable) -> Iterator[tuple[str, dict[str, str]]]:
    """The name of each number that a table has, and what can be quoted of it: itself and those of single rounds."""
    few = [f"first {results.metadata['limit']} images"] if results.is_subset else []
    entries = {(entry.row, entry.column): entry for entry in measured.table.entries}
    for (row, column), value in measured.values.items():
        if value.ours is not None:
            place = f"{measured.table.name}/{row}/{column}"
            early = [] if value.complete else [f"round {value.round}"]
            single = _values_by_round(results, entries[row, column]) if (row, column) in entries else {}
            quotes = {f"{place}@{round}": _format_citation(ours, few) for round, ours in single.items()}
            yield place, {place: _format_citation(value.ours, [*early, *few]), **quotes}


def _values_by_round(results: Results, entry: TableEntry) -> dict[int, float]:
    """The number of every round that has been reached, as far as the entry wants it."""
    rounds = range(1, (results.value(entry).round or 0) + 1)
    found = {round: results.value(replace(entry, round=round)).ours for round in rounds}
    return {round: ours for round, ours in found.items() if ours is not None}


def _format_citation(ours: float, said: Sequence[str]) -> str:
    return f"{format_number(ours)} ({', '.join(said)})" if said else format_number(ours)


def benchmark_tables(folder: Path) -> dict[str, str]:
    """What other pages can quote of the tables that benchmarks wrote beside the archives, such as `speed/gpu`.

    Args:
        folder: Such as `results`.
    """
    pages = sorted(set(folder.glob("*/*.md")) - set(folder.glob("notes/*.md")))
    texts = {f"{page.parent.name}/{page.stem}": page.read_text(encoding="utf-8").strip() for page in pages}
    return {name: f"\n\n{text}\n\n" for name, text in texts.items()}


def render_placeholders(text: str, named: Mapping[str, str]) -> str:
    """A page with everything it quotes put between its marks, `<!-- results:claims -->` and `<!-- /results -->`.

    Args:
        text: The page; what stands between the marks is replaced.
        named: What can be quoted.

    Examples:
        >>> render_placeholders("error <!-- results:x --><!-- /results --> %", {"x": "12.3"})
        'error <!-- results:x -->12.3<!-- /results --> %'
    """
    return _PLACEHOLDER.sub(lambda match: _fill_placeholder(match, named), text)


def _fill_placeholder(match: re.Match[str], named: Mapping[str, str]) -> str:
    name = check_choice("result", match["name"], named)
    if match["quoted"] is None:
        raise InputError(
            f"Expected `<!-- /results -->` after `<!-- results:{name} -->`, but the next mark, or the end, comes first."
        )
    return f"<!-- results:{name} -->{named[name]}<!-- /results -->"


def _render_claims(everything: Sequence[Results]) -> str:
    if not everything:
        return _NO_RESULTS
    rows = [[claim.text, claim.verdict, "<br>".join(claim.evidence)] for claim in evaluate_claims(everything)]
    return format_markdown_table(["claim", "verdict", "numbers"], rows).replace("---:", "---")


def _render_verdicts(everything: Sequence[Results]) -> str:
    """The claims without the numbers."""
    rows = [[claim.text, claim.verdict] for claim in evaluate_claims(everything)]
    return format_markdown_table(["claim", "in our runs"], rows).replace("---:", "---")


def _describe_archive(results: Results) -> str:
    """What an archive holds, in a sentence."""
    images, unknown, models = (
        ", ".join(sorted({name for spec in results.runs if (name := getattr(spec, kind))}))
        for kind in ("images", "unknown", "model")
    )
    held_out = " under held-out corruptions" * all(spec.domains == HELD_OUT for spec in results.runs)
    severities = sorted({spec.severity for spec in results.runs} - {Spec.severity})
    milder = f" at severity {' and '.join(map(str, severities))}" if severities else ""
    among = f", also among unknown images of {unknown}" if unknown else ""
    return f"{models} on {images}{held_out}{milder}{among}."


def _render_tables(results: Results, everything: Sequence[Results]) -> str:
    """What was measured on all images is not shown again on a few."""
    known = _measured_cells(other for other in everything if not other.is_subset) if results.is_subset else set()
    shown = [measured for measured in results.tables() if not _table_cells(measured) <= known]
    return "\n\n".join(_render_table_section(results, measured) for measured in shown) or _NO_RESULTS


def _measured_cells(everything: Iterable[Results]) -> set[tuple[str, str, str]]:
    return {place for results in everything for measured in results.tables() for place in _table_cells(measured)}


def _table_cells(measured: FilledTable) -> set[tuple[str, str, str]]:
    """Where a table has numbers."""
    return {(measured.table.name, *place) for place, value in measured.values.items() if value.ours is not None}


def _render_table_section(results: Results, measured: FilledTable) -> str:
    comparison = compare_with_paper(measured)
    where = ", ".join(filter(None, (comparison.reference, comparison.unit, comparison.better, comparison.looks)))
    parts = [f"### {comparison.title}", f"`{comparison.name}`: {where}.", render_table(measured)]
    if comparison.missing:
        parts.append(f"Not measured: {', '.join(comparison.missing)}.")
    if comparison.empty:
        parts.append(f"Settings without numbers here: {', '.join(comparison.empty)}.")
    return "\n\n".join([*parts, *table_notes(measured, results)])


def _render_gallery(figures: Mapping[str, str]) -> str:
    shown = (f"![{Path(path).stem}]({path})\n\n{caption}" for path, caption in figures.items())
    return "\n\n".join(["## Figures", *shown])


def _render_protocol(everything: Sequence[Results]) -> str:
    """What every number rests on; the spec and the protocol of each cell are in the archive."""
    head, rows = ["archive", "cells", "versions", "hardware", "engines", "time measured", "seeds", "shared"], []
    for results in everything:
        told = build_protocol(results, group_streams(results))
        versions = ", ".join(f"{name} {told.facts[name]}" for name in ("driftproof", "torch", "python"))
        shared = "; ".join(f"{key}: {value}" for key, value in told.shared.items())
        seeds = ", ".join(map(str, sorted({spec.seed for spec in results.runs})))
        facts = [versions, *(told.facts[name] for name in ("hardware", "engines", "time measured")), seeds, shared]
        rows.append([results.folder.name, str(len(results.runs)), *facts])
    return format_markdown_table(head, rows).replace("---:", "---")
