"""Write a page for each method, with its picture and its numbers, from the rows in `results`.

python benchmarks/method_pages.py [--results results] [--out docs]

`make results` runs this. A method that was not run has a page without a picture.
"""

import argparse
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import driftproof as dp
from driftproof.bench.libraries import alt, pl
from driftproof.bench.results import Results
from driftproof.bench.spec import Spec
from driftproof.bench.tables import TableEntry
from driftproof.corruptions import CORRUPTIONS
from driftproof.files import atomic_write
from driftproof.leaderboard import SUITES as OPEN_SET
from driftproof.paper import SUITES as PAPER
from driftproof.report.figures import PALETTE
from pictures import write_picture

SETS = {"cifar10-c": "CIFAR-10-C", "cifar100-c": "CIFAR-100-C"}
REFERENCES = ("source", "bn_adapt")
"""Methods that every picture shows."""

COLORS = [PALETTE[index] for index in (1, 0, 2, 3, 5)]

TABLES = (*OPEN_SET["openset"]().tables, *PAPER["table1"]().tables, *PAPER["s3"]().tables)
"""Tables whose runs have the settings of the published methods."""

OWN_PAGES = {"sentinel": "[Sentinel](../sentinel.md) has its pictures and numbers."}
NOTE = (
    "*CIFAR-10-C at severity 5, {stream}, WRN-40-2, batches of 200, never reset, seed 0. Left: error on known images "
    "in round 1, corruption by corruption; `source` is the network as trained, `bn_adapt` learns nothing.{right}*"
)
RIGHT = " Right: the mean over the corruptions, round by round, as far as it was run."


class Series(NamedTuple):
    """What was measured of a method on one stream: errors by corruption and AUROC in round 1, and means by round.

    Where there are two runs, the leaderboard's counts for the first round and the longest one for the others.
    """

    label: str
    images: str
    setting: str
    rounds: list[float]
    domains: list[float]
    auroc: float | None
    settings: str


def list_entries() -> dict[tuple[str, str, str], Spec]:
    """Return a run for each label, data set and setting, as the tables have it."""
    found: dict[tuple[str, str, str], Spec] = {}
    for table in TABLES:
        for entry in table.entries:
            if len(entry.specs) == 1 and entry.metric == "error" and entry.specs[0].task == "stream":
                (spec,) = entry.specs
                place = spec.method, spec.images, "open" if spec.unknown else "closed"
                if spec.images in SETS and spec.unknown in (None, "svhn-c"):
                    found.setdefault(place, spec)
    return found


def measure(place: tuple[str, str, str], spec: Spec, archives: Sequence[Results]) -> Series | None:
    """Return what archives hold of a run, whatever scores it measured."""
    runs = [
        (results, run)
        for results in archives
        for run in results.runs
        if run.method == spec.method and run.seed == 0 and _without_scores(run) == _without_scores(spec)
    ]
    rounds = max((results.per_round(run) for results, run in runs), key=len, default=[])
    if not rounds:
        return None
    results, run = next((results, run) for results, run in runs if results.per_round(run))
    entry = TableEntry("", "", (run,), round=1)
    domains = [results.value(replace(entry, domain=domain)).ours for domain in CORRUPTIONS]
    aurocs = [results.value(replace(entry, specs=(run,), metric="novelty/auroc")).ours for results, run in runs]
    auroc = next((number for number in aurocs if number is not None), None)
    return Series(*place, rounds, [number for number in domains if number is not None], auroc, find_settings(run))


def find_settings(spec: Spec) -> str:
    """Return the options that are not the defaults of the method's function."""
    defaults = inspect.signature(getattr(dp.methods, spec.method.partition("+")[0])).parameters
    differing = {
        name: value
        for name, value in spec.options
        if name not in ("novelty", "mean_entropy") and not (name in defaults and defaults[name].default == value)
    }
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in differing.items()
    )


def _without_scores(spec: Spec) -> Spec:
    options = tuple((name, value) for name, value in spec.options if name != "novelty")
    return replace(spec, options=options, measures=(), seed=0)


def draw(shown: Sequence[Series]) -> alt.HConcatChart:
    """Draw errors by corruption and, where more than one round was run, by round; references are dashed."""
    labels = [each.label for each in shown]
    own = [label for label in labels if label not in REFERENCES]
    colors = dict(zip(REFERENCES, (PALETTE[9], PALETTE[4]), strict=True)) | dict(zip(own, COLORS, strict=False))
    scale = alt.Scale(domain=labels, range=[colors[label] for label in labels])
    legend = alt.Legend(
        title=None, orient="bottom", columns=6, symbolType="stroke", symbolSize=300, symbolStrokeWidth=3
    )
    color = alt.Color("label:N", sort=None, scale=scale, legend=legend)
    dash = alt.condition(f"indexof({list(REFERENCES)}, datum.label) >= 0", alt.value([5, 4]), alt.value([1, 0]))
    y = alt.Y("value:Q", title="error, %", scale=alt.Scale(zero=True))
    by_domain = [
        {"label": each.label, "corruption": name.replace("_", " "), "value": value}
        for each in shown
        for name, value in zip(CORRUPTIONS, each.domains, strict=True)
    ]
    angled = alt.Axis(labelAngle=-45, labelOverlap=False, grid=False)
    x: alt.X = alt.X("corruption:N", sort=None, title=None, axis=angled)
    panels = [
        alt.Chart(pl.DataFrame(by_domain), width=400, height=240)
        .mark_line(strokeWidth=2)
        .encode(x=x, y=y, color=color, strokeDash=dash)
    ]
    if last := find_last(shown):
        by_round = [
            {"label": each.label, "round": number, "value": value}
            for each in shown
            for number, value in enumerate(each.rounds * last if each.label in REFERENCES else each.rounds, start=1)
        ]
        x = alt.X("round:Q", scale=alt.Scale(domain=[1, last], nice=False), axis=alt.Axis(grid=False, format="d"))
        panels.append(
            alt.Chart(pl.DataFrame(by_round), width=200, height=240)
            .mark_line(strokeWidth=2)
            .encode(x=x, y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=True)), color=color, strokeDash=dash)
        )
    return alt.HConcatChart(hconcat=panels)


