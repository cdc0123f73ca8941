"""Results and archives that are damaged or hostile: named errors only."""

import json
import os

import pytest

from driftproof.bench import load
from driftproof.bench.archive import write_archive
from driftproof.bench.store import Store
from driftproof.errors import StateError
from test_frames import SPECS, write_run
from test_reader_faults import fuzz

SPEC = SPECS[0]
pytestmark = pytest.mark.usefixtures("fast_runs")


@pytest.fixture
def store(tmp_path):
    write_run(tmp_path / "store", SPEC, 6)
    return tmp_path / "store"


@pytest.fixture
def archive(store, tmp_path):
    write_archive([store], tmp_path / "archive")
    return tmp_path / "archive"


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


@pytest.mark.parametrize("name", ["spec.json", "rows.jsonl", "conditions.jsonl"])
def test_pipes_among_results_are_refused_without_waiting(store, name):
    path = Store(store).run(SPEC).folder / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StateError, match="named pipe"):
        load(store)
