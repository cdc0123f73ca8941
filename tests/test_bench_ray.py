"""Cells on a real Ray cluster, some of whose workers are lost."""

import logging
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from driftproof.bench import Store
from driftproof.bench.executors import on_ray, run_locally, run_on_ray
from driftproof.bench.runner import RunSettings
from driftproof.errors import ConfigurationError, ExecutionError, MissingPackageError
from small_bench import AT_ONCE, SmallBench, contents, ignore, small_jobs

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def surroundings():
    """A cluster of this test alone, whose workers find the tests' modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "local")
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def cluster(surroundings):
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


def test_without_a_cluster_one_is_started_and_an_interruption_stops_it(surroundings, tmp_path):
    jobs, signs = small_jobs(rounds=1, methods=["source"]), tmp_path / "signs"
    signs.mkdir()

    def interrupt(note):
        assert ray.cluster_resources()["CPU"] >= 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_on_ray(jobs, tmp_path / "ray", SmallBench(signs, waiting=("source",)), AT_ONCE, interrupt)
    assert not ray.is_initialized()
    assert len(Store(tmp_path / "ray").run(jobs[0].spec).rows) < 3
    (worker,) = workers(signs, jobs[0].spec)
    assert ends(worker)
    for folder in ("ray", "local"):
        run_locally(jobs, tmp_path / folder, SmallBench(), AT_ONCE, ignore)
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")


def test_when_a_worker_is_killed_another_goes_on_with_its_cell(cluster, tmp_path):
    jobs, told, killed = small_jobs(rounds=2, methods=["tent", "source", "tent+crowd"]), [], []
    signs = tmp_path / "signs"
    signs.mkdir()

    def kill_the_first(note):
        told.append(note)
        if note.spec.method == "tent" and note.row is not None and not killed:
            killed.extend(workers(signs, note.spec))
            os.kill(killed[0], signal.SIGKILL)
            (signs / "go").touch()

    run_on_ray(jobs, tmp_path / "ray", SmallBench(signs, waiting=("tent",)), AT_ONCE, kill_the_first)
    assert ray.is_initialized()
    run_locally(jobs, tmp_path / "local", SmallBench(), AT_ONCE, ignore)
    assert len(contents(tmp_path / "ray")) == 6
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
    everyone = [pid for job in jobs for pid in workers(signs, job.spec)]
    assert len(workers(signs, jobs[0].spec)) == 2
    assert len(set(everyone)) >= 2
    begun = [note.done for note in told if note.spec.method == "tent" and note.stage == "adapting"]
    assert begun.count(1) == 1, "the second worker began the cell anew"
    for job in jobs[1:]:
        heard = [note.row for note in told if note.spec == job.spec and note.row is not None]
        assert heard == Store(tmp_path / "ray").run(job.spec).rows
    assert {line["threads"] for cell in Store(tmp_path / "ray").runs() for line in cell.conditions} == {1}


def test_cells_that_fail_are_named_together_after_the_others_are_done(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray, "_LOST_WORKERS", 1)
    mistaken, deadly, good = small_jobs(rounds=1, methods=["tent", "bn_adapt", "source"])
    mistaken, told = replace(mistaken, spec=mistaken.spec.with_options(rate=0.1)), []
    with pytest.raises(ExecutionError, match=r"^2 of 3 cells failed; the others are done\.\n") as caught:
        run_on_ray([mistaken, deadly, good], tmp_path, SmallBench(deadly=("bn_adapt",)), AT_ONCE, told.append)
    message = str(caught.value)
    assert f"\n{mistaken.spec.name}: Expected a known option of tent, but got 'rate'." in message
    assert f"\n{deadly.spec.name}: Its worker was lost 2 times. Run it again to go on: " in message
    assert {note.spec for note in told if note.stage == "failed"} == {mistaken.spec, deadly.spec}
    assert len(Store(tmp_path).run(good.spec).rows) == 3


def test_what_would_stop_every_cell_is_raised_as_it_is(cluster, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        run_on_ray(small_jobs(1, methods=["source"]), tmp_path, SmallBench(broken=("source",)), AT_ONCE, ignore)
    assert caught.value.filename == "images.npy"


def test_an_interruption_stops_the_workers_of_a_cluster_that_stays(cluster, tmp_path):
    jobs, signs = small_jobs(rounds=1, methods=["source"]), tmp_path / "signs"
    signs.mkdir()

    def interrupt(note):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_on_ray(jobs, tmp_path, SmallBench(signs, waiting=("source",)), AT_ONCE, interrupt)
    assert ray.is_initialized()
    (worker,) = workers(signs, jobs[0].spec)
    assert ends(worker)


def test_a_device_that_the_cluster_does_not_have_is_refused(cluster, tmp_path):
    with pytest.raises(ConfigurationError, match="Ray cluster with a GPU"):
        run_on_ray(small_jobs(methods=["source"]), tmp_path, SmallBench(), RunSettings(device="cuda"), ignore)


def test_a_gpu_is_asked_for_when_the_device_is_one():
    asked = {}
    one_gpu = SimpleNamespace(
        cluster_resources=lambda: {"CPU": 4.0, "GPU": 1.0}, remote=lambda **options: asked.update(options) or str
    )
    _, settings = on_ray._task(one_gpu, RunSettings(device="cuda:3", save_every=7.0))
    assert settings == RunSettings(device="cuda", save_every=7.0), "a worker sees no GPU but its own"
    assert (asked["num_cpus"], asked["num_gpus"]) == (1, 1)
    _, settings = on_ray._task(one_gpu, RunSettings())
    assert settings == RunSettings()
    assert (asked["num_cpus"], asked["num_gpus"]) == (1, 0)


def test_without_ray_the_message_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'driftproof\[ray\]'"):
        run_on_ray([], tmp_path, SmallBench(), AT_ONCE, ignore)


def workers(signs, spec):
    """The processes that began a cell, the earliest first."""
    found = sorted(signs.glob(f"{spec.name}.*"), key=lambda path: path.stat().st_mtime_ns)
    return [int(path.suffix[1:]) for path in found]


def ends(process):
    """Whether a process ends within a while."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False
