"""Digits, layout, and what a pass keeps for the way back."""

import copy
import weakref
from functools import partial

import pytest
import torch
from torch import nn

import driftproof as dp
from cases import adapter_for, batches, same_state, source_data, state_of
from driftproof.network import Network
from networks import NORM_NETWORKS, WideResNet, build, randomize
from fault_injection import make, run

# --- precision and layout ---------------------------------------------------------------------------------------------


class Noting(WideResNet):
    """Notes, going forward and going back, what the process-wide switches say."""

    noted = []  # noqa: RUF012

    def forward(self, x):
        x = super().forward(x)
        self.note()
        if x.requires_grad:
            x.register_hook(self.note)
        return x

    def note(self, _=None):
        self.noted.append((torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))


@pytest.mark.parametrize(("precision", "wanted"), [("fp32", False), ("tf32", True), (None, None), ("bf16", None)])
def test_the_switches_of_the_process_are_set_for_the_step_and_put_back(precision, wanted):
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    adapter = dp.tent(randomize(Noting()), precision=precision, select=dp.ConfidenceDifference())
    Noting.noted.clear()
    adapter(batches(1)[0])
    assert len(Noting.noted) == 3, "forward, frozen forward, backward"
    assert set(Noting.noted) == {before if wanted is None else (wanted, wanted)}
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == before


@pytest.mark.parametrize("case", ["bn_adapt", "ttn", "tent+crowd", "eata", "swr+crowd", "cotta"])
def test_bf16_computes_the_networks_in_bfloat16_and_the_rest_in_single_precision(case):
    adapter = make(case, precision="bf16", select=None) if case != "ttn" else make(case, precision="bf16")
    seen = []
    adapter.network.model.blocks[1].conv2.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    for index, images in enumerate(batches(4)):
        answer = adapter(images)
        assert answer.dtype == torch.float32
        assert answer.isfinite().all()
        assert adapter.last.novelty.dtype == torch.float32
        assert adapter.last.skipped is None
        if "crowd" in case and index == 0:
            assert adapter.last.kept == 1.0
    assert set(seen) == {torch.bfloat16}
    assert all(tensor.dtype != torch.bfloat16 for tensor in (*adapter.parameters(), *adapter.buffers()))


@pytest.mark.parametrize("which", ["network", "source"])
def test_rounded_weights_stay_where_a_recording_reads_them(which):
    adapter, images = make("tent+crowd", precision="bf16"), batches(1)[0]
    adapter(images)
    layer = getattr(adapter, which).model.blocks[1].conv2
    rounded = weakref.ref(vars(layer)["_rounded"])
    copied = adapter.unwrap()
    adapter(images)
    assert rounded() is vars(layer)["_rounded"], "a copy was taken of the model, and nothing of it was let go"
    assert all("_rounded" not in vars(module) for module in copied.modules())
    with torch.no_grad():
        layer.weight.mul_(2)
    address = rounded().data_ptr()
    adapter(images)
    assert vars(layer)["_rounded"].data_ptr() == address
    assert torch.equal(vars(layer)["_rounded"], layer.weight.bfloat16())


def test_the_frozen_network_alone_can_compute_in_bfloat16():
    blurred, exact = (
        make("tent+crowd", source_precision=precision, select=dp.ConfidenceDifference(margin=-0.2), lr=1e-2)
        for precision in ("bf16", None)
    )
    seen = {network: [] for network in (blurred.network, blurred.source)}
    for network, dtypes in seen.items():
        network.model.blocks[1].conv2.register_forward_pre_hook(lambda _, x, dtypes=dtypes: dtypes.append(x[0].dtype))
    for index, images in enumerate(batches(6)):
        torch.testing.assert_close(blurred(images), exact(images))
        assert torch.equal(blurred.last.selected, exact.last.selected)
        apart = (blurred.last.novelty - exact.last.novelty).abs().max()
        assert (apart == 0) if index == 0 else (0 < apart < 0.05)
    assert set(seen[blurred.network]) == {torch.float32}
    assert set(seen[blurred.source]) == {torch.bfloat16}
    assert "frozen network bf16" in repr(blurred)
    with pytest.raises(dp.errors.ConfigurationError, match="`source_precision` to be one of bf16, but got 'fp8'"):
        make("tent+crowd", source_precision="fp8")


