"""Segmentation: selection against a loop over pixels, alarms against scipy, metrics against scikit-learn."""

import itertools
import math

import numpy as np
import pytest
import scipy.ndimage
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import driftproof as dp
from driftproof.bench.metrics import METRICS
from driftproof.bench.spec import Spec
from driftproof.data.scenes import UNKNOWN, VOID
from driftproof.errors import InputError
from driftproof.methods.by_name import build_method
from driftproof.methods.oracle import Oracle, find_oracle
from driftproof.metrics import BinnedScores, SelectionQuality, auroc, fpr_at_tpr
from driftproof.models import DeepLabV3Plus
from driftproof.record import Record
from driftproof.streams import StreamBatch
from networks import CLASSES, randomize

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return randomize(DeepLabV3Plus(CLASSES, depth=18, width=4), shape=(3, 24, 32)).eval()


def scenes(count=2, seed=0):
    return torch.rand(count, 3, 24, 32, generator=torch.Generator().manual_seed(seed))


def adapt(model, steps=4, **options):
    """Adapt for some steps; return the adapter and the next batch."""
    adapter = dp.tent(model, lr=3e-2, select=dp.ConfidenceDifference(margin=-0.2), **options)
    for seed in range(steps):
        adapter(scenes(seed=seed))
    return adapter, scenes(seed=steps)


