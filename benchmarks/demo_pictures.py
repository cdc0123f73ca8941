"""Draw the pictures of docs/demo.md: what is flagged, what is rejected, an alarm, and how novelty is distributed.

python benchmarks/demo_pictures.py [--results results/demo] [--out docs/images]

Runs the demo's stream and writes the numbers behind the pictures to `pictures.json`. Pictures are of seed 0, the shares
of images with an alarm of five. The errors are those of `demo.json`, which `benchmarks/demo_seeds.py` writes. The
photographs are of Fashion-MNIST (MIT license).
"""

import argparse
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import torch
from PIL import Image, ImageOps
from torch import Tensor

import driftproof as dp
from driftproof.bench.libraries import alt, pl
from driftproof.corruptions import CORRUPTIONS
from driftproof.demo.garments import Garments, load_garments
from driftproof.demo.network import train_network
from driftproof.demo.streams import WATCHED, mix_batches
from driftproof.report.figures import PALETTE, histogram
from pictures import write_picture
from tables import write_json

RATE, CALIBRATION, SIZE = 0.05, 1000, 100
SEEDS = range(5)
SIDE, FRAME, COLUMNS = 56, 4, 12
BAG, GARMENT = PALETTE[1], PALETTE[9]
BINS = 30
STRETCH, SHOWN = ("snow", "frost"), 3
"""Two corruptions in a row, and batches of each that the alarm's picture shows."""


class Batch(NamedTuple):
    """A batch of the stream, and what the adapter and the alarm said about it."""

    domain: str
    pixels: Tensor
    is_bag: Tensor
    novelty: Tensor
    selected: Tensor
    stepped: bool
    threshold: float
    stream_threshold: float


def run_stream(garments: Garments, seed: int = 0) -> list[Batch]:
    """Run the demo's stream, with an alarm calibrated on training images, and one that has seen clean garments."""
    model = train_network(garments.train, garments.train_labels, seed=seed)
    source = dp.adapt(model)
    clean = torch.split(garments.train[:CALIBRATION].float() / 255, SIZE)
    novelty = torch.cat([source.step(images).record.novelty for images in clean])
    alarm = dp.Alarm.from_false_alarm_rate(RATE, novelty, trained_on=True)
    stream_alarm = dp.Alarm.from_false_alarm_rate(RATE, window=len(garments.test))
    source.reset()
    for images in torch.split(garments.test.float() / 255, SIZE):
        stream_alarm(source.step(images).record.novelty)
    adapter, generator, batches = dp.adapt(model), torch.Generator().manual_seed(seed), []
    for name in CORRUPTIONS:
        for pixels, labels in mix_batches(garments, name, 1000, generator):
            _, record = adapter.step(pixels.float() / 255)
            alarm(record.novelty)
            stream_alarm(record.novelty)
            said = record.novelty, record.selected, record.stepped, alarm.threshold, stream_alarm.threshold
            batches.append(Batch(name, pixels, labels < 0, *said))
    return batches


