"""State files: a checksum, regular files only, what is refused, and what killed saves leave behind."""

import errno
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save_file

import driftproof as dp
from cases import same_state, state_of
from driftproof import files, locking
from fuzz_states import BLIND, IN_MEMORY, INFORMED, Fuzz, encode_meta, make_adapter, pack, sign
from networks import NORM_NETWORKS, randomize

IMAGES = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def fuzz():
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        yield Fuzz(folder)


def make_saved(path):
    adapter = make_adapter()
    for _ in range(3):
        adapter(IMAGES)
    adapter.save(path)
    return adapter


@pytest.fixture
def refused(fuzz):
    """Write bytes, load them, and return the error; the adapter must be unchanged."""

    def load_bytes(content, match):
        fuzz.path.write_bytes(content)
        with pytest.raises(dp.errors.StateError, match=match):
            fuzz.adapter.load(fuzz.path)
        assert fuzz.is_unchanged()

    return load_bytes


# --- damage -----------------------------------------------------------------------------------------------------------


def test_fuzzed_files_are_refused_with_a_named_error(fuzz):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(450):
            fuzz.try_input(BLIND[number % len(BLIND)], number)
        for number in range(70):
            fuzz.try_input(INFORMED[number % len(INFORMED)], number)
    assert fuzz.failures == []
    assert sum(sum(pair) for pair in fuzz.counts.values()) > 490
    assert same_state(fuzz.state, fuzz.adapter.state_dict())


def test_flipped_bit_of_a_value_raises(fuzz, refused):
    length = int.from_bytes(fuzz.good[:8], "little")
    for place in range(8 + length, len(fuzz.good), 97):
        changed = bytearray(fuzz.good)
        changed[place] ^= 1 << place % 8
        refused(bytes(changed), "its checksum differs")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["model.1.weight", "optimizer.state.0.exp_avg", "select.average", "teacher.1.weight"])
def test_nan_or_infinity_raises_even_with_the_right_checksum(fuzz, refused, name, value):
    state = load(fuzz.good)
    match = next(key for key in state if key.startswith(name.split(".")[0]) and key.endswith(name.rpartition(".")[2]))
    state[match].reshape(-1)[0] = value
    refused(pack(state), f"`{match}` of the state holds NaN or infinity")


def test_nan_that_was_saved_is_loaded(tmp_path):
    construct, shape = NORM_NETWORKS["batch_norm_1d"]
    adapter = dp.Adapter(
        randomize(construct(), shape),
        scope=dp.scopes.norm_affine(),
        statistics=dp.statistics.Batch(),
        loss=dp.losses.Entropy(),
        optimizer=torch.optim.SGD,
        after=dp.after.ResetWhen(),
    )
    adapter.save(tmp_path / "state")
    assert any(not tensor.isfinite().all() for tensor in adapter.state_dict().values())
    before = state_of(adapter)
    adapter(IMAGES)
    assert same_state(state_of(adapter.load(tmp_path / "state")), before)


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        (("counters", "index"), -1, r"counter `index` to be 0 to"),
        (("counters", "paused"), 2, r"counter `paused` to be 0 to 1, but the state has 2"),
        (("counters", "accumulated_batches"), 2, r"counter `accumulated_batches` to be 0 to 1"),
        (("counters", "num_steps"), 2**70, r"counter `num_steps` to be 0 to"),
        (("counters", "num_steps"), "text", r"counter `num_steps` to be 0 to"),
        (("guard_counters", "num_batches"), -3, r"counter `num_batches`"),
        (("guard_counters",), [], "description is damaged"),
        (("seed",), "text", "description is damaged"),
        (("source",), {"x": []}, "description is damaged"),
        (("optimizer",), None, "optimizer does not fit"),
        (("optimizer",), {"dict": [["state", {"dict": []}]]}, "optimizer does not fit"),
        (("format",), 3, "format 3"),
    ],
)
def test_description_out_of_range_raises(fuzz, refused, path, value, match):
    state = load(fuzz.good)
    meta = json.loads(bytes(state["meta"].tolist()))
    node = meta
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    refused(pack(state | {"meta": encode_meta(meta)}), match)


