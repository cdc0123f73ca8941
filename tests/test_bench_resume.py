"""A benchmark that is killed and resumed ends with the same results."""

import errno

import pytest

from cases import shifted
from driftproof.bench.jobs import Job, run_job, run_locally
from driftproof.bench.runner import RunSettings
from driftproof.errors import StateError
from driftproof.methods.by_name import _STATISTICS
from driftproof.statistics import TTN
from small_bench import AT_ONCE, OWN, SmallBench, contents, crash_points, ignore, restore, small_jobs, spec_of


@pytest.mark.parametrize(("method", "stride"), [(OWN, 4), pytest.param("eata", 1, marks=pytest.mark.slow)])
def test_run_killed_at_a_file_operation_ends_with_same_bytes(tmp_path, method, stride):
    jobs, whole = small_jobs(rounds=1, domains=("fog", "snow"), methods=[method]), tmp_path / "whole"
    with crash_points(whole) as points:
        run_locally(jobs, whole, SmallBench(), AT_ONCE, ignore)
    assert len(points) > 20
    for index, left in enumerate(points[::stride]):
        folder = restore(tmp_path / str(index), left)
        run_locally(jobs, folder, SmallBench(), AT_ONCE, ignore)
        assert contents(folder) == contents(whole)
        assert not list(folder.rglob("*.part"))


@pytest.mark.parametrize("save_every", [0.0, pytest.param(1e9, marks=pytest.mark.slow)])
def test_interrupted_run_resumes(tmp_path, save_every):
    jobs = small_jobs(2, methods=["source", "tent", OWN])
    run_locally(jobs, tmp_path / "whole", SmallBench(), AT_ONCE, ignore)

    def interrupt(event):
        if event.spec.method == "tent" and event.row is not None and event.done > 6:
            raise KeyboardInterrupt

    settings = RunSettings(save_every=save_every)
    with pytest.raises(KeyboardInterrupt):
        run_locally(jobs, tmp_path / "interrupted", SmallBench(), settings, interrupt)
    whole = contents(tmp_path / "whole")
    assert all(whole[name].startswith(found) for name, found in contents(tmp_path / "interrupted").items())
    for _ in range(2):  # the second call finds a complete run
        run_locally(jobs, tmp_path / "interrupted", SmallBench(), settings, ignore)
        assert contents(tmp_path / "interrupted") == whole


def test_full_disk_stops_all_runs(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SmallBench, "stream", fail)
    with pytest.raises(OSError, match="No space left"):
        run_locally(small_jobs(1), tmp_path, SmallBench(), AT_ONCE, ignore)


def test_run_that_another_process_works_on_is_refused(tmp_path):
    (job,), refused = small_jobs(1, methods=["tent"]), []

    def run_again(event):
        if event.stage == "adapting":
            with pytest.raises(StateError, match=r"tent-random-open.* another process works on it"):
                run_job(job, tmp_path, SmallBench(), AT_ONCE, ignore)
            refused.append(event)

    run_job(job, tmp_path, SmallBench(), AT_ONCE, run_again)
    assert refused
    run_job(job, tmp_path, SmallBench(), AT_ONCE, pytest.fail)  # it is complete


class CountedPasses(list):
    """Source batches that count the passes over them."""

    passes = 0

    def __iter__(self):
        CountedPasses.passes += 1
        return super().__iter__()


def test_statistics_are_prepared_once_per_folder(monkeypatch, tmp_path):
    learned = TTN(momentum=0.1, prior_batches=1, epochs=1, batch_size=10, augment=shifted)
    monkeypatch.setitem(_STATISTICS, "online ttn", learned)
    specs = [spec_of(method, domains=("fog",)) for method in ("ttn", "tent")]
    jobs = [Job(spec.with_options(statistics="online ttn"), 1) for spec in specs]
    source, passes, separate = SmallBench.source, [], {}
    monkeypatch.setattr(SmallBench, "source", lambda *given: CountedPasses(source(*given)))
    for job in jobs:
        monkeypatch.setattr(CountedPasses, "passes", 0)
        run_locally([job], tmp_path / job.spec.name, SmallBench(), AT_ONCE, ignore)
        passes.append(CountedPasses.passes)
        separate |= contents(tmp_path / job.spec.name)
    monkeypatch.setattr(CountedPasses, "passes", 0)
    run_locally(jobs, tmp_path / "together", SmallBench(), AT_ONCE, ignore)
    assert passes == [CountedPasses.passes] * 2
    assert contents(tmp_path / "together") == separate
