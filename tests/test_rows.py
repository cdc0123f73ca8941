"""Rows of a benchmark, value by value against scikit-learn and loops over single samples."""

import itertools
import json
import math
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftproof.bench import Spec
from driftproof.bench.histograms import edges
from driftproof.bench.metrics import MEASURES, MetricCollection
from driftproof.errors import ConfigurationError
from driftproof.record import Outcome, Record
from driftproof.streams import StreamBatch
from test_metrics import fpr_by_sklearn, with_labels

LOGITS = torch.tensor(
    [[2, 1, 0, -1], [0, 3, 1, 1], [-1, 0, 2.5, 0], [0, 0, 0, 0.5], [4, 0, 0, 2], [1, 1.25, 1, 1], [-2, -3, 0.25, -1]]
)  # any two rows differ in every score, so that scores tie only for equal rows


@st.composite
def domain_batches(draw):
    """Batches of one domain, with logits and records."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    distinct, unknown = draw(st.integers(1, len(LOGITS))), draw(st.sampled_from([0, 0.4, 1]))
    found = []
    for size in draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)):
        known = torch.rand(size, generator=generator) >= unknown
        labels = torch.randint(0, 4, (size,), generator=generator).masked_fill(~known, -1)
        gap = torch.tensor([draw(st.sampled_from([0.0, 0.1, math.nan]))])
        record = Record(
            selected=torch.rand(size, generator=generator) < draw(st.sampled_from([0, 0.5, 1])),
            novelty=torch.randint(-3, 4, (size,), generator=generator) / 8,
            quarantined=torch.rand(size, generator=generator) < 0.2,
            outcome=Outcome(skipped=draw(st.none() | st.just("NaN or Inf in the images"))),
            averages=torch.cat([torch.rand(11, generator=generator), gap]),
            actions=draw(st.sampled_from([(), ("paused",), ("rolled back", "paused")])),
        )
        logits = LOGITS[torch.randint(0, distinct, (size,), generator=generator)]
        found.append((logits, StreamBatch(torch.zeros(size, 3, 2, 2), labels, "fog", 3, known), record))
    return found


def compute_row(found, *measures, unknown=None):
    metrics = MetricCollection(Spec("tent", "x", "y", unknown, domains=("fog",), measures=measures), "cpu")
    for logits, batch, record in found:
        metrics.update(logits, batch, record)
    row = metrics.compute()
    json.dumps(row, allow_nan=False)
    return row


def iter_samples(found):
    """Yield the samples one by one."""
    for logits, batch, record in found:
        for i, row in enumerate(logits.tolist()):
            best = max(range(len(row)), key=lambda k, row=row: row[k])
            yield SimpleNamespace(
                correct=bool(batch.known[i]) and best == int(batch.labels[i]), known=bool(batch.known[i]),
                selected=bool(record.selected[i]), novelty=float(record.novelty[i]), logits=row,
                answered=not record.quarantined[i],
            )  # fmt: skip


def check_ratios(row, ratios, scale=1.0):
    """Compare values and counts of a row with lists of samples: part and whole."""
    for name, (part, whole) in ratios.items():
        expected = pytest.approx(scale * len(part) / len(whole)) if whole else None
        assert (row[name], row["counts"][name]) == (expected, len(whole)), name


def selection_ratios(every, selected, rejected):
    return {
        "precision": ([s for s in selected if s.correct], selected),
        "recall": ([s for s in selected if s.correct], [s for s in every if s.correct]),
        "npv": ([s for s in rejected if not s.correct], rejected),
        "rejected": (rejected, every),
        "selected_known": ([s for s in selected if s.known], [s for s in every if s.known]),
        "selected_unknown": ([s for s in selected if not s.known], [s for s in every if not s.known]),
    }


@given(domain_batches())
def test_row_counts_every_sample_once_and_holds_last_health_and_all_guard_actions(found):
    row, every = compute_row(found, "error", "selection", "crowd"), list(iter_samples(found))
    known = [s for s in every if s.known]
    check_ratios(row, {"error": ([s for s in known if not s.correct], known)}, scale=100)
    check_ratios(row, selection_ratios(every, *([s for s in every if s.selected is which] for which in (True, False))))
    chosen = selection_ratios(every, *([s for s in every if (s.novelty <= 0) is which] for which in (True, False)))
    check_ratios(row, {f"crowd/{name}": ratio for name, ratio in chosen.items()})
    assert (row["round"], row["domain"], row["batches"], row["samples"]) == (3, "fog", len(found), len(every))
    assert row["skipped"] == sum(record.skipped is not None for _, _, record in found)
    assert row["quarantined"] == sum(not s.answered for s in every)
    health = found[-1][2].health
    assert row["health"] == health.state
    expected = {f"health/{name}": None if math.isnan(value) else value for name, value in vars(health).items()}
    assert {name: row[name] for name in row if name.startswith("health/")} == expected
    actions = [action for _, _, record in found for action in record.actions]
    expected = {f"guard/{action}": actions.count(action) for action in actions}
    assert {name: row[name] for name in row if name.startswith("guard/")} == expected


def familiarity(name, sample):
    if name in ("novelty", "confidence_difference"):
        return -sample.novelty
    total = sum(math.exp(z) for z in sample.logits)
    probabilities = [math.exp(z) / total for z in sample.logits]
    return {
        "msp": max(probabilities),
        "max_logit": max(sample.logits),
        "energy": math.log(total),
        "entropy": sum(p * math.log(p) for p in probabilities),
    }[name]


def sklearn_ranking(positives, negatives):
    """Return AUROC, FPR@TPR95 and the average precision of the negatives, in percent; None without either."""
    if not positives or not negatives:
        return None, None, None
    truth, scores = with_labels(positives, negatives)
    aupr = sklearn.metrics.average_precision_score(1 - truth, -scores)
    at_95 = fpr_by_sklearn(positives, negatives, 0.95) if len(set(scores)) > 1 else 1
    return 100 * sklearn.metrics.roc_auc_score(truth, scores), 100 * at_95, 100 * aupr


def approximate(expected):
    return None if expected is None or math.isnan(expected) else pytest.approx(expected, abs=1e-5)


@settings(max_examples=12)  # scikit-learn takes ten milliseconds for each of many numbers
@given(domain_batches())
def test_ranking_matches_sklearn_in_every_protocol(found):
    row, every = compute_row(found, "scores", unknown="other"), list(iter_samples(found))
    ranked = [s for s in every if s.answered]
    for name in ("novelty", "msp", "max_logit", "energy", "entropy"):
        sides = ([familiarity(name, s) for s in ranked if s.known is side] for side in (True, False))
        for kind, expected in zip(("auroc", "fpr", "aupr"), sklearn_ranking(*sides), strict=True):
            assert row[f"{name}/{kind}"] == approximate(expected), (name, kind)
            assert row["counts"][f"{name}/{kind}"] == len(ranked)
    for name in ("msp", "max_logit", "energy", "confidence_difference"):
        for protocol, wrong in {"including": lambda s: not s.correct, "excluding": lambda s: not s.known}.items():
            positives = [familiarity(name, s) for s in every if s.correct]
            negatives = [familiarity(name, s) for s in every if wrong(s)]
            for kind, expected in zip(("auroc", "fpr"), sklearn_ranking(positives, negatives), strict=False):
                assert row[f"{name}/{protocol}/{kind}"] == approximate(expected), (name, kind)


@given(domain_batches(), st.sampled_from([0, 40, 2**22]))
def test_open_world_measures_match_loops(found, pending):
    with mock.patch("driftproof.metrics.open_set._MAX_PENDING", pending):
        row, every = compute_row(found, unknown="other"), list(iter_samples(found))
    known, unknown = [s for s in every if s.known], [s for s in every if not s.known and s.answered]
    if not known or not unknown:
        assert row["oscr"] is row["h_score"] is None
        return
    points = [(0.0, 0.0)]
    for threshold in sorted({-s.novelty for s in every}, reverse=True):
        accepted = [s for s in every if s.answered and -s.novelty >= threshold]
        correct, wrong = (sum(s.correct for s in accepted), sum(not s.known for s in accepted))
        points.append((wrong / len(unknown), correct / len(known)))
    area = sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in itertools.pairwise(points))
    assert row["oscr"] == pytest.approx(100 * area)
    accuracy, auroc = 100 * sum(s.correct for s in known) / len(known), row["novelty/auroc"]
    if auroc is not None:
        assert row["h_score"] == pytest.approx(2 * accuracy * auroc / (accuracy + auroc) if accuracy + auroc else 0)
    total, answered = 0.0, [s for s in known if s.answered]
    for index in range(15):
        members = [s for s in answered if index / 15 < familiarity("msp", s) <= (index + 1) / 15]
        total += abs(sum(s.correct - familiarity("msp", s) for s in members))
    assert row["ece"] == (pytest.approx(100 * total / len(answered), abs=1e-4) if answered else None)
    assert row["counts"]["ece"] == len(answered)


def test_open_stream_measures_the_open_world_whatever_the_spec_names():
    size = 4
    batch = StreamBatch(torch.zeros(size, 3, 2, 2), torch.tensor([0, 1, -1, -1]), "fog", 1, torch.arange(size) < 2)
    record = Record(batch.known, torch.arange(4.0), quarantined=torch.zeros(size, dtype=torch.bool))
    row = compute_row([(LOGITS[:size], batch, record)], unknown="other")
    closed = compute_row([(LOGITS[:size], batch, record)], "error")
    assert (row["novelty/auroc"], row["novelty/fpr"], row["selected_unknown"], row["error"]) == (100, 0, 0, 0)
    assert row["oscr"] == row["h_score"] == 100
    assert not {"oscr", "novelty/auroc", "precision"} & set(closed)
    described = {name.rpartition("/")[2] for name in MEASURES}
    assert {name.rpartition("/")[2] for name in row["counts"]} <= described


def test_quarantined_image_is_wrong_and_not_ranked_but_other_nan_gives_no_ranking():
    logits = torch.tensor([[math.nan, 0.0], [2.0, 0.0], [0.0, 3.0]])
    batch = StreamBatch(torch.zeros(3, 3, 2, 2), torch.tensor([0, 0, -1]), "fog", 1, torch.tensor([True, True, False]))
    for quarantined, expected in ((True, 0), (False, None)):
        novelty = torch.tensor([math.nan if quarantined else 0.1, 0.2, 0.3])
        record = Record(torch.ones(3) > 0, novelty, quarantined=torch.tensor([quarantined, False, False]))
        row = compute_row([(logits, batch, record)], "scores", "crowd", "histograms", unknown="other")
        assert (row["error"], row["precision"], row["energy/auroc"]) == (50, 1 / 3, expected)
        assert row["msp/including/auroc"] is row["energy/excluding/fpr"] is None
        assert row["confidence_difference/excluding/auroc"] == (None if quarantined else 100)
        assert row["oscr"] == 50


@given(domain_batches())
def test_histograms_match_reference_and_count_every_sample(found):
    row, kinds = compute_row(found, "histograms"), {"correct": [], "wrong": [], "unknown": []}
    for sample in iter_samples(found):
        kinds["unknown" if not sample.known else "correct" if sample.correct else "wrong"].append(sample)
    scores = {"confidence": "msp", "confidence_difference": "novelty"}
    for (name, score), (kind, chosen) in itertools.product(scores.items(), kinds.items()):
        counts = row[f"histogram/{name}/{kind}"]
        assert sum(counts) == len(chosen)
        # In single precision a score may fall on the other side of an edge.
        centers = np.add(edges(name)[:-1], np.diff(edges(name)) / 2)
        distance = np.abs(np.repeat(centers, counts) - np.sort([familiarity(score, s) for s in chosen]))
        assert (distance <= np.diff(edges(name))[0] / 2 + 1e-6).all()


def test_slightly_negative_change_is_binned_below_zero_and_unknown_metrics_are_named():
    logits, known = torch.tensor([[2.0, 0.0], [2.0, 0.0], [math.nan, 0.0]]), torch.tensor([True, True, True])
    batch = StreamBatch(torch.zeros(3, 3, 2, 2), torch.tensor([0, 0, 0]), "fog", 1, known)
    record = Record(known, torch.tensor([1e-9, 0.0, math.nan]), quarantined=~known)
    row = compute_row([(logits, batch, record)], "histograms", "crowd")
    counts, zero = row["histogram/confidence_difference/correct"], edges("confidence_difference").index(0.0)
    assert (counts[zero - 1], counts[zero], sum(counts)) == (1, 1, 2)
    assert row["crowd/rejected"] == pytest.approx(2 / 3), "NaN counts as a loss of confidence"
    with pytest.raises(ConfigurationError, match=r"known metric, but got 'errors'\. Did you mean error"):
        compute_row([], "errors")
