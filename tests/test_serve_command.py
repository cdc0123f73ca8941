"""`driftproof serve` as a command: options, signals, kills and followers."""

import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from driftproof.adapter.snapshot import read_meta
from driftproof.state_file import read_state
from rows_on_disk import run_command
from serving import Client, random_image
from test_adapt_runs import MODEL

START = "from driftproof.cli import main; main()"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("slow_model", None)
    Path("slow_model.py").write_text(MODEL)
    return tmp_path


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def words(*more, port=0):
    return ("serve", "--model", "slow_model:build", "--method", "tent+crowd", "--port", port, *more)


def wait_until_ready(client, seconds=180):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if client.request("GET", "/readyz")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.02)
    raise AssertionError("the server is not ready")


def count_batches(path):
    return read_meta(read_state(Path(path), torch.device("cpu")))["counters"]["index"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_signal_ends_the_server_with_its_state_saved(folder, capsys, number, code):
    port = free_port()
    client = Client(f"http://127.0.0.1:{port}")

    def use():
        try:
            wait_until_ready(client)
            answers.extend(client.send_image(random_image(seed))[0] for seed in range(3))
        finally:
            os.kill(os.getpid(), number)

    answers, thread = [], threading.Thread(target=use)
    thread.start()
    assert run_command(*words("--state", "state", "--log", "log.jsonl", "--alarm", "0.5", port=port)) == code
    thread.join()
    assert answers == [200] * 3
    assert count_batches("state") == 3
    assert f"Serving tent+crowd at http://127.0.0.1:{port}" in capsys.readouterr().err
    lines = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    assert [line["type"] for line in lines if line["type"] == "batch"] == ["batch"] * 3
    assert run_command(*words("--state", "state")) == 2
    assert "Pass `--resume` to go on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--state", "a", "--follow", "b"), "`--state` or `--follow`, but got both"),
        (("--resume",), "`--resume` with `--state`"),
        (("--token-file", "short"), "a token of at least 16"),
        (("--max-pending", 1), "`max_pending` to be at least"),
        (("--alarm", 0.5, "--alarm-rate", 0.05), "`--alarm` or `--alarm-rate`, but got both"),
        (("--alarm-rate", 1), "`--alarm-rate` to be above 0 and below 1, but got 1"),
    ],
)
def test_options_that_do_not_fit_are_named(folder, capsys, more, message):
    Path("short").write_text("short")
    assert run_command(*words(*more)) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_state_of_another_server_is_refused(folder, capsys):
    with FileLock("state.lock"):
        assert run_command(*words("--state", "state", "--resume")) == 2
    assert "no other server to use state, but one does" in " ".join(capsys.readouterr().err.split())


def test_port_in_use_is_named(folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert run_command(*words(port=listener.getsockname()[1])) == 2
    assert "in use" in capsys.readouterr().err


def start(*more):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", START, *map(str, more)], env=environment, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_killed_server_resumes_and_every_request_is_answered_once(folder):
    """Clients send a request again until it is answered; a follower answers while its leader is away."""
    ports = free_port(), free_port()
    leader, follower = (Client(f"http://127.0.0.1:{port}") for port in ports)
    serve = words("--state", "state", "--resume", "--save-every", 2, port=ports[0])
    follow = words("--follow", "state", port=ports[1])
    stop = threading.Event()

    def send(name):
        answered = 0
        while not stop.is_set():
            try:
                status, content = leader.send_image(random_image(name))
            except OSError:
                time.sleep(0.02)
                continue
            assert (status, len(content["predictions"])) == (200, 1)
            answered += 1
        return answered

    processes = [start(*serve), start(*follow)]
    try:
        wait_until_ready(leader)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            sent = [pool.submit(send, name) for name in range(4)]
            for _ in range(3):
                while not Path("state").exists():
                    time.sleep(0.02)
                wait_until_ready(follower)
                time.sleep(1)
                processes[0].kill()
                processes[0].wait()
                saved = count_batches("state")
                assert follower.send_image(random_image(1))[0] == 200
                processes[0] = start(*serve)
                wait_until_ready(leader)
            stop.set()
            assert all(answers.result() > 0 for answers in sent)
        assert leader.send_image(random_image(1))[0] == 200
        processes[0].terminate()
        assert processes[0].wait(timeout=30) == 143
        assert count_batches("state") > saved
        assert not list(folder.glob(".state.*.part"))
    finally:
        for process in processes:
            process.kill()
            process.wait()
