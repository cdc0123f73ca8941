"""Benchmark components against slow references: methods, metrics, plans, results, costs, overhead."""

import dataclasses
import gc
import io
import itertools
import json
import math
import platform
import statistics
import time
import warnings
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress

import driftproof as dp
from driftproof.analyses import count_memory, method_memory
from driftproof.bench import METHODS, Results, Spec, Store, build_method, costs, environment, fill_table, runner
from driftproof.bench.archive import write_archive
from driftproof.bench.health_log import HealthLog
from driftproof.bench.histograms import edges
from driftproof.bench.jobs import run_job
from driftproof.bench.methods import benchmark_guards
from driftproof.bench.metrics import MetricCollection
from driftproof.bench.plan import Job, RunFilter, plan_runs
from driftproof.bench.tables import Summary, Table, TableEntry
from driftproof.cli import bench_progress
from driftproof.errors import ConfigurationError, InputError, StateError
from driftproof.models import build_model
from driftproof.paper import suite
from driftproof.record import Outcome, Record
from driftproof.report.exports import flat_rows
from driftproof.report.notes import table_notes
from driftproof.streams import StreamBatch
from networks import build as small_network
from small_bench import AT_ONCE, SmallBench, ignore

SELECTING = ("gce", "conjugate", "ent", "tent", "eata", "swr", "cotta", "adapt")
NETWORK = small_network("wide_resnet")


# Methods by name


@pytest.mark.parametrize("name", METHODS)
def test_method_name_builds_method_with_paper_settings(name):
    by_hand = getattr(dp, name)(NETWORK)
    assert build_method(name, NETWORK, {}).method.describe() == by_hand.method.describe()
    if name in SELECTING:
        by_hand = getattr(dp, name)(NETWORK, select=dp.ConfidenceDifference())
        assert build_method(f"{name}+crowd", NETWORK, {}).method.describe() == by_hand.method.describe()
    else:
        with pytest.raises(ConfigurationError, match="known method"):
            build_method(f"{name}+crowd", NETWORK, {})


def test_options_are_keywords_of_method_and_selection():
    options = {"lr": 0.02, "accumulate": 4, "margin": -0.2, "on": "logits", "mean_entropy": 0.1, "output": "after"}
    found = build_method("tent+crowd", NETWORK, options)
    select = dp.ConfidenceDifference(margin=-0.2, on="logits")
    by_hand = dp.tent(NETWORK, lr=0.02, accumulate=4, select=select, mean_entropy=0.1, output="after")
    assert found.method.describe() == by_hand.method.describe()
    assert found.method.describe()["output"] == "after"
    assert found.optimizer.param_groups[0]["lr"] == 0.02
    assert options["margin"] == -0.2, "the caller's options are unchanged"


def test_static_threshold_selections():
    confident, certain = (build_method(f"tent+{name}", NETWORK, {}) for name in ("confident", "certain"))
    assert repr(confident.select) == "ConfidenceAbove(threshold=0.9, network='adapting')"
    assert repr(certain.select) == "EntropyBelow(network='adapting')"
    assert confident.method.mean_entropy == certain.method.mean_entropy == 0
    assert (
        repr(build_method("tent+certain", NETWORK, {"threshold": 0.7}).select)
        == "EntropyBelow(threshold=0.7, network='adapting')"
    )


def test_objects_are_given_by_name():
    words = {"optimizer": "sgd", "statistics": "source", "source_statistics": "batch"}
    adapter = build_method("tent", NETWORK, words)
    assert isinstance(adapter.optimizer, torch.optim.SGD)
    assert adapter.optimizer.param_groups[0]["momentum"] == 0.9
    assert [repr(part) for part in (adapter.statistics, adapter.method.source_statistics)] == ["Source()", "Batch()"]
    assert isinstance(build_method("tent", NETWORK, {"optimizer": "adam"}).optimizer, torch.optim.Adam)
    assert build_method("tent", NETWORK, {"statistics": "ttn"}).statistics.momentum is None
    assert build_method("ttn", NETWORK, {"statistics": "online ttn"}).statistics.momentum == 0.1
    assert build_method("tent", NETWORK, {"statistics": None}).method.source_statistics is None


def test_confidence_difference_as_novelty_of_plain_method():
    plain, comparing = dp.tent(NETWORK), build_method("tent", NETWORK, {"novelty": "confidence_difference"})
    for seed in range(3):
        images = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        frozen = dp.bn_adapt(NETWORK)(images)
        logits = comparing(images)
        assert torch.equal(plain(images), logits)
        expected = dp.scores.confidence_difference(logits, frozen)
        assert comparing.last.novelty == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tnet", {}, "Did you mean tent"),
        ("tent+crowds", {}, r"Did you mean tent\+crowd"),
        ("source+crowd", {}, "known method, but got 'source"),
        ("tent+", {}, "known method, but got 'tent"),
        ("", {}, "known method, but got ''"),
        ("tent", {"lrr": 1}, "option of tent, but got 'lrr'. Did you mean lr"),
        ("tent", {"margin": 0}, "known option of tent, but got 'margin'"),
        ("tent+crowd", {"margn": 0}, "Did you mean margin"),
        ("tent", {"q": 0.8}, "known option of tent"),
        ("source", {"lr": 1e-3}, "known option of source"),
        ("source", {"mean_entropy": 0.5}, "known option of source"),
        ("bn_adapt", {"optimizer": "adam"}, "known option of bn_adapt"),
        ("ttn", {"scope": None}, "known option of ttn"),
        ("tent", {"select": "crowd"}, "known option of tent, but got 'select'"),
        ("cotta", {"views": 3}, "known option of cotta, but got 'views'"),
        ("tent", {"optimizer": "adm"}, "known optimizer, but got 'adm'. Did you mean adam"),
        ("tent", {"statistics": "btach"}, "Did you mean batch"),
        ("tent", {"lr": "fast"}, "`lr` to be a number of at least 0, but got 'fast'"),
        ("tent", {"lr": -1.0}, "`lr` to be a number of at least 0, but got -1.0"),
        ("tent", {"guard": "rollback"}, "known guard, but got 'rollback'. Did you mean roll_back"),
        ("tent", {"accumulate": 0}, "`accumulate` to be"),
        ("swr", {"anchor": "sorce"}, "anchor"),
    ],
)
def test_unknown_method_or_option_suggests_nearest(name, options, message):
    with pytest.raises(ConfigurationError, match=message):
        build_method(name, NETWORK, options)


