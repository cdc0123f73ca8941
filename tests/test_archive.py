"""Archives are small, whole, merged by rules, and replaced as a whole."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from driftproof.bench import Store, load, load_runs
from driftproof.bench.archive import write_archive
from driftproof.bench.frames import FILES
from driftproof.errors import InputError, StateError
from small_bench import files
from test_frames import SPECS, write_run


@pytest.fixture
def folder(tmp_path):
    Store(tmp_path / "store").update_metadata({"limit": None, "replaced": {"a": "b"}})
    for spec in SPECS[:2]:
        write_run(tmp_path / "store", spec, 6)
    return tmp_path / "store"


def test_archive_is_small_and_deterministic(tmp_path):
    rows = write_run(tmp_path / "store", SPECS[0], 750)
    for name in ("one", "two"):
        write_archive([tmp_path / "store"], tmp_path / name)
    write_archive([tmp_path / "one"], tmp_path / "again")
    assert files(tmp_path / "one") == files(tmp_path / "two") == files(tmp_path / "again")
    text = sum(len(json.dumps(row)) for row in rows)
    assert sum(map(len, files(tmp_path / "one").values())) < text / 3


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
    write_run(tmp_path / "begun", replace(SPECS[0], seed=9), 0)
    for sources in ([folder, tmp_path / "nowhere"], [tmp_path / "begun"]):
        with pytest.raises(InputError, match=rf"results in .*{sources[-1].name}, but there are none"):
            write_archive(sources, tmp_path / "archive")
    assert not (tmp_path / "archive").exists()


@pytest.mark.parametrize("name", FILES)
def test_foreign_or_missing_table_is_refused(folder, tmp_path, name):
    write_archive([folder], tmp_path / "archive")
    write_run(folder, replace(SPECS[1], seed=6), 5)
    write_archive([folder], tmp_path / "other")
    path = (tmp_path / "other" / name).replace(tmp_path / "archive" / name)
    with pytest.raises(StateError, match=r"archive.*(cannot be read|changed).* Export it again\."):
        load(tmp_path / "archive")
    path.unlink()
    with pytest.raises((StateError, InputError)):
        load(tmp_path / "archive")


def test_archive_merged_into_itself_is_the_old_or_the_new_one_wherever_the_process_dies(folder, tmp_path, monkeypatch):
    archive, original, moves = tmp_path / "archive", Path.replace, 0
    write_archive([folder], archive)
    write_run(tmp_path / "more", replace(SPECS[1], seed=5), 4)
    old, new = load(archive), load(archive, tmp_path / "more")

    def die_at(limit):
        count = itertools.count()

        def move(path, target):
            if next(count) == limit:
                raise KeyboardInterrupt
            return original(path, target)

        return move

    for limit in itertools.count():
        copied = shutil.copytree(archive, tmp_path / str(limit))
        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", die_at(limit))
            try:
                write_archive([copied, tmp_path / "more"], copied)
            except KeyboardInterrupt:
                moves += 1
            else:
                break
        found = load(copied)
        assert found.equals(old) or found.equals(new)
        write_archive([copied, tmp_path / "more"], copied)
        assert files(copied).keys() == files(archive).keys(), "nothing is left over"
        assert_frame_equal(load(copied), new)
    assert moves == len(FILES) + 3, "metadata, and tables that wait"
