"""Run `driftproof adapt` on a long stream with faults, kill it again and again, and compare with a run left alone.

    python benchmarks/soak.py --out results/soak [--steps 100000] [--kills 40] [--seed 0]

The names of the images come on stdin, see soak_stream.py. One process is never disturbed. The other is killed at random
moments, terminated, or runs out of disk (a limit on the size of files, lifted for the next process), and goes on with
`--resume`. The wall clock of both jumps. The script exits with 1 unless

- both write the same rows, byte for byte, one for each line of the stream in its order;
- both end with the same state, byte for byte;
- the log of the disturbed run has every batch, but for those while the disk was full;
- memory grows by at most 2 % after the first fifth of the undisturbed run, and of each long life of the disturbed one.
"""

import argparse
import importlib
import json
import math
import os
import random
import resource
import signal
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from driftproof.bench.environment import VERSIONS, hardware
from driftproof.cli import main as run_command
from driftproof.monitor import read_log
from soak_stream import MODEL, jumping_clock, make_images, make_lines
from tables import format_protocol, write_results

MAX_GROWTH = 0.02
_SAMPLE_SECONDS = 0.25
_ENDS = {-9: "KILL", 143: "TERM", -15: "TERM", 2: "disk full", 0: "by itself", 1: "by itself"}
_LONG_LIFE = 2000
"""Batches after which the memory of a life is compared."""


@dataclass
class Life:
    """One process.

    Attributes:
        fate: "left alone", "KILL", "TERM" or "disk full".
        code: Its exit code; negative for a signal.
        memory: Bytes of rows in the file and resident memory in KiB, four times a second.
    """

    fate: str
    code: int | None = None
    memory: list[tuple[int, int]] = field(default_factory=list)


