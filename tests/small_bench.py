"""A tiny benchmark that runs in milliseconds, and a server that runs it in killable processes."""

import gc
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

import driftproof as dp
from driftproof.bench.jobs import Job, run_locally
from driftproof.bench.runner import RunSettings
from driftproof.bench.spec import Spec
from driftproof.data import ArraySet
from driftproof.named import hash_sources
from driftproof.streams import Continual, Domain, OpenSet, Shuffled
from networks import CLASSES, build

METHODS = {"source": "closed", "tent": "open", "tent+crowd": "open", "eata": "closed", "swr": "open"}
DOMAINS = ("fog", "frost", "snow")
AT_ONCE = RunSettings(save_every=0.0)
OWN = "small_bench:cautious"


def cautious(model, *, lr=1e-3, **options):
    """A method as a user would write it."""
    return dp.tent(model, lr=lr, select=dp.ConfidenceDifference() & dp.EntropyBelow(), **options)


@contextmanager
def fast_runs():
    """Skip fsync, which only matters at a power loss, and keep existing objects out of the runner's `gc.collect`."""
    gc.collect()
    gc.freeze()
    with mock.patch.object(os, "fsync"):
        yield
    gc.unfreeze()


def random_images(name, count=6, side=8):
    """Return images determined by the name, the same in every process."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    pixels = torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
    return ArraySet(pixels, torch.arange(count) % CLASSES, name=name)


@dataclass(frozen=True)
class SmallBench:
    """Resource provider without files: a tiny network and random images. It can be pickled.

    Attributes:
        signals: Folder for signals between processes: each that starts a run creates a file `NAME.PID`.
        waiting: Methods that get no images of the last domain until the file `go` exists among the signals.
        crashing: Methods whose model exits the process.
    """

    signals: Path | None = None
    waiting: tuple[str, ...] = ()
    crashing: tuple[str, ...] = ()

    def model(self, spec):
        if self.signals is not None:
            (self.signals / f"{spec.name}.{os.getpid()}").touch()
        if spec.method in self.crashing:
            os._exit(1)
        return build("wide_resnet")

    def stream(self, spec, rounds, progress):
        settings = {"rounds": rounds, "batch_size": spec.batch_size, "order": Shuffled(spec.seed)}
        closed = [Domain(name, random_images(f"closed {name}")) for name in spec.domains]
        if spec.method in self.waiting:
            closed[-1] = Domain(closed[-1].name, WaitingImages(closed[-1].images, self.signals / "go"))
        if spec.unknown is None:
            return Continual(closed, **settings)
        return OpenSet(closed, [Domain(name, random_images(f"unknown {name}")) for name in spec.domains], **settings)

    def source(self, spec, device):
        images = random_images("source", count=20)
        return [(images.batch(range(20)).float().to(device) / 255, images.labels.to(device))]

    def fingerprints(self, spec, progress=None):
        return {"images": "random"}


class WaitingImages:
    """Images that cannot be read until a file exists, except single images, which streams read for their size."""

    def __init__(self, images, path):
        self.name, self.labels, self._images, self._path = images.name, images.labels, images, path

    def __len__(self):
        return len(self._images)

    def batch(self, indices):
        deadline = time.monotonic() + 120
        while len(indices) > 1 and not self._path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._images.batch(indices)


def spec_of(method, *, domains=DOMAINS):
    unknown = "unknown" if METHODS.get(method) == "open" else None
    return Spec(method, "random", "tiny", unknown, domains=domains, batch_size=6, code=hash_sources(method))


def small_jobs(rounds=2, domains=DOMAINS, methods=METHODS):
    return [Job(spec_of(method, domains=domains), rounds) for method in methods]


def ignore(event):
    """Progress callback that does nothing."""


def contents(folder):
    """Return the files that must not depend on interruptions."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in ("rows.jsonl", "spec.json")
        for path in sorted(Path(folder).glob(f"cells/*/{name}"))
    }


class KillableRunner:
    """Runs benchmarks one after the other, each in its own process.

    A server process imports everything once and forks for every benchmark, so that starting one is fast.
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

    def run(self, folder, jobs, *, at_file_access=None):
        """Run a benchmark, killed just before an access to a file in the folder; return its exit status.

        The status is negative if a signal ended it.
        """
        specs = [[job.spec.as_data(), job.rounds] for job in jobs]
        print(json.dumps([str(folder), specs, at_file_access]), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


def _serve():
    import torch._dynamo  # slow, and imported by the first step of every optimizer

    torch.set_num_threads(1)
    with fast_runs():
        for line in sys.stdin:
            child = os.fork()
            if child == 0:
                _handle(*json.loads(line))
                os._exit(0)
            os.write(1, f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())


def _handle(folder, specs, at_file_access):
    if at_file_access is not None:
        _kill_at_file_access(at_file_access, folder)
    try:
        jobs = [Job(Spec.from_data(data), rounds) for data, rounds in specs]
        run_locally(jobs, Path(folder), SmallBench(), AT_ONCE, ignore)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def _kill_at_file_access(number, folder):
    count = 0

    def hook(name, arguments):
        nonlocal count
        if name in ("open", "os.mkdir", "os.rename", "os.remove", "os.truncate") and folder in str(arguments[0]):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    _serve()
