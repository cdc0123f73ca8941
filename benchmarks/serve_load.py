"""Load a server from separate client processes, break it, kill it, and count every answer.

    python benchmarks/serve_load.py [--seconds 600] [--out results/serve] [--data D --weights W]

The server is `driftproof serve` with `adapt`. By default it serves a small network trained on scikit-learn's digits;
with `--data` (the folder of CIFAR-10) and `--weights` (a WRN-40-2), CIFAR-10. First come short runs with few and many
connections, then the long one, during which clients misbehave and the server is killed and restarted. Everything runs
on this machine, on loopback.
"""

import argparse
import base64
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import driftproof
from driftproof.bench.environment import hardware
from driftproof.corruptions import corrupt
from driftproof.data import cifar10, digits
from driftproof.training.digits import train_digits
from serve_faults import FAULTS
from serve_process import ServerProcess
from serve_report import format_report
from tables import write_results

CLIENTS = Path(__file__).with_name("serve_clients.py")
PROCESSES = 2
SHORT_RUNS = (1, 8, 32)


def encode_images(given: argparse.Namespace) -> list[tuple[str, int]]:
    """Return up to 500 noisy test images as base64 of PNG, with their labels."""
    images = digits() if given.data is None else cifar10(given.data)
    count = min(len(images), 500)
    # A held-out corruption: without a shift, `adapt` would hold learning back.
    noisy = corrupt(images.batch(range(count)), "speckle_noise", 3, dataset=images.name)
    encoded = []
    for index, pixels in enumerate(noisy):
        content = BytesIO()
        Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(content, "PNG")
        encoded.append((base64.b64encode(content.getvalue()).decode(), int(images.labels[index])))
    return encoded


def choose_model(given: argparse.Namespace, folder: Path) -> list[str]:
    """Return the words of the command that name the model."""
    if given.data is None:
        weights = train_digits(folder / "digits.safetensors")
        return ["--model", "driftproof.training.digits:build_five_layers", "--weights", str(weights)]
    return ["--model", "wrn40_2", "--classes", "10", "--weights", str(given.weights)]


def start_clients(server: ServerProcess, folder: Path, *, seconds: float, connections: int) -> list[Any]:
    """Start processes of clients that share the connections."""
    processes = min(PROCESSES, connections)
    started = []
    for number in range(processes):
        share = connections // processes + (number < connections % processes)
        words = ["--address", server.address, "--images", folder / "images.json", "--out", folder / f"{number}.json"]
        words += ["--seconds", seconds, "--connections", share, "--name", f"client{number}"]
        started.append(subprocess.Popen([sys.executable, CLIENTS, *map(str, words)]))
    return started


def collect(processes: list[Any], folder: Path, seconds: float, connections: int) -> dict[str, Any]:
    """Wait for clients and summarize what they counted."""
    for process in processes:
        if process.wait(timeout=seconds + 300):
            raise RuntimeError("A process of clients failed.")
    counts, latencies = Counter[str](), []
    for number in range(len(processes)):
        found = json.loads((folder / f"{number}.json").read_text())
        latencies += found.pop("latencies")
        counts.update(found)
    cuts = statistics.quantiles(latencies, n=1000, method="inclusive")
    percentiles = {f"p{share / 10:g}": round(cuts[share - 1], 1) for share in (500, 900, 990, 999)}
    return {
        "connections": connections,
        "seconds": round(seconds, 1),
        "requests_per_second": round(counts["answered"] / seconds, 1),
        "images_per_second": round(counts["images"] / seconds, 1),
        "latency_ms": percentiles | {"max": round(max(latencies), 1)},
        **counts,
        "accuracy": round(counts["correct"] / max(1, counts["images"]), 4),
    }


