"""The benchmarks of alarms: the fit of the lines, and the scores that are kept between two measurements."""

import importlib
import itertools
import json
import sys
from pathlib import Path

import numpy
import pytest
import scipy.stats
import torch

import driftproof as dp
from driftproof.alarm.known_quantile import GATE, LINES, KnownQuantile

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
alarm_lines = importlib.import_module("alarm_lines")
alarms = importlib.import_module("alarms")

LINE = (0.6, 0.8, 0.9, 0.1)


def spread_normal(count):
    return scipy.stats.norm.ppf((numpy.arange(count) + 0.5) / count)


def make_rows(shifts):
    """Rows of known images whose upper scores are exactly on `LINE`, and whose low ones have shifted."""
    calibration = spread_normal(5000).tolist()
    for group in ("images of training", "new images"):
        yield {"images": "cifar10", "group": group, "known": calibration}
    z, (base, slope, rise, narrows) = spread_normal(1000), LINE
    for shift in shifts:
        known = numpy.where(z < 0, z + shift, base + slope * z + (rise - narrows * z) * shift)
        known = numpy.sort(numpy.where(z < 0, numpy.minimum(known, 0), known))
        # The 2 % quantile of all is the 4 % quantile of the known ones.
        known -= numpy.where(z < -1, scipy.stats.norm.ppf(0.04) - scipy.stats.norm.ppf(0.02), 0)
        row = {"images": "cifar10", "group": "half unknown", "shift": str(shift), "known": known.tolist()}
        yield row | {"unknown": (4 + z).tolist()}


def read(path, rows):
    (path / "lines.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in [{}, *rows]))
    return alarm_lines.read_groups(path / "lines.jsonl")


def test_fit_finds_the_line_that_made_the_scores(tmp_path):
    groups = read(tmp_path, make_rows((0.0, 0.2, 0.4, 0.7)))
    assert [len(groups[name]) for name in ("trained on", "new", "stream")] == [4, 4, 0]
    assert [group.shift for group in groups["new"]] == pytest.approx([0.0, 0.2, 0.4, 0.7], abs=0.02)
    found = alarm_lines.fit(groups["new"])
    ratios = alarm_lines.measure(found, groups["new"])
    assert ratios == pytest.approx(numpy.ones((4, 4)), abs=0.11)
    for z, shift in itertools.product(numpy.array([1.28, 2.33]), (0.0, 0.7)):
        expected, fitted = (alarm_lines.find_bound(line, z, shift) for line in (LINE, found))
        assert fitted == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize("name", ["trained on", "new"])
@pytest.mark.parametrize("stream", ["known only", "a tenth unknown", "half unknown"])
def test_benchmark_measures_the_rule_of_the_alarm(name, stream):
    """At each rate the measured share is that of the alarm with the same scores as its window."""
    row = {"group": stream, "known": spread_normal(2000) * 1.1 + 0.2, "unknown": 2.5 + 0.5 * spread_normal(2000)}
    usual, known = torch.from_numpy(spread_normal(5000)), torch.from_numpy(row["known"])
    group = alarm_lines.compare(row, usual)
    count = round(2000 * alarm_lines.STREAMS[stream])
    unknown = torch.from_numpy(row["unknown"])
    scores = torch.cat(
        [alarm_lines.spread(known, 2000 - count), *([alarm_lines.spread(unknown, count)] if count else [])]
    )
    (ratios,) = alarm_lines.measure(LINES[name], [group], GATE)
    for rate, ratio in zip(alarm_lines.RATES, ratios, strict=True):
        rule = KnownQuantile(float(rate), 2000, usual, trained_on=name == "trained on")
        rule._latest = scores
        assert ratio * rate == pytest.approx(float((known > rule.compute()).double().mean()), abs=0.002)


def test_gate_opens_where_unknown_images_are_told_from_hard_ones():
    """Half of the hard streams are known, and their bound is far too low; the other half needs its bound."""
    z = spread_normal(2000)
    hard = alarm_lines.Group("known only", 0.0, numpy.sort(z * 1.35), numpy.sort(z * 1.35))
    mixed = numpy.sort(numpy.concatenate([z[::2], 3 + 0.3 * z[::2]]))
    open_set = alarm_lines.Group("half unknown", 0.0, z, mixed)
    tenth = alarm_lines.Group("a tenth unknown", 0.0, z, numpy.sort(numpy.concatenate([z[::10], z, 3 + 0.3 * z[::9]])))
    lines, groups = {"new": (0.0, 1.0, 0.0, 0.0)}, {"new": [hard, open_set, tenth]}
    few, many = alarm_lines.choose_gate(lines, groups)
    excess = [(group.of_all > scipy.stats.norm.isf(0.05)).mean() / 0.05 for group in (hard, open_set)]
    assert few < many <= excess[1]
    chosen, worst = (
        numpy.mean(list(alarm_lines.count_near(lines, groups, gate).values())) for gate in ((few, many), (2.5, 4.0))
    )
    assert chosen > worst


def test_lines_and_gate_of_the_alarm_are_what_the_committed_rows_give():
    groups = alarm_lines.read_groups(ROOT / "results/alarms/lines.jsonl")
    assert groups.keys() == LINES.keys()
    for name, each in groups.items():
        assert alarm_lines.fit(each) == pytest.approx(numpy.array(LINES[name]), abs=0.011), name
    assert alarm_lines.choose_gate(LINES, groups) == GATE
    near = numpy.mean(list(alarm_lines.count_near(LINES, groups, GATE).values()))
    assert f"There {100 * near:.0f} % of all rates are within" in (ROOT / "docs/novelty.md").read_text()


def test_kept_scores_are_read_as_they_were_written(tmp_path):
    batch = alarms.Predicted("fog", {"default": torch.rand(3)}, torch.tensor([1, -1, 0]))
    scores = alarms.Scores([{"default": torch.rand(2)}], {"known only": [batch, batch]}, [], {})
    alarms.write_scores(scores, tmp_path / "scores.pt")
    found = alarms.read_scores(tmp_path / "scores.pt")
    assert type(found.streams["known only"][0]) is alarms.Predicted
    assert found.streams["known only"][0].domain == "fog"
    assert torch.equal(found.streams["known only"][1].labels, batch.labels)
    assert torch.equal(found.calibration[0]["default"], scores.calibration[0]["default"])


def test_share_of_flagged_images_is_counted_by_domain():
    stream = [
        alarms.Predicted(domain, {"default": torch.tensor(values)}, torch.tensor(labels))
        for domain, values, labels in (
            ("fog", [0.9, 0.1, 0.2], [3, 4, -1]),
            ("fog", [0.4, 0.7, 0.9, 0.8, 0.6], [3, 5, -1, -1, -1]),
            ("snow", [0.1, 0.9], [1, 2]),
        )
    ]
    found = alarms.measure(dp.Alarm(0.5), stream, "default")
    assert found == {"fog": {"known": 0.5, "unknown": 0.75}, "snow": {"known": 0.5, "unknown": None}}
