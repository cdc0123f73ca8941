"""The hand-written loops compute what the adapters do, and the architectures benchmark names what happened."""

import copy
import importlib
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import driftproof as dp

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def small_network():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5)).eval()


@pytest.mark.parametrize("name", ["tent_by_hand", "tent_crowd_by_hand"])
def test_hand_written_loop_computes_what_the_adapter_does(load, name):
    model = small_network()
    step = getattr(load("by_hand"), name)(copy.deepcopy(model), lr=0.1)
    adapter = dp.tent(model, lr=0.1, select=dp.ConfidenceDifference() if "crowd" in name else None)
    rejected = 0
    for images in torch.randn(6, 16, 3, 8, 8):
        torch.testing.assert_close(step(images), adapter(images), rtol=1e-4, atol=1e-4)
        rejected += int((~adapter.last.selected).sum())
    assert bool(rejected) == ("crowd" in name), "the selection rejects some samples, so that it is compared too"


class WarnsAtEveryForward(nn.Module):
    def forward(self, x):
        warnings.warn("Steps run eagerly.", RuntimeWarning, stacklevel=1)
        return x


def without_output():
    model = small_network()
    nn.init.zeros_(model[-1].weight)
    return model


@pytest.mark.parametrize(
    ("model", "result", "reason"),
    [
        (small_network(), "adapted", ""),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), "refused", "ModelError: "),
        (without_output(), "failed", "No parameter moved"),
        (nn.Sequential(WarnsAtEveryForward(), *small_network()), "failed", "warnings instead of one"),
    ],
)
def test_architectures_adapt_or_name_what_happened(load, model, result, reason):
    benchmark, logits = load("architectures"), []

    def outcome():
        batches = list(torch.rand(benchmark.STEPS, 4, 3, 8, 8))
        return benchmark.run_safely(benchmark.Architecture(model), batches, "eager", logits)

    found = outcome()
    assert (found.result, bool(found.reason)) == (result, bool(reason))
    assert reason in found.reason
    if result == "adapted":
        others = [each + 1e-3 for each in logits]
        assert benchmark.largest_difference(logits, logits) == 0
        assert benchmark.largest_difference(logits, others) == pytest.approx(1e-3, rel=0.01)
    if result == "refused":
        assert benchmark.largest_difference(logits, logits) is None
    if "moved" in reason:
        benchmark.fill_zero_weights(model)
        assert outcome().result == "adapted"
