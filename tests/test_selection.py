"""Selections against loops over samples."""

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

import driftproof as dp
from driftproof.selection import SampleWeights, Selection
from stubs import step_with
from test_losses import RANK_2, RANK_4, logits


def weights_by_loop(step, keep):
    """One where `keep` holds for a sample's probabilities, by loops."""
    expected = torch.zeros_like(step.weights)
    for place in np.ndindex(*expected.shape):
        index = (place[0], slice(None), *place[1:])
        expected[place] = float(keep(step.logits.detach()[index].numpy(), index))
    return expected


@given(logits(), st.integers(0, 2**31), st.sampled_from([0.0, -0.2, 0.1]), st.sampled_from(["softmax", "logits"]))
def test_confidence_difference(z, seed, margin, on):
    original = z + torch.randn(z.shape, generator=torch.Generator().manual_seed(seed), dtype=z.dtype)
    step = step_with(z, original)

    def keep(adapted, index):
        reference = original[index].numpy()
        k = reference.argmax()
        if on == "softmax":
            return scipy.special.softmax(adapted)[k] - scipy.special.softmax(reference)[k] >= margin
        return adapted[k] - reference[k] >= margin

    weights = dp.ConfidenceDifference(margin, on).weights(step)
    assert not weights.requires_grad
    assert torch.equal(weights, weights_by_loop(step, keep))


@given(logits())
def test_confidence_difference_selects_all_where_networks_agree(z):
    assert dp.ConfidenceDifference().weights(step_with(z)).all()
    assert dp.ConfidenceDifference(on="logits").weights(step_with(z)).all()
    assert not dp.ConfidenceDifference(margin=1e-12).weights(step_with(z)).any(), "the comparison is exact"


@given(logits(), st.sampled_from([None, 0.3, math.inf]))
def test_entropy_below_and_weight(z, threshold):
    step = step_with(z)
    limit = 0.4 * math.log(z.shape[1]) if threshold is None else threshold

    def entropy(v):
        return scipy.stats.entropy(scipy.special.softmax(v))

    assert torch.equal(dp.EntropyBelow(threshold).weights(step), weights_by_loop(step, lambda v, _: entropy(v) < limit))
    if threshold != math.inf:
        expected = weights_by_loop(step, lambda v, _: math.exp(limit - entropy(v)))
        torch.testing.assert_close(dp.EntropyWeight(threshold).weights(step), expected)


@given(logits(), st.sampled_from([0.3, 0.5, 0.9]))
def test_confidence_above(z, threshold):
    step = step_with(z)
    expected = weights_by_loop(step, lambda v, _: scipy.special.softmax(v).max() >= threshold)
    assert torch.equal(dp.ConfidenceAbove(threshold).weights(step), expected)


@pytest.mark.parametrize("shape", [(6, 4), (2, 4, 3, 3)])
@pytest.mark.parametrize("selection", [dp.ConfidenceAbove, dp.EntropyBelow])
def test_source_network_decides_where_it_is_asked(selection, shape):
    own, source = 3 * torch.randn(2, *shape)
    ours, theirs = selection(0.7).weights(step_with(own)), selection(0.7).weights(step_with(source))
    step = step_with(own, source)
    assert torch.equal(selection(0.7, network="adapting").weights(step), ours)
    assert torch.equal(selection(0.7, network="source").weights(step), theirs)
    assert not torch.equal(ours, theirs)


def test_product_keeps_repelling_weights():
    class Repelling(Selection):
        def weights(self, step):
            return SampleWeights(torch.full_like(step.weights, 2.0), torch.full_like(step.weights, 3.0))

    step = step_with(torch.zeros(4, 3))
    attract, repel = (Repelling() & dp.ConfidenceAbove(0.9) & Repelling()).weights(step)
    assert torch.equal(attract, torch.zeros(4))
    assert torch.equal(repel, torch.full((4,), 9.0))


@given(st.one_of(RANK_2, RANK_4), st.integers(0, 2**31), st.sampled_from([0.3, 0.7, 0.95]))
def test_non_redundant_follows_its_moving_average(shape, seed, similarity):
    generator = torch.Generator().manual_seed(seed)
    combined = dp.EntropyBelow(0.6 * math.log(shape[1])) & dp.NonRedundant(similarity)
    average = None
    for _ in range(5):
        step = step_with(torch.randn(*shape, generator=generator, dtype=torch.float64) * 3)
        kept = []

        def keep(v, _, average=average, kept=kept):
            p = scipy.special.softmax(v)
            good = scipy.stats.entropy(p) < 0.6 * math.log(len(p))
            if good and average is not None:
                cosine = average @ p / (np.linalg.norm(average) * np.linalg.norm(p))
                good = abs(cosine) < similarity
            if good:
                kept.append(p)
            return good

        expected = weights_by_loop(step, keep)
        step.weights = combined.weights(step)
        assert torch.equal(step.weights, expected)
        combined.on_batch(step)
        if kept:
            mean = np.mean(kept, axis=0)
            average = mean if average is None else 0.9 * average + 0.1 * mean
        average_kept = list(combined.components)[1].average
        if average is not None:
            torch.testing.assert_close(average_kept, torch.from_numpy(average))


def test_product_multiplies_weights_and_flattens():
    class Constant(Selection):
        def __init__(self, value):
            super().__init__()
            self.value = value

        def weights(self, step):
            return torch.full_like(step.weights, self.value)

    combined = Constant(2.0) & (Constant(3.0) & Constant(0.5))
    assert len(list(combined.components)) == 3
    step = step_with(torch.zeros(4, 3))
    assert torch.equal(combined.weights(step), torch.full((4,), 3.0))
    assert combined.mean_entropy == 0
    assert (combined & dp.ConfidenceDifference()).mean_entropy == 0.5
    assert repr(dp.EntropyBelow(1.0) & dp.NonRedundant(0.4)) == (
        "EntropyBelow(threshold=1.0, network='adapting') & NonRedundant(similarity=0.4, momentum=0.9)"
    )


def test_invalid_hyper_parameters_are_refused():
    with pytest.raises(dp.errors.ConfigurationError, match="softmax"):
        dp.ConfidenceDifference(on="probabilities")
    with pytest.raises(dp.errors.ConfigurationError, match="threshold"):
        dp.ConfidenceAbove(1.5)
    for selection in (dp.ConfidenceAbove, dp.EntropyBelow):
        with pytest.raises(dp.errors.ConfigurationError, match="network"):
            selection(0.5, network="teacher")
    for margin in (float("nan"), "0"):
        with pytest.raises(dp.errors.ConfigurationError, match="margin"):
            dp.ConfidenceDifference(margin)
