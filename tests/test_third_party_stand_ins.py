"""Models, optimizers and parts that do unusual things, and what an adapter makes of them."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import driftproof as dp
from cases import adapter_for, batches, same_state, source_data, state_of
from networks import CLASSES, WideResNet, build


@pytest.fixture
def model():
    return build("wide_resnet")


# --- a forward that was replaced ------------------------------------------------------------------------------------


def through_a_closure(layer):
    own = layer.forward

    @functools.wraps(own)
    def forward(*inputs):
        return own(*inputs)

    layer.forward = forward


def through_a_default(layer):
    layer.forward = lambda x, own=layer.forward: own(x)


def through_compiled_code(layer):
    layer.forward = torch.compile(layer.forward, backend="eager")


@pytest.mark.parametrize("wrap", [through_a_closure, through_a_default, through_compiled_code])
@pytest.mark.parametrize("where", ["", "norm"])
def test_a_forward_that_still_runs_the_original_is_refused(model, wrap, where):
    wrap(model.get_submodule(where))
    (problem,) = dp.check(model)
    assert problem.severity == "error"
    assert "`forward` was replaced" in problem.message
    assert problem.layers == ((where,) if where else ())
    with pytest.raises(dp.errors.ModelError, match="`forward` was replaced"):
        dp.tent(model)


def bound(model):
    model.forward = model.forward


def partially(model):
    model.forward = functools.partial(WideResNet.forward, model)


def without_the_model(model):
    scale = 2.0
    model.norm.register_forward_hook(lambda *_: None)
    model.blocks[0].forward = lambda x: scale * x


@pytest.mark.parametrize("replace", [bound, partially, without_the_model])
def test_a_forward_that_goes_along_with_a_copy_is_welcome(model, replace):
    replace(model)
    assert dp.check(model) == []
    adapter = dp.tent(model, lr=0.1)
    before = state_of(adapter)
    adapter(batches(1)[0])
    assert not same_state(before, state_of(adapter))


# --- optimizers that keep their state elsewhere ----------------------------------------------------------------------


class Estimating(torch.optim.SGD):
    """Keeps what it has learned of the gradients in its group, as optimizers that need no rate do."""

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
def test_a_bad_batch_does_not_stay_in_an_optimizers_groups(model, in_place):
    first, bad, last = batches(3)
    bad[0] = torch.nan
    adapter, spared = (dp.tent(model, optimizer=lambda p, lr: Estimating(p, in_place=in_place)) for _ in range(2))
    for images in (first, bad, last):
        adapter(images)
    for images in (first, last):
        spared(images)
    assert adapter.last.stepped
    assert same_state(state_of(adapter), state_of(spared))
    ours, theirs = (one.optimizer.param_groups[0] for one in (adapter, spared))
    assert ours["scale"] == theirs["scale"]
    assert ours["seen"] == theirs["seen"]


# --- models that write where others read -----------------------------------------------------------------------------


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
def test_images_are_the_callers_whatever_the_model_does_to_them(when, first, later):
    torch.manual_seed(0)
    adapter = dp.tent(Shifting(when), lr=0.0, select=dp.ConfidenceDifference())
    one, two = batches(2)
    adapter(first(one))
    images = later(two)
    untouched = images.clone()
    adapter(images)
    assert torch.equal(images, untouched)
    assert adapter.last.kept == 1.0, "both networks saw the same"


class Remembering(WideResNet):
    """Carries an average of its answers from pass to pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(CLASSES))
        self.previous = [torch.zeros(CLASSES)]

    def forward(self, x):
        z = super().forward(x)
        self.average = 0.9 * self.average + 0.1 * z.mean(0)
        self.previous = [0.5 * self.previous[0] + z.mean(0)]
        return z - self.average - 0.1 * self.previous[0]


def test_a_model_may_carry_tensors_from_pass_to_pass():
    torch.manual_seed(0)
    adapter = dp.tent(Remembering(), lr=1e-2)
    for images in batches(4):
        adapter(images)
        assert adapter.last.stepped
        assert not adapter.network.model.average.requires_grad
        assert not adapter.network.model.previous[0].requires_grad


def test_a_failure_before_the_first_batch_does_not_hide_what_a_model_carries():
    torch.manual_seed(0)
    adapter = dp.tent(Remembering(), lr=1e-2)
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
def test_preparation_leaves_a_models_own_buffers_as_they_came(case):
    torch.manual_seed(0)
    adapter = adapter_for(case, Counting())
    images = batches(1)[0]
    answer = adapter(images)
    assert torch.equal(answer, adapter.reset()(images))


# --- nothing to learn -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", ["selected", "batch"])
def test_a_step_is_taken_without_selected_samples_only_if_the_mean_has_some(over):
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
    assert all(torch.equal(before[name], after[name]) for name in before if name != "meta")


def test_without_a_mean_over_what_is_selected_none_is_nothing(model):
    nobody = dp.ConfidenceDifference(margin=2.0)
    adapter = dp.tent(model, select=nobody, mean_entropy=0.5, mean_entropy_over="selected")
    adapter(batches(1)[0])
    assert not adapter.last.stepped
    adapter = dp.tent(model, select=nobody, mean_entropy=0.5)
    adapter(batches(1)[0])
    assert adapter.last.stepped, "the mean over the batch still has something to say"


