"""Images that arrive: from stdin, followed folders and videos, in batches by count and by time."""

import itertools
import json
import math
import os
import random
import re
import runpy
import shlex
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftproof.cli.arrivals import Arrivals, LineArrivals
from driftproof.cli.folder_arrivals import FolderArrivals
from driftproof.cli.frames import Frame
from driftproof.cli.journal import Journal
from driftproof.cli.live_batches import LiveBatches
from driftproof.cli.snapshots import Checkpoint
from driftproof.cli.stop_signals import StopRequest
from driftproof.cli.video import read_video
from driftproof.errors import StateError
from driftproof.monitor import METRICS
from rows_on_disk import run_command
from test_adapt_runs import images, options, pictures, save_image  # noqa: F401  # fixtures
from test_monitor import address, receiver  # noqa: F401  # a fixture


class Script(Arrivals):
    """Arrivals by a script of (seconds, name); None ends a batch. Its clock moves only when someone waits."""

    def __init__(self, *script):
        self.script = list(script)
        self.now = 0.0

    def clock(self):
        return self.now

    def poll(self, timeout):
        if not self.script:
            self.finished = True
            return []
        when, name = self.script[0]
        if when > self.now + timeout:
            self.now += timeout
            return []
        self.now = max(self.now, when)
        del self.script[0]
        return [None if name is None else Frame.from_path(Path(name))]

    def skip(self, names, count):
        names = list(names)
        self.script = [(when, name) for when, name in self.script if name is None or not remove(names, name)]


def remove(names, name):
    if name in names:
        names.remove(name)
        return True
    return False


def compose(arrivals, **settings):
    batches = LiveBatches(arrivals, clock=getattr(arrivals, "clock", time.monotonic), **settings)
    return [list(batch.names.values()) for batch in batches]


def test_batches_are_complete_by_count_by_time_and_at_the_end():
    script = [(0, "a"), (0, "b"), (0, "c"), (5, "d"), (5.5, "e"), (9, "f")]
    assert compose(Script(*script), batch_size=2) == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert compose(Script(*script), batch_size=8, batch_seconds=1) == [["a", "b", "c"], ["d", "e"], ["f"]]
    assert compose(Script(*script), batch_size=2, batch_seconds=1) == [["a", "b"], ["c"], ["d", "e"], ["f"]]
    assert compose(Script(*script), batch_size=8) == [list("abcdef")]
    ended = [(0, "a"), (0, None), (0, None), (0, "b"), (0, "c"), (0, None)]
    assert compose(Script(*ended), batch_size=8) == [["a"], ["b", "c"]]


def test_idle_ends_a_stream_with_what_has_arrived():
    script = Script((0, "a"), (3, "b"), (99, "late"))
    assert compose(script, batch_size=8, idle=5) == [["a", "b"]]
    assert script.now < 20


def test_stop_ends_waiting_and_keeps_what_arrived_for_resume(tmp_path):
    stop, journal = StopRequest(), Journal(tmp_path / "batches.jsonl")
    script = Script((0, "a"), (0, "b"), (0, None), (0, "c"), (math.inf, "never"))
    batches = LiveBatches(script, batch_size=2, stop=stop, journal=journal, clock=script.clock)
    iterator = iter(batches)
    assert list(next(iterator).names.values()) == ["a", "b"]
    time.sleep(0.05)
    stop.number = signal.SIGTERM
    assert list(iterator) == []
    assert journal.read() == ([(0, ["a", "b"])], ["c"])


