"""Runs on a real Ray cluster, some of whose workers die."""

import logging
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from driftproof import bench
from driftproof.bench import Store, on_ray
from driftproof.bench.jobs import run_locally
from driftproof.bench.on_ray import run_on_ray
from driftproof.bench.runner import RunSettings
from driftproof.errors import ConfigurationError, ExecutionError, MissingPackageError
from small_bench import AT_ONCE, OWN, SmallBench, contents, ignore, small_jobs
from test_bench_own import PROJECT, write_project

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def environment():
    """A cluster of these tests alone, whose workers can import the tests' modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "local")
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def cluster(environment):
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


def test_functions_of_the_current_folder_run_on_workers(environment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    benchmark = {**PROJECT, "methods": ["tent+crowd", "my_methods:cautious", "my_methods:raising"]}
    for executor in ("ray", "local"):
        with pytest.raises(ExecutionError, match=r"1 of 3 runs failed.*\n.*no luck \(.*my_methods\.py:\d+\)"):
            bench.run(**benchmark, out=tmp_path / executor, executor=executor)
        assert not ray.is_initialized(), "a cluster that was started is stopped"
    assert len(contents(tmp_path / "local")) == 4
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")


def test_another_worker_resumes_run_of_killed_worker(cluster, tmp_path):
    jobs, events, killed = small_jobs(rounds=2, methods=["tent", "source", OWN]), [], []
    signals = tmp_path / "signals"
    signals.mkdir()

    def kill_first_worker(event):
        events.append(event)
        if event.spec.method == "tent" and event.row is not None and not killed:
            killed.extend(workers(signals, event.spec))
            os.kill(killed[0], signal.SIGKILL)
            (signals / "go").touch()

    run_on_ray(jobs, tmp_path / "ray", SmallBench(signals, waiting=("tent",)), AT_ONCE, kill_first_worker)
    assert ray.is_initialized()
    run_locally(jobs, tmp_path / "local", SmallBench(), AT_ONCE, ignore)
    assert len(contents(tmp_path / "ray")) == 6
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
    all_workers = [pid for job in jobs for pid in workers(signals, job.spec)]
    assert len(workers(signals, jobs[0].spec)) == 2
    assert len(set(all_workers)) >= 2
    done = [event.done for event in events if event.spec.method == "tent" and event.stage == "adapting"]
    assert done.count(1) == 1, "the second worker must not start from the beginning"
    for job in jobs[1:]:
        received = [event.row for event in events if event.spec == job.spec and event.row is not None]
        assert received == Store(tmp_path / "ray").run(job.spec).rows
    assert {line["threads"] for run in Store(tmp_path / "ray").runs() for line in run.conditions} == {1}


def test_failed_runs_are_reported_after_the_others_finish(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray, "_MAX_RETRIES", 1)
    invalid, crashing, good = small_jobs(rounds=1, methods=["tent", "bn_adapt", "source"])
    invalid, events = replace(invalid, spec=invalid.spec.with_options(rate=0.1)), []
    with pytest.raises(ExecutionError, match=r"^2 of 3 runs failed; the others are done\.\n") as caught:
        run_on_ray([invalid, crashing, good], tmp_path, SmallBench(crashing=("bn_adapt",)), AT_ONCE, events.append)
    message = str(caught.value)
    assert f"\n{invalid.spec.name}: Expected a known option of tent, but got 'rate'." in message
    assert f"\n{crashing.spec.name}: The run's worker died 2 times. Run it again to resume: " in message
    assert {event.spec for event in events if event.stage == "failed"} == {invalid.spec, crashing.spec}
    assert len(Store(tmp_path).run(good.spec).rows) == 3


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
