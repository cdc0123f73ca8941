"""The demo's page: what happened, with pictures."""

from collections.abc import Sequence
from pathlib import Path

import torch

from driftproof.bench.libraries import pl
from driftproof.demo.garments import CLASSES
from driftproof.demo.recorded import load_recorded
from driftproof.demo.streams import SEVERITY, WATCHED, Hostile, Unfamiliar, World
from driftproof.optional import require
from driftproof.report.figures import CONFIG, line_chart, to_spec
from driftproof.report.pictures import embed
from driftproof.report.tables import html_table
from driftproof.report.text import format_number, write_page

__all__ = ["hostile_table", "world_table", "write_demo_page"]

_SHOWN, _ENLARGED = 16, 96


def write_demo_page(world: World, hostile: Sequence[Hostile], out: Path, *, seed: int) -> Path:
    """Write the page, and return its path."""
    table, recorded = world_table(world), load_recorded()
    curves = [
        {"label": method, "round": index + 1, "value": value}
        for method, values in recorded["curves"].items()
        for index, value in enumerate(values * (50 if len(values) == 1 else 1))
    ]
    by_domain = table[:-1].unpivot(index="corruption", variable_name="label")
    charts = {
        "chart-world": line_chart(
            by_domain, x="corruption", x_title="", y_title="error, %", emphasis="dp.adapt", width="container"
        ),
        "chart-recorded": line_chart(pl.DataFrame(curves), emphasis="tent+crowd", width="container"),
    }
    groups = {"Bags": [each for each in world.unfamiliar if each.is_bag]}
    groups["Garments"] = [each for each in world.unfamiliar if not each.is_bag]
    return write_page(
        "demo.html",
        out,
        package="driftproof.demo",
        title="A model that meets the world",
        world=world,
        source=table["source"][-1],
        adapted=table["dp.adapt"][-1],
        watched=WATCHED,
        classes=CLASSES,
        groups={f"{heading}: {len(each)}": _embed_some(each) for heading, each in groups.items()},
        world_table=html_table(table, name="table-world", digits=1),
        hostile_table=html_table(hostile_table(hostile), name="table-hostile", digits=1),
        recorded=recorded,
        facts={
            "network": "five convolutions, trained on 5,000 images of seven classes",
            "images": f"Fashion-MNIST, severity {SEVERITY}, procedural frost; 100 known ones and 25 bags in a batch",
            "seed": str(seed),
            "torch": torch.__version__,
        },
        charts={"specs": {name: to_spec(chart) for name, chart in charts.items()}, "config": CONFIG},
        bundle=require("vl_convert", "Writing a report", "'driftproof[report]'").javascript_bundle(),
        number=format_number,
    )


def world_table(world: World) -> pl.DataFrame:
    """Return errors by corruption, and their means in the last row."""
    rows = [(each.name.replace("_", " "), each.source, each.adapted) for each in world.domains]
    frame = pl.DataFrame(rows, schema=["corruption", "source", "dp.adapt"], orient="row")
    return pl.concat([frame, frame.select(pl.lit("mean").alias("corruption"), pl.col("source", "dp.adapt").mean())])


def hostile_table(hostile: Sequence[Hostile]) -> pl.DataFrame:
    """Return accuracies by stream."""
    rows = [(each.name, each.source, each.tent, each.adapted) for each in hostile]
    return pl.DataFrame(rows, schema=["stream", "source", "TENT", "dp.adapt"], orient="row")


def _embed_some(unfamiliar: Sequence[Unfamiliar]) -> list[tuple[Unfamiliar, str]]:
    """Return evenly spaced images of a stream with their data URLs, enlarged."""
    image_module = require("PIL.Image", "Writing a page of images")
    shown = min(_SHOWN, len(unfamiliar))
    chosen = [unfamiliar[len(unfamiliar) * index // shown] for index in range(shown)]
    pictures = []
    for each in chosen:
        image = image_module.fromarray(each.image.permute(1, 2, 0).numpy())
        pictures.append((each, embed(image.resize((_ENLARGED, _ENLARGED), image_module.Resampling.BICUBIC), "JPEG")))
    return pictures
