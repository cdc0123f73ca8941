"""Models, optimizers and components that do unusual things, as third-party code does."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import driftproof as dp
from cases import adapter_for, batches, same_but_bookkeeping, same_state, source_data, state_of
from networks import CLASSES, WideResNet, build


@pytest.fixture
def model():
    return build("wide_resnet")


# --- a forward that was replaced --------------------------------------------------------------------------------------


def wrap_in_closure(layer):
    own = layer.forward

    @functools.wraps(own)
    def forward(*inputs):
        return own(*inputs)

    layer.forward = forward


def wrap_in_default(layer):
    layer.forward = lambda x, own=layer.forward: own(x)


def wrap_in_compiled_code(layer):
    layer.forward = torch.compile(layer.forward, backend="eager")


@pytest.mark.parametrize("wrap", [wrap_in_closure, wrap_in_default, wrap_in_compiled_code])
@pytest.mark.parametrize("where", ["", "norm"])
def test_replaced_forward_that_calls_the_original_raises(model, wrap, where):
    wrap(model.get_submodule(where))
    (problem,) = dp.check(model)
    assert problem.severity == "error"
    assert "`forward` was replaced" in problem.message
    assert problem.layers == ((where,) if where else ())
    with pytest.raises(dp.errors.ModelError, match="`forward` was replaced"):
        dp.tent(model)


def assign_bound_method(model):
    model.forward = model.forward


def assign_partial(model):
    model.forward = functools.partial(WideResNet.forward, model)


def replace_without_original(model):
    scale = 2.0
    model.norm.register_forward_hook(lambda *_: None)
    model.blocks[0].forward = lambda x: scale * x


@pytest.mark.parametrize("replace", [assign_bound_method, assign_partial, replace_without_original])
def test_replaced_forward_that_can_be_copied_adapts(model, replace):
    replace(model)
    assert dp.check(model) == []
    adapter = dp.tent(model, lr=0.1)
    before = state_of(adapter)
    adapter(batches(1)[0])
    assert not same_state(before, state_of(adapter))


# --- optimizers that keep their state elsewhere -----------------------------------------------------------------------


class StateInGroups(torch.optim.SGD):
    """Keeps statistics of the gradients in its group, as optimizers without a learning rate do."""

    def __init__(self, parameters, *, in_place):
        super().__init__(parameters, lr=0.1)
        self.in_place = in_place
        self.param_groups[0] |= {"scale": torch.ones(()), "seen": [torch.zeros(())]}

    def step(self, closure=None):
        (group,) = self.param_groups
        norm = sum(parameter.grad.norm() for parameter in group["params"])
        scale = 0.5 * group["scale"] + 0.5 * norm
        if self.in_place:
            group["scale"].copy_(scale)
            group["seen"][0].add_(norm)
        else:
            group["scale"] = scale
            group["seen"] = [*group["seen"], norm]
            self.state[group["params"][0]].setdefault("history", []).append(norm)
        with torch.no_grad():
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad / scale)


@pytest.mark.parametrize("in_place", [True, False])
def test_nan_batch_leaves_optimizer_groups_unchanged(model, in_place):
    first, bad, last = batches(3)
    bad[:] = torch.nan
    adapter, other = (dp.tent(model, optimizer=lambda p, lr: StateInGroups(p, in_place=in_place)) for _ in range(2))
    for images in (first, bad, last):
        adapter(images)
    for images in (first, last):
        other(images)
    assert adapter.last.stepped
    assert same_but_bookkeeping(state_of(adapter), state_of(other))
    ours, theirs = (one.optimizer.param_groups[0] for one in (adapter, other))
    assert ours["scale"] == theirs["scale"]
    assert ours["seen"] == theirs["seen"]


# --- models that write into images or carry tensors -------------------------------------------------------------------


class Shifting(WideResNet):
    """Writes into what it was given, depending on how that is laid out or what it holds."""

    def __init__(self, when):
        super().__init__()
        self.when = when

    def forward(self, x):
        if self.when == "contiguous":
            x = x.contiguous().sub_(0.5)
        elif self.when == "single":
            x = x.float().sub_(0.5)
        elif x.max() > 1:
            x.div_(255)
        return super().forward(x)


@pytest.mark.parametrize(
    ("when", "first", "later"),
    [
        ("contiguous", lambda x: x.contiguous(memory_format=torch.channels_last), lambda x: x),
        ("single", torch.Tensor.double, lambda x: x),
        ("bright", lambda x: x.clamp(0, 1), lambda x: x * 255),
    ],
)
def test_model_that_writes_into_its_input_leaves_images_unchanged(when, first, later):
    torch.manual_seed(0)
    adapter = dp.tent(Shifting(when), lr=0.0, select=dp.ConfidenceDifference())
    one, two = batches(2, size=8)  # so many that all of them may change their scale at once
    adapter(first(one))
    images = later(two)
    untouched = images.clone()
    adapter(images)
    assert torch.equal(images, untouched)
    assert adapter.last.kept == 1.0, "both networks saw the same images"


class CarryingAverages(WideResNet):
    """Carries an average of its outputs from pass to pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(CLASSES))
        self.previous = [torch.zeros(CLASSES)]

    def forward(self, x):
        z = super().forward(x)
        self.average = 0.9 * self.average + 0.1 * z.mean(0)
        self.previous = [0.5 * self.previous[0] + z.mean(0)]
        return z - self.average - 0.1 * self.previous[0]


