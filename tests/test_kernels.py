"""Fused batch norm: the operators against PyTorch's own, and the FX pass that inserts them."""

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from driftproof.kernels import (
    availability,
    batch_norm,
    can_compile,
    interpolated_batch_norm,
    is_supported,
    new_counters,
    ops,
    runs_triton,
    traced_interpolated_batch_norm,
)
from driftproof.kernels.fusion import fuse
from driftproof.kernels.interpolation import Interpolation
from networks import build

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
CHANNELS_LAST = torch.channels_last
EPS = 1e-5
INTERPOLATIONS = {
    "plain": None,
    "alpha=0": (0.0, None),
    "alpha=0.3": (0.3, None),
    "alpha=1": (1.0, None),
    "alpha per channel": ("per channel", None),
    "stream, alpha=0": (0.0, 0.1),
    "stream, alpha=0.3": (0.3, 0.1),
    "stream, alpha=1": (1.0, 0.1),
    "stream, alpha per channel": ("per channel", 0.7),
}
"""By name: alpha, and the share of the batch in the stream statistics or None without them."""


class Inputs(NamedTuple):
    """Inputs of one layer; `interpolation` is None in a plain batch norm."""

    x: torch.Tensor
    addend: torch.Tensor | None
    weight: torch.Tensor
    bias: torch.Tensor
    interpolation: Interpolation | None

    def leaves(self):
        return [tensor for tensor in self[:4] if tensor is not None]


def make_inputs(shape, device="cpu", dtype=torch.float32, *, adds=False, case="plain", seed=0, size=1.0):
    """Return random inputs; a mean far from zero exposes variances that lose digits."""
    generator = torch.Generator().manual_seed(seed)
    images = (3 * torch.randn(shape, generator=generator) + 5, torch.randn(shape, generator=generator))
    layer = (size * torch.randn(shape[1], generator=generator) for _ in range(2))
    x, addend = (image.to(device, dtype).to(memory_format=CHANNELS_LAST).requires_grad_() for image in images)
    weight, bias = (values.to(device).requires_grad_() for values in layer)
    return Inputs(x, addend if adds else None, weight, bias, make_interpolation(case, shape[1], device, generator))


def make_interpolation(case, channels, device="cpu", generator=None):
    if INTERPOLATIONS[case] is None:
        return None
    alpha, share = INTERPOLATIONS[case]
    alpha = torch.rand(channels, generator=generator) if alpha == "per channel" else torch.tensor([alpha])
    source_mean, stream_mean = (torch.randn(channels, generator=generator) + 4 for _ in range(2))
    source_var, stream_var = (5 + 8 * torch.rand(channels, generator=generator) for _ in range(2))
    stream = (None, None) if share is None else (stream_mean.to(device), stream_var.to(device))
    return Interpolation(
        source_mean.to(device), source_var.to(device), *stream, alpha.to(device), 1.0 if share is None else share
    )


def reference(inputs, *, relu):
    """Compute the layer in double precision, with PyTorch's autograd; return the result and the sum."""
    x, addend, weight, bias, interpolation = inputs
    total = x.double() if addend is None else x.double() + addend.double()
    if addend is not None and x.dtype != torch.float32:
        total = total + (total.to(x.dtype).double() - total).detach()  # the sum is stored
    mean, var = total.mean((0, 2, 3)), total.var((0, 2, 3), correction=0)
    if interpolation is not None:
        source_mean, source_var, alpha = (values.double() for values in (*interpolation[:2], interpolation.alpha))
        if interpolation.stream_mean is not None:
            share = interpolation.share
            mean = (1 - share) * interpolation.stream_mean.double() + share * mean
            var = (1 - share) * interpolation.stream_var.double() + share * var
        var = alpha * var + (1 - alpha) * source_var + alpha * (1 - alpha) * (mean - source_mean) ** 2
        mean = source_mean + alpha * (mean - source_mean)
    y = (total - mean[:, None, None]) / (var[:, None, None] + EPS).sqrt()
    y = y * weight.double()[:, None, None] + bias.double()[:, None, None]
    return (F.relu(y) if relu else y), total


