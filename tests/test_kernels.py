"""Fused normalization: the operations against PyTorch's own, and the rewriting of networks that puts them in."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from driftproof.adapter.engines.fusion import fuse
from driftproof.kernels import (
    OPERATIONS,
    add_normalize,
    availability,
    can_compile,
    new_tickets,
    normalize,
    normalize_alone,
    suits,
)
from networks import build

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CHANNELS_LAST = torch.channels_last


def drawn(shape, device="cpu", dtype=torch.float32, seed=0, size=1.0):
    """Two images, a weight and a bias; a mean far from zero makes careless variances show."""
    generator = torch.Generator().manual_seed(seed)
    images = (3 * torch.randn(shape, generator=generator) + 5, torch.randn(shape, generator=generator))
    layer = (size * torch.randn(shape[1], generator=generator) for _ in range(2))
    return (
        *(image.to(device, dtype).to(memory_format=CHANNELS_LAST).requires_grad_() for image in images),
        *(values.to(device).requires_grad_() for values in layer),
    )


def reference(x, addend, weight, bias, *, relu):
    """What torch does, operation by operation, in double precision."""
    total = x.double() if addend is None else x.double() + addend.double()
    if addend is not None and x.dtype != torch.float32:
        total = total + (total.to(x.dtype).double() - total).detach()  # the sum is stored
    y = F.batch_norm(total, None, None, weight.double(), bias.double(), training=True, eps=1e-5)
    return (F.relu(y) if relu else y), total


def fused(x, addend, weight, bias, *, relu):
    tickets = new_tickets(2, x.shape[1], x.device)
    if addend is None:
        y, _, _ = normalize(x, weight, bias, tickets, 1, 1e-5, relu)
        return y, x
    y, total, _, _ = add_normalize(x, addend, weight, bias, tickets, 1, 1e-5, relu)
    return y, total


def distance(found, wanted):
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).norm() / wanted.norm().clamp(min=1e-12))


def assert_like_torch(x, addend, weight, bias, *, relu, forward, backward):
    inputs = [tensor for tensor in (x, addend, weight, bias) if tensor is not None]
    # A value within rounding of zero may be cut off here and not there: it gets no gradient to let through.
    decided = reference(x, addend, weight, bias, relu=False)[0].detach().abs() > 1e-5
    results = []
    for way in (fused, reference):
        y, total = way(x, addend, weight, bias, relu=relu)
        generator = torch.Generator().manual_seed(1)
        upstream, beside = (torch.randn(y.shape, generator=generator).to(y) for _ in range(2))
        upstream = upstream * decided
        objective = (y * upstream).sum() + (total * beside).sum()
        results.append((y, total, *torch.autograd.grad(objective, inputs)))
    for place, (found, wanted) in enumerate(zip(*results, strict=True)):
        assert distance(found, wanted) < (forward if place < 2 else backward)


@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 20), st.integers(2, 7), st.integers(2, 7)),
    adds=st.booleans(),
    relu=st.booleans(),
    seed=st.integers(0, 100),
)
def test_one_operation_equals_three(shape, adds, relu, seed):
    x, addend, weight, bias = drawn(shape, seed=seed)
    assert_like_torch(x, addend if adds else None, weight, bias, relu=relu, forward=1e-5, backward=1e-4)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(200, 32, 32, 32), (7, 48, 9, 9), (3, 2048, 3, 3), (1, 5, 1, 2), (200, 128, 8, 8)])
def test_the_kernels_equal_torch(shape, relu, adds, dtype):
    x, addend, weight, bias = drawn(shape, "cuda", dtype)
    exact = dtype == torch.float32
    limits = {"forward": 1e-5 if exact else 1e-2, "backward": 1e-4 if exact else 6e-2}
    assert_like_torch(x, addend if adds else None, weight, bias, relu=relu, **limits)


def apart(x, addend, weight, bias, *, relu, alone):
    """The same operation by operation."""
    total = x if addend is None else x + addend
    y = alone(total, weight, bias, 1e-5)
    return (F.relu(y) if relu else y), total


def assert_fusing_changes_no_bit(x, addend, weight, bias, *, relu, alone):
    inputs = [tensor for tensor in (x, addend, weight, bias) if tensor is not None]
    results = []
    for y, total in (
        fused(x, addend, weight, bias, relu=relu),
        apart(x, addend, weight, bias, relu=relu, alone=alone),
    ):
        generator = torch.Generator().manual_seed(1)
        arriving = (torch.randn(y.shape, generator=generator).to(y) for _ in range(2))
        upstream, beside = (gradient.to(memory_format=CHANNELS_LAST) for gradient in arriving)
        objective = (y * upstream).sum() + (total * beside).sum()
        results.append((y, total, *torch.autograd.grad(objective, inputs)))
    assert [torch.equal(one, other) for one, other in zip(*results, strict=True)] == [True] * len(results[0])


@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 20), st.integers(2, 7), st.integers(2, 7)),
    adds=st.booleans(),
    relu=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    size=st.sampled_from([1.0, 1e-7]),
    seed=st.integers(0, 100),
)
@example(shape=(2, 3, 4, 4), adds=True, relu=True, dtype=torch.float16, size=1e-7, seed=0)
def test_fusing_changes_no_bit(shape, adds, relu, dtype, size, seed):
    def alone(x, weight, bias, eps):
        return normalize(x, weight, bias, new_tickets(1, x.shape[1], x.device), 0, eps, False)[0]

    # Of results as small as that, half precision stores some as zero.
    x, addend, weight, bias = drawn(shape, dtype=dtype, seed=seed, size=size)
    assert_fusing_changes_no_bit(x, addend if adds else None, weight, bias, relu=relu, alone=alone)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(200, 32, 32, 32), (200, 128, 8, 8), (7, 48, 9, 9), (3, 520, 3, 3)])
@pytest.mark.parametrize("size", [1.0, 1e-7])
def test_fusing_changes_no_bit_on_a_gpu(shape, relu, adds, dtype, size):
    x, addend, weight, bias = drawn(shape, "cuda", dtype, size=size)
    assert_fusing_changes_no_bit(x, addend if adds else None, weight, bias, relu=relu, alone=normalize_alone)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_one_bad_number_spoils_its_channel_and_no_other(relu, adds, bad, device):
    x, addend, weight, bias = (tensor.detach() for tensor in drawn((4, 3, 5, 5), device))
    x[1, 2, 0, 0] = bad
    y, _ = fused(x, addend if adds else None, weight, bias, relu=relu)
    assert y.isnan().flatten(2).all(dim=2).tolist() == [[False, False, True]] * 4
    assert y[:, :2].isfinite().all()


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=str)
def test_results_that_nobody_uses_have_no_gradient(used):
    x, addend, weight, bias = drawn((2, 3, 4, 4))
    gradients = []
    for way in (fused, reference):
        results = way(x, addend, weight, bias, relu=True)
        objective = sum((results[place] * torch.arange(4)).sum() for place in used)
        gradients.append(torch.autograd.grad(objective, (x, addend, weight, bias), materialize_grads=True))
    for found, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted.to(found.dtype), rtol=1e-4, atol=1e-4)


class Calls(TorchDispatchMode):
    """The names of all operations that were called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        self.names.append(str(operation))
        return operation(*arguments, **(keywords or {}))


