"""Statistics that choose their own share: against a slow reference, and on digits in every order and batch size."""

import importlib
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import driftproof as dp
from cases import batches, same_state, state_of
from driftproof.adapter.engines import EagerEngine, StaticEngine
from driftproof.corruptions import corrupt
from driftproof.demo.garments import load_garments
from driftproof.distributed import Distributed
from driftproof.statistics import Auto
from driftproof.statistics.base import ProbedLogits
from fault_injection import assert_same, faulty_stream, make_adapter, run
from networks import build
from stubs import step_with


def predict_only(model, statistics):
    return dp.Adapter(model, scope=dp.scopes.nothing(), statistics=statistics)


class SlowAuto:
    """The trained network in double precision, with running statistics and their mixture layer by layer."""

    def __init__(self, model, window):
        *self.blocks, _, _, self.head = model
        self.window = window
        self.running = [(norm.running_mean.double(), norm.running_var.double()) for _, norm, _ in self.blocks]

    def predict(self, x, alpha):
        """The logits for a batch, and how far its statistics are from those of training."""
        x, shifts, share = x.double(), [], min(1.0, len(x) / self.window)
        for layer, (conv, norm, _) in enumerate(self.blocks):
            x = F.conv2d(x, conv.weight.double(), stride=conv.stride, padding=1)
            old_mean, old_variance = self.running[layer]
            mean = (1 - share) * old_mean + share * x.mean((0, 2, 3))
            variance = (1 - share) * old_variance + share * x.var((0, 2, 3), correction=0)
            square = (1 - share) * (old_variance + old_mean**2) + share * x.square().mean((0, 2, 3))
            self.running[layer] = mean, square - mean**2
            source_mean, source_variance = norm.running_mean.double(), norm.running_var.double()
            ratio = variance / source_variance
            divergence = 0.5 * (ratio + (mean - source_mean) ** 2 / source_variance - 1 - ratio.log())
            shifts.append(divergence.mean())
            used_mean = alpha * mean + (1 - alpha) * source_mean
            between = alpha * (1 - alpha) * (mean - source_mean) ** 2
            used_variance = alpha * variance + (1 - alpha) * source_variance + between
            x = F.batch_norm(x, used_mean, used_variance, norm.weight.double(), norm.bias.double(), eps=norm.eps).relu()
        return F.linear(x.mean((2, 3)), self.head.weight.double(), self.head.bias.double()), sum(shifts) / len(shifts)


class RecordingAuto(Auto):
    """Remembers the share with which a batch was answered."""

    used, answered, last_cap = 0.0, True, None

    def on_batch(self, step):
        self.used, self.answered = float(self.alpha), True
        self.last_cap = None if self.recent is None else min(self.share, float(self.cap))
        super().on_batch(step)

    def judge_probe(self, logits, distributed):
        answer = super().judge_probe(logits, distributed)
        self.answered = answer is logits.answered or torch.equal(answer, logits.answered)
        return answer


@pytest.mark.parametrize("size", [1, *(pytest.param(size, marks=pytest.mark.slow) for size in (4, 48)), 16])
@torch.no_grad()
def test_answers_and_cap_equal_a_slow_reference(trained, size):
    """Also batches of one: they are normalized with running statistics, which remember 32 images."""
    model, images, _ = trained
    adapter, slow = predict_only(model, RecordingAuto(share=0.9, window=32)), SlowAuto(model, window=32)
    assert float(adapter.statistics.alpha) == pytest.approx(0.05)
    shares = []
    for batch in (0.6 * images + 0.3).split(size)[:128]:
        answer = adapter(batch).double()
        shares.append(adapter.statistics.used)
        expected, shift = slow.predict(batch, shares[-1])
        assert adapter.statistics.answered or size > 16, "only large batches are answered as a probe says"
        if adapter.statistics.answered:
            torch.testing.assert_close(answer, expected, rtol=1e-3, atol=1e-3)
        if float(adapter.statistics.cap) == 1.0:
            continue
        distant = float(shift**2 / (shift**2 + 0.03**2))
        cap = 0.9 * distant * min(1, 2 * distant)
        assert float(adapter.statistics.cap) == pytest.approx((adapter.statistics.last_cap + cap) / 2, rel=2e-3)
        assert 0 <= float(adapter.statistics.alpha) <= float(adapter.statistics.cap)
    assert shares[0] != pytest.approx(0.05), "the first batch is tried before it is answered"
    assert max(shares) > 0.05, "the share rises"


