"""Runs on Ray: on a stand-in, and slowly on a real cluster, some of whose workers die."""

import concurrent.futures
import logging
import os
import pickle
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from driftproof.bench import Store, on_ray
from driftproof.bench.jobs import run_locally
from driftproof.bench.on_ray import run_on_ray
from driftproof.bench.runner import RunSettings
from driftproof.errors import ConfigurationError, ExecutionError, MissingPackageError
from small_bench import AT_ONCE, SmallBench, contents, ignore, small_jobs
from test_bench_own import write_project

METHODS = ["tent", "source", "my_methods:cautious", "my_methods:raising", "eata", "bn_adapt"]


class RayStandIn:
    """What we use of Ray, with one worker, which is a thread. What it is sent is pickled, as between processes."""

    exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))
    exceptions.RayTaskError = type("RayTaskError", (exceptions.RayError,), {})

    def __init__(self, lost=(), running=True):
        self.lost, self.canceled, self._pool = lost, [], concurrent.futures.ThreadPoolExecutor(1)
        self.is_initialized, self.states = lambda: running, []
        self.init, self.shutdown = (lambda **_: self.states.append("on")), (lambda: self.states.append("off"))

    def put(self, value):
        return pickle.loads(pickle.dumps(value))

    def remote(self, **options):
        assert options == {"num_cpus": 1, "num_gpus": 0, "max_retries": on_ray._MAX_RETRIES}
        return lambda function: SimpleNamespace(remote=lambda *sent: self._submit(function, *self.put(sent)))

    def _submit(self, function, path, job, *others):
        return self._pool.submit(self._lose if job.spec.method in self.lost else function, path, job, *others)

    def _lose(self, *sent):
        raise self.exceptions.RayError("the worker is gone")

    def wait(self, tasks, timeout):
        done, running = concurrent.futures.wait(tasks, timeout, concurrent.futures.FIRST_COMPLETED)
        return list(done), list(running)

    def get(self, task):
        return pickle.loads(pickle.dumps(task.result()))

    def cancel(self, task, *, force):
        self.canceled.append((task, force))


def project_jobs(folder):
    """Jobs of which three work; the others raise, have an invalid option, and lose their worker."""
    write_project(folder)
    jobs = small_jobs(rounds=2, methods=METHODS)
    jobs[4] = replace(jobs[4], spec=jobs[4].spec.with_options(rate=0.1))
    return jobs


def check_results(error, jobs, events, folder, times):
    """Compare results with those of a local run, and the errors with what they should name."""
    good, (raising, invalid, crashing), message = jobs[:3], jobs[3:], str(error)
    assert message.startswith("3 of 6 runs failed; the others are done.\n")
    assert re.search(rf"\n{raising.spec.name}: .*no luck \(.*my_methods\.py:\d+\)", message)
    assert f"\n{invalid.spec.name}: Expected a known option of eata, but got 'rate'." in message
    assert f"\n{crashing.spec.name}: The run's worker died {times} times. Run it again to resume: " in message
    assert {event.spec for event in events if event.stage == "failed"} == {job.spec for job in jobs[3:]}
    run_locally(good, folder / "local", SmallBench(), AT_ONCE, ignore)
    found, expected = contents(folder / "ray"), contents(folder / "local")
    assert len(expected) == 6
    assert {name: found[name] for name in expected} == expected
    for job in good:
        received = [event for event in events if event.spec == job.spec and event.row is not None]
        assert [event.row for event in received] == Store(folder / "ray").run(job.spec).rows
        assert [(event.done, event.total) for event in received] == [(done, 6) for done in range(1, 7)]


def test_stand_in_runs_end_like_local_ones_or_with_their_errors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    jobs, events = project_jobs(tmp_path), []
    monkeypatch.setitem(sys.modules, "ray", RayStandIn(lost=("bn_adapt",)))
    with pytest.raises(ExecutionError) as caught:
        run_on_ray(jobs, tmp_path / "ray", SmallBench(), AT_ONCE, events.append)
    check_results(caught.value, jobs, events, tmp_path, on_ray._MAX_RETRIES + 1)
    events.clear()
    run_on_ray(jobs[:3], tmp_path / "ray", SmallBench(), AT_ONCE, events.append)
    assert events == [], "complete runs are not reported again"


