"""Every reader on a few hundred damaged files; `make fuzz` reads a hundred thousand."""

import json
import subprocess
from dataclasses import replace

import pytest

from driftproof.bench import Store
from driftproof.errors import InputError
from fuzz_readers import READERS, Count, Guarded, Reader, format_page, fuzz
from rows_on_disk import run_command, write_rows
from test_frames import SPECS


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused_by_name(name, tmp_path):
    (tmp_path / "peek").mkdir()
    inputs = READERS[name](tmp_path / "peek").weight
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


def test_results_of_a_hostile_method_are_exported_into_the_named_folder(tmp_path, monkeypatch):
    """A run once named files after its method, and `export` wrote them outside its folder."""
    monkeypatch.chdir(tmp_path)
    spec = replace(SPECS[0], method="../../x/evil")
    rows = [{"round": 1, "domain": domain, "batches": 3, "error": 12.5} for domain in spec.domains]
    run = write_rows(tmp_path / "deep" / "runs", SPECS[0], rows)
    content = json.loads((run.folder / "spec.json").read_text())
    (run.folder / "spec.json").write_text(json.dumps(content | {"method": spec.method}))
    before = set(tmp_path.rglob("*"))
    assert run_command("bench", "export", "deep/runs", "deep/archive") == 0
    written = {path.relative_to(tmp_path).parts[:2] for path in set(tmp_path.rglob("*")) - before}
    assert written == {("deep", "archive")}
    assert Store(tmp_path / "store").run(spec).folder.resolve().is_relative_to(tmp_path / "store")