def write_sheet(pictures: Sequence[tuple[Tensor, bool]], path: Path) -> None:
    """Write images in rows, each in a frame: orange for bags, grey for garments."""
    side = SIDE + 2 * FRAME + 4
    rows = -(-len(pictures) // COLUMNS)
    sheet = Image.new("RGBA", (COLUMNS * side, rows * side), (0, 0, 0, 0))
    for place, (pixels, is_bag) in enumerate(pictures):
        image = Image.fromarray(pixels.permute(1, 2, 0).numpy()).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        framed = ImageOps.expand(image, FRAME, BAG if is_bag else GARMENT)
        sheet.paste(framed, (place % COLUMNS * side, place // COLUMNS * side))
    sheet.save(path, quality=80, method=6)


def pick_evenly(pictures: Sequence[tuple[Tensor, bool]], count: int) -> list[tuple[Tensor, bool]]:
    """Return so many pictures, evenly spaced."""
    return [pictures[len(pictures) * index // count] for index in range(count)]


def find_flagged(batches: Sequence[Batch]) -> list[tuple[Tensor, bool]]:
    """Return the images with the largest novelty of each batch, and whether they are bags."""
    return [
        (batch.pixels[place], bool(batch.is_bag[place]))
        for batch in batches
        for place in batch.novelty.topk(WATCHED).indices.tolist()
    ]


def find_rejected(batches: Sequence[Batch]) -> list[tuple[Tensor, bool]]:
    """Return the images that no step learned from, where a step learned from others of their batch."""
    return [
        (batch.pixels[place], bool(batch.is_bag[place]))
        for batch in batches
        if batch.stepped
        for place in (~batch.selected).nonzero()[:, 0].tolist()
    ]


def count_alarms(batches: Sequence[Batch], threshold: str) -> dict[str, float]:
    """Return the shares of garments and bags above a threshold, in %."""
    alarmed = torch.cat([batch.novelty > getattr(batch, threshold) for batch in batches])
    is_bag = torch.cat([batch.is_bag for batch in batches])
    kinds = {"garments": ~is_bag, "bags": is_bag}
    return {kind: 100 * float(alarmed[where].float().mean()) for kind, where in kinds.items()}


def summarize(batches: Sequence[Batch]) -> dict[str, Any]:
    """Return the numbers behind the pictures."""
    novelty, is_bag = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("novelty", "is_bag"))
    edges = torch.linspace(float(novelty.min()), float(novelty.max()), BINS + 1)
    kinds = {"garments": ~is_bag, "bags": is_bag}
    shares = {
        kind: (100 * torch.histogram(novelty[where].cpu(), edges).hist / where.sum()).tolist()
        for kind, where in kinds.items()
    }
    learned = [batch for batch in batches if batch.stepped]
    bags = torch.cat([batch.is_bag for batch in learned])
    rejected = ~torch.cat([batch.selected for batch in learned])
    near = [batch for batch in batches if batch.domain == STRETCH[0]][-SHOWN:]
    near += [batch for batch in batches if batch.domain == STRETCH[1]][:SHOWN]
    return {
        "rate": RATE,
        "rejected": {
            kind: 100 * float(rejected[where].float().mean())
            for kind, where in {"garments": ~bags, "bags": bags}.items()
        },
        "batches": len(batches),
        "batches with a step": len(learned),
        "edges": edges.tolist(),
        "shares": shares,
        "stretch": [
            {
                "domain": batch.domain.replace("_", " "),
                "threshold": batch.threshold,
                "novelty": [round(value, 4) for value in batch.novelty.tolist()],
                "is_bag": batch.is_bag.int().tolist(),
            }
            for batch in near
        ],
    }


def draw_world(runs: Sequence[dict[str, Any]]) -> alt.LayerChart:
    """Draw errors by corruption: means over seeds, and the range."""
    cells = []
    for place, domain in enumerate(runs[0]["domains"]):
        for key, label in (("source", "as trained"), ("adapted", "dp.adapt")):
            values = [run["domains"][place][key] for run in runs]
            name = domain["name"].replace("_", " ")
            cells.append({"name": name, "who": label, "mean": fmean(values), "low": min(values), "high": max(values)})
    labels = ["as trained", "dp.adapt"]
    x = alt.X("name:N", sort=None, title=None, axis=alt.Axis(labelAngle=-40))
    colors = alt.Scale(domain=labels, range=[PALETTE[9], PALETTE[0]])
    color = alt.Color("who:N", sort=None, scale=colors, legend=alt.Legend(title=None, orient="top"))
    base = alt.Chart(pl.DataFrame(cells)).encode(x=x, xOffset=alt.XOffset("who:N", sort=labels))
    bars = base.mark_bar().encode(y=alt.Y("mean:Q", title="error, %"), color=color)
    spans = base.mark_rule(strokeWidth=1.5, color="black").encode(y=alt.Y("low:Q"), y2="high:Q")
    return alt.LayerChart(layer=[bars, spans], width=620, height=240)


def draw_histogram(found: dict[str, Any]) -> alt.Chart:
    """Draw how novelty is distributed among garments and bags."""
    cells = [
        {"score": "novelty", "kind": kind, "low": low, "high": high, "share": share}
        for kind, shares in found["shares"].items()
        for low, high, share in zip(found["edges"], found["edges"][1:], shares, strict=False)
    ]
    return histogram(pl.DataFrame(cells), is_static=True, width=460)


def draw_alarm(found: dict[str, Any]) -> alt.LayerChart:
    """Draw the novelty of each image around a change of domain, with the threshold."""
    points, levels, place = [], [], 0
    for batch in found["stretch"]:
        size = len(batch["novelty"])
        levels.append({"from": place, "to": place + size, "at": batch["threshold"], "domain": batch["domain"]})
        for value, is_bag in zip(batch["novelty"], batch["is_bag"], strict=True):
            points.append({"place": place, "novelty": value, "kind": "bag" if is_bag else "garment"})
            place += 1
    change = next(level["from"] for level in levels if level["domain"] == STRETCH[1])
    kinds = ["garment", "bag"]
    x = alt.X("place:Q", title="image", scale=alt.Scale(domain=[0, place], nice=False), axis=alt.Axis(grid=False))
    y = alt.Y("novelty:Q", title="novelty", scale=alt.Scale(zero=False))
    color = alt.Color(
        "kind:N", scale=alt.Scale(domain=kinds, range=[GARMENT, BAG]), legend=alt.Legend(title=None, orient="top")
    )
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=kinds, range=["circle", "triangle-up"]))
    dots = alt.Chart(pl.DataFrame(points)).mark_point(filled=True, size=34, opacity=0.9)
    dots = dots.encode(x=x, y=y, color=color, shape=shape)
    rules = alt.Chart(pl.DataFrame(levels)).mark_rule(strokeWidth=2.5, color=PALETTE[0])
    edge = alt.Chart(pl.DataFrame({"at": [change]})).mark_rule(strokeDash=[5, 4], color="black", opacity=0.5)
    names = pl.DataFrame({"at": [change - 6, change + 6], "name": list(STRETCH)})
    sides: tuple[Literal["left", "right"], ...] = ("right", "left")
    texts = [
        alt.Chart(names[[index]])
        .mark_text(align=side, fontSize=13, fontWeight=600, y=8)
        .encode(x="at:Q", text="name:N")
        for index, side in enumerate(sides)
    ]
    layers = [dots, rules.encode(x="from:Q", x2="to:Q", y="at:Q"), edge.encode(x="at:Q"), *texts]
    return alt.LayerChart(layer=layers, width=620, height=260)


def main() -> None:
    """Run the stream and draw the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/demo"))
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "Adaptation is", RuntimeWarning)
    garments = load_garments()
    runs_of_stream = [run_stream(garments, seed) for seed in SEEDS]
    batches = runs_of_stream[0]
    found = summarize(batches) | {
        name: [count_alarms(run, threshold) for run in runs_of_stream]
        for name, threshold in (("alarms", "threshold"), ("alarms from the stream", "stream_threshold"))
    }
    write_json(options.results / "pictures.json", found)
    runs = json.loads((options.results / "demo.json").read_text(encoding="utf-8"))["runs"]
    charts = {"world": draw_world(runs), "novelty": draw_histogram(found), "alarm": draw_alarm(found)}
    for name, chart in charts.items():
        write_picture(chart, options.out / f"demo-{name}.svg")
    write_sheet(pick_evenly(find_flagged(batches), 3 * COLUMNS), options.out / "demo-flagged.webp")
    write_sheet(pick_evenly(find_rejected(batches), 3 * COLUMNS), options.out / "demo-rejected.webp")
    print(
        {
            name: found[name]
            for name in ("alarms", "alarms from the stream", "rejected", "batches", "batches with a step")
        }
    )


if __name__ == "__main__":
    main()
