"""Batch norm with the statistics of selected samples: against indexing in double precision, and in whole methods."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import driftproof as dp
from driftproof.adapter.engines import compiled
from driftproof.kernels import batch_norm, interpolated_batch_norm
from driftproof.statistics import base, batch, running

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
EPS = 1e-5


def make_inputs(shape, chosen, device="cpu", dtype=torch.float32, seed=0):
    """Random images with a mean far from zero, a layer, source and stream statistics, and a selection."""
    generator = torch.Generator().manual_seed(seed)
    x = (3 * torch.randn(shape, generator=generator) + 5).to(device, dtype)
    x = x.to(memory_format=torch.channels_last).requires_grad_()
    weight, bias = (torch.randn(shape[1], generator=generator).to(device).requires_grad_() for _ in range(2))
    means = [(torch.randn(shape[1], generator=generator) + 4).to(device) for _ in range(2)]
    variances = [(5 + 8 * torch.rand(shape[1], generator=generator)).to(device) for _ in range(2)]
    selected = torch.zeros(shape[0], dtype=torch.bool)
    selected[torch.randperm(shape[0], generator=generator)[:chosen]] = True
    return x, weight, bias, means, variances, selected.to(device)


def normalize_in_double(x, weight, bias, means, variances, selected, *, alpha, share):
    """The same from the selected images themselves, by indexing, and with autograd's gradient."""
    picked = x.double()[selected] if selected.sum() * x[0, 0].numel() >= 2 else x.double()
    mean, variance = picked.mean((0, 2, 3)), picked.var((0, 2, 3), correction=0)
    (source_mean, stream_mean), (source_variance, stream_variance) = (
        [values.double() for values in pair] for pair in (means, variances)
    )
    if share is not None:
        mean, variance = (1 - share) * stream_mean + share * mean, (1 - share) * stream_variance + share * variance
    kept = mean, variance
    if alpha is not None:
        between = alpha * (1 - alpha) * (mean - source_mean) ** 2
        variance = alpha * variance + (1 - alpha) * source_variance + between
        mean = alpha * mean + (1 - alpha) * source_mean
    y = (x.double() - mean[:, None, None]) / (variance[:, None, None] + EPS).sqrt()
    return y * weight.double()[:, None, None] + bias.double()[:, None, None], *kept


def assert_matches_double(inputs, *, alpha, share, forward, backward):
    x, weight, bias, means, variances, selected = inputs
    expected, *kept = normalize_in_double(*inputs, alpha=alpha, share=share)
    if alpha is None:
        y = batch_norm(x, weight, bias, EPS, selected)
    else:
        stream = (None, None) if share is None else (means[1], variances[1])
        mixed = (means[0], variances[0], *stream, torch.full((1,), alpha, device=x.device), share or 1.0)
        y, *found = interpolated_batch_norm(x, weight, bias, *mixed, EPS, selected)
        for one, other in zip(found, kept, strict=True):
            torch.testing.assert_close(one.double(), other.detach(), rtol=1e-4, atol=1e-4)
    direction = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    results = [torch.autograd.grad((each * direction).sum(), (x, weight, bias)) for each in (y, expected)]
    limits = [forward, *[backward] * 3]
    for limit, one, other in zip(limits, (y, *results[0]), (expected, *results[1]), strict=True):
        difference = (one.detach().double() - other.detach().double()).norm()
        assert difference <= limit * other.detach().double().norm().clamp(min=1e-3)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 20), st.integers(1, 4), st.integers(2, 4)),
    chosen=st.integers(0, 5),
    alpha=st.sampled_from([None, 0.3, 1.0]),
    share=st.sampled_from([None, 0.2]),
    seed=st.integers(0, 100),
)
def test_statistics_of_selected_samples_match_double_precision(shape, chosen, alpha, share, seed):
    inputs = make_inputs(shape, chosen, seed=seed)
    share = None if alpha is None else share
    assert_matches_double(inputs, alpha=alpha, share=share, forward=1e-5, backward=1e-4)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("alpha", "share"), [(None, None), (1.0, None), (1.0, 0.05), (0.3, 0.2)])