# Metrics


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
        record = Record(
            selected=torch.rand(size, generator=generator) < draw(st.sampled_from([0, 0.5, 1])),
            novelty=torch.randint(-3, 4, (size,), generator=generator) / 8,
            quarantined=torch.rand(size, generator=generator) < 0.2,
            outcome=Outcome(skipped=draw(st.none() | st.just("NaN or Inf in the images"))),
            averages=torch.cat(
                [torch.rand(11, generator=generator), torch.tensor([draw(st.sampled_from([0.0, 0.1, math.nan]))])]
            ),
            actions=draw(st.sampled_from([(), ("paused",), ("rolled back", "paused")])),
        )
        logits = LOGITS[torch.randint(0, distinct, (size,), generator=generator)]
        found.append((logits, StreamBatch(torch.zeros(size, 3, 2, 2), labels, "fog", 3, known), record))
    return found


def compute_row(found, *measures):
    metrics = MetricCollection(Spec("tent", "x", "y", domains=("fog",), measures=measures), "cpu")
    for logits, batch, record in found:
        metrics.update(logits, batch, record)
    return metrics.compute()


def iter_samples(found):
    """Yield the samples one by one."""
    for logits, batch, record in found:
        for i, row in enumerate(logits.tolist()):
            best = max(range(len(row)), key=lambda k, row=row: row[k])
            yield SimpleNamespace(
                correct=bool(batch.known[i]) and best == int(batch.labels[i]), known=bool(batch.known[i]),
                selected=bool(record.selected[i]), novelty=float(record.novelty[i]), logits=row,
            )  # fmt: skip


def share(part, whole):
    part, whole = list(part), list(whole)
    return len(part) / len(whole) if whole else None


@given(domain_batches())
def test_row_counts_every_sample_once(found):
    row, every = compute_row(found, "error", "selection"), list(iter_samples(found))
    known = [s for s in every if s.known]
    selected, rejected = ([s for s in every if s.selected is which] for which in (True, False))
    expected = {
        "round": 3,
        "domain": "fog",
        "batches": len(found),
        "samples": len(every),
        "skipped": sum(record.skipped is not None for _, _, record in found),
        "quarantined": sum(int(record.quarantined.sum()) for _, _, record in found),
        "error": None if not known else 100 * share((s for s in known if not s.correct), known),
        "precision": share((s for s in selected if s.correct), selected),
        "recall": share((s for s in selected if s.correct), (s for s in every if s.correct)),
        "npv": share((s for s in rejected if not s.correct), rejected),
        "rejected": share(rejected, every),
        "selected_known": share((s for s in known if s.selected), known),
        "selected_unknown": share((s for s in selected if not s.known), (s for s in every if not s.known)),
    }
    assert without_health(row) == {
        key: pytest.approx(value) if isinstance(value, float) else value for key, value in expected.items()
    }
    json.dumps(row, allow_nan=False)


def without_health(row):
    return {key: value for key, value in row.items() if not key.startswith(("health", "guard/"))}


@given(domain_batches())
def test_row_holds_last_health_and_all_guard_actions(found):
    row, health = compute_row(found), found[-1][2].health
    assert row["health"] == health.state
    assert {name for name in row if name.startswith("health/")} == {f"health/{name}" for name in vars(health)}
    for name, value in vars(health).items():
        assert row[f"health/{name}"] == (None if math.isnan(value) else value)
    actions = [action for _, _, record in found for action in record.actions]
    assert {name: row[name] for name in row if name.startswith("guard/")} == {
        f"guard/{action}": actions.count(action) for action in actions
    }


def test_image_without_answer_is_wrong():
    logits, labels = torch.tensor([[math.nan, math.nan], [2.0, 0.0]]), torch.tensor([0, 0])
    batch = StreamBatch(torch.zeros(2, 3, 2, 2), labels, "fog", 1, labels == 0)
    record = Record(labels == 0, torch.zeros(2), quarantined=torch.tensor([True, False]))
    row = compute_row([(logits, batch, record)], "error", "selection")
    assert (row["error"], row["precision"], row["quarantined"]) == (50, 0.5, 1)


def sklearn_scores(positives, negatives):
    """Return AUROC and FPR@TPR95 in percent; None if there is nothing to rank."""
    if not positives or not negatives:
        return None, None
    truth, scores = [1] * len(positives) + [0] * len(negatives), positives + negatives
    if len(set(scores)) == 1:
        return 50.0, 100.0
    fpr, tpr, _ = sklearn.metrics.roc_curve(truth, scores, drop_intermediate=False)
    at_95 = fpr[tpr == 0.95].min() if 0.95 in tpr else np.interp(0.95, tpr, fpr)
    return 100 * sklearn.metrics.roc_auc_score(truth, scores), 100 * at_95


FAMILIARITY = {
    "msp": lambda s: max(math.exp(z) for z in s.logits) / sum(math.exp(z) for z in s.logits),
    "max_logit": lambda s: max(s.logits),
    "energy": lambda s: math.log(sum(math.exp(z) for z in s.logits)),
    "confidence_difference": lambda s: -s.novelty,
}


@given(domain_batches())
def test_scores_match_sklearn_in_both_protocols(found):
    row, every = compute_row(found, "scores"), list(iter_samples(found))
    counts = {"round", "domain", "batches", "samples", "skipped", "quarantined"}
    for name, familiarity in FAMILIARITY.items():
        for protocol, wrong in {"including": lambda s: not s.correct, "excluding": lambda s: not s.known}.items():
            positives = [familiarity(s) for s in every if s.correct]
            negatives = [familiarity(s) for s in every if wrong(s)]
            for kind, expected in zip(("auroc", "fpr"), sklearn_scores(positives, negatives), strict=True):
                ours = row[f"{name}/{protocol}/{kind}"]
                assert ours == (None if expected is None else pytest.approx(expected, abs=1e-9)), (name, kind)
                counts.add(f"{name}/{protocol}/{kind}")
    assert set(without_health(row)) == counts


