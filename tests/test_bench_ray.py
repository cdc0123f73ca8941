"""Runs on a real Ray cluster, some of whose workers die."""

import logging
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from driftproof.bench import Store, on_ray
from driftproof.bench.jobs import run_locally
from driftproof.bench.on_ray import run_on_ray
from driftproof.bench.runner import RunSettings
from driftproof.errors import ConfigurationError, ExecutionError, MissingPackageError
from small_bench import AT_ONCE, SmallBench, contents, ignore, small_jobs
from test_bench_own import write_project

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def environment():
    """A cluster of these tests alone, whose workers can import the tests' modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "local")
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


@pytest.mark.slow
def test_cluster_that_was_started_is_stopped(tmp_path):
    with mock.patch.object(ray, "init", wraps=ray.init) as start:
        run_on_ray([], tmp_path, SmallBench(), AT_ONCE, ignore)
    assert start.call_count == 1
    assert not ray.is_initialized()


def test_runs_end_like_local_ones_or_with_their_errors(cluster, tmp_path, monkeypatch):
    """One worker is killed, one crashes whenever it is started, and methods are invalid, raise, or are of this folder.

    All share a cluster and its workers, since each new one imports torch.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(on_ray, "_MAX_RETRIES", 1)
    write_project(tmp_path)
    signals, events, killed = tmp_path / "signals", [], []
    signals.mkdir()
    methods = ["tent", "source", "my_methods:cautious", "my_methods:raising", "eata", "bn_adapt"]
    resumed, _, _, raising, invalid, crashing = jobs = small_jobs(rounds=2, methods=methods)
    jobs[4] = invalid = replace(invalid, spec=invalid.spec.with_options(rate=0.1))
    good, failing = jobs[:3], {raising.spec, invalid.spec, crashing.spec}

    def kill_first_worker(event):
        events.append(event)
        if event.spec == resumed.spec and event.row is not None and not killed:
            killed.extend([*workers(signals, event.spec), Store(tmp_path / "ray").run(event.spec).conditions])
            os.kill(killed[0], signal.SIGKILL)
            (signals / "go").touch()

    resources = SmallBench(signals, waiting=("tent",), crashing=("bn_adapt",))
    with pytest.raises(ExecutionError, match=r"^3 of 6 runs failed; the others are done\.\n") as caught:
        run_on_ray(jobs, tmp_path / "ray", resources, AT_ONCE, kill_first_worker)
    message = str(caught.value)
    assert re.search(rf"\n{raising.spec.name}: .*no luck \(.*my_methods\.py:\d+\)", message)
    assert f"\n{invalid.spec.name}: Expected a known option of eata, but got 'rate'." in message
    assert f"\n{crashing.spec.name}: The run's worker died 2 times. Run it again to resume: " in message
    assert {event.spec for event in events if event.stage == "failed"} == failing
    run_locally(good, tmp_path / "local", SmallBench(), AT_ONCE, ignore)
    found, expected = contents(tmp_path / "ray"), contents(tmp_path / "local")
    assert len(expected) == 6
    assert {name: found[name] for name in expected} == expected
    assert (len(workers(signals, resumed.spec)), len(workers(signals, crashing.spec))) == (2, 2)
    before = killed[1]
    assert Store(tmp_path / "ray").run(resumed.spec).conditions[: len(before)] == before, "the second worker resumed"
    for job in good:
        received = [event.row for event in events if event.spec == job.spec and event.row is not None]
        assert received == Store(tmp_path / "ray").run(job.spec).rows
    runs = [Store(tmp_path / "ray").run(job.spec) for job in good]
    assert {line["threads"] for run in runs for line in run.conditions} == {1}
    assert ray.is_initialized(), "a cluster of the caller's goes on"


def test_interruption_stops_workers_of_running_cluster(cluster, tmp_path):
    jobs, signals = small_jobs(rounds=1, methods=["source"]), tmp_path / "signals"
    signals.mkdir()

    def interrupt(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_on_ray(jobs, tmp_path, SmallBench(signals, waiting=("source",)), AT_ONCE, interrupt)
    assert ray.is_initialized()
    (worker,) = workers(signals, jobs[0].spec)
    assert has_ended(worker)


def test_gpu_is_requested_for_cuda_device(cluster, tmp_path):
    with pytest.raises(ConfigurationError, match="Ray cluster with a GPU"):
        run_on_ray(small_jobs(methods=["source"]), tmp_path, SmallBench(), RunSettings(device="cuda"), ignore)
    options = {}
    one_gpu = SimpleNamespace(
        cluster_resources=lambda: {"CPU": 4.0, "GPU": 1.0}, remote=lambda **keywords: options.update(keywords) or str
    )
    _, settings = on_ray._make_task(one_gpu, RunSettings(device="cuda:3", save_every=7.0))
    assert settings == RunSettings(device="cuda", save_every=7.0), "a worker sees only its own GPU"
    assert (options["num_cpus"], options["num_gpus"]) == (1, 1)


def test_missing_ray_message_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'driftproof\[ray\]'"):
        run_on_ray([], tmp_path, SmallBench(), AT_ONCE, ignore)


def workers(signals, spec):
    """Return the processes that started a run, earliest first."""
    found = sorted(signals.glob(f"{spec.name}.*"), key=lambda path: path.stat().st_mtime_ns)
    return [int(path.suffix[1:]) for path in found]


def has_ended(process):
    """Whether a process ends within 20 seconds."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False
