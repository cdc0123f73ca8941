"""Regularizers against references written with loops over parameters."""

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import driftproof as dp
from cases import batches, shifted, source_data
from driftproof.after import StochasticRestore
from driftproof.components import Step
from driftproof.regularizers import Fisher, NearestPrototypes, Regularizer, ShiftAgnosticPenalty
from networks import CLASSES, SegmentationNet, WideResNet, randomize


@pytest.fixture
def model():
    return randomize(WideResNet())


def affine_of(model):
    return [p for module in model.modules() if isinstance(module, nn.BatchNorm2d) for p in (module.weight, module.bias)]


def test_fisher_is_the_mean_square_of_batch_gradients(model):
    source = source_data()
    adapter = dp.eata(model, fisher_batch_size=5, fisher_samples=14).prepare(source)
    images = torch.cat([images for images, _ in source])[:14]
    reference = copy.deepcopy(model).train()  # training mode: batch statistics
    squares = [torch.zeros_like(parameter) for parameter in affine_of(reference)]
    for batch in images.split(5):
        logits = reference(batch)
        loss = F.cross_entropy(logits, logits.argmax(1))
        gradients = torch.autograd.grad(loss, affine_of(reference))
        squares = [total + gradient**2 / 3 for total, gradient in zip(squares, gradients, strict=True)]
    torch.testing.assert_close(adapter.method.regularizer.importance, torch.cat([s.flatten() for s in squares]))


class StepStub:
    """A step with parameters alone, for penalties on parameters."""

    def __init__(self, parameters, starts=()):
        self.parameters, self.source_parameters = tuple(parameters), tuple(starts)


def test_fisher_penalty(model):
    adapter = dp.eata(model, fisher=3.0).prepare(source_data())
    start = [parameter.detach().clone() for parameter in adapter.trainable_parameters.values()]
    with torch.no_grad():
        for parameter in adapter.trainable_parameters.values():
            parameter.add_(torch.randn_like(parameter))
    fisher = adapter.method.regularizer
    weights = fisher.importance.split([p.numel() for p in start])
    expected = 0.0
    for weight, now, before in zip(weights, adapter.trainable_parameters.values(), start, strict=True):
        for f, a, b in zip(weight.tolist(), now.flatten().tolist(), before.flatten().tolist(), strict=True):
            expected += 3.0 * f * (a - b) ** 2
    assert fisher.penalty(StepStub(adapter.trainable_parameters.values())).item() == pytest.approx(expected, rel=1e-4)


def test_shift_agnostic_weights_are_squared_normalized_cosines(model):
    source = source_data()
    penalty = ShiftAgnosticPenalty(samples=12, batch_size=4, augment=shifted)
    adapter = dp.Adapter(
        model,
        scope=dp.scopes.everything(),
        statistics=dp.statistics.Batch(),
        loss=dp.losses.Entropy(),
        regularizer=penalty,
        optimizer=torch.optim.SGD,
    ).prepare(source)
    reference = copy.deepcopy(model).eval()
    parameters = list(reference.parameters())
    generator = torch.Generator().manual_seed(0)
    images, labels = (torch.cat(side)[:12] for side in zip(*source, strict=True))
    cosines = []
    for x, y in zip(images.split(4), labels.split(4), strict=True):
        one = torch.autograd.grad(F.cross_entropy(reference(x), y), parameters)
        other = torch.autograd.grad(F.cross_entropy(reference(shifted(x, generator)), y), parameters)
        cosines.append([float((a * b).sum() / (a.norm() * b.norm())) for a, b in zip(one, other, strict=True)])
    mean = torch.tensor(cosines).mean(0)
    expected = ((mean - mean.min()) / (mean.max() - mean.min())) ** 2
    torch.testing.assert_close(adapter.method.regularizer.tensor_weights, expected, rtol=1e-4, atol=1e-5)


