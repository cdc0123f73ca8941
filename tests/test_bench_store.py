"""Results on disk, whatever happens to the process that writes them."""

import contextlib
import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftproof.bench import Spec, Store
from driftproof.bench.executors import run_locally
from driftproof.bench.store import Run
from driftproof.errors import StateError
from driftproof.files import atomic_write
from small_bench import AT_ONCE, SmallBench, contents, ignore, small_jobs, spec_of


class Counter:
    """The least that can be gone on from: a number that every visit changes."""

    def __init__(self):
        self.value = 1

    def visit(self):
        self.value = (5 * self.value + 3) % 1009
        return {"value": self.value, "words": "so that a row is longer than its conditions"}

    def save(self, path):
        with atomic_write(path) as unfinished:
            unfinished.write_text(str(self.value))

    def load(self, path):
        self.value = int(path.read_text())


def work(cell, *, until, at_a_time):
    """Go on with a cell of numbers up to so many rows."""
    counter = Counter()
    cell.folder.mkdir(parents=True, exist_ok=True)
    reached = cell.resume(counter)
    while reached < until:
        rows = [counter.visit() for _ in range(min(at_a_time, until - reached))]
        cell.commit(rows, [{"seconds": 1.0}] * len(rows), counter)
        reached += len(rows)


def expected(count):
    counter = Counter()
    return [counter.visit() for _ in range(count)]


@contextlib.contextmanager
def left_behind(folder):
    """What a process leaves in a folder if it dies just before anything in it changes, point by point."""
    found = []

    def remembering(act):
        def remember(*arguments, **keywords):
            found.append(files(folder))
            return act(*arguments, **keywords)

        return remember

    acts = [(Path, "write_text"), (Path, "write_bytes"), (Path, "replace"), (Path, "unlink")]
    with contextlib.ExitStack() as patches:
        for owner, name in acts:
            patches.enter_context(mock.patch.object(owner, name, remembering(getattr(owner, name))))
        patches.enter_context(mock.patch.object(os, "fsync"))  # slow, and of no use to one that is only killed
        yield found
    found.append(files(folder))


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def put(folder, content):
    folder.mkdir()
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return Run(folder)


@given(st.lists(st.integers(1, 3), min_size=4, max_size=4), st.data())
def test_a_cell_left_again_and_again_at_any_point_of_its_writing_is_gone_on_with(at_a_time, data):
    with tempfile.TemporaryDirectory() as temporary:
        content = {}
        for life in range(3):
            cell = put(Path(temporary, str(life)), content)
            with left_behind(cell.folder) as points:
                work(cell, until=2 * life + 2, at_a_time=at_a_time[life])
            content = data.draw(st.sampled_from(points))
        cell = put(Path(temporary, "last"), content)
        work(cell, until=9, at_a_time=at_a_time[3])
        assert cell.rows == expected(9)
        assert len(cell.conditions) == 9
        assert [path.name for path in cell.folder.glob("snapshot-*")] == ["snapshot-9.safetensors"]


def test_every_point_of_the_writing_one_by_one(tmp_path):
    with left_behind(tmp_path / "cell") as points:
        work(Run(tmp_path / "cell"), until=4, at_a_time=2)
    assert len(points) > 10
    for index, content in enumerate(points):
        cell = put(tmp_path / str(index), content)
        assert cell.rows == expected(len(cell.rows))
        for until in (4, 5):
            work(cell, until=until, at_a_time=2)
            assert cell.rows == expected(until)
            assert len(cell.conditions) == until


@given(st.integers(0, 40), st.sampled_from(["rows.jsonl", "conditions.jsonl"]))
def test_a_torn_last_line_does_not_count(length, name):
    with tempfile.TemporaryDirectory() as temporary:
        cell = Run(Path(temporary))
        work(cell, until=3, at_a_time=1)
        torn = (json.dumps({"value": 1, "words": "more of them"}) + "\n").encode()[:length]
        with (cell.folder / name).open("ab") as file:
            file.write(torn.rstrip(b"\n"))
        assert cell.rows == expected(3)
        assert len(cell.conditions) == 3
        work(cell, until=5, at_a_time=2)
        assert cell.rows == expected(5)
        assert len(cell.conditions) == 5


def test_rows_without_the_snapshot_they_need_are_kept_and_named(tmp_path):
    cell = Run(tmp_path / "tent-digest")
    work(cell, until=3, at_a_time=3)
    (cell.folder / "snapshot-3.safetensors").unlink()
    with pytest.raises(StateError, match="snapshot beside the 3 rows of tent-digest"):
        work(cell, until=4, at_a_time=1)
    assert cell.rows == expected(3)


def test_rows_that_nothing_goes_on_from_come_all_or_none(tmp_path):
    rows, conditions = expected(3), [{"seconds": 1.0}] * 3
    with left_behind(tmp_path) as points:
        Run(tmp_path).append(rows, conditions)
    assert len(points) > 4
    for index, content in enumerate(points):
        cell = put(tmp_path / str(index), content)
        assert cell.rows in ([], rows)
        if not cell.rows:
            cell.append(rows, conditions)
        assert cell.rows == rows
        assert cell.conditions == conditions


@contextlib.contextmanager
def no_file_longer_than(size):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@given(st.integers(0, 700), st.integers(1, 4))
def test_a_file_that_cannot_grow_keeps_what_it_had(room, at_a_time):
    with tempfile.TemporaryDirectory() as temporary:
        cell = Run(Path(temporary))
        work(cell, until=2, at_a_time=2)
        with no_file_longer_than(room), contextlib.suppress(OSError):
            work(cell, until=8, at_a_time=at_a_time)
        kept = cell.rows
        assert len(kept) >= 2
        assert kept == expected(len(kept))
        assert not list(cell.folder.glob(".*.part"))
        work(cell, until=8, at_a_time=at_a_time)
        assert cell.rows == expected(8)
        assert len(cell.conditions) == 8