def run_short(server: ServerProcess, folder: Path, seconds: float, connections: int) -> dict[str, Any]:
    """Load the server for a moment; also measure its processor time, which other programs do not change much."""
    before, batches = server.cpu_seconds(), server.metrics().get("driftproof_batches_total", 0.0)
    results = collect(
        start_clients(server, folder, seconds=seconds, connections=connections), folder, seconds, connections
    )
    steps = server.metrics()["driftproof_batches_total"] - batches
    used = 1000 * (server.cpu_seconds() - before)
    costs = {"cpu_ms_per_request": used / results["answered"], "cpu_ms_per_image": used / results["images"]}
    return (
        results
        | {name: round(value, 2) for name, value in costs.items()}
        | {"images_per_batch": round(results["images"] / steps, 1)}
    )


def run_long(server: ServerProcess, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Load the server while clients misbehave, and end it twice."""
    faults = {name: Counter[str]() for name in FAULTS}
    restarts, memory, began = [], [], time.monotonic()
    processes = start_clients(server, folder, seconds=given.seconds, connections=given.connections)

    def wait_until(share: float) -> None:
        time.sleep(max(0.0, began + share * given.seconds - time.monotonic()))

    def misbehave() -> None:
        for name, send in FAULTS.items():
            faults[name].update(send(server))
        memory.append(server.memory())

    wait_until(0.05)
    memory.append(server.memory())
    misbehave()
    wait_until(0.4)
    restarts.append(server.restart(signal.SIGKILL))
    wait_until(0.5)
    memory.append(server.memory())
    misbehave()
    wait_until(0.8)
    restarts.append(server.restart(signal.SIGTERM))
    wait_until(0.9)
    restarts.append(server.restart(signal.SIGKILL))
    results = collect(processes, folder, given.seconds, given.connections)
    named = (
        "driftproof_serve_errors",
        "driftproof_serve_closed",
        "driftproof_serve_state_saves",
        "driftproof_health_st",
    )
    return {
        "load": results,
        "faults": {name: dict(counts) for name, counts in faults.items()},
        "restarts": restarts,
        "memory": memory,
        "metrics_since_last_restart": {
            name: value for name, value in server.metrics().items() if name.startswith(named) and "_created" not in name
        },
        "traceback_in_log": "Traceback" in server.read_log(),
        "token_in_log": server.token in server.read_log(),
    }


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the long run")
    parser.add_argument("--short-seconds", type=float, default=30.0, help="length of each short run")
    parser.add_argument("--connections", type=int, default=16, help="connections of the long run")
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--weights", type=Path, help="weights of a WRN-40-2")
    parser.add_argument("--out", type=Path, help="folder for the results")
    given = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "images.json").write_text(json.dumps(encode_images(given)))
        server = ServerProcess(folder, [*choose_model(given, folder), "--alarm", "0.9"], _free_port())
        first_start = server.start()
        try:
            short = [run_short(server, folder, given.short_seconds, connections) for connections in SHORT_RUNS]
            long = run_long(server, folder, given) if given.seconds else None
        finally:
            exit_code = server.stop(signal.SIGTERM)
    results = {
        "protocol": {
            "driftproof": driftproof.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "hardware": hardware(torch.device("cpu")),
            "cores": os.cpu_count(),
            "threads": os.environ.get("OMP_NUM_THREADS", "default"),
            "load average before": round(load_before, 1),
            "and after": round(os.getloadavg()[0], 1),
            "network": "five layers on digits" if given.data is None else "WRN-40-2 on CIFAR-10",
            "client processes": PROCESSES,
            "images": "speckle noise of severity 3, 1 to 4 per request",
            "command": " ".join(["python benchmarks/serve_load.py", *_shown(given)]),
        },
        "seconds_to_start": round(first_start, 1),
        "exit_code_of_sigterm": exit_code,
        "short": short,
        "long": long,
    }
    text = format_report(results)
    print(text)
    if given.out is not None:
        write_results(given.out, "serve", results, serve=text)


def _shown(given: argparse.Namespace) -> list[str]:
    words = ["--seconds", f"{given.seconds:g}", "--short-seconds", f"{given.short_seconds:g}"]
    return words + (["--data", "DATA", "--weights", "WEIGHTS"] if given.data is not None else [])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
