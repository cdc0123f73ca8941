"""Statistics that choose their own share: against a slow reference, and on digits in every order and batch size."""

import math

import pytest
import torch
import torch.nn.functional as F

import driftproof as dp
from cases import batches, same_state, state_of
from driftproof.adapter.engines import EagerEngine, StaticEngine
from driftproof.distributed import Distributed
from driftproof.statistics import Auto
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
        self.misfit = 0.0
        self.running = [(norm.running_mean.double(), norm.running_var.double()) for _, norm, _ in self.blocks]

    def predict(self, x, alpha):
        """The logits for a batch, and the cap relative to the share."""
        x, shifts, worse, share = x.double(), [], [], min(1.0, len(x) / self.window)
        for layer, (conv, norm, _) in enumerate(self.blocks):
            x = F.conv2d(x, conv.weight.double(), stride=conv.stride, padding=1)
            old, batch = self.running[layer], (x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0))
            mean, variance = ((1 - share) * before + share * now for before, now in zip(old, batch, strict=True))
            self.running[layer] = mean, variance
            source_mean, source_variance = source = norm.running_mean.double(), norm.running_var.double()
            shifts.append(divergence(mean, variance, *source))
            worse.append((1 - share) ** 2 * (divergence(*batch, *old) - divergence(*batch, *source)))
            used_mean = alpha * mean + (1 - alpha) * source_mean
            between = alpha * (1 - alpha) * (mean - source_mean) ** 2
            used_variance = alpha * variance + (1 - alpha) * source_variance + between
            x = F.batch_norm(x, used_mean, used_variance, norm.weight.double(), norm.bias.double(), eps=norm.eps).relu()
        weight = min(1.0, len(x) / 16)
        self.misfit = (1 - weight) * self.misfit + weight * sum(worse) / len(worse)
        shift, fit = sum(shifts) / len(shifts), min(1.0, max(0.0, 1 - self.misfit / 0.02))
        return F.linear(x.mean((2, 3)), self.head.weight.double(), self.head.bias.double()), fit * shift**2 / (
            shift**2 + 0.03**2
        )


def divergence(mean, variance, other_mean, other_variance):
    """KL of two normal distributions by torch, averaged over channels."""
    pair = [
        torch.distributions.Normal(m, v.clamp(min=1e-5).sqrt())
        for m, v in ((mean, variance), (other_mean, other_variance))
    ]
    return torch.distributions.kl_divergence(*pair).mean()


class RecordingAuto(Auto):
    """Remembers the share with which a batch was answered."""

    used, probed = 0.0, False

    def on_batch(self, step):
        self.used, self.probed = float(self.alpha), False
        super().on_batch(step)

    def judge_probe(self, logits, distributed):
        answer = super().judge_probe(logits, distributed)
        self.used = 0.0 if torch.equal(answer, logits.trained) else self.used
        self.probed = any(torch.equal(answer, probed) for probed in logits.probed)
        return answer


@pytest.mark.parametrize("size", [1, 4, 48])
@torch.no_grad()
def test_answers_and_cap_equal_a_slow_reference(trained, size):
    """Also batches of one: they are normalized with running statistics, which remember 32 images."""
    model, images, _ = trained
    adapter, slow = predict_only(model, RecordingAuto(share=0.9, window=32)), SlowAuto(model, window=32)
    assert float(adapter.statistics.alpha) == pytest.approx(0.05)
    shares = []
    dark = (0.6 * images + 0.3).split(size)[:96]
    for batch in (*dark, *(1.2 * images - 0.2).split(size)[:32]):  # running statistics are those of another domain then
        answer = adapter(batch).double()
        shares.append(adapter.statistics.used)
        expected, cap = slow.predict(batch, shares[-1])
        if (
            not adapter.statistics.probed
        ):  # such an answer is of a pass over what has entered running statistics already
            torch.testing.assert_close(answer, expected, rtol=1e-3, atol=1e-3)
        assert float(adapter.statistics.cap) == pytest.approx(0.9 * float(cap), rel=2e-3, abs=1e-4)
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