def test_momentum_follows_the_number_of_images_and_positions():
    momentum = Auto(window=128).momentum_for
    for shape, expected in (
        ((1, 4, 8, 8), 1 / 128),
        ((64, 4, 32, 32), 0.5),
        ((200, 4), 1.0),
        ((1, 4, 64, 64), 4 / 128),
        ((2, 4, 512, 512), 1.0),
    ):
        assert momentum(torch.empty(shape), Distributed()) == pytest.approx(expected)


def test_trust_follows_the_share_and_the_number_of_images():
    auto = Auto(share=0.5, window=11)
    auto.cap, auto.alpha = torch.tensor([0.4]), torch.tensor([0.1])
    for count, expected in ((1, 0.0), (6, 0.125), (11, 0.25), (50, 0.25)):
        assert float(auto.trust(step_with(torch.randn(count, 3)))) == pytest.approx(expected)
    assert not auto.can_learn()
    auto.alpha = torch.tensor([0.2])
    assert auto.can_learn()


def test_share_is_held_at_zero_for_longer_each_time_it_makes_predictions_unsure(monkeypatch):
    monkeypatch.setattr(Auto, "_measure_shift", lambda self, network: torch.ones(1))
    auto, sure = Auto(window=128), 20 * torch.eye(4).repeat(32, 1)

    def share_after(logits):
        auto.on_batch(step_with(logits))
        return float(auto.alpha)

    for held in (10, 20, 30):
        assert share_after(sure) > 0.3
        assert share_after(0.05 * sure) == 0, "balanced, but much less sure than before the share rose"
        assert [share_after(sure) for _ in range(held - 1)] == [0.0] * (held - 1)


@pytest.mark.parametrize(("unsure", "classes", "holds"), [(0.1, 4, False), (0.1, 3, True), (0.14, 4, True)])
def test_balanced_predictions_may_become_a_little_less_sure(monkeypatch, unsure, classes, holds):
    """By at most 0.12 ln C, as strong noise does; those of few classes by 0.06 ln C, as an ordered stream does."""
    monkeypatch.setattr(Auto, "_measure_shift", lambda self, network: torch.ones(1))

    def logits(scale, classes):
        return scale * torch.eye(4)[torch.arange(180) % classes]

    def entropy_of(scale):
        p = logits(scale, 4)[0].softmax(dim=0)
        return float(-(p * p.log()).sum()) / math.log(4)

    scale = min(torch.linspace(2, 20, 2000).tolist(), key=lambda scale: abs(entropy_of(scale) - unsure))
    auto = Auto()
    for each in (logits(20.0, 4), logits(scale, classes)):
        auto.on_batch(step_with(each))
    assert (float(auto.doubts[3]) > 0) is holds
    auto.alpha = torch.tensor([0.45])
    passes = ProbedLogits(logits(1.0, 4), (logits(scale, classes),) * 2, logits(20.0, classes), logits(scale, classes))
    auto.judge_probe(passes, Distributed())
    assert (float(auto.alpha) == 0) is holds


@pytest.mark.parametrize("size", [64, 200])
def test_share_waits_after_the_mean_prediction_jumped(size):
    statistics, uniform, one_class = dp.statistics.Auto(), torch.full((10,), 0.1), torch.eye(10)[3]
    for mean in (uniform, uniform, one_class):
        statistics.doubts = torch.full((6,), 10.0)  # not at the start of a stream
        statistics._measure_balance(mean.expand(size, 10), size, Distributed())
    excess = 0.9 - 0.1 - math.sqrt(10 / (math.pi * size))
    waits = 0
    while statistics.moved > 0:
        statistics._measure_balance(one_class.expand(size, 10), size, Distributed())
        waits += 1
    assert waits == math.ceil(excess / 0.03)


@pytest.mark.parametrize("size", [2, 4, 31])
def test_small_batches_move_by_how_often_two_of_their_images_have_the_same_class(size):
    auto, p = Auto(window=64), torch.randn(size, 5).softmax(dim=1)
    auto._measure_balance(p, size, Distributed())
    pairs = [float(p[i] @ p[j]) for i in range(size) for j in range(size) if i != j]
    excess = sum(pairs) / len(pairs) - float(p.mean(dim=0).square().sum()) - 0.15
    assert float(auto.moved) == pytest.approx(size / 64 * excess, abs=1e-6)


