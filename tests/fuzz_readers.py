"""Read damaged files with every reader of the library, and check that each is read or refused by name.

`python tests/fuzz_readers.py --inputs 100000 --out results/fuzz` runs long and writes its counts; the tests read a few
hundred files of each kind. `--readers` repeats some of the readers, and keeps the counts of the others. A refusal is an
error of driftproof that names the file. Anything else is a failure: another error, a read that runs a program, opens a
connection or writes elsewhere, takes more than ten seconds, or more than a gigabyte of memory.
"""

import argparse
import io
import json
import os
import pickle
import pickletools
import random
import resource
import shutil
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import scipy.io
import torch
from PIL import Image

import driftproof as dp
from driftproof import data
from driftproof.bench import Benchmark, load
from driftproof.bench.archive import write_archive
from driftproof.bench.benchmark import read_toml
from driftproof.bench.environment import hardware
from driftproof.bench.store import Store
from driftproof.cli.class_names import read_class_names
from driftproof.cli.labels import read_labels
from driftproof.cli.presets import load_preset
from driftproof.cli.run_folder import Plan, RunFolder
from driftproof.cli.snapshots import Checkpoint
from driftproof.data.unpacking import unpack
from driftproof.errors import DriftproofError, StateError
from driftproof.files import atomic_write
from driftproof.models import load_checkpoint, save_checkpoint
from driftproof.training import Recipe, Trainer
from fuzz_states import BLIND, IN_MEMORY, INFORMED, Fuzz
from rows_on_disk import visits_of, write_rows
from test_frames import SPECS

SLOWEST, LARGEST = 10.0, 1 << 30
TELLING = (0, 0xFF, 0x7F, 0x80)
STATE_WEIGHT = 100
RUN_FILES = ("plan.json", "checkpoint.json", "batches.jsonl", "state-00000001.guards")
PROGRAMS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "subprocess.Popen", "pty.spawn")
EVENTS = (*PROGRAMS, "socket.connect", "socket.bind", "pickle.find_class", "ctypes.dlopen")