def run_fused(inputs, *, relu, counters=True):
    """Run one operator for everything; return the result and the sum."""
    x, addend, weight, bias, interpolation = inputs
    row = (new_counters(2, x.shape[1], x.device), 1) if counters else (None, 0)
    layer = (weight, bias, *(interpolation or ()), EPS, *row, relu)
    if addend is None:
        op = ops.batch_norm if interpolation is None else ops.interpolated_batch_norm
        return op(x, *layer)[0], x
    op = ops.add_batch_norm if interpolation is None else ops.add_interpolated_batch_norm
    return op(x, addend, *layer)[:2]


def run_unfused(inputs, *, relu):
    """Run addition, eager batch norm and ReLU one after the other; return the result and the sum."""
    x, addend, weight, bias, interpolation = inputs
    total = x if addend is None else x + addend
    if interpolation is None:
        y = batch_norm(total, weight, bias, EPS)
    else:
        y, _, _ = interpolated_batch_norm(total, weight, bias, *interpolation, EPS)
    return (F.relu(y) if relu else y), total


def relative_error(found, expected):
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-12))


def assert_matches_reference(inputs, *, relu, forward, backward):
    # The ReLU may decide differently about a value within rounding of zero: such a value gets no gradient.
    decided = reference(inputs, relu=False)[0].detach().abs() > 1e-5
    results = []
    for compute in (run_fused, reference):
        y, total = compute(inputs, relu=relu)
        generator = torch.Generator().manual_seed(1)
        grad_output, residual_grad = (torch.randn(y.shape, generator=generator).to(y) for _ in range(2))
        objective = (y * grad_output * decided).sum() + (total * residual_grad).sum()
        results.append((y, total, *torch.autograd.grad(objective, inputs.leaves())))
    for index, (found, expected) in enumerate(zip(*results, strict=True)):
        assert relative_error(found, expected) < (forward if index < 2 else backward)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 20), st.integers(2, 7), st.integers(2, 7)),
    adds=st.booleans(),
    relu=st.booleans(),
    case=st.sampled_from(sorted(INTERPOLATIONS)),
    seed=st.integers(0, 100),
)
def test_operator_matches_double_precision(shape, adds, relu, case, seed):
    inputs = make_inputs(shape, adds=adds, case=case, seed=seed)
    assert_matches_reference(inputs, relu=relu, forward=1e-5, backward=1e-4)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("case", ["plain", "alpha=0.3", "alpha per channel", "stream, alpha per channel"])
@pytest.mark.parametrize("shape", [(200, 32, 32, 32), (7, 48, 9, 9), (3, 2048, 3, 3), (1, 5, 1, 2), (200, 128, 8, 8)])
def test_kernels_match_double_precision(shape, case, relu, adds, dtype):
    exact = dtype == torch.float32
    limits = {"forward": 1e-5 if exact else 1e-2, "backward": 1e-4 if exact else 6e-2}
    assert_matches_reference(make_inputs(shape, "cuda", dtype, adds=adds, case=case), relu=relu, **limits)


@on_gpu
@pytest.mark.parametrize("case", INTERPOLATIONS)
def test_kernels_match_double_precision_for_every_interpolation(case):
    inputs = make_inputs((20, 40, 9, 9), "cuda", adds=True, case=case)
    assert_matches_reference(inputs, relu=True, forward=1e-5, backward=1e-4)


