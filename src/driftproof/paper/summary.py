"""Write the results page: tables, claims, deviations, figures, notes and protocol."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from driftproof.bench.results import FilledTable, Results
from driftproof.bench.spec import Spec
from driftproof.corruptions import HELD_OUT
from driftproof.errors import InputError
from driftproof.paper.citations import Citations, read_page, render_placeholders
from driftproof.paper.comparison import describe_table, fill_tables, format_markdown, measured, render_table
from driftproof.paper.deviations import LARGE_DEVIATION, large_deviations
from driftproof.paper.notes import table_notes
from driftproof.report.text import format_duration

__all__ = ["load_archives", "render_results_page"]

_INTRODUCTION = (
    "# Results\n\n`make results` generates this page from the archives in this folder and the sections in `notes`. "
    "Errors are percentages of the predictions made while adapting. `@5` marks a number from round 5 in a table "
    "that asks for a later one: it is the last round that all its runs completed. Bold is the best of the numbers "
    "with the most rounds."
)


def load_archives(folder: Path) -> list[Results]:
    """Load the archives of a folder: those with the paper's tables first, those on few images last."""
    archives = [Results(path.parent) for path in sorted(folder.glob("*/runs.parquet"))]
    if not archives:
        raise InputError(
            f"Expected archives in subfolders of {folder}, but found none. "
            "Create them from results folders with `driftproof bench export`."
        )
    return sorted(archives, key=_archive_order)


def _archive_order(results: Results) -> tuple[bool, bool]:
    return not any(filled.table.reference for filled in fill_tables(results)), results.is_subset


def render_results_page(folder: Path, page: Path, archives: Sequence[Results], citations: Citations) -> str:
    """Render the page of a folder such as `results`, with figures in `figures` and sections in `notes`.

    Links to figures are relative to where `page` will be; the sections may cite numbers.
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
