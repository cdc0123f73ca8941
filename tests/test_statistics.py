"""Normalization statistics against a plain, differentiable reference."""

import copy

import pytest
import torch
from torch import nn

import driftproof as dp
from cases import adapter_for, batches, shifted, source_data
from driftproof.network import Network
from driftproof.norms import BatchNorm
from driftproof.statistics import TTN, Batch, Blend, Source, WindowedBlend
from networks import NORM_NETWORKS, ActivatedNorm, SegmentationNet, WideResNet, randomize


class SlowBlendNorm(nn.Module):
    """Blended batch norm written out, with autograd doing all the work."""

    def __init__(self, norm, alpha, momentum=None):
        super().__init__()
        self.norm, self.alpha, self.momentum, self.history = norm, alpha, momentum, None

    def forward(self, x):
        norm, alpha = self.norm, self.alpha
        axes = [axis for axis in range(x.ndim) if axis != 1]
        view = (1, -1, *[1] * (x.ndim - 2))
        mean, variance = x.mean(axes), x.var(axes, correction=0)
        if self.momentum is not None:
            if self.history is not None:
                mean = (1 - self.momentum) * self.history[0] + self.momentum * mean
                variance = (1 - self.momentum) * self.history[1] + self.momentum * variance
            self.history = mean.detach(), variance.detach()
        used_mean = alpha * mean + (1 - alpha) * norm.running_mean
        used_variance = (
            alpha * variance + (1 - alpha) * norm.running_var + alpha * (1 - alpha) * (mean - norm.running_mean) ** 2
        )
        y = (x - used_mean.view(view)) / torch.sqrt(used_variance.view(view) + norm.eps)
        y = y * norm.weight.view(view) + norm.bias.view(view)
        return torch.relu(y) if isinstance(norm, ActivatedNorm) else y


def slow_copy(model, alpha, momentum=None):
    copied = copy.deepcopy(model).double()
    for name, module in list(copied.named_modules()):
        if isinstance(module, BatchNorm):
            parent, _, leaf = name.rpartition(".")
            setattr(copied.get_submodule(parent), leaf, SlowBlendNorm(module, alpha, momentum))
    return copied.eval()


BATCH_NORMED = ("batch_norm_1d", "batch_norm_2d", "batch_norm_3d", "sync_batch_norm", "activated_norm")


@pytest.mark.parametrize("momentum", [None, 0.3])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("norm", BATCH_NORMED)
def test_blend_values_and_gradients(norm, alpha, momentum):
    construct, shape = NORM_NETWORKS[norm]
    model = randomize(construct(), shape)
    slow = slow_copy(model, alpha, momentum)
    network = Network(model.double(), Blend(alpha, momentum))
    for images in batches(3, shape=shape):
        ours_in, theirs_in = images.double().requires_grad_(), images.double().requires_grad_()
        ours, theirs = network(ours_in), slow(theirs_in)
        torch.testing.assert_close(ours, theirs)
        ours_weights, theirs_weights = list(network.parameters()), list(slow.parameters())
        objective = torch.randn_like(ours)
        ours_gradient = torch.autograd.grad((ours * objective).sum(), [ours_in, *ours_weights])
        theirs_gradient = torch.autograd.grad((theirs * objective).sum(), [theirs_in, *theirs_weights])
        for one, other in zip(ours_gradient, theirs_gradient, strict=True):
            torch.testing.assert_close(one, other)
        network.commit()


def assert_same_answer_and_gradients(network, slow, images):
    """Compare a network with its reference, whose answer is returned."""
    ours, theirs = network(images), slow(images)
    torch.testing.assert_close(ours, theirs)
    ours_gradient = torch.autograd.grad(ours.softmax(1)[:, 0].sum(), list(network.parameters()))
    theirs_gradient = torch.autograd.grad(theirs.softmax(1)[:, 0].sum(), list(slow.parameters()))
    for one, other in zip(ours_gradient, theirs_gradient, strict=True):
        torch.testing.assert_close(one, other)
    return theirs.detach()


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_blend_through_a_deep_network(alpha):
    model = randomize(WideResNet())
    slow = slow_copy(model, alpha)
    network = Network(model.double(), Blend(alpha))
    images = batches(1)[0].double()
    assert_same_answer_and_gradients(network, slow, images)