def assert_bits_equal(inputs, ways, *, relu):
    results = []
    for compute in ways:
        y, total = compute(inputs, relu=relu)
        generator = torch.Generator().manual_seed(1)
        gradients = (torch.randn(y.shape, generator=generator).to(y) for _ in range(2))
        grad_output, residual_grad = (gradient.to(memory_format=CHANNELS_LAST) for gradient in gradients)
        objective = (y * grad_output).sum() + (total * residual_grad).sum()
        results.append((y, total, *torch.autograd.grad(objective, inputs.leaves())))
    assert [torch.equal(one, other) for one, other in zip(*results, strict=True)] == [True] * len(results[0])


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 20), st.integers(2, 7), st.integers(2, 7)),
    adds=st.booleans(),
    relu=st.booleans(),
    case=st.sampled_from(sorted(INTERPOLATIONS)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    size=st.sampled_from([1.0, 1e-7]),
    seed=st.integers(0, 100),
)
@example(shape=(2, 3, 4, 4), adds=True, relu=True, case="plain", dtype=torch.float16, size=1e-7, seed=0)
def test_fusing_changes_no_bit(shape, adds, relu, case, dtype, size, seed):
    # At size 1e-7, half precision stores some results as zero.
    inputs = make_inputs(shape, dtype=dtype, adds=adds, case=case, seed=seed, size=size)
    assert_bits_equal(inputs, (run_fused, run_unfused), relu=relu)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(200, 32, 32, 32), (200, 128, 8, 8), (7, 48, 9, 9), (3, 520, 3, 3)])
@pytest.mark.parametrize(
    ("case", "size"), [("plain", 1.0), ("plain", 1e-7), ("alpha=0.3", 1.0), ("stream, alpha per channel", 1.0)]
)
def test_fusing_changes_no_bit_on_a_gpu(case, size, shape, relu, adds, dtype):
    inputs = make_inputs(shape, "cuda", dtype, adds=adds, case=case, size=size)
    assert_bits_equal(inputs, (run_fused, run_unfused), relu=relu)


@every_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("relu", [False, True])
def test_alpha_1_without_stream_is_plain_batch_norm_to_the_last_bit(relu, dtype, device):
    inputs = make_inputs((20, 48, 6, 6), device, dtype, adds=True, case="alpha=1")

    def run_plain(inputs, *, relu):
        return run_fused(inputs._replace(interpolation=None), relu=relu)

    assert_bits_equal(inputs, (run_fused, run_plain), relu=relu)


@every_device
@pytest.mark.parametrize("function", [interpolated_batch_norm, traced_interpolated_batch_norm])
@pytest.mark.parametrize("case", ["alpha=0.3", "stream, alpha=0.3"])
def test_interpolated_batch_norm_returns_stream_statistics_without_gradient(case, function, device):
    x, _, weight, bias, interpolation = make_inputs((6, 5, 4, 4), device, case=case)
    y, mean, var = function(x, weight, bias, *interpolation, EPS)
    expected = [x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)]
    if interpolation.stream_mean is not None:
        stream = interpolation.stream_mean, interpolation.stream_var
        expected = [torch.lerp(old, new, interpolation.share) for old, new in zip(stream, expected, strict=True)]
    torch.testing.assert_close([mean, var], expected, rtol=1e-5, atol=1e-5)
    assert [tensor.requires_grad for tensor in (y, mean, var)] == [True, False, False]


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 2, 2), (2, 3, 2, 2, 2)], ids=str)
@pytest.mark.parametrize("function", [interpolated_batch_norm, traced_interpolated_batch_norm])
@pytest.mark.parametrize("case", ["alpha=0.3", "stream, alpha per channel"])
def test_interpolated_batch_norm_differentiates_any_number_of_dimensions(case, function, shape):
    interpolation = [
        value.double() if isinstance(value, torch.Tensor) else value for value in make_interpolation(case, 3)
    ]
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_() for size in (shape, 3, 3)
    )
    assert torch.autograd.gradcheck(lambda *given: function(*given, *interpolation, EPS)[0], (x, weight, bias))


def test_share_is_ignored_without_stream_statistics():
    inputs = make_inputs((4, 3, 5, 5), case="alpha=0.3")

    def run_with_share(inputs, *, relu):
        return run_fused(inputs._replace(interpolation=inputs.interpolation._replace(share=0.1)), relu=relu)

    assert_bits_equal(inputs, (run_fused, run_with_share), relu=False)


@every_device
def test_operators_make_their_own_counters(device):
    inputs = make_inputs((4, 40, 5, 5), device, adds=True, case="alpha=0.3")

    def run_without_counters(inputs, *, relu):
        return run_fused(inputs, relu=relu, counters=False)

    assert_bits_equal(inputs, (run_fused, run_without_counters), relu=True)