def find_last(shown: Sequence[Series]) -> int:
    """Return the last round that was run, or 0 if that is the first."""
    last = max(len(each.rounds) for each in shown)
    return last if last > 1 else 0


def render(name: str, series: Sequence[Series], picture: str | None) -> str:
    """Render the page of a method."""
    module = inspect.getmodule(inspect.unwrap(getattr(dp.methods, name)))
    heading, _, about = str(inspect.getdoc(module)).splitlines()[0].partition(": ")
    parts = [f"# {heading}", about[:1].upper() + about[1:]]
    if name in OWN_PAGES:
        parts.append(OWN_PAGES[name])
    elif not series:
        parts.append("No whole stream of the [leaderboard](../leaderboard.md) was run: there is no picture.")
    if picture:
        shown = pick_shown(series)
        stream = "half of all images unknown (SVHN-C)" if shown[0].setting == "open" else "without unknown images"
        parts.append(f"![Errors of {heading} by corruption and round](../images/methods/{picture})")
        parts.append(NOTE.format(stream=stream, right=RIGHT if find_last(shown) else ""))
    if series:
        heads = ["", "stream", "error in round 1", "error in the last round", "AUROC in round 1"]
        lines = [heads, ["---", "---", "---:", "---:", "---:"], *map(_format_row, series)]
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
        parts.append(
            "In %, means over fifteen corruptions, WRN-40-2, one seed. AUROC is by the score that the "
            "[leaderboard](../leaderboard.md) names. `+crowd` is with the paper's selection, "
            "`select=dp.ConfidenceDifference()`."
        )
        settings = {f"`{each.label}` {each.settings}" for each in series if each.settings}
        parts += [f"Settings other than the defaults: {'; '.join(sorted(settings))}."] * bool(settings)
    parts.append("[All methods](../methods.md) · [choose one](../choosing.md)")
    parts.append(f"::: driftproof.methods.{name}.{name}")
    return "\n\n".join(parts) + "\n"


def _format_row(each: Series) -> list[str]:
    last = f"{each.rounds[-1]:.1f} (round {len(each.rounds)})" if len(each.rounds) > 1 else "–"
    auroc = "–" if each.auroc is None or each.setting == "closed" else f"{each.auroc:.1f}"
    return [f"`{each.label}`", f"{SETS[each.images]}, {each.setting}", f"{fmean(each.domains):.1f}", last, auroc]


def pick_shown(series: Sequence[Series]) -> list[Series]:
    """Return what a picture shows: CIFAR-10-C, among unknown images if that was run."""
    here = [each for each in series if each.images == "cifar10-c"]
    return [each for each in here if each.setting == "open"] or here


def iter_pages(folder: Path) -> Iterator[tuple[str, list[Series], list[Series]]]:
    """Yield each method's name, its series, and what its picture shows."""
    paths = sorted(path.parent for path in (folder / "leaderboard").glob("*/runs.parquet"))
    archives = [Results(path) for path in (*paths, folder / "classification")]
    measured = [measure(place, spec, archives) for place, spec in list_entries().items()]
    found = sorted((each for each in measured if each), key=lambda each: (list(SETS).index(each.images), each.setting))
    for name in dp.methods.__all__:
        series = [each for each in found if each.label.partition("+")[0] == name]
        shown = pick_shown(series)
        if shown:
            others = [
                each for each in found if each.label in REFERENCES and each.label != name and each[1:3] == shown[0][1:3]
            ]
            yield name, series, [*others, *shown]
        else:
            yield name, series, []


def main() -> None:
    """Write all pages and pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("docs"))
    options = parser.parse_args()
    pages, pictures = options.out / "methods", options.out / "images" / "methods"
    for folder in (pages, pictures):
        folder.mkdir(parents=True, exist_ok=True)
    for name, series, shown in iter_pages(options.results):
        if shown:
            write_picture(draw(shown), pictures / f"{name}.svg")
        with atomic_write(pages / f"{name}.md") as unfinished:
            unfinished.write_text(render(name, series, f"{name}.svg" if shown else None), encoding="utf-8")
        print(pages / f"{name}.md")


if __name__ == "__main__":
    main()
