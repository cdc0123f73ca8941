"""docs/serving.md: its tables agree with the code, and its commands work as they stand."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from driftproof.cli import app
from driftproof.serve.errors import STATUS
from serving import Client, random_image, served, small_adapter
from test_serve_command import free_port, wait_until_ready

PAGE = (Path(__file__).parents[1] / "docs" / "serving.md").read_text()


def test_error_codes_agree_with_the_page():
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| .+ \|$", PAGE, flags=re.MULTILINE)
    assert {code: int(status) for code, status in rows} == STATUS


def test_limits_agree_with_the_page():
    options = {option.opts[0]: option for option in typer.main.get_command(app).commands["serve"].params}
    rows = dict(re.findall(r"^\| `(--[\w-]+)` \| ([\d.]+) \|", PAGE, flags=re.MULTILINE))
    assert len(rows) == 6
    assert rows.pop("--max-pixels") == "16777216"
    assert {name: str(options[name].default) for name in rows} == rows
    for name in set(re.findall(r"`(--[a-z-]+)", PAGE)) - {"--size"}:
        assert name in options or f"{name}/--no-page" in options or name == "--no-page", name


@pytest.mark.slow
def test_page_can_be_followed_word_by_word(tmp_path):
    """Write the files of the page, start its servers on free ports, and run its commands in a shell."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl, and there is none here")
    ports = {"8000": str(free_port()), "8001": str(free_port())}

    def local(text):
        for port, free in ports.items():
            text = re.sub(rf"\b{port}\b", free, text)
        return text

    for name, text in re.findall(r'^```python title="(\S+)"\n(.*?)^```', PAGE, flags=re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(local(text))
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "driftproof").write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'from driftproof.cli import main; main()' \"$@\"\n"
    )
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    servers, answers = [], []
    try:
        for line in map(local, lines):
            if line.startswith("pip install"):
                continue
            if line.startswith("driftproof serve"):
                port = ports["8001" if "--follow" in line else "8000"]
                command = f"exec {line}" + ("" if "--port" in line else f" --port {port}")
                servers.append(subprocess.Popen(["bash", "-c", command], cwd=tmp_path, env=environment))
                deadline = time.monotonic() + 60
                while (
                    "--follow" in line and not (tmp_path / "state.safetensors").exists() and time.monotonic() < deadline
                ):
                    time.sleep(0.05)
                wait_until_ready(Client(f"http://127.0.0.1:{port}"))
                continue
            done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, timeout=120)
            assert done.returncode == 0, done.stderr
            answers.append(done.stdout.decode())
            assert '"error":{' not in answers[-1], answers[-1]
        asked = subprocess.run(
            [sys.executable, "ask.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert asked.stdout.split()[0] in ("zero", "one", "two", "three", "four", "five")
    finally:
        for server in servers:
            server.terminate()
        codes = [server.wait(timeout=60) for server in servers]
    assert codes == [143, 143]
    assert any('"class":"' in answer for answer in answers)
    assert any('{"status":"loaded"}' in answer for answer in answers)
    assert any("driftproof_kept_ratio" in answer for answer in answers)


RESULTS = Path(__file__).parents[1] / "results" / "serve"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return importlib.import_module


def test_measured_numbers_agree_with_the_results(load):
    results = json.loads((RESULTS / "serve.json").read_text())
    assert load("serve_report").format_report(results) == (RESULTS / "serve.md").read_text()
    long = results["long"]
    sent, faults = long["load"], long["faults"]
    assert sent["lost"] == sent["mismatched"] == sent["unexpected"] == 0
    assert sent["sent"] == sent["answered"]
    assert all(restart["continued"] for restart in long["restarts"])
    refused = sum(
        sum(faults[f"{kind}"].values()) for kind in ("oversized uploads", "malformed uploads", "decompression bombs")
    )
    rows = dict(re.findall(r"^\| (.+?) \| ([\d,]+) \|$", PAGE.partition("## Measured")[2], flags=re.MULTILINE))
    quoted = [int(number.replace(",", "")) for number in rows.values()]
    counted = [sum(faults[kind].values()) for kind in ("wrong tokens", "slow clients")]
    assert quoted == [
        sent["sent"],
        sent["lost"],
        sent["broken"],
        refused,
        *counted,
        faults["idle connections"]["closed"],
    ]
    alone, full = (results["short"][index]["cpu_ms_per_request"] for index in (0, -1))
    page = PAGE.replace("\n", " ")
    assert f"{full:.1f} ms for a request" in page
    assert f"and {alone:.0f} ms where each" in page
    latency, memory = sent["latency_ms"], [amount / 2**20 for amount in long["memory"]]
    assert f"served {sent['requests_per_second']:.0f} requests of 1 to 4 images a second" in page
    assert f"within {latency['p50']:.0f} ms, 99 % within {latency['p99']:.0f} ms" in page
    growth = max(memory[1] - memory[0], memory[3] - memory[2])
    assert f"grew by {growth:.0f} MiB at most, from {min(memory):.0f}" in page


def test_clients_of_the_load_test_count_answers_and_notice_wrong_ones(load):
    clients, images = load("serve_clients"), [(random_image(seed), 0) for seed in range(3)]
    with served(small_adapter("source"), max_wait=0.001) as client:
        counts = clients.run_clients(client.address, images, seconds=0.5, connections=2, name="c", most=3)
    assert counts["sent"] == counts["answered"] == len(counts["latencies"]) > 0
    assert counts["lost"] == counts["mismatched"] == counts["unexpected"] == 0
    connection = clients.Connection("http://127.0.0.1:1", images, "c", 0.0, 1)
    row = {"name": "other.png", "error": None, "predicted": 0}
    connection._check(200, {"predictions": [row]}, {"mine.png": b""}, [0])
    connection._check(500, {}, {"mine.png": b""}, [0])
    assert (connection.counts["mismatched"], connection.counts["unexpected"]) == (1, 1)
