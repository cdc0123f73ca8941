"""The comparison of novelty scores: what it computes in one step, and what its tables show."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

import driftproof as dp
from cases import batches
from networks import build

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield runpy.run_path(str(BENCHMARKS / "novelty.py"))
    for name in ("novelty_candidates", "novelty_streams", "tables"):
        sys.modules.pop(name, None)


def test_one_step_computes_every_named_score(script):
    def make(novelty):
        return dp.tent(build("wide_resnet"), lr=0.05, select=dp.ConfidenceDifference(), guard=(), novelty=novelty)

    every, stream = make(script["AllScores"]()), batches(3)
    others = ("answer_", "detector")  # of methods that answer or detect with more than one network
    names = {name for name in dp.scores.NOVELTY_SCORES if not name.startswith(others)}
    named = {name: make(name) for name in names - {"local_entropy", "adapted_local_entropy"}}  # entropy, for images
    assert set(named) == set(script["SINGLE"])
    for images in stream:
        every(images)
        columns = dict(zip(script["AllScores"].names, every.last.novelty.T, strict=True))
        for name, adapter in named.items():
            adapter(images)
            torch.testing.assert_close(columns[name], adapter.last.novelty, rtol=1e-4, atol=1e-6, msg=name)


def test_pixels_and_images_are_measured_alike(script, monkeypatch):
    names = ("one", "other")
    monkeypatch.setattr(script["AllScores"], "names", names)
    images, pixels = script["_Images"](), script["_Pixels"](torch.zeros(2, 4, 8, 8))
    for _ in range(3):
        labels = torch.randint(-1, 4, (2, 8, 8))
        predicted = torch.where(torch.rand(2, 8, 8) < 0.7, labels.clamp(min=0), 0)
        novelty = torch.randn(2, 8, 8, 2).exp() + (labels < 0).unsqueeze(-1)
        novelty[0, 0, 0] = torch.nan  # a quarantined sample
        pixels.update(predicted, labels, novelty)
        images.update(predicted.flatten(), labels.flatten(), novelty.flatten(end_dim=2))
    exact, binned = images.compute(), pixels.compute()
    assert exact["quarantined"] == 3
    for key in (f"{name}/{against}/auroc" for name in names for against in ("known", "right")):
        assert binned[key] == pytest.approx(exact[key], abs=0.5), key


def test_table_marks_the_best_single_score_and_the_largest_gap(script, tmp_path):
    kinds = [f"{against}/{measure}" for against in ("known", "right") for measure in ("auroc", "fpr")]
    for method, best in (("bn_adapt", "cosine"), ("tent", "energy")):
        row = {"domain": "fog", "error": 10.0}
        for name in (*script["SINGLE"], "a sum"):
            row |= {f"{name}/{kind}": 90.0 if name == best else 80.0 if name != "a sum" else 95.0 for kind in kinds}
        rounds = (1,) if method == "bn_adapt" else (1, 2)
        lines = [{"method": method, "rounds": 2}, *({"round": number} | row for number in rounds)]
        (tmp_path / f"cifar10-c-{method}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    page = script["summarize"](tmp_path)
    last = page.partition("round 2: AUROC, unknown against all known")[2]
    assert "| cosine | **90.00** | 80.00 | 10.00 |" in last, "the round of a method that learns nothing is its first"
    assert "| energy | 80.00 | **90.00** | 10.00 |" in last
    assert "| a sum | 95.00 | 95.00 | -5.00 |" in last


def test_methods_with_batch_statistics_have_the_frozen_scores_of_bn_adapt(script):
    """What the tables show of the centered score with these methods rests on it."""
    results = BENCHMARKS.parent / "results/novelty"
    for images in ("cifar10-c", "cifar100-c"):
        expected, *rest = (
            {
                (row["round"], row["domain"], name): value
                for row in script["_read"](results / f"{images}-{method}.jsonl")[1:]
                for name, value in row.items()
                if name.split("/")[0] in ("msp", "energy", "max_logit", "entropy", "cosine", "cosine_entropy")
                and "/known/" in name
            }
            for method in ("bn_adapt", *script["_BATCH_STATISTICS"])
        )
        assert len(expected) == 15 * 6 * 2
        for found in rest:
            assert len(found) == 2 * len(expected)
            for (_, domain, name), value in found.items():
                assert value == pytest.approx(expected[1, domain, name], abs=0.0011), (images, domain, name)


def test_table_shows_the_centered_score_of_bn_adapt_where_it_was_not_measured(script, tmp_path):
    kinds = [f"{against}/{measure}" for against in ("known", "right") for measure in ("auroc", "fpr")]
    for method in ("source", "bn_adapt", "tent"):
        names = ["energy"] if method == "tent" else ["energy", "centered_cosine_entropy"]
        values = {f"{name}/{kind}": 60.0 if name == "energy" else 90.0 for name in names for kind in kinds}
        values = values | {key: value - 5 for key, value in values.items() if method == "source"}
        lines = [{"method": method, "rounds": 1}, {"round": 1, "domain": "fog", "error": 10.0} | values]
        (tmp_path / f"cifar10-c-{method}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert "| centered_cosine_entropy | **85.00** | **90.00** | **90.00** | 0.00 |" in script["summarize"](tmp_path)