# --- one layer, used twice --------------------------------------------------------------------------------------------


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
def test_a_single_value_meets_source_statistics_also_after_other_uses_of_the_layer(statistics):
    images = batches(1, size=1)[0]
    answers = []
    for kind in (Twice, TwiceLater):
        torch.manual_seed(0)
        model = kind()
        model.norm.running_mean.fill_(0.3)
        answers.append(dp.Adapter(model, scope=dp.scopes.nothing(), statistics=statistics)(images))
    torch.testing.assert_close(*answers)


# --- failing late -----------------------------------------------------------------------------------------------------


class Failing(dp.losses.Entropy):
    """Fails when it is told of the batch it names."""

    def __init__(self, at):
        super().__init__()
        self.at, self.told = at, 0

    def on_step(self, step):
        self.told += 1
        if self.told == self.at:
            raise RuntimeError("no")


class FailingAfter(WideResNet):
    """Fails in the pass that it counts down to."""

    passes_left = 10**9

    def forward(self, x):
        self.passes_left -= 1
        if self.passes_left == 0:
            raise RuntimeError("no")
        return super().forward(x)


def test_what_fails_after_the_step_takes_the_step_back(model):
    def learning(loss):
        return dp.Adapter(
            model, scope=dp.scopes.everything(), statistics=dp.statistics.Batch(), loss=loss,
            optimizer=functools.partial(torch.optim.Adam, lr=1e-2),
        )  # fmt: skip

    adapter, spared = learning(Failing(at=2)), learning(dp.losses.Entropy())
    first, second = batches(2)
    adapter(first)
    with pytest.raises(RuntimeError, match="no"):
        adapter(second)
    spared(first)
    ours, theirs = state_of(adapter), state_of(spared)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if name != "meta")
    adapter(second)
    spared(second)
    assert torch.equal(adapter(first), spared(first))


def test_what_fails_in_the_second_look_takes_the_step_back():
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


def test_a_teacher_may_have_parameters_of_whole_numbers():
    torch.manual_seed(0)
    adapter = dp.cotta(Permuting(), threshold=0.0)
    for images in batches(2):
        adapter(images)
    assert adapter.last.stepped


# --- what comes by name, and what is misspelt ------------------------------------------------------------------------


class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.fc(F.relu(self.norm(input=self.conv(x))).mean((2, 3)))


class ByPlace(ByName):
    def forward(self, x):
        return self.fc(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def test_ttn_prepares_on_layers_that_get_their_input_by_name():
    shares = []
    for kind in (ByName, ByPlace):
        torch.manual_seed(0)
        adapter = adapter_for("ttn", kind())
        shares.append(adapter.statistics.alpha_for(0))
    assert torch.equal(*shares)


@pytest.mark.parametrize("accumulate", [0, 3.125, "2"])
def test_batches_to_gather_are_counted_in_whole_numbers(model, accumulate):
    with pytest.raises(dp.errors.ConfigurationError, match="`accumulate`"):
        dp.tent(model, accumulate=accumulate)


@pytest.mark.parametrize(
    ("axis", "value"),
    [
        ("select", dp.ConfidenceDifference),
        ("statistics", dp.statistics.Batch),
        ("loss", "entropy"),
        ("regularizer", dp.after.StochasticRestore),
        ("source_statistics", "source"),
        ("scope", dp.scopes.everything),
    ],
)
def test_a_part_of_another_kind_is_named(model, axis, value):
    parts = {
        "scope": dp.scopes.norm_affine(), "statistics": dp.statistics.Batch(), "loss": dp.losses.Entropy(),
        "optimizer": functools.partial(torch.optim.SGD, lr=0.1),
    }  # fmt: skip
    with pytest.raises(dp.errors.ConfigurationError, match=f"`{axis}`"):
        dp.Adapter(model, **(parts | {axis: value}))


class WithExtraState(WideResNet):
    def get_extra_state(self):
        return {"classes": ["a", "b"], "version": 3}

    def set_extra_state(self, state):
        pass


def test_a_model_with_extra_state_is_saved(tmp_path):
    torch.manual_seed(0)
    model = WithExtraState()
    adapter = dp.tent(model)
    adapter(batches(1)[0])
    adapter.save(tmp_path / "state")
    assert same_state(state_of(dp.tent(model).load(tmp_path / "state")), state_of(adapter))


def test_a_state_without_a_tensor_of_the_optimizer_is_refused(model):
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
def test_views_keep_the_type_of_images(view, dtype):
    images = torch.rand(4, 3, 8, 8)
    seeded = functools.partial(torch.Generator().manual_seed, 3)
    ours = view(images.to(dtype), seeded())
    assert ours.dtype == dtype
    if view is dp.augment.photometric:  # the other adds noise, which is drawn in the images' own type
        assert (ours.float() - view(images, seeded())).abs().mean() < 0.05


@pytest.mark.parametrize("construct", [dp.swr, dp.ttn, functools.partial(dp.cotta, threshold=2.0)])
def test_methods_with_views_take_models_of_half_precision(construct):
    adapter = construct(build("wide_resnet").bfloat16())
    adapter.prepare([(images.bfloat16(), labels) for images, labels in source_data()])
    answer = adapter(batches(1)[0].clamp(0, 1).bfloat16())
    assert answer.dtype == torch.bfloat16
    assert answer.isfinite().all()
