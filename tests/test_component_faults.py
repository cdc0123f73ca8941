"""Components and choices that break the rules: each is refused by name, and the adapter's state stays what it was."""

from functools import partial

import pytest
import torch

import driftproof as dp
from cases import batches, same_state, state_of
from driftproof.adapter.engines import EagerEngine, StaticEngine
from networks import build


@pytest.fixture
def model():
    return build("wide_resnet")


def compose(model, **choices):
    defaults = {
        "scope": dp.scopes.norm_affine(),
        "statistics": dp.statistics.Batch(),
        "loss": dp.losses.Entropy(),
        "optimizer": partial(torch.optim.Adam, lr=1e-2),
    }
    return dp.Adapter(model, **(defaults | choices))


# --- components that raise --------------------------------------------------------------------------------------------


class RaisingLoss(dp.losses.Entropy):
    """Counts batches and steps; raises in the hook `fail_in`, after it has counted."""

    fail_in = None

    def __init__(self):
        super().__init__()
        self.register_buffer("batches", torch.zeros(()))
        self.register_buffer("steps", torch.zeros(()))

    def on_batch(self, step):
        self.batches = self.batches + 1
        self._fail("on_batch")

    def on_step(self, step):
        self.steps = self.steps + 1
        self._fail("on_step")

    def _fail(self, hook):
        if self.fail_in == hook:
            raise RuntimeError(f"{hook} failed")


class RaisingAfter(dp.after.After):
    """Doubles all parameters and counts; then raises if `fail_in` says so."""

    fail_in = None

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def after_step(self, step, state):
        if self.fail_in == "after_step":
            for parameter in step.parameters:
                parameter.mul_(2)
            self.count = self.count + 1
            raise RuntimeError("after_step failed")


class RaisingOutput(dp.outputs.Output):
    """Raises after the update if `fail_in` says so."""

    fail_in = None

    def predict(self, step):
        return step.logits

    def predict_after(self, step):
        if self.fail_in == "predict_after":
            raise RuntimeError("predict_after failed")
        return


