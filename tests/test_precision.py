"""Numeric precision, memory layout, and what a forward pass saves for the backward pass."""

import copy
import weakref
from functools import partial

import pytest
import torch
from torch import nn

import driftproof as dp
from cases import adapter_for, batches, same_state, source_data, state_of
from driftproof.network import Network, frozen_conv
from fault_injection import make_adapter, run
from networks import NORM_NETWORKS, WideResNet, build, randomize

# --- precision and layout ---------------------------------------------------------------------------------------------


class SwitchLogger(WideResNet):
    """Logs the process-wide TF32 switches in its forward and backward passes."""

    logged = []  # noqa: RUF012

    def forward(self, x):
        x = super().forward(x)
        self.log()
        if x.requires_grad:
            x.register_hook(self.log)
        return x

    def log(self, _=None):
        self.logged.append((torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))


@pytest.mark.parametrize(("precision", "expected"), [("fp32", False), ("tf32", True), (None, None), ("bf16", None)])
def test_tf32_switches_are_set_for_the_step_and_restored(precision, expected):
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    adapter = dp.tent(randomize(SwitchLogger()), precision=precision, select=dp.ConfidenceDifference())
    SwitchLogger.logged.clear()
    adapter(batches(1)[0])
    assert len(SwitchLogger.logged) == 3, "forward, frozen forward, backward"
    assert set(SwitchLogger.logged) == {before if expected is None else (expected, expected)}
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == before


@pytest.mark.parametrize("case", ["bn_adapt", "ttn", "tent+crowd", "eata", "swr+crowd", "cotta"])
def test_bf16_runs_networks_in_bfloat16_and_the_rest_in_float32(case):
    adapter = make_adapter(case, precision="bf16", **({} if case in ("bn_adapt", "ttn") else {"select": None}))
    dtypes = []
    adapter.network.model.blocks[1].conv2.register_forward_pre_hook(lambda _, inputs: dtypes.append(inputs[0].dtype))
    for index, images in enumerate(batches(4)):
        answer = adapter(images)
        assert answer.dtype == torch.float32
        assert answer.isfinite().all()
        assert adapter.last.novelty.dtype == torch.float32
        assert adapter.last.skipped is None
        if "crowd" in case and index == 0:
            assert adapter.last.kept == 1.0
    assert set(dtypes) == {torch.bfloat16}
    assert all(tensor.dtype != torch.bfloat16 for tensor in (*adapter.parameters(), *adapter.buffers()))


@pytest.mark.parametrize("which", ["network", "source"])
def test_bf16_weights_keep_their_addresses(which):
    """A captured step reads them."""
    adapter, images = make_adapter("tent+crowd", precision="bf16"), batches(1)[0]
    adapter(images)
    layer = getattr(adapter, which).model.blocks[1].conv2
    cached = weakref.ref(vars(layer)["_bf16_weight"])
    plain = adapter.unwrap()
    adapter(images)
    assert cached() is vars(layer)["_bf16_weight"], "a copy of the model leaves the cache alone"
    assert all("_bf16_weight" not in vars(module) for module in plain.modules())
    with torch.no_grad():
        layer.weight.mul_(2)
    address = cached().data_ptr()
    adapter(images)
    assert vars(layer)["_bf16_weight"].data_ptr() == address
    assert torch.equal(vars(layer)["_bf16_weight"], layer.weight.bfloat16())


def test_source_precision_holds_for_the_frozen_network_alone():
    rounded, exact = (
        make_adapter(
            "tent+crowd",
            source_precision=precision,
            select=dp.ConfidenceDifference(margin=-0.2),
            novelty="confidence_difference",
            lr=1e-2,
        )
        for precision in ("bf16", None)
    )
    seen = {network: [] for network in (rounded.network, rounded.source)}
    for network, dtypes in seen.items():
        network.model.blocks[1].conv2.register_forward_pre_hook(lambda _, x, dtypes=dtypes: dtypes.append(x[0].dtype))
    for index, images in enumerate(batches(6)):
        torch.testing.assert_close(rounded(images), exact(images))
        assert torch.equal(rounded.last.selected, exact.last.selected)
        difference = (rounded.last.novelty - exact.last.novelty).abs().max()
        assert (difference == 0) if index == 0 else (0 < difference < 0.05)
    assert set(seen[rounded.network]) == {torch.float32}
    assert set(seen[rounded.source]) == {torch.bfloat16}
    assert "frozen network bf16" in repr(rounded)
    with pytest.raises(dp.errors.ConfigurationError, match="`source_precision` to be one of bf16, but got 'fp8'"):
        make_adapter("tent+crowd", source_precision="fp8")


@pytest.mark.parametrize("case", ["ttn", "ent", "tent+crowd", "swr"])
def test_channels_last_changes_layout_only(case, tmp_path):
    stream = [images.double() for images in batches(5)]
    doubled = [(images.double(), labels) for images, labels in source_data()]
    adapters = [
        adapter_for(case, build("wide_resnet").double(), prepared=False, channels_last=last).prepare(doubled)
        for last in (False, True)
    ]
    torch.testing.assert_close(*(torch.stack(run(adapter, stream)[0]) for adapter in adapters), rtol=1e-9, atol=1e-9)
    convs = [module for module in adapters[1].network.modules() if isinstance(module, nn.Conv2d)]
    assert all(conv.weight.is_contiguous(memory_format=torch.channels_last) for conv in convs)
    adapters[0].save(tmp_path / "state")
    adapters[1].load(tmp_path / "state")
    assert same_state(state_of(adapters[0]), state_of(adapters[1]))


