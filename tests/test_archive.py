"""Archives are small, whole, merged by rules, and runs resume from them."""

import json
import shutil
from dataclasses import replace

import pytest
from polars.testing import assert_frame_equal

from driftproof.bench import Store, load, load_runs
from driftproof.bench.archive import unpack, write_archive
from driftproof.bench.frames import FILES
from driftproof.bench.jobs import run_locally
from driftproof.errors import InputError, StateError
from small_bench import AT_ONCE, DOMAINS, SmallBench, fast_runs, ignore, small_jobs
from test_frames import SPECS, write_run


@pytest.fixture(autouse=True, scope="module")
def fast():
    with fast_runs():
        yield


@pytest.fixture
def folder(tmp_path):
    Store(tmp_path / "store").update_metadata({"limit": None, "replaced": {"a": "b"}})
    for spec in SPECS[:2]:
        write_run(tmp_path / "store", spec, 6)
    return tmp_path / "store"


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def test_archive_is_small_and_deterministic(tmp_path):
    rows = write_run(tmp_path / "store", SPECS[0], 750)
    for name in ("one", "two"):
        write_archive([tmp_path / "store"], tmp_path / name)
    write_archive([tmp_path / "one"], tmp_path / "again")
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "again")
    text = sum(len(json.dumps(row)) for row in rows)
    assert sum(map(len, contents(tmp_path / "one").values())) < text / 3


def test_merged_archive_holds_longest_runs_all_metadata_and_all_commands(folder, tmp_path):
    first, second = {"command": "bench run a"}, {"command": "bench run b"}
    Store(folder).update_metadata({"commands": [first]})
    Store(tmp_path / "more").update_metadata({"limit": None, "weights": "abc", "commands": [first, second]})
    write_run(tmp_path / "more", SPECS[0], 9)
    write_run(tmp_path / "more", SPECS[1], 2)
    write_archive([folder, tmp_path / "more"], tmp_path / "archive")
    assert_frame_equal(load(tmp_path / "archive"), load(folder, tmp_path / "more"))
    visits = dict(load_runs(tmp_path / "archive").select("run", "visits").iter_rows())
    assert visits == {SPECS[0].name: 9, SPECS[1].name: 6}
    merged = {"limit": None, "replaced": {"a": "b"}, "weights": "abc", "commands": [first, second]}
    assert Store(tmp_path / "archive").metadata == merged
    with pytest.raises(StateError, match=r"archive is an archive\. Choose another folder"):
        Store(tmp_path / "archive").update_metadata(merged)
    write_archive([tmp_path / "archive", folder], tmp_path / "archive")
    assert load_runs(tmp_path / "archive")["visits"].sum() == 15, "an archive may be merged into itself"


def test_contradicting_or_missing_results_are_not_merged(folder, tmp_path):
    write_run(tmp_path / "other", SPECS[0], 1)
    Store(tmp_path / "other").update_metadata({"replaced": {}})
    with pytest.raises(StateError, match=r"replaced was \{'a': 'b'\} and is \{\} here. Write a separate archive"):
        write_archive([folder, tmp_path / "other"], tmp_path / "archive")
    with pytest.raises(InputError, match="is a results folder"):
        write_archive([folder], folder)
    with pytest.raises(InputError, match=r"results in .*nowhere, but there are none"):
        write_archive([folder, tmp_path / "nowhere"], tmp_path / "archive")
    write_run(tmp_path / "begun", replace(SPECS[0], seed=9), 0)
    with pytest.raises(InputError, match=r"results in .*begun, but there are none"):
        write_archive([tmp_path / "begun"], tmp_path / "archive")
    assert not (tmp_path / "archive").exists()