@contextmanager
def lines_of(folder, lines):
    """Arrivals of a file of lines."""
    (folder / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    descriptor = os.open(folder / "lines.txt", os.O_RDONLY)
    try:
        yield LineArrivals(descriptor)
    finally:
        os.close(descriptor)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lines")


@given(st.lists(st.sampled_from(["a", "a", "b", "c", ""]), max_size=25), st.integers(1, 4), st.data())
def test_resumed_stream_forms_the_same_batches(folder, lines, batch_size, data):
    """Wherever a run ends and however old its last state is, the batches after that state are the same."""
    with lines_of(folder, lines) as arrivals:
        whole = compose(arrivals, batch_size=batch_size)
    done = data.draw(st.integers(0, len(whole)), label="batches before the end")
    saved = data.draw(st.integers(0, done), label="batches before the last state")
    journal = Journal(folder / "batches.jsonl")
    journal.path.unlink(missing_ok=True)
    with lines_of(folder, lines) as arrivals:
        iterator = iter(LiveBatches(arrivals, batch_size=batch_size, journal=journal))
        seen = [list(batch.names.values()) for batch in itertools.islice(iterator, done)]
        kept = journal.path.read_bytes() if journal.path.exists() else b""
        iterator.close()  # keeps what has arrived
    if data.draw(st.booleans(), label="killed"):
        journal.path.write_bytes(kept + data.draw(st.sampled_from([b"", b'[12, ["a'])))
    before = [name for batch in whole[:saved] for name in batch]
    with lines_of(folder, lines) as arrivals:
        again = LiveBatches(arrivals, batch_size=batch_size, journal=journal)
        again.resume(Checkpoint(saved, len(before), 0, {}), iter(before))
        resumed = list(again)
    assert [list(batch.names.values()) for batch in resumed] == whole[saved:]
    assert seen == whole[:done]
    positions = [index for batch in resumed for index in batch.names]
    assert positions == list(range(len(before), sum(map(len, whole))))


def test_journal_forgets_what_no_state_needs_and_names_damage(tmp_path):
    journal = Journal(tmp_path / "batches.jsonl")
    for first, files in ((0, ["a", "a"]), (2, ["b"]), (None, ["a", "", "c", "c"]), (3, ["a", "c"])):
        journal.append(first, files)
    assert journal.read(2) == ([(2, ["b"]), (3, ["a", "c"])], ["", "c"])
    journal.prune(3)
    journal.prune(3)
    assert journal.read() == ([(3, ["a", "c"])], ["", "c"])
    journal.path.write_text("{broken\n[]\n")
    with pytest.raises(StateError, match=r"batches\.jsonl to be what a run left"):
        journal.read()


def test_lines_may_be_long_late_or_no_text(tmp_path):
    read, write = os.pipe()
    arrivals = LineArrivals(read)
    assert arrivals.poll(0.01) == []
    os.write(write, b"a.png\nb\xff.png\r\n")
    frames = arrivals.poll(5)
    while len(frames) < 2:
        frames += arrivals.poll(5)
    assert [frame.name for frame in frames] == ["a.png", "b\\udcff.png"]
    assert os.fsencode(frames[1].path) == b"b\xff.png"
    sender = threading.Thread(target=lambda: (os.write(write, b"x" * 300_000), os.close(write)))
    sender.start()
    frames = []
    while not arrivals.finished:
        frames += arrivals.poll(5)
    sender.join()
    os.close(read)
    assert all(len(frame.name) <= 2**17 for frame in frames)
    assert 1 <= len(frames) <= 5


def test_followed_folder_takes_files_once_and_when_they_are_whole(tmp_path):
    now = [0.0]
    arrivals = FolderArrivals([tmp_path], settle=2, clock=lambda: now[0])
    poll = lambda: [frame.path.name for frame in arrivals.poll(0)]  # noqa: E731
    save_image(tmp_path / "a.png", 0)
    (tmp_path / "note.txt").write_text("no image")
    (tmp_path / "empty.png").touch()
    assert poll() == []
    now[0] = 1.9
    assert poll() == []
    now[0] = 2.0
    assert poll() == ["a.png"]
    save_image(tmp_path / "b.png", 0)
    whole = (tmp_path / "b.png").read_bytes()
    for length in range(1, 5):  # grows all the time
        (tmp_path / "b.png").write_bytes(whole[: length * 20])
        now[0] += 1.5
        assert poll() == []
    (tmp_path / "b.png").write_bytes(whole)
    poll()
    now[0] += 2
    (tmp_path / "sub").mkdir()
    os.utime(tmp_path / "b.png", (2**33, 2**33))  # a change, by a clock that jumps
    assert poll() == []
    now[0] += 2
    save_image(tmp_path / "sub" / "c.png", 0)
    os.utime(tmp_path / "sub" / "c.png", (0, 0))
    assert poll() == ["b.png"]
    now[0] += 2
    assert poll() == ["c.png"]
    now[0] += 50
    assert poll() == []
    assert "1 files were still being written" in arrivals.describe_rest()
    (tmp_path / "a.png").unlink()
    poll()
    assert len(arrivals._taken) == 2, "names are forgotten with their files"


def test_follow_ends_by_idle_and_resumes_without_lost_or_doubled_rows(images, capsys, monkeypatch):  # noqa: F811
    words = ("adapt", images, "--follow", "--idle", 0.4, "--settle", 0)
    assert run_command(*words, *options("whole.jsonl")) == 0
    capsys.readouterr()
    from driftproof.cli import adapt_run

    original, calls = adapt_run.predict, []

    def interrupt(*arguments):
        calls.append(arguments)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(adapt_run, "predict", interrupt)
        assert run_command(*words, *options("out.jsonl", "--keep", 2)) == 130
    save_image(images / "zzz.png", 99)
    assert run_command(*words, *options("out.jsonl", "--resume", "--keep", 2)) == 0
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [row["index"] for row in rows] == list(range(31))
    assert sorted(Path(row["path"]).name for row in rows) == sorted(path.name for path in images.iterdir())
    before = [json.loads(line) for line in Path("whole.jsonl").read_text().splitlines()]
    assert rows[:30] == before
    assert not Path("out.jsonl.run").exists()


def test_stdin_runs_like_named_files(images, monkeypatch, capsys):  # noqa: F811
    assert run_command("adapt", images, *options("named.jsonl", "--order", "name")) == 0
    names = sorted(map(str, images.iterdir()))
    Path("lines.txt").write_text("\n".join(names))
    descriptor = os.open("lines.txt", os.O_RDONLY)
    monkeypatch.setattr("driftproof.cli.sources.LineArrivals", lambda: LineArrivals(descriptor))
    assert run_command("adapt", "-", *options("lines.jsonl")) == 0
    os.close(descriptor)
    assert Path("lines.jsonl").read_bytes() == Path("named.jsonl").read_bytes()
    assert Path("lines.jsonl.state").read_bytes() == Path("named.jsonl.state").read_bytes()


def test_patterns_name_files(images, capsys):  # noqa: F811
    assert run_command("adapt", "images/00?.png", "ima*/01*.png", *options("out.jsonl", "--order", "name")) == 0
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [Path(row["path"]).name for row in rows] == [f"{index:03}.png" for index in range(20)]
    assert run_command("adapt", "images/x*.png", *options("none.jsonl")) == 2
    assert "Expected images in images/x*.png, but found none" in capsys.readouterr().err


def write_video(path, count, side=16):
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as video:
        stream = video.add_stream("mpeg4", rate=10)
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        for index in range(count):
            pixels = np.full((side, side, 3), index * 10 % 250, dtype=np.uint8)
            pixels[: side // 2] += np.uint8(5)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                video.mux(packet)
        for packet in stream.encode():
            video.mux(packet)


def test_video_frames_are_rows_and_a_broken_video_ends_with_an_error(images, capsys, monkeypatch):  # noqa: F811
    write_video(Path("clip.mp4"), 9)
    Path("broken.mp4").write_bytes(Path("clip.mp4").read_bytes()[:300])
    image = images / "000.png"
    words = ("adapt", "clip.mp4", "broken.mp4", image, *options("out.jsonl", "--size", 12, batch_size=4))
    assert run_command(*words) == 1
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [row["path"] for row in rows] == [*(f"clip.mp4#{index}" for index in range(9)), "broken.mp4#0", str(image)]
    assert [row["index"] for row in rows if row["error"]] == [9]
    assert run_command("adapt", "clip.mp4", *options("other.jsonl", "--labels", images)) == 2
    assert "`--labels` only with a fixed set of image files" in capsys.readouterr().err
    assert run_command("adapt", images, *options("other.jsonl", "--idle", 3)) == 2
    assert "--idle only with images that arrive" in capsys.readouterr().err


def test_damaged_videos_end_in_a_frame_that_says_so(tmp_path):
    draw = random.Random(0)
    for suffix in ("mp4", "avi", "mkv"):
        write_video(tmp_path / f"whole.{suffix}", 5)
        whole = (tmp_path / f"whole.{suffix}").read_bytes()
        assert [frame.error for frame in read_video(tmp_path / f"whole.{suffix}")] == [None] * 5
        for _ in range(20):
            content = bytearray(whole[: draw.choice((len(whole), draw.randrange(len(whole))))])
            for place in draw.sample(range(len(content)), min(len(content), draw.choice((0, 1, 8)))):
                content[place] = draw.randrange(256)
            (tmp_path / f"bad.{suffix}").write_bytes(content)
            frames = list(read_video(tmp_path / f"bad.{suffix}"))
            assert [frame.name.rpartition("#")[2] for frame in frames] == list(map(str, range(len(frames))))
            assert all(frame.error is None for frame in frames[:-1])
            assert frames[-1].error is None or "bad." in frames[-1].error


def test_webhook_of_a_run_gets_its_events(images, receiver, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setenv("DRIFTPROOF_WEBHOOK_TOKEN", "secret")
    words = ("--alarm", "-9", "--webhook", address(receiver), "--event-log", "events.jsonl")
    assert run_command("adapt", images, *options("out.csv", *words, batch_size=15)) == 0
    posted = [body["kind"] for _, _, body in receiver.asked]
    assert posted == ["run", "alarm", "alarm", "run"]
    kept = [json.loads(line)["kind"] for line in Path("events.jsonl").read_text().splitlines()]
    assert [kind for kind in kept if kind in ("run", "alarm")] == posted
    names = receiver.asked[1][2]["details"]["events"]
    assert {Path(event["name"]).parent for event in names} == {images}
    assert receiver.tokens == ["Bearer secret"] * 4


def test_damaged_newest_state_falls_back_to_an_older_one(images, monkeypatch, capsys):  # noqa: F811
    assert run_command("adapt", images, *options("whole.csv")) == 0
    from driftproof.cli import adapt_run

    original, calls = adapt_run.predict, []

    def interrupt(*arguments):
        calls.append(arguments)
        if len(calls) == 15:
            raise KeyboardInterrupt
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(adapt_run, "predict", interrupt)
        assert run_command("adapt", images, *options("out.csv", "--keep", 2)) == 130
    states = sorted(path.name for path in Path("out.csv.run").glob("*.safetensors"))
    assert states == ["state-00000008.safetensors", "state-00000012.safetensors"]
    newest = Path("out.csv.run") / states[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    capsys.readouterr()
    assert run_command("adapt", images, *options("out.csv", "--resume", "--keep", 2)) == 0
    assert "the newest state is damaged: going on after 8 batches" in capsys.readouterr().err
    assert Path("out.csv").read_bytes() == Path("whole.csv").read_bytes()
    assert Path("out.csv.state").read_bytes() == Path("whole.csv.state").read_bytes()


def test_last_healthy_state_stays_and_is_marked(images, monkeypatch):  # noqa: F811
    from driftproof.cli import adapt_run
    from driftproof.health import Health
    from driftproof.record import StepResult

    original, calls = adapt_run.predict, []

    def sicken(*arguments):
        logits, record = original(*arguments)
        calls.append(arguments)
        if len(calls) == 15:
            raise KeyboardInterrupt
        health = Health(mean_entropy=1.0, disagreement=0.1 if len(calls) <= 5 else 0.9)
        vars(record)["health"] = health  # a cached property
        return StepResult(logits, record)

    monkeypatch.setattr(adapt_run, "predict", sicken)
    assert run_command("adapt", images, *options("out.csv", "--keep", 1)) == 130
    checkpoint = json.loads(Path("out.csv.run/checkpoint.json").read_text())
    assert (checkpoint["batches"], checkpoint["healthy"]) == (12, 4)
    states = sorted(path.name for path in Path("out.csv.run").glob("*.safetensors"))
    assert states == ["state-00000004.safetensors", "state-00000012.safetensors"]


def test_page_can_be_followed_word_by_word(tmp_path, monkeypatch, capsys):
    """Write the files of docs/production.md and run its commands."""
    page = (Path(__file__).parents[1] / "docs" / "production.md").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("my_net", None)
    for name, text in re.findall(r'^```python title="(\S+)"\n(.*?)^```', page, flags=re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(text)
    blocks = re.findall(r"^```bash\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    assert lines.pop(0).startswith("pip install")
    for line in lines:
        before, _, command = line.rpartition(" | ")
        if before:
            assert before == "ls frames/*.png"
            Path("lines.txt").write_text("".join(f"{path}\n" for path in sorted(Path("frames").iterdir())))
            descriptor = os.open("lines.txt", os.O_RDONLY)
            monkeypatch.setattr("driftproof.cli.sources.LineArrivals", lambda number=descriptor: LineArrivals(number))
        program, *words = shlex.split(command)
        if program == "python":
            runpy.run_path(words[0], run_name="__main__")
            continue
        assert (program, run_command(*words)) == ("driftproof", 0), line
    for name, count in {"folder": 40, "pattern": 10, "lines": 40, "arrived": 40, "timed": 40, "watched": 40}.items():
        assert Path(f"{name}.csv").read_text().count("\n") == count + 1, name
    assert "batches 1 to 5, 40 images" in capsys.readouterr().out
    assert {json.loads(line)["type"] for line in Path("events.jsonl").read_text().splitlines()} == {"notice"}
    assert list(Path("curves").iterdir())
    assert set(re.findall(r"`driftproof_(\w+)", page)) | {"images"} <= {
        name.removeprefix("driftproof_").partition("_total")[0] for name in (*METRICS, "driftproof_notices")
    } | {"errors_total", "batches_total"}
