"""Plans of suites, costs, health in rows, and the runner's overhead."""

import dataclasses
import itertools
import math
import statistics
import timeit
import warnings
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import MagicMock

import pytest
import torch

import driftproof as dp
from driftproof.analyses import count_memory, method_memory
from driftproof.bench import Spec, Store, runner, tasks
from driftproof.bench.health_log import HealthLog, benchmark_guards
from driftproof.bench.jobs import Job, run_job
from driftproof.bench.plan import RunFilter, plan_runs
from driftproof.corruptions import CORRUPTIONS
from driftproof.errors import ConfigurationError
from driftproof.models import build_model
from driftproof.paper import suite
from driftproof.streams import StreamBatch
from networks import build as small_network
from small_bench import AT_ONCE, SmallBench, ignore

NETWORK = small_network("wide_resnet")


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
    for _, batches in itertools.groupby(SmallBench().stream(spec, 3, ignore), key=lambda b: (b.round, b.domain)):
        row, wrong, actions = next(rows), [], Counter()
        Looks.states.clear()
        for batch in batches:
            wrong += [adapter(batch.images).argmax(dim=1) != batch.labels]
            actions.update(set(adapter.last.actions))
        assert row["error"] == pytest.approx(100 * torch.cat(wrong).float().mean().item())
        health = adapter.last.health
        assert row["health"] == health.state
        assert row["health/distance"] == (None if math.isnan(health.distance) else pytest.approx(health.distance))
        unhealthy = sum(state != "healthy" for state in Looks.states)
        assert (row["health/looks"], row["health/unhealthy"]) == (len(Looks.states), unhealthy)
        assert {key: row[key] for key in row if key.startswith("guard/")} == {
            f"guard/{action}": count for action, count in actions.items()
        }
    written = Store(tmp_path).run(spec).rows
    assert any(row["health/unhealthy"] for row in written), "the learning rate is far too high"
    assert any("guard/fell back" in row and "guard/reset" in row for row in written) == (name is not None)
    assert repr(benchmark_guards("adapt", {})) == repr(dp.adapt(NETWORK).method.guards)
    assert benchmark_guards("adapt", {"guard": "none"}) == ()


def test_run_shared_by_suites_is_planned_once_with_most_rounds():
    short, long = suite("table2"), suite("rules")
    jobs = plan_runs([short, long], RunFilter())
    assert [job.spec for job in jobs] == list(dict.fromkeys([*short.specs(), *long.specs()]))
    in_long = set(long.specs())
    assert all(job.rounds == (50 if job.spec in in_long else 1) for job in jobs)
    both = plan_runs([long, suite("gradients")], RunFilter(methods=["tent+certain", "bn_adapt"], images=["cifar10-c"]))
    assert {job.spec.task for job in both} == {"stream", "gradients"}, "each name occurs in one of them"
    replaced = {"imagenet-o-c-64": "imagenet64-other-c"}
    for job, before in zip(plan_runs(short, RunFilter(replaced=replaced)), plan_runs(short, RunFilter()), strict=True):
        unknown = replaced.get(before.spec.unknown, before.spec.unknown)
        assert job.spec == dataclasses.replace(before.spec, unknown=unknown)
    run_filter = RunFilter(methods=["tent"], images=["cifar10-c"], setting="closed", replaced={"wrn28_10": "wrn40_2"})
    for names in (("table7", "table2"), ("table2", "table7")):
        jobs = plan_runs([suite(name) for name in names], run_filter)
        assert {job.spec.model: job.rounds for job in jobs} == {"wrn40_2": 50, "resnet50_cifar": 50}


def test_filter_by_method_dataset_and_setting():
    run_filter = RunFilter(
        methods=["tent+crowd", "tent"], images=["cifar10-c"], setting="open", rounds=3, limit=7, seeds=[5, 6, 5]
    )
    jobs = plan_runs(suite("table1"), run_filter)
    found = [(job.spec.seed, job.spec.method, job.spec.images, job.spec.setting, job.rounds) for job in jobs]
    assert found == [(seed, method, "cifar10-c", "open", 3) for seed in (5, 6) for method in ("tent", "tent+crowd")]
    assert {job.spec.limit for job in jobs} == {7}
    assert run_filter.metadata() == {"limit": 7, "replaced": {}, "prepared on test images": []}
    (job,) = plan_runs(suite("table6"), RunFilter(task="costs", trials=20))
    assert dict(job.spec.options) == {"trials": 20, "warm_up": 20}


