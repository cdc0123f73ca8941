"""Draw the pictures of README and docs from the rows in `results`.

python benchmarks/pictures.py [--results results] [--out docs/images]

rounds.svg       error over fifty rounds among unknown images: TENT, TENT with selection, BN Adapt, source, sentinel
leaderboard.svg  error and AUROC of every method of the leaderboard
streams.svg      accuracy of source, TENT with selection and `dp.adapt` in streams that are hard for an adapter

`make results` runs this.
"""

import argparse
import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

from driftproof.bench import load
from driftproof.bench.libraries import alt, pl
from driftproof.corruptions import CORRUPTIONS
from driftproof.files import atomic_write
from driftproof.leaderboard import SUITES
from driftproof.report.figures import PALETTE, save

NAMES = {
    "tent": "TENT",
    "source": "as trained",
    "bn_adapt": "BN Adapt",
    "tent+crowd": "TENT with selection",
    "sentinel": "dp.sentinel",
}
"""Methods of the first picture. What comes later is drawn over what comes first."""

COLORS = (PALETTE[1], PALETTE[9], PALETTE[2], PALETTE[0], PALETTE[3])
OWN = ("adapt", "sentinel")
"""Methods of this library, marked in the leaderboard."""

STREAMS = {
    "fog, batches of 200": "fog",
    "speckle_noise, batches of 200": "noise",
    "fog, batches of 8": "fog, batches of 8",
    "fog, batches of 1": "fog, batches of 1",
    "clean, sorted by class": "sorted by class",
    "speckle_noise, sorted by class": "noise, sorted by class",
    "one NaN pixel in each 64 images": "a NaN pixel in each batch",
    "rate so high that it collapses": "a rate that is far too high",
}
"""Rows of the safety benchmark that are shown, and what they are called."""

SHOWN = {"source": "as trained", "plain": "TENT with selection", "adapt": "dp.adapt"}


def round_errors(*folders: Path) -> pl.DataFrame:
    """Return label, round and error, the mean over fifteen corruptions, on CIFAR-10-C among unknown images."""
    rows = load(*folders).filter(
        pl.col("method").is_in(list(NAMES)), measure="error", stream="cifar10-c", setting="open", seed=0
    )
    means = rows.group_by("method", "round").agg(value=pl.col("value").mean().round(6)).sort("method", "round")
    last = int(means["round"].max())  # type: ignore[arg-type]
    frames = []
    for method, label in NAMES.items():
        errors = means.filter(method=method).select(
            pl.lit(label).alias("label"), pl.col("round").cast(pl.Int64), "value"
        )
        if len(errors) == 1:  # does not learn: every round is the same
            errors = pl.concat([errors.with_columns(round=pl.lit(each, pl.Int64)) for each in range(1, last + 1)])
        frames.append(errors)
    return pl.concat(frames)


def spread(values: list[float], gap: float) -> list[float]:
    """Move ascending values apart, so that neighbors differ by `gap` or more, and each group stays where it was."""
    groups: list[list[float]] = []
    for value in values:
        groups.append([value])
        while len(groups) > 1 and fmean(groups[-1]) - fmean(groups[-2]) < gap * (len(groups[-1]) + len(groups[-2])) / 2:
            groups[-2:] = [groups[-2] + groups[-1]]
    return [fmean(group) + gap * (place - (len(group) - 1) / 2) for group in groups for place in range(len(group))]


def draw_rounds(frame: pl.DataFrame) -> alt.LayerChart:
    """Draw errors over rounds, each line with its name beside its end."""
    ends = frame.group_by("label", maintain_order=True).last().sort("value")
    text = pl.format("{} {} %", "label", pl.col("value").round(1).cast(pl.String))
    ends = ends.with_columns(text=text, place=pl.Series(spread(ends["value"].to_list(), gap=6.0)))
    color = alt.Color("label:N", legend=None, scale=alt.Scale(domain=list(NAMES.values()), range=COLORS))
    scale = alt.Scale(domain=[1, int(frame["round"].max())], nice=False)  # type: ignore[arg-type]
    x = alt.X("round:Q", title="round (15 corruptions each, one after the other)", scale=scale)
    y = alt.Y("value:Q", title="error, %", scale=alt.Scale(domain=[0, 100]))
    lines = alt.Chart(frame).mark_line(strokeWidth=2.5).encode(x=x, y=y, color=color)
    names = alt.Chart(ends).mark_text(align="left", dx=6, fontSize=14, fontWeight=600)
    named = names.encode(x=x, y=alt.Y("place:Q", title="error, %"), text="text:N", color=color)
    return alt.LayerChart(layer=[lines, named], width=440, height=300)


