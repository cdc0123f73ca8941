"""Write the report: one HTML page that needs nothing else."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftproof.bench.frames import Frames, load_metadata, read_frames
from driftproof.bench.tabulate import FROM_CONDITIONS
from driftproof.errors import InputError
from driftproof.files import atomic_write
from driftproof.optional import require
from driftproof.report import sections
from driftproof.report.figures import heatmap, histogram, line_chart, to_spec
from driftproof.report.notes import metadata_notes
from driftproof.report.numbers import format_duration, format_number
from driftproof.report.render import render
from driftproof.report.series import label_measures, label_runs, per_domain, per_round
from driftproof.report.tables import html_table
from driftproof.report.theme import CONFIG

if TYPE_CHECKING:
    import polars as pl
else:
    pl = require("polars", "Reporting results", "'driftproof[report]'")

__all__ = ["ReportTable", "write_report"]

MAX_FIGURES = 12
"""Figures of a section, one per setting; tables show all settings."""

_SELECTION = "precision|recall|npv|selected_known|selected_unknown"
_NOVELTY = "(.*/)?(auroc|aupr|fpr|oscr|h_score|ece)"
_WANTED = (
    f"error|mean_iou.*|health|health/unhealthy|guard/.*|quarantined|{_SELECTION}|{_NOVELTY}|{'|'.join(FROM_CONDITIONS)}"
)
_ENVIRONMENT = ("driftproof", "torch", "python", "device", "hardware", "threads", "engine", "precision")


@dataclass(frozen=True)
class ReportTable:
    """A table of a client's own for the page.

    Attributes:
        title: What it shows.
        frame: The first column names the rows. A text that starts with `*` is printed bold.
        note: A sentence on how to read it.
    """

    title: str
    frame: "pl.DataFrame"
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure of the page: its element, its caption, and a chart in Vega-Lite."""

    name: str
    title: str
    spec: dict[str, Any]


def write_report(
    folders: Path | Sequence[Path], out: Path, *, title: str | None = None, tables: Sequence[ReportTable] = ()
) -> Path:
    """Write the report of results folders or archives.

    Args:
        folders: What to report, one or several.
        out: The page, or a folder for its `index.html`. An earlier page is replaced atomically.
        title: Of the page; None names the folders.
        tables: Further tables, shown after the results.

    Returns:
        The path of the page.
    """
    paths = [folders] if isinstance(folders, Path) else list(folders)
    frames, metadata = read_frames(*paths), [load_metadata(path) for path in paths]
    if not frames.runs["visits"].sum():
        raise InputError(f"Expected rows in {paths[0]}, but no run has written one yet. Repeat `driftproof bench run`.")
    runs = label_runs(frames.runs)
    numbers = label_measures(frames.measures, runs, _WANTED)
    has_streams = not numbers.is_empty()
    figures = dict(_figures(numbers, runs, frames.histograms.collect())) if has_streams else {}
    text = render(
        "page.html",
        title=title or f"Results of {', '.join(path.resolve().name for path in paths)}",
        verdict=sections.verdict(numbers) if has_streams else None,
        measure=sections.primary_measure(numbers)[1],
        notes=list(dict.fromkeys(note for each in metadata for note in metadata_notes(each))),
        has_health=(numbers["measure"] == "health").any(),
        tables=dict(_tables(numbers, runs)) | dict(_analyses(frames)) if has_streams else dict(_analyses(frames)),
        client_tables=[(each, html_table(each.frame, name=f"table-own-{i}")) for i, each in enumerate(tables)],
        tasks=frames.runs.filter(pl.col("task") != "stream")["task"].unique().sort().to_list(),
        figures=figures,
        facts=_facts(frames.runs, metadata),
        commands=[command for each in metadata for command in each.get("commands", ())],
        charts={"specs": {each.name: each.spec for group in figures.values() for each in group}, "config": CONFIG},
        bundle=require("vl_convert", "Writing a report", "'driftproof[report]'").javascript_bundle(),
        number=lambda value: format_number(value, 2),
    )
    page = out if out.suffix == ".html" else out / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(page) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return page