def test_learning_rate_that_is_no_number_raises(fuzz, refused):
    state = load(fuzz.good)
    text = bytes(state["meta"].tolist()).decode()
    assert '["lr", 0.01]' in text
    for value, match in (("NaN", "`lr` of group 0 is nan"), ('"fast"', "`lr` of group 0 is 'fast'")):
        meta = json.loads(text.replace('["lr", 0.01]', f'["lr", {value}]'))
        refused(pack(state | {"meta": encode_meta(meta)}), match)


def test_optimizer_state_of_another_shape_raises(fuzz, refused):
    state = load(fuzz.good)
    meta = json.loads(bytes(state["meta"].tolist()))
    name = "optimizer.state.0.exp_avg"
    state[name] = state[name][:1].clone()
    meta["tensors"][name][0] = [1]
    refused(pack(state | {"meta": encode_meta(meta)}), r"`exp_avg` of parameter 0 is \(1,\)")


def test_buffer_of_another_shape_raises_where_the_checksums_are_right(fuzz, refused):
    """Whoever knows the format can compute the checksums anew."""
    state, shapes = load(fuzz.good), fuzz.adapter.state.fixed_shapes
    names = [name for name in state if name in shapes]
    assert any(name.startswith("network_statistics.") for name in names)
    assert any(not name.partition(".")[0].endswith("_statistics") for name in names)
    for name in names:
        changed = state | {name: torch.stack([state[name]] * 2)}
        meta = json.loads(bytes(state["meta"].tolist()))
        meta["tensors"][name][0] = list(changed[name].shape)
        refused(pack(changed | {"meta": encode_meta(meta)}), f"`{name}` was")


def test_description_that_is_one_huge_number_raises(fuzz, refused):
    for meta in (torch.tensor(10**12), torch.tensor([[1]], dtype=torch.uint8), torch.tensor([1.0])):
        refused(pack(load(fuzz.good) | {"meta": meta}), "description is damaged")
    deep = torch.frombuffer(bytearray(b"[" * 100_000), dtype=torch.uint8)
    refused(pack(load(fuzz.good) | {"meta": deep}), "description is damaged")


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_header_that_asks_for_more_than_the_file_holds_raises(fuzz, refused):
    refused((2**62).to_bytes(8, "little") + fuzz.good[8:], "its checksum differs")
    length = int.from_bytes(fuzz.good[:8], "little")
    header = json.loads(fuzz.good[8 : 8 + length])
    header["meta"] |= {"shape": [2**40], "data_offsets": [0, 2**40]}
    texts = [json.dumps(header, separators=(",", ":")).encode()]
    texts.append(fuzz.good[8 : 8 + length - 1] + b',"a":' + b"[" * 200_000)
    for text in texts:
        refused(sign(len(text).to_bytes(8, "little") + text + fuzz.good[8 + length :]), "damaged or something else")


def test_sparse_file_of_many_gigabytes_is_refused_unread(fuzz, tmp_path):
    path, size = tmp_path / "state", 2**36
    for start, match in ((fuzz.good, r"at most 17,179,869,184 bytes, but .* has 68,719"), (b"", "checksum is missing")):
        path.write_bytes(start)
        os.truncate(path, size)
        started = time.monotonic()
        with pytest.raises(dp.errors.StateError, match=match):
            fuzz.adapter.load(path)
        assert time.monotonic() - started < 1.0


def test_file_without_its_checksum_raises(fuzz, refused, tmp_path):
    save_file(load(fuzz.good), tmp_path / "state")
    refused((tmp_path / "state").read_bytes(), "its checksum is missing")
    refused(fuzz.good.replace(b'"sha256"', b'"sha257"', 1), "its checksum is missing")


def test_two_saves_of_one_state_are_the_same_bytes(fuzz, tmp_path):
    fuzz.adapter.save(tmp_path / "one")
    fuzz.adapter.save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


# --- kinds of file ----------------------------------------------------------------------------------------------------


