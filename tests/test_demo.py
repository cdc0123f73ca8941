"""The demo: its images, its streams against slow loops, its page and its command."""

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import polars as pl
import pytest
import torch

import driftproof as dp
from driftproof.bench import load
from driftproof.cli import main
from driftproof.demo import streams
from driftproof.demo.garments import CLASSES, load_garments
from driftproof.demo.network import train_network
from driftproof.demo.page import _embed_some, hostile_table, world_table, write_demo_page
from driftproof.demo.recorded import RECORDED, record_curves

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def garments():
    return load_garments()


@pytest.fixture(scope="module")
def model(garments):
    return train_network(garments.train[:1000], garments.train_labels[:1000])


@pytest.fixture(scope="module")
def world(model, garments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CORRUPTIONS", ("gaussian_noise", "frost"))
        return streams.run_world(model, garments, count=200)


def test_garments_are_images_of_seven_classes_and_bags(garments):
    assert {images.shape[1:] for images in (garments.train, garments.test, garments.bags)} == {(3, 32, 32)}
    for labels in (garments.train_labels, garments.test_labels):
        assert set(labels.tolist()) == set(range(len(CLASSES)))
    seen = {image.numpy().tobytes() for image in garments.train}
    assert not seen & {image.numpy().tobytes() for image in torch.cat([garments.test, garments.bags])}


def test_network_learns_the_classes(model, garments):
    with torch.no_grad():
        predicted = model(garments.test[:300].float() / 255).argmax(dim=1)
    assert (predicted == garments.test_labels[:300]).float().mean() > 0.8


def test_same_seed_trains_the_same_network(garments):
    one, other = (train_network(garments.train[:64], garments.train_labels[:64], seed=3) for _ in range(2))
    assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def test_batches_of_the_world_hold_a_fifth_bags(garments):
    batches = list(streams.mix_batches(garments, "fog", 200, torch.Generator().manual_seed(0)))
    assert [(len(labels), int((labels < 0).sum())) for _, labels in batches] == [(125, 25)] * 2


def test_errors_of_the_world_are_those_of_a_plain_loop(world, model, garments):
    generator, wrong, adapter = torch.Generator().manual_seed(0), {}, dp.adapt(model)
    for name in ("gaussian_noise", "frost"):
        wrong[name] = [0, 0]
        for pixels, labels in streams.mix_batches(garments, name, 200, generator):
            images = pixels.float() / 255
            with torch.no_grad():
                answers = model(images), adapter(images)
            for k, logits in enumerate(answers):
                pairs = zip(logits.argmax(1).tolist(), labels.tolist(), strict=True)
                wrong[name][k] += sum(predicted != label for predicted, label in pairs if label >= 0)
    for domain in world.domains:
        assert [domain.source, domain.adapted] == pytest.approx([count / 2 for count in wrong[domain.name]])


def test_bags_are_more_frequent_among_unfamiliar_images(world):
    assert len(world.unfamiliar) == 4 * streams.WATCHED
    bags = sum(each.is_bag for each in world.unfamiliar)
    assert world.bags == 100 * bags / len(world.unfamiliar) > 30


def test_sorted_and_single_images_destroy_tent_and_not_adapt(model, garments, monkeypatch):
    monkeypatch.setattr(streams, "_REPEATS", 1)
    monkeypatch.setattr(streams, "_SINGLE_IMAGES", 60)
    fewer = replace(garments, test=garments.test[:500], test_labels=garments.test_labels[:500])
    for row in streams.run_hostile(model, fewer)[:2]:
        assert row.tent < row.source - 20
        assert row.adapted >= row.source - 1


def test_page_shows_the_numbers_and_needs_nothing_else(world, tmp_path):
    hostile = [streams.Hostile("sorted", 94.0, 31.5, 93.5)]
    text = write_demo_page(world, hostile, tmp_path / "demo.html", seed=0).read_text()
    for name in ("source", "dp.adapt"):
        assert f"{world_table(world)[name][-1]:.1f}" in text
    assert "31.5" in text
    assert hostile_table(hostile)["TENT"][0] == 31.5
    assert not re.search(r"""(src|href)=["']?https?:""", text)


@pytest.mark.parametrize("count", [0, 1, 5, 16, 17, 40])
def test_page_shows_each_image_once(world, count):
    pictures = _embed_some(world.unfamiliar[:count])
    assert len({id(each) for each, _ in pictures}) == len(pictures) == min(count, 16)


def test_recorded_curves_are_those_of_the_archive(tmp_path):
    record_curves(ROOT / "results" / "classification", tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(RECORDED.read_text())
    rows = load(ROOT / "results" / "classification").filter(
        measure="error", stream="cifar10-c", setting="open", method="tent", round=50, seed=0
    )
    assert json.loads(RECORDED.read_text())["curves"]["tent"][-1] == pytest.approx(rows["value"].mean(), abs=0.005)
    assert rows.select(pl.len()).item() == 15


def test_page_about_the_demo_shows_the_rows_of_five_seeds(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    seeds = runpy.run_path(str(ROOT / "benchmarks" / "demo_seeds.py"))
    runs = json.loads((ROOT / "results" / "demo" / "demo.json").read_text())["runs"]
    page = (ROOT / "docs" / "demo.md").read_text()
    assert [run["seed"] for run in runs] == [0, 1, 2, 3, 4]
    assert all(table in page for table in seeds["format_tables"](runs).values()), "`make bench-demo`"
    assert [seeds["find_exceptions"](run) for run in runs] == [[]] * 5
    before, after = zip(*map(seeds["mean_errors"], runs), strict=True)
    flagged = [run["bags"] for run in runs]
    words = [f"{min(numbers):.0f} to {max(numbers):.0f} %" for numbers in (before, after, flagged)]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"the mean error falls from {words[0]} to {words[1]}, and {words[2]} of the images flagged" in readme
    held = [
        f"seed {run['seed']}"
        for run in runs
        if any(each["source"] > 50 and each["adapted"] > each["source"] - 1 for each in run["domains"])
    ]
    assert re.findall(r"With (seed \d).*?stays at the network as trained", page) == held
    lost = [row["source"] - row["tent"] for run in runs for row in run["hostile"][2:]]
    assert f"TENT loses {min(lost):.0f} to {max(lost):.0f} points" in page
    found = json.loads((ROOT / "results" / "demo" / "pictures.json").read_text())
    text = " ".join(page.split())
    rejected = found["rejected"]
    garments, bags = ([run[kind] for run in found["alarms"]] for kind in ("garments", "bags"))
    flagged = f"it flagged {fmean(garments):.0f} % of the garments and {fmean(bags):.0f} % of the bags"
    assert f"{flagged}, as a mean over five seeds; {min(garments):.1f} to {max(garments):.1f} % of the garments" in text
    after_clean = [run["garments"] for run in found["alarms from the stream"]]
    rates = [f"{min(each):.1f} to {max(each):.1f} % of the garments" for each in (garments, after_clean)]
    assert f"it flagged {rates[1]}" in text
    novelty_page = " ".join((ROOT / "docs" / "novelty.md").read_text().split())
    assert f"{rates[0]} were flagged where 5 % were asked for" in novelty_page
    assert f"{rates[1].removesuffix(' of the garments')} after clean garments at the beginning" in novelty_page
    assert f"rejected {rejected['bags']:.0f} % of the bags and {rejected['garments']:.0f} % of the garments" in text
    assert f"Of {found['batches']} batches, {found['batches with a step']} had a step" in page


def test_high_rate_is_the_one_that_was_chosen_on_other_networks():
    found = json.loads((ROOT / "results" / "demo" / "rate.json").read_text())
    assert not set(found["seeds"]) & {0, 1, 2, 3, 4}
    lost = {name: min(run["source"] - run[name] for run in found["runs"]) for name in found["runs"][0]}
    enough = min(float(name) for name, points in lost.items() if name != "source" and points >= 20)
    assert enough == found["chosen"] == streams._HIGH_RATE


def test_command_prints_tables_and_writes_the_page(world, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("driftproof.demo.network.train_network", lambda *args, **named: None)
    monkeypatch.setattr(streams, "run_world", lambda *args, **named: world)
    monkeypatch.setattr(streams, "run_hostile", lambda *args, **named: [streams.Hostile("sorted", 94.0, 31.5, 93.5)])
    with pytest.raises(SystemExit, match="0"):
        main(["demo", "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "31.50" in shown
    assert "adapter = dp.adapt(model)" in shown
    assert (tmp_path / "demo.html").exists()
