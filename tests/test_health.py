"""The indicators of health against slow references, and the state they add up to."""

import math
from dataclasses import replace

import pytest
import torch

import driftproof as dp
from cases import adapter_for, batches
from networks import build

NAN = math.nan


def just_above(value):
    return math.nextafter(value, math.inf)


def just_below(value):
    return math.nextafter(value, -math.inf)


@pytest.mark.parametrize(
    ("indicators", "state"),
    [
        ({}, "healthy"),
        ({"disagreement": 0.45}, "healthy"),
        ({"disagreement": just_above(0.45)}, "drifting"),
        ({"disagreement": 0.55}, "drifting"),
        ({"disagreement": just_above(0.55)}, "collapsed"),
        ({"disagreement": just_above(0.55), "mean_entropy_ratio": 2.0}, "collapsed"),
        ({"mean_entropy_ratio": 0.0, "disagreement": 0.35}, "healthy"),
        ({"mean_entropy_ratio": just_below(0.9), "disagreement": just_above(0.35)}, "drifting"),
        ({"mean_entropy_ratio": 0.9, "disagreement": just_above(0.35)}, "healthy"),
        ({"mean_entropy_ratio": 0.8, "disagreement": just_above(0.4)}, "drifting"),
        ({"mean_entropy_ratio": just_below(0.8), "disagreement": 0.4}, "drifting"),
        ({"mean_entropy_ratio": just_below(0.8), "disagreement": just_above(0.4)}, "collapsed"),
        ({"mean_entropy_ratio": 0.0, "disagreement": NAN}, "healthy"),
        ({"statistics_gap": 0.065}, "healthy"),
        ({"statistics_gap": just_above(0.065)}, "collapsed"),
        ({"mean_entropy": just_below(0.5), "kept": 0.1}, "drifting"),
        ({"mean_entropy": 0.5, "kept": 0.1}, "healthy"),
        ({"mean_entropy": 0.0, "kept": 1.0, "mean_entropy_ratio": 1.0, "disagreement": 0.0}, "healthy"),
        ({"distance": 100.0, "kept": 0.0, "mean_entropy": 0.0}, "healthy"),
    ],
)
def test_state_at_the_thresholds(indicators, state):
    health = dp.Health(**indicators)
    assert health.state == state
    assert (health.reason is None) == (state == "healthy")
    assert health.blames_statistics == (indicators.get("statistics_gap", 0) > 0.065)


def test_reason_names_what_is_wrong():
    wrong = dp.Health(disagreement=0.6, mean_entropy_ratio=0.5)
    assert (
        wrong.reason
        == "predictions concentrate on few classes, and 60% of the predictions differ from the frozen network's"
    )
    assert "few classes" not in replace(wrong, mean_entropy_ratio=1.0).reason
    assert "statistics of its training" in replace(wrong, statistics_gap=0.1).reason


# --- averages ---------------------------------------------------------------------------------------------------------


def entropy_share(p):
    return float(-(p * p.clamp(min=1e-30).log()).sum() / math.log(len(p)))


def per_class(logits):
    return logits.double().softmax(1).transpose(0, 1).flatten(1).mean(1)


class SlowHealth:
    """Averages of the stream in double precision, from answers and records alone."""

    def __init__(self, classes):
        self.ours, self.source = torch.zeros(classes, dtype=torch.float64), torch.zeros(classes, dtype=torch.float64)
        self.kept = self.disagreement = 0.0

    def update(self, answer, record):
        share = min(1.0, max(0.05, record.seen / 2000))
        self.ours = (1 - share) * self.ours + share * per_class(answer)
        self.kept = (1 - share) * self.kept + share * record.kept
        return share

    def compare(self, answer, frozen, share):
        differ = (answer.argmax(1) != frozen.argmax(1)).double().mean()
        self.source = (1 - share) * self.source + share * per_class(frozen)
        self.disagreement = (1 - share) * self.disagreement + share * float(differ)

    def check(self, health):
        ours, source = self.ours / self.ours.sum(), self.source / self.source.sum()
        assert health.mean_entropy == pytest.approx(entropy_share(ours), rel=1e-4)
        assert health.kept == pytest.approx(self.kept / float(self.ours.sum()), rel=1e-4)
        if float(self.source.sum()) == 0:
            assert math.isnan(health.mean_entropy_ratio)
            assert math.isnan(health.disagreement)
            return
        assert health.mean_entropy_ratio == pytest.approx(entropy_share(ours) / entropy_share(source), rel=1e-4)
        expected = self.disagreement / float(self.source.sum())
        assert health.disagreement == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("case", "network", "shape"),
    [
        ("tent+crowd", "wide_resnet", (3, 8, 8)),
        ("tent", "wide_resnet", (3, 8, 8)),
        ("bn_adapt", "wide_resnet", (3, 8, 8)),
        ("tent+crowd", "segmentation", (3, 8, 8)),
        ("tent", "segmentation", (3, 20, 20)),
    ],
)
def test_averages_of_steps_equal_a_slow_reference(case, network, shape):
    """The frozen network counts only where the method runs it; the last network has 2,400 pixels in a batch."""
    model = build(network)
    adapter, frozen = adapter_for(case, model, segmentation=network == "segmentation", guard=()), dp.bn_adapt(model)
    slow = SlowHealth(5)
    for images in batches(8, shape=shape):
        answer = adapter(images)
        share = slow.update(answer, adapter.last)
        if "+crowd" in case:
            slow.compare(answer, frozen(images), share)
        slow.check(adapter.last.health)
    assert math.isnan(adapter.last.health.distance)
    assert math.isnan(adapter.last.health.statistics_gap)
    if case == "tent+crowd":
        assert adapter.last.health.disagreement > 0