@pytest.mark.parametrize("size", [2, 4, 16])
def test_small_batches_of_one_class_each_bring_the_share_to_zero(size, monkeypatch):
    """Over a window their classes are as balanced as those of mixed batches."""
    monkeypatch.setattr(Auto, "_measure_shift", lambda self, network: torch.ones(1))
    mixed = torch.randint(10, (60 * size,), generator=torch.Generator().manual_seed(0))
    ordered = torch.arange(60).remainder(10).repeat_interleave(size)
    for classes, lowest, highest in ((mixed, 0.3, 0.6), (ordered, 0.0, 0.0)):
        auto = Auto(window=128)
        for batch in (8 * torch.eye(10)[classes]).split(size):
            auto.on_batch(step_with(batch))
        assert size == 2 or lowest <= float(auto.alpha) <= highest
        assert bool(auto.moved > 0) == (classes is ordered)


def test_a_held_back_batch_says_which_rule_holds_it_back(trained, dim):
    adapter = dp.tent(trained[0], statistics="auto", guard=())
    adapter(trained[1][:200])
    assert adapter.last.skipped == "learning is held back: the images hardly differ from training's"
    for batch in dim[1].split(60)[:4]:
        adapter(batch)
    assert adapter.last.skipped.startswith("learning is held back: predictions fall into few classes")
    adapter.state.paused.fill_(True)
    adapter(dim[1][:60])
    assert adapter.last.skipped.startswith("learning is held back: a guard has paused it; predictions fall")


@pytest.mark.parametrize("cap", [0.0, 0.1, 0.29, 0.31, 0.6])
@pytest.mark.parametrize("least_cap", [0.0, 0.5, 1.0])
def test_nothing_is_learned_below_the_least_cap(cap, least_cap):
    auto = Auto(share=0.6, least_cap=least_cap)
    auto.cap.fill_(cap)
    auto.alpha.fill_(cap)
    assert bool(auto.can_learn()) == (cap >= least_cap * 0.6 - 1e-6)


def test_share_zero_is_the_source(trained):
    model, images, _ = trained
    adapter, source = predict_only(model, Auto(share=0.0)), dp.source(model)
    for batch in images[:192].split(64):
        torch.testing.assert_close(adapter(batch), source(batch), rtol=1e-4, atol=1e-4)


# --- orders of the stream ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dim(trained):
    """Digits with less contrast, which batch statistics undo: images with their classes mixed, and class by class."""
    _, images, labels = trained
    images = 0.7 * images + 0.1
    by_class = [images[labels == number][:80] for number in range(6)]
    return torch.stack(by_class, dim=1).flatten(0, 1), torch.cat(by_class)


def test_mixed_classes_raise_the_share_and_let_it_learn(trained, dim):
    adapter = dp.tent(trained[0], statistics="auto")
    for batch in dim[0].split(60):
        adapter(batch)
    assert float(adapter.statistics.alpha) > 0.9 * float(adapter.statistics.cap)
    assert float(adapter.statistics.cap) > 0.3
    assert adapter.last.stepped


def test_the_frozen_network_answers_while_learning_waits(trained, dim):
    model, images, _ = trained
    adapter = dp.tent(model, lr=0.05, statistics="auto", select=dp.ConfidenceDifference(), guard=())
    for batch in dim[0].split(60):
        adapter(batch)
    source = dp.source(model)(images[:32])
    assert (adapter(images[:32]) - source).abs().max() > 0.1, "it has learned something"
    adapter.method.statistics.alpha.zero_()
    assert torch.allclose(adapter(images[:32]), source, atol=1e-4)


@pytest.mark.parametrize("size", [60, 1])
def test_ordered_classes_keep_the_share_low_and_teach_nothing(trained, dim, size):
    adapter = dp.tent(trained[0], statistics="auto", mean_entropy=0.5)
    shares = []
    for batch in dim[1][:: 1 if size > 1 else 8].split(size):
        adapter(batch)
        shares.append(float(adapter.statistics.alpha))
        if len(shares) * size > 60:
            assert not adapter.last.stepped
    assert sum(shares) / len(shares) < 0.1


