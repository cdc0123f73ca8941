"""A bench that is killed, again and again, and ends as if nothing had happened."""

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from cases import shifted
from driftproof.bench import Store
from driftproof.bench.executors import run_locally
from driftproof.bench.jobs import Job, run_job
from driftproof.bench.methods import _STATISTICS
from driftproof.bench.runner import RunSettings
from driftproof.errors import ExecutionError, StateError
from driftproof.statistics import TTN
from small_bench import AT_ONCE, METHODS, Killable, SmallBench, contents, ignore, small_jobs, spec_of

MANY_DOMAINS = tuple(f"domain {index}" for index in range(8))


@pytest.fixture(scope="module")
def killable():
    with Killable() as process:
        yield process


def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(killable, tmp_path):
    jobs, draws = small_jobs(rounds=2, domains=MANY_DOMAINS), random.Random(0)
    assert killable.run(tmp_path / "whole", jobs) == 0
    kills, status = 0, -signal.SIGKILL
    while kills < 25 and status == -signal.SIGKILL:
        pause = partial(time.sleep, draws.uniform(0, 0.03))
        status = killable.run(tmp_path / "killed", jobs, at_note=draws.randint(1, 24), meanwhile=pause)
        kills += status == -signal.SIGKILL
    assert kills >= 10
    assert killable.run(tmp_path / "killed", jobs) == 0
    assert len(contents(tmp_path / "whole")) == 2 * len(METHODS)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    for cell in Store(tmp_path / "killed").runs():
        assert len(cell.conditions) == len(cell.rows) == 2 * len(MANY_DOMAINS)


def test_a_run_killed_whenever_it_touches_a_file_ends_with_the_same_bytes(killable, tmp_path):
    jobs = small_jobs(rounds=1, domains=("fog", "snow"), methods=["eata"])
    longer = small_jobs(rounds=2, domains=("fog", "snow"), methods=["eata"])
    assert killable.run(tmp_path / "whole", longer) == 0
    event = 0
    while True:
        event += 1
        folder = tmp_path / str(event)
        status = killable.run(folder, jobs, at_event=event)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        run_locally(longer, folder, SmallBench(), AT_ONCE, ignore)
        assert contents(folder) == contents(tmp_path / "whole")
        assert not list(folder.rglob("*.part"))
    assert event > 20


def test_more_rounds_later_equal_more_rounds_at_once(tmp_path):
    for rounds in (2, 4):
        run_locally(small_jobs(rounds), tmp_path / "later", SmallBench(), AT_ONCE, ignore)
    run_locally(small_jobs(4), tmp_path / "at once", SmallBench(), AT_ONCE, ignore)
    assert contents(tmp_path / "later") == contents(tmp_path / "at once")
    assert all(len(cell.rows) == 12 for cell in Store(tmp_path / "later").runs())


def test_a_run_in_another_order_is_not_gone_on_with(tmp_path):
    first, other = (replace(spec_of("tent"), seed=seed) for seed in (0, 1))
    run_locally([Job(first, 1), Job(other, 1)], tmp_path, SmallBench(), AT_ONCE, ignore)
    store = Store(tmp_path)
    assert "order" not in store.run(first).protocol
    assert store.run(other).protocol["order"] == "Shuffled(seed=1)"
    path = store.run(other).folder / "spec.json"
    path.write_text(path.read_text().replace("Shuffled(seed=1)", "Stored()"))
    with pytest.raises(ExecutionError, match=r"order was .Stored\(\). and is .Shuffled\(seed=1\). here"):
        run_locally([Job(other, 2)], tmp_path, SmallBench(), AT_ONCE, ignore)
    assert store.run(other).length == len(other.domains)


def test_a_run_that_is_complete_is_left_alone(tmp_path):
    jobs, told = small_jobs(1), []
    run_locally(jobs, tmp_path, SmallBench(), AT_ONCE, ignore)
    before = contents(tmp_path)
    run_locally(jobs, tmp_path, SmallBench(), AT_ONCE, told.append)
    assert contents(tmp_path) == before
    assert told == []


def test_how_often_is_saved_does_not_show(tmp_path):
    jobs = small_jobs(2, methods=["tent+crowd"])
    run_locally(jobs, tmp_path / "often", SmallBench(), AT_ONCE, ignore)
    run_locally(jobs, tmp_path / "once", SmallBench(), RunSettings(save_every=1e9), ignore)
    assert contents(tmp_path / "often") == contents(tmp_path / "once")


