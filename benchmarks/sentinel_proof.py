"""Run the sentinel's proof in parts, on one machine after another.

    python benchmarks/sentinel_proof.py --data data --weights weights --out runs --state state.bin --seconds 300

The state file holds all rows and the adapters' snapshots. It is replaced every few seconds while runs go on. A machine
that gets it, and an empty folder for `--out`, goes on where the last one stopped, and ends with the rows that one
machine would have ended with, up to rounding. Runs start in the order of the plan or of `--lines`.
"""

import argparse
import io
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from driftproof.bench.store import Run, Store
from driftproof.errors import StateError
from driftproof.files import atomic_write

PLAN = """\
sentinel --images cifar10-c --open --rounds {rounds}
sentinel --images cifar10-c --closed --rounds {rounds}
sentinel --images cifar100-c --open --rounds 5
sentinel --images cifar100-c --closed --rounds 5
sentinel --images cifar100-c --closed --rounds {rounds}
sentinel --images cifar100-c --open --rounds {rounds}
sentinel --images cifar10-c,cifar100-c --open --rounds 1 --seeds 1,2
sentinel --images cifar10-c,cifar100-c --closed --rounds 1 --seeds 1,2
sentinel --images cifar10-c,cifar100-c --open --rounds 5 --seeds 1,2
sentinel --images cifar10-c,cifar100-c --closed --rounds 5 --seeds 1,2
"""
ANSWER_ROUNDS = ("1", "2", "3", "4", "5", "10", "20", "30", "40", "50")
"""In the other rounds passes are left out that change nothing of these, see `answer_rounds.py`."""
_PACK_EVERY = 8.0
_SAVE_EVERY = "5"


def read_run(folder: Path) -> dict[str, bytes]:
    """Read a run that another process may be writing, up to the last snapshot that its rows reach."""
    run, snapshots = Run(folder), dict[int, bytes]()
    while not snapshots:
        paths = run.snapshots
        try:
            snapshots = {position: path.read_bytes() for position, path in paths.items()}
        except FileNotFoundError:  # a later snapshot took its place
            continue
        if not paths:
            break
    # A run writes conditions before rows, and both after the snapshot that they lead up to.
    found = {name: folder / name for name in ("rows.jsonl", "conditions.jsonl")}
    lines = {name: path.read_bytes().splitlines(keepends=True) for name, path in found.items() if path.exists()}
    reached = max((position for position in snapshots if position <= len(lines.get("rows.jsonl", ()))), default=0)
    read = {name: b"".join(found[:reached]) for name, found in lines.items() if reached}
    if reached:
        read[f"snapshot-{reached}.safetensors"] = snapshots[reached]
    return read | {"spec.json": (folder / "spec.json").read_bytes()}


def pack(out: Path, state: Path) -> None:
    """Write the results folders below `out` into one file."""
    with atomic_write(state) as unfinished, tarfile.open(unfinished, "w:gz") as archive:
        for facts in sorted(out.glob("*/folder.json")):
            contents = {"folder.json": facts.read_bytes()}
            for run in Store(facts.parent).runs():
                contents |= {f"cells/{run.folder.name}/{name}": data for name, data in read_run(run.folder).items()}
            for name, data in contents.items():
                member = tarfile.TarInfo(f"{facts.parent.name}/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def unpack(state: Path, out: Path) -> None:
    """Make the results folders of a state file, where there are none yet."""
    if out.exists() and any(out.iterdir()):
        raise StateError(f"Expected an empty folder for the runs of {state.name}, but {out} has files in it.")
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(state) as archive:
        archive.extractall(out, filter="data")


def main() -> int:
    """Unpack, run until the time is over, and pack again and again."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--state", type=Path, required=True, help="file to write")
    parser.add_argument("--resume", type=Path, help="state file to go on from")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--limit", type=int, help="images of each corruption, for a trial")
    parser.add_argument("--lines", type=int, nargs="+", help="numbers of the plan's lines to run, in this order")
    arguments, others = parser.parse_known_args()
    if arguments.resume is not None:
        unpack(arguments.resume, arguments.out)
    arguments.out.mkdir(parents=True, exist_ok=True)
    plan = arguments.out / "plan.txt"
    limit = "" if arguments.limit is None else f" --limit {arguments.limit}"
    lines = PLAN.format(rounds=arguments.rounds).splitlines()
    lines = lines if arguments.lines is None else [lines[number - 1] for number in arguments.lines]
    plan.write_text("".join(f"{line}{limit}\n" for line in lines), encoding="utf-8")
    script = Path(__file__).with_name("leaderboard.py")
    command = [sys.executable, str(script), str(plan), "--out", str(arguments.out), "--partly", *others]
    command += ["--answer-rounds", *ANSWER_ROUNDS, "--to-the-deadline", "--save-every", _SAVE_EVERY]
    with subprocess.Popen(command) as process:
        packed = time.monotonic()
        while process.poll() is None:
            time.sleep(0.5)
            if time.monotonic() - packed > _PACK_EVERY:
                pack(arguments.out, arguments.state)
                packed = time.monotonic()
    pack(arguments.out, arguments.state)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