class Runner:
    """Starts processes that go on with one run, and decides how they end.

    Args:
        folder: Holds the stream and all that the run writes.
        name: Name of the run.
        lives: How many processes are disturbed.
        row_bytes: Expected length of the rows.
        seed: Seed of all moments.
    """

    def __init__(self, folder: Path, name: str, lives: int, row_bytes: int, seed: int) -> None:
        self.folder, self.name = folder, name
        self.rows = folder / f"{name}.jsonl"
        self.lives: list[Life] = []
        self._draw = random.Random(seed)
        self._disturbed, self._row_bytes = lives, row_bytes
        self._process = 0
        self._due = self._next_sample = 0.0

    @property
    def is_done(self) -> bool:
        """Whether the run has ended by itself."""
        return bool(self.lives) and self.lives[-1].code in (0, 1)

    def start(self) -> None:
        """Start the next process."""
        fate = "left alone"
        if len(self.lives) < self._disturbed:
            fate = self._draw.choices(("KILL", "TERM", "disk full"), (70, 15, 15))[0]
        length = self.rows.stat().st_size if self.rows.exists() else 0
        share = self._draw.uniform(0.2, 1.8) / (self._disturbed + 1)
        target = length + int(share * self._row_bytes)
        self._due = time.monotonic() + self._draw.uniform(0, 2) if self._draw.random() < 0.15 else -target
        self.lives.append(Life(fate))
        self._process = os.fork()
        if self._process == 0:
            self._become_run(target if fate == "disk full" else None)

    def watch(self) -> None:
        """Disturb the process when it is time, note its memory, and note its end."""
        life = self.lives[-1]
        length = self.rows.stat().st_size if self.rows.exists() else 0
        if life.fate in ("KILL", "TERM") and (time.monotonic() >= self._due if self._due > 0 else length >= -self._due):
            time.sleep(self._draw.uniform(0, 0.02))  # anywhere in a step
            os.kill(self._process, getattr(signal, f"SIG{life.fate}"))
            self._due = -math.inf  # once
        pages = int(Path(f"/proc/{self._process}/statm").read_text().split()[1])
        if pages and time.monotonic() >= self._next_sample:  # none once it has ended
            life.memory.append((length, pages * resource.getpagesize() // 1024))
            self._next_sample = time.monotonic() + _SAMPLE_SECONDS
        process, status = os.waitpid(self._process, os.WNOHANG)
        if process:
            life.code = os.waitstatus_to_exitcode(status)
            expected = {"KILL": (-9, 0, 1), "TERM": (143, -15, 0, 1), "disk full": (2, 0, 1), "left alone": (0, 1)}[
                life.fate
            ]
            if life.code not in expected:
                raise RuntimeError(f"A life with fate {life.fate} ended with {life.code}, see {self.name}.stderr.")

    def _become_run(self, max_file_size: int | None) -> None:
        os.chdir(self.folder)
        os.dup2(os.open("stream.txt", os.O_RDONLY), 0)
        for number in (1, 2):
            os.dup2(os.open(f"{self.name}.stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
        time.time = jumping_clock(time.time, seed=len(self.lives))
        if max_file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_size, resource.RLIM_INFINITY))
        code: Any = 70
        try:
            run_command(
                [
                    *("adapt", "-", "--model", "soak_model:build", "--method", "tent+crowd", "--option", "lr=0.0005"),
                    *("--batch-size", "16", "--alarm", "0.5", "--save-every", "100", "--keep", "3", "--resume"),
                    *("--out", f"{self.name}.jsonl", "--state", f"{self.name}.safetensors"),
                    *("--log", f"{self.name}.log"),
                ]
            )
        except SystemExit as ended:
            code = ended.code
        finally:
            os._exit(code)


def soak(steps: int, kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """Run both runs at the same time and compare them.

    Args:
        steps: Number of batches.
        kills: How many processes of the disturbed run are disturbed.
        seed: Seed of stream and moments.
        folder: An empty folder.
    """
    importlib.import_module("torch._dynamo")  # optimizers import it, which takes seconds in each process
    for module in ("driftproof.methods.by_name", "driftproof.data.images", "PIL.PngImagePlugin"):
        importlib.import_module(module)
    make_images(folder / "images", seed)
    (folder / "soak_model.py").write_text(MODEL)
    (folder / "stream.txt").write_text("".join(f"{line}\n" for line in make_lines(steps, Path("images"), seed)))
    names = [line for line in (folder / "stream.txt").read_text().splitlines() if line]
    quiet, disturbed = (
        Runner(folder, name, lives, 220 * len(names), seed) for name, lives in (("quiet", 0), ("disturbed", kills))
    )
    started = time.monotonic()
    runners = [quiet, disturbed]
    while runners := [runner for runner in runners if not runner.is_done]:
        for runner in runners:
            if not runner.lives or runner.lives[-1].code is not None:
                runner.start()
            runner.watch()
        time.sleep(0.03)
    return {
        "steps": steps,
        "seconds": round(time.monotonic() - started),
        "rows": len(names),
        "rows equal": (folder / "quiet.jsonl").read_bytes() == (folder / "disturbed.jsonl").read_bytes(),
        "a row for each line": _read_names(disturbed.rows) == names,
        "states equal": _read_state(folder, "quiet") == _read_state(folder, "disturbed"),
        "batches logged": len(
            {line["batch"] for line in read_log(folder / "disturbed.log") if line["type"] == "batch"}
        ),
        "rows with an error": sum('"error": null' not in line for line in disturbed.rows.open()),
        "ends": _count([_ENDS[life.code] for life in disturbed.lives if life.code is not None]),
        "growth": _measure_growth(quiet.lives[0], 0.2) if steps >= _LONG_LIFE else None,
        "growth of lives": [
            growth
            for life in disturbed.lives
            if life.memory
            and life.memory[-1][0] - life.memory[0][0] > _LONG_LIFE * 220 * len(names) / steps
            and (growth := _measure_growth(life, 0.5)) is not None
        ],
        "memory in MiB": round(quiet.lives[0].memory[-1][1] / 1024),
        "left behind": sorted(path.name for path in folder.glob("*.run")),
    }


def find_failures(results: dict[str, Any]) -> list[str]:
    """Return what the results should not be."""
    failures = [name for name in ("rows equal", "a row for each line", "states equal") if not results[name]]
    if results["batches logged"] < results["steps"] and "disk full" not in results["ends"]:
        failures.append("batches are missing in the log")
    growths = [results["growth"], *results["growth of lives"]]
    failures += [f"{growth:.1%} growth" for growth in growths if growth is not None and growth > MAX_GROWTH]
    return failures + [f"{name} is left behind" for name in results["left behind"]]


def _measure_growth(life: Life, warm_up: float) -> float | None:
    """Growth of memory: median of the last tenth over that of the tenth after the warm-up, less one."""
    first, last = life.memory[0][0], life.memory[-1][0]
    shares = [((length - first) / max(1, last - first), memory) for length, memory in life.memory]
    early = [memory for share, memory in shares if warm_up <= share < warm_up + 0.1]
    late = [memory for share, memory in shares if share >= 0.9]
    return statistics.median(late) / statistics.median(early) - 1 if early and late else None


def _read_names(rows: Path) -> list[str]:
    with rows.open() as lines:
        return [json.loads(line)["path"] for line in lines]


def _read_state(folder: Path, name: str) -> bytes:
    return (folder / f"{name}.safetensors").read_bytes()


def _count(values: list[str]) -> dict[str, int]:
    return {value: values.count(value) for value in sorted(set(values))}


def _format_growth(growth: float | None) -> str:
    return "too short a run" if growth is None else f"{growth:+.2%} (at most {MAX_GROWTH:.0%})"


def format_page(results: dict[str, Any], protocol: dict[str, Any], failures: list[str]) -> str:
    """Return the results as Markdown."""
    growths = results["growth of lives"]
    rows = {
        "batches, rows": f"{results['steps']:,}, {results['rows']:,}",
        "rows with an error": f"{results['rows with an error']:,}",
        "ends of the disturbed run's processes": ", ".join(f"{count} {end}" for end, count in results["ends"].items()),
        "lost or doubled rows": "none" if results["a row for each line"] else "some",
        "rows byte-equal to the run left alone": "yes" if results["rows equal"] else "no",
        "final state byte-equal": "yes" if results["states equal"] else "no",
        "batches in the log of the disturbed run": f"{results['batches logged']:,}",
        "memory of the run left alone": f"{results['memory in MiB']} MiB",
        "its growth after the first fifth": _format_growth(results["growth"]),
        "largest growth of a long life": _format_growth(max(growths, default=None)),
        "time": f"{results['seconds']} s",
    }
    lines = ["# Soak", "", "Made by `make soak`.", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows.items()]
    lines += ["", f"Failed: {', '.join(failures)}." if failures else "All of these hold."]
    return "\n".join([*lines, *format_protocol(protocol)])


def main() -> None:
    """Run the soak and write what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep what the runs write in this new folder")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        results = soak(arguments.steps, arguments.kills, arguments.seed, folder)
    failures = find_failures(results)
    protocol = VERSIONS | {"seed": arguments.seed, "hardware": hardware(torch.device("cpu"))}
    page = format_page(results, protocol, failures)
    write_results(arguments.out, "soak", results | {"protocol": protocol, "failures": failures}, soak=page)
    print(page)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
