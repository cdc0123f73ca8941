"""Metrics compared with scikit-learn and with brute-force counts."""

import math
from functools import partial

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from driftproof.errors import ConfigurationError, InputError, StateError
from driftproof.metrics import (
    BinnedScores,
    ConfusionMatrix,
    ErrorRate,
    OpenSetQuality,
    SelectionQuality,
    auroc,
    average_precision,
    calibration_error,
    fpr_at_tpr,
    h_score,
    oscr,
)
from driftproof.metrics.ranking import auroc_from_counts

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@st.composite
def sides(draw):
    """Scores of positives and negatives, from constant to nearly untied."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    distinct = draw(st.sampled_from([1, 2, 5, 40, 10_000]))
    sizes = draw(st.tuples(*[st.one_of(st.integers(1, 60), st.sampled_from([20, 40, 100]))] * 2))
    shift = draw(st.sampled_from([0, 1, distinct]))
    positives, negatives = (torch.randint(distinct, (size,), generator=generator).float() for size in sizes)
    return (positives + shift) / 7, negatives / 7


levels = st.sampled_from([0.05, 0.5, 0.8, 0.95, 0.99, 1.0])


def with_labels(positives, negatives):
    return np.repeat([1, 0], [len(positives), len(negatives)]), np.concatenate((positives, negatives))


def fpr_by_sklearn(positives, negatives, level):
    fpr, tpr, _ = sklearn.metrics.roc_curve(*with_labels(positives, negatives), drop_intermediate=False)
    return fpr[tpr == level].min() if level in tpr else np.interp(level, tpr, fpr)


@given(sides())
def test_auroc_equals_sklearn_and_pair_counting(scores):
    positives, negatives = scores
    difference = positives.double().unsqueeze(1) - negatives.double()
    pairs = ((difference > 0).double() + 0.5 * (difference == 0).double()).mean()
    found = auroc(positives, negatives)
    assert found == pytest.approx(sklearn.metrics.roc_auc_score(*with_labels(*scores)), abs=1e-12)
    assert found == pytest.approx(float(pairs), abs=1e-12)
    assert auroc(negatives, positives) == pytest.approx(1 - found, abs=1e-12)


@given(sides())
def test_average_precision_equals_sklearn(scores):
    expected = sklearn.metrics.average_precision_score(*with_labels(*scores))
    assert average_precision(*scores) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=9))
def test_auroc_of_more_pairs_than_int64_counts(counts):
    positives, negatives = torch.tensor(counts).T
    many = auroc_from_counts(positives * 2**33, negatives * 2**33)
    assert many == pytest.approx(auroc_from_counts(positives, negatives), nan_ok=True)


@given(sides())
def test_oscr_of_a_perfect_classifier_is_the_auroc(scores):
    known = torch.arange(len(torch.cat(scores))) < len(scores[0])
    assert oscr(torch.cat(scores), known, known) == pytest.approx(auroc(*scores), abs=1e-12)
    assert oscr(torch.cat(scores), ~known, known) == 0
    assert math.isnan(oscr(scores[0], known[: len(scores[0])], known[: len(scores[0])]))


def test_harmonic_mean_and_calibration_at_their_limits():
    assert (h_score(0.0, 0.0), h_score(80.0, 80.0)) == (0, 80)
    assert math.isnan(h_score(1.0, math.nan))
    assert math.isnan(calibration_error(torch.empty(0), torch.empty(0, dtype=torch.bool)))
    sure, right = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([True, True, False])
    assert (calibration_error(sure, right), calibration_error(sure, ~right)) == (0, 1)
    with pytest.raises(ConfigurationError, match="bins"):
        calibration_error(sure, right, bins=0)


def test_open_set_quality_needs_batches_of_one_shape_and_forgets_them():
    quality, known = OpenSetQuality(), torch.tensor([True, False])
    for shapes in ((2, 3), (3, 2)):
        with pytest.raises(InputError, match="of one shape"):
            quality.update(torch.rand(shapes[0], 4), torch.zeros(2), known, torch.rand(shapes[1]))
    quality.update(torch.rand(2, 4), torch.zeros(2), known, torch.rand(2))
    assert math.isfinite(quality.compute()["oscr"].value)
    quality.reset()
    with pytest.raises(StateError, match="Call `update` first"):
        quality.compute()


@given(sides(), levels)
def test_fpr_at_tpr_equals_interpolated_sklearn_curve(scores, level):
    constant = len(torch.cat(scores).unique()) == 1
    expected = 1 if constant else fpr_by_sklearn(*scores, level)
    assert fpr_at_tpr(*scores, tpr=level) == pytest.approx(expected, abs=1e-12)


def test_ranking_keeps_full_precision_and_accepts_any_shape_dtype_and_infinity():
    near = torch.tensor([1.0, 1 + 2**-23]), torch.tensor([1.0])
    assert auroc(*near) == 0.75
    assert auroc(near[0].double(), near[1]) == 0.75
    assert auroc(torch.ones(2, 3, 4, dtype=torch.float16), torch.zeros(5, 1, dtype=torch.bfloat16)) == 1
    assert auroc(torch.tensor([math.inf, 0.0]), torch.tensor([-math.inf, 0.0])) == 0.875
    assert auroc(torch.tensor([0.0]), torch.tensor([-0.0])) == 0.5
    large = torch.arange(200_000.0)
    assert auroc(large + 0.5, large) == pytest.approx(0.5 + 0.5 / 200_000, abs=1e-15)


@pytest.mark.parametrize("metric", [auroc, fpr_at_tpr, average_precision])
def test_ranking_returns_nan_for_empty_input_and_raises_for_nan(metric):
    some, none, bad = torch.rand(3), torch.empty(0), torch.tensor([0.5, math.nan])
    assert all(math.isnan(metric(*scores)) for scores in [(some, none), (none, some), (none, none)])
    for scores in [(some, bad), (bad, some), (bad, none)]:
        with pytest.raises(InputError, match="NaN"):
            metric(*scores)


@pytest.mark.parametrize("level", [0.0, -0.1, 1.1, math.nan])
def test_invalid_tpr_raises_configuration_error(level):
    with pytest.raises(ConfigurationError, match="tpr"):
        fpr_at_tpr(torch.rand(3), torch.rand(3), tpr=level)


@st.composite
def runs(draw):
    """Batches of several shapes, some without known samples, some empty."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    shapes = draw(st.lists(st.sampled_from([(0,), (1,), (7,), (2, 3, 4)]), max_size=5))
    share = draw(st.sampled_from([0.0, 0.5, 1.0]))
    batches = []
    for shape in shapes:
        labels = torch.randint(0, 4, shape, generator=generator)
        predicted = torch.where(torch.rand(shape, generator=generator) < 0.5, labels, 3 - labels)
        selected = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.6, 1.0]))
        batches.append((predicted, labels, torch.rand(shape, generator=generator) < share, selected))
    return batches


