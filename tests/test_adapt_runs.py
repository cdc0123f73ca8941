"""Runs of `driftproof adapt` that are killed, stopped, run out of disk, or meet bad images."""

import csv
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from driftproof.cli import adapt_run
from driftproof.cli.prediction_rows import RowFile, read_rows, write_table
from driftproof.errors import StateError
from driftproof.guards import RollBack
from driftproof.health import Health
from rows_on_disk import run_command

MODEL = """
import os, time, torch
from torch import nn

class Slow(nn.Sequential):
    def forward(self, x):
        time.sleep(float(os.environ.get("FORWARD_SECONDS", "0")))
        return super().forward(x)

def build():
    torch.manual_seed(3)
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return Slow(*body, nn.Linear(32, 4))

def fixed():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(400, 4))
"""

# Imports once and forks for each command, so that a process costs no start-up.
FORKS = """
import contextlib, json, os, sys
import torch
from driftproof.cli import main
for number, line in enumerate(sys.stdin):
    words = json.loads(line)
    os.chdir(words[0])
    if number == 0:
        with contextlib.suppress(SystemExit):
            main(words[1:])
        os.environ["FORWARD_SECONDS"] = "0.02"
        continue
    child = os.fork()
    if child == 0:
        os.dup2(os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        try:
            main(words[1:])
        except SystemExit as ended:
            os._exit(ended.code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    folder, environment = tmp_path_factory.mktemp("warm"), os.environ | {"OMP_NUM_THREADS": "1"}
    save_image(folder / "000.png", 0)
    (folder / "slow_model.py").write_text(MODEL)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", FORKS], env=environment, text=True, **pipes) as process:
        process.stdin.write(json.dumps([str(folder), "adapt", str(folder), *map(str, options("out.csv"))]) + "\n")
        yield process
        process.stdin.close()


def stop_at(forks, lines, number, rows, *words):
    """Run a command in a process of its own, send it a signal once `rows` has so many lines; its exit code."""
    forks.stdin.write(json.dumps([str(Path.cwd()), *map(str, words)]) + "\n")
    forks.stdin.flush()
    child, deadline = int(forks.stdout.readline()), time.monotonic() + 20
    while time.monotonic() < deadline and not (rows.exists() and rows.read_bytes().count(b"\n") >= lines):
        time.sleep(0.002)
    os.kill(child, number)
    return int(forks.stdout.readline())


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of 30 images."""
    folder = tmp_path_factory.mktemp("images")
    for index in range(30):
        save_image(folder / f"{index:03}.png", index)
    return folder


@pytest.fixture
def images(pictures, tmp_path, monkeypatch):
    """A folder of 30 images of the test's own; the current folder holds the model."""
    enter(tmp_path, monkeypatch)
    return shutil.copytree(pictures, tmp_path / "images")


def enter(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("slow_model", None)
    Path("slow_model.py").write_text(MODEL)


@pytest.fixture(scope="module")
def whole(pictures, tmp_path_factory):
    """Rows and state of a run over the pictures that nothing disturbs."""
    with pytest.MonkeyPatch.context() as patch:
        enter(tmp_path_factory.mktemp("whole"), patch)
        assert run_command("adapt", pictures, *options("out.csv")) == 0
        return rows_and_state()


def rows_and_state():
    return Path("out.csv").read_bytes(), Path("out.csv.state").read_bytes()


@pytest.fixture
def same_images(whole, pictures, tmp_path, monkeypatch):
    """The folder of the undisturbed run; the current folder holds the model."""
    enter(tmp_path, monkeypatch)
    return pictures


def save_image(path, seed, side=12):
    generator = np.random.default_rng(seed)
    pixels = generator.random(3) * 200 + generator.random((side, side, 3)) * 55
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def options(out, *more, model="build", batch_size=2):
    words = (
        "--model",
        f"slow_model:{model}",
        "--method",
        "tent+crowd",
        "--option",
        "lr=0.2",
        "--batch-size",
        batch_size,
    )
    return (*words, "--out", out, "--state", f"{out}.state", "--save-every", 4, *more)


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("out"))


