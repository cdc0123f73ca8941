"""Results on disk survive crashes, torn writes and full disks."""

import contextlib
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftproof.bench import Spec, Store
from driftproof.bench.store import Run
from driftproof.errors import StateError
from driftproof.files import atomic_write
from small_bench import crash_points, files, restore, spec_of


class Counter:
    """Minimal stand-in for an adapter: a number that every visit changes."""

    def __init__(self):
        self.value = 1

    def visit(self):
        self.value = (5 * self.value + 3) % 1009
        return {"value": self.value, "padding": "longer than the conditions of the row"}

    def save(self, path):
        with atomic_write(path) as unfinished:
            unfinished.write_text(str(self.value))

    def load(self, path):
        self.value = int(path.read_text())


def measure(run, *, until, at_a_time):
    """Resume a run of `Counter` values up to so many rows."""
    counter = Counter()
    run.folder.mkdir(parents=True, exist_ok=True)
    reached = run.resume(counter)
    while reached < until:
        rows = [counter.visit() for _ in range(min(at_a_time, until - reached))]
        run.commit(rows, [{"seconds": 1.0}] * len(rows), counter)
        reached += len(rows)


def expected_rows(count):
    counter = Counter()
    return [counter.visit() for _ in range(count)]


def test_run_killed_at_each_write_and_again_at_each_resumes(tmp_path):
    with crash_points(tmp_path / "run") as points:
        measure(Run(tmp_path / "run"), until=4, at_a_time=2)
    assert len(points) > 10
    for index, content in enumerate(points):
        run = Run(restore(tmp_path / str(index), content))
        assert run.rows == expected_rows(len(run.rows))
        with crash_points(run.folder) as again:
            measure(run, until=5, at_a_time=1)
        for number, left in enumerate(again[index % 3 :: 3]):  # all of them in some of the outer ones
            run = Run(restore(tmp_path / f"{index}-{number}", left))
            measure(run, until=6, at_a_time=3)
            assert (run.rows, len(run.conditions)) == (expected_rows(6), 6)
            assert [path.name for path in run.folder.glob("snapshot-*")] == ["snapshot-6.safetensors"]


@given(st.integers(0, 40), st.sampled_from(["rows.jsonl", "conditions.jsonl"]))
def test_torn_last_line_is_ignored(length, name):
    with tempfile.TemporaryDirectory() as temporary:
        run = Run(Path(temporary))
        measure(run, until=3, at_a_time=1)
        torn = (json.dumps({"value": 1, "padding": "torn"}) + "\n").encode()[:length]
        with (run.folder / name).open("ab") as file:
            file.write(torn.rstrip(b"\n"))
        assert run.rows == expected_rows(3)
        assert len(run.conditions) == 3
        measure(run, until=5, at_a_time=2)
        assert run.rows == expected_rows(5)
        assert len(run.conditions) == 5


def test_rows_without_snapshot_are_kept_and_reported(tmp_path):
    run = Run(tmp_path / "tent-digest")
    measure(run, until=3, at_a_time=3)
    (run.folder / "snapshot-3.safetensors").unlink()
    with pytest.raises(StateError, match="a snapshot for the 3 rows of tent-digest"):
        measure(run, until=4, at_a_time=1)
    assert run.rows == expected_rows(3)


@contextlib.contextmanager
def file_size_limit(size):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@given(st.integers(0, 700), st.integers(1, 4))
def test_failed_write_keeps_earlier_rows(room, at_a_time):
    with tempfile.TemporaryDirectory() as temporary:
        run = Run(Path(temporary))
        measure(run, until=2, at_a_time=2)
        with file_size_limit(room), contextlib.suppress(OSError):
            measure(run, until=8, at_a_time=at_a_time)
        rows = run.rows
        assert len(rows) >= 2
        assert rows == expected_rows(len(rows))
        assert not list(run.folder.glob(".*.part"))
        measure(run, until=8, at_a_time=at_a_time)
        assert run.rows == expected_rows(8)
        assert len(run.conditions) == 8


def test_run_with_other_spec_or_protocol_is_refused(tmp_path):
    run, spec = Run(tmp_path), spec_of("tent")
    run.write_spec(spec, {"statistics": "Batch()"})
    before = files(tmp_path)
    run.write_spec(spec, {"statistics": "Batch()"})
    with pytest.raises(StateError, match=r"statistics was 'Batch\(\)' and is 'Source\(\)' here"):
        run.write_spec(spec, {"statistics": "Source()"})
    with pytest.raises(StateError, match=r"batch_size was 6 and is 7 here.*another folder"):
        run.write_spec(Spec.from_data(spec.as_data() | {"batch_size": 7}), {"statistics": "Batch()"})
    assert files(tmp_path) == before
    assert run.spec == spec
    assert run.protocol == {"statistics": "Batch()"}


def test_concurrent_metadata_updates_are_all_kept_and_contradictions_refused(tmp_path):
    facts = [{f"weights {index}": "abc"} for index in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(Store(tmp_path).update_metadata, facts + facts))
    assert Store(tmp_path).metadata == {name: digest for fact in facts for name, digest in fact.items()}
    before = files(tmp_path)
    with pytest.raises(StateError, match=r"weights 1 was 'abc' and is None here; weights 2 was 'abc' and is 'xyz'"):
        Store(tmp_path).update_metadata({"weights 1": None, "weights 2": "xyz", "more": "facts"})
    assert files(tmp_path) == before


OTHER_KIND = json.dumps({"spec": spec_of("tent").as_data() | {"severity": "five"}})


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 2}', '{"spec": 3}', '{"spec": {}}', OTHER_KIND])
def test_damaged_files_are_refused_and_kept(tmp_path, damage):
    run = Run(tmp_path)
    for name in ("folder.json", "spec.json"):
        (tmp_path / name).write_text(damage)
    (tmp_path / "rows.jsonl").write_text('{"round": 1}\n{"round"\n')
    with pytest.raises(StateError, match=r"folder\.json"):
        Store(tmp_path).update_metadata({"weights": "abc"})
    with pytest.raises(StateError, match="`severity` is 'five'" if damage == OTHER_KIND else "spec"):
        _ = run.spec
    with pytest.raises(StateError, match=r"a row on each line of .*rows.jsonl, but it cannot be read"):
        _ = run.rows
    assert (tmp_path / "folder.json").read_text() == (tmp_path / "spec.json").read_text() == damage
