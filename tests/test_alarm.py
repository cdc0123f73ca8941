"""`Alarm` against connected components from scipy, and its false-alarm rate on streams it was not calibrated on."""

import math

import pytest
import scipy.ndimage
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

import driftproof as dp
from cases import batches
from driftproof.alarm import KnownQuantile
from driftproof.alarm.known_quantile import GATE, LINES
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


@given(st.integers(1, 200), st.sampled_from([0.01, 0.05, 0.5, 0.99]), st.integers(0, 2**31))
def test_fixed_threshold_flags_the_rate_of_the_calibration(count, rate, seed):
    novelty = torch.rand(count, generator=torch.Generator().manual_seed(seed))
    alarms = len(dp.Alarm.from_false_alarm_rate(rate, novelty, track=False)(novelty))
    assert rate * count - 1 <= alarms <= rate * count + 1e-6


def draw(mean, spread, count, seed):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) * spread + mean


def flagged_share(alarm, known, unknown=None, batches=5):
    """Run an alarm over batches of known scores, then unknown ones; return the share of known images flagged."""
    parts = [known.chunk(batches)] + ([] if unknown is None else [unknown.chunk(batches)])
    batch = [torch.cat(scores) for scores in zip(*parts, strict=True)]
    flagged = sum(event.sample < len(known) // batches for scores in batch for event in alarm(scores))
    return flagged / len(known)


@pytest.mark.parametrize("rate", [0.05, 0.1])
@pytest.mark.parametrize("with_unknown", [False, True])
@pytest.mark.parametrize("trained_on", [False, True])
def test_rate_holds_after_a_shift_with_and_without_unknown(rate, with_unknown, trained_on):
    # As the alarm assumes: low scores have shifted by one, and high ones are on its line. Where half of the images are
    # unknown, the 2 % quantile of all is the 4 % quantile of the known ones.
    usual, low = scipy.stats.norm.ppf(0.02), scipy.stats.norm.ppf(0.04 if with_unknown else 0.02)
    base, slope, rise, narrows = LINES["trained on" if trained_on else "new"]
    z, middle = draw(0, 1, 5000, seed=1), base + rise
    known = middle + torch.where(z < 0, (usual + 1 - middle) / low, slope - narrows) * z
    unknown = draw(2.4, 0.45, 5000, seed=4) if with_unknown else None
    calibration = draw(0, 1, 20_000, seed=0)
    alarm = dp.Alarm.from_false_alarm_rate(rate, calibration, trained_on=trained_on)
    assert rate / 1.5 <= flagged_share(alarm, known, unknown, batches=25) <= rate * 1.5
    fixed = dp.Alarm.from_false_alarm_rate(rate, calibration, track=False)
    assert flagged_share(fixed, known) > 2 * rate, "a fixed threshold fails on this stream"


def test_increasing_function_of_the_score_flags_the_same_samples():
    calibration = draw(0, 1, 500, seed=0)
    plain, transformed = (dp.Alarm.from_false_alarm_rate(0.1, f(calibration)) for f in (torch.clone, torch.exp))
    for scores in torch.cat([draw(0.5, 1, 300, seed=1), draw(3, 0.5, 300, seed=2)]).view(2, 3, 100).transpose(0, 1):
        flagged = [event.sample for event in plain(scores.flatten())]
        assert flagged
        assert [event.sample for event in transformed(scores.flatten().exp())] == flagged


def test_threshold_returns_when_the_domain_does():
    calibration = draw(0, 1, 2000, seed=0)
    alarm = dp.Alarm.from_false_alarm_rate(0.05, calibration)
    before = alarm.threshold
    for scores in draw(5, 1, 400, seed=1).chunk(2):
        alarm(scores)
    assert alarm.threshold > before + 4
    for scores in draw(0, 1, 1000, seed=2).chunk(5):
        alarm(scores)
    assert alarm.threshold == pytest.approx(before, abs=0.3)


def test_calibration_on_the_stream_equals_one_on_its_first_scores():
    beginning, later = draw(0, 1, 2000, seed=0), draw(0.2, 1, 600, seed=1)
    on_stream, on_scores = (dp.Alarm.from_false_alarm_rate(0.05, start) for start in (None, beginning.clone()))
    on_scores._tracked._line = LINES["stream"]
    for scores in beginning.chunk(5):
        on_stream(scores)
        assert len(on_stream(scores[:0])) == 0
    on_scores(beginning)
    for scores in later.chunk(3):
        assert on_stream(scores) == on_scores(scores)


def test_scores_that_are_not_finite_change_nothing():
    calibration, scores = draw(0, 1, 500, seed=0), draw(1, 1, 100, seed=1)
    plain, broken = (dp.Alarm.from_false_alarm_rate(0.05, calibration) for _ in range(2))
    events = plain(scores)
    assert broken(torch.cat([scores, torch.tensor([torch.nan, torch.nan])])) == events
    assert broken.threshold == plain.threshold


def test_pixels_of_a_large_map_move_the_threshold():
    alarm = dp.Alarm.from_false_alarm_rate(0.05, draw(0, 1, 2000, seed=0))
    for seed in range(6):
        scores = draw(3, 1, 2 * 60 * 80, seed=seed + 1).view(2, 60, 80)
        alarm(scores)
    assert float((scores > alarm.threshold).float().mean()) == pytest.approx(0.05, abs=0.02)


RANGES = {"msp": (0, 1), "confidence_difference": (-1, 1), "cosine": (0, 2), (0.0, math.log(10)): (0, math.log(10))}


@pytest.mark.parametrize(
    ("score", "threshold"), [(s, side) for s, (a, b) in RANGES.items() for side in (a - 0.1, b + 0.1)]
)
def test_threshold_outside_the_range_of_the_score_raises(score, threshold):
    with pytest.raises(dp.errors.ConfigurationError, match=r"`threshold` to be in .*but got"):
        dp.Alarm(threshold, score=score)
    with pytest.raises(dp.errors.InputError, match="range of the score"):
        dp.Alarm.from_false_alarm_rate(0.1, torch.tensor([threshold]), score=score)


def test_repr_shows_what_the_alarm_does():
    assert repr(dp.Alarm(0.25)) == "Alarm(threshold=0.25)"
    alarm = dp.Alarm.from_false_alarm_rate(0.01, torch.ones(10), score="msp", min_area=5, connectivity=8)
    assert repr(alarm) == "Alarm(threshold=1, rate=0.01, window=2000, score='msp', min_area=5, connectivity=8)"


def test_threshold_of_zero_flags_samples_that_confidence_difference_rejects():
    adapter = dp.tent(build("wide_resnet"), lr=1e-2, select=dp.ConfidenceDifference(), novelty="confidence_difference")
    for images in batches(3, size=16):
        adapter(images)
        rejected = (~adapter.last.selected).nonzero().flatten().tolist()
        assert [event.sample for event in dp.Alarm(0.0)(adapter.last.novelty)] == rejected
    assert rejected


def test_connectivity_reaches_alarm_from_false_alarm_rate():
    alarm = dp.Alarm.from_false_alarm_rate(0.1, torch.zeros(1), track=False, min_area=2, connectivity=8)
    assert (alarm.min_area, alarm.connectivity) == (2, 8)
    assert len(alarm(torch.eye(3)[None])) == 1


def test_invalid_input_raises():
    with pytest.raises(dp.errors.InputError, match=r"\(2, 3\)"):
        dp.Alarm(0.5)(torch.zeros(2, 3))
    with pytest.raises(dp.errors.InputError, match="at least one"):
        dp.Alarm.from_false_alarm_rate(0.1, torch.empty(0))
    with pytest.raises(dp.errors.InputError, match="without NaN"):
        dp.Alarm.from_false_alarm_rate(0.5, torch.tensor([0.1, torch.nan, 0.3]))
    for rate in (0.0, 1.0, 1.1, torch.rand(3)):
        with pytest.raises(dp.errors.ConfigurationError, match="`rate` to be a number above 0"):
            dp.Alarm.from_false_alarm_rate(rate, torch.rand(3))
    with pytest.raises(dp.errors.ConfigurationError, match="`window` to be at least"):
        dp.Alarm.from_false_alarm_rate(0.01, window=50)
    with pytest.raises(dp.errors.ConfigurationError, match="`calibration` or `track=True`"):
        dp.Alarm.from_false_alarm_rate(0.01, track=False)
    with pytest.raises(dp.errors.ConfigurationError, match="Did you mean msp"):
        dp.Alarm(0.5, score="mps")
    with pytest.raises(dp.errors.ConfigurationError, match="min_area"):
        dp.Alarm(0.5, min_area=0)
    with pytest.raises(dp.errors.ConfigurationError, match="threshold"):
        dp.Alarm(float("nan"))
    for connectivity in (6, True, "8", None):
        with pytest.raises(dp.errors.ConfigurationError, match="`connectivity` to be 4 or 8"):
            dp.Alarm(0.5, connectivity=connectivity)


@given(
    st.sampled_from([0.01, 0.05, 0.1, 0.3, 0.9]),
    st.integers(60, 300),
    st.integers(0, 200),
    st.integers(0, 99),
    st.booleans(),
)
def test_tracked_threshold_equals_its_definition(rate, known, unknown, seed, trained_on):
    generator = torch.Generator().manual_seed(seed)
    calibration, scores, novel = (torch.randn(n, generator=generator).double() for n in (400, known, unknown))
    scores = torch.cat([0.5 + 1.2 * scores, 2.2 + 0.4 * novel]).round(decimals=2)
    tracked = KnownQuantile(rate, 500, calibration, trained_on=trained_on)
    tracked._latest = scores

    def to_normal(values):
        ranks = scipy.stats.percentileofscore(calibration.numpy(), values, kind="mean") * len(calibration) / 100
        return scipy.stats.norm.ppf((ranks + 0.5) / (len(calibration) + 1))

    low, usual = (to_normal(sorted(each.tolist())[round(0.02 * (len(each) - 1))]) for each in (scores, calibration))
    base, slope, rise, narrows = LINES["trained on" if trained_on else "new"]

    def bound(share):
        z = scipy.stats.norm.isf(share)
        return base + slope * z + (rise - narrows * z) * (low - usual)

    normal, ordered = to_normal(scores.numpy()), sorted(scores.tolist())
    first, full = GATE
    is_beyond = sorted(normal)[(len(normal) - 1) // 2] > 2.33
    trust = 0 if is_beyond else min(max(((normal > bound(0.05)).mean() / 0.05 - first) / (full - first), 0), 1)
    limit = ordered[max(len(scores) - 1 - int(rate * len(scores) + 1e-9), 0)]
    above = to_normal(limit) + trust * min(0, bound(rate) - to_normal(limit))
    explained = int((normal <= above + 1e-12).sum())
    assert tracked.compute() == min(limit, ordered[max(explained - 1, 0)])


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.1, 0.5, 0.95])
def test_rate_holds_without_shift_and_unknown_images(rate):
    calibration, scores = draw(0, 1, 5000, seed=0), draw(0, 1, 2000, seed=1).double()
    for trained_on, most in ((True, 1.0), (False, 1.3)):
        tracked = KnownQuantile(rate, 2000, calibration, trained_on=trained_on)
        tracked._latest = scores
        assert 1.0 <= int((scores > tracked.compute()).sum()) / int(rate * 2000 + 1e-9) <= most