def test_channels_last_leaves_volumes_alone():
    construct, shape = NORM_NETWORKS["batch_norm_3d"]
    stream, model = batches(2, shape=shape), construct()
    plain, adapter = dp.tent(model), dp.tent(model, channels_last=True)
    assert all(torch.equal(plain(images), adapter(images)) for images in stream)


def test_loaded_optimizer_state_has_the_strides_of_its_parameters(tmp_path):
    """Files have one layout; a fused optimizer needs the same strides for all tensors of a parameter."""
    optimizer = partial(torch.optim.Adam, fused=True)
    adapter, other = (
        adapter_for("ent", build("wide_resnet"), channels_last=True, optimizer=optimizer) for _ in range(2)
    )
    run(adapter, batches(3))
    adapter.save(tmp_path / "state")
    other.load(tmp_path / "state")
    assert all(
        tensor.stride() == parameter.stride()
        for parameter, state in other.optimizer.state.items()
        for tensor in (state["exp_avg"], state["exp_avg_sq"])
    )
    assert torch.equal(*(torch.stack(run(each, batches(3, seed=1))[0]) for each in (adapter, other)))


def test_gradients_have_the_strides_of_their_parameters():
    """The gradient of a regularizer may have another layout."""
    strides = []

    class StrideLogger(torch.optim.Adam):
        def step(self, closure=None):
            strides.extend((one.grad.stride(), one.stride()) for group in self.param_groups for one in group["params"])
            return super().step(closure)

    adapter = adapter_for("swr", build("wide_resnet"), channels_last=True, optimizer=StrideLogger, prototypes=False)
    run(adapter, batches(2))
    assert strides
    assert all(gradient == parameter for gradient, parameter in strides)


# --- tensors saved for the backward pass ------------------------------------------------------------------------------


def saved_shapes(adapter, images):
    """The shapes of all tensors that a step saves for its backward pass."""
    shapes = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (shapes.append(tuple(tensor.shape)), tensor)[1], lambda tensor: tensor
    )
    with hooks:
        adapter(images)
    return shapes


class LinearConvNet(nn.Module):
    """Only the convolutions could need their inputs in the backward pass."""

    def __init__(self):
        super().__init__()
        self.norm, self.first, self.second = nn.BatchNorm2d(3), nn.Conv2d(3, 7, 3), nn.Conv2d(7, 11, 1)
        self.head = nn.Linear(11, 5)

    def forward(self, x):
        return self.head(self.second(self.first(self.norm(x)) + 1).mean(dim=(2, 3)))


@pytest.fixture
def any_input_is_large(monkeypatch):
    """Have frozen convolutions spare every input, however small."""
    monkeypatch.setattr(frozen_conv, "_MIN_BYTES", 0)


@pytest.mark.usefixtures("any_input_is_large")
def test_frozen_convolution_saves_no_input():
    images = batches(1)[0]
    saved = saved_shapes(dp.tent(LinearConvNet()), images)
    assert saved.count((6, 3, 8, 8)) == 1, "what the batch norm saves"
    assert (6, 7, 6, 6) not in saved
    assert (6, 7, 6, 6) in saved_shapes(dp.ent(LinearConvNet()), images), "a trained weight needs it"


def test_convolutions_of_small_inputs_are_those_of_torch():
    adapter, images = dp.tent(LinearConvNet()), batches(1)[0]
    for _ in range(2):
        assert (6, 7, 6, 6) in saved_shapes(adapter, images), "to save it costs less than to do without"


@pytest.mark.usefixtures("any_input_is_large")
def test_backward_of_a_frozen_convolution_copies_nothing():
    network = Network(nn.Sequential(nn.Conv2d(4, 6, 3).requires_grad_(False), nn.Flatten()))
    output = network(torch.rand(3, 4, 8, 8, requires_grad=True))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        output.backward(torch.ones_like(output))
    names = {event.name for event in profile.events()}
    assert "aten::convolution_backward" in names
    assert not names & {"aten::clone", "aten::contiguous"}


@pytest.mark.usefixtures("any_input_is_large")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_frozen_convolutions_have_the_gradients_of_pytorch(dtype):
    layers = [
        nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=1, groups=2),
        nn.Conv2d(4, 6, (3, 1), padding=(2, 0), dilation=2, bias=False),
        nn.Conv2d(4, 6, 3, padding="same"),
        nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
    ]
    for layer in layers:
        layer.to(dtype).requires_grad_(False)
        plain = copy.deepcopy(layer)
        network = Network(nn.Sequential(layer, nn.Flatten()))
        x = torch.rand(3, 4, 8, 8, dtype=dtype, requires_grad=True)
        theirs, ours = plain(x).flatten(1), network(x)
        assert torch.equal(theirs, ours)
        weights = torch.rand_like(theirs)
        (expected,), (gradient,) = (torch.autograd.grad((y * weights).sum(), x) for y in (theirs, ours))
        assert torch.equal(expected, gradient)
        assert "forward" not in vars(network.to_plain_module()[0])