def test_tensors_carried_from_pass_to_pass_are_detached():
    torch.manual_seed(0)
    adapter = dp.tent(CarryingAverages(), lr=1e-2)
    for images in batches(4):
        adapter(images)
        assert adapter.last.stepped
        assert not adapter.network.model.average.requires_grad
        assert not adapter.network.model.previous[0].requires_grad


def test_failed_first_pass_does_not_hide_carried_tensors():
    torch.manual_seed(0)
    adapter = dp.tent(CarryingAverages(), lr=1e-2)
    with pytest.raises(dp.errors.ForwardError):
        adapter(torch.rand(2, 5, 8, 8))
    for images in batches(3):
        adapter(images)
    assert adapter.last.stepped


class Counting(WideResNet):
    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        return super().forward(x) * (1 + 0.1 * self.passes)


@pytest.mark.parametrize("case", ["eata", "swr", "ttn"])
def test_preparation_leaves_buffers_of_the_model_unchanged(case):
    torch.manual_seed(0)
    adapter = adapter_for(case, Counting())
    images = batches(1)[0]
    output = adapter(images)
    assert torch.equal(output, adapter.reset()(images))


# --- nothing to learn -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", ["selected", "batch"])
def test_batch_of_padding_is_skipped(over):
    adapter = dp.tent(
        build("segmentation"), select=dp.ConfidenceDifference() & dp.selection.IgnorePadding(), mean_entropy_over=over
    )
    for images in batches(2):
        adapter(images)
        assert adapter.last.stepped
    before = state_of(adapter)
    adapter(torch.zeros_like(images))
    assert not adapter.last.stepped
    assert adapter.last.skipped == "nothing was selected"
    after = state_of(adapter)
    seen = {name for name in after if name.startswith(("health.", "meta"))}
    assert same_state(after, before | {name: after[name] for name in seen})


def test_empty_selection_steps_only_with_mean_entropy_over_the_batch(model):
    select_none = dp.ConfidenceDifference(margin=2.0)
    adapter = dp.tent(model, select=select_none, mean_entropy=0.5, mean_entropy_over="selected")
    adapter(batches(1)[0])
    assert not adapter.last.stepped
    adapter = dp.tent(model, select=select_none, mean_entropy=0.5)
    adapter(batches(1)[0])
    assert adapter.last.stepped, "the mean over the batch still gives a gradient"


# --- one layer called twice -------------------------------------------------------------------------------------------


