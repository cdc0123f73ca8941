"""A tiny benchmark that runs in milliseconds, and what a killed process leaves of it."""

import os
import time
import zlib
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

import driftproof as dp
from driftproof.bench.jobs import Job
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


def random_images(name, count=6, side=8, kind=ArraySet):
    """Return images determined by the name, the same in every process."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    pixels = torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
    return kind(pixels, torch.arange(count) % CLASSES, name=name)


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
        closed = [Domain(name, random_images(f"closed {name}", kind=WaitingImages)) for name in spec.domains]
        if spec.method in self.waiting:
            closed[-1].images.path = self.signals / "go"
        if spec.unknown is None:
            return Continual(closed, **settings)
        return OpenSet(closed, [Domain(name, random_images(f"unknown {name}")) for name in spec.domains], **settings)

    def source(self, spec, device):
        images = random_images("source", count=20)
        return [(images.batch(range(20)).float().to(device) / 255, images.labels.to(device))]

    def fingerprints(self, spec, progress=None):
        return {"images": "random"}


class WaitingImages(ArraySet):
    """Images that cannot be read until a file exists, except single images, which streams read for their size."""

    path = Path("/")

    def batch(self, indices):
        deadline = time.monotonic() + 120
        while len(indices) > 1 and not self.path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return super().batch(indices)


def spec_of(method, *, domains=DOMAINS):
    unknown = "unknown" if METHODS.get(method) == "open" else None
    return Spec(method, "random", "tiny", unknown, domains=domains, batch_size=6, code=hash_sources(method))


def small_jobs(rounds=2, domains=DOMAINS, methods=METHODS):
    return [Job(spec_of(method, domains=domains), rounds) for method in methods]


def ignore(event):
    """Progress callback that does nothing."""


def contents(folder):
    """Return the files that must not depend on interruptions."""
    return {name: data for name, data in files(folder).items() if name.endswith(("/rows.jsonl", "/spec.json"))}


@contextmanager
def crash_points(folder):
    """Record what a process leaves in a folder if it is killed just before each file operation."""
    found = []

    def recording(operation):
        def record(*arguments, **keywords):
            found.append(files(folder))
            return operation(*arguments, **keywords)

        return record

    with ExitStack() as patches:
        for name in ("write_text", "write_bytes", "replace", "unlink", "mkdir"):
            patches.enter_context(mock.patch.object(Path, name, recording(getattr(Path, name))))
        yield found
    found.append(files(folder))


def files(folder):
    """Return the content of every file in a folder, by its path there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def restore(folder, content):
    """Make a folder of what `files` returned."""
    folder.mkdir()
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder
