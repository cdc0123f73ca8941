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


def run_eager(load, model):
    benchmark = load("architectures")
    batches, logits = list(torch.rand(benchmark.STEPS, 4, 3, 8, 8)), []
    outcome = benchmark.run_safely(benchmark.Architecture(model), batches, "eager", logits)
    return outcome, logits


def test_architecture_that_adapts(load):
    outcome, logits = run_eager(load, small_network())
    assert (outcome.result, outcome.reason) == ("adapted", "")
    assert load("architectures").largest_difference(logits, logits) == 0
    assert load("architectures").largest_difference(logits, [each + 1e-3 for each in logits]) == pytest.approx(
        1e-3, rel=0.01
    )


def test_architecture_that_is_refused_names_the_error(load):
    outcome, logits = run_eager(load, nn.Sequential(nn.Flatten(), nn.Linear(192, 5)))
    assert outcome.result == "refused"
    assert outcome.reason.startswith("ModelError: ")
    assert load("architectures").largest_difference(logits, logits) is None


class WarnsAtEveryForward(nn.Module):
    def forward(self, x):
        warnings.warn("Steps run eagerly.", RuntimeWarning, stacklevel=1)
        return x


def test_architecture_that_does_not_move_fails(load):
    model = small_network()
    nn.init.zeros_(model[-1].weight)
    outcome, _ = run_eager(load, model)
    assert outcome.result == "failed"
    assert "No parameter moved" in outcome.reason
    load("architectures").fill_zero_weights(model)
    assert run_eager(load, model)[0].result == "adapted"


def test_more_than_one_warning_of_a_fallback_fails(load):
    outcome, _ = run_eager(load, nn.Sequential(WarnsAtEveryForward(), *small_network()))
    assert outcome.result == "failed"
    assert "warnings instead of one" in outcome.reason
