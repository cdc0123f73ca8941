"""Write the results page, and fill in the numbers that other pages cite."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from driftproof.bench.results import FilledTable, Results, Value
from driftproof.bench.spec import Spec
from driftproof.corruptions import HELD_OUT
from driftproof.errors import InputError
from driftproof.paper.claims import evaluate_claims
from driftproof.paper.comparison import describe_table, fill_tables, format_markdown, measured, render_table
from driftproof.paper.deviations import LARGE_DEVIATION, large_deviations
from driftproof.paper.notes import table_notes
from driftproof.report.numbers import format_duration, format_number
from driftproof.validation import check_choice

__all__ = ["Citations", "load_archives", "read_page", "render_placeholders", "render_results_page"]

_INTRODUCTION = (
    "# Results\n\n`make results` generates this page from the archives in this folder and the sections in `notes`. "
    "Errors are percentages of the predictions made while adapting. `@5` marks a number from round 5 in a table "
    "that asks for a later one: it is the last round that all its runs completed. Bold is the best of the numbers "
    "with the most rounds."
)
_PLACEHOLDER = re.compile(r"<!-- results:(?P<name>.+?) -->(?P<content>(?s:(?!<!-- results:).)*?<!-- /results -->)?")
"""A placeholder of a page with its content; the content is None if it is not closed before the next one."""


def load_archives(folder: Path) -> list[Results]:
    """Load the archives of a folder: those with tables of the paper first, then those on all images.

    Args:
        folder: Such as `results`.
    """
    archives = [Results(path.parent) for path in sorted(folder.glob("*/runs.parquet"))]
    if not archives:
        raise InputError(
            f"Expected archives in subfolders of {folder}, but found none. "
            "Create them from results folders with `driftproof bench export`."
        )
    return sorted(archives, key=_archive_order)


def _archive_order(results: Results) -> tuple[bool, bool]:
    return not any(filled.table.reference for filled in fill_tables(results)), results.is_subset


def read_page(path: Path) -> str:
    """Read a page as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"Expected {path} to be text in UTF-8, but decoding failed: {error}.") from error


def render_results_page(folder: Path, page: Path, archives: Sequence[Results], citations: "Citations") -> str:
    """Render all tables, the paper's claims, large deviations, figures, notes and the protocol.

    Args:
        folder: Such as `results`, with sections in `notes`, which may cite numbers, and figures in `figures`.
        page: Where the page will be written, for relative links to figures.
        archives: Its archives.
        citations: What can be cited.
    """
    paths = sorted(folder.glob("figures/**/*.svg"), key=lambda path: (len(path.parts), path))
    parts = [
        *(_render_archive(results, archives) for results in archives),
        f"## The paper's claims\n\n{citations['claims'].strip()}",
        f"## More than {LARGE_DEVIATION:g} points from the paper\n\n{large_deviations(archives)}",
        *(["\n\n".join(["## Figures", *(_render_figure(path, page) for path in paths)])] if paths else []),
        *(render_placeholders(read_page(path), citations) for path in sorted(folder.glob("notes/*.md"))),
        f"## Protocol\n\n{_render_protocol(archives)}",
    ]
    titles = [part.strip().partition("\n")[0].removeprefix("## ") for part in parts]
    anchors = (re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)
    contents = " · ".join(f"[{title}](#{anchor})" for title, anchor in zip(titles, anchors, strict=True))
    return "\n\n".join(part.strip() for part in (_INTRODUCTION, contents, *parts)) + "\n"


def _render_archive(results: Results, archives: Sequence[Results]) -> str:
    """Describe an archive and render its tables; of an archive on few images only those that add numbers."""
    images, unknown, models = (
        ", ".join(sorted({name for spec in results.runs if (name := getattr(spec, kind))}))
        for kind in ("images", "unknown", "model")
    )
    held_out = " under held-out corruptions" * all(spec.domains == HELD_OUT for spec in results.runs)
    severities = sorted({spec.severity for spec in results.runs} - {Spec.severity})
    at_severity = f" at severity {' and '.join(map(str, severities))}" if severities else ""
    among = f", also among unknown images of {unknown}" if unknown else ""
    others = [other for other in archives if not other.is_subset] if results.is_subset else []
    known = {place for other in others for filled in fill_tables(other) for place in _list_places(filled)}
    shown = [filled for filled in fill_tables(results) if not _list_places(filled) <= known]
    description = f"{models} on {images}{held_out}{at_severity}{among}."
    return "\n\n".join([f"## {results.folder.name}", description, *(_render_table(each, results) for each in shown)])