def concatenate(tensors):
    return torch.cat([torch.empty(0), *(tensor.flatten().float() for tensor in tensors)]).numpy()


@given(runs())
def test_error_rate_counts_known_samples_of_all_batches(batches):
    errors = ErrorRate()
    for predicted, labels, known, _ in batches:
        errors.update(predicted, labels, known)
    predicted, labels, known = (concatenate(batch[column] for batch in batches) for column in range(3))
    expected = 100 * np.mean(predicted[known > 0] != labels[known > 0]) if known.any() else math.nan
    assert errors.compute() == pytest.approx(expected, nan_ok=True)


@given(runs())
def test_selection_quality_equals_sklearn(batches):
    quality = SelectionQuality()
    for predicted, labels, known, selected in batches:
        quality.update(selected, predicted == labels, known)
    correct = concatenate((predicted == labels) & known for predicted, labels, known, _ in batches)
    selected, known = concatenate(batch[3] for batch in batches), concatenate(batch[2] for batch in batches)
    expected = dict.fromkeys(quality.compute(), math.nan)
    if len(correct):
        reference = sklearn.metrics
        expected["precision"] = reference.precision_score(correct, selected, zero_division=np.nan)
        expected["recall"] = reference.recall_score(correct, selected, zero_division=np.nan)
        expected["npv"] = reference.precision_score(correct, selected, pos_label=0, zero_division=np.nan)
        expected["rejected"] = 1 - selected.mean()
        expected["selected_known"] = reference.recall_score(known, selected, zero_division=np.nan)
        expected["selected_unknown"] = 1 - reference.recall_score(known, selected, pos_label=0, zero_division=np.nan)
    assert quality.compute() == pytest.approx(expected, nan_ok=True)