# Every pair of a hook, an accumulation and an engine.
@pytest.mark.parametrize(
    ("hook", "accumulate", "engine"),
    [
        ("on_batch", 1, EagerEngine), ("on_batch", 2, StaticEngine),
        ("on_step", 1, StaticEngine), ("on_step", 2, EagerEngine),
        ("after_step", 1, EagerEngine), ("after_step", 2, StaticEngine),
        ("predict_after", 1, StaticEngine), ("predict_after", 2, EagerEngine),
    ],
)  # fmt: skip
def test_failing_component_leaves_the_whole_state_unchanged(model, hook, accumulate, engine):
    def make():
        adapter = compose(
            model,
            statistics=dp.statistics.Blend(0.5, momentum=0.3),
            loss=RaisingLoss(),
            select=dp.EntropyBelow(5.0) & dp.NonRedundant(2.0),
            memory=dp.memories.LatestImages(8),
            teacher=dp.EMA(0.9),
            after=[dp.after.PullToSource(0.1), RaisingAfter()],
            output=RaisingOutput(),
            accumulate=accumulate,
        )
        adapter._engine = engine(adapter.method, adapter.state)
        return adapter

    adapter, undisturbed = make(), make()
    stream = batches(6)
    components = adapter.method.components.values()
    for number, images in enumerate(stream):
        before = state_of(adapter)
        if number in (0, 3):
            for component in components:
                component.fail_in = hook
            with pytest.raises(RuntimeError, match=f"{hook} failed"):
                adapter(images)
            assert same_state(before, state_of(adapter))
            for component in components:
                component.fail_in = None
        assert torch.equal(adapter(images), undisturbed(images))
    assert adapter.last.stepped
    (loss,) = (component for component in components if isinstance(component, RaisingLoss))
    assert (int(loss.batches), int(loss.steps)) == (6, 6 // accumulate), "a batch that waits is no step"
    assert same_state(state_of(adapter), state_of(undisturbed))
    assert all(parameter.grad is None for parameter in adapter.parameters())


def test_novelty_that_fails_after_the_step_leaves_the_whole_state_unchanged(model):
    calls = []

    def fail_first_time(step):
        calls.append(step)
        if len(calls) == 1:
            raise RuntimeError("novelty failed")
        return dp.scores.entropy(step.logits)

    # With a memory, the batch itself is scored after the step.
    adapter = compose(model, memory=dp.memories.LatestImages(8), novelty=fail_first_time)
    before = state_of(adapter)
    with pytest.raises(RuntimeError, match="novelty failed"):
        adapter(batches(1)[0])
    assert same_state(before, state_of(adapter))
    adapter(batches(1)[0])
    assert adapter.last.stepped


# --- components that return the wrong thing ---------------------------------------------------------------------------


class ColumnLoss(dp.losses.Loss):
    def per_sample(self, step):
        return -step.log_probabilities.amax(dim=1, keepdim=True)


class MeanLoss(dp.losses.Loss):
    def per_sample(self, step):
        return -step.log_probabilities.amax(dim=1).mean()


class NumberLoss(dp.losses.Loss):
    def per_sample(self, step):
        return 1.0


class ColumnWeights(dp.selection.Selection):
    def weights(self, step):
        return torch.ones_like(step.weights).unsqueeze(1)


class IntegerWeights(dp.selection.Selection):
    def weights(self, step):
        return torch.ones_like(step.weights, dtype=torch.int64)


class ElsewhereWeights(dp.selection.Selection):
    def weights(self, step):
        return torch.ones_like(step.weights, device="meta")


class ColumnRepel(dp.selection.Selection):
    def weights(self, step):
        return dp.selection.SampleWeights(step.weights, torch.ones_like(step.weights).unsqueeze(1))


class VectorPenalty(dp.regularizers.Regularizer):
    def penalty(self, step):
        return sum(parameter.sum() for parameter in step.parameters).reshape(1)


class ColumnMemory(dp.memories.LatestImages):
    def weights(self, step):
        return torch.ones_like(step.weights).unsqueeze(1)


@pytest.mark.parametrize(
    ("choice", "component", "got"),
    [
        ("loss", ColumnLoss(), r"shape \(6,\).*\(6, 1\)"),
        ("loss", MeanLoss(), r"shape \(6,\).*\(\)"),
        ("loss", NumberLoss(), "tensor.*float"),
        ("select", ColumnWeights(), r"shape \(6,\).*\(6, 1\)"),
        ("select", IntegerWeights(), "int64"),
        ("select", ElsewhereWeights(), "meta"),
        ("select", ColumnRepel(), r"shape \(6,\).*\(6, 1\)"),
        ("regularizer", VectorPenalty(), r"without dimensions.*\(1,\)"),
        ("memory", ColumnMemory(8), r"shape \(8,\).*\(8, 1\)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else None,
)
def test_value_of_the_wrong_shape_or_type_raises_with_the_name_of_the_component(model, choice, component, got):
    adapter = compose(model, **{choice: component})
    before = state_of(adapter)
    with pytest.raises(dp.errors.ComponentError, match=rf"{type(component).__name__}.*{got}"):
        adapter(batches(1)[0])
    assert same_state(before, state_of(adapter))


def test_weights_of_an_image_are_refused_where_pixels_have_weights():
    class PerImage(dp.selection.Selection):
        def weights(self, step):
            return torch.ones_like(step.weights[:, 0, 0])

    adapter = compose(build("segmentation"), select=PerImage())
    with pytest.raises(dp.errors.ComponentError, match=r"PerImage.*\(6, 8, 8\).*\(6,\)"):
        adapter(batches(1)[0])


# --- components that write into a buffer ------------------------------------------------------------------------------


class WritingLoss(dp.losses.Entropy):
    """Writes into its buffer in the hook `where`, which cannot be undone."""

    def __init__(self, where):
        super().__init__()
        self.where = where
        self.register_buffer("count", torch.zeros(()))

    def per_sample(self, step):
        self._write("per_sample")
        return super().per_sample(step)

    def on_batch(self, step):
        self._write("on_batch")

    def on_step(self, step):
        self._write("on_step")

    def _write(self, hook):
        if self.where == hook:
            self.count += 1


@pytest.mark.parametrize("where", ["per_sample", "on_batch", "on_step"])
def test_component_that_writes_into_a_buffer_raises(model, where):
    adapter = compose(model, loss=WritingLoss(where))
    before = state_of(adapter)
    with pytest.raises(dp.errors.ComponentError, match=r"`loss`.*`count`.*Assign a new tensor"):
        adapter(batches(1)[0])
    after = state_of(adapter)
    assert all(torch.equal(before[name], after[name]) for name in before if name != "loss.count")


# --- choices that make no sense ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss", dp.losses.Entropy()),
        ("select", dp.EntropyBelow()),
        ("regularizer", dp.regularizers.Fisher(weight=1.0)),
        ("optimizer", torch.optim.SGD),
        ("memory", dp.memories.LatestImages(8)),
        ("after", dp.after.PullToSource()),
        ("mean_entropy", 0.5),
    ],
)
def test_choices_for_learning_raise_where_nothing_learns(model, name, value):
    with pytest.raises(dp.errors.ConfigurationError, match=rf"no `{name}` with nothing\(\).*nothing learns"):
        dp.Adapter(model, scope=dp.scopes.nothing(), statistics=dp.statistics.Batch(), **{name: value})


@pytest.mark.parametrize("mean_entropy", [float("nan"), float("inf"), -float("inf"), True, "0.5"])
def test_mean_entropy_that_is_no_finite_number_raises(model, mean_entropy):
    with pytest.raises(dp.errors.ConfigurationError, match="`mean_entropy` to be a finite number"):
        dp.tent(model, mean_entropy=mean_entropy)


def test_optimizer_that_needs_a_closure_raises_with_its_name(model):
    with pytest.raises(dp.errors.ConfigurationError, match="LBFGS needs a closure"):
        compose(model, optimizer=torch.optim.LBFGS)
