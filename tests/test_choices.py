"""Each choice of an adapter at settings where it equals another one, or a step written out by hand."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

import driftproof as dp
from cases import batches
from driftproof.after import PullToSource, ResetEvery, ResetWhen, StochasticRestore
from driftproof.gradients import Clipped, Plain, SharpnessAware
from driftproof.losses import Entropy
from driftproof.memories import LatestImages, Memory
from driftproof.network import Network
from driftproof.norms import BatchNorm
from driftproof.outputs import BeforeUpdate, Ensemble, Output
from driftproof.selection import SampleWeights, Selection
from driftproof.statistics import Batch, Blend, Source
from networks import NORM_NETWORKS, ActivatedNorm, build, randomize

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAM = partial(torch.optim.Adam, lr=0.01)


@pytest.fixture(scope="module")
def model():
    return build("wide_resnet")


def make(model, **choices):
    options = {"scope": dp.scopes.norm_affine(), "statistics": Batch(), "loss": Entropy(), "optimizer": SGD}
    return dp.Adapter(model, **(options | choices))


def state_of(adapter):
    """Weights and optimizer state, by name."""
    saved = adapter.state_dict()
    return {name: tensor for name, tensor in saved.items() if name.startswith(("model.", "optimizer."))}


def assert_same_state(adapter, other):
    ours, theirs = state_of(adapter), state_of(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def at_source(adapter):
    pairs = zip(adapter.state.trainable, adapter.state.source_parameters, strict=True)
    return all(torch.equal(now, start) for now, start in pairs)


class Weights(Selection):
    """Fixed weights for the first samples of every batch; the others get the last weight."""

    def __init__(self, attract, repel=None):
        super().__init__()
        self.attract, self.repel = attract, repel

    def weights(self, step):
        attract, repel = (self._expand(given, step) for given in (self.attract, self.repel))
        return attract if repel is None else SampleWeights(attract, repel)

    def _expand(self, given, step):
        if given is None:
            return None
        padded = [*given, *[given[-1]] * len(step.images)][: len(step.images)]
        return torch.tensor(padded).to(step.weights).view(-1, *[1] * (step.weights.ndim - 1)).expand_as(step.weights)


class ThisBatch(Memory):
    def __init__(self):
        super().__init__()
        self.register_buffer("batch", None)

    def update(self, step):
        self.batch = step.images

    def images(self):
        return self.batch


# --- choices that change nothing --------------------------------------------------------------------------------------

NEUTRAL = {
    "plain_gradient": {"gradient": Plain()},
    "sharpness_zero": {"gradient": SharpnessAware(0.0)},
    "huge_max_norm": {"gradient": Clipped(1e9)},
    "pull_zero": {"after": PullToSource(0.0)},
    "restore_zero": {"after": StochasticRestore(0.0)},
    "never_reset": {"after": ResetWhen(lambda step: step.logits.new_ones(()), threshold=0.5)},
    "all_of_these": {"after": [PullToSource(0.0), StochasticRestore(0.0), ResetEvery(99)], "gradient": Clipped(1e9)},
    "memory_of_this_batch": {"memory": ThisBatch()},
    "memory_of_batch_size": {"memory": LatestImages(6)},
    "repel_zero": {"select": Weights([1.0], [0.0])},
    "teacher_unread": {"teacher": dp.EMA(0.5)},
    "output_component": {"output": BeforeUpdate()},
}


# On label maps, those that read samples one by one or change what the loss is of.
@pytest.mark.parametrize(
    ("choice", "network"),
    [
        *((choice, "wide_resnet") for choice in NEUTRAL),
        *((choice, "segmentation") for choice in ("all_of_these", "memory_of_batch_size", "repel_zero")),
    ],
)
def test_neutral_choice_equals_none(choice, network):
    plain, chosen = make(build(network)), make(build(network), **NEUTRAL[choice])
    for images in batches(4):
        assert torch.equal(chosen(images), plain(images))
        assert_same_state(chosen, plain)
    assert not at_source(plain)


@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=["sgd", "adam"])
def test_constant_lr_schedule_equals_none(model, optimizer):
    constant = make(model, optimizer=optimizer, lr_schedule=lambda steps: torch.ones_like(steps, dtype=torch.float32))
    plain = make(model, optimizer=optimizer)
    for images in batches(4):
        torch.testing.assert_close(constant(images), plain(images), rtol=1e-4, atol=1e-5)


def test_lr_schedule_is_a_factor_that_follows_the_steps_taken(model):
    stopping = make(model, optimizer=partial(torch.optim.SGD, lr=0.1), lr_schedule=lambda steps: (steps < 2).float())
    plain = make(model, optimizer=partial(torch.optim.SGD, lr=0.1))
    first, second, third, fourth = batches(4)
    stopping(first), stopping(second * torch.nan), stopping(second)
    plain(first), plain(second)
    stopping(third), stopping(fourth)
    for ours, theirs in zip(stopping.state.trainable, plain.state.trainable, strict=True):
        torch.testing.assert_close(ours, theirs)


# --- gradient ---------------------------------------------------------------------------------------------------------


def reference(model):
    """The model as reference implementations set it up, in double precision, and its affine parameters."""
    student = copy.deepcopy(model).double().train()
    return student, [p for m in student.modules() if isinstance(m, nn.BatchNorm2d) for p in (m.weight, m.bias)]


def entropy(logits):
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def step_by_hand(model, images, loss_of, lr=0.1):
    """The affine parameters after one step of plain SGD."""
    student, parameters = reference(model)
    gradients = torch.autograd.grad(loss_of(student(images.double())), parameters)
    return [parameter - lr * gradient for parameter, gradient in zip(parameters, gradients, strict=True)]


def assert_step(model, images, expected, **choices):
    adapter = make(copy.deepcopy(model).double(), optimizer=partial(torch.optim.SGD, lr=0.1), **choices)
    adapter(images.double())
    for ours, theirs in zip(adapter.state.trainable, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_sharpness_aware_gradient_by_hand(model):
    images = batches(1)[0]
    student, parameters = reference(model)
    first = torch.autograd.grad(entropy(student(images.double())).mean(), parameters)
    norm = torch.cat([gradient.flatten() for gradient in first]).norm()
    start = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter, gradient in zip(parameters, first, strict=True):
            parameter.add_(0.5 * gradient / norm)
    second = torch.autograd.grad(entropy(student(images.double())).mean(), parameters)
    expected = [before - 0.1 * gradient for before, gradient in zip(start, second, strict=True)]
    assert_step(model, images, expected, gradient=SharpnessAware(0.5))


def test_clipped_gradient_by_hand(model):
    images = batches(1)[0]
    student, parameters = reference(model)
    entropy(student(images.double())).mean().backward()
    norm = nn.utils.clip_grad_norm_(parameters, 0.01)
    assert norm > 0.01
    assert_step(model, images, [p - 0.1 * p.grad for p in parameters], gradient=Clipped(0.01))


@pytest.mark.parametrize("average_over", ["selected", "batch"])
def test_repelling_weights_by_hand(model, average_over):
    images = batches(1)[0]
    count = len(images) if average_over == "batch" else None

    def minus_loss(logits):
        return -entropy(logits[:2]).sum() / (count or 2)

    def both(logits):
        values = entropy(logits)
        return 3 * values[2:].sum() / (count or 4) - 0.5 * values[1] / (count or 1)

    repel = Weights([0.0], [1.0, 1.0, 0.0])
    assert_step(model, images, step_by_hand(model, images, minus_loss), select=repel, average_over=average_over)
    mixed = Weights([0.0, 0.0, 3.0], [0.0, 0.5, 0.0])
    assert_step(model, images, step_by_hand(model, images, both), select=mixed, average_over=average_over)


def test_repelled_samples_alone_are_a_signal_but_not_selected(model):
    adapter = make(model, select=Weights([0.0], [1.0]))
    adapter(batches(1)[0])
    assert adapter.last.stepped
    assert adapter.last.kept == 0.0


# --- what follows a step ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [PullToSource(1.0), StochasticRestore(1.0)], ids=repr)
def test_full_restore_keeps_the_source_weights(model, after):
    adapter = make(model, after=after)
    for images in batches(3):
        adapter(images)
        assert adapter.last.stepped
        assert at_source(adapter)


def test_pull_to_source_goes_its_share_of_the_way(model):
    plain, pulled = make(model), make(model, after=PullToSource(0.25))
    plain(batches(1)[0]), pulled(batches(1)[0])
    tensors = (pulled.state.trainable, plain.state.trainable, plain.state.source_parameters)
    for ours, moved, start in zip(*tensors, strict=True):
        torch.testing.assert_close(ours, 0.75 * moved + 0.25 * start)


@pytest.mark.parametrize(
    ("after", "every", "optimizer"),
    [
        (ResetEvery(3), 3, SGD),
        (ResetEvery(3), 3, ADAM),
        (ResetEvery(1), 1, SGD),
        (ResetWhen(lambda step: step.logits.new_zeros(()), threshold=0.5), 1, ADAM),
    ],
    ids=["every_third-sgd", "every_third-adam", "every_one-sgd", "always_fires-adam"],
)
def test_reset_equals_a_fresh_adapter(model, optimizer, after, every):
    options = {"optimizer": optimizer, "select": dp.ConfidenceDifference(), "teacher": dp.EMA(0.5)}
    adapter, fresh = make(model, after=after, **options), None
    for number, images in enumerate(batches(7)):
        fresh = make(model, **options) if number % every == 0 else fresh
        assert torch.equal(adapter(images), fresh(images))
        assert adapter.last.kept == fresh.last.kept
        if (number + 1) % every:
            assert_same_state(adapter, fresh)
        else:
            assert at_source(adapter)
            assert all(not value.any() for name, value in state_of(adapter).items() if name.startswith("optimizer."))
            teacher = dict(adapter.state.teacher.model.named_parameters())
            assert all(torch.equal(one, model.get_parameter(name)) for name, one in teacher.items())


# --- memory -----------------------------------------------------------------------------------------------------------


def test_memory_holds_the_latest_images_and_fills_up_with_weight_zero(model):
    memory, (first, second) = LatestImages(9), batches(2)
    adapter = make(model)
    memory.update(adapter.state.make_step(first))
    assert torch.equal(memory.images()[3:], first)
    assert memory.weights(adapter.state.make_step(memory.images())).tolist() == [0.0] * 3 + [1.0] * 6
    memory.update(adapter.state.make_step(second))
    assert torch.equal(memory.images(), torch.cat([first[3:], second]))
    assert memory.weights(adapter.state.make_step(memory.images())).all()


def test_memory_of_two_batches_learns_from_both(model):
    model = copy.deepcopy(model).double()
    remembering, plain = make(model, memory=LatestImages(12)), make(model)
    first, second = (images.double() for images in batches(2))
    remembering(first)
    plain(first)
    output = remembering(second)
    with torch.no_grad():
        torch.testing.assert_close(output, plain.network(second))  # predicts the batch alone
    plain(torch.cat([first, second]))
    for ours, theirs in zip(remembering.state.trainable, plain.state.trainable, strict=True):
        torch.testing.assert_close(ours, theirs)


# --- output and teacher -----------------------------------------------------------------------------------------------


def test_teacher_without_momentum_is_the_adapting_network(model):
    taught, plain = make(model, teacher=dp.EMA(0.0), output="teacher"), make(model)
    for images in batches(4):
        assert torch.equal(taught(images), plain(images))


def test_teacher_with_full_momentum_is_the_source_network(model):
    taught, frozen = make(model, teacher=dp.EMA(1.0), output="teacher"), dp.bn_adapt(model)
    for images in batches(4):
        assert torch.equal(taught(images), frozen(images))
    assert not at_source(taught)


def test_teacher_is_the_moving_average_of_all_weights(model):
    adapter = make(model, teacher=dp.EMA(0.8))
    expected = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for images in batches(4):
        adapter(images)
        for name, parameter in adapter.network.model.named_parameters():
            expected[name] = 0.8 * expected[name] + 0.2 * parameter.detach()
    for name, parameter in adapter.state.teacher.model.named_parameters():
        torch.testing.assert_close(parameter, expected[name])


def test_ensemble_goes_from_the_adapting_to_the_source_network(model):
    plain, frozen = make(model), dp.bn_adapt(model)
    ensembles = [make(model, output=output) for output in (Ensemble(0.0), Ensemble(1.0), "ensemble")]
    for images in batches(3):
        ours, theirs = plain(images).log_softmax(1), frozen(images).log_softmax(1)
        for adapter, expected in zip(ensembles, (ours, theirs, (ours + theirs) / 2), strict=True):
            torch.testing.assert_close(adapter(images), expected)


class Shifted(Output):
    def predict(self, step):
        return step.logits + 1


def test_output_is_called_when_nothing_learns(model):
    shifted = dp.Adapter(model, scope=dp.scopes.nothing(), statistics=Source(), output=Shifted())
    images = batches(1)[0]
    assert torch.equal(shifted(images), dp.source(model)(images) + 1)


# --- statistics -------------------------------------------------------------------------------------------------------


class SlowNorm(nn.Module):
    """Batch norm written out: statistics of masked values, or running ones that start from the source."""

    def __init__(self, norm, mask=None, momentum=None):
        super().__init__()
        self.norm, self.mask, self.momentum = norm, mask, momentum
        self.history = norm.running_mean, norm.running_var

    def forward(self, x):
        values = x.transpose(0, 1).flatten(1)
        if self.mask is not None:
            places = self.mask if self.mask.ndim == x.ndim - 1 else self.mask.view(-1, *[1] * (x.ndim - 2))
            values = values[:, places.expand(x[:, 0].shape).flatten()]
        mean, variance = values.mean(1), values.var(1, correction=0)
        if self.momentum is not None:
            mean = (1 - self.momentum) * self.history[0] + self.momentum * mean
            variance = (1 - self.momentum) * self.history[1] + self.momentum * variance
            self.history = mean.detach(), variance.detach()
        view = (1, -1, *[1] * (x.ndim - 2))
        y = (x - mean.view(view)) / torch.sqrt(variance.view(view) + self.norm.eps)
        y = y * self.norm.weight.view(view) + self.norm.bias.view(view)
        return torch.relu(y) if isinstance(self.norm, ActivatedNorm) else y


def slow_copy(model, **options):
    copied = copy.deepcopy(model).double().eval()
    for name, module in list(copied.named_modules()):
        if isinstance(module, BatchNorm):
            parent, _, leaf = name.rpartition(".")
            setattr(copied.get_submodule(parent), leaf, SlowNorm(module, **options))
    return copied


def assert_same_pass(network, slow, images):
    """Compare outputs and the gradients of inputs and weights."""
    inputs, slow_inputs = images.double().requires_grad_(), images.double().requires_grad_()
    outputs, slow_outputs = network(inputs), slow(slow_inputs)
    torch.testing.assert_close(outputs, slow_outputs)
    objective = torch.randn_like(outputs)
    ours = torch.autograd.grad((outputs * objective).sum(), [inputs, *network.parameters()])
    theirs = torch.autograd.grad((slow_outputs * objective).sum(), [slow_inputs, *slow.parameters()])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


BATCH_NORMED = ("batch_norm_1d", "batch_norm_2d", "batch_norm_3d", "activated_norm")


@pytest.mark.parametrize("norm", BATCH_NORMED)
@pytest.mark.parametrize("rule", [Batch(), Blend(1.0)], ids=["batch", "blend"])
def test_statistics_of_half_the_samples_by_hand(norm, rule):
    construct, shape = NORM_NETWORKS[norm]
    model = randomize(construct(), shape)
    mask = torch.tensor([True, False, True, True, False, False])
    network = Network(copy.deepcopy(model).double(), rule)
    with network.statistics_of(mask):
        assert_same_pass(network, slow_copy(model, mask=mask), batches(1, shape=shape)[0])


def test_statistics_of_some_pixels_by_hand():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1))
    mask = torch.rand(6, 8, 8) < 0.3
    network = Network(copy.deepcopy(model).double(), Batch())
    with network.statistics_of(mask):
        assert_same_pass(network, slow_copy(model, mask=mask), batches(1)[0])


@pytest.mark.parametrize("network", ["wide_resnet", "segmentation"])
@pytest.mark.parametrize("weights", [1.0, 0.0], ids=["all", "nothing_selected"])
def test_statistics_of_all_samples_equal_those_of_the_batch(network, weights):
    model = build(network).double()
    subset, whole = make(model, statistics=Batch(of=Weights([weights]))), make(model)
    for images in batches(3):
        torch.testing.assert_close(subset(images.double()), whole(images.double()))
    for ours, theirs in zip(subset.state.trainable, whole.state.trainable, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_selected_statistics_reach_the_adapting_network_alone(model):
    adapter = make(copy.deepcopy(model).double(), statistics=Batch(of=Weights([1.0, 1.0, 1.0, 0.0])), output="ensemble")
    images = batches(1)[0].double()
    half = slow_copy(model, mask=torch.tensor([True, True, True, False, False, False]))
    with torch.no_grad():
        expected = (half(images).log_softmax(1) + model_with_batch_statistics(model, images).log_softmax(1)) / 2
    torch.testing.assert_close(adapter(images), expected)


def model_with_batch_statistics(model, images):
    return copy.deepcopy(model).double().train()(images)


def test_statistics_of_confident_source_predictions(model):
    rule = Batch(of=dp.ConfidenceAbove(0.5, network="source"))
    adapter = make(copy.deepcopy(model).double(), statistics=rule)
    images = batches(1)[0].double()
    with torch.no_grad():
        mask = model_with_batch_statistics(model, images).softmax(1).amax(1) >= 0.5
        assert 0 < mask.sum() < len(mask)
        torch.testing.assert_close(adapter(images), slow_copy(model, mask=mask)(images))


@pytest.mark.parametrize("rule", [Batch(), Blend(0.5)], ids=["batch", "blend"])
def test_layer_with_fewer_than_two_selected_values_takes_all(rule):
    """One value has no variance: a layer after image pooling would divide by next to nothing."""
    construct, shape = NORM_NETWORKS["batch_norm_1d"]
    model = randomize(construct(), shape).double()
    subset, whole = (Network(copy.deepcopy(model), rule) for _ in range(2))
    images = batches(1, shape=shape)[0].double()
    with subset.statistics_of(torch.tensor([False, True, False, False, False, False])):
        torch.testing.assert_close(subset(images), whole(images))
    with subset.statistics_of(torch.tensor([True])):
        torch.testing.assert_close(subset(images[:1]), model.eval()(images[:1]))


def test_position_counts_by_the_share_of_its_selected_pixels():
    model = nn.Sequential(nn.AvgPool2d(2), nn.BatchNorm2d(3)).double()
    network = Network(model, Batch())
    images, mask = torch.rand(2, 3, 4, 4).double(), torch.rand(2, 4, 4) < 0.5
    with network.statistics_of(mask):
        output = network(images)
    pooled = model[0](images).transpose(0, 1).flatten(1)
    weights = mask.view(2, 2, 2, 2, 2).double().mean(dim=(2, 4)).flatten()
    mean = (pooled * weights).sum(1) / weights.sum()
    variance = ((pooled - mean[:, None]) ** 2 * weights).sum(1) / weights.sum()
    expected = (pooled - mean[:, None]) / (variance[:, None] + 1e-5).sqrt()
    torch.testing.assert_close(output.transpose(0, 1).flatten(1), expected)


def test_selection_that_reads_the_adapting_network_cannot_choose_its_statistics(model):
    with pytest.raises(dp.errors.ConfigurationError, match='network="source"'):
        make(model, statistics=Batch(of=dp.ConfidenceAbove(0.5)))(batches(1)[0])


@pytest.mark.parametrize("norm", BATCH_NORMED)
def test_running_statistics_from_the_source_by_hand(norm):
    """As RoTTA's robust batch norm: normalize with the updated average, whose history is a constant."""
    construct, shape = NORM_NETWORKS[norm]
    model = randomize(construct(), shape)
    slow = slow_copy(model, momentum=0.3)
    network = Network(copy.deepcopy(model).double(), Blend(1.0, momentum=0.3, start="source"))
    network.reset_statistics()
    for images in batches(3, shape=shape):
        assert_same_pass(network, slow, images)
        network.commit()


class Features(Selection):
    needs_source_features = True

    def weights(self, step):
        FEATURES.append(step.source_features)
        return torch.ones_like(step.weights)


FEATURES = []


def test_source_features_are_the_frozen_models(model):
    expected, frozen = [], copy.deepcopy(model).train()
    frozen.fc.register_forward_pre_hook(lambda _, inputs: expected.append(inputs[0].detach()))
    adapter = make(model, select=Features())
    FEATURES.clear()
    for images in batches(3):
        adapter(images)
        frozen(images)
    assert not at_source(adapter)
    for ours, theirs in zip(FEATURES, expected, strict=True):
        assert not ours.requires_grad
        torch.testing.assert_close(ours, theirs)