class WithAuxiliaryHead(nn.Module):
    """A model with a head that was used in training only, as segmentation networks have."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.auxiliary = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, CLASSES, 1))

    def forward(self, x):
        return {"out": self.model(x), "aux": self.auxiliary(x)}


def test_tensors_without_gradient_do_not_scale_shift_agnostic_weights():
    model, source = randomize(SegmentationNet()), source_data(segmentation=True)
    settings = {"prototypes": False, "augment": shifted, "drift_batch_size": 4}
    plain = dp.swr(model, **settings).prepare(source)
    with_head = dp.swr(WithAuxiliaryHead(model), logits="out", **settings).prepare(source)
    weights = dict(
        zip(with_head.trainable_parameters, with_head.method.regularizer.tensor_weights.tolist(), strict=True)
    )
    assert [
        weights[f"model.{name}"] for name in plain.trainable_parameters
    ] == plain.method.regularizer.tensor_weights.tolist()
    assert all(weight == 0 for name, weight in weights.items() if name.startswith("auxiliary"))


def test_ttn_prepares_a_network_with_an_auxiliary_head():
    model, source = randomize(SegmentationNet()), source_data(segmentation=True)
    rule = dp.statistics.TTN(prior_batches=2, epochs=1, batch_size=4, augment=shifted)
    with_head = dp.ttn(WithAuxiliaryHead(model), statistics=rule, logits="out").prepare(source)
    assert all(((alpha >= 0) & (alpha <= 1)).all() for alpha in with_head.statistics.alphas)
    assert with_head(batches(1)[0]).isfinite().all()


@pytest.mark.parametrize("anchor", ["previous", "source"])
def test_shift_agnostic_penalty_and_its_anchor(anchor):
    penalty = ShiftAgnosticPenalty(2.0, anchor)
    penalty.tensor_weights = torch.tensor([0.25, 1.0])
    parameters = [torch.randn(2, 3), torch.randn(4)]
    penalty.reset_state(None, tuple(parameters))
    history = [[parameter.clone() for parameter in parameters]]
    for _ in range(3):
        start = history[0] if anchor == "source" else history[max(0, len(history) - 2)]
        step = StepStub(parameters)
        expected = sum(
            2.0 * weight * ((now - before) ** 2).sum()
            for weight, now, before in zip((0.25, 1.0), parameters, start, strict=True)
        )
        torch.testing.assert_close(penalty.penalty(step), expected)
        penalty.on_step(step)
        parameters = [parameter + torch.randn_like(parameter) for parameter in parameters]
        history.append([parameter.clone() for parameter in parameters])


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_stochastic_restore_returns_a_share_of_the_scalars(probability):
    start, now = torch.zeros(100, 100), torch.ones(100, 100)
    step = StepStub([now], [start])
    step.generator = torch.Generator().manual_seed(0)
    StochasticRestore(probability).after_step(step, None)
    assert float((now == 0).float().mean()) == pytest.approx(probability, abs=0.02)
    assert ((now == 0) | (now == 1)).all()


class Separable(nn.Module):
    """Features are the input's channel means; classes are its largest channel."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3, affine=False)
        self.fc = nn.Linear(3, 3)
        with torch.no_grad():
            self.fc.weight.copy_(4 * torch.eye(3))
            self.fc.bias.zero_()

    def forward(self, x):
        return self.fc(x.mean(dim=(2, 3)))


def separable_source(count=240):
    labels = torch.arange(count) % 3
    images = torch.rand(count, 3, 4, 4) * 0.3
    images[torch.arange(count), labels] += 0.6
    return [(images[i : i + 60], labels[i : i + 60]) for i in range(0, count, 60)]


def prototypes_on_separable(**options):
    task = NearestPrototypes(epochs=20, lr=1e-2, batch_size=40, dimensions=4, augment=shifted, **options)
    return dp.swr(Separable(), prototypes=task, augment=shifted).prepare(separable_source())


def test_prototypes_are_as_accurate_as_the_classifier():
    adapter = prototypes_on_separable()
    _, task = adapter.method.regularizer.components
    ours, theirs = task.source_accuracy.tolist()
    assert theirs == 1.0
    assert ours >= theirs - 0.01
    torch.testing.assert_close(task.prototypes.norm(dim=1), torch.ones(3))