@st.composite
def label_maps(draw):
    classes = draw(st.integers(2, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    used = draw(st.integers(1, classes))
    dtype = draw(st.sampled_from([torch.uint8, torch.int64]))
    ignored = draw(st.sampled_from([0.0, 0.3, 1.0]))
    batches = []
    for shape in draw(st.lists(st.sampled_from([(5,), (2, 4, 3)]), min_size=1, max_size=4)):
        labels = torch.randint(0, used, shape, generator=generator, dtype=dtype)
        labels[torch.rand(shape, generator=generator) < ignored] = 255
        batches.append((torch.randint(0, used, shape, generator=generator), labels))
    return classes, batches


@given(label_maps())
def test_confusion_matrix_and_iou_equal_sklearn(classes_and_batches):
    classes, batches = classes_and_batches
    confusion = ConfusionMatrix(classes)
    for batch in batches:
        confusion.update(*batch)
    predicted, labels = (concatenate(column) for column in zip(*batches, strict=True))
    predicted, labels = predicted[labels != 255], labels[labels != 255]
    present = sorted({*predicted.tolist(), *labels.tolist()})
    if not present:
        assert math.isnan(confusion.mean_iou())
        return
    expected = np.full(classes, np.nan)
    expected[np.array(present, dtype=int)] = sklearn.metrics.jaccard_score(
        labels, predicted, labels=present, average=None, zero_division=0
    )
    reference = sklearn.metrics.confusion_matrix(labels, predicted, labels=range(classes))
    np.testing.assert_array_equal(confusion.compute().numpy(), reference)
    np.testing.assert_allclose(confusion.iou().numpy(), expected, rtol=1e-12)
    assert confusion.mean_iou() == pytest.approx(np.nanmean(expected))


def test_ignore_index_is_configurable():
    confusion = ConfusionMatrix(2, ignore_index=-1)
    confusion.update(torch.tensor([0, 1, 7]), torch.tensor([0, 1, -1]))
    assert confusion.mean_iou() == 1


@pytest.mark.parametrize(("predicted", "label"), [(0, 2), (0, 254), (0, -1), (2, 0), (-1, 0)])
def test_invalid_class_raises_input_error_on_compute(predicted, label):
    confusion = ConfusionMatrix(2)
    confusion.update(torch.tensor([0, 1, predicted]), torch.tensor([0, 1, label]))
    with pytest.raises(InputError, match=r"0\.\.1, or 255 .* but 1 pixels"):
        confusion.mean_iou()
    confusion.reset()
    confusion.update(torch.tensor([0, 1]), torch.tensor([0, 1]))
    assert confusion.mean_iou() == 1


def test_confusion_matrix_without_classes_raises_configuration_error():
    with pytest.raises(ConfigurationError, match="classes"):
        ConfusionMatrix(0)


every_metric = pytest.mark.parametrize(
    "kind", [ErrorRate, SelectionQuality, partial(ConfusionMatrix, 3), partial(BinnedScores, 3)]
)


def metric_and_batch(kind, device="cpu"):
    mask = torch.tensor([True, False, True, True], device=device)
    classes = torch.tensor([0, 1, 2, 1], device=device)
    batches = {ErrorRate: (classes, classes.flip(0), mask), SelectionQuality: (mask, mask.flip(0), mask.roll(1))}
    return kind(device=device), batches.get(kind, (classes, classes.flip(0)))


@every_metric
def test_inputs_of_different_shapes_raise_input_error(kind):
    metric, batch = metric_and_batch(kind)
    before = metric.counts
    with pytest.raises(InputError, match=r"\(4,\).* and \(4, 1\)"):
        metric.update(*batch[:-1], batch[-1].unsqueeze(1))
    assert metric.counts is before


@every_metric
def test_metric_state_can_be_reset_and_restored(kind):
    metric, batch = metric_and_batch(kind)
    empty = metric.counts
    metric.update(*batch)
    once = metric.counts
    metric.update(*batch)
    twice = metric.counts
    assert empty.count_nonzero() == 0
    torch.testing.assert_close(twice, 2 * once)
    metric.counts = once
    metric.update(*batch)
    torch.testing.assert_close(metric.counts, twice)
    metric.reset()
    torch.testing.assert_close(metric.counts, empty)


@every_metric
def test_metric_created_in_inference_mode_works_outside(kind):
    metric, batch = metric_and_batch(kind)
    with torch.inference_mode():
        inference_metric = kind()
        inference_metric.update(*batch)
    inference_metric.update(*batch)
    metric.update(*batch)
    torch.testing.assert_close(inference_metric.counts, 2 * metric.counts)


class SyncRecorder(TorchDispatchMode):
    """Records operations that would synchronize with the device."""

    SYNCHRONIZING = ("_local_scalar_dense", "nonzero", "bincount", "unique", "masked_select", "equal")

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.seen += [name] if name in self.SYNCHRONIZING else []
        return func(*args, **(kwargs or {}))


@every_metric
def test_update_does_not_synchronize(kind):
    metric, batch = metric_and_batch(kind)
    with SyncRecorder() as recorder:
        metric.update(*batch)
    assert recorder.seen == []


@on_cuda
@every_metric
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_update_on_cuda_does_not_synchronize_and_equals_cpu(kind):
    metric, batch = metric_and_batch(kind, "cuda")
    metric.update(*batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        metric.update(*batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected, on_host = metric_and_batch(kind)
    expected.update(*on_host)
    expected.update(*on_host)
    torch.testing.assert_close(metric.counts.cpu(), expected.counts)


@on_cuda
@given(sides())
def test_ranking_on_cuda_equals_cpu(scores):
    positives, negatives = scores
    assert auroc(positives.cuda(), negatives.cuda()) == auroc(positives, negatives)
    assert fpr_at_tpr(positives.cuda(), negatives.cuda()) == fpr_at_tpr(positives, negatives)
