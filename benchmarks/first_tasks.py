"""Do five tasks as a new user does: from the docs alone, in a new environment, and write down commands and times.

python benchmarks/first_tasks.py dist/driftproof-0.2.0-py3-none-any.whl [--out results/tasks] [--environment FOLDER]

Code and commands are those of the pages, in their order, word for word; only the name of the package to install is
replaced by the wheel, and pip keeps to constraints.txt. The command fails if one of them does.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from tables import format_protocol, write_results

DOCS, CONSTRAINTS = Path("docs"), Path("constraints.txt")
READY = "http://127.0.0.1:8000/readyz"
LIMIT = 900


class Block(NamedTuple):
    """A block of code in a page: its language, the file it is to be saved as, and its text."""

    language: str
    title: str
    text: str


class Task(NamedTuple):
    """What a user wants, and which blocks of which pages do it, by number."""

    question: str
    pages: Sequence[tuple[str, Sequence[int]]]


TASKS = (
    Task("Adapt my ViT", [("vit.md", [0, 1])]),
    Task("Is it healthy?", [("index.md", [0, 1]), ("safety.md", [0])]),
    Task("Which method?", [("choosing.md", [0, 1])]),
    Task("Serve it", [("serving.md", [0, 1, 2, 3, 4])]),
    Task("Add a method", [("extending.md", [0, 1, 2])]),
)
"""Blocks that only show something, such as an answer of the server, are left out."""


def read_blocks(page: str) -> list[Block]:
    """Return the blocks of a page."""
    pattern = r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```'
    found = re.findall(pattern, (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [Block(*each) for each in found]


def list_commands(block: Block, later: Sequence[Block], folder: Path, name: str) -> list[str]:
    """Save a block of Python and return how it is run, unless a later block does; return the commands of the others."""
    if block.language == "python":
        path = folder / (block.title or name)
        path.write_text(block.text, encoding="utf-8")
        command = f"python {path.name}"
        return [] if any(command in other.text for other in later) else [command]
    return [line for line in block.text.replace("\\\n", "").splitlines() if line.strip()]


def run_task(task: Task, folder: Path, environment: Path, wheel: Path) -> Iterator[dict[str, Any]]:
    """Run the commands of a task in a folder, and yield each with its time and its last line of output."""
    path = constrain_pip() | {"PATH": f"{environment.resolve()}/bin:{os.environ['PATH']}", "COLUMNS": "80"}
    server = None
    try:
        for page, numbers in task.pages:
            blocks = read_blocks(page)
            for number in numbers:
                for command in list_commands(
                    blocks[number], blocks[number + 1 :], folder, f"{Path(page).stem}_{number}.py"
                ):
                    run = (
                        re.sub(r"driftproof(?=\[|'| |$)", str(wheel.resolve()), command)
                        if "pip " in command
                        else command
                    )
                    started = time.monotonic()
                    if command.startswith("driftproof serve"):
                        server = subprocess.Popen(run, shell=True, cwd=folder, env=path, start_new_session=True)
                        output = wait_until_ready()
                    else:
                        output = run_command(run, folder, path)
                    seconds = time.monotonic() - started
                    said = output.strip().splitlines()
                    row = {"page": page, "command": " ".join(command.split()), "seconds": round(seconds, 1)}
                    print(f"{seconds:6.1f} s  {row['command']}", flush=True)
                    yield row | {"output": "" if command.startswith("pip") or not said else said[-1]}
    finally:
        if server is not None:
            os.killpg(server.pid, 15)
            server.wait(timeout=60)


def constrain_pip() -> dict[str, str]:
    """Return the environment variables, with the versions that pip may install: timm would ask for a newer torch."""
    found = os.environ | {"PIP_CONSTRAINT": str(CONSTRAINTS.resolve())}
    found.pop("PYTHONPATH", None)
    return found


def run_command(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a command as a shell does, and return what it printed."""
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if done.returncode:
        sys.exit(f"{command}\n{done.stdout}{done.stderr}\nended with {done.returncode}.")
    return done.stdout


def wait_until_ready() -> str:
    """Wait for the server and return what it says."""
    for _ in range(10 * LIMIT):
        try:
            with urlopen(READY) as answer:
                return str(answer.read().decode())
        except (URLError, ConnectionError):
            time.sleep(0.1)
    sys.exit(f"Expected {READY} to answer, but it does not.")


def main() -> None:
    """Do all tasks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/tasks"))
    parser.add_argument(
        "--environment", type=Path, default=Path("tasks-environment"), help="A new folder, outside of git."
    )
    parser.add_argument(
        "--torch", default="torch", help="How pip is asked for torch; torch===2.13.0 never takes a build for CPUs only."
    )
    options = parser.parse_args()
    started = time.monotonic()
    if not (options.environment / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", options.environment], check=True)
    pip = options.environment / "bin" / "pip"
    subprocess.run([pip, "install", "--quiet", options.torch, options.wheel], check=True, env=constrain_pip())
    setup = time.monotonic() - started
    folder = options.environment / "work"
    folder.mkdir(exist_ok=True)
    found = {task.question: list(run_task(task, folder, options.environment, options.wheel)) for task in TASKS}
    versions = run_command(
        "bin/python -c 'import sys, torch; print(sys.version.split()[0], torch.__version__)'",
        options.environment,
        dict(os.environ),
    )
    protocol = {
        "python, torch": versions.strip(), "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load average at the end": f"{os.getloadavg()[0]:.1f}",
    }  # fmt: skip
    parts = ["# Five tasks from the docs alone", "", __doc__.partition("\n\npython")[0].splitlines()[0], ""]
    parts += [f"A new environment with torch and the wheel took {setup:.0f} s. Reading is not included.", ""]
    parts += ["| task | commands | seconds |", "|---|---:|---:|"]
    parts += [f"| {name} | {len(rows)} | {sum(row['seconds'] for row in rows):.0f} |" for name, rows in found.items()]
    for name, rows in found.items():
        parts += [
            "",
            f"## {name}",
            "",
            "| page | command | seconds | last line that it printed |",
            "|---|---|---:|---|",
        ]
        for row in rows:
            cells = [
                row["page"],
                f"`{row['command']}`",
                f"{row['seconds']:.1f}",
                row["output"].replace("|", "\\|")[:100],
            ]
            parts.append(f"| {' | '.join(cells)} |")
    page = "\n".join([*parts, *format_protocol(protocol)])
    write_results(options.out, "tasks", {"protocol": protocol, "setup": setup, "tasks": found}, tasks=page)


if __name__ == "__main__":
    main()