@every_device
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("case", ["plain", "alpha=0.3"])
def test_nan_or_inf_spreads_through_its_channel_only(case, relu, adds, bad, device):
    inputs = make_inputs((4, 3, 5, 5), device, adds=adds, case=case)
    with torch.no_grad():
        inputs.x[1, 2, 0, 0] = bad
        y, _ = run_fused(inputs, relu=relu)
    assert y.isnan().flatten(2).all(dim=2).tolist() == [[False, False, True]] * 4
    assert y[:, :2].isfinite().all()


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("case", ["plain", "alpha=0.3"])
def test_unused_results_have_no_gradient(case, used):
    inputs = make_inputs((2, 3, 4, 4), adds=True, case=case)
    gradients = []
    for compute in (run_fused, reference):
        results = compute(inputs, relu=True)
        objective = sum((results[index] * torch.arange(4)).sum() for index in used)
        gradients.append(torch.autograd.grad(objective, inputs.leaves(), materialize_grads=True))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-4, atol=1e-4)


class RecordCalls(TorchDispatchMode):
    """Records the names of all operators called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.names.append(str(op))
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", ["plain", "stream, alpha=0.3"])
def test_backward_allocates_no_zeros_for_unused_results(case):
    y, total = run_fused(make_inputs((2, 3, 4, 4), adds=True, case=case), relu=True)
    with RecordCalls() as calls:
        (y.sum() + total.sum()).backward()
    assert any("batch_norm_backward" in name for name in calls.names)
    assert not [name for name in calls.names if "zero" in name]


@on_gpu
@pytest.mark.parametrize("case", ["plain", "stream, alpha per channel"])
def test_kernels_repeat_to_the_last_bit_and_leave_counters_at_zero(case):
    x, addend, weight, bias, interpolation = make_inputs((64, 48, 16, 16), "cuda", adds=True, case=case)
    op = ops.add_batch_norm if interpolation is None else ops.add_interpolated_batch_norm
    counters = new_counters(1, 48, x.device)
    once, again = (op(x, addend, weight, bias, *(interpolation or ()), EPS, counters, 0, True) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))
    assert not counters.any()


@on_gpu
def test_operator_runs_without_the_kernels_on_a_gpu_in_double_precision():
    x, _, weight, bias, interpolation = make_inputs((4, 3, 5, 5), "cuda", torch.float64, case="stream, alpha=0.3")
    y, _, _ = traced_interpolated_batch_norm(x, weight, bias, *interpolation, EPS)
    assert y.dtype == torch.float64
    assert y.is_contiguous(memory_format=CHANNELS_LAST)
    expected, _ = reference(Inputs(x, None, weight, bias, interpolation), relu=False)
    assert relative_error(y, expected) < 1e-6


@every_device
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("case", ["plain", "alpha=0.3", "stream, alpha per channel"])
def test_operators_pass_opcheck(case, adds, device):
    x, addend, weight, bias, interpolation = make_inputs((2, 3, 4, 4), device, adds=adds, case=case)
    name = ("add_" if adds else "") + ("batch_norm" if interpolation is None else "interpolated_batch_norm")
    images = (x, addend) if adds else (x,)
    layer = (weight, bias, *(interpolation or ()), EPS, new_counters(1, 3, x.device), 0, True)
    torch.library.opcheck(getattr(ops, name).default, (*images, *layer))


@pytest.fixture
def set_smoke_test(monkeypatch):
    """A machine with Triton installed; sets what compiling a kernel does there."""
    cached = (can_compile, runs_triton, availability._find_error)
    for function in cached:
        function.cache_clear()
    monkeypatch.setattr(availability, "find_spec", lambda name: name)
    yield lambda smoke_test: monkeypatch.setattr(availability, "_smoke_test", smoke_test)
    for function in cached:
        function.cache_clear()


def raising(error):
    def smoke_test(_):
        raise error

    return smoke_test


def test_machine_that_cannot_compile_warns_once_and_runs_pytorch(set_smoke_test):
    device = torch.device("cuda", 0)
    set_smoke_test(raising(RuntimeError("Failed to find C compiler.")))
    with pytest.warns(RuntimeWarning, match="PyTorch's kernels.*Failed to find C compiler"):
        assert not can_compile(device)
    assert not can_compile(device), "and warns once"
    with torch._subclasses.FakeTensorMode():
        assert not is_supported(torch.empty(2, 3, 4, 4, device=device).to(memory_format=CHANNELS_LAST))


def test_out_of_memory_is_raised_and_tried_again(set_smoke_test):
    device = torch.device("cuda", 0)
    set_smoke_test(raising(torch.OutOfMemoryError()))
    with pytest.raises(torch.OutOfMemoryError):
        can_compile(device)
    set_smoke_test(lambda _: None)
    assert can_compile(device)


@on_gpu
def test_kernels_compile_on_a_gpu():
    assert can_compile(torch.zeros(1, device="cuda").device)


def run_traced(module, x, is_wanted=lambda _: True):
    """Return what `module` computes after `fuse`, and per graph how many layers were fused and how many with a sum."""
    counts = []
    sums = (ops.add_batch_norm.default, ops.add_interpolated_batch_norm.default)

    def backend(graph, _):
        replaced = fuse(graph, is_wanted)
        counts.append((replaced, sum(node.target in sums for node in graph.graph.nodes)))
        return graph.forward

    torch._dynamo.reset()
    return torch.compile(module, backend=backend)(x), counts


class Interpolated(nn.Module):
    """A batch norm with interpolated statistics; returns the stream statistics as well."""

    def __init__(self, case, *, computes_alpha=False):
        super().__init__()
        self.computes_alpha = computes_alpha
        self.weight, self.bias = (nn.Parameter(torch.randn(4)) for _ in range(2))
        for name, value in make_interpolation(case, 4)._asdict().items():
            if isinstance(value, float):
                self.share = value
            else:
                self.register_buffer(name, value)

    def forward(self, x):
        alpha = self.alpha.sqrt() if self.computes_alpha else self.alpha
        source = self.source_mean, self.source_var
        stream = self.stream_mean, self.stream_var
        return traced_interpolated_batch_norm(x, self.weight, self.bias, *source, *stream, alpha, self.share, EPS)


class PlainLayers(nn.Module):
    """Batch norms that can be fused in every way, and some that cannot be."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(
            nn.BatchNorm2d(4, track_running_stats=tracks, affine=affine)
            for tracks, affine in [(False, True)] * 4 + [(True, True), (False, False)]
        )

    def forward(self, x):
        plain, activated, summed, twice, source, bare = self.norms
        a = plain(x)
        b = torch.relu(activated(a))
        total = a + b
        c = F.relu(summed(total)) + total
        d = twice(c * 2)
        return d.relu() + d + source.eval()(c) + bare(x)


