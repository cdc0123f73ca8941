"""Results and archives that are damaged or hostile: named errors only, and nothing outside the folder."""

import json
import os
import shutil
from dataclasses import replace

import polars as pl
import pytest

from driftproof.bench import load
from driftproof.bench.archive import unpack, write_archive, write_frames
from driftproof.bench.store import Store
from driftproof.errors import InputError, StateError
from rows_on_disk import visits_of, write_rows
from small_bench import fast_runs
from test_frames import SPECS
from test_reader_faults import fuzz, traced  # noqa: F401  # a fixture

SPEC = SPECS[0]


@pytest.fixture(autouse=True, scope="module")
def fast():
    with fast_runs():
        yield


def write_run(folder, spec):
    """Write a run of six visits with a snapshot."""
    measured = {"batches": 3, "error": 12.5, "health": "healthy", "histogram/x": [1, 2], "counts": {"error": 7}}
    rows = [{"round": round, "domain": domain, **measured} for round, domain in visits_of(spec, 2, 0)]
    conditions = [{"seconds": 0.5, "peak_memory": 1 << 20, "device": "cpu", "threads": 2} for _ in rows]
    write_rows(folder, spec, rows, conditions, {"scope": "norm_affine()"})
    Store(folder).run(spec).snapshot_path(6).write_bytes(b"snapshot")
    return folder


@pytest.fixture
def store(tmp_path):
    return write_run(tmp_path / "store", SPEC)


@pytest.fixture
def archive(store, tmp_path):
    write_archive([store], tmp_path / "archive", snapshots=True)
    return tmp_path / "archive"


def rewrite(archive, **columns):
    """Change columns of the table of runs, with valid checksums."""
    tables = [pl.read_parquet(archive / f"{name}.parquet") for name in ("measures", "histograms", "runs")]
    runs = tables[2].with_columns(**{name: pl.lit(value) for name, value in columns.items()})
    write_frames(archive, *tables[:2], runs)


def files_outside(tmp_path, *folders):
    return [
        path for path in tmp_path.rglob("*") if path.is_file() and path.relative_to(tmp_path).parts[0] not in folders
    ]


@pytest.mark.parametrize("name", ["../../evil", "/evil", "..", ".", "", "a/b", "a\\b", "a*"])
def test_run_names_that_leave_the_folder_are_refused(archive, tmp_path, name):
    rewrite(archive, run=name)
    for write in (lambda: unpack(archive, tmp_path / "out"), lambda: write_archive([archive], tmp_path / "out")):
        with pytest.raises(StateError, match="names of files"):
            write()
    assert not files_outside(tmp_path, "store", "archive")


def test_method_with_slashes_is_exported_and_unpacked_inside_the_folder(tmp_path):
    spec = replace(SPEC, method="../../x/evil", images="/y/evil")
    write_run(tmp_path / "deep" / "store", spec)
    write_archive([tmp_path / "deep" / "store"], tmp_path / "deep" / "archive", snapshots=True)
    unpack(tmp_path / "deep" / "archive", tmp_path / "deep" / "out")
    assert Store(tmp_path / "deep" / "out").run(spec).length == 6
    assert not files_outside(tmp_path, "deep")


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("conditions", json.dumps([{"rows": 10**9}]), "1,000,000,000 rows"),
        ("conditions", json.dumps([{"rows": -1}, {"rows": 7}]), "rows"),
        ("conditions", json.dumps([{"rows": "6"}]), "cannot be read"),
        ("conditions", json.dumps({"rows": 6}), "cannot be read"),
        ("conditions", "[" * 100_000, "cannot be read"),
        ("spec", "{", "cannot be read"),
        ("spec", "[]", "fields of a spec"),
        ("protocol", "3", "cannot be read"),
    ],
)
def test_archived_runs_that_cannot_be_read_are_refused_in_little_memory(
    archive,
    tmp_path,
    traced,  # noqa: F811
    column,
    value,
    reason,
):
    rewrite(archive, **{column: value})
    before = traced()
    with pytest.raises(StateError, match=reason):
        unpack(archive, tmp_path / "out")
    assert traced() - before < 1 << 24
    assert not (tmp_path / "out").exists()


def test_snapshots_without_a_number_are_ignored(archive, tmp_path):
    (snapshot,) = (archive / "snapshots").iterdir()
    shutil.copyfile(snapshot, snapshot.with_name(f"{SPEC.name}-last.safetensors"))
    unpack(archive, tmp_path / "out")
    assert list(Store(tmp_path / "out").run(SPEC).snapshots) == [6]


@pytest.mark.parametrize("name", ["runs", "measures", "histograms"])
def test_mutated_archives_are_read_or_refused_by_name(archive, name):
    path = archive / f"{name}.parquet"
    seeds = [path.read_bytes()]
    assert fuzz(path, seeds, lambda: load(archive), 150, named="archive") > 100


@pytest.mark.parametrize("name", ["spec.json", "rows.jsonl", "conditions.jsonl"])
def test_mutated_results_are_read_or_refused(store, name):
    path = Store(store).run(SPEC).folder / name
    seeds = [path.read_bytes()]
    assert fuzz(path, seeds, lambda: load(store), 300, named="xpected") > 100


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("rows.jsonl", {"round": "one", "domain": "fog", "error": 1.0}),
        ("rows.jsonl", {"round": 1, "domain": ["fog"], "error": 1.0}),
        ("rows.jsonl", {"round": 1, "domain": "fog", "error": {"a": 1}}),
        ("rows.jsonl", {"round": 1, "domain": "fog", "error": 10**400}),
        ("rows.jsonl", {"round": 1, "domain": "fog", "batches": "many"}),
        ("rows.jsonl", {"round": 1, "domain": "fog", "error": 1.0, "counts": 3}),
        ("conditions.jsonl", [1, 2]),
        ("conditions.jsonl", {"seconds": "long", "peak_memory": 1}),
        ("conditions.jsonl", {"seconds": 1.0, "peak_memory": "much"}),
        ("conditions.jsonl", {"seconds": 1.0, "threads": {"a": 1}}),
    ],
)
def test_rows_of_other_types_are_refused(store, name, line):
    path = Store(store).run(SPEC).folder / name
    path.write_text("".join(f"{json.dumps(line)}\n" for _ in range(6)))
    with pytest.raises(StateError, match="store"):
        load(store)


@pytest.mark.parametrize("name", ["spec.json", "rows.jsonl", "conditions.jsonl"])
def test_pipes_among_results_are_refused_without_waiting(store, name):
    path = Store(store).run(SPEC).folder / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StateError, match="named pipe"):
        load(store)


def test_archive_of_nothing_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="Expected results"):
        write_archive([tmp_path / "nowhere"], tmp_path / "out")