@pytest.mark.parametrize(
    ("shape", "chosen"), [((200, 32, 32, 32), 60), ((64, 128, 8, 8), 0), ((300, 48, 3, 3), 1), ((3, 520, 1, 1), 1)]
)
def test_kernels_of_selected_samples_match_double_precision(shape, chosen, alpha, share, dtype):
    exact = dtype == torch.float32
    inputs = make_inputs(shape, chosen, "cuda", dtype)
    limits = {"forward": 1e-5 if exact else 1e-2, "backward": 1e-4 if exact else 6e-2}
    assert_matches_double(inputs, alpha=alpha, share=share, **limits)


@every_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_selection_of_all_samples_is_no_selection(dtype, device):
    x, weight, bias, _, _, _ = make_inputs((20, 48, 6, 6), 0, device, dtype)
    everything = torch.ones(20, dtype=torch.bool, device=device)
    one, other = (batch_norm(x, weight, bias, EPS, selected) for selected in (everything, None))
    torch.testing.assert_close(one, other)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x)
    gradients = [torch.autograd.grad((y * direction).sum(), (x, weight, bias)) for y in (one, other)]
    torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-2)


@every_device
def test_samples_that_are_not_selected_leave_statistics_alone(device):
    x, weight, bias, _, _, selected = make_inputs((6, 5, 3, 3), 4, device)
    other = x.detach().clone()
    other[~selected] = 100.0
    rows = selected.nonzero().flatten()
    one, another = (batch_norm(images, weight, bias, EPS, selected)[rows] for images in (x, other))
    torch.testing.assert_close(one, another, rtol=1e-4, atol=1e-4)


def make_model():
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8)]
    return nn.Sequential(*stem, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()


METHODS = {
    "roid": lambda model, **options: dp.roid(model, **options),
    "cmf": lambda model, **options: dp.cmf(model, **options),
    "rotta": lambda model, **options: dp.rotta(model, capacity=6, update_every=4, **options),
    "sotta": lambda model, **options: dp.sotta(model, capacity=6, update_every=4, confidence=0.3, **options),
    "stamp": lambda model, **options: dp.stamp(model, capacity=6, num_views=2, entropy_share=1.0, **options),
}


@pytest.mark.parametrize(
    ("device", "engine"), [("cpu", "eager"), *(pytest.param("cuda", each, marks=on_gpu) for each in ("eager", "graph"))]
)
@pytest.mark.parametrize("name", METHODS)
def test_methods_learn_the_same_with_one_kernel_for_selected_samples(name, device, engine, monkeypatch):
    monkeypatch.setattr(compiled, "can_compile", lambda device: False)  # captured as they are, without tracing
    generator, results = torch.Generator().manual_seed(3), []
    stream = [torch.rand(8, 3, 8, 8, generator=generator).to(device) for _ in range(6)]
    model = make_model().to(device)
    calls = []

    def fuses(layer, x, mask):
        calls.append(mask.shape)
        return mask.ndim == 1 and x.ndim == 4

    for rule in (fuses, lambda *_: False):
        for module in (batch, running):
            monkeypatch.setattr(module, "can_fuse_selected", rule)
        # Adam would turn the sign of a gradient of nearly zero into a whole step.
        settings = {"optimizer": torch.optim.SGD, "lr": 1e-2, "engine": engine, "precision": "fp32"}
        adapter = METHODS[name](copy.deepcopy(model), channels_last=device == "cuda", **settings)
        results.append(torch.stack([adapter(images) for images in stream]))
    assert calls  # the method does take statistics of selected samples
    torch.testing.assert_close(*results, rtol=1e-3, atol=2e-4)


def test_masks_of_pixels_and_weights_are_left_to_pytorch():
    layer, x = nn.BatchNorm2d(3), torch.rand(2, 3, 4, 4)
    assert not base.can_fuse_selected(layer, x, torch.ones(2, 4, 4, dtype=torch.bool))
    assert not base.can_fuse_selected(layer, x, torch.ones(2))
    assert not base.can_fuse_selected(nn.BatchNorm2d(3, affine=False), x, torch.ones(2, dtype=torch.bool))