def test_inaccurate_prototypes_are_logged(caplog):
    # A line has two directions, so one of three classes must share its prototype.
    task = NearestPrototypes(epochs=0, dimensions=1, augment=shifted)
    with caplog.at_level(logging.WARNING):
        dp.swr(Separable(), prototypes=task, augment=shifted).prepare(separable_source())
    assert "Nearest source prototypes are right on" in caplog.text


def step_with_features(adapter, images):
    networks = {"network": adapter.network, "source": adapter.source}
    return Step(images, **networks, parameters=(), source_parameters=(), needs_features=True)


def test_prototype_penalty_by_hand():
    adapter = prototypes_on_separable()
    _, task = adapter.method.regularizer.components
    images = torch.rand(5, 3, 4, 4)

    def log_pi(x):
        features = x.mean(dim=(2, 3))
        hidden = torch.relu(features @ task.hidden_weight.T + task.hidden_bias)
        projected = hidden @ task.output_weight.T + task.output_bias
        rows = []
        for row in projected:
            rows.append(torch.stack([row @ q / (row.norm() * q.norm()) / 0.1 for q in task.prototypes]))
        return torch.stack(rows).log_softmax(1)

    view = shifted(images, step_with_features(adapter, images).generator)
    pi, pi_view = log_pi(images), log_pi(view)
    entropy = -(pi.exp() * pi).sum(1).mean()
    mean = pi.exp().mean(0)
    expected = 0.8 * entropy + 0.25 * (mean * mean.log()).sum() - 0.1 * (pi.exp() * pi_view).sum(1).mean()
    torch.testing.assert_close(task.penalty(step_with_features(adapter, images)), expected)


def test_prototype_task_trains_the_encoder_only(model):
    task = NearestPrototypes(epochs=1, batch_size=8, augment=shifted)
    adapter = dp.swr(model, prototypes=task, augment=shifted).prepare(source_data())
    step = step_with_features(adapter, batches(1)[0])
    _, task = adapter.method.regularizer.components
    gradients = torch.autograd.grad(task.penalty(step), list(adapter.trainable_parameters.values()), allow_unused=True)
    reached = {
        name for name, gradient in zip(adapter.trainable_parameters, gradients, strict=True) if gradient is not None
    }
    assert reached == {name for name in adapter.trainable_parameters if not name.startswith("fc.")}


def test_prototypes_need_one_prediction_per_image():
    with pytest.raises(dp.errors.ModelError, match="linear layer"):
        dp.swr(SegmentationNet(), augment=shifted).prepare(source_data(segmentation=True))


def test_penalties_add_up():
    class Constant(Regularizer):
        def __init__(self, value):
            super().__init__()
            self.value = value

        def penalty(self, step):
            return None if self.value is None else torch.tensor(self.value)

    total = Constant(1.0) + (Constant(2.0) + Constant(None))
    assert len(list(total.components)) == 3
    assert total.penalty(None) == 3.0
    assert (Constant(None) + Constant(None)).penalty(None) is None
    assert repr(Constant(1.0) + Fisher()) == "Constant(value=1.0) + Fisher(weight=1.0, samples=2000, batch_size=200)"


@pytest.mark.parametrize(
    "construct",
    [
        lambda: Fisher(-1.0),
        lambda: ShiftAgnosticPenalty(-1.0),
        lambda: ShiftAgnosticPenalty(anchor="next"),
        lambda: StochasticRestore(2.0),
        lambda: NearestPrototypes(temperature=0.0),
    ],
)
def test_invalid_hyper_parameters_are_refused(construct):
    with pytest.raises(dp.errors.ConfigurationError, match="Expected"):
        construct()


def test_there_is_one_prototype_for_each_class_of_the_network(model):
    adapter = dp.swr(model, prototypes=NearestPrototypes(epochs=0, augment=shifted), augment=shifted)
    adapter.prepare(source_data())
    _, task = adapter.method.regularizer.components
    assert len(task.prototypes) == CLASSES