@given(domain_batches())
def test_paper_selection_metric_is_independent_of_selected_samples(found):
    row, every = compute_row(found, "crowd"), list(iter_samples(found))
    selected, rejected = ([s for s in every if (s.novelty <= 0) is which] for which in (True, False))
    assert row["crowd/rejected"] == pytest.approx(share(rejected, every))
    for name, part, whole in (
        ("npv", [s for s in rejected if not s.correct], rejected),
        ("precision", [s for s in selected if s.correct], selected),
        ("recall", [s for s in selected if s.correct], [s for s in every if s.correct]),
    ):
        expected = share(part, whole)
        assert row[f"crowd/{name}"] == (None if expected is None else pytest.approx(expected))


@given(domain_batches())
def test_histograms_match_reference_and_count_every_sample(found):
    row, every = compute_row(found, "histograms"), list(iter_samples(found))
    scores = {"confidence": FAMILIARITY["msp"], "confidence_difference": FAMILIARITY["confidence_difference"]}
    for name, score in scores.items():
        for kind, chosen in {
            "correct": [s for s in every if s.correct],
            "wrong": [s for s in every if s.known and not s.correct],
            "unknown": [s for s in every if not s.known],
        }.items():
            counts = row[f"histogram/{name}/{kind}"]
            assert sum(counts) == len(chosen)
            # In single precision a score may fall on the other side of an edge.
            centers = np.add(edges(name)[:-1], np.diff(edges(name)) / 2)
            distance = np.abs(np.repeat(centers, counts) - np.sort([score(s) for s in chosen]))
            assert (distance <= np.diff(edges(name))[0] / 2 + 1e-6).all()
    json.dumps(row, allow_nan=False)


def test_slightly_negative_change_is_binned_below_zero():
    logits, known = torch.tensor([[2.0, 0.0], [2.0, 0.0], [math.nan, 0.0]]), torch.tensor([True, True, True])
    batch = StreamBatch(torch.zeros(3, 3, 2, 2), torch.tensor([0, 0, 0]), "fog", 1, known)
    record = Record(known, torch.tensor([1e-9, 0.0, math.nan]), quarantined=~known)
    row = compute_row([(logits, batch, record)], "histograms", "crowd")
    counts, zero = row["histogram/confidence_difference/correct"], edges("confidence_difference").index(0.0)
    assert (counts[zero - 1], counts[zero], sum(counts)) == (1, 1, 2)
    assert row["crowd/rejected"] == pytest.approx(2 / 3), "NaN counts as a loss of confidence"


def test_nan_scores_give_no_auroc():
    logits = torch.tensor([[math.nan, 0.0], [2.0, 0.0], [0.0, 3.0]])
    batch = StreamBatch(torch.zeros(3, 3, 2, 2), torch.tensor([0, 0, -1]), "fog", 1, torch.tensor([True, True, False]))
    every = torch.ones(3, dtype=torch.bool)
    record = Record(every, torch.tensor([0.1, 0.2, 0.3]), quarantined=~every)
    row = compute_row([(logits, batch, record)], "error", "scores")
    assert row["msp/including/auroc"] is row["energy/excluding/fpr"] is None
    assert row["confidence_difference/excluding/auroc"] == 100
    json.dumps(row, allow_nan=False)


class Looks(dp.guards.Guard):
    """Remembers every state it is shown."""

    states: ClassVar[list[str]] = []

    def act(self, health, control):
        self.states.append(health.state)