@pytest.mark.parametrize("save_every", [0.0, 1e9])
def test_an_interrupted_run_stops_at_once_and_goes_on_later(tmp_path, save_every):
    jobs = small_jobs(2, methods=["source", "tent"])
    run_locally(jobs, tmp_path / "whole", SmallBench(), AT_ONCE, ignore)

    def interrupt(note):
        if note.spec.method == "tent" and note.row is not None and note.done > 6:
            raise KeyboardInterrupt

    settings = RunSettings(save_every=save_every)
    with pytest.raises(KeyboardInterrupt):
        run_locally(jobs, tmp_path / "interrupted", SmallBench(), settings, interrupt)
    whole = contents(tmp_path / "whole")
    assert all(whole[name].startswith(found) for name, found in contents(tmp_path / "interrupted").items())
    run_locally(jobs, tmp_path / "interrupted", SmallBench(), settings, ignore)
    assert contents(tmp_path / "interrupted") == whole


def test_cells_that_fail_are_named_together_after_the_others_are_done(tmp_path):
    jobs, told = small_jobs(1, methods=["swr", "source", "tent"]), []
    jobs = [job if job.spec.method == "source" else unusable(job) for job in jobs]
    with pytest.raises(ExecutionError) as caught:
        run_locally(jobs, tmp_path, SmallBench(), AT_ONCE, told.append)
    first, *lines = str(caught.value).splitlines()
    assert first == "2 of 3 cells failed; the others are done."
    assert [line.partition(": ")[0] for line in lines] == [jobs[0].spec.name, jobs[2].spec.name]
    assert all("Expected a known option of" in line and "'rate'" in line for line in lines)
    assert [note.spec for note in told if note.stage == "failed"] == [jobs[0].spec, jobs[2].spec]
    assert len(Store(tmp_path).run(jobs[1].spec).rows) == 3


def unusable(job):
    return replace(job, spec=job.spec.with_options(rate=0.1))


def test_two_processes_do_not_work_on_a_cell_at_once(killable, tmp_path):
    (job,) = jobs = small_jobs(1, methods=["tent"])
    assert killable.run(tmp_path / "whole", jobs) == 0

    def work_as_well():
        with pytest.raises(StateError, match="Another process is at work on tent-random-open"):
            run_job(job, tmp_path / "shared", SmallBench(), AT_ONCE, ignore)

    assert killable.run(tmp_path / "shared", jobs, at_note=3, slack=0, meanwhile=work_as_well) == -signal.SIGKILL
    assert killable.run(tmp_path / "shared", jobs) == 0
    assert contents(tmp_path / "shared") == contents(tmp_path / "whole")


def test_the_patient_get_a_cell_when_its_process_dies(killable, tmp_path):
    (job,) = jobs = small_jobs(1, methods=["tent"])
    assert killable.run(tmp_path / "whole", jobs) == 0
    with ThreadPoolExecutor(1) as pool:
        waiting = []

        def wait_for_it():
            waiting.append(pool.submit(run_job, job, tmp_path / "shared", SmallBench(), AT_ONCE, ignore, timeout=60))
            time.sleep(0.2)
            assert not waiting[0].done()

        killable.run(tmp_path / "shared", jobs, at_note=4, slack=0, meanwhile=wait_for_it)
        waiting[0].result()
    assert contents(tmp_path / "shared") == contents(tmp_path / "whole")


def test_the_small_bench_is_not_trivial(tmp_path):
    """Its rows differ between methods and change over the rounds, else equal bytes would mean little."""
    run_locally(small_jobs(4), tmp_path, SmallBench(), AT_ONCE, ignore)
    rows = {cell.spec.method: cell.rows for cell in Store(tmp_path).runs()}
    snapshots = {path.read_bytes() for path in tmp_path.rglob("snapshot-12.safetensors")}
    assert len(snapshots) == len(METHODS)
    for method in ("tent", "swr", "eata"):
        assert [row["error"] for row in rows[method]] != [row["error"] for row in rows["source"]], method


class CountedPasses(list):
    """Source batches that count how often they are passed over."""

    passes = 0

    def __iter__(self):
        CountedPasses.passes += 1
        return super().__iter__()


class CountingBench(SmallBench):
    def source(self, spec, device):
        return CountedPasses(super().source(spec, device))


def test_cells_of_a_folder_prepare_their_statistics_once(monkeypatch, tmp_path):
    learned = TTN(momentum=0.1, prior_batches=1, epochs=2, batch_size=4, augment=shifted)
    monkeypatch.setitem(_STATISTICS, "online ttn", learned)
    jobs = [Job(spec_of(method).with_options(statistics="online ttn"), 1) for method in ("ttn", "tent", "tent+crowd")]
    passes, apart = [], {}
    for job in jobs:
        monkeypatch.setattr(CountedPasses, "passes", 0)
        run_locally([job], tmp_path / job.spec.name, CountingBench(), AT_ONCE, ignore)
        passes.append(CountedPasses.passes)
        apart |= contents(tmp_path / job.spec.name)
    monkeypatch.setattr(CountedPasses, "passes", 0)
    run_locally(jobs, tmp_path / "together", CountingBench(), AT_ONCE, ignore)
    assert passes == [CountedPasses.passes] * 3
    assert contents(tmp_path / "together") == apart