@pytest.mark.parametrize("construct", [WideResNet, SegmentationNet])
def test_blend_with_share_zero_or_one_is_source_or_batch(construct):
    model = randomize(construct())
    for alpha, rule in ((0.0, Source()), (1.0, Batch())):
        blended = dp.Adapter(model, scope=dp.scopes.nothing(), statistics=Blend(alpha))
        exact = dp.Adapter(model, scope=dp.scopes.nothing(), statistics=rule)
        for images in batches(2):
            torch.testing.assert_close(blended(images), exact(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shares", [(0.1, 0.6), (0.5, 0.0)])
def test_shares_that_change_with_depth(shares):
    """Of every layer by hand: values, gradients, and an ordinary model with the same statistics."""
    model = randomize(WideResNet())
    slow = slow_copy(model, 0.0)
    layers = [module for module in slow.modules() if isinstance(module, SlowBlendNorm)]
    assert len(layers) > 3
    for layer, alpha in zip(layers, torch.linspace(*shares, len(layers), dtype=torch.double), strict=True):
        layer.alpha = float(alpha)
    images, rule = batches(1)[0].double(), WindowedBlend(shares, window=1)
    network = Network(copy.deepcopy(model).double(), rule)
    network.reset_statistics()
    theirs = assert_same_answer_and_gradients(network, slow, images)
    adapter = dp.Adapter(model.double(), scope=dp.scopes.nothing(), statistics=rule)
    torch.testing.assert_close(adapter(images), theirs)
    with torch.no_grad():
        torch.testing.assert_close(adapter.unwrap(statistics=images)(images), theirs)


def test_pair_of_equal_shares_is_bit_equal_to_the_number():
    model = randomize(WideResNet())
    adapters = [dp.tent(model, statistics=WindowedBlend(share)) for share in (0.3, (0.3, 0.3))]
    for images in batches(4):
        ours, theirs = (adapter(images) for adapter in adapters)
        assert torch.equal(ours, theirs)


def test_shares_follow_the_network_that_uses_them():
    """Also where one rule has been that of a deeper network; a single layer has the first share."""
    rule = WindowedBlend((0.2, 0.6))
    for channels in ([3] * 5, [3] * 3, [3]):
        Network(nn.Sequential(*map(nn.BatchNorm2d, channels)), rule)
        shares = [rule.alpha_for(index) for index in range(len(channels))]
        expected = torch.linspace(0.2, 0.6, len(channels), dtype=torch.double).tolist()
        assert shares == pytest.approx(expected)


def test_batch_statistics_equal_training_mode():
    model = randomize(WideResNet())
    images = batches(1)[0]
    ours = dp.bn_adapt(model)(images)
    with torch.no_grad():
        assert torch.equal(ours, model.train()(images))


def test_source_statistics_do_not_depend_on_the_rest_of_the_batch():
    adapter = dp.source(randomize(WideResNet()))
    first, second = batches(2)
    torch.testing.assert_close(adapter(torch.cat([first, second]))[: len(first)], adapter(first))


@pytest.mark.parametrize("rule", [Batch(), Blend(0.5), Blend(1.0, momentum=0.5)])
def test_one_value_per_channel_falls_back_to_source_statistics(rule):
    construct, shape = NORM_NETWORKS["batch_norm_1d"]
    model = randomize(construct(), shape).eval()
    adapter = dp.Adapter(model, scope=dp.scopes.nothing(), statistics=rule)
    image = batches(1, size=1, shape=shape)[0]
    with torch.no_grad():
        assert torch.equal(adapter(image), model(image))


def test_failed_pass_leaves_the_model_its_own_statistics():
    model = randomize(WideResNet())

    def fail(*_):
        raise RuntimeError("in the middle")

    adapter = dp.bn_adapt(model)
    handle = adapter.network.model.fc.register_forward_pre_hook(fail)
    with pytest.raises(dp.errors.ForwardError, match="in the middle"):
        adapter(batches(1)[0])
    handle.remove()
    for name, buffer in adapter.network.model.named_buffers():
        assert torch.equal(buffer, model.get_buffer(name))


def test_running_statistics_are_per_network_and_ignore_a_nan_batch():
    model = randomize(WideResNet())
    adapter = dp.tent(model, lr=0.0, select=dp.ConfidenceDifference(), statistics=Blend(0.8, momentum=0.2))
    first, second, third = batches(3)
    adapter(first), adapter(second)
    means = [rule.mean.clone() for rule in adapter.network.hooks]
    adapter(second * float("nan"))
    assert adapter.last.skipped
    for rule, other, mean in zip(adapter.network.hooks, adapter.source.hooks, means, strict=True):
        assert torch.equal(rule.mean, mean)
        torch.testing.assert_close(rule.mean, other.mean)
        assert rule.mean is not other.mean
    adapter(third)
    assert adapter.last.kept == 1.0


def test_running_statistics_of_a_teacher_ignore_a_nan_batch():
    model, (first, bad, *rest) = randomize(WideResNet()), batches(4)
    adapter, uninterrupted = (adapter_for("cotta", model, statistics=Blend(0.5, momentum=0.3)) for _ in range(2))
    adapter(first), uninterrupted(first)
    adapter(bad * float("nan"))
    assert adapter.last.skipped
    for images in rest:
        assert torch.equal(adapter(images), uninterrupted(images))
        assert adapter.last.stepped


def test_second_pass_over_a_batch_does_not_update_running_statistics():
    model = randomize(WideResNet())
    statistics = Blend(0.8, momentum=0.2)
    plain = dp.swr(model, lr=0.0, prototypes=False, statistics=statistics, augment=shifted).prepare(source_data())
    task = dp.regularizers.NearestPrototypes(epochs=0, augment=shifted)
    twice = dp.swr(model, lr=0.0, prototypes=task, statistics=statistics, augment=shifted).prepare(source_data())
    after = dp.tent(model, lr=0.0, output="after", statistics=statistics)
    for images in batches(3):
        plain(images), twice(images), after(images)
    for one, other, third in zip(plain.network.hooks, twice.network.hooks, after.network.hooks, strict=True):
        assert torch.equal(one.mean, other.mean)
        assert torch.equal(one.mean, third.mean)


def test_prediction_after_the_update_does_not_update_running_statistics_again():
    model, statistics = randomize(WideResNet()), Blend(0.8, momentum=0.2)
    before, after = (dp.tent(model, lr=0.0, statistics=statistics, output=output) for output in ("before", "after"))
    for images in batches(3):
        assert torch.equal(after(images), before(images))


def test_prepared_statistics_can_be_passed_to_another_adapter():
    model, source = randomize(WideResNet()), source_data()
    settings = {"prototypes": False, "augment": shifted}
    learned = TTN(momentum=0.1, prior_batches=2, epochs=1, batch_size=4, augment=shifted)
    first = dp.ttn(model, statistics=learned).prepare(source)
    first(batches(1)[0])  # what it has seen of its stream is its own
    own = dp.swr(model, statistics=learned, **settings).prepare(source)
    passed_on = dp.swr(model, statistics=first.statistics, **settings)
    assert passed_on.statistics.prepared
    assert not passed_on.prepared
    passed_on.prepare(source, missing_only=True)
    for images in batches(3):
        assert torch.equal(passed_on(images), own(images))


def test_prepare_again_starts_over_unless_missing_only():
    adapter = dp.ttn(
        randomize(WideResNet()), statistics=TTN(prior_batches=2, epochs=1, batch_size=4, augment=shifted)
    ).prepare(source_data())
    darker, before = [(images / 2, labels) for images, labels in source_data()], adapter.statistics.alphas
    kept = adapter.prepare(darker, missing_only=True).statistics.alphas
    assert all(one is other for one, other in zip(before, kept, strict=True))
    again = adapter.prepare(darker).statistics.alphas
    assert not all(torch.equal(one, other) for one, other in zip(before, again, strict=True))


def test_source_statistics_can_differ_for_the_frozen_network():
    model = randomize(WideResNet())
    images = batches(1)[0]
    outputs = []
    adapter = dp.tent(model, select=dp.ConfidenceDifference(), source_statistics=Source())
    adapter.source.register_forward_hook(lambda _, __, output: outputs.append(output))
    adapter(images)
    with torch.no_grad():
        assert torch.equal(outputs[0], model.eval()(images))


def test_blend_needs_source_statistics():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(), nn.LazyLinear(3)
    )
    model(torch.rand(2, 3, 4, 4))
    with pytest.raises(dp.errors.ModelError, match=r"`1`.*running statistics"):
        dp.tent(model, statistics=Blend(0.5))
    assert dp.tent(model)(torch.rand(2, 3, 4, 4)).isfinite().all()


@pytest.mark.parametrize(
    "construct",
    [
        lambda: Blend(1.2),
        lambda: Blend(0.5, 0.0),
        lambda: TTN(prior_batches=0),
        lambda: TTN(momentum=2.0),
        lambda: Blend(0.5, start="zero"),
        lambda: Batch(of=dp.losses.Entropy()),
        lambda: WindowedBlend(1.2),
        lambda: WindowedBlend(0.3, window=0),
    ],
)
def test_invalid_hyper_parameters_are_refused(construct):
    with pytest.raises(dp.errors.ConfigurationError, match="Expected"):
        construct()


def test_ttn_prior_is_the_squared_disagreement_of_gradient_signs():
    model = randomize(WideResNet())
    source = source_data()
    adapter = dp.ttn(model, statistics=TTN(prior_batches=3, epochs=0, batch_size=8, augment=shifted)).prepare(source)

    reference = model.eval()
    layers = [module for module in reference.modules() if isinstance(module, nn.BatchNorm2d)]
    parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
    generator = torch.Generator().manual_seed(0)
    agreement = [torch.zeros_like(parameter) for parameter in parameters]
    for images, labels in [*source, source[0]]:
        signs = []
        for view in (images, shifted(images, generator)):
            loss = nn.functional.cross_entropy(reference(view), labels)
            signs.append([gradient.sign() for gradient in torch.autograd.grad(loss, parameters)])
        agreement = [total + one * other for total, one, other in zip(agreement, *signs, strict=True)]
    every = torch.cat(agreement)
    scaled = [(total - every.min()) / (every.max() - every.min()) for total in agreement]
    for index, alpha in enumerate(adapter.statistics.alphas):
        expected = (1 - 0.5 * (scaled[2 * index] + scaled[2 * index + 1])) ** 2
        torch.testing.assert_close(alpha, expected)


def test_ttn_training_lowers_the_loss_and_keeps_alpha_in_range():
    model = randomize(WideResNet())
    source = source_data()

    def loss_with(epochs):
        rule = TTN(prior_batches=2, epochs=epochs, lr=0.05, prior_weight=0.0, batch_size=16, augment=lambda x, _: x)
        adapter = dp.ttn(model, statistics=rule).prepare(source)
        assert all(((alpha >= 0) & (alpha <= 1)).all() for alpha in adapter.statistics.alphas)
        images, labels = (torch.cat(side) for side in zip(*source, strict=True))
        return float(nn.functional.cross_entropy(adapter(images), labels))

    assert loss_with(20) < loss_with(0)


def test_ttn_prior_weight_holds_alpha_at_its_prior():
    model = randomize(WideResNet())

    def alphas(epochs, prior_weight):
        rule = TTN(prior_batches=2, epochs=epochs, prior_weight=prior_weight, batch_size=8, augment=shifted)
        return torch.cat(dp.ttn(model, statistics=rule).prepare(source_data()).statistics.alphas)

    prior = alphas(0, 0.0)
    assert (alphas(10, 1e4) - prior).abs().mean() < (alphas(10, 0.0) - prior).abs().mean()


def test_ttn_is_a_statistics_rule_for_any_method():
    rule = TTN(momentum=0.1, prior_batches=1, epochs=0, batch_size=8, augment=shifted)
    adapter = dp.tent(randomize(WideResNet()), select=dp.ConfidenceDifference(), statistics=rule)
    with pytest.raises(dp.errors.NotPreparedError, match="TTN"):
        adapter(batches(1)[0])
    adapter.prepare(source_data())
    adapter(batches(1)[0])
    assert adapter.last.kept == 1.0


def test_ttn_without_affine_parameters_is_refused():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.Linear(256, 5))
    with pytest.raises(dp.errors.ModelError, match="`1`"):
        dp.ttn(model).prepare(source_data())


def test_ttn_without_batch_norm_is_the_model_itself():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    images = batches(1)[0]
    adapter = dp.ttn(model).prepare(source_data())
    with torch.no_grad():
        assert torch.equal(adapter(images), model(images))