def test_nothing_is_filled_with_zeros_for_results_that_nobody_uses():
    x, addend, weight, bias = drawn((2, 3, 4, 4))
    y, total = fused(x, addend, weight, bias, relu=True)
    with Calls() as called:
        (y.sum() + total.sum()).backward()
    assert any("normalize_backward" in name for name in called.names)
    assert not [name for name in called.names if "zero" in name]


@on_gpu
def test_the_kernels_repeat_to_the_last_bit_and_leave_their_tickets_at_zero():
    x, addend, weight, bias = drawn((64, 48, 16, 16), "cuda")
    tickets = new_tickets(1, 48, x.device)
    once, again = (add_normalize(x, addend, weight, bias, tickets, 0, 1e-5, True) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))
    assert not tickets.any()


@pytest.mark.parametrize("adds", [False, True])
def test_torch_finds_the_operations_well_formed(adds):
    x, addend, weight, bias = drawn((2, 3, 4, 4))
    operation, images = (add_normalize, (x, addend)) if adds else (normalize, (x,))
    torch.library.opcheck(operation, (*images, weight, bias, new_tickets(1, 3, x.device), 0, 1e-5, True))


@pytest.fixture
def tried(monkeypatch):
    """A machine that has Triton; what compiling a kernel there raises is the test's to say."""
    can_compile.cache_clear()
    monkeypatch.setattr(availability, "find_spec", lambda name: name)
    yield lambda raises: monkeypatch.setattr(availability, "_try_out", raises)
    can_compile.cache_clear()


