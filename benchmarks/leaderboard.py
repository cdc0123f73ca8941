"""Run parts of the leaderboard's suites in several processes on one device, within a time limit.

    python benchmarks/leaderboard.py plan.txt --data data --weights weights --out runs --workers 5 --seconds 180

Every line of the plan is a part of a suite, with the options of `driftproof bench run`:

    openset --methods tent,paf_kip --images cifar100-c --open --rounds 1
    openset_small --limit 2000
    paf_kip_parts --table paf_kip_parts --row "no crops" --row "mixed at random"

Runs start in the order of the plan, those of a line in the order of its methods. A run that would not end in time, by
the pace of its method or of others so far, does not start, and one whose next round would not end in time is left; the
next one has its turn. The same command resumes what is there. Lines with a limit have a
results folder of their own, as `driftproof bench leaderboard` reads them.
"""

import argparse
import math
import multiprocessing
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import NamedTuple

import torch

from answer_rounds import AnswerRounds
from driftproof.adapter.engines import compiled
from driftproof.bench.execute import execute
from driftproof.bench.jobs import Job
from driftproof.bench.local_files import LocalFiles
from driftproof.bench.plan import RunFilter, plan_runs
from driftproof.bench.runner import ProgressEvent, RunSettings
from driftproof.corruptions import find_frost_photos
from driftproof.errors import DriftproofError
from driftproof.leaderboard import SENTINEL_SUITES, SUITES
from driftproof.streams.datasets import find_dataset
from driftproof.validation import check_choice

_SUITES = {**SUITES, **SENTINEL_SUITES}
_TEST_IMAGES = 10_000
"""Known images of a corruption in both sets."""
Paces = MutableMapping[tuple[str, int], float]
"""Seconds per batch by method and batch size, the fastest that any process saw."""


@dataclass(frozen=True)
class Part:
    """A line of the plan: its text, what it chooses from a suite, and the folder of its results."""

    command: str
    run_filter: RunFilter
    jobs: tuple[Job, ...]
    out: Path


class OutOfTimeError(BaseException):
    """A run was left because its next round would not end in time; no Exception, so that nothing takes it for one."""


class Watch:
    """Leaves a run between two domains if its next round would not end before the deadline, or else at the deadline.

    The first domain, in which steps are compiled and captured, says nothing about the others.
    """

    def __init__(
        self, rounds: int, deadline: float, clock: Callable[[], float] = time.monotonic, paces: Paces | None = None,
        *, whole_rounds: bool = True,
    ) -> None:  # fmt: skip
        self.rounds, self.deadline, self.clock, self.whole_rounds = rounds, deadline, clock, whole_rounds
        self.paces: Paces = {} if paces is None else paces
        self.earlier: tuple[float, int] | None = None

    def __call__(self, event: ProgressEvent) -> None:
        """Take in an event of the run."""
        now = self.clock()
        if now > self.deadline:
            raise OutOfTimeError
        if event.row is None or event.total is None:
            return
        if self.earlier is not None and event.done > self.earlier[1]:  # an analysis reports all rows at once
            then, done = self.earlier
            pace = (now - then) / (event.done - done)
            key = event.spec.method, event.spec.batch_size
            self.paces[key] = min(pace, self.paces.get(key, math.inf))
            if event.done >= event.total:
                return
            per_round = event.total // self.rounds
            if self.whole_rounds and now + pace * (per_round - event.done % per_round) > self.deadline:
                raise OutOfTimeError
        self.earlier = now, event.done


def estimate_seconds(job: Job, paces: Paces) -> float:
    """Estimate the time of a run by its method's fastest pace; else by half of the median pace of other methods."""
    spec = job.spec
    others = [pace for (_, size), pace in paces.items() if size == spec.batch_size]
    pace = paces.get((spec.method, spec.batch_size), statistics.median(others) / 2 if others else 0.0)
    known = spec.batch_size * (1 - spec.unknown_share if spec.unknown else 1)
    return pace * job.rounds * len(spec.domains) * math.ceil((spec.limit or _TEST_IMAGES) / known)


