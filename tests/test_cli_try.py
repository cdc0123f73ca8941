"""`driftproof try`: the table, and the rules of its recommendation."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from PIL import Image

from driftproof.cli.recommendation import SIGNIFICANCE, Outcome, paired_test, recommend
from test_cli import project, run, save_images

__all__ = ["project"]


def outcome(method, wrong, *, labeled=200, **others):
    """A method that is wrong on these images of a labeled set."""
    return Outcome(method, tuple(index not in wrong for index in range(labeled)), **others)


SOURCE = outcome("source", range(100))


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (9, 1), (30, 28), (700, 600), (0, 12)])
def test_paired_test_is_the_exact_binomial_test(gained, lost):
    before = [False] * gained + [True] * lost + [True] * 3
    after = [True] * gained + [False] * lost + [True] * 3
    expected = scipy.stats.binomtest(gained, gained + lost, alternative="greater").pvalue if gained + lost else 1.0
    assert paired_test(before, after) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_nothing_is_recommended_that_is_not_better_beyond_noise():
    slightly = outcome("adapt", range(4, 100))
    assert slightly.accuracy > SOURCE.accuracy
    advice = recommend(SOURCE, [slightly, outcome("tent", range(110))])
    assert advice.method == "source"
    assert "beyond noise. adapt reaches 52.0%: label more images" in advice.reason
    assert recommend(SOURCE, [outcome("tent", range(5, 100))]).method == "tent", "5 gained, none lost: p = 1/32"
    several = [outcome("tent", range(5, 100)), *(outcome(f"m{n}", range(100)) for n in range(9))]
    assert recommend(SOURCE, several).method == "source", "the level is shared among the candidates"


def test_recommendations_by_chance_are_as_rare_as_promised():
    generator = np.random.default_rng(0)
    draw = lambda: tuple((generator.random(100) < 0.5).tolist())  # noqa: E731
    false = sum(
        recommend(Outcome("source", draw()), [Outcome(f"m{n}", draw()) for n in range(4)]).method != "source"
        for _ in range(400)
    )
    assert false / 400 <= SIGNIFICANCE + 0.02


def test_most_accurate_healthy_method_is_recommended():
    good, best = outcome("bn_adapt", range(60)), outcome("tent", range(30))
    advice = recommend(SOURCE, [good, best])
    assert advice.method == "tent"
    assert "right on 85.0% of 200 labeled images, the model as it is on 50.0% (paired test: p < 0.001)" in advice.reason
    ill = outcome("tent", range(30), state="drifting")
    assert recommend(SOURCE, [good, ill]).method == "bn_adapt"
    advice = recommend(SOURCE, [ill])
    assert advice.method == "source"
    assert "ended drifting" in advice.reason


def test_adapt_is_preferred_where_no_method_is_better_than_it():
    adapt = outcome("adapt", range(60))
    assert recommend(SOURCE, [outcome("tent", range(58)), adapt]).method == "adapt"
    assert recommend(SOURCE, [outcome("tent", range(30)), adapt]).method == "tent"
    ill = outcome("adapt", range(60), state="collapsed")
    assert recommend(SOURCE, [outcome("tent", range(58)), ill]).method == "tent"


def test_without_labels_only_healthy_methods_that_change_predictions_are_recommended():
    source = Outcome("source")
    tent, adapt = (Outcome(name, agreement=0.9, state="healthy") for name in ("tent", "adapt"))
    advice = recommend(source, [tent, adapt])
    assert advice.method == "adapt"
    assert "10.0% of the predictions" in advice.reason
    assert "--labels" in advice.reason
    assert recommend(source, [tent, Outcome("adapt", agreement=0.5, state="drifting")]).method == "tent"
    assert recommend(source, [Outcome("adapt", agreement=0.9, actions=6, batches=10)]).method == "source"
    assert recommend(source, [Outcome("adapt", agreement=0.9, actions=5, batches=10)]).method == "adapt"
    assert "nothing to gain" in recommend(source, [Outcome("adapt", agreement=0.999)]).reason


SHIFTED = """
import torch
from torch import nn

class Brightest(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3, affine=True)

    def forward(self, x):
        return 20 * self.norm(x).mean(dim=(2, 3)) + torch.tensor([6.0, 0.0, 0.0])

def brightest():
    torch.manual_seed(0)
    return Brightest().eval()
"""


@pytest.fixture
def shifted(project, tmp_path):
    """A model that needs batch statistics, images whose class is their brightest channel, and images of no class."""
    Path("shifted.py").write_text(SHIFTED)
    generator = np.random.default_rng(0)
    for channel, name in enumerate(("red", "green", "blue")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for index in range(16):
            color = generator.integers(100, 120, 3)
            color[channel] += 40
            pixels = np.clip(color + generator.integers(-9, 10, (6, 6, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{index}.png")
    return tmp_path / "images"


def test_try_finds_the_method_that_helps(shifted, capsys):
    Path("classes.txt").write_text("red\ngreen\nblue\n")
    options = ("--model", "shifted:brightest", "--batch-size", 24, "--labels", shifted, "--classes", "classes.txt")
    assert run("try", shifted, *options, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["method"]: row for row in found["methods"]}
    assert list(rows) == ["source", "bn_adapt", "tent+crowd", "eata+crowd", "adapt"]
    assert rows["source"]["accuracy"] == pytest.approx(1 / 3)
    assert rows["source"]["agreement"] == 1
    assert rows["bn_adapt"]["accuracy"] > 0.9
    assert all(row["images"] == 48 and row["milliseconds"] > 0 for row in rows.values())
    assert found["recommendation"]["method"] in ("adapt", "bn_adapt", "tent+crowd", "eata+crowd")
    assert run("adapt", shifted, *options, "--method", "bn_adapt", "--out", "rows.csv") == 0
    assert f"accuracy: {rows['bn_adapt']['accuracy']:.1%} of 48" in capsys.readouterr().err


def test_try_prints_a_table_and_the_reason(shifted, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    save_images(shifted / "plaid", 6, side=6)
    Path("classes.txt").write_text("red\ngreen\nblue\n")
    options = ("--model", "shifted:brightest", "--batch-size", 24, "--methods", "bn_adapt", "--limit", 40)
    assert run("try", shifted, *options, "--labels", shifted, "--classes", "classes.txt") == 0
    output = capsys.readouterr().out
    for heading in ("accuracy", "gain", "p", "health", "agreement", "novelty", "AUROC", "ms/image"):
        assert heading in output
    assert "Recommended: bn_adapt. It is right on" in output
    assert run("try", shifted, *options) == 0
    output = capsys.readouterr().out
    assert "accuracy" not in output
    assert "AUROC" not in output
    assert "Recommended: " in output


def test_try_reports_unreadable_images_and_bad_methods(shifted, capsys):
    (shifted / "red" / "broken.png").write_text("no image")
    options = ("--model", "shifted:brightest", "--batch-size", 24)
    assert run("try", shifted, *options, "--methods", "bn_adapt") == 1
    assert "broken.png to be an image" in " ".join(capsys.readouterr().err.split())
    assert run("try", shifted, *options, "--methods", "swr") == 2
    assert "`--source`" in capsys.readouterr().err
    assert run("try", shifted, *options, "--methods", "tnet") == 2
    assert "Did you mean tent" in capsys.readouterr().err