def raising(error):
    def attempt(_):
        raise error

    return attempt


def test_a_machine_that_cannot_compile_says_why_and_goes_without_the_kernels(tried):
    device = torch.device("cuda", 0)
    tried(raising(RuntimeError("Failed to find C compiler.")))
    with pytest.warns(RuntimeWarning, match="PyTorch's kernels.*Failed to find C compiler"):
        assert not can_compile(device)
    assert not can_compile(device), "and says it once"
    with torch._subclasses.FakeTensorMode():
        assert not suits(torch.empty(2, 3, 4, 4, device=device).to(memory_format=CHANNELS_LAST))


def test_a_full_device_is_no_reason_to_go_without_the_kernels(tried):
    device = torch.device("cuda", 0)
    tried(raising(torch.OutOfMemoryError()))
    with pytest.raises(torch.OutOfMemoryError):
        can_compile(device)
    tried(lambda _: None)
    assert can_compile(device)


@on_gpu
def test_kernels_are_compiled_where_they_can_be():
    assert can_compile(torch.zeros(1, device="cuda").device)


class _Kinds(nn.Module):
    """Batch norms that can be fused in every way, and some that cannot be."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(
            nn.BatchNorm2d(4, track_running_stats=tracks, affine=affine)
            for tracks, affine in [(False, True)] * 4 + [(True, True), (False, False)]
        )

    def forward(self, x):
        plain, rectified, summed, twice, source, bare = self.norms
        a = plain(x)
        b = torch.relu(rectified(a))
        total = a + b
        c = F.relu(summed(total)) + total
        d = twice(c * 2)
        return d.relu() + d + source.eval()(c) + bare(x)


def traced(module, x):
    """Run through `fuse`, otherwise operation by operation; also how many were fused, and how many with a sum."""
    counts = []

    def backend(graph, _):
        fused_layers = fuse(graph)
        counts.append(
            (fused_layers, sum(node.target is OPERATIONS.add_normalize.default for node in graph.graph.nodes))
        )
        return graph.forward

    return torch.compile(module, backend=backend)(x), counts


def test_what_can_be_fused_is_and_the_rest_is_left():
    torch.manual_seed(0)
    module, x = _Kinds(), torch.rand(3, 4, 5, 5)
    found, counts = traced(module, x)
    assert counts == [(4, 1)]
    torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-5)


def clear_first(total):
    total[:, :1] = 0


@pytest.mark.parametrize(
    "change",
    [nn.ReLU(inplace=True), lambda total: total.mul_(-2), lambda total: total.view(-1).clamp_(min=0), clear_first],
    ids=["rectified", "scaled", "view", "assigned"],
)
def test_a_sum_that_is_written_into_before_it_is_normalized_is_left(change):
    class Changed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(4, track_running_stats=False)

        def forward(self, x):
            total = x + x.flip(0)
            change(total)
            return self.norm(total)

    torch.manual_seed(0)
    module, x = Changed(), torch.randn(3, 4, 5, 5)
    found, counts = traced(module, x)
    assert counts == [(1, 0)]
    torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("place", "fused_sums"), [(0, 1), (1, 0), (2, 0)])
def test_a_sum_that_three_use_is_fused_where_gradients_are_added_in_the_same_order(place, fused_sums):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(4, track_running_stats=False)

        def forward(self, x):
            total = x + x.flip(0)
            uses = [lambda: total.sin(), lambda: 3 * total]
            uses.insert(place, lambda: self.norm(total))
            first, second, third = (use() for use in uses)
            return first + second + third

    _, counts = traced(Shared(), torch.randn(3, 4, 5, 5))
    assert counts == [(1, fused_sums)]


@pytest.mark.parametrize("network", ["wide_resnet", "segmentation"])
def test_a_fused_network_computes_what_it_did(network):
    model = build(network).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = module.running_var = None
    x = torch.rand(4, 3, 16, 16)
    answers = []
    for logits, _ in (traced(model, x), (model(x), None)):
        objective = (logits.logsumexp(1).reshape(4, -1).mean(1) * torch.arange(4)).sum()
        answers.append((logits, *torch.autograd.grad(objective, list(model.parameters()))))
    for found, wanted in zip(*answers, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
