"""Write the report: one HTML page that needs nothing else."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from driftproof.bench.frames import FROM_CONDITIONS, Frames, read_frames
from driftproof.bench.libraries import pl
from driftproof.bench.store import Store
from driftproof.errors import InputError
from driftproof.optional import require
from driftproof.report import sections
from driftproof.report.figures import CONFIG, heatmap, histogram, line_chart, to_spec
from driftproof.report.series import label_measures, label_runs, per_domain, per_round
from driftproof.report.tables import html_table
from driftproof.report.text import format_duration, format_number, metadata_notes, write_page

__all__ = ["ReportTable", "write_report"]

MAX_FIGURES = 12
"""Figures of a section, one per setting; tables show all settings."""

_SELECTION = "precision|recall|npv|selected_known|selected_unknown"
_NOVELTY = "(.*/)?(auroc|aupr|fpr|oscr|h_score|ece)"
_OTHERS = "error|mean_iou.*|health|health/unhealthy|guard/.*|quarantined"
_ENVIRONMENT = ("driftproof", "torch", "python", "device", "hardware", "threads", "engine", "precision")

Figure = tuple[str, str, dict[str, Any]]  # name of the element, caption, and chart in Vega-Lite


class ReportTable(NamedTuple):
    """A table of a client's own, and how to read it. The first column names the rows; a text after `*` is bold."""

    title: str
    frame: pl.DataFrame
    note: str = ""


def write_report(
    folders: str | Path | Sequence[Path], out: Path, *, title: str | None = None, tables: Sequence[ReportTable] = ()
) -> Path:
    """Write the report of results folders or archives, and return the path of the page.

    Args:
        folders: What to report, one or several.
        out: The page, or a folder for its `index.html`. An earlier page is replaced atomically.
        title: Of the page; None names the folders.
        tables: Further tables, shown after the results.
    """
    paths = [Path(folders)] if isinstance(folders, str | Path) else list(folders)
    frames, shared = read_frames(*paths), [Store(path).metadata for path in paths]
    if not frames.runs["visits"].sum():
        raise InputError(f"Expected rows in {paths[0]}, but no run has written one yet. Repeat `driftproof bench run`.")
    runs = label_runs(frames.runs)
    wanted = "|".join((_SELECTION, _NOVELTY, _OTHERS, *FROM_CONDITIONS))
    numbers = label_measures(frames.measures, runs, wanted)
    has_streams, settings = not numbers.is_empty(), runs["place"].n_unique()
    figures: dict[str, list[Figure]] = {}
    for section, drawn in _figures(numbers, runs, frames.histograms.collect()) if has_streams else ():
        figures.setdefault(section, []).extend(drawn)
    own = [(each, html_table(each.frame, name=f"table-own-{index}")) for index, each in enumerate(tables)]
    notes = [note for metadata in shared for note in metadata_notes(metadata)]
    if settings > MAX_FIGURES:
        notes.append(f"Figures show the first {MAX_FIGURES} of {settings} settings, tables all.")
    used = {name: frames.runs[name].drop_nulls().unique(maintain_order=True).to_list() for name in _ENVIRONMENT}
    facts = {name: ", ".join(map(str, values)) for name, values in used.items()}
    facts["time measured"] = format_duration(float(frames.runs["seconds"].sum()))
    for metadata in shared:
        facts |= {key: str(fact) for key, fact in metadata.items() if key not in ("format", "commands")}
    return write_page(
        "page.html",
        out if out.suffix == ".html" else out / "index.html",
        title=title or f"Results of {', '.join(path.resolve().name for path in paths)}",
        verdict=sections.verdict(sections.main_settings(numbers)) if has_streams else None,
        setting_count=settings,
        measures=[sections.primary_measure(part)[1] for part in sections.split_by_measure(numbers)],
        has_health=(numbers["measure"] == "health").any(),
        notes=dict.fromkeys(notes),
        tables=dict(_analyses(frames)) | (dict(_tables(numbers, runs)) if has_streams else {}),
        own_tables=own,
        figures=figures,
        facts={key: fact for key, fact in facts.items() if fact not in ("", "None", "{}", "[]")},
        commands=[command for metadata in shared for command in metadata.get("commands", ())],
        charts={"specs": {name: spec for group in figures.values() for name, _, spec in group}, "config": CONFIG},
        bundle=require("vl_convert", "Writing a report", "'driftproof[report]'").javascript_bundle(),
        number=lambda value: format_number(value, 2),
    )