def test_a_batch_that_its_probe_doubts_is_answered_with_the_statistics_of_training(trained, dim):
    adapter, source = predict_only(trained[0], "auto"), dp.source(trained[0])
    adapter(dim[0][:200])
    adapter.statistics.alpha.fill_(0.6)
    torch.testing.assert_close(adapter(dim[1][:80]), source(dim[1][:80]), rtol=1e-4, atol=1e-4)
    assert float(adapter.statistics.alpha) == 0


class Passes:
    """Logits as sure as `sureness` says for the share at hand, of all classes alike."""

    def __init__(self, sureness):
        self.sureness = sureness

    def logits(self, share, count=100):
        return self.sureness[share] * torch.eye(4).repeat(count // 4 + 1, 1)[:count]


@pytest.mark.parametrize(
    ("sureness", "share"),
    [
        ({0.0: 1.0, 0.6: 4.0, 1.0: 4.0}, 0.6),  # surer with the stream's statistics
        ({0.0: 1.0, 0.6: 1.0, 1.0: 4.0}, 1.0),  # with those alone
        ({0.0: 4.0, 0.6: 1.0, 1.0: 1.0}, 0.0),  # with training's
    ],
)
@pytest.mark.parametrize("count", [64, 65])
def test_sureness_decides_at_once_in_large_batches(sureness, share, count):
    auto, passes = Auto(), Passes(sureness)
    auto.recent = auto.overall = torch.full((4,), 0.25)
    auto.cap, auto.alpha, answered = torch.tensor([0.6]), torch.tensor([0.0]), torch.zeros(count, 4)
    logits = ProbedLogits(answered, (passes.logits(1.0, count), passes.logits(0.6, count)), passes.logits(0.0, count))
    answer = auto.judge_probe(logits, Distributed())
    if count == 64:
        assert answer is answered, "batches of half a window are too small"
        assert float(auto.alpha) == 0
        return
    assert torch.equal(answer, passes.logits(share, count))
    assert float(auto.alpha) == pytest.approx(share)
    assert not auto.can_learn(), "one pass alone does not allow to learn"


def test_a_shift_into_one_class_is_followed_within_two_batches(trained):
    """Grey images: the network calls nearly all of them the same, batch statistics repair it."""
    model, images, labels = trained
    adapter, right = dp.adapt(model), []
    for batch, truth in zip((0.5 * images + 0.4).split(100)[:6], labels.split(100)[:6], strict=True):
        right.append(float((adapter(batch).argmax(1) == truth).float().mean()))
    source = float((dp.source(model)(0.5 * images[:600] + 0.4).argmax(1) == labels[:600]).float().mean())
    assert min(right[2:]) > source + 0.2
    assert float(adapter.statistics.alpha) > 0.5


@pytest.mark.parametrize("network", ["wide_resnet", "segmentation"])
def test_only_the_first_batch_is_tried(network, monkeypatch):
    adapter, passes = dp.tent(build(network), statistics="auto", guard=(), novelty="adapted_energy"), []
    forward = type(adapter.network).forward
    monkeypatch.setattr(type(adapter.network), "forward", lambda *args: passes.append(args[0]) or forward(*args))
    run(adapter, batches(3, size=4))
    assert passes == 4 * [adapter.network]


def test_share_of_label_maps_is_at_its_cap():
    adapter = dp.tent(build("segmentation"), statistics=Auto(window=2))
    for images in batches(3, size=2):
        assert adapter(4 * images + 1).isfinite().all()
        assert torch.equal(adapter.statistics.alpha, adapter.statistics.cap)
        assert adapter.last.stepped == (adapter.statistics.cap > 0.35 * 0.6), "only a shift is learned from"
    assert adapter.last.stepped


def test_reset_and_saving_midway_continue_bit_equal(trained, dim, tmp_path):
    stream = dim[0].split(40)
    adapter = dp.adapt(trained[0])
    answers, _ = run(adapter, stream)
    run(adapter.reset(), stream[:4])
    adapter.save(tmp_path / "state")
    other = dp.adapt(trained[0]).load(tmp_path / "state")
    assert same_state(state_of(adapter), state_of(other))
    for answer, images in zip(answers[4:], stream[4:], strict=True):
        assert torch.equal(other(images), answer)


@pytest.mark.parametrize("accumulate", [1, "auto"])
def test_static_steps_equal_eager_ones(accumulate):
    options = {"statistics": Auto(window=8), "accumulate": accumulate, "mean_entropy_over": "auto", "lr": 1e-2}
    eager, static = (make_adapter("tent+crowd", engine=engine, **options) for engine in (EagerEngine, StaticEngine))
    assert_same(run(eager, faulty_stream()), run(static, faulty_stream()))
    assert same_state(state_of(eager), state_of(static))


# --- the one call -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "size", "count", "contrast"),
    [
        pytest.param(order, *sizes, contrast, marks=() if (one + two + three) % 2 else pytest.mark.slow)
        for one, order in enumerate(("mixed", "sorted"))
        for two, sizes in enumerate(((64, 384), (4, 96), (1, 40)))
        for three, contrast in enumerate((1.0, 0.6))
    ],
)
def test_adapt_ends_at_most_one_point_below_the_source(trained, order, size, count, contrast):
    model, images, labels = trained
    images, labels = contrast * images[:count] + (1 - contrast) / 2, labels[:count]
    if order == "sorted":
        by_class = labels.argsort(stable=True)
        images, labels = images[by_class], labels[by_class]
    adapter = dp.adapt(model)
    with torch.no_grad():
        source = (model(images).argmax(1) == labels).float().mean()
    answers = torch.cat([adapter(batch) for batch in images.split(size)])
    assert float((answers.argmax(1) == labels).float().mean()) >= float(source) - 0.01