def test_named_pipe_folder_and_device_are_refused_at_once(fuzz, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    kinds = {"pipe": "a named pipe", "link": "a named pipe", ".": "a folder", "/dev/zero": "a device"}
    for name, kind in kinds.items():
        with pytest.raises(dp.errors.StateError, match=f"to be a regular file, but it is {kind}"):
            fuzz.adapter.load(tmp_path / name)
    assert fuzz.is_unchanged()


def test_pipe_put_in_the_place_of_a_file_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "state"
    path.write_bytes(b"")
    regular = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(Path, "stat", lambda self: regular)
    with pytest.raises(dp.errors.InputError, match="a named pipe"):
        files.open_regular(path)


def test_missing_permission_and_missing_file_read_as_such(fuzz, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError):
        fuzz.adapter.load(tmp_path / "nowhere")
    path = tmp_path / "state"
    path.write_bytes(fuzz.good)

    def deny(name, *_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(name))

    monkeypatch.setattr(files.os, "open", deny)  # a superuser may read everything
    with pytest.raises(PermissionError, match="Permission denied"):
        fuzz.adapter.load(path)


# --- unfinished files -------------------------------------------------------------------------------------------------

KILLED = """
import os, sys
from pathlib import Path
from driftproof.files import atomic_write
with atomic_write(Path(sys.argv[1])) as unfinished:
    unfinished.write_bytes(bytes(9))
    os.kill(os.getpid(), 9)
"""


def test_next_save_removes_what_killed_saves_left(fuzz, tmp_path):
    path = tmp_path / "state.safetensors"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert len(list(tmp_path.glob(".*.part"))) == 2
    fuzz.adapter.save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_next_save_leaves_files_of_running_processes_and_of_others(fuzz, tmp_path):
    path, elsewhere = tmp_path / "state", "00000000"
    space = files._process_space()
    kept = [
        f".state.{space}-{os.getpid()}-0123456789ab.part",  # at work
        f".state.{elsewhere}-999999999-0123456789ab.part",  # of another machine
        f".other.{space}-999999999-0123456789ab.part",  # of another file
        ".state.part",
        ".state.notes.part",
        f".state.{'0' * 32}.part",  # an earlier name, still young
    ]
    abandoned = [f".state.{space}-999999999-0123456789ab.part", f".state.{'1' * 32}.part"]
    for name in (*kept, *abandoned):
        (tmp_path / name).write_bytes(b"")
    os.utime(tmp_path / abandoned[1], (0, time.time() - 2 * 24 * 3600))
    (tmp_path / f".state.{space}-999999998-0123456789ab.part").mkdir()
    fuzz.adapter.save(path)
    names = {entry.name for entry in tmp_path.iterdir()}
    assert names == {*kept, "state", f".state.{space}-999999998-0123456789ab.part"}


# --- forks ------------------------------------------------------------------------------------------------------------


def fork_and_wait(action, timeout=10.0):
    """Run `action` in a forked child; return its exit status, or None if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks in a process with threads
        child = os.fork()
    if child == 0:
        try:
            os._exit(action())
        except BaseException:
            os._exit(99)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_forked_during_a_step_goes_on_from_a_whole_step():
    adapter = make_adapter()
    adapter(IMAGES)
    stop = threading.Event()

    def run():
        while not stop.is_set():
            adapter(IMAGES)

    def use():
        before = adapter.state_dict()
        adapter(IMAGES)
        index = int(adapter.state.index)
        adapter.load_state_dict(before)
        return 0 if same_state(before, adapter.state_dict()) and int(adapter.state.index) == index - 1 else 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert [fork_and_wait(use) for _ in range(6)] == [0] * 6
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_forked_during_a_call_that_does_not_end_gets_a_named_error(monkeypatch):
    monkeypatch.setattr(locking, "_FORK_WAIT", 0.05)
    adapter = make_adapter()
    holds, done = threading.Event(), threading.Event()

    def hold():
        with adapter._lock:
            holds.set()
            done.wait()

    def use():
        try:
            adapter(IMAGES)
        except dp.errors.CallOrderError:
            return 7
        return 0

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    try:
        assert fork_and_wait(use) == 7
    finally:
        done.set()
        thread.join()
    assert fork_and_wait(use) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_by_the_thread_that_holds_the_lock_keeps_it_in_both():
    adapter = make_adapter()

    def use():
        adapter(IMAGES)
        return 0

    with adapter._lock:
        assert fork_and_wait(use) == 0
    adapter(IMAGES)
