"""Losses and scores against slow references."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import driftproof as dp
from driftproof import losses, outputs, predictions, scores

RANK_2 = st.tuples(st.integers(1, 6), st.integers(2, 7))
RANK_4 = st.tuples(st.integers(1, 3), st.integers(2, 5), st.integers(1, 4), st.integers(1, 4))


@st.composite
def logits(draw):
    shape = draw(st.one_of(RANK_2, RANK_4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * draw(st.sampled_from([0.1, 1.0, 8.0]))


def per_sample(function, *tensors):
    """Apply a function of one sample's class vectors to every sample, by loops."""
    first = tensors[0]
    result = torch.empty(first.shape[0], *first.shape[2:], dtype=torch.float64)
    for place in np.ndindex(*result.shape):
        index = (place[0], slice(None), *place[1:])
        result[place] = float(function(*(tensor[index].numpy() for tensor in tensors)))
    return result


@given(logits())
def test_entropy(z):
    expected = per_sample(lambda v: scipy.stats.entropy(scipy.special.softmax(v)), z)
    torch.testing.assert_close(scores.entropy(z), expected)


@given(logits(), st.sampled_from([0.1, 0.8, 1.0]))
def test_gce(z, q):
    expected = per_sample(lambda v: (1 - scipy.special.softmax(v).max() ** q) / q, z)
    step = SimpleNamespace(log_probabilities=predictions.log_probabilities(z))
    torch.testing.assert_close(losses.GCE(q).per_sample(step), expected)


def test_gce_tends_to_cross_entropy_on_own_labels():
    z = torch.randn(20, 6, dtype=torch.float64)
    expected = torch.nn.functional.cross_entropy(z, z.argmax(1), reduction="none")
    torch.testing.assert_close(losses.gce(z.log_softmax(1), 1e-9), expected, rtol=1e-6, atol=1e-8)


def slow_conjugate(z, epsilon, temperature):
    z = z / temperature
    p = scipy.special.softmax(z)
    matrix = np.eye(len(p)) + epsilon * (np.diag(p) - np.outer(p, p))
    labels = np.linalg.solve(matrix, p)
    return scipy.special.logsumexp(z) - labels @ z + epsilon * (labels * (1 - p)).sum()


@given(logits(), st.sampled_from([0.0, 1.0, 6.0, 8.0]), st.sampled_from([0.5, 1.0, 2.0]))
def test_conjugate(z, epsilon, temperature):
    expected = per_sample(lambda v: slow_conjugate(v, epsilon, temperature), z)
    found = losses.Conjugate(epsilon, temperature).per_sample(SimpleNamespace(logits=z))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@given(logits(), st.sampled_from([0.0, 6.0]))
def test_conjugate_labels_sum_to_one(z, epsilon):
    total = losses.conjugate_labels(z.softmax(1), epsilon).sum(1)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_conjugate_gradient_flows_through_the_labels():
    z = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: losses.conjugate(v, 6.0), z)
    (gradient,) = torch.autograd.grad(losses.conjugate(z, 6.0).sum(), z)
    for i in range(3):
        for k in range(4):
            moved = z.detach()[i].numpy().copy()
            moved[k] += 1e-6
            numeric = (slow_conjugate(moved, 6.0, 1.0) - slow_conjugate(z.detach()[i].numpy(), 6.0, 1.0)) / 1e-6
            assert gradient[i, k] == pytest.approx(numeric, rel=1e-3, abs=1e-6)


@given(logits())
def test_conjugate_without_epsilon_is_the_entropy(z):
    torch.testing.assert_close(losses.conjugate(z), scores.entropy(z))


def softmax_of(v, k):
    return scipy.special.softmax(v)[k]


@given(logits(), st.integers(0, 2**31))
def test_confidence_difference(z, seed):
    original = z + torch.randn(z.shape, generator=torch.Generator().manual_seed(seed), dtype=z.dtype)
    expected = per_sample(lambda o, a: softmax_of(o, o.argmax()) - softmax_of(a, o.argmax()), original, z)
    torch.testing.assert_close(scores.confidence_difference(z, original), expected)
    expected = per_sample(lambda o, a: a[o.argmax()] - o[o.argmax()], original, z)
    torch.testing.assert_close(predictions.logit_change(z, original), expected)


@given(logits())
def test_msp_max_logit_energy(z):
    torch.testing.assert_close(scores.msp(z), per_sample(lambda v: 1 - scipy.special.softmax(v).max(), z))
    torch.testing.assert_close(scores.max_logit(z), per_sample(lambda v: -v.max(), z))
    torch.testing.assert_close(scores.energy(z), per_sample(lambda v: -scipy.special.logsumexp(v), z))


@pytest.mark.parametrize("score", [scores.msp, scores.max_logit, scores.energy, scores.entropy])
def test_unsure_prediction_scores_higher(score):
    confident, unsure = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.9, 0.8]])
    assert score(unsure) > score(confident)


@given(logits())
def test_mean_prediction_entropy(z):
    p = z.softmax(1).transpose(0, 1).flatten(1).numpy()
    expected = scipy.stats.entropy(p.mean(axis=1))
    assert float(predictions.mean_prediction_entropy(z.softmax(1))) == pytest.approx(expected, abs=1e-6)


@given(logits(), st.integers(0, 2**31))
def test_mean_prediction_entropy_over_selected(z, seed):
    weights = torch.rand(z[:, 0].shape, generator=torch.Generator().manual_seed(seed), dtype=z.dtype).round()
    value = float(predictions.mean_prediction_entropy(z.softmax(1), weights))
    chosen = z.softmax(1).transpose(0, 1).flatten(1)[:, weights.flatten() > 0].numpy()
    if chosen.shape[1]:
        assert value == pytest.approx(scipy.stats.entropy(chosen.mean(axis=1)), abs=1e-6)
    else:
        assert math.isfinite(value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@settings(max_examples=20)
@given(z=logits())
def test_half_precision_is_upcast(dtype, z):
    half = z.to(dtype)
    assert scores.entropy(half).dtype == torch.float32
    torch.testing.assert_close(scores.msp(half), scores.msp(half.float()))
    assert (scores.confidence_difference(half, half) == 0).all()


@pytest.mark.parametrize(
    "construct",
    [
        lambda: losses.GCE(0.0),
        lambda: losses.GCE(1.1),
        lambda: losses.Conjugate(-1.0),
        lambda: losses.Conjugate(temperature=0.0),
        lambda: dp.EMA(1.5),
        lambda: outputs.RandomViews(0),
        lambda: outputs.MultiScale(()),
        lambda: outputs.MultiScale((-1.0,)),
    ],
)
def test_invalid_hyper_parameters_are_refused(construct):
    with pytest.raises(dp.errors.ConfigurationError, match="Expected"):
        construct()
