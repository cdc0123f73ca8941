"""Write the page: one HTML file that needs nothing else."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftproof import __version__
from driftproof.bench.frames import FROM_CONDITIONS, Frames, load_metadata, read_frames
from driftproof.errors import InputError
from driftproof.files import atomic_write
from driftproof.optional import require
from driftproof.report import figures, sections
from driftproof.report.numbers import format_duration, format_number
from driftproof.report.series import label_measures, label_runs, per_domain, per_round
from driftproof.report.tables import html_table
from driftproof.report.theme import CONFIG

if TYPE_CHECKING:
    import altair as alt
    import polars as pl
else:
    pl = require("polars", "Reporting results", "'driftproof[report]'")

__all__ = ["ReportTable", "metadata_notes", "render", "write_report"]

_SELECTION = ("precision", "recall", "npv", "selected_known", "selected_unknown")
_NOVELTY = re.compile(r"(^|/)(auroc|aupr|fpr|oscr|h_score|ece)")
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
    """A figure of the page: its element, title, and chart as Vega-Lite."""

    name: str
    title: str
    spec: dict[str, Any]


@dataclass(frozen=True)
class Section:
    """A section of the page, with tables in HTML."""

    anchor: str
    title: str
    note: str = ""
    tables: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    is_empty: bool = False
    is_wide: bool = False


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
    numbers = label_measures(frames.measures.filter(~pl.col("measure").str.starts_with("iou/")), runs)
    has_streams = not numbers.is_empty()
    headline = [_headline(numbers)] if has_streams else []
    shown = [*(_results(numbers) if has_streams else []), *_client_sections(tables)]
    shown += [*(_sections(numbers, runs, frames.histograms.collect()) if has_streams else []), *_analyses(frames)]
    shown = [
        section for section in shown if (section.tables or section.figures or section.note) and not section.is_empty
    ]
    every = [*headline, *(figure for section in shown for figure in section.figures)]
    text = render(
        "page.html",
        title=title or f"Results of {', '.join(path.resolve().name for path in paths)}",
        verdict=sections.verdict(numbers) if has_streams else None,
        headline=headline,
        notes=list(dict.fromkeys(note for each in metadata for note in metadata_notes(each))),
        sections=shown,
        protocol=[
            *_table(sections.settings_table(runs), "settings", align="left"),
            *_table(sections.methods_table(runs), "methods", align="left"),
        ],
        facts=_facts(frames.runs, metadata),
        commands=[command for each in metadata for command in each.get("commands", ())],
        charts={"specs": {figure.name: figure.spec for figure in every}, "config": CONFIG},
        bundle=require("vl_convert", "Writing a report", "'driftproof[report]'").javascript_bundle(),
        number=lambda value: format_number(value, 2),
    )
    page = out if out.suffix == ".html" else out / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(page) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return page


def metadata_notes(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield one sentence for each way in which a folder's runs are not what their names say.

    Examples:
        >>> list(metadata_notes({"limit": 40, "replaced": {"a-c": "b-c"}}))
        ['Only the first 40 images of each domain.', 'b-c replaces a-c.']
    """
    if metadata.get("limit") is not None:
        yield f"Only the first {metadata['limit']} images of each domain."
    for old, new in metadata.get("replaced", {}).items():
        yield f"{new} replaces {old}."
    for name in metadata.get("prepared on test images", ()):
        yield f"Methods that prepare on source images of {name} used its clean test images."
    if metadata.get("frost") == "made up":
        yield "Frost textures are procedural, not photographs."