def parse_line(line: str, out: Path) -> Part:
    """Read a line of the plan."""
    parser = argparse.ArgumentParser(prog="plan", add_help=False)
    parser.add_argument("suite", choices=list(_SUITES))
    parser.add_argument("--table")
    parser.add_argument("--row", dest="rows", action="append", default=[])
    parser.add_argument("--methods", type=lambda text: text.split(","), default=[])
    parser.add_argument("--images", type=lambda text: text.split(","), default=[])
    parser.add_argument("--open", dest="setting", action="store_const", const="open")
    parser.add_argument("--closed", dest="setting", action="store_const", const="closed")
    parser.add_argument("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[0])
    for name in ("--rounds", "--limit", "--trials"):
        parser.add_argument(name, type=int)
    chosen = vars(parser.parse_args(shlex.split(line)))
    suite, rows, name = _SUITES[chosen.pop("suite")](), chosen.pop("rows"), chosen.pop("table")
    if name is not None:
        check_choice(f"table of {suite.name}", name, [table.name for table in suite.tables])
        suite = replace(suite, tables=tuple(table for table in suite.tables if table.name == name))
    if rows:
        entries = {entry.row: entry for table in suite.tables for entry in table.entries}
        only = tuple(entries[check_choice(f"row of {suite.name}", row, entries)] for row in rows)
        suite = replace(suite, tables=(replace(suite.tables[0], entries=only, lower_is_better=None),))
    run_filter = RunFilter(**chosen)
    places = {method: place for place, method in enumerate(run_filter.methods)}
    jobs = sorted(plan_runs(suite, run_filter), key=lambda job: places.get(job.spec.method, 0))
    folder = out / "all" if run_filter.limit is None else out / str(run_filter.limit)
    return Part(line, run_filter, tuple(jobs), folder)


def read_plan(path: Path, out: Path) -> list[Part]:
    """Read the lines of a plan; those that start with # are remarks."""
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [parse_line(line, out) for line in lines if line]


class Domain(NamedTuple):
    """A corrupted data set to generate."""

    images: str
    domain: str
    severity: int


def list_tasks(parts: Sequence[Part], device: str) -> list[Domain | tuple[Part, Job]]:
    """List all runs in order, each after the domains that it is the first to need."""
    tasks: list[Domain | tuple[Part, Job]] = []
    for part in parts:
        for job in part.jobs:
            tasks += [domain for domain in list_domains([replace(part, jobs=(job,))], device) if domain not in tasks]
            tasks.append((part, job))
    return tasks


def list_domains(parts: Sequence[Part], device: str) -> list[Domain]:
    """List the data sets, domains and severities to generate, each once.

    A GPU makes a whole set in less time than its batches one by one; elsewhere a few images are made when they come.
    """
    specs = [job.spec for part in parts for job in part.jobs if device != "cpu" or job.spec.limit is None]
    return list(
        dict.fromkeys(
            Domain(name, domain, spec.severity)
            for spec in specs
            for name in filter(None, (spec.images, spec.unknown))
            for domain in spec.domains
        )
    )


def work(arguments: argparse.Namespace, turn: "Synchronized[int]", paces: Paces, deadline: float) -> None:
    """Make the corrupted images that nobody has made, then run what nobody has run, until the deadline."""
    torch.set_num_threads(arguments.threads)
    if not arguments.fuse:
        # Steps are captured as they are, and round the same.
        setattr(compiled, "can_compile", lambda device: False)  # noqa: B010  # it is imported there, not exported
    parts = read_plan(arguments.plan, arguments.out)
    files = LocalFiles(arguments.data, arguments.weights, arguments.frost, device=arguments.device)
    tasks = list_tasks(parts, arguments.device)
    for number in take_turns(turn, len(tasks)):
        if time.time() > deadline:
            return
        task = tasks[number]
        if isinstance(task, Domain):
            make_images(files, *task)
        else:
            run_one(arguments, files, *task, time.monotonic() + deadline - time.time(), paces)


def take_turns(turn: "Synchronized[int]", count: int) -> Iterator[int]:
    """Yield numbers below `count` that no other process gets."""
    while True:
        with turn.get_lock():
            number, turn.value = turn.value, turn.value + 1
        if number >= count:
            return
        yield number


def make_images(files: LocalFiles, name: str, domain: str, severity: int) -> None:
    """Generate a corrupted data set on the device unless it is on disk."""
    photos = find_frost_photos(files.frost) if domain == "frost" else None
    find_dataset(name).images(files.data, domain, severity, frost_photos=photos, device=files.device, make=True)


def run_one(
    arguments: argparse.Namespace, files: LocalFiles, part: Part, job: Job, deadline: float, paces: Paces
) -> None:
    """Run one job and say how it ended."""
    first = replace(job, rounds=1) if arguments.partly else job
    is_short = arguments.to_the_deadline or job.spec.task != "stream"
    needed = 0.0 if is_short else estimate_seconds(first, paces)
    if time.monotonic() + needed > deadline:
        print(f"  {job.spec.name}, round {job.rounds}: not begun, needs about {needed:.0f} s", flush=True)
        return
    answers = AnswerRounds(arguments.answer_rounds or (), is_closed=job.spec.unknown is None)
    settings = RunSettings(
        arguments.device, arguments.save_every, arguments.engine, arguments.precision, arguments.channels_last,
        answers if arguments.answer_rounds else None,
    )  # fmt: skip
    watch = Watch(job.rounds, deadline, paces=paces, whole_rounds=not arguments.to_the_deadline)
    started, ending = time.monotonic(), "done"
    try:
        execute(
            [job], files, part.out, settings=settings, callback=watch,
            metadata=part.run_filter.metadata() | files.metadata(),
            command=f"python benchmarks/leaderboard.py: {part.command}",
        )  # fmt: skip
    except OutOfTimeError:
        ending = "left for lack of time"
    except DriftproofError as error:
        ending = f"failed: {error}"
    if arguments.device.startswith("cuda"):
        torch.cuda.empty_cache()
    print(f"{time.monotonic() - started:6.1f} s  {job.spec.name}, round {job.rounds}: {ending}", flush=True)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("plan", type=Path, help="file of parts of suites, one per line")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--weights", type=Path, required=True, help="folder of the networks")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results folders")
    parser.add_argument("--frost", type=Path, help="folder of frost photos; else the package's")
    parser.add_argument("--workers", type=int, default=4, help="processes at the same time")
    parser.add_argument("--seconds", type=float, default=3600.0, help="time limit")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--channels-last", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--fuse", action="store_true", help="fuse batch norms; tracing the networks takes longer than a round of TENT"
    )
    parser.add_argument("--partly", action="store_true", help="also begin runs of which only some rounds end in time")
    parser.add_argument("--to-the-deadline", action="store_true", help="leave runs within a round; resume them later")
    parser.add_argument("--save-every", type=float, default=20.0, help="seconds between snapshots of a run")
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    parser.add_argument(
        "--answer-rounds", type=int, nargs="+", help="rounds in which `sentinel` answers; its learner answers in others"
    )
    return parser.parse_args()


def main() -> int:
    """Start the workers and wait for all of them."""
    arguments, deadline = parse_arguments(), time.time()
    deadline += arguments.seconds
    read_plan(arguments.plan, arguments.out)  # a mistake in the plan is reported once, before anything starts
    context = multiprocessing.get_context("spawn")
    turn, paces = context.Value("l", 0), context.Manager().dict()
    workers = [context.Process(target=work, args=(arguments, turn, paces, deadline)) for _ in range(arguments.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(abs(worker.exitcode or 0) for worker in workers)


if __name__ == "__main__":
    sys.exit(main())