def _figures(
    numbers: "pl.DataFrame", runs: "pl.DataFrame", histograms: "pl.DataFrame"
) -> Iterator[tuple[str, list[Figure]]]:
    """Yield the figures of each section, one per setting."""
    name, title, _ = sections.primary_measure(numbers)
    labels = runs.sort("order")["label"].unique(maintain_order=True).to_list()
    course, at = sections.headline_course(numbers).with_columns(column=pl.lit("")), "round"
    at = at if at in course.columns else "domain"
    against = course["difference"].is_not_null().any()
    first = {"y": "difference", "y_title": f"{title} minus the source's, points", "baseline": 0.0} if against else {}
    several = pl.col("round").max().over("place") > 1
    lines: dict[str, Any] = {"known": labels, "y_title": f"{title}, %"}
    best = sections.verdict(numbers)["best"]
    yield (
        "headline",
        _draw(course, "headline", line_chart, x=at, x_title=at, emphasis=best, height=340, **lines | first),
    )
    yield "rounds", _draw(per_round(numbers, name).filter(several), "rounds", line_chart, **lines)
    position = {"x": "position", "x_title": "domains seen"}
    yield "stream", _draw(sections.domain_course(numbers), "stream", line_chart, **lines | position)
    yield "domains", _draw(per_domain(numbers, name), "domains", heatmap, legend=f"{title}, %")
    precision = per_round(numbers, "precision").filter(several, pl.col("value").is_not_null())
    percent = precision.with_columns(pl.col("value", "low", "high") * 100)
    yield "selection", _draw(percent, "selection", line_chart, **lines | {"y_title": "precision, %"})
    yield "novelty", _draw(sections.histogram_shares(histograms, runs), "novelty", histogram)


def _draw(frame: "pl.DataFrame", name: str, draw: Callable[..., Any], **options: Any) -> list[Figure]:  # noqa: ANN401
    """Draw one figure per setting."""
    parts = frame.group_by("column", maintain_order=True) if not frame.is_empty() else ()
    groups = itertools.islice(parts, MAX_FIGURES)
    shown = pl.exclude("measure", "place", "column", "order", "deviation", "visit", "seeds")
    with require("altair.utils.schemapi", "Drawing figures").debug_mode(arg=False):  # without checks of our own charts
        charts = [(str(column), draw(part.select(shown), width="container", **options)) for (column,), part in groups]
        return [Figure(f"{name}-{index}", column, to_spec(chart)) for index, (column, chart) in enumerate(charts)]


def _tables(numbers: "pl.DataFrame", runs: "pl.DataFrame") -> Iterator[tuple[str, str]]:
    """Yield the table of each section."""
    results, headings = sections.result_table(numbers)
    yield "results", html_table(results, name="table-results", spanners=headings)
    costs, headings = sections.cost_table(numbers)
    yield "costs", html_table(costs, name="table-costs", spanners=headings)
    novelty = sections.measure_table(numbers, _NOVELTY)
    split = {name: name.rpartition("/")[::2] for name in novelty.columns[2:]}
    yield "novelty", _grouped(novelty, "novelty", digits=1, spanners=split)
    yield "selection", _grouped(sections.measure_table(numbers, _SELECTION, 100), "selection", digits=1)
    yield "health", _grouped(sections.health_table(numbers), "health", align="left")
    yield "settings", _grouped(sections.settings_table(runs), "settings", align="left")
    yield "methods", _grouped(sections.methods_table(runs), "methods", align="left")


def _analyses(frames: Frames) -> Iterator[tuple[str, str]]:
    """Yield a table for each task that is no stream: its numbers by domain."""
    tasks = frames.runs.filter(pl.col("task") != "stream").select("run", "task", column="method")
    numbers = frames.measures.filter(~pl.col("measure").is_in(FROM_CONDITIONS)).join(tasks.lazy(), on="run").collect()
    for (task,), part in numbers.group_by("task", maintain_order=True):
        wide = part.pivot(on="measure", index=["domain", "column"], values="value", aggregate_function="mean")
        yield str(task), _grouped(wide, str(task))


def _grouped(frame: "pl.DataFrame", name: str, **options: Any) -> str:  # noqa: ANN401
    """Return a table grouped by setting where there are several; empty without rows."""
    several = "column" in frame.columns and frame["column"].n_unique() > 1
    shown = frame if several else frame.drop("column", strict=False)
    return (
        html_table(shown, name=f"table-{name}", group="column" if several else None, **options) if shown.height else ""
    )


def _facts(runs: "pl.DataFrame", metadata: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    used = {name: runs[name].drop_nulls().unique(maintain_order=True).to_list() for name in _ENVIRONMENT}
    facts = {name: ", ".join(map(str, values)) for name, values in used.items() if values}
    others = (item for each in metadata for item in each.items() if item[1] and item[0] not in ("format", "commands"))
    return (
        facts
        | {"time measured": format_duration(float(runs["seconds"].sum()))}
        | {key: str(fact) for key, fact in others}
    )