def _figures(numbers: pl.DataFrame, runs: pl.DataFrame, histograms: pl.DataFrame) -> Iterator[tuple[str, list[Figure]]]:
    """Yield the figures of sections, one per setting; a section may come twice."""
    labels = runs.sort("order")["label"].unique(maintain_order=True).to_list()
    main = sections.main_settings(numbers)
    title, is_lower_better = sections.primary_measure(main)[1:]
    course = sections.headline_course(main).with_columns(column=pl.lit(""))
    at, best = course.columns[1], sections.verdict(main)["best"]
    first: dict[str, Any] = {"x": at, "x_title": at, "emphasis": best, "height": 340, "known": labels}
    if course["difference"].is_not_null().any():
        unit = f"{title} minus the source's, points; {'lower' if is_lower_better else 'higher'} is better"
        first |= {"y": "difference", "y_title": unit, "baseline": 0.0}
    yield "headline", _draw(course, "headline", line_chart, **{"y_title": f"{title}, %"} | first)
    several, value = pl.col("round").max().over("place") > 1, pl.col("value")
    for index, part in enumerate(sections.split_by_measure(numbers)):
        name, title, _ = sections.primary_measure(part)
        course, lines = sections.domain_course(part), {"known": labels, "y_title": f"{title}, %"}
        first, *others = course["round"].unique().sort().to_list()
        step = others[0] - first if others else 1
        thinned = f", one round in {step}" if step > 1 else ""
        position = {"x": "position", "x_title": f"domains seen{thinned}"}
        drawn: dict[str, tuple[pl.DataFrame, Callable[..., Any], dict[str, Any]]] = {
            "rounds": (per_round(part, name).filter(several), line_chart, lines),
            "stream": (course, line_chart, lines | position),
            "domains": (per_domain(part, name), heatmap, {"legend": f"{title}, %"}),
        }
        for section, (frame, draw, options) in drawn.items():
            yield section, _draw(frame, f"{section}{'-scenes' * index}", draw, **options)
    precision = per_round(numbers, "precision").filter(several, value.is_not_null())
    percent = precision.with_columns(pl.col("value", "low", "high") * 100)
    yield "selection", _draw(percent, "selection", line_chart, known=labels, y_title="precision, %")
    yield "novelty", _draw(sections.histogram_shares(histograms, runs), "novelty", histogram)


def _draw(frame: pl.DataFrame, name: str, draw: Callable[..., Any], **options: Any) -> list[Figure]:  # noqa: ANN401
    groups = itertools.islice(frame.group_by("column", maintain_order=True) if frame.height else (), MAX_FIGURES)
    shown = pl.exclude("measure", "place", "column", "order", "deviation", "visit", "seeds")
    with require("altair.utils.schemapi", "Drawing figures").debug_mode(arg=False):  # without checks of our own charts
        charts = [(str(column), draw(part.select(shown), width="container", **options)) for (column,), part in groups]
        return [(f"{name}-{index}", column, to_spec(chart)) for index, (column, chart) in enumerate(charts)]


def _tables(numbers: pl.DataFrame, runs: pl.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the table of each section; empty without rows."""
    parts = enumerate(map(sections.result_table, sections.split_by_measure(numbers)))
    results = (html_table(frame, name=f"table-results-{i}", spanners=heads) for i, (frame, heads) in parts)
    yield "results", "".join(results)
    costs, headings = sections.cost_table(numbers)
    yield "costs", html_table(costs, name="table-costs", spanners=headings)
    novelty = sections.measure_table(numbers, _NOVELTY)
    split = {name: name.rpartition("/")[::2] for name in novelty.columns[2:]}
    yield "novelty", _group(novelty, "novelty", digits=1, spanners=split)
    yield "selection", _group(sections.measure_table(numbers, _SELECTION, 100), "selection", digits=1)
    yield "health", _group(sections.health_table(numbers), "health", align="left")
    yield "settings", _group(sections.settings_table(runs), "settings", align="left")
    yield "methods", _group(sections.methods_table(runs), "methods", align="left")


def _analyses(frames: Frames) -> Iterator[tuple[str, str]]:
    """Yield a table for each task that is no stream: its numbers by domain."""
    tasks = frames.runs.filter(pl.col("task") != "stream").select("run", "task", column="method")
    chosen = frames.measures.filter(~pl.col("measure").is_in(FROM_CONDITIONS))
    numbers = chosen.join(tasks.lazy(), on="run", maintain_order="left").collect()
    for (task,), part in numbers.group_by("task", maintain_order=True):
        wide = part.pivot(on="measure", index=["domain", "column"], values="value", aggregate_function="mean")
        yield f"task {task}", _group(wide, f"task-{task}")


def _group(frame: pl.DataFrame, name: str, **options: Any) -> str:  # noqa: ANN401
    """Return a table grouped by setting where there are several."""
    if "column" in frame.columns and frame["column"].n_unique() > 1:
        options["group"] = "column"
    else:
        frame = frame.drop("column", strict=False)
    return html_table(frame, name=f"table-{name}", **options) if frame.height else ""
