"""The benchmarks of alarms: the fit of the lines, and the scores that are kept between two measurements."""

import importlib
import json
import sys
from pathlib import Path

import numpy
import pytest
import scipy.stats
import torch

import driftproof as dp
from driftproof.alarm.known_quantile import LINES

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
alarm_lines = importlib.import_module("alarm_lines")
alarms = importlib.import_module("alarms")

LINE = (0.6, 0.8, 0.9, 0.1)


def make_rows(shifts, unknown=()):
    """Rows of known images whose upper scores are exactly on `LINE`, and whose low ones have shifted."""
    z = scipy.stats.norm.ppf((numpy.arange(1000) + 0.5) / 1000)
    calibration = scipy.stats.norm.ppf((numpy.arange(5000) + 0.5) / 5000)
    for group in ("images of training", "new images"):
        yield {"images": "cifar10", "group": group, "known": calibration.tolist()}
    base, slope, rise, narrows = LINE
    for shift in shifts:
        known = numpy.where(z < 0, z + shift, base + slope * z + (rise - narrows * z) * shift)
        known = numpy.sort(numpy.where(z < 0, numpy.minimum(known, 0), known))
        yield {
            "images": "cifar10",
            "group": "half unknown",
            "shift": str(shift),
            "known": known.tolist(),
            "unknown": [],
        }


def test_fit_finds_the_line_that_made_the_scores(tmp_path):
    lines = [{}, *make_rows((0.0, 0.2, 0.4, 0.7))]
    (tmp_path / "lines.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    groups = alarm_lines.read_groups(tmp_path / "lines.jsonl")
    assert [len(groups[name]) for name in ("trained on", "new", "stream")] == [4, 4, 0]
    assert [shift for shift, _ in groups["new"]] == pytest.approx([0.0, 0.2, 0.4, 0.7], abs=0.02)
    found = alarm_lines.fit(groups["new"])
    ratios = alarm_lines.measure(found, groups["new"])
    assert ratios == pytest.approx(numpy.ones((4, 4)), abs=0.11)
    z = numpy.array([1.28, 2.33])
    for shift in (0.0, 0.7):
        expected, fitted = (b + s * z + (r - n * z) * shift for b, s, r, n in (LINE, found))
        assert fitted == pytest.approx(expected, abs=0.04)


def test_lines_of_the_alarm_are_what_the_committed_rows_give():
    groups = alarm_lines.read_groups(ROOT / "results/alarms/lines.jsonl")
    assert groups.keys() == LINES.keys()
    for name, each in groups.items():
        assert alarm_lines.fit(each) == pytest.approx(numpy.array(LINES[name]), abs=0.011), name


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