@pytest.mark.parametrize("size", [64, 200])
def test_share_waits_after_the_mean_prediction_jumped(size):
    statistics, uniform, one_class = dp.statistics.Auto(), torch.full((10,), 0.1), torch.eye(10)[3]
    for mean in (uniform, uniform, one_class):
        statistics.doubts = torch.full((6,), 10.0)  # not at the start of a stream
        statistics._measure_balance(mean, size)
    excess = 0.9 - 0.1 - math.sqrt(10 / (math.pi * size))
    waits = 0
    while statistics.moved > 0:
        statistics._measure_balance(one_class, size)
        waits += 1
    assert waits == math.ceil(excess / 0.03)


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
    # Two of the classes are surer with their own statistics, which a probe takes for a shift.
    assert sum(shares) / len(shares) < (0.3 if size > 1 else 0.1)


def test_a_batch_that_its_probe_doubts_is_answered_with_the_statistics_of_training(trained, dim):
    adapter, source = predict_only(trained[0], "auto"), dp.source(trained[0])
    adapter(dim[0][:200])
    adapter.statistics.alpha.fill_(0.6)
    torch.testing.assert_close(adapter(dim[1][:80]), source(dim[1][:80]), rtol=1e-4, atol=1e-4)
    assert float(adapter.statistics.alpha) == 0


@pytest.mark.parametrize("size", [4, 16])
def test_statistics_of_another_domain_lose_their_share(trained, size):
    """The next domain is closer to training than to the domain before."""
    model, images, _ = trained
    adapter = predict_only(model, Auto(window=64))
    for batch in (2 * images[:256] - 0.5).split(size):
        adapter(batch)
        assert float(adapter.statistics.misfit) <= 0, "running statistics are the better ones"
    adapter.statistics.alpha.copy_(adapter.statistics.cap)
    before, misfits = float(adapter.statistics.cap), []
    for batch in images[256:288].split(size):
        adapter(batch)
        misfits.append(float(adapter.statistics.misfit))
    assert max(misfits) > 0.02
    assert float(adapter.statistics.cap) < 0.1 * before
    assert float(adapter.statistics.alpha) <= float(adapter.statistics.cap)


@pytest.mark.parametrize("network", ["wide_resnet", "segmentation"])
def test_only_the_first_batch_is_tried(network, monkeypatch):
    adapter, passes = dp.tent(build(network), statistics="auto", guard=()), []
    forward = type(adapter.network).forward
    monkeypatch.setattr(type(adapter.network), "forward", lambda *args: passes.append(args[0]) or forward(*args))
    run(adapter, batches(3, size=4))
    assert passes == 4 * [adapter.network]


def test_share_of_label_maps_is_at_its_cap():
    adapter = dp.tent(build("segmentation"), statistics=Auto(window=2))
    for images in batches(3, size=2):
        assert adapter(4 * images + 1).isfinite().all()
        assert torch.equal(adapter.statistics.alpha, adapter.statistics.cap)
        assert adapter.last.stepped == (adapter.statistics.cap > 0.25 * 0.6), "only a shift is learned from"
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
    options = {"statistics": Auto(window=8), "accumulate": accumulate, "lr": 1e-2}
    eager, static = (make_adapter("tent+crowd", engine=engine, **options) for engine in (EagerEngine, StaticEngine))
    assert_same(run(eager, faulty_stream()), run(static, faulty_stream()))
    assert same_state(state_of(eager), state_of(static))


# --- the one call -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contrast", [1.0, 0.6])
@pytest.mark.parametrize(
    ("order", "size", "count"),
    [
        ("mixed", 64, 384),
        ("sorted", 64, 384),
        ("mixed", 4, 96),
        ("sorted", 4, 96),
        ("mixed", 1, 40),
        ("sorted", 1, 40),
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


@pytest.mark.parametrize("settings", [{"share": -0.1}, {"share": 1.1}, {"window": 0}])
def test_invalid_setting_raises(settings):
    with pytest.raises(dp.errors.ConfigurationError, match="Expected `"):
        Auto(**settings)


def test_unknown_name_of_statistics_raises():
    with pytest.raises(dp.errors.ConfigurationError, match="Expected `statistics` to be one of auto, but got 'batch'"):
        dp.tent(build("wide_resnet"), statistics="batch")