@pytest.mark.parametrize(
    ("run_filter", "message"),
    [
        (RunFilter(methods=["cotta"]), "known method of table1, but got 'cotta'"),
        (RunFilter(images=["cifar-10-c"]), "known image set of table1.*Did you mean cifar10-c"),
        (RunFilter(replaced={"svhn": "x"}), "known image set or network, but got 'svhn'. Did you mean svhn-c"),
        (RunFilter(prepared_on_test=["tiny-imagenet"]), "known image set.*Did you mean tiny-imagenet-c"),
        (RunFilter(trials=0), "`trials` to be at least 1, but got 0"),
        (RunFilter(limit=0), "`limit` to be at least 1, but got 0"),
        (RunFilter(seeds=[]), "at least one run of table1"),
    ],
)
def test_invalid_filter_is_refused(run_filter, message):
    with pytest.raises(ConfigurationError, match=message):
        plan_runs(suite("table1"), run_filter)


def costs_of(methods, **options):
    spec = Spec(methods, "random", "tiny", domains=("fog",), batch_size=6, measures=(), task="costs")
    return spec.with_options(**options)


def test_costs_are_counted_and_measured_for_every_method(tmp_path):
    methods, events = "ent,swr,tent,eata,tent+crowd,bn_adapt", []
    job = Job(costs_of(methods, trials=2, warm_up=1), rounds=1)
    run_job(job, tmp_path, SmallBench(), AT_ONCE, events.append)
    run = Store(tmp_path).run(job.spec)
    rows, counted = run.rows, count_memory(NETWORK, (3, 8, 8))
    assert [row["domain"] for row in rows] == methods.split(",")
    for row in rows[:-1]:
        assert row["memory"] == pytest.approx(method_memory(row["domain"], counted, batch=6))
    assert rows[-1]["memory"] is None, "the paper has no formula"
    assert all(row["milliseconds"] > 0 < row["median_milliseconds"] and row["peak"] is None for row in rows)
    assert (len(run.conditions), run.protocol) == (len(rows), {"image": "(3, 8, 8)", "batch": "6"})
    assert [event.row for event in events if event.row] == rows
    events.clear()
    run_job(job, tmp_path, SmallBench(), AT_ONCE, events.append)
    assert (run.rows, events) == (rows, []), "a complete run is left alone"
    for wrong, message in (({"trails": 3}, "Did you mean trials"), ({"trials": 0}, "`trials` of at least 1")):
        with pytest.raises(ConfigurationError, match=message):
            run_job(Job(costs_of("tent", **wrong), 1), tmp_path, SmallBench(), AT_ONCE, ignore)
    guarded = costs_of("tent,swr", **{"swr.guard": "pause"})
    adapters = [tasks._build_adapter(guarded, name, NETWORK, SmallBench(), AT_ONCE) for name in ("tent", "swr")]
    assert [repr(adapter.method.guards) for adapter in adapters] == ["()", "(Pause(),)"]


def test_runner_costs_at_most_three_percent_of_a_small_step(tmp_path, monkeypatch):
    """With an adapter that answers at once, and batches in memory."""
    images = torch.rand(100, 3, 16, 16)
    real = dp.tent(build_model("wrn10_1", classes=6), lr=1e-3, guard=HealthLog())
    logits = real(images)
    attributes = {"prepared": True, "select": None, "method": real.method, "save": real.save, "last": real.last}
    instant = type("Instant", (), {**attributes, "__call__": lambda self, batch: logits})()
    known = torch.arange(100) < 50
    labels = torch.zeros(100, dtype=torch.int64).masked_fill(~known, -1)
    batches = [StreamBatch(images, labels, domain, 1, known) for domain in CORRUPTIONS for _ in range(25)]
    plans = [SimpleNamespace(read=lambda move, batch=batch: batch) for batch in batches]
    stream = MagicMock(plans=lambda: iter(plans), order=None, __len__=lambda self: len(batches))
    stream.start_from = lambda *position: stream
    bench = SimpleNamespace(model=lambda spec: NETWORK, stream=lambda spec, rounds, progress: stream)
    monkeypatch.setattr(runner, "build_method", lambda *arguments: instant)
    spec = Spec("tent", "digits-c", "five_layers", "digits-unknown-c", domains=CORRUPTIONS, batch_size=100)
    shares = []
    for attempt in range(5):  # the machine may be busy
        steps = [timeit.timeit(lambda: real(images), number=1) for _ in range(9)]
        run = partial(run_job, Job(spec, 1), tmp_path / str(attempt), bench, runner.RunSettings(), ignore)
        shares.append(timeit.timeit(run, number=1) / len(batches) / statistics.median(steps))
        assert Store(tmp_path / str(attempt)).run(spec).length == 15
        if shares[-1] <= 0.03:
            break
    assert min(shares) <= 0.03, [f"{share:.1%}" for share in shares]
