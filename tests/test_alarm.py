"""`Alarm` against connected components from scipy."""

import pytest
import scipy.ndimage
import torch
from hypothesis import given
from hypothesis import strategies as st

import driftproof as dp
from cases import batches
from networks import build


@st.composite
def novelty_maps(draw):
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return torch.rand(shape, generator=generator)


def scipy_events(novelty, threshold, connectivity, min_area):
    structure = torch.ones(3, 3).numpy() if connectivity == 8 else None
    events = set()
    for sample, image in enumerate(novelty.numpy()):
        labels, count = scipy.ndimage.label(image > threshold, structure)
        for region, box in enumerate(scipy.ndimage.find_objects(labels), start=1):
            inside = labels == region
            if inside.sum() >= min_area:
                rows, columns = box
                corners = (rows.start, columns.start, rows.stop, columns.stop)
                events.add((sample, float(image[inside].max()), int(inside.sum()), corners))
        assert count == len(scipy.ndimage.find_objects(labels))
    return events


@given(novelty_maps(), st.sampled_from([0.2, 0.4, 0.6, 2.0]), st.sampled_from([4, 8]), st.integers(1, 3))
def test_regions_equal_scipy(novelty, threshold, connectivity, min_area):
    events = dp.Alarm(threshold, min_area=min_area, connectivity=connectivity)(novelty)
    actual = {(event.sample, event.novelty, event.area, event.box) for event in events}
    assert len(actual) == len(events)
    assert actual == scipy_events(novelty, threshold, connectivity, min_area)


def test_spiral_is_labeled_as_scipy_labels_it():
    spiral = torch.zeros(1, 41, 41)
    top, left, bottom, right = 0, 0, 40, 40
    while top <= bottom and left <= right:
        spiral[0, top, left : right + 1] = 1
        spiral[0, top : bottom + 1, right] = 1
        spiral[0, bottom, left : right + 1] = 1
        spiral[0, top + 2 : bottom + 1, left] = 1
        spiral[0, top + 2, left : left + 2] = 1
        top, left, bottom, right = top + 2, left + 2, bottom - 2, right - 2
    events = dp.Alarm(0.5)(spiral)
    assert len(events) == len(scipy_events(spiral, 0.5, connectivity=4, min_area=1))


def test_sample_events():
    assert dp.Alarm(0.5)(torch.tensor([0.25, 0.75, 0.5])) == [dp.Event(1, 0.75)]
    assert dp.Alarm(0.5)(torch.empty(0)) == []
    assert dp.Alarm(0.5)(torch.zeros(2, 4, 4)) == []


@given(st.integers(1, 200), st.sampled_from([0.0, 0.01, 0.05, 0.5, 1.0]), st.integers(0, 2**31))
def test_from_false_alarm_rate_is_tight(count, rate, seed):
    novelty = torch.rand(count, generator=torch.Generator().manual_seed(seed))
    alarms = len(dp.Alarm.from_false_alarm_rate(novelty, rate)(novelty))
    assert alarms <= rate * count
    assert alarms >= rate * count - 1


def test_default_alarm_flags_samples_that_confidence_difference_rejects():
    adapter = dp.tent(build("wide_resnet"), lr=1e-2, select=dp.ConfidenceDifference())
    for images in batches(3, size=16):
        adapter(images)
        rejected = (~adapter.last.selected).nonzero().flatten().tolist()
        assert [event.sample for event in dp.Alarm()(adapter.last.novelty)] == rejected
    assert rejected


def test_connectivity_reaches_alarm_from_false_alarm_rate():
    alarm = dp.Alarm.from_false_alarm_rate(torch.zeros(1), 0.0, min_area=2, connectivity=8)
    assert (alarm.min_area, alarm.connectivity) == (2, 8)
    assert len(alarm(torch.eye(3)[None])) == 1


def test_invalid_input_raises():
    with pytest.raises(dp.errors.InputError, match=r"\(2, 3\)"):
        dp.Alarm()(torch.zeros(2, 3))
    with pytest.raises(dp.errors.InputError, match="at least one"):
        dp.Alarm.from_false_alarm_rate(torch.empty(0), 0.1)
    with pytest.raises(dp.errors.InputError, match="without NaN"):
        dp.Alarm.from_false_alarm_rate(torch.tensor([0.1, torch.nan, 0.3]), 0.5)
    with pytest.raises(dp.errors.ConfigurationError, match="rate"):
        dp.Alarm.from_false_alarm_rate(torch.rand(3), 1.1)
    with pytest.raises(dp.errors.ConfigurationError, match="min_area"):
        dp.Alarm(min_area=0)
    with pytest.raises(dp.errors.ConfigurationError, match="threshold"):
        dp.Alarm(float("nan"))
    for connectivity in (6, True, "8", None):
        with pytest.raises(dp.errors.ConfigurationError, match="`connectivity` to be 4 or 8"):
            dp.Alarm(connectivity=connectivity)
