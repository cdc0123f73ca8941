"""Every reader on a few hundred damaged files; `make fuzz` reads a hundred thousand."""

import subprocess

import pytest

from driftproof.errors import InputError
from fuzz_readers import READERS, Count, Guarded, Reader, format_page, fuzz


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused_by_name(name, tmp_path):
    (tmp_path / "peek").mkdir()
    inputs = 3 * READERS[name](tmp_path / "peek").weight
    (tmp_path / "fuzz").mkdir()
    count = fuzz(name, inputs, folder=tmp_path / "fuzz")
    assert count.failures == []
    assert count.inputs == inputs
    assert count.refused > inputs // 20, "most damage is noticed"


def fuzz_with(monkeypatch, folder, read):
    path = folder / "file"
    monkeypatch.setitem(READERS, "own", lambda _: Reader(path, [b"content"], read(path)))
    return fuzz("own", 20, folder=folder)


def test_readers_that_raise_other_errors_or_do_not_name_the_file_fail(monkeypatch, tmp_path):
    def raw(path):
        def read():
            if path.read_bytes() != b"content":
                raise KeyError("raw")

        return read

    def nameless(path):
        def read():
            if path.read_bytes() != b"content":
                raise InputError("Expected something else.")

        return read

    assert "KeyError" in fuzz_with(monkeypatch, tmp_path, raw).failures[0]
    assert "does not name the file" in fuzz_with(monkeypatch, tmp_path, nameless).failures[0]


def test_readers_that_start_programs_or_write_elsewhere_fail(monkeypatch, tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    assert "subprocess.Popen" in fuzz_with(monkeypatch, inside, lambda _: lambda: subprocess.run(["true"])).failures[0]
    assert "open" in fuzz_with(monkeypatch, inside, lambda _: lambda: outside.write_bytes(b"")).failures[0]
    assert fuzz_with(monkeypatch, inside, lambda _: lambda: (inside / "x").write_bytes(b"")).failures == []
    assert Guarded.events is None


def test_page_adds_up():
    page = format_page({"a": Count(10, 7), "b": Count(5, 5, failures=["x"])}, {"seed": 0})
    assert "| all | 15 | 12 | 2 | 1 | |" in page