class Twice(nn.Module):
    """One batch norm before and after pooling, where a single image leaves one value per channel."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(16, CLASSES)

    def forward(self, x):
        h = self.conv(x)
        pooled = self.norm(F.adaptive_avg_pool2d(h, 1))
        return self.fc(torch.cat([self.norm(h).mean((2, 3)), pooled.flatten(1)], 1))


class TwiceLater(Twice):
    def forward(self, x):
        h = self.conv(x)
        spread = self.norm(h).mean((2, 3))
        return self.fc(torch.cat([spread, self.norm(F.adaptive_avg_pool2d(h, 1)).flatten(1)], 1))


@pytest.mark.parametrize("statistics", [dp.statistics.Batch(), dp.statistics.Blend(0.5)])
def test_single_value_per_channel_uses_source_statistics_in_any_order_of_calls(statistics):
    images = batches(1, size=1)[0]
    outputs = []
    for kind in (Twice, TwiceLater):
        torch.manual_seed(0)
        model = kind()
        model.norm.running_mean.fill_(0.3)
        outputs.append(dp.Adapter(model, scope=dp.scopes.nothing(), statistics=statistics)(images))
    torch.testing.assert_close(*outputs)


# --- failures after the step ------------------------------------------------------------------------------------------


class Failing(dp.losses.Entropy):
    """Fails in `on_step` of the batch `at`."""

    def __init__(self, at):
        super().__init__()
        self.at, self.calls = at, 0

    def on_step(self, step):
        self.calls += 1
        if self.calls == self.at:
            raise RuntimeError("no")


class FailingAfter(WideResNet):
    """Fails in the pass that it counts down to."""

    passes_left = 10**9

    def forward(self, x):
        self.passes_left -= 1
        if self.passes_left == 0:
            raise RuntimeError("no")
        return super().forward(x)


def test_failure_in_on_step_undoes_the_step(model):
    def learning(loss):
        return dp.Adapter(
            model, scope=dp.scopes.everything(), statistics=dp.statistics.Batch(), loss=loss,
            optimizer=functools.partial(torch.optim.Adam, lr=1e-2),
        )  # fmt: skip

    adapter, other = learning(Failing(at=2)), learning(dp.losses.Entropy())
    first, second = batches(2)
    adapter(first)
    with pytest.raises(RuntimeError, match="no"):
        adapter(second)
    other(first)
    ours, theirs = state_of(adapter), state_of(other)
    assert same_state({name: ours[name] for name in theirs} | {"meta": theirs["meta"]}, theirs)
    adapter(second)
    other(second)
    assert torch.equal(adapter(first), other(first))


def test_failure_in_output_after_undoes_the_step():
    torch.manual_seed(0)
    adapter = dp.gce(FailingAfter(), output="after")
    images = batches(1)[0]
    adapter(images)
    before = state_of(adapter)
    adapter.network.model.passes_left = 2
    with pytest.raises(dp.errors.ForwardError):
        adapter(images)
    assert same_state(before, state_of(adapter))


class Permuting(WideResNet):
    """Has a parameter of whole numbers."""

    def __init__(self):
        super().__init__()
        self.order = nn.Parameter(torch.arange(CLASSES).flip(0), requires_grad=False)

    def forward(self, x):
        return super().forward(x)[:, self.order]


def test_teacher_with_integer_parameters_adapts():
    torch.manual_seed(0)
    adapter = dp.cotta(Permuting(), threshold=0.0)
    for images in batches(2):
        adapter(images)
    assert adapter.last.stepped


# --- keyword inputs and invalid arguments -----------------------------------------------------------------------------


class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.fc(F.relu(self.norm(input=self.conv(x))).mean((2, 3)))


class ByPlace(ByName):
    def forward(self, x):
        return self.fc(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def test_ttn_prepares_layers_called_with_keyword_input():
    shares = []
    for kind in (ByName, ByPlace):
        torch.manual_seed(0)
        adapter = adapter_for("ttn", kind())
        shares.append(adapter.statistics.alpha_for(0))
    assert torch.equal(*shares)


@pytest.mark.parametrize("accumulate", [0, 3.125, "2"])
def test_accumulate_that_is_no_positive_integer_raises(model, accumulate):
    with pytest.raises(dp.errors.ConfigurationError, match="`accumulate`"):
        dp.tent(model, accumulate=accumulate)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("select", dp.ConfidenceDifference),
        ("statistics", dp.statistics.Batch),
        ("loss", "entropy"),
        ("regularizer", dp.after.StochasticRestore),
        ("source_statistics", "source"),
        ("scope", dp.scopes.everything),
    ],
)
def test_component_of_another_kind_raises_with_the_name_of_the_choice(model, name, value):
    choices = {
        "scope": dp.scopes.norm_affine(), "statistics": dp.statistics.Batch(), "loss": dp.losses.Entropy(),
        "optimizer": functools.partial(torch.optim.SGD, lr=0.1),
    }  # fmt: skip
    with pytest.raises(dp.errors.ConfigurationError, match=f"`{name}`"):
        dp.Adapter(model, **(choices | {name: value}))


class WithExtraState(WideResNet):
    def get_extra_state(self):
        return {"classes": ["a", "b"], "version": 3}

    def set_extra_state(self, state):
        pass


def test_model_with_extra_state_is_saved_and_loaded(tmp_path):
    torch.manual_seed(0)
    model = WithExtraState()
    adapter = dp.tent(model)
    adapter(batches(1)[0])
    adapter.save(tmp_path / "state")
    assert same_state(state_of(dp.tent(model).load(tmp_path / "state")), state_of(adapter))


def test_state_without_an_optimizer_tensor_raises(model):
    adapter = dp.tent(model)
    adapter(batches(1)[0])
    state = state_of(adapter)
    name = next(name for name in state if name.endswith("exp_avg"))
    del state[name]
    with pytest.raises(dp.errors.StateError, match=name):
        dp.tent(model).load_state_dict(state)


# --- half precision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("view", [dp.augment.photometric, dp.augment.cotta_view])
def test_views_keep_the_dtype_of_images(view, dtype):
    images = torch.rand(4, 3, 8, 8)
    seeded = functools.partial(torch.Generator().manual_seed, 3)
    ours = view(images.to(dtype), seeded())
    assert ours.dtype == dtype
    if view is dp.augment.photometric:  # the other adds noise, which is drawn in the images' own type
        assert (ours.float() - view(images, seeded())).abs().mean() < 0.05


SMALL = {"epochs": 1, "batch_size": 8}


@pytest.mark.parametrize(
    "construct",
    [
        functools.partial(dp.swr, prototypes=dp.regularizers.NearestPrototypes(**SMALL)),
        functools.partial(dp.ttn, statistics=dp.statistics.TTN(prior_batches=2, **SMALL)),
        functools.partial(dp.cotta, threshold=2.0),
    ],
    ids=["swr", "ttn", "cotta"],
)
def test_methods_with_default_views_adapt_models_of_half_precision(construct):
    adapter = construct(build("wide_resnet").bfloat16())
    adapter.prepare([(images.bfloat16(), labels) for images, labels in source_data()])
    output = adapter(batches(1)[0].clamp(0, 1).bfloat16())
    assert output.dtype == torch.bfloat16
    assert output.isfinite().all()
