"""The HTML report: one self-contained page, its figures and its rows as files."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from driftproof.bench import Results
from driftproof.errors import InputError
from driftproof.files import atomic_write
from driftproof.optional import require
from driftproof.report.commands import reproduction_commands
from driftproof.report.comparison import Comparison, compare_with_paper
from driftproof.report.exports import flat_rows, write_csv, write_parquet
from driftproof.report.figures import domain_figures, round_figures, selected_share_figures, within_domain_figures
from driftproof.report.findings import overall_summary, stream_findings
from driftproof.report.health import health_table
from driftproof.report.notes import compute_notes, metadata_notes
from driftproof.report.protocol import build_protocol
from driftproof.report.responsive import NARROW, WIDE, ResponsiveFigure
from driftproof.report.series import StreamGroup, group_streams

__all__ = ["write_report"]

_TASK_SUMMARIES = {
    "costs": "The cost of a step of each method.",
    "gradients": "Cosine similarity between the gradients of single samples.",
}


def write_report(results: Results, out: Path, *, title: str | None = None) -> Path:
    """Write the report of a results folder: a page, its figures, and its rows.

    Args:
        results: What to report.
        out: The output folder, created if missing. Files of an earlier report are replaced atomically, the page last.
            If `driftproof analyze scenes` wrote to its subfolder `scenes`, the page links to it.
        title: Of the page; None uses the title of the tables.

    Returns:
        The path of the page, `index.html`.
    """
    for module in ("jinja2", "matplotlib", "pyarrow"):
        require(module, "Writing a report", "'driftproof[report]'")
    rows = flat_rows(results)
    if not rows:
        raise InputError(
            f"Expected rows in {results.folder}, but no run has written one yet. Repeat `driftproof bench run`."
        )
    streams = group_streams(results)
    sections = [section for section in _sections(results, streams) if section.figures]
    scenes = (out / "scenes" / "index.html").exists()
    page = _render_page(results, streams, sections, title, scenes)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for figure in itertools.chain.from_iterable(section.figures for section in sections):
        figure.save(out / "figures")
    write_csv(rows, out / "rows.csv")
    write_parquet(rows, out / "rows.parquet")
    with atomic_write(out / "index.html") as unfinished:
        unfinished.write_text(page, encoding="utf-8")
    return out / "index.html"


@dataclass(frozen=True)
class _Section:
    anchor: str
    title: str
    note: str
    figures: Sequence[ResponsiveFigure]


def _sections(results: Results, streams: Sequence[StreamGroup]) -> list[_Section]:
    return [
        _Section(
            "rounds",
            "Rounds",
            "Dashed, hollow markers: the plain method. Solid, filled markers: the same method with selection.",
            round_figures(results, streams),
        ),
        _Section(
            "course",
            "Within each domain",
            "Mean IoU over the frames of a domain seen so far.",
            within_domain_figures(results, streams),
        ),
        _Section(
            "domains",
            "Domains",
            "Darker is higher. All cells of a figure share one scale.",
            domain_figures(results, streams),
        ),
        _Section(
            "selected",
            "Selected samples",
            "Only methods with a selection are shown; the others learn from all samples or from none.",
            selected_share_figures(results, streams),
        ),
    ]


def _render_page(
    results: Results, streams: Sequence[StreamGroup], sections: Sequence[_Section], title: str | None, scenes: bool
) -> str:
    import jinja2

    files = resources.files("driftproof.report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(files.joinpath("page.html").read_text(encoding="utf-8"))
    from driftproof.paper import all_tables

    tables = results.tables(all_tables())
    comparisons = [compare_with_paper(table) for table in tables]
    text: str = template.render(
        title=title or _title(comparisons, results),
        summary=_summary(results, streams),
        style=files.joinpath("page.css").read_text(encoding="utf-8"),
        overall_summary=overall_summary(results, streams),
        findings=stream_findings(results, streams),
        notes=_notes(results, comparisons),
        comparisons=comparisons,
        compute_notes={table.table.name: compute_notes(table, results) for table in tables},
        group_columns=_group_columns,
        sections=sections,
        scenes=scenes,
        health=health_table(results, streams),
        wide=WIDE,
        narrow=NARROW,
        streams=streams,
        protocol=build_protocol(results, streams),
        commands=reproduction_commands(results),
    )
    return text


def _title(comparisons: Sequence[Comparison], results: Results) -> str:
    titles = dict.fromkeys(comparison.title for comparison in comparisons)
    return next(iter(titles)) if len(titles) == 1 else f"Results of {results.folder.resolve().name}"


def _summary(results: Results, streams: Sequence[StreamGroup]) -> str:
    if not streams:
        tasks = dict.fromkeys(spec.task for spec in results.runs if results.rounds(spec))
        return " ".join(_TASK_SUMMARIES[task] for task in tasks) or "No round is complete yet."
    methods = {series.name for stream in streams for series in stream.series}
    rounds = max(stream.rounds(results) for stream in streams)
    learning = (series for stream in streams for series in stream.series if not series.is_stateless(results))
    at_most = "up to " if any(series.rounds(results) < rounds for series in learning) else ""
    models = dict.fromkeys(stream.spec.model for stream in streams)
    where = _join([stream.name for stream in streams]) if len(streams) < 4 else f"{len(streams)} streams"
    return (
        f"{_pluralize(len(methods), 'method')} adapt {_join(list(models))} to {where}: "
        f"{at_most}{_pluralize(rounds, 'round')} through "
        f"{_pluralize(max(len(stream.spec.domains) for stream in streams), 'domain')}, without a reset."
    )


def _notes(results: Results, comparisons: Sequence[Comparison]) -> list[str]:
    notes = []
    limit = results.metadata.get("limit")
    if limit is not None:
        warning = " They compare only roughly with the paper's." * any(found.reference for found in comparisons)
        notes.append(f"These numbers come from the first {limit} images of each domain.{warning}")
    notes += metadata_notes({**results.metadata, "limit": None})
    if any(comparison.has_early_rounds for comparison in comparisons):
        notes.append(
            "Numbers marked with @ are from an earlier round than the table asks for: the last one that all their runs "
            "completed."
        )
    unfinished = [spec.name for spec in results.runs if not results.rounds(spec)]
    if unfinished:
        notes.append(f"No complete round yet: {_join(unfinished)}.")
    return notes


def _group_columns(columns: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Group columns by the part before the slash: `A/x` and `A/y` are x and y below A."""
    pairs = [(head, below) if slash else ("", head) for head, slash, below in (name.partition("/") for name in columns)]
    return [(head, [below for _, below in group]) for head, group in itertools.groupby(pairs, key=lambda pair: pair[0])]


def _pluralize(number: int, noun: str) -> str:
    return f"one {noun}" if number == 1 else f"{number} {noun}s"


def _join(names: Sequence[Any]) -> str:
    *others, last = map(str, names)
    return f"{', '.join(others)} and {last}" if others else last