@pytest.mark.parametrize(
    ("name", "guards"), [(None, ()), ("fall_back+roll_back", (dp.guards.FallBack(), dp.guards.RollBack()))]
)
def test_rows_hold_health_and_guard_events_and_print_nothing(tmp_path, name, guards):
    options = (("lr", 1.0),) if name is None else (("guard", name), ("lr", 1.0))
    spec = Spec("tent", "random", "tiny", options=options, domains=("fog", "snow", "frost"), batch_size=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_job(Job(spec, 3), tmp_path, SmallBench(), AT_ONCE, ignore)
    adapter, rows = dp.tent(NETWORK, lr=1.0, guard=(Looks(), *guards)), iter(Store(tmp_path).run(spec).rows)
    unguarded = dp.tent(NETWORK, lr=1.0, guard=())
    stream = SmallBench().stream(spec, 3, ignore)
    for _, batches in itertools.groupby(stream, key=lambda batch: (batch.round, batch.domain)):
        row, wrong, actions = next(rows), [], Counter()
        Looks.states.clear()
        for batch in batches:
            wrong += [adapter(batch.images).argmax(dim=1) != batch.labels]
            actions.update(set(adapter.last.actions))
            if not guards:
                assert torch.equal(wrong[-1], unguarded(batch.images).argmax(dim=1) != batch.labels)
        assert row["error"] == pytest.approx(100 * torch.cat(wrong).float().mean().item())
        health = adapter.last.health
        assert row["health"] == health.state
        assert row["health/distance"] == (None if math.isnan(health.distance) else pytest.approx(health.distance))
        assert (row["health/looks"], row["health/unhealthy"]) == (
            len(Looks.states), sum(state != "healthy" for state in Looks.states)
        )  # fmt: skip
        assert {key: row[key] for key in row if key.startswith("guard/")} == {
            f"guard/{action}": count for action, count in actions.items()
        }
    written = Store(tmp_path).run(spec).rows
    assert any(row["health/unhealthy"] for row in written), "the learning rate is far too high"
    assert any("guard/fell back" in row and "guard/reset" in row for row in written) == (name is not None)


def test_guard_is_part_of_spec():
    plain = Spec("tent", "random", "tiny", domains=("fog",))
    digests = [plain.with_options(guard=guard).digest for guard in ("warn", "pause", "fall_back+roll_back")]
    assert len({plain.digest, *digests}) == 4
    own = repr(dp.adapt(NETWORK).method.guards)
    assert repr(benchmark_guards("adapt", {})) == own
    assert benchmark_guards("adapt", {"guard": "none"}) == ()


def test_timed_steps_have_no_guard_unless_named():
    spec = Spec("tent,swr,adapt", "x", "y", options=(("swr.guard", "pause"),), domains=("fog",), task="costs")
    found = {
        name: repr(costs._build_adapter(spec, name, NETWORK, SmallBench(), AT_ONCE).method.guards)
        for name in spec.method.split(",")
    }
    assert found == {"tent": "()", "swr": "(Pause(),)", "adapt": repr(dp.adapt(NETWORK).method.guards)}


def test_unknown_metric_suggests_nearest():
    with pytest.raises(ConfigurationError, match="Did you mean error"):
        MetricCollection(Spec("tent", "x", "y", domains=("fog",), measures=("eror",)), "cpu")


# Plans


def test_plan_contains_all_runs_of_suite_in_order():
    for name in ("table1", "table6", "demo"):
        made = suite(name)
        assert plan_runs(made, RunFilter()) == [Job(spec, made.rounds) for spec in made.specs()]


def test_run_shared_by_suites_is_planned_once_with_most_rounds():
    short, long = suite("table2"), suite("rules")
    jobs = plan_runs([short, long], RunFilter())
    assert [job.spec for job in jobs] == list(dict.fromkeys([*short.specs(), *long.specs()]))
    in_long = set(long.specs())
    assert all(job.rounds == (50 if job.spec in in_long else 1) for job in jobs)
    both = plan_runs([long, suite("gradients")], RunFilter(methods=["tent+certain", "bn_adapt"], sets=["cifar10-c"]))
    assert {job.spec.task for job in both} == {"stream", "gradients"}, "each name occurs in one of them"
    with pytest.raises(ConfigurationError, match="known method of table2 or rules, but got 'cotta'"):
        plan_runs([short, long], RunFilter(methods=["cotta"]))


@pytest.mark.parametrize("names", [("table7", "table2"), ("table2", "table7")])
def test_runs_merged_by_replacement_use_most_rounds(names):
    run_filter = RunFilter(methods=["tent"], sets=["cifar10-c"], setting="closed", replaced={"wrn28_10": "wrn40_2"})
    jobs = plan_runs([suite(name) for name in names], run_filter)
    assert {job.spec.model: job.rounds for job in jobs} == {"wrn40_2": 50, "resnet50_cifar": 50}
    assert len(jobs) == 2


def test_filter_by_method_dataset_and_setting():
    run_filter = RunFilter(
        methods=["tent+crowd", "tent"], sets=["cifar10-c"], setting="open", rounds=3, limit=7, seeds=[5, 6]
    )
    jobs = plan_runs(suite("table1"), run_filter)
    found = [(job.spec.seed, job.spec.method, job.spec.images, job.spec.setting, job.rounds) for job in jobs]
    assert found == [(seed, method, "cifar10-c", "open", 3) for seed in (5, 6) for method in ("tent", "tent+crowd")]
    assert {job.spec.limit for job in jobs} == {7}
    assert len(plan_runs(suite("table1"), RunFilter(setting="closed"))) == 39
    assert run_filter.metadata() == {"limit": 7, "replaced": {}, "prepared on test images": []}


def test_dataset_is_replaced_as_known_and_unknown_images():
    run_filter = RunFilter(sets=["tiny-imagenet-c"], replaced={"imagenet-o-c-64": "imagenet64-other-c"})
    jobs, usual = (
        plan_runs(suite("table1"), run_filter),
        plan_runs(suite("table1"), RunFilter(sets=["tiny-imagenet-c"])),
    )
    for job, before in zip(jobs, usual, strict=True):
        unknown = "imagenet64-other-c" if before.spec.setting == "open" else None
        assert job.spec == dataclasses.replace(before.spec, unknown=unknown)
    jobs = plan_runs(suite("s5"), RunFilter(methods=["source"], replaced={"cifar10-c": "other-c"}))
    assert [job.spec.images for job in jobs] == ["other-c", "cifar100-c", "tiny-imagenet-c"]


def test_network_is_replaced_like_dataset(tmp_path):
    replaced = {"deeplabv3plus_resnet50": "deeplabv3plus_small", "camvid-c": "camvid-c-180"}
    (job,) = plan_runs(suite("camvid"), RunFilter(methods=["source"], replaced=replaced))
    assert (job.spec.model, job.spec.images) == ("deeplabv3plus_small", "camvid-c-180")
    write_run(tmp_path, job.spec, [[0.0] * 6], mean_iou=[12.0] * 3 + [14.0] * 3)
    Store(tmp_path).update_metadata({"replaced": replaced})
    assert fill_table(Results(tmp_path), suite("camvid").tables[0]).values["source", "Round 1"].ours == 13.0


def test_folder_options_do_not_change_unrelated_suites():
    everywhere = {"replaced": {"imagenet-o-c-64": "imagenet64-other-c"}, "prepared_on_test": ["tiny-imagenet-c"]}
    for name in ("table8", "gradients"):
        assert plan_runs(suite(name), RunFilter(**everywhere)) == plan_runs(suite(name), RunFilter())


def test_filter_by_task_and_number_of_trials():
    jobs = plan_runs([suite("table6"), suite("s3")], RunFilter(task="costs", trials=20))
    assert {job.spec.method for job in jobs} == {"ent,swr,tent,eata,tent+crowd", "tent,cotta,tent+crowd"}
    assert [dict(job.spec.options) for job in jobs] == [{"trials": 20, "warm_up": 20}] * 2
    (longer, _) = plan_runs([suite("table6"), suite("s3")], RunFilter(task="costs", trials=300))
    assert dict(longer.spec.options) == {"trials": 300, "warm_up": 50}
    assert plan_runs(suite("table2"), RunFilter(trials=20)) == plan_runs(suite("table2"), RunFilter())


def test_plan_has_no_duplicates():
    jobs = plan_runs(suite("table2"), RunFilter(methods=["source"], seeds=[0, 1, 0]))
    assert len(jobs) == len({job.spec for job in jobs}) == 12
    same = {"cifar10-c": "digits-c", "cifar100-c": "digits-c"}
    jobs = plan_runs(suite("table2"), RunFilter(methods=["source"], setting="closed", replaced=same))
    assert [job.spec.images for job in jobs] == ["digits-c", "tiny-imagenet-c"]


@pytest.mark.parametrize(
    ("run_filter", "message"),
    [
        (RunFilter(methods=["tnet"]), "Did you mean tent"),
        (RunFilter(methods=["cotta"]), "known method of table1, but got 'cotta'"),
        (RunFilter(sets=["cifar-10-c"]), "known image set of table1.*Did you mean cifar10-c"),
        (RunFilter(setting="opne"), "Did you mean open"),
        (RunFilter(replaced={"svhn": "x"}), "known image set or network, but got 'svhn'. Did you mean svhn-c"),
        (RunFilter(prepared_on_test=["tiny-imagenet"]), "known image set.*Did you mean tiny-imagenet-c"),
        (RunFilter(task="cost"), "known task of table1, but got 'cost'"),
        (RunFilter(trials=0), "`trials` to be at least 1, but got 0"),
        (RunFilter(rounds=0), "`rounds` to be at least 1, but got 0"),
        (RunFilter(limit=0), "`limit` to be at least 1, but got 0"),
        (RunFilter(seeds=[]), "at least one run of table1"),
    ],
)
def test_invalid_filter_is_refused(run_filter, message):
    with pytest.raises(ConfigurationError, match=message):
        plan_runs(suite("table1"), run_filter)


# Results

DOMAINS = ("fog", "frost", "snow")


def write_run(folder, spec, errors, **more):
    """Write a run with given errors: one list per round, one number per domain."""
    rows = [
        {"round": index // len(spec.domains) + 1, "domain": spec.domains[index % len(spec.domains)], "error": error}
        | {name: values[index] for name, values in more.items()}
        for index, error in enumerate(itertools.chain(*errors))
    ]
    run = Store(folder).run(spec)
    with run.locked():
        run.write_spec(spec, {})
        run.append(rows, [{"seconds": 1.0}] * len(rows))


def random_errors(seed, rounds, domains=3):
    return np.random.default_rng(seed).uniform(5, 95, (rounds, domains)).tolist()


def tiny(method, **more):
    return Spec(method, "cifar10-c", "wrn40_2", domains=DOMAINS, **more)


def test_value_is_mean_over_domains_of_requested_round(tmp_path):
    errors = random_errors(0, rounds=4)
    write_run(tmp_path, tiny("tent"), errors, precision=list(range(12)))
    results = Results(tmp_path)
    for round in range(1, 5):
        value = results.value(TableEntry("tent", "here", (tiny("tent"),), round=round), paper=30.0)
        assert value.ours == pytest.approx(np.mean(errors[round - 1]))
        assert value.difference == pytest.approx(np.mean(errors[round - 1]) - 30)
        assert (value.round, value.wanted, value.seeds, value.deviation) == (round, round, 1, None)
        assert value.complete
    assert results.per_round(tiny("tent")) == pytest.approx([np.mean(row) for row in errors])
    assert results.per_round(tiny("tent"), "precision") == pytest.approx([1, 4, 7, 10])
    frost = results.value(TableEntry("tent", "here", (tiny("tent"),), round=2, domain="frost"))
    assert frost.ours == errors[1][1]
    assert frost.difference is None


@pytest.mark.parametrize("begun", [0, 1, 2])
def test_incomplete_run_shows_last_complete_round(tmp_path, begun):
    errors = random_errors(1, rounds=2)
    write_run(tmp_path, tiny("tent"), [*errors, [1.0] * begun])
    value = Results(tmp_path).value(TableEntry("tent", "here", (tiny("tent"),), round=50))
    assert value.ours == pytest.approx(np.mean(errors[1]))
    assert (value.round, value.wanted, value.complete) == (2, 50, False)


def test_missing_value_is_none(tmp_path):
    write_run(tmp_path, tiny("tent"), [[1.0, 2.0]])
    results = Results(tmp_path)
    assert results.seeds(tiny("tent")) == [], "no round is complete"
    assert results.rows(tiny("eata")) == []
    for spec in (tiny("tent"), tiny("eata")):
        value = results.value(TableEntry("x", "here", (spec,), round=3), paper=7.0)
        assert (value.ours, value.paper, value.round, value.wanted, value.seeds) == (None, 7.0, None, 3, 0)
        assert value.difference is None
        assert not value.complete
    with pytest.raises(InputError, match="bench run"):
        Results(tmp_path / "elsewhere")


def test_seeds_give_mean_and_deviation(tmp_path):
    errors = {seed: random_errors(seed, rounds=seed) for seed in (3, 4, 7)}
    for seed, rounds in errors.items():
        write_run(tmp_path, tiny("tent", seed=seed), rounds)
    write_run(tmp_path, tiny("tent", seed=8), [[1.0]])
    results = Results(tmp_path)
    assert [spec.seed for spec in results.seeds(tiny("tent"))] == [3, 4, 7]
    for round, seeds in ((3, (3, 4, 7)), (4, (4, 7))):
        value = results.value(TableEntry("tent", "here", (tiny("tent"),), round=round))
        means = [np.mean(errors[seed][round - 1]) for seed in seeds]
        assert value.ours == pytest.approx(np.mean(means))
        assert value.deviation == pytest.approx(np.std(means, ddof=1))
        assert (value.round, [run.seed for run in value.runs]) == (round, list(seeds))


def test_short_seed_does_not_lower_round_of_longer_seed(tmp_path):
    errors = random_errors(0, rounds=4)
    write_run(tmp_path, tiny("tent"), errors)
    write_run(tmp_path, tiny("tent", seed=1), random_errors(1, rounds=1))
    value = Results(tmp_path).value(TableEntry("tent", "here", (tiny("tent"),), round=50))
    assert (value.ours, value.round, value.seeds) == (pytest.approx(np.mean(errors[3])), 4, 1)


def test_compared_values_share_seeds_and_round(tmp_path):
    rounds = {("tent", 0): 4, ("tent", 1): 2, ("tent", 2): 4, ("eata", 0): 3, ("eata", 1): 3}
    errors = {place: random_errors(index, rounds[place]) for index, place in enumerate(rounds)}
    for method, seed in rounds:
        write_run(tmp_path, tiny(method, seed=seed), errors[method, seed])
    entries = [TableEntry(method, "here", (tiny(method),), round=50) for method in ("tent", "eata")]
    found = Results(tmp_path).compare(entries)
    assert [value.ours for value in found] == pytest.approx([np.mean(errors[name, 0][2]) for name in ("tent", "eata")])
    assert all((value.round, value.wanted, value.seeds) == (3, 50, 1) for value in found)


def test_runs_are_averaged_per_seed(tmp_path):
    closed, opened = tiny("tent"), tiny("tent", unknown="svhn-c")
    errors = {
        (spec, seed): random_errors(seed + 10 * (spec is opened), 1) for spec in (closed, opened) for seed in range(6)
    }
    for (spec, seed), rounds in errors.items():
        if seed != (0 if spec is closed else 5):
            write_run(tmp_path, dataclasses.replace(spec, seed=seed), rounds)
    value = Results(tmp_path).value(TableEntry("tent", "both", (closed, opened)))
    means = [np.mean([errors[closed, seed], errors[opened, seed]]) for seed in (1, 2, 3, 4)]
    assert value.seeds == 4, "seeds that both have"
    assert value.ours == pytest.approx(np.mean(means))
    assert value.deviation == pytest.approx(np.std(means, ddof=1))


def test_no_common_seed_gives_no_value(tmp_path):
    write_run(tmp_path, tiny("tent", seed=1), random_errors(0, 1))
    write_run(tmp_path, tiny("tent", unknown="svhn-c", seed=2), random_errors(0, 1))
    value = Results(tmp_path).value(TableEntry("tent", "both", (tiny("tent"), tiny("tent", unknown="svhn-c"))))
    assert (value.ours, value.seeds) == (None, 0)


def test_missing_metric_gives_none(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, tiny("tent", seed=seed), [[1.0, None if seed else 2.0, 3.0]])
    table = Table(
        "t", "T", (TableEntry("tent", "here", (tiny("tent"),)), TableEntry("tent", "odd", (tiny("tent"),), "oddity"))
    )
    measured = fill_table(Results(tmp_path), table)
    assert [value.ours for value in measured.values.values()] == [None, None]
    json.dumps(measured.as_data(), allow_nan=False)


def test_summary_columns_are_mean_and_sample_deviation(tmp_path):
    specs = {f"lr={lr}": tiny("tent").with_options(lr=lr) for lr in (1e-3, 1e-2, 1e-1)}
    errors = {column: random_errors(index, 2) for index, column in enumerate(specs)}
    for index, (column, spec) in enumerate(specs.items()):
        write_run(tmp_path, spec, errors[column][: 2 - (index == 1)])
    write_run(tmp_path, tiny("source"), random_errors(9, 1))
    entries = [TableEntry("tent", column, (spec,), round=2) for column, spec in specs.items()]
    entries += [TableEntry("source", "lr=0.001", (tiny("source"),))]
    summaries = (Summary("Mean", tuple(specs)), Summary("Std", tuple(specs), "deviation"))
    measured = fill_table(Results(tmp_path), Table("t", "T", tuple(entries), summaries=summaries))
    assert measured.rows == ("tent", "source")
    assert measured.columns == (*specs, "Mean", "Std")
    common = [np.mean(errors[column][0]) for column in specs]
    assert measured.values["tent", "lr=0.1"].ours == pytest.approx(np.mean(errors["lr=0.1"][1]))
    assert measured.values["tent", "Mean"].ours == pytest.approx(np.mean(common)), "the last common round"
    assert measured.values["tent", "Std"].ours == pytest.approx(np.std(common, ddof=1))
    assert (measured.values["tent", "Std"].round, measured.values["tent", "Std"].wanted) == (1, 2)
    assert not measured.values["tent", "Mean"].complete
    assert measured.values["source", "Mean"].ours is None, "two of its columns are missing"


def test_stateless_run_is_complete_after_one_round(tmp_path):
    errors, domains = random_errors(3, 2), ("fog", "frost", "snow")
    stateless, learning = (Spec(method, "x", "y", domains=domains) for method in ("bn_adapt", "tent"))
    for spec, scope in ((stateless, "nothing()"), (learning, "norm_affine()")):
        run = Store(tmp_path).run(spec)
        run.folder.mkdir(parents=True)
        run.write_spec(spec, {"scope": scope, "statistics": "Batch()"})
        rows = [
            {"round": round, "domain": domain, "error": error}
            for round, of_round in enumerate(errors, start=1)
            for domain, error in zip(domains, of_round, strict=True)
        ]
        run.append(rows, [{}] * len(rows))
    results = Results(tmp_path)
    found = {spec: results.value(TableEntry(spec.method, "", (spec,), round=50)) for spec in (stateless, learning)}
    assert (found[stateless].round, found[stateless].complete) == (50, True)
    assert (found[learning].round, found[learning].complete) == (2, False)
    assert found[stateless].ours == found[learning].ours == pytest.approx(np.mean(errors[1]))
    assert results.per_round(stateless) == pytest.approx(np.mean(errors, axis=1)), "measured rounds are kept"
    both = results.value(TableEntry("both", "", (stateless, learning), round=50))
    assert both.round == 2


def test_filled_table_has_our_and_the_papers_numbers(tmp_path):
    columns = {"CIFAR-10-C/Closed": None, "CIFAR-10-C/Open": "svhn-c"}
    specs = {
        (entry.row, entry.column): entry.specs[0]
        for entry in suite("table2").tables[0].entries
        if entry.column in columns and entry.row in ("tent", "tent+crowd", "conjugate (ε = 0)")
    }
    errors = {place: random_errors(index, 1, domains=15) for index, place in enumerate(specs)}
    for place, spec in specs.items():
        write_run(tmp_path, spec, errors[place])
    results = Results(tmp_path)
    tables = {measured.table.name: measured for measured in results.tables()}
    assert set(tables) == {"table1", "table2", "table6", "s3a", "s5", "rules"}, "all tables that show one of these runs"
    measured = tables["table2"]
    paper = {("tent", "CIFAR-10-C/Open"): 27.8, ("tent+crowd", "CIFAR-10-C/Closed"): 12.39}
    for place in specs:
        assert measured.values[place].ours == pytest.approx(np.mean(errors[place]))
        assert measured.values[place].complete
        assert not tables["table1"].values[place].complete
    for place, printed in paper.items():
        assert measured.values[place].paper == printed
        assert measured.values[place].difference == pytest.approx(np.mean(errors[place]) - printed)
    assert measured.values["conjugate (ε = 0)", "CIFAR-10-C/Open"].paper is None
    assert measured.values["tent", "Average/Open"].ours is None
    assert measured.values["tent", "Average/Open"].paper == 51.33
    (mean,) = (v for place, v in tables["table6"].values.items() if place == ("tent", "CIFAR-10-C error"))
    halves = [np.mean(errors["tent", column]) for column in columns]
    assert mean.ours == pytest.approx(np.mean(halves))
    data = json.loads(json.dumps(measured.as_data(), allow_nan=False))
    assert (data["table"], data["unit"]) == ("table2", "error %")
    (number,) = (n for n in data["values"] if (n["row"], n["column"]) == ("tent", "CIFAR-10-C/Open"))
    assert number["difference"] == pytest.approx(number["ours"] - 27.8)
    assert len(data["values"]) == 13 * 8


def test_limit_and_replaced_datasets_of_folder_are_applied(tmp_path):
    replaced = {"svhn-c": "imagenet64-other-c"}
    run_filter = RunFilter(methods=["tent"], sets=["cifar10-c"], limit=40, replaced=replaced, rounds=1, seeds=[0, 1])
    Store(tmp_path).update_metadata(run_filter.metadata())
    jobs = plan_runs(suite("table1"), run_filter)
    for index, job in enumerate(jobs):
        write_run(tmp_path, job.spec, random_errors(index, 1, domains=15))
    tables = {measured.table.name: measured for measured in Results(tmp_path).tables()}
    for column in ("CIFAR-10-C/Closed", "CIFAR-10-C/Open"):
        value = tables["table2"].values["tent", column]
        setting = column.rpartition("/")[2].lower()
        means = [np.mean(random_errors(i, 1, domains=15)) for i, job in enumerate(jobs) if job.spec.setting == setting]
        assert value.ours == pytest.approx(np.mean(means))
        assert value.seeds == 2
    (tmp_path / "folder.json").unlink()
    assert Results(tmp_path).tables() == [], "without the folder's metadata, these are other runs"


def test_costs_fill_table_by_method(tmp_path):
    (spec,) = (spec for spec in suite("table6").specs() if spec.task == "costs")
    run = Store(tmp_path).run(spec)
    with run.locked():
        run.write_spec(spec, {})
        rows = [
            {"round": 1, "domain": name, "memory": 100.0 + i, "milliseconds": 7.0 * i}
            for i, name in enumerate(spec.method.split(","))
        ]
        run.append(rows, [{}] * len(rows))
    (measured,) = (measured for measured in Results(tmp_path).tables() if measured.table.name == "table6")
    assert measured.values["swr", "Memory (MB)"].ours == 101
    assert measured.values["eata", "Time (ms)"].ours == 21
    assert measured.values["eata", "Time (ms)"].complete
    assert measured.values["eata", "CIFAR-10-C error"].ours is None


def test_costs_with_fewer_trials_fill_same_table(tmp_path):
    for trials in (300, 20):
        (job,) = plan_runs(suite("table6"), RunFilter(task="costs", trials=trials))
        run = Store(tmp_path).run(job.spec)
        with run.locked():
            run.write_spec(job.spec, {})
            rows = [{"round": 1, "domain": name, "milliseconds": float(trials)} for name in job.spec.method.split(",")]
            run.append(rows, [{}] * len(rows))
    (measured,) = (measured for measured in Results(tmp_path).tables() if measured.table.name == "table6")
    assert measured.values["eata", "Time (ms)"].ours == 300, "the run with the most trials counts"


def test_damaged_run_is_refused(tmp_path):
    write_run(tmp_path, tiny("tent"), random_errors(0, 1))
    path = Store(tmp_path).run(tiny("tent")).folder / "spec.json"
    path.write_text(json.dumps({"spec": tiny("tent").as_data() | {"severity": "five"}, "protocol": {}}))
    with pytest.raises(StateError, match="`severity` is 'five'"):
        Results(tmp_path)


# Costs


def costs_of(methods):
    return Spec(methods, "random", "tiny", domains=("fog",), batch_size=6, measures=(), task="costs")


def test_costs_are_counted_and_measured_for_every_method(tmp_path):
    methods, events = "ent,swr,tent,eata,tent+crowd,bn_adapt", []
    job = Job(costs_of(methods).with_options(trials=2, warm_up=1), rounds=1)
    run_job(job, tmp_path, SmallBench(), AT_ONCE, events.append)
    run = Store(tmp_path).run(job.spec)
    rows = run.rows
    assert [row["domain"] for row in rows] == methods.split(",")
    counted = count_memory(NETWORK, (3, 8, 8))
    for row in rows[:-1]:
        assert row["memory"] == pytest.approx(method_memory(row["domain"], counted, batch=6))
    assert rows[-1]["memory"] is None, "the paper has no formula"
    assert all(row["milliseconds"] > 0 < row["median_milliseconds"] and row["peak"] is None for row in rows)
    assert len(run.conditions) == len(rows)
    assert run.protocol == {"image": "(3, 8, 8)", "batch": "6"}
    assert [event.row for event in events if event.row] == rows
    assert any(event.stage == "timing" for event in events)
    events.clear()
    run_job(job, tmp_path, SmallBench(), AT_ONCE, events.append)
    assert (run.rows, events) == (rows, []), "a complete run is left alone"


@pytest.mark.parametrize(
    ("options", "message"),
    [({"trails": 3}, "Did you mean trials"), ({"warm_up": 1}, "`trials` of at least 1"), ({"trials": 0}, "`trials`")],
)
def test_invalid_costs_options_are_refused(tmp_path, options, message):
    spec = costs_of("tent").with_options(**options)
    with pytest.raises(ConfigurationError, match=message):
        run_job(Job(spec, 1), tmp_path, SmallBench(), AT_ONCE, ignore)
    assert Store(tmp_path).run(spec).rows == []


def test_threshold_from_source_images_is_stored_in_conditions(tmp_path):
    fixed, found = (
        Spec("cotta", "random", "tiny", domains=("fog",), batch_size=6).with_options(threshold=threshold)
        for threshold in (0.5, None)
    )
    bench = SmallBench()
    for spec in (fixed, found):
        run_job(Job(spec, 1), tmp_path / "store", bench, AT_ONCE, ignore)
    ((images, _),) = bench.source(found, "cpu")
    with torch.no_grad():
        tops = bench.model(found).eval()(images).softmax(dim=1).amax(dim=1)
    expected = torch.quantile(tops, 0.05, interpolation="lower") - 0.05
    write_archive([tmp_path / "store"], tmp_path / "archive")
    for folder in ("store", "archive"):
        results = Results(tmp_path / folder)
        assert "found" not in results.runs[fixed].conditions[0]
        (values,) = (one["found"] for one in results.runs[found].conditions)
        assert values["threshold"] == pytest.approx(float(expected), abs=2e-5)
        table = Table(
            "t", "T", tuple(TableEntry("cotta", word, (spec,)) for word, spec in (("given", fixed), ("own", found)))
        )
        (note,) = table_notes(fill_table(results, table), results)
        assert note == f"Estimated from source images: threshold {float(expected):.3f} for cotta on own."
    assert {row["found/threshold"] for row in flat_rows(Results(tmp_path / "store"))} == {None, values["threshold"]}


def test_monitor_reports_environment():
    monitor = environment.ResourceMonitor("cpu")
    time.sleep(0.01)
    found = monitor.measure()
    assert found["seconds"] >= 0.01
    assert found["peak_memory"] > 10 * 2**20, "in bytes: the process has loaded torch"
    assert found["device"] == "cpu"
    assert found["hardware"]
    assert (found["threads"], found["torch"]) == (torch.get_num_threads(), torch.__version__)
    assert found["driftproof"] == dp.__version__
    json.dumps(found, allow_nan=False)


def test_hardware_falls_back_to_architecture(tmp_path, monkeypatch):
    cpuinfo = "processor\t: 0\nmodel name\t: Abacus 9000 @ 3 Hz\nflags\t: fpu\n\nmodel name\t: Abacus 9000 @ 3 Hz\n"
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(environment, "_CPUINFO", tmp_path / "cpuinfo")
    assert environment.hardware(torch.device("cpu")) == "Abacus 9000 @ 3 Hz"
    for missing in ("nowhere", "empty"):
        (tmp_path / "empty").touch()
        monkeypatch.setattr(environment, "_CPUINFO", tmp_path / missing)
        assert environment.hardware(torch.device("cpu")) == (platform.processor() or platform.machine())


# Overhead of the runner


class InstantAdapter:
    """An adapter that takes no time: it always returns the same."""

    prepared, select = True, None

    def __init__(self, real, images):
        self.logits, self.last, self.save, self.method = real(images), real.last, real.save, real.method

    def __call__(self, images):
        return self.logits


class InstantStream:
    """A stream that takes no time: its batches are in memory."""

    def __init__(self, images, rounds, per_domain):
        known = torch.arange(len(images)) < len(images) // 2
        labels = torch.zeros(len(images), dtype=torch.int64).masked_fill(~known, -1)
        self.batches = [
            StreamBatch(images, labels, domain, round, known)
            for round in range(1, rounds + 1)
            for domain in dp.corruptions.CORRUPTIONS
            for _ in range(per_domain)
        ]

    def __len__(self):
        return len(self.batches)

    def start_from(self, round, domain_index):
        return self

    def plans(self):
        return (SimpleNamespace(read=lambda move, batch=batch: batch) for batch in self.batches)


@contextmanager
def timed(seconds):
    start = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - start)


@pytest.fixture
def frozen_gc():
    """Keep the garbage collector from scanning what other tests left."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen_gc")
def test_runner_overhead_is_at_most_three_percent(tmp_path, monkeypatch):
    images = torch.rand(100, 3, 16, 16)
    real = dp.tent(build_model("wrn10_1", classes=6), lr=1e-3, guard=HealthLog())
    stream = InstantStream(images, rounds=1, per_domain=10)
    stub = InstantAdapter(real, images)
    monkeypatch.setattr(runner, "build_method", lambda *arguments: stub)
    bench = SimpleNamespace(model=lambda spec: NETWORK, stream=lambda spec, rounds, progress: stream)
    (spec,) = (spec for spec in suite("demo").specs() if spec.method == "tent")
    display = Progress(console=Console(file=io.StringIO(), force_terminal=True))
    shares = []
    for attempt in range(5):  # the machine may be busy
        steps, run = [], []
        for _ in range(9):
            with timed(steps):
                real(images)
        with display, timed(run):
            run_job(
                Job(spec, 1),
                tmp_path / str(attempt),
                bench,
                runner.RunSettings(),
                bench_progress._ProgressLines(display, [spec]),
            )
        assert Store(tmp_path / str(attempt)).run(spec).length == 15
        shares.append(run[0] / len(stream) / statistics.median(steps))
        if shares[-1] <= 0.03:
            break
    assert min(shares) <= 0.03, [f"{share:.1%}" for share in shares]