@pytest.mark.parametrize("case", ["ttn", "ent", "tent+crowd", "swr"])
def test_channels_last_changes_the_layout_alone(case, tmp_path):
    stream = [images.double() for images in batches(5)]
    doubled = [(images.double(), labels) for images, labels in source_data()]
    adapters = [
        adapter_for(case, build("wide_resnet").double(), prepared=False, channels_last=last).prepare(doubled)
        for last in (False, True)
    ]
    plain, last = (torch.stack(run(adapter, stream)[0]) for adapter in adapters)
    torch.testing.assert_close(plain, last, rtol=1e-9, atol=1e-9)
    convolutions = [module for module in adapters[1].network.modules() if isinstance(module, nn.Conv2d)]
    assert all(conv.weight.is_contiguous(memory_format=torch.channels_last) for conv in convolutions)
    adapters[0].save(tmp_path / "state")
    adapters[1].load(tmp_path / "state")
    assert same_state(state_of(adapters[0]), state_of(adapters[1]))


def test_channels_last_leaves_what_has_no_such_layout():
    construct, shape = NORM_NETWORKS["batch_norm_3d"]
    stream, model = batches(2, shape=shape), construct()
    plain, adapter = dp.tent(model), dp.tent(model, channels_last=True)
    assert all(torch.equal(plain(images), adapter(images)) for images in stream)


def test_a_loaded_state_lies_as_its_parameters_do(tmp_path):
    """Files know one layout; an optimizer that goes through its tensors side by side wants them all alike."""
    optimizer = partial(torch.optim.Adam, fused=True)
    adapter, other = (
        adapter_for("ent", build("wide_resnet"), channels_last=True, optimizer=optimizer) for _ in range(2)
    )
    run(adapter, batches(3))
    adapter.save(tmp_path / "state")
    other.load(tmp_path / "state")
    assert all(
        kept.stride() == parameter.stride()
        for parameter, state in other.optimizer.state.items()
        for kept in (state["exp_avg"], state["exp_avg_sq"])
    )
    assert torch.equal(*(torch.stack(run(each, batches(3, seed=1))[0]) for each in (adapter, other)))


def test_gradients_lie_as_their_parameters_do():
    """A regularizer that goes through a parameter its own way leaves the gradient in another layout."""
    seen = []

    class Watched(torch.optim.Adam):
        def step(self, closure=None):
            seen.extend((one.grad.stride(), one.stride()) for group in self.param_groups for one in group["params"])
            return super().step(closure)

    adapter = adapter_for("swr", build("wide_resnet"), channels_last=True, optimizer=Watched, prototypes=False)
    run(adapter, batches(2))
    assert seen
    assert all(gradient == parameter for gradient, parameter in seen)


# --- what is kept for the way back ------------------------------------------------------------------------------------


def kept_for_backward(adapter, images):
    shapes = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (shapes.append(tuple(tensor.shape)), tensor)[1], lambda tensor: tensor
    )
    with hooks:
        adapter(images)
    return shapes


class Unactivated(nn.Module):
    """Nothing but the convolutions has a use for what enters them."""

    def __init__(self):
        super().__init__()
        self.norm, self.first, self.second = nn.BatchNorm2d(3), nn.Conv2d(3, 7, 3), nn.Conv2d(7, 11, 1)
        self.head = nn.Linear(11, 5)

    def forward(self, x):
        return self.head(self.second(self.first(self.norm(x)) + 1).mean(dim=(2, 3)))


def test_no_input_of_a_frozen_convolution_is_kept():
    images = batches(1)[0]
    assert kept_for_backward(dp.tent(Unactivated()), images).count((6, 3, 8, 8)) == 1, "what the batch norm keeps"
    assert (6, 7, 6, 6) not in kept_for_backward(dp.tent(Unactivated()), images)
    assert (6, 7, 6, 6) in kept_for_backward(dp.ent(Unactivated()), images), "where the weight moves it is needed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_frozen_convolutions_have_torchs_gradients(dtype):
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
        assert "forward" not in vars(network.plain()[0])
