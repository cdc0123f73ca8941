"""A bench small enough to be run hundreds of times, and processes that run it and can be killed."""

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch

from driftproof.bench.executors import run_locally
from driftproof.bench.jobs import Job
from driftproof.bench.runner import RunSettings
from driftproof.bench.spec import Spec
from driftproof.data import ArraySet
from driftproof.streams import Continual, Domain, OpenSet, Shuffled
from networks import CLASSES, build

METHODS = {"source": "closed", "tent": "open", "tent+crowd": "open", "eata": "closed", "swr": "open"}
DOMAINS = ("fog", "frost", "snow")
AT_ONCE = RunSettings(save_every=0.0)


def random_images(name, count=6, side=8):
    """The same images for the same name, in every process."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    pixels = torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
    return ArraySet(pixels, torch.arange(count) % CLASSES, name=name)


@dataclass(frozen=True)
class SmallBench:
    """A workbench without files: a tiny network and random images. It can be sent to other processes.

    Attributes:
        signs: Folder for signs between processes: each that begins a cell leaves a file `NAME.PID`.
        waiting: Methods that get no images of the last domain until there is a file `go` among the signs.
        broken: Methods whose images cannot be had.
        deadly: Methods whose model ends the process.
    """

    signs: Path | None = None
    waiting: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    deadly: tuple[str, ...] = ()

    def model(self, spec):
        if self.signs is not None:
            (self.signs / f"{spec.name}.{os.getpid()}").touch()
        if spec.method in self.deadly:
            os._exit(1)
        return build("wide_resnet")

    def stream(self, spec, rounds, progress):
        if spec.method in self.broken:
            raise FileNotFoundError(2, "No such file or directory", "images.npy")
        settings = {"rounds": rounds, "batch_size": spec.batch_size, "order": Shuffled(spec.seed)}
        closed = [Domain(name, random_images(f"closed {name}")) for name in spec.domains]
        if spec.method in self.waiting:
            closed[-1] = Domain(closed[-1].name, Waiting(closed[-1].images, self.signs / "go"))
        if spec.unknown is None:
            return Continual(closed, **settings)
        return OpenSet(closed, [Domain(name, random_images(f"unknown {name}")) for name in spec.domains], **settings)

    def source(self, spec, device):
        images = random_images("source", count=20)
        return [(images.batch(range(20)).float().to(device) / 255, images.labels.to(device))]

    def fingerprints(self, spec):
        return {"images": "random"}


class Waiting:
    """Images that cannot be read until there is a certain file; the first can, as streams look at its size."""

    def __init__(self, images, path):
        self.name, self.labels, self._images, self._path = images.name, images.labels, images, path

    def __len__(self):
        return len(self._images)

    def batch(self, indices):
        until = time.monotonic() + 120
        while len(indices) > 1 and not self._path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        return self._images.batch(indices)


def spec_of(method, *, domains=DOMAINS):
    unknown = "unknown" if METHODS.get(method) == "open" else None
    return Spec(method, "random", "tiny", unknown, domains=domains, batch_size=6)


def small_jobs(rounds=2, domains=DOMAINS, methods=METHODS):
    return [Job(spec_of(method, domains=domains), rounds) for method in methods]


def ignore(note):
    """Nobody listens."""


def contents(folder):
    """What has to be the same however often a run was interrupted."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in ("rows.jsonl", "spec.json")
        for path in sorted(Path(folder).glob(f"cells/*/{name}"))
    }


class Killable:
    """Runs benches one after the other, each in a process of its own that starts in no time.

    A process that has imported everything makes a fork of itself for every run.
    """

    def __enter__(self):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        return self

    def __exit__(self, *error):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(self, folder, jobs, *, at_note=None, slack=8, meanwhile=lambda: None, at_event=None):
        """Run a bench; returns its exit status, negative if a signal ended it.

        Args:
            folder: Of the results.
            jobs: What to do.
            at_note: Kill it when it has told so many notes.
            slack: It stops and waits for being killed when it has told so many more.
            meanwhile: Called before it is killed.
            at_event: Kill it just before the so-many-th time it touches a file in the folder.
        """
        order = {
            "folder": str(folder),
            "jobs": [[job.spec.as_data(), job.rounds] for job in jobs],
            "at_note": at_note,
            "slack": slack,
            "at_event": at_event,
        }
        print(json.dumps(order), file=self._process.stdin, flush=True)
        what, number = self._answer()
        if what == "reached":
            meanwhile()
            os.kill(number, signal.SIGKILL)
            what, number = self._answer()
        assert what == "ended"
        return number

    def _answer(self):
        what, number = self._process.stdout.readline().split()
        return what, int(number)


def _serve():
    import torch._dynamo  # every optimizer imports it with its first step, which takes seconds

    torch.set_num_threads(1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _obey(json.loads(line))
            os._exit(0)
        _say("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _obey(order):
    jobs = [Job(Spec.from_data(data), rounds) for data, rounds in order["jobs"]]
    if order["at_event"] is not None:
        _die_at(order["at_event"], order["folder"])
    try:
        run_locally(jobs, Path(order["folder"]), SmallBench(), AT_ONCE, _announcing(order["at_note"], order["slack"]))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def _announcing(at_note, slack):
    told = 0

    def tell(note):
        nonlocal told
        told += 1
        if told == at_note:
            _say("reached", os.getpid())
        if at_note is not None and told == at_note + slack:
            signal.pause()

    return tell


def _die_at(event, folder):
    seen = 0

    def watch(name, arguments):
        nonlocal seen
        if name in ("open", "os.mkdir", "os.rename", "os.remove", "os.truncate") and folder in str(arguments[0]):
            seen += 1
            if seen == event:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def _say(what, number):
    os.write(1, f"{what} {number}\n".encode())


if __name__ == "__main__":
    _serve()