def _list_places(filled: FilledTable) -> set[tuple[str, ...]]:
    return {(filled.table.name, *place) for place, value in filled.values.items() if value.ours is not None}


def _render_table(filled: FilledTable, results: Results) -> str:
    rows, columns = measured(filled)
    settings = dict.fromkeys(entry.column for entry in filled.table.entries)
    missing = {
        "Not measured": [row for row in filled.rows if row not in rows],
        "Settings without numbers here": [column for column in settings if column not in columns],
    }
    parts = [
        f"### {filled.table.title}",
        f"`{filled.table.name}`: {describe_table(filled)}.",
        render_table(filled),
        *(f"{label}: {', '.join(names)}." for label, names in missing.items() if names),
        *table_notes(filled, results),
    ]
    return "\n\n".join(parts)


def _render_figure(figure: Path, page: Path) -> str:
    path = figure.with_suffix(".json")
    try:
        description = json.loads(read_page(path)) if path.exists() else {}
        texts = description.get("title"), description.get("caption")
    except (ValueError, AttributeError) as error:
        raise InputError(f"Expected {path} to be a JSON object with title and caption, but got: {error}.") from error
    caption = ". ".join(filter(None, texts)) or figure.stem
    return f"![{figure.stem}]({Path(os.path.relpath(figure, page.parent)).as_posix()})\n\n{caption}"


def _render_protocol(archives: Sequence[Results]) -> str:
    """Render the protocol of every archive; the archives contain the spec and protocol of each run."""
    head, rows = ["archive", "runs", "versions", "hardware", "engines", "time measured", "seeds", "metadata"], []
    for results in archives:
        visits = [stretch for run in results.runs.values() for stretch in run.stretches]
        versions = (
            f"{name} {_join(visit.get(name) for visit in visits)}" for name in ("driftproof", "torch", "python")
        )
        threads = [f", {visit.get('threads')} threads" if visit.get("device") == "cpu" else "" for visit in visits]
        machines = (f"{v.get('hardware')} ({v.get('device')}{count})" for v, count in zip(visits, threads, strict=True))
        engines = (" ".join(filter(None, (v.get("engine"), v.get("precision")))) or None for v in visits)
        seconds = float(results.frames.runs["seconds"].sum())
        seeds = sorted({spec.seed for spec in results.runs})
        metadata = "; ".join(f"{key}: {text}" for key, text in _flatten(results.metadata))
        facts = (", ".join(versions), _join(machines), _join(engines), format_duration(seconds), _join(seeds), metadata)
        rows.append([results.folder.name, str(len(results.runs)), *facts])
    return format_markdown(head, rows, rule="---")


def _join(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None)) or "–"


def _flatten(metadata: Mapping[str, object]) -> Iterable[tuple[str, str]]:
    for key, value in metadata.items():
        if isinstance(value, dict):
            yield from ((f"{key} {inner}", str(content)) for inner, content in value.items())
        elif isinstance(value, list):
            yield key, ", ".join(map(str, value)) or "none"
        else:
            yield key, "none" if value is None else str(value)


