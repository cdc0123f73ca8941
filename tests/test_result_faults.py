"""Results and archives that are damaged or hostile: named errors only."""

import json
import os

import polars as pl
import pytest

from driftproof.bench import load
from driftproof.bench.archive import write_archive
from driftproof.bench.store import Store
from driftproof.errors import StateError
from test_frames import SPECS, write_run
from test_reader_faults import fuzz

SPEC = SPECS[0]


@pytest.fixture
def store(tmp_path):
    write_run(tmp_path / "store", SPEC, 6)
    return tmp_path / "store"


@pytest.fixture
def archive(store, tmp_path):
    write_archive([store], tmp_path / "archive")
    return tmp_path / "archive"


def file_of(archive, name):
    """Return a table of the archive, or a file of the run that it was made of, and the folder to load."""
    if name.endswith(".parquet"):
        return archive / name, archive
    return Store(archive.parent / "store").run(SPEC).folder / name, archive.parent / "store"


FILES = ("runs.parquet", "measures.parquet", "histograms.parquet", "spec.json", "rows.jsonl", "conditions.jsonl")


@pytest.mark.parametrize("name", FILES)
def test_mutated_files_are_read_or_refused(archive, name):
    path, folder = file_of(archive, name)
    named, seeds = ("archive" if folder == archive else "xpected"), [path.read_bytes()]
    assert fuzz(path, seeds, lambda: load(folder), 80, named=named) > 32


@pytest.mark.parametrize("name", ["runs.parquet", "spec.json", "rows.jsonl", "conditions.jsonl"])
def test_pipes_are_refused_without_waiting(archive, name):
    path, folder = file_of(archive, name)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StateError, match="named pipe"):
        load(folder)


def test_changed_table_of_runs_is_refused_before_it_is_decoded(archive, monkeypatch):
    """Polars can end the process on a damaged table."""
    path, expected = archive / "runs.parquet", load(archive)
    content, metadata = path.read_bytes(), pl.read_parquet_metadata(path)
    pl.read_parquet(path).write_parquet(path, metadata={"checksums": metadata["checksums"]})
    assert load(archive).equals(expected), "earlier versions had no seal"
    monkeypatch.setattr("polars.read_parquet", lambda *_, **__: pytest.fail("it was decoded"))
    seal = content.index(b"driftproof.sha256")
    for place in {*range(0, seal, 97), *range(seal + 24, len(content), 13), len(content) - 1}:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(StateError, match=r"runs\.parquet as it was written, but it changed"):
            load(archive)


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [
        ("rows.jsonl", {"round": 1}, "line 1 of tent.* lacks a round, a domain or conditions"),
        ("rows.jsonl", [], "line 1 of tent.* lacks"),
        ("rows.jsonl", {"round": 1, "domain": "fog", "error": "high"}, "`error` is 'high', not a number"),
        ("rows.jsonl", {"round": "one", "domain": "fog", "error": 1.0}, ""),
        ("rows.jsonl", {"round": 1, "domain": ["fog"], "error": 1.0}, ""),
        ("rows.jsonl", {"round": 1, "domain": "fog", "error": {"a": 1}}, ""),
        ("rows.jsonl", {"round": 1, "domain": "fog", "error": 10**400}, ""),
        ("rows.jsonl", {"round": 1, "domain": "fog", "batches": "many"}, ""),
        ("rows.jsonl", {"round": 1, "domain": "fog", "error": 1.0, "counts": 3}, ""),
        ("conditions.jsonl", [1, 2], ""),
        ("conditions.jsonl", {"seconds": "long", "peak_memory": 1}, ""),
        ("conditions.jsonl", {"seconds": 1.0, "peak_memory": "much"}, ""),
        ("conditions.jsonl", {"seconds": 1.0, "threads": {"a": 1}}, ""),
    ],
)
def test_rows_of_other_types_are_refused(store, name, line, reason):
    path = Store(store).run(SPEC).folder / name
    path.write_text("".join(f"{json.dumps(line)}\n" for _ in range(6)))
    with pytest.raises(StateError, match=f"store.*{reason}"):
        load(store)
