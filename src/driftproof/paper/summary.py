"""Render archived results: one Markdown page, and the values that other pages cite."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from driftproof.bench import FilledTable, Results, Spec
from driftproof.bench.store import ARCHIVE_FILE
from driftproof.bench.tables import TableEntry
from driftproof.corruptions import HELD_OUT
from driftproof.errors import InputError
from driftproof.paper.claims import evaluate_claims
from driftproof.paper.deviations import LARGE_DEVIATION, large_deviations
from driftproof.paper.filled import fill_tables
from driftproof.paper.markdown import format_markdown_table, render_table
from driftproof.report.comparison import compare_with_paper
from driftproof.report.health import health_table
from driftproof.report.notes import metadata_notes, table_notes
from driftproof.report.numbers import format_number
from driftproof.report.protocol import build_protocol
from driftproof.report.series import group_streams
from driftproof.validation import check_choice

__all__ = [
    "benchmark_tables",
    "citable_values",
    "load_archives",
    "read_page",
    "render_placeholders",
    "render_results_page",
    "render_summary",
]

_NO_RESULTS = "Nothing has been measured yet."
_PLACEHOLDER = re.compile(r"<!-- results:(?P<name>.+?) -->(?P<content>(?s:(?!<!-- results:).)*?<!-- /results -->)?")
"""A placeholder of a page with its content; the content is None if it is not closed before the next one."""


def load_archives(folder: Path) -> list[Results]:
    """Load the archives of a folder: those with tables of the paper first, then those on all images.

    Args:
        folder: Such as `results`.
    """
    return sorted((Results(path.parent) for path in sorted(folder.glob(f"*/{ARCHIVE_FILE}"))), key=_archive_order)


def _archive_order(results: Results) -> tuple[bool, bool]:
    return not any(filled.table.reference for filled in fill_tables(results)), results.is_subset


def render_results_page(folder: Path, page: Path | None = None) -> str:
    """Render the results page of a folder: its archives, the sections in `notes`, the figures in `figures`.

    Args:
        folder: Such as `results`. Sections in `notes` may contain placeholders.
        page: Where the page will be written, for relative links to figures; None means in the folder itself.
    """
    archives = load_archives(folder)
    if not archives:
        raise InputError(
            f"Expected archives in subfolders of {folder}, but found none. "
            "Create them from results folders with `driftproof bench export`."
        )
    values = citable_values(archives) | benchmark_tables(folder)
    sections = [render_placeholders(read_page(path), values) for path in sorted(folder.glob("notes/*.md"))]
    paths = sorted(folder.glob("figures/**/*.svg"), key=lambda path: (len(path.parts), path))
    home = folder if page is None else page.parent
    figures = {Path(os.path.relpath(path, home)).as_posix(): _read_caption(path) for path in paths}
    return render_summary(archives, sections=sections, figures=figures)


def read_page(path: Path) -> str:
    """Read a page as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"Expected {path} to be text in UTF-8, but decoding failed: {error}.") from error


def _read_caption(figure: Path) -> str:
    path = figure.with_suffix(".json")
    try:
        description = json.loads(read_page(path)) if path.exists() else {}
        texts = description.get("title"), description.get("caption")
    except (ValueError, AttributeError) as error:
        raise InputError(f"Expected {path} to be a JSON object with title and caption, but got: {error}.") from error
    return ". ".join(filter(None, texts)) or figure.stem