def render(template: str, **content: object) -> str:
    """Fill in a template of this package; texts are escaped."""
    jinja2 = require("jinja2", "Writing a page", "'driftproof[report]'")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("driftproof.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    text: str = environment.get_template(template).render(version=__version__, **content)
    return text


def _headline(numbers: "pl.DataFrame") -> Figure:
    course, (_, title, _) = sections.headline_course(numbers), sections.primary_measure(numbers)
    against = course["difference"].is_not_null().any()
    chart = figures.line_chart(
        course, x=course.columns[1], x_title=course.columns[1], y="difference" if against else "value",
        y_title=f"{title} minus the source's, points" if against else f"{title}, %",
        known=course["label"].unique(maintain_order=True).to_list(), baseline=0.0 if against else None, width="container", height=340,
    )  # fmt: skip
    return Figure("headline", "", figures.to_spec(chart))


def _results(numbers: "pl.DataFrame") -> Iterator[Section]:
    table, headings = sections.result_table(numbers)
    yield Section(
        "results", "Results", f"{sections.primary_measure(numbers)[1].capitalize()} in %, in the last round. Bold: the "
        "best of a column. ±: deviation over seeds. @: the last round of a run that ended early.",
        [html_table(table, name="table-results", spanners=headings)],
    )  # fmt: skip


def _client_sections(tables: Iterable[ReportTable]) -> Iterator[Section]:
    for index, each in enumerate(tables):
        yield Section(f"own-{index}", each.title, each.note, [html_table(each.frame, name=f"table-own-{index}")])


def _sections(numbers: "pl.DataFrame", runs: "pl.DataFrame", histograms: "pl.DataFrame") -> Iterator[Section]:
    name, title, _ = sections.primary_measure(numbers)
    labels = runs.sort("order")["label"].unique(maintain_order=True).to_list()
    unit = f"{title}, %"
    rounds = per_round(numbers, name).filter(pl.col("round").max().over("place") > 1)
    yield Section(
        "rounds", "Rounds", "Hover for numbers. Click names in the legend to single them out. Drag to pan, shift and "
        "wheel to zoom, double-click to reset. Bands: minimum and maximum over seeds.",
        figures=_draw(rounds, "rounds", ("label", "round", "value", "low", "high"), figures.line_chart, y_title=unit, known=labels),
    )  # fmt: skip
    yield Section(
        "stream", "Through the stream", "",
        figures=_draw(sections.domain_course(numbers), "stream", ("label", "position", "value", "round", "domain"),
                      figures.line_chart, x="position", x_title="domains seen", y_title=unit, known=labels),
    )  # fmt: skip
    yield Section(
        "domains", "Domains", "The last round of each method.",
        figures=_draw(per_domain(numbers, name), "domains", ("label", "domain", "value"), figures.heatmap, legend=unit),
        is_wide=True,
    )  # fmt: skip
    quality = per_round(numbers, "precision").filter(
        pl.col("round").max().over("place") > 1, pl.col("value").is_not_null()
    )
    yield Section(
        "selection", "Selection", "Samples learned from, in the last round, in %. Precision: how many of them were "
        "right. Recall: how many of the right ones they were. npv: how many of the others were wrong or unknown.",
        _table(sections.measure_table(numbers, _SELECTION, 100), "selection", digits=1),
        _draw(quality.with_columns(pl.col("value") * 100), "precision", ("label", "round", "value"), figures.line_chart, y_title="precision, %", known=labels),
    )  # fmt: skip
    scores = [each for each in numbers["measure"].unique(maintain_order=True) if _NOVELTY.search(each)]
    headings = {each: each.rpartition("/")[::2] for each in scores}
    bins = sections.histogram_shares(histograms, runs)
    titled = (
        bins.with_columns(column=pl.format("{} of {}, {}, round {}", "score", "label", "column", "round"))
        if bins.height
        else bins
    )
    yield Section(
        "novelty", "Novelty", "How well scores tell unknown or wrong samples from right ones, in the last round, in %.",
        _table(sections.measure_table(numbers, scores), "novelty", digits=1, spanners=headings),
        _draw(titled, "histogram", ("score", "kind", "low", "high", "share"), figures.histogram),
    )  # fmt: skip
    has_health = (numbers["measure"] == "health").any()
    health = sections.health_table(numbers)
    yield Section(
        "health", "Health", "All methods stayed healthy, and no guard acted." if has_health and not health.height else
        "Methods that left the healthy state, or on which guards acted.", _table(health, "health"),
        is_empty=not has_health,
    )  # fmt: skip
    costs, headings = sections.cost_table(numbers)
    yield Section(
        "costs", "Costs", "Mean time of a step, and peak memory. Data loading included. On a CPU, memory is that of the whole process.",
        [html_table(costs, name="table-costs", spanners=headings)],
    )  # fmt: skip


def _draw(
    frame: "pl.DataFrame", name: str, columns: Sequence[str], draw: Callable[..., Any], **options: Any
) -> list[Figure]:  # noqa: ANN401
    """Draw one figure per setting."""
    if frame.is_empty():
        return []
    groups = frame.group_by("column", maintain_order=True)
    return [
        Figure(
            f"{name}-{index}", str(column), figures.to_spec(draw(part.select(columns), width="container", **options))
        )
        for index, ((column,), part) in enumerate(groups)
    ]


def _table(frame: "pl.DataFrame", name: str, **options: Any) -> list[str]:  # noqa: ANN401
    """Return a table of all settings, grouped by setting where there are several."""
    if frame.is_empty():
        return []
    several = "column" in frame.columns and frame["column"].n_unique() > 1
    shown = frame if several else frame.drop("column", strict=False)
    return [html_table(shown, name=f"table-{name}", group="column" if several else None, **options)]


def _analyses(frames: Frames) -> Iterator[Section]:
    """Yield a section for each task that is no stream, with its numbers by domain."""
    tasks = frames.runs.filter(pl.col("task") != "stream").select("run", "task", column="method")
    numbers = frames.measures.filter(~pl.col("measure").is_in(FROM_CONDITIONS)).join(tasks.lazy(), on="run").collect()
    for (task,), part in numbers.group_by("task", maintain_order=True):
        wide = part.pivot(on="measure", index=["column", "domain"], values="value", aggregate_function="mean")
        yield Section(str(task), f"Task {task}", "", _table(wide.select("domain", pl.exclude("domain")), str(task)))


def _facts(runs: "pl.DataFrame", metadata: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    used = {name: runs[name].drop_nulls().unique(maintain_order=True).to_list() for name in _ENVIRONMENT}
    facts = {name: ", ".join(map(str, values)) for name, values in used.items() if values}
    facts["time measured"] = format_duration(runs["seconds"].sum())
    return facts | {
        key: str(fact) for each in metadata for key, fact in each.items() if fact and key not in ("format", "commands")
    }
