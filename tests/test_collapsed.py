"""Scores of a network that predicts one class only, against the benchmark's metric."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from driftproof.bench.metrics import METRICS

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
        return runpy.run_path(str(BENCHMARKS / "collapsed.py"))


@given(classes=st.integers(2, 5), seed=st.integers(0, 2**16), data=st.data())
def test_computed_scores_equal_the_metric_of_a_collapsed_network(script, classes, seed, data):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, classes, (60,), generator=generator)
    original = 3 * torch.randn(60, classes, generator=generator)
    left = data.draw(st.sampled_from(labels[labels >= 0].unique().tolist()))
    collapsed = torch.full_like(original, -1000.0)
    collapsed[:, left] = 1000.0
    confidence = original.softmax(dim=1)
    novelty = torch.stack(
        [row[top] - float(top == left) for row, top in zip(confidence, confidence.argmax(dim=1), strict=True)]
    )
    metric = METRICS["scores"](torch.device("cpu"))
    record = SimpleNamespace(novelty=novelty, quarantined=labels < -1)
    metric.update(collapsed, SimpleNamespace(labels=labels, known=labels >= 0), record)
    expected = metric.compute()
    found = script["compute_scores"](original, labels, left)
    for name in ("including/auroc", "including/fpr", "excluding/auroc", "excluding/fpr"):
        assert found[name] == pytest.approx(expected[f"confidence_difference/{name}"].value, nan_ok=True)
    taken = [
        top == left for top, label in zip(confidence.argmax(dim=1).tolist(), labels.tolist(), strict=True) if label < 0
    ]
    assert found["taken"] == pytest.approx(100 * sum(taken) / len(taken) if taken else float("nan"), nan_ok=True)