@pytest.mark.parametrize("out", [pytest.param("out.csv", marks=pytest.mark.slow), "out.jsonl", "out.parquet"])
def test_killed_run_resumes_without_lost_or_doubled_rows(forks, images, tmp_path, out):
    assert run_command("adapt", images, *options(f"whole-{out}")) == 0
    rows = tmp_path / ("out.parquet.run/rows.jsonl" if out == "out.parquet" else out)
    moments = (1, 19) if out == "out.jsonl" else (13,)
    for lines in moments:
        assert (
            stop_at(forks, lines, signal.SIGKILL, rows, "adapt", images, *options(out, "--resume")) == -signal.SIGKILL
        )
        assert rows.read_bytes().count(b"\n") >= lines, "rows are there as they come"
    assert run_command("adapt", images, *options(out)) == 2, "an unfinished run is not replaced"
    assert run_command("adapt", images, *options(out, "--resume")) == 0
    for suffix in ("", ".state"):
        assert Path(f"{out}{suffix}").read_bytes() == Path(f"whole-{out}{suffix}").read_bytes()
    assert visible(tmp_path) == [out, f"{out}.state"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_stopped_run_saves_its_state(forks, whole, same_images, tmp_path, number, code):
    rows = Path("out.csv")
    assert stop_at(forks, 7, number, rows, "adapt", same_images, *options("out.csv", "--save-every", 1000)) == code
    assert "Go on with the same command and `--resume`" in Path("log.txt").read_text()
    kept = rows.read_bytes()
    checkpoint = json.loads(Path("out.csv.run/checkpoint.json").read_text())
    assert checkpoint["length"] == len(kept)
    assert checkpoint["batches"] * 2 + 1 == kept.count(b"\n")
    assert not Path("out.csv.state").exists()
    assert run_command("adapt", same_images, *options("out.csv", "--resume")) == 0
    assert rows_and_state() == whole


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_followed_folder_goes_on_after_signals(forks, images, number, code):
    words = ("adapt", images, "--follow", "--settle", 0)
    assert run_command(*words, "--idle", 0.3, *options("whole.csv")) == 0
    assert stop_at(forks, 19, number, Path("out.csv"), *words, *options("out.csv")) == code
    # All images are predicted, the last batch but one is in no saved state, and the run waits for more.
    assert stop_at(forks, 31, number, Path("out.csv"), *words, *options("out.csv", "--resume")) == code
    assert run_command(*words, "--idle", 0.3, *options("out.csv", "--resume")) == 0
    assert Path("out.csv").read_bytes() == Path("whole.csv").read_bytes()
    assert Path("out.csv.state").read_bytes() == Path("whole.csv.state").read_bytes()


@pytest.mark.parametrize("batches", [0, 5])
def test_full_disk_keeps_whole_batches_and_the_run_resumes(whole, same_images, monkeypatch, capsys, batches):
    append, calls = RowFile.append, []

    def fill_up(self, rows):
        calls.append(rows)
        if len(calls) == batches + 1:
            self.path.touch()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        append(self, rows)

    monkeypatch.setattr(RowFile, "append", fill_up)
    assert run_command("adapt", same_images, *options("out.csv")) == 2
    output = capsys.readouterr().err
    assert "No space left on device: out.csv" in output
    assert "--resume" in output
    with Path("out.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2 * batches
    assert run_command("adapt", same_images, *options("out.csv", "--resume")) == 0
    assert rows_and_state() == whole


def test_batch_of_rows_that_cannot_be_written_whole_leaves_no_part(tmp_path):
    resource = pytest.importorskip("resource")
    file = RowFile(tmp_path / "rows.csv", {"index": int, "path": str})
    file.append([(0, "a")])
    before, limits = file.path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(OSError, match=r"rows\.csv"):
            file.append([(1, "b" * 1000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (file.path.read_bytes(), file.length) == (before, len(before))
    file.append([(1, "b")])
    assert list(read_rows(file.path, file.columns)) == [(0, "a"), (1, "b")]


def test_full_disk_while_saving_the_state_is_named(images, monkeypatch, capsys):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("driftproof.cli.snapshots.write_guards", fail)
        assert run_command("adapt", images, *options("out.csv")) == 2
    assert "No space left on device: out.csv.run" in capsys.readouterr().err
    assert run_command("adapt", images, *options("out.csv", "--resume")) == 0


def test_resumed_run_goes_through_the_images_of_its_start(images, monkeypatch):
    append, calls = RowFile.append, []

    def interrupt(self, rows):
        calls.append(rows)
        if len(calls) == 3:
            raise KeyboardInterrupt
        append(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "append", interrupt)
        assert run_command("adapt", images, *options("out.jsonl", "--order", "name")) == 130
    save_image(images / "000a.png", 1)
    (images / "020.png").unlink()
    assert run_command("adapt", images, *options("out.jsonl", "--order", "name", "--resume")) == 1
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [Path(row["path"]).name for row in rows] == [f"{index:03}.png" for index in range(30)]
    assert [row["index"] for row in rows if row["error"]] == [20]


@pytest.mark.parametrize("moment", ["sort_rows", "write_picture_page"])
def test_run_that_fails_at_its_end_is_completed_by_resume(whole, same_images, monkeypatch, moment):
    from driftproof.cli import adapt

    def fail(*_):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(adapt, moment, fail)
        assert run_command("adapt", same_images, *options("out.csv", "--report", "page.html")) == 2
    monkeypatch.setattr(adapt_run, "predict", fail)
    assert run_command("adapt", same_images, *options("out.csv", "--resume")) == 0
    assert rows_and_state() == whole


def test_existing_output_is_replaced_only_with_force(images, capsys):
    assert run_command("adapt", images, *options("out.csv")) == 0
    before, state = Path("out.csv").read_bytes(), Path("out.csv.state").read_bytes()
    assert run_command("adapt", images, *options("out.csv")) == 2
    assert "Pass `--force` to replace it" in capsys.readouterr().err
    assert run_command("adapt", images, *options("out.csv", "--resume", "--force")) == 2
    assert run_command("adapt", images, *options("out.csv", "--resume")) == 0
    assert "complete, nothing to resume" in capsys.readouterr().err
    assert (Path("out.csv").read_bytes(), Path("out.csv.state").read_bytes()) == (before, state)
    assert run_command("adapt", images, *options("out.csv", "--force")) == 0
    assert Path("out.csv").read_bytes() != before, "it went on from the state"


def test_resume_refuses_other_options_and_lost_files(images, monkeypatch, capsys):
    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("driftproof.cli.adapt.sort_rows", fail)
        assert run_command("adapt", images, *options("out.csv")) == 130
    assert run_command("adapt", images, *options("out.csv", "--resume", batch_size=3)) == 2
    assert "`--batch-size` was 2 and is 3" in capsys.readouterr().err
    rows = Path("out.csv").read_bytes()
    Path("out.csv").write_bytes(rows[:50])
    assert run_command("adapt", images, *options("out.csv", "--resume")) == 2
    assert "bytes of rows in out.csv, but they are missing" in capsys.readouterr().err
    Path("out.csv").write_bytes(rows)
    Path("out.csv.run/plan.json").write_text("[]")
    assert run_command("adapt", images, *options("out.csv", "--resume")) == 2
    assert "damaged. Start anew with `--force`" in capsys.readouterr().err
    assert run_command("adapt", images, *options("out.csv", "--force")) == 0


def test_second_run_on_the_same_output_is_refused(images, capsys):
    from driftproof.cli.run_folder import RunFolder

    with RunFolder(Path("out.csv")).locked():
        assert run_command("adapt", images, *options("out.csv")) == 2
    assert "no other run to use" in capsys.readouterr().err
    assert run_command("adapt", images, *options("out.csv")) == 0


def test_bad_images_are_reported_in_their_rows(images, capsys):
    names = {"005a.png": "33×33", "010a.png": "cannot be read", "015a.png": "", "020a.png": "regular file"}
    assert run_command("adapt", images, *options("good.jsonl", batch_size=40)) == 0
    save_image(images / "005a.png", 0, side=33)
    (images / "010a.png").write_bytes((images / "000.png").read_bytes()[:60])
    (images / "015a.png").symlink_to(images / "015a.png")
    os.mkfifo(images / "020a.png")
    for order in ("random", "time"):
        out = Path(f"{order}.jsonl")
        assert run_command("adapt", images, *options(out, "--order", order, batch_size=40)) == 1
        assert "30 predictions" in (output := capsys.readouterr().err)
        assert "4 unreadable" in output
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert [row["index"] for row in rows] == list(range(34))
        errors = {Path(row["path"]).name: row["error"] for row in rows if row["error"] is not None}
        assert errors.keys() == names.keys()
        assert all(words in errors[name] for name, words in names.items())
        assert all(row["predicted"] is None for row in rows if row["error"])


def test_batches_that_the_model_cannot_take_are_reported_in_their_rows(images, capsys):
    save_image(images / "000.png", 0, side=33)
    save_image(images / "020.png", 0, side=33)
    words = options("out.jsonl", "--order", "name", model="fixed", batch_size=1)
    assert run_command("adapt", images, *words) == 1
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [row["index"] for row in rows if row["error"]] == [0, 20]
    assert len(rows) == 30


def test_model_that_fails_on_every_batch_writes_nothing(images, tmp_path, capsys):
    assert run_command("adapt", images, *options("out.csv", "--size", 20, model="fixed")) == 2
    assert "error:" in capsys.readouterr().err
    assert visible(tmp_path) == []


def test_csv_cells_are_no_formulas(tmp_path):
    columns = {"index": int, "path": str, "novelty": float}
    texts = ["=1+1", "+1", "-1", "@x", "'=1", "'plain", "\t=1", "a=1", "''-x"]
    rows = [(index, text, -0.5) for index, text in enumerate(texts)]
    write_table(tmp_path / "cells.csv", columns, rows)
    with (tmp_path / "cells.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert all(row["path"][0] not in "=+-@\t" for row in cells)
    assert {row["novelty"] for row in cells} == {"-0.5"}, "numbers stay numbers"
    assert list(read_rows(tmp_path / "cells.csv", columns)) == rows
    write_table(tmp_path / "cells.csv", columns, [(0, "a\rb\nc.png", None)])
    assert (tmp_path / "cells.csv").read_text() == "index,path,novelty\n0,a\\rb\\nc.png,\n", "a row is a line"


def test_row_file_refuses_to_go_on_after_missing_rows(tmp_path):
    with pytest.raises(StateError, match="first 9 bytes"):
        RowFile(tmp_path / "rows.csv", {"index": int}, 9)


def test_resumed_run_rolls_back_as_an_uninterrupted_one(images, monkeypatch):
    monkeypatch.setattr(RollBack.__init__, "__defaults__", (4, 5))
    collapse = Health(disagreement=0.9)
    act = RollBack.act

    def act_then_collapse(self, health, control):
        act(self, collapse if control.num_batches == 30 else Health(disagreement=0.0), control)

    monkeypatch.setattr(RollBack, "act", act_then_collapse)
    words = {"batch_size": 1}
    assert run_command("adapt", images, *options("whole.csv", **words)) == 0
    append, calls = RowFile.append, []

    def interrupt(self, rows):
        calls.append(rows)
        if len(calls) == 26:
            raise KeyboardInterrupt
        append(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "append", interrupt)
        assert run_command("adapt", images, *options("out.csv", **words)) == 130
    assert run_command("adapt", images, *options("out.csv", "--resume", **words)) == 0
    assert Path("out.csv.state").read_bytes() == Path("whole.csv.state").read_bytes()


ALARM = ("--alarm-rate", 0.3)


def interrupt_after(monkeypatch, batches, *words):
    """Run a command that ends once so many batches have rows."""
    append, calls = RowFile.append, []

    def interrupt(self, rows):
        calls.append(rows)
        if len(calls) > batches:
            raise KeyboardInterrupt
        append(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "append", interrupt)
        assert run_command(*words) == 130


def alarms(path):
    with Path(path).open() as file:
        return [row["alarm"] for row in csv.DictReader(file)]


@pytest.mark.parametrize("batches", [2, 10])
def test_resumed_run_raises_the_alarms_of_an_uninterrupted_one(images, monkeypatch, capsys, batches):
    assert run_command("adapt", images, *options("whole.csv", *ALARM)) == 0
    assert "needs 1,970 more images" in capsys.readouterr().err
    interrupt_after(monkeypatch, batches, "adapt", images, *options("out.csv", *ALARM))
    assert run_command("adapt", images, *options("out.csv", *ALARM, "--resume")) == 0
    assert alarms("out.csv") == alarms("whole.csv")
    assert alarms("whole.csv")[-20:].count("true") > 0
    assert Path("out.csv").read_bytes() == Path("whole.csv").read_bytes()
    assert Path("out.csv.state").read_bytes() == Path("whole.csv.state").read_bytes()


def test_alarm_of_a_resumed_run_cannot_be_changed(images, monkeypatch, capsys):
    interrupt_after(monkeypatch, 6, "adapt", images, *options("out.csv", *ALARM))
    for other, message in (
        (("--alarm-rate", 0.2), "`--alarm-rate` was 0.3 and is 0.2"),
        (("--alarm", 0.5), "`--alarm` was None and is 0.5"),
        ((), "`--alarm-rate` was 0.3 and is None"),
    ):
        assert run_command("adapt", images, *options("out.csv", *other, "--resume")) == 2
        assert message in capsys.readouterr().err


def test_run_that_began_before_an_option_existed_is_resumed(whole, same_images, monkeypatch):
    from driftproof.cli.run_files import read_json, write_json

    interrupt_after(monkeypatch, 6, "adapt", same_images, *options("out.csv"))
    plan = read_json(Path("out.csv.run/plan.json"))
    del plan["settings"]["--alarm-rate"]
    write_json(Path("out.csv.run/plan.json"), plan)
    assert run_command("adapt", same_images, *options("out.csv", "--resume")) == 0
    assert rows_and_state() == whole


def test_next_run_goes_on_with_the_alarm_of_the_state(images, capsys):
    words = options("out.csv", "--force")
    assert run_command("adapt", images, *words, *ALARM) == 0
    capsys.readouterr()
    assert run_command("adapt", images, *words, *ALARM) == 0
    assert "needs 1,940 more images" in capsys.readouterr().err
    assert run_command("adapt", images, *words, "--alarm-rate", 0.2) == 0
    output = capsys.readouterr().err
    assert "the alarm begins anew" in output
    assert "needs 1,970 more images" in output
    assert run_command("adapt", images, *words) == 0
    assert "alarm" not in capsys.readouterr().err.replace("0 alarms", "")
    assert run_command("adapt", images, *words, "--alarm", 0.5) == 0
    assert "begins anew" not in capsys.readouterr().err


@pytest.mark.parametrize("method", ["sentinel", "adapt"])
def test_rate_that_a_learned_score_will_not_hold_is_named(images, capsys, method):
    words = ("--model", "slow_model:build", "--method", method, "--batch-size", 10, "--out", "out.csv", *ALARM)
    assert run_command("adapt", images, *words) == 0
    assert ("does not hold with this method" in capsys.readouterr().err) == (method == "sentinel")