def render_summary(
    archives: Sequence[Results], *, sections: Sequence[str] = (), figures: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Render all tables, the paper's claims, large deviations, figures, extra sections and the protocol.

    Args:
        archives: The archives.
        sections: Hand-written sections in Markdown.
        figures: Captions of the figures, by path relative to the page.
    """
    parts = [
        *map(partial(_render_archive, archives=archives), archives),
        f"## The paper's claims\n\n{_render_claims(archives)}",
        f"## More than {LARGE_DEVIATION:g} points from the paper\n\n{large_deviations(archives)}",
        *([_render_gallery(figures)] if figures else []),
        *sections,
        *([f"## Protocol\n\n{_render_protocol(archives)}"] if archives else []),
    ]
    introduction = (
        "# Results\n\n`make results` generates this page from the archives in this folder and the sections in `notes`. "
        "Errors are percentages of the predictions made while adapting. `@5` marks a number from round 5 in a table "
        "that asks for a later one: it is the last round that all its runs completed. Bold is the best of the numbers "
        "with the most rounds."
    )
    return "\n\n".join(part.strip() for part in (introduction, _render_contents(parts), *parts)) + "\n"


def _render_archive(results: Results, archives: Sequence[Results]) -> str:
    parts = [f"## {results.folder.name}", _describe_archive(results), _render_tables(results, archives)]
    return "\n\n".join([*parts, *_render_health(results)])


def _render_health(results: Results) -> Iterator[str]:
    table = health_table(results, group_streams(results))
    if table is not None:
        listed = format_markdown_table(table.columns, table.rows).replace("---:", "---")
        yield f"### Health\n\n{listed if table.rows else 'All methods stayed healthy, and no guard acted.'}"


def _render_contents(sections: Sequence[str]) -> str:
    """Links to the sections, with GitHub's anchors."""
    titles = [section.strip().partition("\n")[0].removeprefix("## ") for section in sections]
    anchors = (re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)
    return " · ".join(f"[{title}](#{anchor})" for title, anchor in zip(titles, anchors, strict=True))


def citable_values(archives: Sequence[Results]) -> dict[str, str]:
    """All values that pages can cite, by name.

    Names are `claims`, `verdicts`, `table1` or `table1/tent+crowd/CIFAR-10-C/Open`. The suffix `@5` gives the number
    of round 5. Values measured on only some of the images say so.

    Args:
        archives: The archives. The first that has a value provides it; archives on all images come first.
    """
    values = {"claims": f"\n\n{_render_claims(archives)}\n\n", "verdicts": f"\n\n{_render_verdicts(archives)}\n\n"}
    for results in sorted(archives, key=lambda results: results.is_subset):
        for filled in fill_tables(results):
            limit = metadata_notes({"limit": results.metadata.get("limit")})
            table = "\n\n".join([render_table(filled), *limit])
            values.setdefault(filled.table.name, f"\n\n{table}\n\n")
            for name, numbers in _citable_numbers(results, filled):
                if name not in values:
                    values |= numbers
    return values


def _citable_numbers(results: Results, filled: FilledTable) -> Iterator[tuple[str, dict[str, str]]]:
    """The name of each number of a table, with its value and its values in single rounds."""
    limit = [f"first {results.metadata['limit']} images"] if results.is_subset else []
    entries = {(entry.row, entry.column): entry for entry in filled.table.entries}
    for (row, column), value in filled.values.items():
        if value.ours is not None:
            name = f"{filled.table.name}/{row}/{column}"
            early = [] if value.complete else [f"round {value.round}"]
            by_round = _values_by_round(results, entries[row, column]) if (row, column) in entries else {}
            numbers = {f"{name}@{round}": _format_citation(ours, limit) for round, ours in by_round.items()}
            yield name, {name: _format_citation(value.ours, [*early, *limit]), **numbers}


def _values_by_round(results: Results, entry: TableEntry) -> dict[int, float]:
    """The number in every complete round, up to the round of the entry."""
    rounds = range(1, (results.value(entry).round or 0) + 1)
    values = {round: results.value(replace(entry, round=round)).ours for round in rounds}
    return {round: ours for round, ours in values.items() if ours is not None}


def _format_citation(ours: float, qualifiers: Sequence[str]) -> str:
    return f"{format_number(ours)} ({', '.join(qualifiers)})" if qualifiers else format_number(ours)


def benchmark_tables(folder: Path) -> dict[str, str]:
    """Tables that benchmark scripts wrote next to the archives, by name, such as `speed/gpu`.

    Args:
        folder: Such as `results`.
    """
    pages = sorted(set(folder.glob("*/*.md")) - set(folder.glob("notes/*.md")))
    texts = {f"{page.parent.name}/{page.stem}": page.read_text(encoding="utf-8").strip() for page in pages}
    return {name: f"\n\n{text}\n\n" for name, text in texts.items()}


def render_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Fill the placeholders of a page, from `<!-- results:claims -->` to `<!-- /results -->`.

    Args:
        text: The page; earlier content of a placeholder is replaced.
        values: What can be cited, by name.

    Examples:
        >>> render_placeholders("error <!-- results:x --><!-- /results --> %", {"x": "12.3"})
        'error <!-- results:x -->12.3<!-- /results --> %'
    """
    return _PLACEHOLDER.sub(lambda match: _fill_placeholder(match, values), text)


def _fill_placeholder(match: re.Match[str], values: Mapping[str, str]) -> str:
    name = check_choice("result", match["name"], values)
    if match["content"] is None:
        raise InputError(f"Expected `<!-- /results -->` after `<!-- results:{name} -->`, but it is missing.")
    return f"<!-- results:{name} -->{values[name]}<!-- /results -->"


def _render_claims(archives: Sequence[Results]) -> str:
    if not archives:
        return _NO_RESULTS
    rows = [[claim.text, claim.verdict, "<br>".join(claim.evidence)] for claim in evaluate_claims(archives)]
    return format_markdown_table(["claim", "verdict", "numbers"], rows).replace("---:", "---")


def _render_verdicts(archives: Sequence[Results]) -> str:
    """The claims and verdicts without the numbers."""
    rows = [[claim.text, claim.verdict] for claim in evaluate_claims(archives)]
    return format_markdown_table(["claim", "in our runs"], rows).replace("---:", "---")


def _describe_archive(results: Results) -> str:
    """Describe the content of an archive in one sentence."""
    images, unknown, models = (
        ", ".join(sorted({name for spec in results.runs if (name := getattr(spec, kind))}))
        for kind in ("images", "unknown", "model")
    )
    held_out = " under held-out corruptions" * all(spec.domains == HELD_OUT for spec in results.runs)
    severities = sorted({spec.severity for spec in results.runs} - {Spec.severity})
    at_severity = f" at severity {' and '.join(map(str, severities))}" if severities else ""
    among = f", also among unknown images of {unknown}" if unknown else ""
    return f"{models} on {images}{held_out}{at_severity}{among}."


def _render_tables(results: Results, archives: Sequence[Results]) -> str:
    """Render the tables of an archive; an archive on few images only those that add numbers."""
    known = _measured_cells(other for other in archives if not other.is_subset) if results.is_subset else set()
    shown = [filled for filled in fill_tables(results) if not _table_cells(filled) <= known]
    return "\n\n".join(_render_table_section(results, filled) for filled in shown) or _NO_RESULTS


def _measured_cells(archives: Iterable[Results]) -> set[tuple[str, str, str]]:
    return {cell for results in archives for filled in fill_tables(results) for cell in _table_cells(filled)}


def _table_cells(filled: FilledTable) -> set[tuple[str, str, str]]:
    """Table, row and column of every number."""
    return {(filled.table.name, *cell) for cell, value in filled.values.items() if value.ours is not None}


def _render_table_section(results: Results, filled: FilledTable) -> str:
    comparison = compare_with_paper(filled)
    labels = (comparison.reference, comparison.unit, comparison.better, comparison.round_label)
    parts = [
        f"### {comparison.title}",
        f"`{comparison.name}`: {', '.join(filter(None, labels))}.",
        render_table(filled),
    ]
    if comparison.missing_rows:
        parts.append(f"Not measured: {', '.join(comparison.missing_rows)}.")
    if comparison.missing_columns:
        parts.append(f"Settings without numbers here: {', '.join(comparison.missing_columns)}.")
    return "\n\n".join([*parts, *table_notes(filled, results)])


def _render_gallery(figures: Mapping[str, str]) -> str:
    shown = (f"![{Path(path).stem}]({path})\n\n{caption}" for path, caption in figures.items())
    return "\n\n".join(["## Figures", *shown])


def _render_protocol(archives: Sequence[Results]) -> str:
    """The protocol of every archive; the archives contain the spec and protocol of each run."""
    head, rows = ["archive", "runs", "versions", "hardware", "engines", "time measured", "seeds", "metadata"], []
    for results in archives:
        protocol = build_protocol(results, group_streams(results))
        versions = ", ".join(f"{name} {protocol.facts[name]}" for name in ("driftproof", "torch", "python"))
        metadata = "; ".join(f"{key}: {value}" for key, value in protocol.metadata.items())
        seeds = ", ".join(map(str, sorted({spec.seed for spec in results.runs})))
        facts = [
            versions,
            *(protocol.facts[name] for name in ("hardware", "engines", "time measured")),
            seeds,
            metadata,
        ]
        rows.append([results.folder.name, str(len(results.runs)), *facts])
    return format_markdown_table(head, rows).replace("---:", "---")