def test_kept_averages_what_was_learned_from(trained):
    """Learning is held back while automatic statistics see classes in order."""
    model, images, labels = trained
    adapter, slow = dp.tent(model, statistics="auto", guard=()), SlowHealth(6)
    kept = []
    for batch in (0.7 * images + 0.1)[[*labels[:64].argsort(), *(2 * [*range(64, len(images))])]].split(32):
        slow.update(adapter(batch), adapter.last)
        slow.check(adapter.last.health)
        kept.append(adapter.last.kept)
        assert (adapter.last.kept > 0) == adapter.last.stepped
    assert kept[0] == 0
    assert 0 < adapter.last.health.kept < 1


@pytest.mark.parametrize("size", [6, 16])
def test_extra_passes_of_the_frozen_network_equal_a_slow_reference(size):
    """After batches 5, 10 and 20: a method that does not run the frozen network is compared with it all the same."""
    model = build("wide_resnet")
    adapter, frozen, trained = dp.tent(model, lr=0.02), dp.bn_adapt(model), dp.source(model)
    slow, gap, weight = SlowHealth(5), 0.0, min(1.0, size / 16)
    for number, images in enumerate(batches(24, size=size), start=1):
        answer = adapter(images)
        slow.update(answer, adapter.last)
        if number in (5, 10, 20):
            slow.compare(answer, frozen(images), 0.5 * weight)
            difference = dp.scores.entropy(frozen(images)).mean() - dp.scores.entropy(trained(images)).mean()
            gap += 0.3 * weight * (0.5 * float(difference) / math.log(5) - gap)
            moved = distance(adapter, model)
        if number >= 5:
            slow.check(adapter.last.health)
            assert adapter.last.health.distance == pytest.approx(moved, rel=1e-4)
            assert adapter.last.health.statistics_gap == pytest.approx(gap, rel=1e-3, abs=1e-5)


def distance(adapter, model):
    now, start = (
        torch.cat([one.get_parameter(name).detach().flatten() for name in adapter.trainable_parameters])
        for one in (adapter.network.model, model)
    )
    return float((now - start).norm() / start.norm())


def test_health_survives_saving_and_starts_anew_after_reset(tmp_path):
    model, stream = build("wide_resnet"), batches(26, size=16)
    adapter = dp.tent(model, lr=0.05)
    expected = [adapter.step(images).record.health for images in stream]
    assert expected[-1].disagreement > 0
    adapter.reset()
    assert [repr(adapter.step(images).record.health) for images in stream[:7]] == [repr(one) for one in expected[:7]]
    adapter.save(tmp_path / "state")
    other = dp.tent(model, lr=0.05).load(tmp_path / "state")
    assert [repr(other.step(images).record.health) for images in stream[7:]] == [repr(one) for one in expected[7:]]


def test_health_before_and_without_a_good_batch_is_unknown():
    adapter = dp.tent(build("wide_resnet"))
    adapter(batches(1)[0] * torch.nan)
    assert adapter.last.health.state == "healthy"
    assert repr(adapter.last.health) == repr(dp.Health())


class OneClass(dp.outputs.Output):
    """Answers one class, whatever the network says."""

    def predict(self, step):
        return torch.zeros_like(step.logits).index_fill(1, torch.tensor([0], device=step.logits.device), 9.0)


def test_answer_that_collapses_is_seen_where_the_network_does_not():
    """The network learns nothing and stays healthy; what is answered does not."""
    options = {"lr": 0.0, "select": dp.ConfidenceDifference(), "guard": ()}
    plain, spoiled = (dp.tent(build("wide_resnet"), output=output, **options) for output in (None, OneClass()))
    for images in batches(60, size=64):
        plain(images)
        spoiled(images)
    assert plain.last.health.state == "healthy"
    assert spoiled.last.health.state == "collapsed"