class InterpolatedLayers(nn.Module):
    """The same with interpolated statistics."""

    def __init__(self, case):
        super().__init__()
        self.norms = nn.ModuleList(Interpolated(case) for _ in range(4))

    def forward(self, x):
        plain, activated, summed, twice = self.norms
        a, *first = plain(x)
        b, *second = activated(a)
        total = a + torch.relu(b)
        c, *third = summed(total)
        c = F.relu(c) + total
        d, *fourth = twice(c * 2)
        return d.relu() + d + c, torch.stack([*first, *second, *third, *fourth])


def test_fuse_replaces_plain_batch_norms_that_use_batch_statistics():
    torch.manual_seed(0)
    module, x = PlainLayers(), torch.rand(3, 4, 5, 5)
    found, counts = run_traced(module, x)
    assert counts == [(4, 1)]
    torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["alpha=0.3", "stream, alpha per channel"])
@pytest.mark.parametrize("is_wanted", [lambda _: True, lambda _: False])
def test_fuse_replaces_interpolated_batch_norms_without_changing_a_bit(is_wanted, case):
    torch.manual_seed(0)
    module, x = InterpolatedLayers(case), torch.randn(3, 4, 5, 5, requires_grad=True)
    (found, found_statistics), counts = run_traced(module, x, is_wanted)
    expected, expected_statistics = module(x)
    assert counts == [(4, 1)]
    assert torch.equal(found, expected)
    assert torch.equal(found_statistics, expected_statistics)
    leaves = [x, *module.parameters()]
    gradients = (torch.autograd.grad((y * torch.arange(5)).sum(), leaves) for y in (found, expected))
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_fuse_shares_counters_among_all_layers():
    graphs = []

    def backend(graph, _):
        fuse(graph)
        graphs.append(graph.graph)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(nn.Sequential(PlainLayers(), InterpolatedLayers("alpha=0.3")), backend=backend)(
        torch.rand(3, 4, 5, 5)
    )
    (graph,) = graphs
    targets = (ops.batch_norm, ops.add_batch_norm, ops.interpolated_batch_norm, ops.add_interpolated_batch_norm)
    nodes = [node for node in graph.nodes if node.target in [op.default for op in targets]]
    (counters,) = (node for node in graph.nodes if node.target is ops.new_counters.default)
    assert counters.args[:2] == (8, 4)
    assert [node.args[-3] for node in nodes] == [counters] * 8
    assert sorted(node.args[-2] for node in nodes) == list(range(8))