def run_alarm(alarm, stream):
    """Events and threshold after each batch."""
    return [(alarm(scores), alarm.threshold) for scores in stream]


@st.composite
def novelty_streams(draw):
    """Batches of several sizes whose domain changes, with scores that are not finite and empty batches."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    sizes = draw(st.lists(st.sampled_from([0, 1, 7, 60]), min_size=2, max_size=12))
    shifts = draw(st.lists(st.sampled_from([0.0, 3.0]), min_size=len(sizes), max_size=len(sizes)))
    stream = [torch.randn(size, generator=generator) + shift for size, shift in zip(sizes, shifts, strict=True)]
    stream[0] = torch.cat([stream[0], torch.tensor([torch.nan, torch.inf])])
    return [*stream, torch.randn(2, 9, 9, generator=generator)]


@given(novelty_streams(), st.data(), st.sampled_from([0.05, 0.3]), st.booleans(), st.booleans())
def test_alarm_continues_exactly_from_its_state(stream, data, rate, is_calibrated, trained_on):
    def build(seed):
        calibration = draw(0, 1, 80, seed=seed) if is_calibrated else None
        return dp.Alarm.from_false_alarm_rate(rate, calibration, trained_on=trained_on, window=100, score=(-9.0, 9.0))

    whole, stopped, resumed = build(0), build(0), build(1)
    done = data.draw(st.integers(0, len(stream)))
    expected = run_alarm(whole, stream)
    assert run_alarm(stopped, stream[:done]) == expected[:done]
    saved = stopped.state_dict()
    run_alarm(resumed, data.draw(st.sampled_from([[], stream])))
    threshold = stopped.threshold
    run_alarm(stopped, stream)  # the state is a copy
    resumed.load_state_dict(saved)
    assert resumed.threshold == threshold
    assert run_alarm(resumed, stream[done:]) == expected[done:]
    assert resumed.num_missing == whole.num_missing
    assert same_states(resumed.state_dict(), whole.state_dict())


def same_states(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "changes",
    [
        {"rate": torch.tensor(0.2, dtype=torch.float64)},
        {"window": torch.tensor(300)},
        {"trained_on": torch.tensor(True)},
        {"rate": torch.tensor([0.1], dtype=torch.float64)},
        {"rate": torch.tensor(torch.nan, dtype=torch.float64)},
        {"window": 200},
        {"latest": torch.tensor([0.5, torch.nan], dtype=torch.float64)},
        {"latest": torch.zeros(2, 2, dtype=torch.float64)},
        {"latest": torch.zeros(201, dtype=torch.float64)},
        {"latest": torch.zeros(20)},
        {"calibration": torch.tensor([0.5, torch.inf], dtype=torch.float64)},
        {"calibration": torch.tensor([0.5, 0.2], dtype=torch.float64)},
        {"calibration": torch.zeros(0, dtype=torch.float64)},
        {"latest": None},
        {"window": None},
        {"more": torch.zeros(1)},
    ],
    ids=str,
)
def test_state_that_does_not_fit_is_refused_and_changes_nothing(changes):
    def build():
        return dp.Alarm.from_false_alarm_rate(0.1, torch.rand(50), window=200, score="msp")

    alarm, before = build(), build().state_dict()
    saved = {name: value for name, value in (before | changes).items() if value is not None}
    before, threshold = alarm.state_dict(), alarm.threshold
    with pytest.raises(dp.errors.StateError, match="Expected"):
        alarm.load_state_dict(saved)
    assert same_states(alarm.state_dict(), before)
    assert alarm.threshold == threshold


def test_states_of_fixed_and_tracking_alarms_do_not_fit_each_other():
    fixed, tracking = dp.Alarm(0.5), dp.Alarm.from_false_alarm_rate(0.1)
    fixed.load_state_dict(fixed.state_dict())
    for alarm, other in ((fixed, tracking), (tracking, fixed)):
        with pytest.raises(dp.errors.StateError, match="threshold"):
            alarm.load_state_dict(other.state_dict())
    assert (fixed.threshold, tracking.threshold) == (0.5, math.inf)


def test_alarm_on_the_stream_says_how_many_scores_are_missing():
    alarm = dp.Alarm.from_false_alarm_rate(0.1, window=100)
    assert alarm.num_missing == 100
    alarm(torch.rand(40))
    assert alarm.num_missing == 60
    alarm(torch.rand(60))
    alarm(torch.rand(60) + 5)
    assert alarm.num_missing == 0, "it stays calibrated when the window starts anew"
    assert dp.Alarm(0.5).num_missing == dp.Alarm.from_false_alarm_rate(0.1, torch.rand(9)).num_missing == 0


def test_alarm_is_saved_with_the_adapter(tmp_path):
    def build_both(rate=0.2):
        adapter = dp.tent(build("wide_resnet"), lr=1e-2)
        return adapter, dp.Alarm.from_false_alarm_rate(rate, window=50)

    (adapter, alarm), stream = build_both(), batches(6, size=16)

    def run(adapter, alarm, images):
        adapter(images)
        return alarm(adapter.last.novelty)

    for images in stream[:3]:
        run(adapter, alarm, images)
    adapter.save(tmp_path / "both", alarm=alarm)
    adapter.save(tmp_path / "alone")
    adapter.save(tmp_path / "fixed", alarm=dp.Alarm(0.5))
    assert (tmp_path / "fixed").read_bytes() == (tmp_path / "alone").read_bytes()
    resumed, other = build_both()
    assert resumed.load(tmp_path / "both", alarm=other) is resumed
    for images in stream[3:]:
        assert run(resumed, other, images) == run(adapter, alarm, images)
    resumed, other = build_both()
    resumed.load(tmp_path / "both")
    resumed.load(tmp_path / "alone", alarm=other)
    assert other.num_missing == 50, "a state without alarm leaves the alarm as it is"
    resumed, other = build_both(rate=0.3)
    start = resumed.state_dict()
    with pytest.raises(dp.errors.StateError, match=r"rate 0\.3.*but got .*0\.2"):
        resumed.load(tmp_path / "both", alarm=other)
    assert same_states(resumed.state_dict(), start)
    elsewhere, same = dp.bn_adapt(build("wide_resnet")), build_both()[1]
    with pytest.raises(dp.errors.StateError, match="another method"):
        elsewhere.load(tmp_path / "both", alarm=same)
    assert same.num_missing == 50, "a refused adapter leaves the alarm as it is"