def mutate(content, rng):
    """Flip bits, overwrite bytes with telling values, cut, or remove a stretch."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        if not changed:
            break
        at, kind = rng.randrange(len(changed)), rng.randrange(5)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at] = rng.choice(TELLING)
        elif kind == 2:
            del changed[at:]
        elif kind == 3:
            changed[at : at + 4] = rng.randbytes(4)
        else:
            del changed[at : at + rng.randint(1, 8)]
    return bytes(changed)


@dataclass
class Reader:
    """One kind of file, and what reads it.

    Attributes:
        path: The file that is damaged.
        seeds: Good files.
        read: Reads it.
        named: What a refusal must name; None is the file's name.
        weight: How many of a thousand inputs in all are for this reader.
        damage: Makes a damaged file from a good one and a random generator.
    """

    path: Path
    seeds: list
    read: Callable
    named: str | None = None
    weight: int = 50
    damage: Callable = mutate


@dataclass
class Count:
    """What became of the inputs of one reader."""

    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    failures: list = field(default_factory=list)


# --- the readers ------------------------------------------------------------------------------------------------------


def matlab(folder):
    path = folder / "test_32x32.mat"
    content, seeds = {"X": np.ones((32, 32, 3, 1), np.uint8), "y": np.ones((1, 1), np.uint8)}, []
    for compressed in (False, True):
        scipy.io.savemat(path, content, do_compression=compressed)
        seeds.append(path.read_bytes())
    plain, packed = seeds
    # Most of a plain file is pixels; its first bytes are what a reader interprets.
    return Reader(path, [plain[: 128 + 64] + plain[-120:], packed, plain], lambda: data.svhn(folder), weight=150)


def cifar_batches(folder):
    (folder / "cifar-10-batches-py").mkdir()
    content = {b"data": np.zeros((1, 3072), np.uint8), b"labels": [1], b"filenames": [b"cat.png"]}
    seeds = [pickle.dumps(content, protocol) for protocol in (2, 4)]
    path = folder / "cifar-10-batches-py" / "test_batch"
    return Reader(path, seeds, lambda: data.cifar10(path.parent), weight=120)


def cifar_100_batches(folder):
    (folder / "cifar-100-python").mkdir()
    content = {b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": [1], b"coarse_labels": [0]}
    path = folder / "cifar-100-python" / "test"
    return Reader(path, [pickle.dumps(content, 2)], lambda: data.cifar100(path.parent), weight=40)


def pickle_programs(folder):
    reader = cifar_batches(folder)
    codes = [opcode.code.encode("latin1") for opcode in pickletools.opcodes]
    reader.damage = lambda _, rng: b"\x80\x04}" + b"".join(rng.choices(codes, k=12)) + rng.randbytes(4) + b"."
    reader.weight = 80
    return reader


def array_images(folder, name="images.npy"):
    np.save(folder / "images.npy", np.zeros((2, 4, 4, 3), np.uint8))
    np.save(folder / "labels.npy", np.zeros(2, np.int64))
    seeds = [(folder / name).read_bytes()]
    return Reader(folder / name, seeds, lambda: data.array_folder(folder), folder.name, 70)


def array_labels(folder):
    return array_images(folder, "labels.npy")


def image_reader(suffix):
    def make(folder):
        path = folder / f"image.{suffix}"
        Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(path)
        return Reader(path, [path.read_bytes()], lambda: data.FileSet([path], workers=1).batch([0]), weight=15)

    return make


def label_maps(folder):
    """Label maps of scenes are images as well, read at their own size."""
    (folder / "images").mkdir()
    (folder / "labels").mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "images" / "frame.png")
    path = folder / "images" / "frame.png"
    return Reader(path, [path.read_bytes()], lambda: data.frames(folder / "images").read(0), weight=15)


def checkpoints(folder):
    model, path = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)), folder / "weights.pt"
    seeds = []
    for zipped in (True, False):
        torch.save(model.state_dict(), path, _use_new_zipfile_serialization=zipped)
        seeds.append(path.read_bytes())
    save_checkpoint(path, model, {"epochs": 1})
    return Reader(path, [*seeds, path.read_bytes()], lambda: load_checkpoint(model, path), weight=100)


def training_checkpoints(folder):
    torch.manual_seed(0)
    recipe = Recipe(epochs=2, batch_size=4, lr=0.1)
    images, labels = torch.zeros(8, 3, 32, 32, dtype=torch.uint8), torch.arange(8) % 2
    path = folder / "training.pt"

    def trainer():
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))
        return Trainer(model, images, labels, recipe, device="cpu")

    trainer().run(checkpoint=path)
    reading = trainer()

    def read():
        content = reading._read_checkpoint(path)
        reading._resume(content, path)

    return Reader(path, [path.read_bytes()], read, "xpected", weight=20)


def results(name):
    def make(folder):
        spec, store = SPECS[0], folder / "store"
        measured = {"batches": 3, "error": 12.5, "health": "healthy", "histogram/x": [1, 2], "counts": {"error": 7}}
        rows = [{"round": round, "domain": domain, **measured} for round, domain in visits_of(spec, 2, 0)]
        conditions = [{"seconds": 0.5, "peak_memory": 1 << 20, "device": "cpu", "threads": 2} for _ in rows]
        write_rows(store, spec, rows, conditions, {"scope": "norm_affine()"})
        path = Store(store).run(spec).folder / name
        return Reader(path, [path.read_bytes()], lambda: load(store), "xpected", weight=20)

    return make


def archived_results(name):
    def make(folder):
        results("rows.jsonl")(folder)
        archive = folder / "archive"
        write_archive([folder / "store"], archive)
        path = archive / f"{name}.parquet"
        return Reader(path, [path.read_bytes()], lambda: load(archive), "archive", weight=12)

    return make


SUITE = """
methods = ["tent", "tent+crowd"]
model = "wrn40_2"
weights = "w.pt"
images = "cifar10-c"
severity = 5
batch_size = 200
rounds = 2
seeds = [0]
[options]
lr = 0.001
"""


def suites(folder):
    path = folder / "suite.toml"
    read = lambda: Benchmark.from_data(read_toml(path), str(path))  # noqa: E731
    return Reader(path, [SUITE.encode()], read, "xpected", weight=40)


def class_names(folder):
    path = folder / "classes.json"
    seeds = [b'{"id2label": {"0": "cat", "1": "dog"}}', b'["cat", ["n01", "dog"]]', b"cat\ndog\n"]
    return Reader(path, seeds, lambda: read_class_names(path), weight=30)


def labels(folder):
    path = folder / "labels.csv"
    images = [folder / f"{index}.png" for index in range(3)]
    seeds = [b"0.png,cat\n1.png,dog\n2.png,\n", b'"0.png",cat\r\n1.png,"a,b"\r\n', b"0.png,1\n2.png,-1\n"]
    return Reader(path, seeds, lambda: read_labels(path, images, ("cat", "dog")), weight=30)


def presets(folder):
    path = folder / "config.json"
    hugging_face = {"size": {"height": 224, "width": 224}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    timm = {"input_size": [3, 224, 224], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 0.9}
    seeds = [json.dumps(content).encode() for content in (hugging_face, timm, {"pretrained_cfg": timm})]
    return Reader(path, seeds, lambda: load_preset(str(path)), weight=30)


def downloads(folder):
    """Archives as they are unpacked after a download."""
    tarred, zipped, out = io.BytesIO(), io.BytesIO(), folder / "out"
    for mode in ("w", "w:gz"):
        with tarfile.open(fileobj=tarred, mode=mode) as archive:
            entry = tarfile.TarInfo("images/a.txt")
            entry.size = 5
            archive.addfile(entry, io.BytesIO(b"hello"))
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images/a.txt", "hello" * 20)

    def read():
        shutil.rmtree(out, ignore_errors=True)
        unpack(folder / "archive", out)

    return Reader(folder / "archive", [tarred.getvalue(), zipped.getvalue()], read, weight=40)


def run_files(name):
    """Files that an interrupted `driftproof adapt` resumes from."""

    def make(folder):
        layers = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        run, adapter = RunFolder(folder / "rows.csv"), dp.adapt(torch.nn.Sequential(*layers))
        with run.locked():
            run.begin(Plan({"--batch-size": "2"}, [Path("a.png"), Path("b.png")], [1, 0]))
            run.save(adapter, Checkpoint(1, 2, 0, {"seen": 2}), run.rows)
            run.journal.append(2, ["c.png"])
            run.journal.append(None, ["d.png"])
        path = run.path / name

        def read():
            plan, (checkpoint, damaged) = run.read_plan({"--batch-size": "2"}), run.snapshots.load(adapter)
            assert plan.order == [1, 0]
            assert checkpoint.images == 2
            batches, waiting = run.journal.read()  # a line without its end was not written whole
            assert batches in ([(2, ["c.png"])], [])
            assert waiting in (["d.png"], [])
            if damaged:
                raise StateError(f"{name}: an older snapshot is whole")

        return Reader(path, [path.read_bytes()], read, weight=10)

    return make


READERS = {
    "MATLAB files": matlab,
    "CIFAR-10 batches": cifar_batches,
    "CIFAR-100 batches": cifar_100_batches,
    "pickle opcodes in any order": pickle_programs,
    "arrays of images": array_images,
    "arrays of labels": array_labels,
    **{f"images, {suffix}": image_reader(suffix) for suffix in ("png", "jpg", "webp", "tif", "gif", "bmp")},
    "frames of scenes": label_maps,
    "weights": checkpoints,
    "training checkpoints": training_checkpoints,
    **{f"results, {name}": results(name) for name in ("spec.json", "rows.jsonl", "conditions.jsonl")},
    **{f"archives, {name}": archived_results(name) for name in ("runs", "measures", "histograms")},
    "suites": suites,
    "class names": class_names,
    "labels": labels,
    "presets": presets,
    "downloaded archives": downloads,
    **{f"runs, {name}": run_files(name) for name in RUN_FILES},
}


# --- what a read must not do ------------------------------------------------------------------------------------------


class Guarded:
    """Notes what a read does besides reading; audit hooks stay for good, so there is one."""

    events: list | None = None
    allowed: tuple = ()

    @classmethod
    def install(cls):
        if not hasattr(cls, "_installed"):
            cls._installed = True
            sys.addaudithook(cls.audit)

    @classmethod
    def audit(cls, event, arguments):
        if cls.events is None:
            return
        if event == "open":
            path, mode, flags = (*arguments, None, None)[:3]
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and isinstance(path, str) and not path.startswith(cls.allowed):
                cls.events.append(f"open {path} {mode}")
        elif event.startswith(EVENTS) and not any(str(argument).startswith(cls.allowed) for argument in arguments):
            cls.events.append(f"{event} {arguments!r}"[:200])


def fuzz(name, inputs, *, seed=0, folder):
    """Read so many damaged files with one reader."""
    Guarded.install()
    if name == "state files":
        return fuzz_states(inputs, seed, folder)
    reader, count = READERS[name](folder), Count()
    good = []
    for content in reader.seeds:  # also, what is imported or compiled at first use is not a damaged file's doing
        reader.path.write_bytes(content)
        try:
            reader.read()
            good.append(content)
        except DriftproofError as error:
            refusal = error
    if not good:
        raise AssertionError(f"{name}: no seed can be read: {refusal!r}")
    Guarded.allowed = (str(folder), str(folder.resolve()), "/dev/")
    for number in range(inputs):
        rng = random.Random(f"{name} {seed} {number}")
        reader.path.write_bytes(reader.damage(reader.seeds[number % len(reader.seeds)], rng))
        before, started = peak_memory(), time.perf_counter()
        Guarded.events = events = []
        try:
            reader.read()
        except DriftproofError as error:
            count.refused += 1
            if (reader.named or reader.path.name) not in str(error):
                count.failures.append(f"input {number}: {error!r} does not name the file")
        except Exception as error:
            count.failures.append(f"input {number}: {error!r}"[:500])
        finally:
            Guarded.events = None
        seconds = time.perf_counter() - started
        count.inputs += 1
        count.seconds += seconds
        count.slowest = max(count.slowest, seconds)
        count.failures += [f"input {number}: {event}" for event in events]
        if seconds > SLOWEST:
            count.failures.append(f"input {number}: {seconds:.1f} s")
        if peak_memory() - before > LARGEST:
            count.failures.append(f"input {number}: {peak_memory() - before:,} bytes")
    return count


def fuzz_states(inputs, seed, folder):
    """The same for state files, with damage that knows their format."""
    states, count = Fuzz(folder), Count()
    started = time.perf_counter()
    for number in range(inputs):
        kinds, before = BLIND if number % 2 else INFORMED, time.perf_counter()
        states.try_input(kinds[number // 2 % len(kinds)], seed * 10**9 + number)
        count.slowest = max(count.slowest, time.perf_counter() - before)
    count.inputs, count.seconds = inputs, time.perf_counter() - started
    count.refused, count.failures = sum(refused for refused, _ in states.counts.values()), states.failures
    return count


def peak_memory():
    """The largest memory of this process so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# --- the command ------------------------------------------------------------------------------------------------------