def test_a_full_disk_stops_a_bench_and_the_next_run_goes_on(tmp_path):
    jobs = small_jobs(rounds=2, methods=["source", "tent"])
    run_locally(jobs, tmp_path / "whole", SmallBench(), AT_ONCE, ignore)
    told = []
    with no_file_longer_than(1000), pytest.raises(OSError, match="too large"):
        run_locally(jobs, tmp_path / "full", SmallBench(), AT_ONCE, told.append)
    whole, full = contents(tmp_path / "whole"), contents(tmp_path / "full")
    assert full
    assert all(whole[name].startswith(found) for name, found in full.items())
    run_locally(jobs, tmp_path / "full", SmallBench(), AT_ONCE, ignore)
    assert contents(tmp_path / "full") == whole


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "results").write_text("a file where a folder is wanted")
    with pytest.raises(OSError, match="results") as caught:
        run_locally(small_jobs(methods=["source"]), tmp_path / "results", SmallBench(), AT_ONCE, ignore)
    assert str(tmp_path / "results") in str(caught.value)
    assert (tmp_path / "results").read_text() == "a file where a folder is wanted"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_named_and_keeps_its_rows(tmp_path):
    jobs = small_jobs(rounds=1, methods=["source"])
    run_locally(jobs, tmp_path, SmallBench(), AT_ONCE, ignore)
    before = contents(tmp_path)
    (cell,) = (tmp_path / "cells").iterdir()
    cell.chmod(0o500)
    try:
        with pytest.raises(PermissionError, match=cell.name):
            run_locally(small_jobs(rounds=2, methods=["source"]), tmp_path, SmallBench(), AT_ONCE, ignore)
    finally:
        cell.chmod(0o700)
    assert contents(tmp_path) == before


def test_a_cell_made_differently_is_refused_with_the_difference(tmp_path):
    cell, spec = Run(tmp_path), spec_of("tent")
    cell.write_spec(spec, {"statistics": "Batch()"})
    before = files(tmp_path)
    cell.write_spec(spec, {"statistics": "Batch()"})
    with pytest.raises(StateError, match=r"statistics was 'Batch\(\)' and is 'Source\(\)' here"):
        cell.write_spec(spec, {"statistics": "Source()"})
    with pytest.raises(StateError, match=r"batch_size was 6 and is 7 here.*another folder"):
        cell.write_spec(Spec.from_data(spec.as_data() | {"batch_size": 7}), {"statistics": "Batch()"})
    assert files(tmp_path) == before
    assert cell.spec == spec
    assert cell.protocol == {"statistics": "Batch()"}


def test_a_folder_that_shares_other_facts_is_refused_with_the_difference(tmp_path):
    store = Store(tmp_path / "results")
    assert store.metadata == {}
    store.update_metadata({"weights": "abc", "limit": 100})
    store.update_metadata({"weights": "abc"})
    store.update_metadata({"images": "def"})
    assert Store(store.folder).metadata == {"weights": "abc", "limit": 100, "images": "def"}
    before = files(store.folder)
    with pytest.raises(StateError, match=r"results.*limit was 100 and is None here; weights was 'abc' and is 'xyz'"):
        store.update_metadata({"limit": None, "weights": "xyz", "more": "facts"})
    assert files(store.folder) == before


def test_facts_that_arrive_at_once_are_all_kept(tmp_path):
    facts = [{f"weights {index}": "abc"} for index in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(Store(tmp_path).update_metadata, facts))
    assert Store(tmp_path).metadata == {name: digest for fact in facts for name, digest in fact.items()}


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 2}'])
def test_a_damaged_description_is_refused_and_named(tmp_path, damage):
    Store(tmp_path).update_metadata({"weights": "abc"})
    (tmp_path / "folder.json").write_text(damage)
    with pytest.raises(StateError, match=r"folder\.json"):
        Store(tmp_path).update_metadata({"weights": "abc"})
    assert (tmp_path / "folder.json").read_text() == damage


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"spec": 3}', '{"spec": {}}'])
def test_a_cell_whose_description_is_damaged_is_named(tmp_path, damage):
    (tmp_path / "spec.json").write_text(damage)
    with pytest.raises(StateError, match=r"spec"):
        _ = Run(tmp_path).spec


def test_rows_that_are_damaged_are_named(tmp_path):
    cell = Run(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"round": 1}\n{"round"\n')
    with pytest.raises(StateError, match=r"a row on each line of .*rows.jsonl, but it cannot be read"):
        assert cell.rows


def test_a_cell_is_held_by_one_at_a_time(tmp_path):
    with (
        Run(tmp_path / "tent-digest").locked(),
        pytest.raises(StateError, match="Another process is at work on tent-digest"),
        Run(tmp_path / "tent-digest").locked(),
    ):
        pass
    with Run(tmp_path / "tent-digest").locked():
        pass


def test_what_a_killed_process_left_unfinished_is_removed(tmp_path):
    litter = tmp_path / ".snapshot-3.safetensors.0123.part"
    litter.write_bytes(bytes(100))
    with Run(tmp_path).locked():
        assert not litter.exists()


def test_a_store_lists_its_cells_by_name(tmp_path):
    store = Store(tmp_path)
    specs = [spec_of(method) for method in ("tent", "eata", "source")]
    for spec in specs:
        with store.run(spec).locked():
            store.run(spec).begin(spec, {})
    assert [cell.spec.method for cell in store.runs()] == ["eata", "source", "tent"]
    assert store.run(specs[0]).rows == store.run(specs[0]).conditions == []
