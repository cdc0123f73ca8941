"""Write the results page (tables, claims, figures, notes and protocol), and numbers that pages cite."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from driftproof.bench.results import FilledTable, Results, Value
from driftproof.bench.spec import Spec
from driftproof.bench.tables import TableEntry
from driftproof.corruptions import HELD_OUT
from driftproof.errors import InputError
from driftproof.files import read_json, read_text
from driftproof.paper.claims import evaluate_claims
from driftproof.paper.comparison import (
    describe_table,
    fill_tables,
    format_markdown,
    measured,
    render_table,
    table_notes,
)
from driftproof.report.text import format_duration, format_number
from driftproof.validation import check_choice

__all__ = ["Citations", "load_archives", "render_placeholders", "render_results_page"]

_INTRODUCTION = (
    "# Results\n\n`make results` generates this page from the archives in this folder and the sections in `notes`. "
    "Errors are percentages of the predictions made while adapting. `@5` marks a number from round 5 in a table "
    "that asks for a later one: it is the last round that all its runs completed. Bold is the best of the numbers "
    "with the most rounds."
)
_PLACEHOLDER = re.compile(r"<!-- results:(?P<name>.+?) -->(?P<content>(?s:(?!<!-- results:).)*?<!-- /results -->)?")
"""A placeholder of a page with its content; the content is None if it is not closed before the next one."""


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
        archives = sorted(archives, key=lambda results: results.is_subset)
        self._texts: dict[str, Callable[[], str]] = {
            "claims": partial(_cite_claims, archives, ["claim", "verdict", "numbers"]),
            "verdicts": partial(_cite_claims, archives, ["claim", "in our runs"]),
        }
        self._entries: dict[str, tuple[Results, TableEntry, int]] = {}
        for page in sorted(set(folder.glob("*/*.md")) - set(folder.glob("notes/*.md"))):
            self._texts[f"{page.parent.name}/{page.stem}"] = partial("\n\n{}\n\n".format, read_text(page).strip())
        for results in archives:
            for filled in fill_tables(results):
                self._add_table(filled, results)

    def _add_table(self, filled: FilledTable, results: Results) -> None:
        entries = {(entry.row, entry.column): entry for entry in filled.table.entries}
        self._texts.setdefault(filled.table.name, partial(_cite_table, filled, results))
        for place, value in filled.values.items():
            name = "/".join((filled.table.name, *place))
            if value.ours is not None and name not in self._texts:
                self._texts[name] = partial(_cite_value, value, results)
                if place in entries:
                    self._entries[name] = (results, entries[place], value.round or 0)

    def __getitem__(self, name: str) -> str:
        """Return what a placeholder is filled with."""
        number, _, round = name.rpartition("@")
        if name not in self._texts and number in self._entries and round.isdecimal():
            results, entry, last = self._entries[number]
            if 1 <= int(round) <= last:
                return _cite_value(results.value(replace(entry, round=int(round))), results)
        return self._texts[check_choice("result", name, self._texts)]()


def _cite_claims(archives: Sequence[Results], head: Sequence[str]) -> str:
    claims = evaluate_claims(archives)
    rows = ([claim.text, claim.verdict, "<br>".join(case.text for case in claim.cases)] for claim in claims)
    return f"\n\n{format_markdown(head, [row[: len(head)] for row in rows], rule='---')}\n\n"


def _cite_table(filled: FilledTable, results: Results) -> str:
    note = f"\n\nOnly the first {results.metadata['limit']} images of each domain." if results.is_subset else ""
    return f"\n\n{render_table(filled)}{note}\n\n"


def _cite_value(value: Value, results: Results) -> str:
    early = [] if value.complete else [f"round {value.round}"]
    limits = [*early, *([f"first {results.metadata['limit']} images"] if results.is_subset else [])]
    return format_number(value.ours or 0.0) + (f" ({', '.join(limits)})" if limits else "")


def render_placeholders(text: str, citations: "Citations | Mapping[str, str]") -> str:
    """Fill the placeholders of a page, from `<!-- results:claims -->` to `<!-- /results -->`, whatever they hold.

    Examples:
        >>> render_placeholders("error <!-- results:x --><!-- /results --> %", {"x": "12.3"})
        'error <!-- results:x -->12.3<!-- /results --> %'
    """

    def fill(match: re.Match[str]) -> str:
        opening = f"<!-- results:{match['name']} -->"
        if match["content"] is None:
            raise InputError(f"Expected `<!-- /results -->` after `{opening}`, but it is missing.")
        return f"{opening}{citations[match['name']]}<!-- /results -->"

    return _PLACEHOLDER.sub(fill, text)


def load_archives(folder: Path) -> list[Results]:
    """Load the archives of a folder: those with the paper's tables first, those on few images last."""
    archives = [Results(path.parent) for path in sorted(folder.glob("*/runs.parquet"))]
    if not archives:
        raise InputError(
            f"Expected archives in subfolders of {folder}, but found none. "
            "Create them from results folders with `driftproof bench export`."
        )
    has_paper = {each: any(filled.table.reference for filled in fill_tables(each)) for each in archives}
    return sorted(archives, key=lambda results: (not has_paper[results], results.is_subset))


def render_results_page(folder: Path, page: Path, archives: Sequence[Results], citations: Citations) -> str:
    """Render the page of a folder such as `results`, with figures in `figures` and sections in `notes`.

    Links to figures are relative to where `page` will be; the sections may cite numbers.
    """
    paths = sorted(folder.glob("figures/**/*.svg"), key=lambda path: (len(path.parts), path))
    parts = [
        *(_render_archive(results, archives) for results in archives),
        f"## The paper's claims\n\n{citations['claims'].strip()}",
        *(["\n\n".join(["## Figures", *(_render_figure(path, page) for path in paths)])] if paths else []),
        *(render_placeholders(read_text(path), citations) for path in sorted(folder.glob("notes/*.md"))),
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
    description = read_json(path) if path.exists() else {}
    if not isinstance(description, dict):
        raise InputError(f"Expected {path} to be a JSON object with title and caption, but got {description!r}.")
    caption = ". ".join(filter(None, map(description.get, ("title", "caption")))) or figure.stem
    return f"![{figure.stem}]({Path(os.path.relpath(figure, page.parent)).as_posix()})\n\n{caption}"


def _render_protocol(archives: Sequence[Results]) -> str:
    """Render the protocol of every archive; the archives contain the spec and protocol of each run."""
    head, rows = ["archive", "runs", "versions", "hardware", "engines", "time measured", "seeds", "metadata"], []
    for results in archives:
        visits = [stretch for run in results.runs.values() for stretch in run.stretches]
        versions = (f"{name} {_join(v.get(name) for v in visits)}" for name in ("driftproof", "torch", "python"))
        engines = (" ".join(filter(None, (v.get("engine"), v.get("precision")))) or None for v in visits)
        seconds = float(results.frames.runs["seconds"].sum())
        facts = (
            results.folder.name, str(len(results.runs)), ", ".join(versions), _join(map(_describe_machine, visits)),
            _join(engines), format_duration(seconds), _join(sorted({spec.seed for spec in results.runs})),
            "; ".join(f"{key}: {text}" for key, text in _flatten(results.metadata)),
        )  # fmt: skip
        rows.append(facts)
    return format_markdown(head, rows, rule="---")


def _describe_machine(visit: Mapping[str, object]) -> str:
    threads = f", {visit.get('threads')} threads" if visit.get("device") == "cpu" else ""
    return f"{visit.get('hardware')} ({visit.get('device')}{threads})"


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