def test_interruption_cancels_what_runs_and_a_missing_ray_is_named(tmp_path, monkeypatch):
    for running, states in ((True, []), (False, ["on", "off"])):
        monkeypatch.setitem(sys.modules, "ray", RayStandIn(running=running))
        with pytest.raises(KeyboardInterrupt):
            run_on_ray(
                small_jobs(1, methods=["source"]), tmp_path / str(running), SmallBench(), AT_ONCE, raise_interrupt
            )
        assert sys.modules["ray"].states == states, "what was started is stopped, and nothing else"
    ((task, force),) = sys.modules["ray"].canceled
    assert (force, task.result()) == (True, None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'driftproof\[ray\]'"):
        run_on_ray([], tmp_path, SmallBench(), AT_ONCE, ignore)


def raise_interrupt(event):
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def cluster():
    """A cluster of these tests alone, whose workers can import the tests' modules."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "local")
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        yield ray
        ray.shutdown()


@pytest.mark.slow
def test_killed_worker_is_replaced_and_resumes(cluster, tmp_path, monkeypatch):
    """One worker is killed, one crashes whenever it is started; methods are invalid, raise, or are of this folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(on_ray, "_MAX_RETRIES", 1)
    jobs, signals, events, killed = project_jobs(tmp_path), tmp_path / "signals", [], []
    resumed, crashing = jobs[0].spec, jobs[5].spec
    signals.mkdir()

    def kill_first_worker(event):
        events.append(event)
        if event.spec == resumed and event.row is not None and not killed:
            killed.extend([*workers(signals, resumed), Store(tmp_path / "ray").run(resumed).conditions])
            os.kill(killed[0], signal.SIGKILL)
            (signals / "go").touch()

    with pytest.raises(ExecutionError) as caught:
        run_on_ray(jobs, tmp_path / "ray", SmallBench(signals, ("tent",), ("bn_adapt",)), AT_ONCE, kill_first_worker)
    check_results(caught.value, jobs, events, tmp_path, times=2)
    assert (len(workers(signals, resumed)), len(workers(signals, crashing))) == (2, 2)
    before = killed[1]
    assert Store(tmp_path / "ray").run(resumed).conditions[: len(before)] == before, "the second worker resumed"
    runs = [Store(tmp_path / "ray").run(job.spec) for job in jobs[:3]]
    assert {line["threads"] for run in runs for line in run.conditions} == {1}
    assert cluster.is_initialized(), "a cluster of the caller's goes on"


@pytest.mark.slow
def test_interruption_stops_workers_of_running_cluster(cluster, tmp_path):
    jobs, signals = small_jobs(rounds=1, methods=["source"]), tmp_path / "signals"
    signals.mkdir()
    with pytest.raises(KeyboardInterrupt):
        run_on_ray(jobs, tmp_path, SmallBench(signals, waiting=("source",)), AT_ONCE, raise_interrupt)
    assert cluster.is_initialized()
    (worker,) = workers(signals, jobs[0].spec)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()


def test_gpu_is_requested_for_cuda_device():
    resources, options = {"CPU": 4.0}, {}
    ray = SimpleNamespace(cluster_resources=lambda: resources, remote=lambda **given: options.update(given) or str)
    with pytest.raises(ConfigurationError, match="Ray cluster with a GPU"):
        on_ray._make_task(ray, RunSettings(device="cuda"))
    resources["GPU"] = 1.0
    _, settings = on_ray._make_task(ray, RunSettings(device="cuda:3", save_every=7.0))
    assert settings == RunSettings(device="cuda", save_every=7.0), "a worker sees only its own GPU"
    assert (options["num_cpus"], options["num_gpus"]) == (1, 1)


def workers(signals, spec):
    """Return the processes that started a run, earliest first."""
    found = sorted(signals.glob(f"{spec.name}.*"), key=lambda path: path.stat().st_mtime_ns)
    return [int(path.suffix[1:]) for path in found]