def test_fuse_skips_the_sum_if_alpha_is_computed_after_it():
    class Computed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Interpolated("alpha=0.3", computes_alpha=True)

        def forward(self, x):
            return self.norm(x + x.flip(0))[0]

    module, x = Computed(), torch.randn(3, 4, 5, 5)
    found, counts = run_traced(module, x)
    assert counts == [(1, 0)]
    assert torch.equal(found, module(x))


def test_fuse_leaves_interpolated_batch_norms_of_other_shapes():
    module, x = Interpolated("stream, alpha=0.3"), torch.randn(3, 4, 5)
    found, counts = run_traced(module, x)
    assert counts == [(0, 0)]
    assert all(torch.equal(one, other) for one, other in zip(found, module(x), strict=True))


def clear_first(total):
    total[:, :1] = 0


@pytest.mark.parametrize(
    "change",
    [nn.ReLU(inplace=True), lambda total: total.mul_(-2), lambda total: total.view(-1).clamp_(min=0), clear_first],
    ids=["relu", "scaled", "view", "assigned"],
)
@pytest.mark.parametrize("make_norm", [lambda: nn.BatchNorm2d(4, track_running_stats=False), None], ids=["plain", ""])
def test_fuse_skips_a_sum_written_in_place(make_norm, change):
    class Changed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Interpolated("alpha=0.3") if make_norm is None else make_norm()

        def forward(self, x):
            total = x + x.flip(0)
            change(total)
            return self.norm(total)

    torch.manual_seed(0)
    module, x = Changed(), torch.randn(3, 4, 5, 5)
    found, counts = run_traced(module, x)
    assert counts == [(1, 0)]
    torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("position", "fused_sums"), [(0, 1), (1, 0), (2, 0)])
def test_fuse_takes_a_sum_with_three_users_only_if_gradients_add_in_the_same_order(position, fused_sums):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(4, track_running_stats=False)

        def forward(self, x):
            total = x + x.flip(0)
            uses = [lambda: total.sin(), lambda: 3 * total]
            uses.insert(position, lambda: self.norm(total))
            first, second, third = (use() for use in uses)
            return first + second + third

    _, counts = run_traced(Shared(), torch.randn(3, 4, 5, 5))
    assert counts == [(1, fused_sums)]


@pytest.mark.parametrize("network", ["wide_resnet", "segmentation"])
def test_fused_network_computes_the_same(network):
    model = build(network).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = module.running_var = None
    x = torch.rand(4, 3, 16, 16)
    results = []
    for logits, _ in (run_traced(model, x), (model(x), None)):
        objective = (logits.logsumexp(1).reshape(4, -1).mean(1) * torch.arange(4)).sum()
        results.append((logits, *torch.autograd.grad(objective, list(model.parameters()))))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