@pytest.mark.parametrize("name", FILES)
def test_damaged_or_foreign_table_is_refused(folder, tmp_path, name):
    write_run(folder, replace(SPECS[1], seed=5), 4)
    write_archive([folder], tmp_path / "archive")
    write_run(folder, replace(SPECS[1], seed=6), 5)
    write_archive([folder], tmp_path / "other")
    path = tmp_path / "archive" / name
    whole = path.read_bytes()
    for damaged in (whole[:-9], b"", (tmp_path / "other" / name).read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(StateError, match=r"archive.*(cannot be read|changed).* Export it again\."):
            load(tmp_path / "archive")
    path.unlink()
    with pytest.raises((StateError, InputError)):
        load(tmp_path / "archive")


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_failed_export_leaves_old_archive(folder, tmp_path, monkeypatch, failing):
    write_archive([folder], tmp_path / "archive")
    before = contents(tmp_path / "archive")
    write_run(folder, replace(SPECS[1], seed=5), 4)
    calls = []

    def write_until_full(frame, path, **_):
        calls.append(path)
        if len(calls) == failing:
            raise OSError("no space left")
        path.write_bytes(b"new")

    monkeypatch.setattr("driftproof.bench.archive._write", write_until_full)
    with pytest.raises(OSError, match="no space left"):
        write_archive([folder], tmp_path / "archive")
    assert contents(tmp_path / "archive") == before


LEARNING_METHODS = ("tent+crowd", "eata", "swr")


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Two rounds: in one go, and the second from an archive of the first."""
    root = tmp_path_factory.mktemp("resumed")
    once, twice = (small_jobs(rounds, methods=LEARNING_METHODS) for rounds in (1, 2))
    run_locally(twice, root / "at once", SmallBench(), AT_ONCE, ignore)
    run_locally(once, root / "first", SmallBench(), AT_ONCE, ignore)
    write_archive([root / "first"], root / "archive", snapshots=True)
    unpack(root / "archive", root / "unpacked")
    run_locally(twice, root / "unpacked", SmallBench(), AT_ONCE, ignore)
    return root, [job.spec for job in twice]


def test_run_resumed_from_archive_equals_uninterrupted_run(resumed):
    root, specs = resumed
    at_once, unpacked, first = (Store(root / name) for name in ("at once", "unpacked", "first"))
    for spec in specs:
        assert unpacked.run(spec).rows == at_once.run(spec).rows
        assert unpacked.run(spec).protocol == at_once.run(spec).protocol
        assert unpacked.run(spec).conditions[: len(DOMAINS)] == first.run(spec).conditions
    assert unpacked.metadata == first.metadata


def test_snapshots_are_copied_between_archives_only_on_request(resumed, tmp_path):
    root, specs = resumed
    kept = contents(root / "archive" / "snapshots")
    assert sorted(kept) == sorted(f"{spec.name}-{len(DOMAINS)}.safetensors" for spec in specs)
    archive = tmp_path / "archive"
    write_archive([root / "archive"], archive, snapshots=True)
    assert contents(archive / "snapshots") == kept
    write_archive([archive, root / "unpacked"], archive, snapshots=True)
    longer = [f"{spec.name}-{2 * len(DOMAINS)}.safetensors" for spec in specs]
    assert sorted(contents(archive / "snapshots")) == sorted(longer), "only of the longest runs"
    write_archive([archive], archive)
    assert not contents(archive / "snapshots")
    write_archive([archive, root / "unpacked"], archive, snapshots=True)
    assert len(contents(archive / "snapshots")) == len(specs), "of equally long runs, the one with a snapshot"


def test_archive_keeps_last_snapshot_that_rows_reach(resumed, tmp_path):
    root, specs = resumed
    shutil.copytree(root / "first", tmp_path / "store")
    run = Store(tmp_path / "store").run(specs[0])
    ahead = run.folder / "snapshot-99.safetensors"  # a process died before it wrote the rows of this snapshot
    shutil.copyfile(run.snapshot_path(len(DOMAINS)), ahead)
    write_archive([tmp_path / "store"], tmp_path / "archive", snapshots=True)
    assert f"{specs[0].name}-{len(DOMAINS)}.safetensors" in contents(tmp_path / "archive" / "snapshots")
    assert not list((tmp_path / "archive").glob("snapshots/*-99.safetensors"))


def test_unpack_needs_snapshots_and_a_new_folder(resumed, folder, tmp_path):
    root, _ = resumed
    write_archive([folder], tmp_path / "archive", snapshots=True)
    for invalid in (tmp_path / "archive", root / "first", tmp_path / "nowhere"):
        with pytest.raises(InputError, match="Expected an archive with snapshots"):
            unpack(invalid, tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()
    with pytest.raises(InputError, match="already exists"):
        unpack(root / "archive", root / "unpacked")


def test_interrupted_unpack_starts_over(resumed, tmp_path, monkeypatch):
    root, specs = resumed
    with monkeypatch.context() as patched:
        patched.setattr("driftproof.bench.store.Run.write_spec", lambda *_: shutil.copyfile("/nowhere", "/nowhere"))
        with pytest.raises(OSError, match="nowhere"):
            unpack(root / "archive", tmp_path / "again")
    assert not (tmp_path / "again").exists()
    unpack(root / "archive", tmp_path / "again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again"]
    for spec in specs:
        assert Store(tmp_path / "again").run(spec).rows == Store(root / "first").run(spec).rows