@pytest.mark.parametrize("lr", [pytest.param(0.05, marks=pytest.mark.slow), 0.1])
def test_adapt_with_a_far_too_high_rate_ends_near_the_source(trained, lr):
    """Classes that the network has come to avoid come back: the mean prediction is that of all samples."""
    model, images, labels = trained
    images, labels = corrupt((255 * images[:500]).round().byte(), "gaussian_blur", 5).float() / 255, labels[:500]
    adapter = dp.adapt(model, lr=lr)
    for _ in range(5):
        run(adapter, images.split(100))
    answers = torch.cat([adapter(batch) for batch in 2 * images.split(100)])
    with torch.no_grad():
        source = float((model(images).argmax(1) == labels).float().mean())
    assert float((answers.argmax(1) == labels.repeat(2)).float().mean()) > source - 0.02


@pytest.mark.parametrize("network", ["attention", "group_norm"])
def test_adapt_without_batch_norm_answers_with_both_networks_and_stays_near_the_source(network):
    model, compared = build(network).eval(), 0
    adapter = dp.adapt(model)
    for images in batches(60, size=64):
        with torch.no_grad():
            opinions = [net(images).log_softmax(dim=1) for net in (adapter.unwrap(), model)]
        answer = adapter(images).log_softmax(1)
        if adapter.last.stepped:  # else the frozen network answers alone
            torch.testing.assert_close(answer, torch.stack(opinions).mean(0).log_softmax(1))
            compared += 1
    assert compared > 30
    moved = [(a - b).abs().max() for a, b in zip(adapter.unwrap().parameters(), model.parameters(), strict=True)]
    assert 0 < max(moved) < 1.5 * 1e-4 / 1e-2, "a step goes as far as the pull brings back"
    assert "ensemble" not in str(dp.adapt(model, output="before")), "what the caller says counts"


@pytest.mark.slow
def test_adapt_leaves_a_small_transformer_within_one_point_of_the_source(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    garments, benchmark = load_garments(), importlib.import_module("layer_norm")
    network = benchmark.train(garments, 8)
    (source,) = benchmark.measure(dp.source(network), garments, 1, unknown=False)
    rounds = benchmark.measure(dp.adapt(network), garments, 4, unknown=False)
    assert max(row["error"] for row in rounds) <= source["error"] + 1.0


@pytest.mark.parametrize("settings", [{"share": -0.1}, {"share": 1.1}, {"window": 0}, {"least_cap": 1.5}])
def test_invalid_setting_raises(settings):
    with pytest.raises(dp.errors.ConfigurationError, match="Expected `"):
        Auto(**settings)


def test_unknown_name_of_statistics_raises():
    with pytest.raises(dp.errors.ConfigurationError, match="Expected `statistics` to be one of auto, but got 'batch'"):
        dp.tent(build("wide_resnet"), statistics="batch")
