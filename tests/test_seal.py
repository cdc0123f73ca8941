"""Archives are checked before they are decoded: polars can end the process on a damaged table."""

import os

import polars as pl
import pytest

from driftproof.bench import load
from driftproof.bench.archive import write_archive
from driftproof.errors import StateError
from test_frames import SPECS, write_run


@pytest.fixture
def archive(tmp_path):
    write_run(tmp_path / "store", SPECS[0], 2)
    write_archive([tmp_path / "store"], tmp_path / "archive")
    return tmp_path / "archive"


def test_changed_table_of_runs_is_refused_before_it_is_decoded(archive, monkeypatch):
    path = archive / "runs.parquet"
    content = path.read_bytes()
    load(archive)
    monkeypatch.setattr("polars.read_parquet", lambda *_, **__: pytest.fail("it was decoded"))
    seal = content.index(b"driftproof.sha256")
    for place in {*range(0, seal, 97), *range(seal + 24, len(content), 13), len(content) - 1}:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(StateError, match=r"runs\.parquet as it was written, but it changed"):
            load(archive)


def test_archives_of_earlier_versions_are_read(archive):
    expected = load(archive)
    path = archive / "runs.parquet"
    metadata = pl.read_parquet_metadata(path)
    pl.read_parquet(path).write_parquet(path, metadata={"checksums": metadata["checksums"]})
    assert load(archive).equals(expected)


def test_pipe_in_the_place_of_the_table_is_refused_without_waiting(archive):
    (archive / "runs.parquet").unlink()
    os.mkfifo(archive / "runs.parquet")
    with pytest.raises(StateError, match="named pipe"):
        load(archive)