def share_out(inputs):
    """How many inputs each reader gets."""
    weights = dict.fromkeys(READERS, 1) | {"state files": STATE_WEIGHT}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, make) in enumerate(READERS.items()):
            (Path(folder) / str(number)).mkdir()
            weights[name] = make(Path(folder) / str(number)).weight
    total = sum(weights.values())
    return {name: -(-inputs * weight // total) for name, weight in weights.items()}


def format_page(counts, protocol):
    """The counts as Markdown."""
    lines = ["| reader | inputs | refused by name | read | failures | slowest, ms |", "|---|---:|---:|---:|---:|---:|"]
    for name, count in counts.items():
        read = count.inputs - count.refused - len(count.failures)
        cells = (count.inputs, count.refused, read, len(count.failures))
        lines.append(f"| {name} | " + " | ".join(f"{cell:,}" for cell in cells) + f" | {1000 * count.slowest:.0f} |")
    totals = [sum(getattr(count, name) for count in counts.values()) for name in ("inputs", "refused")]
    failures = sum(len(count.failures) for count in counts.values())
    lines.append(f"| all | {totals[0]:,} | {totals[1]:,} | {totals[0] - totals[1] - failures:,} | {failures:,} | |")
    return "\n".join([*lines, "", ", ".join(f"{key} {value}" for key, value in protocol.items()), ""])


def main():
    """Run so many inputs, print what became of them, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--readers", nargs="+", default=[""], help="only readers whose names contain one of these")
    parser.add_argument("--out", type=Path, help="folder for fuzz.json and fuzz.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts = {}
    for name, inputs in share_out(options.inputs).items():
        if any(part in name for part in options.readers):
            with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
                counts[name] = count = fuzz(name, inputs, seed=options.seed, folder=Path(folder))
            text = f"{name}: {count.inputs:,} inputs, {count.refused:,} refused, {len(count.failures)} failures"
            print(text, f"{count.seconds:.0f} s", *count.failures[:3], sep="\n  ", flush=True)  # noqa: T201  # a script
    protocol = {
        "seed": options.seed,
        "largest memory in MiB": peak_memory() >> 20,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "machine": hardware(torch.device("cpu")),
    }
    if options.out is not None and (options.out / "fuzz.json").exists():
        earlier = json.loads((options.out / "fuzz.json").read_text(encoding="utf-8"))
        counts = {name: Count(**count) for name, count in earlier["readers"].items()} | counts
        name = "largest memory in MiB"
        protocol[name] = max(protocol[name], earlier["protocol"][name])
    page = format_page(counts, protocol)
    print(page)  # noqa: T201
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        content = {"protocol": protocol, "readers": {name: vars(count) for name, count in counts.items()}}
        for suffix, text in (("json", json.dumps(content, indent=2) + "\n"), ("md", page)):
            with atomic_write(options.out / f"fuzz.{suffix}") as unfinished:
                unfinished.write_text(text, encoding="utf-8")
    raise SystemExit(int(any(count.failures for count in counts.values())))


if __name__ == "__main__":
    main()