def label_maps(count=2, height=6, width=7, seed=0):
    """Labels with unknown and void pixels, as a stream gives them."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, CLASSES + 1, (count, height, width), generator=random)
    labels[labels == CLASSES] = VOID
    return labels


def make_batch(labels, images=None):
    images = torch.zeros(len(labels), 3, *labels.shape[1:]) if images is None else images
    return StreamBatch(images, labels, "fog", 1, (labels >= 0) & (labels != VOID))


# Selection and alarms


@pytest.mark.parametrize("on", ["softmax", "logits"])
def test_selection_equals_a_loop_over_pixels(model, on):
    margin = -0.02
    adapter = dp.tent(model, lr=3e-2, select=dp.ConfidenceDifference(margin, on=on))
    for seed in range(3):
        adapter(scenes(seed=seed))
    images = scenes(seed=3)
    with torch.no_grad():
        ours, original = adapter.network(images), adapter.source(images)
    adapter(images)
    selected = adapter.last.selected
    assert 0 < adapter.last.kept < 1
    for place, row, column in np.ndindex(*selected.shape):
        now, before = ours[place, :, row, column], original[place, :, row, column]
        first = int(before.argmax())
        if on == "softmax":
            now, before = now.softmax(0), before.softmax(0)
        gain = float(now[first] - before[first])
        if abs(gain - margin) > 1e-5:
            assert bool(selected[place, row, column]) == (gain >= margin)


def test_loss_is_mean_entropy_of_selected_pixels_minus_mean_prediction_entropy(model):
    adapter, images = adapt(model)
    with torch.no_grad():
        p = adapter.network(images).softmax(dim=1)
    adapter(images)
    entropy = -(p * p.log()).sum(dim=1)
    mean = p.mean(dim=(0, 2, 3))
    expected = entropy[adapter.last.selected].mean() + 0.5 * (mean * mean.log()).sum()
    assert adapter.last.loss == pytest.approx(float(expected), rel=1e-4)


def test_alarm_regions_equal_scipy_labels(model):
    adapter, images = adapt(model)
    adapter(images)
    novelty = adapter.last.novelty
    threshold = float(novelty.quantile(0.8))
    events = dp.Alarm(threshold, min_area=2)(novelty)
    expected = set()
    for place, picture in enumerate(novelty.numpy()):
        regions, _ = scipy.ndimage.label(picture > threshold)
        for index, (rows, columns) in enumerate(scipy.ndimage.find_objects(regions), start=1):
            area = int((regions == index).sum())
            if area >= 2:
                expected.add((place, area, (rows.start, columns.start, rows.stop, columns.stop)))
    assert {(event.sample, event.area, event.box) for event in events} == expected
    assert expected


@pytest.mark.parametrize("make", [dp.ttn, lambda model: dp.swr(model, prototypes=False)], ids=["ttn", "swr"])
def test_source_labels_outside_the_classes_are_refused(model, make):
    maps = torch.zeros(2, 24, 32, dtype=torch.long)
    maps[0, 3, 4] = UNKNOWN
    adapter = make(model)
    with pytest.raises(InputError, match=r"source labels in 0\.\.4, or 255 where .* but got 254"):
        adapter.prepare([(scenes(), maps)])
    assert not adapter.prepared


def test_first_batch_selects_every_pixel_and_a_smaller_last_batch_works(model):
    adapter = dp.tent(model, lr=1e-2, select=dp.ConfidenceDifference(margin=-0.2))
    adapter(scenes())
    assert adapter.last.kept == 1
    assert adapter(scenes(count=1)).isfinite().all()
    assert adapter.last.stepped


# Metrics


def truncate(scores):
    """Keep the leading 16 bits of scores."""
    return torch.from_numpy((scores.numpy().view(np.int32) & ~0xFFFF).view(np.float32))


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.sampled_from([1.0, 1e-6, 1e-30]), st.integers(1, 60), st.integers(1, 60))
def test_binned_scores_equal_exact_ones_on_truncated_scores(seed, scale, positives, negatives):
    random = torch.Generator().manual_seed(seed)
    one = truncate(scale * torch.randn(positives, generator=random))
    other = truncate(scale * (torch.randn(negatives, generator=random) - 0.5))
    binned = BinnedScores(3)
    binned.update(torch.cat([one, other]), torch.tensor([2] * positives + [0] * negatives))
    binned.update(torch.tensor([5.0, math.nan]), torch.tensor([-1, -1]))
    assert not binned.has_nan
    assert binned.auroc(2, 0, 1) == pytest.approx(auroc(one, other))
    assert binned.fpr_at_tpr(2, 0) == pytest.approx(fpr_at_tpr(one, other))
    assert math.isnan(binned.auroc(1, 0))


def test_binned_scores_keep_the_order_of_distinct_scores():
    scores = torch.tensor([-math.inf, -2.0, -1.0, -1e-30, -0.0, 0.0, 1e-38, 1e-7, 1.01e-7, 0.5, 0.505, 3.0, math.inf])
    for low, high in itertools.pairwise(scores):
        binned = BinnedScores(2)
        binned.update(torch.stack([high, low]), torch.tensor([0, 1]))
        assert binned.auroc(0, 1) == (0.5 if high == low else 1.0)


def test_nan_score_makes_binned_auroc_nan():
    binned = BinnedScores(2)
    binned.update(torch.tensor([0.0, math.nan]), torch.tensor([0, 1]))
    assert binned.has_nan
    assert math.isnan(binned.auroc(0, 1))
    with pytest.raises(dp.errors.ConfigurationError, match="groups"):
        BinnedScores(0)


@given(st.integers(0, 2**31))
@settings(max_examples=15)
def test_selection_quality_counts_labeled_pixels_only(seed):
    labels = label_maps(seed=seed)
    random = torch.Generator().manual_seed(seed + 1)
    selected = torch.rand(labels.shape, generator=random) < 0.5
    correct = torch.rand(labels.shape, generator=random) < 0.5
    batch = make_batch(labels)
    with_mask, without = SelectionQuality(), SelectionQuality()
    with_mask.update(selected, correct, batch.known, batch.labeled)
    counted = labels != VOID
    without.update(selected[counted], correct[counted], batch.known[counted])
    assert torch.equal(with_mask.counts, without.counts)


def compute_metric(name, visits):
    metric = METRICS[name](CPU)
    for logits, batch, record in visits:
        metric.update(logits, batch, record)
    return metric.compute()


def make_visits(count, seed=0):
    """Logits, batches and records of one domain."""
    random = torch.Generator().manual_seed(seed)
    for index in range(count):
        labels = label_maps(seed=1000 * seed + index)
        logits = torch.randn(2, CLASSES, *labels.shape[1:], generator=random)
        novelty = truncate(torch.randn(labels.shape, generator=random))
        selected = torch.rand(labels.shape, generator=random) < 0.7
        yield logits, make_batch(labels), Record(selected, novelty, torch.zeros(2, dtype=torch.bool), torch.tensor(1.0))


def mean_iou_of(visits):
    truth = np.concatenate([batch.labels[batch.known].numpy() for _, batch, _ in visits])
    predicted = np.concatenate([logits.argmax(1)[batch.known].numpy() for logits, batch, _ in visits])
    overlaps = sklearn.metrics.jaccard_score(truth, predicted, average=None, labels=sorted({*truth, *predicted}))
    return 100 * overlaps.mean()


@pytest.mark.parametrize("count", [1, 7, 20, 45])
def test_iou_equals_scikit_learn_at_twenty_points_of_a_domain(count):
    visits = list(make_visits(count, seed=count))
    found = compute_metric("iou", visits)
    assert found["mean_iou"] == pytest.approx(mean_iou_of(visits)) == pytest.approx(found["mean_iou@100"])
    points = {name: value for name, value in found.items() if name.startswith("mean_iou@")}
    assert list(points) == [f"mean_iou@{percent:02}" for percent in range(5, 101, 5)]
    for name, value in points.items():
        passed = math.ceil(count * int(name.partition("@")[2]) / 100)
        assert value == pytest.approx(mean_iou_of(visits[:passed]))
    by_class = [found[f"iou/{index:02}"] for index in range(CLASSES)]
    assert found["mean_iou"] == pytest.approx(np.nanmean(by_class))


def test_absent_class_has_no_iou():
    logits = torch.zeros(1, CLASSES, 1, 2)
    logits[:, 1] = 1
    found = compute_metric("iou", [(logits, make_batch(torch.tensor([[[1, VOID]]])), None)])
    assert found["iou/01"] == 100
    assert math.isnan(found["iou/00"])
    assert found["mean_iou"] == 100


def test_pixel_novelty_and_rejection_equal_scikit_learn():
    visits = list(make_visits(5))
    found = compute_metric("pixels", visits)
    labels = torch.cat([batch.labels for _, batch, _ in visits]).flatten()
    predicted = torch.cat([logits.argmax(1) for logits, _, _ in visits]).flatten()
    novelty = torch.cat([record.novelty for _, _, record in visits]).flatten()
    doubt = 1 - torch.cat([logits.softmax(1).amax(1) for logits, _, _ in visits]).flatten()
    rejected = ~torch.cat([record.selected for _, _, record in visits]).flatten()
    unknown, labeled = labels == -1, labels != VOID
    right = labeled & (predicted == labels)
    wrong = labeled & ~right & ~unknown
    for name, others in {"wrong": wrong, "unknown": unknown, "both": wrong | unknown}.items():
        asked = right | others
        expected = sklearn.metrics.roc_auc_score(others[asked], novelty[asked])
        assert found[f"novelty/{name}/auroc"] == pytest.approx(100 * expected)
        assert found[f"novelty/{name}/fpr"] == pytest.approx(100 * fpr_at_tpr(-novelty[right], -novelty[others]))
        expected = sklearn.metrics.roc_auc_score(others[asked], doubt[asked])
        assert found[f"msp/{name}/auroc"] == pytest.approx(100 * expected, abs=0.5), "close scores count as ties"
    bad, left_out = (wrong | unknown)[labeled], rejected[labeled]
    shares = {
        "precision": sklearn.metrics.precision_score(bad, left_out),
        "chance": float(bad.float().mean()),
        "recall": sklearn.metrics.recall_score(bad, left_out),
        "recall_wrong": float(rejected[wrong].float().mean()),
        "recall_unknown": float(rejected[unknown].float().mean()),
    }
    assert {name: found[f"rejection/{name}"].value for name in shares} == pytest.approx(
        {name: 100 * share for name, share in shares.items()}
    )


def test_rejection_is_nan_where_nothing_is_selected():
    visits = [
        (logits, batch, Record(torch.zeros_like(record.selected), record.novelty, record.quarantined))
        for logits, batch, record in make_visits(3)
    ]
    found = compute_metric("pixels", visits)
    assert all(math.isnan(ratio.value) for name, ratio in found.items() if name.startswith("rejection/"))
    assert not any(math.isnan(value) for name, value in found.items() if name.startswith("novelty/"))


# The oracle


def test_oracle_leaves_unknown_and_void_pixels_out_of_the_loss(model):
    labels = label_maps(height=24, width=32)
    batch = make_batch(labels, scenes())
    adapter = build_method("tent", model, {"lr": 1e-2, "oracle": True})
    with torch.no_grad():
        p = adapter.network(batch.images).softmax(dim=1)
    find_oracle(adapter).set_known_mask(batch.known)
    adapter(batch.images)
    entropy = -(p * p.log()).sum(dim=1)
    known = torch.tensor([[[0 <= int(label) < CLASSES for label in row] for row in rows] for rows in labels])
    assert adapter.last.loss == pytest.approx(float(entropy[known].mean()), rel=1e-4)
    assert torch.equal(adapter.last.selected, known)


def test_oracle_without_mask_is_an_error(model):
    adapter = build_method("tent+crowd", model, {"lr": 1e-2, "oracle": True, "margin": -0.2})
    assert isinstance(find_oracle(adapter), Oracle)
    with pytest.raises(dp.errors.StateError, match="set_known_mask"):
        adapter(scenes())
    find_oracle(adapter).set_known_mask(make_batch(label_maps(height=24, width=32)).known)
    adapter(scenes())
    assert find_oracle(build_method("tent+crowd", model, {"margin": -0.2})) is None
    assert find_oracle(build_method("source", model, {})) is None
    with pytest.raises(dp.errors.ConfigurationError, match="takes a selection"):
        build_method("source", model, {"oracle": True})


def test_oracle_is_dynamic():
    assert Oracle().dynamic_reason
    assert Spec("tent", "camvid-c", "m", domains=("fog",)).with_options(oracle=True).options == (("oracle", True),)


# Padding


def content_mask_by_loop(image):
    """Pixel by pixel: padding is a black column or row with only black ones between it and an edge."""
    _, height, width = image.shape
    dark_column = [all(image[:, y, x].tolist() == [0, 0, 0] for y in range(height)) for x in range(width)]
    dark_row = [all(image[:, y, x].tolist() == [0, 0, 0] for x in range(width)) for y in range(height)]
    return [
        [
            not any(all(dark[: place + 1]) or all(dark[place:]) for dark, place in ((dark_column, x), (dark_row, y)))
            for x in range(width)
        ]
        for y in range(height)
    ]


@settings(max_examples=40, deadline=None)
@given(
    left=st.integers(0, 3), right=st.integers(0, 3), top=st.integers(0, 2), hole=st.booleans(), seed=st.integers(0, 9)
)
def test_padding_is_not_selected(left, right, top, hole, seed):
    images = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(seed)) + 0.1
    images[0, :, :, :left] = images[0, :, :, 7 - right :] = images[0, :, :top] = 0.0
    if hole:
        images[1, :, :, 3] = 0.0  # black, but not at an edge
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4))
    adapter = build_method("tent", model, {"framed": True})
    adapter(images)
    assert adapter.last.selected.tolist() == [content_mask_by_loop(image) for image in images]


@pytest.mark.parametrize("method", ["tent+crowd", "swr", "swr+crowd"])
def test_padding_does_not_count_in_the_mean_prediction(method):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4))
    images = torch.rand(2, 3, 5, 7) + 0.1
    images[0, :, :, :3] = 0.0
    options = {"prototypes": False} if method.startswith("swr") else {}
    adapter = build_method(method, model, {"framed": True, "mean_entropy": 0.5, **options})
    adapter.prepare([(images, torch.zeros(2, 5, 7, dtype=torch.long))])(images)
    p = model.train()(images).detach().softmax(dim=1).movedim(1, -1)
    p = torch.cat([p[0, :, 3:].flatten(0, 1), p[1].flatten(0, 1)])
    entropies, mean = -(p * p.log()).sum(dim=1), p.mean(dim=0)
    assert adapter.last.loss == pytest.approx(float(entropies.mean() + 0.5 * (mean * mean.log()).sum()))


def test_ignore_padding_needs_a_prediction_for_every_pixel():
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Flatten(), torch.nn.Linear(12, 4))
    with pytest.raises(dp.errors.ModelError, match="prediction for every pixel"):
        build_method("tent", model, {"framed": True})(torch.rand(2, 3, 2, 2))