def leaderboard_rows(*folders: Path) -> pl.DataFrame:
    """Return method, error and AUROC among unknown images in round 1, the lowest error first."""
    listed = [spec.name for spec in SUITES["openset"]().specs()]  # other suites change parts of the same methods
    rows = load(*folders).filter(
        pl.col("run").is_in(listed),
        pl.col("measure").is_in(["error", "novelty/auroc"]),
        pl.col("domain").n_unique().over("run") == len(CORRUPTIONS),
        stream="cifar10-c", setting="open", round=1,
    )  # fmt: skip
    means = rows.group_by("method", "measure").agg(value=pl.col("value").mean())
    return means.pivot("measure", index="method", values="value").sort("error", "method")


def draw_leaderboard(frame: pl.DataFrame) -> alt.HConcatChart:
    """Draw a bar per method for its error, and one for its AUROC."""
    panels = []
    for measure, title in (("error", "error on known images, %"), ("novelty/auroc", "AUROC of its novelty, %")):
        rows = frame.select("method", value=pl.col(measure)).drop_nulls()
        y = alt.Y("method:N", sort=frame["method"].to_list(), title=None)
        marked = alt.condition(f"indexof({list(OWN)}, datum.method) >= 0", alt.value(PALETTE[0]), alt.value(PALETTE[9]))
        base = alt.Chart(rows)
        bars = base.mark_bar().encode(x=alt.X("value:Q", title=title), y=y, color=marked)
        numbers = base.mark_text(align="left", dx=3, fontSize=11).encode(
            x="value:Q", y=y, text=alt.Text("value:Q", format=".1f")
        )
        panels.append(alt.LayerChart(layer=[bars, numbers], width=190, height=18 * len(frame)))
    return alt.HConcatChart(hconcat=panels)


def stream_rows(folder: Path) -> pl.DataFrame:
    """Return stream, what answers, and its accuracy, with WRN-40-2 on CIFAR-10."""
    rows = json.loads((folder / "safety.json").read_text(encoding="utf-8"))["networks"]["wrn40_2"]
    cells = [
        {"stream": name, "answers": label, "value": rows[stream][key]}
        for stream, name in STREAMS.items()
        for key, label in SHOWN.items()
    ]
    return pl.DataFrame(cells)


def draw_streams(frame: pl.DataFrame) -> alt.LayerChart:
    """Draw a dot per stream and answer, joined by a line."""
    y = alt.Y("stream:N", sort=list(STREAMS.values()), title=None, axis=alt.Axis(labelLimit=220))
    names, legend = list(SHOWN.values()), alt.Legend(title=None, orient="top")
    colors = alt.Scale(domain=names, range=[PALETTE[9], PALETTE[1], PALETTE[0]])
    shapes = alt.Scale(domain=names, range=["square", "circle", "triangle-up"])
    color = alt.Color("answers:N", sort=None, scale=colors, legend=legend)
    shape = alt.Shape("answers:N", sort=None, scale=shapes, legend=legend)
    base = alt.Chart(frame)
    spans = base.mark_rule(color=PALETTE[9], opacity=0.4).encode(x="min(value):Q", x2="max(value):Q", y=y)
    x = alt.X("value:Q", title="accuracy, %", scale=alt.Scale(domain=[0, 100]))
    dots = base.mark_point(filled=True, size=110, opacity=1).encode(x=x, y=y, color=color, shape=shape)
    return alt.LayerChart(layer=[spans, dots], width=300, height=30 * len(STREAMS))


def write_picture(chart: Any, path: Path) -> None:  # noqa: ANN401  # any chart of Altair
    """Write a chart with room at its sides, in a font that is about as wide everywhere."""
    chart.padding = {"left": 12, "right": 24, "top": 8, "bottom": 8}
    save(chart, path)
    text = re.sub('font-family="[^"]*"', 'font-family="Arial, Helvetica, sans-serif"', path.read_text(encoding="utf-8"))
    text = re.sub(r' aria-label="[^"]*" role="graphics-symbol" aria-roledescription="point"', "", text)  # hundreds
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    sentinel = options.results / "sentinel" / "earlier-default"
    pictures = {
        "rounds": draw_rounds(round_errors(options.results / "classification", sentinel)),
        "leaderboard": draw_leaderboard(leaderboard_rows(options.results / "leaderboard" / "cifar10", sentinel)),
        "streams": draw_streams(stream_rows(options.results / "safety")),
    }
    for name, chart in pictures.items():
        write_picture(chart, options.out / f"{name}.svg")
        print(options.out / f"{name}.svg")


if __name__ == "__main__":
    main()