class Citations:
    """What pages can cite, by name.

    Names are `claims`, `verdicts`, a table such as `table1`, a number such as `table1/tent+crowd/CIFAR-10-C/Open`, with
    `@5` that of round 5, and a page that a benchmark script wrote next to the archives, such as `speed/gpu`. Numbers
    measured on only some of the images say so.

    Args:
        archives: The archives. The first that has a number provides it; archives on all images come first.
        folder: Where the benchmark scripts' pages are.
    """

    def __init__(self, archives: Sequence[Results], folder: Path) -> None:
        self._archives = sorted(archives, key=lambda results: results.is_subset)
        pages = sorted(set(folder.glob("*/*.md")) - set(folder.glob("notes/*.md")))
        self._pages = {f"{page.parent.name}/{page.stem}": page for page in pages}
        self._tables: dict[str, tuple[FilledTable, Results]] = {}
        self._numbers: dict[str, tuple[FilledTable, Results, tuple[str, str]]] = {}
        for results in self._archives:
            for filled in fill_tables(results):
                self._tables.setdefault(filled.table.name, (filled, results))
                for place, value in filled.values.items():
                    if value.ours is not None:
                        self._numbers.setdefault("/".join((filled.table.name, *place)), (filled, results, place))

    def __getitem__(self, name: str) -> str:
        """Return what a placeholder is filled with."""
        for find in (self._find_claims, self._find_page, self._find_table, self._find_number):
            text = find(name)
            if text is not None:
                return text
        return check_choice("result", name, ["claims", "verdicts", *self._pages, *self._tables, *self._numbers])

    def _find_claims(self, name: str) -> str | None:
        if name not in ("claims", "verdicts"):
            return None
        claims = evaluate_claims(self._archives)
        head = ["claim", "verdict", "numbers"] if name == "claims" else ["claim", "in our runs"]
        rows = [[each.text, each.verdict, "<br>".join(case.text for case in each.cases)] for each in claims]
        return f"\n\n{format_markdown(head, [row[: len(head)] for row in rows], rule='---')}\n\n"

    def _find_page(self, name: str) -> str | None:
        return f"\n\n{read_page(self._pages[name]).strip()}\n\n" if name in self._pages else None

    def _find_table(self, name: str) -> str | None:
        if name not in self._tables:
            return None
        filled, results = self._tables[name]
        note = f"\n\nOnly the first {results.metadata['limit']} images of each domain." if results.is_subset else ""
        return f"\n\n{render_table(filled)}{note}\n\n"

    def _find_number(self, name: str) -> str | None:
        place, _, round = name.rpartition("@")
        is_round = round.isdecimal() and name not in self._numbers
        filled, results, at = self._numbers.get(place if is_round else name, (None, None, ("", "")))
        if filled is None or results is None:
            return None
        value = filled.values[at]
        if is_round:
            value = _value_of_round(filled, results, at, int(round))
        if value.ours is None:
            return None
        early = [] if value.complete else [f"round {value.round}"]
        limit = [f"first {results.metadata['limit']} images"] if results.is_subset else []
        return " ".join([format_number(value.ours), *([f"({', '.join([*early, *limit])})"] if early or limit else [])])


def _value_of_round(filled: FilledTable, results: Results, place: tuple[str, str], round: int) -> Value:
    """Return the number of a round; none if it is not complete, later than the table shows, or a summary."""
    entries = [entry for entry in filled.table.entries if (entry.row, entry.column) == place]
    last = results.value(entries[0]).round or 0 if entries else 0
    return results.value(replace(entries[0], round=round)) if 0 < round <= last else Value()


def render_placeholders(text: str, citations: "Citations | Mapping[str, str]") -> str:
    """Fill the placeholders of a page, from `<!-- results:claims -->` to `<!-- /results -->`.

    Args:
        text: The page; earlier content of a placeholder is replaced.
        citations: What can be cited, by name.

    Examples:
        >>> render_placeholders("error <!-- results:x --><!-- /results --> %", {"x": "12.3"})
        'error <!-- results:x -->12.3<!-- /results --> %'
    """

    def fill(match: re.Match[str]) -> str:
        content = citations[match["name"]]
        if match["content"] is None:
            raise InputError(
                f"Expected `<!-- /results -->` after `<!-- results:{match['name']} -->`, but it is missing."
            )
        return f"<!-- results:{match['name']} -->{content}<!-- /results -->"

    return _PLACEHOLDER.sub(fill, text)
