"""Damage state files at random and check that each is refused with a named error, or loads and goes on.

`python tests/fuzz_states.py --inputs 100000` runs long; the tests run a few thousand inputs.
"""

import argparse
import copy
import functools
import hashlib
import json
import math
import operator
import random
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load, save

import driftproof as dp
from networks import NORM_NETWORKS, randomize

JSON_VALUES = (None, True, False, -1, 0, 1, 2**63, 10**30, 1.5, math.nan, math.inf, "", "text", [], {}, [[0, 1]])
WORDS = (0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)
MARK = b'"sha256":"'
BLANK = b"0" * 64
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def make_adapter():
    """A small adapter with teacher, buffers, running statistics, optimizer state and accumulated gradients."""
    torch.manual_seed(0)
    construct, shape = NORM_NETWORKS["batch_norm_1d"]
    return dp.Adapter(
        randomize(construct(), shape),
        scope=dp.scopes.norm_affine(),
        statistics=dp.statistics.Blend(0.5, momentum=0.3),
        loss=dp.losses.Entropy(),
        select=dp.NonRedundant(2.0),
        optimizer=partial(torch.optim.Adam, lr=1e-2),
        accumulate=2,
        memory=dp.memories.LatestImages(8),
        teacher=dp.EMA(0.9),
        after=dp.after.ResetWhen(),
    )


def sign(content):
    """Put the right checksum into a file."""
    start = content.find(MARK) + len(MARK)
    blank = content[:start] + BLANK + content[start + 64 :]
    return blank[:start] + hashlib.sha256(blank).hexdigest().encode() + blank[start + 64 :]


def pack(state):
    """A state as the bytes of a file with the right checksum."""
    return sign(save(state, metadata={"sha256": BLANK.decode()}))


def encode_meta(meta):
    """A description with the right digest."""
    meta = {key: value for key, value in meta.items() if key != "digest"}
    text = json.dumps(meta, sort_keys=True).encode()
    digest = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
    content = json.dumps(meta | {"digest": digest}).encode()
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


# --- damage of the bytes ----------------------------------------------------------------------------------------------


def flip_bit(content, rng):
    place = rng.randrange(len(content)) if rng.random() < 0.5 else rng.randrange(min(4000, len(content)))
    changed = bytearray(content)
    changed[place] ^= 1 << rng.randrange(8)
    return bytes(changed)


def overwrite(content, rng):
    start, size = rng.randrange(len(content)), rng.randrange(1, 64)
    return content[:start] + rng.randbytes(size) + content[start + size :]


def truncate(content, rng):
    return content[: rng.randrange(len(content))]


def extend(content, rng):
    return content + rng.randbytes(rng.randrange(1, 64))


def cut_out(content, rng):
    start = rng.randrange(len(content))
    return content[:start] + content[start + rng.randrange(1, 64) :]


def change_length(content, rng):
    return rng.choice(WORDS).to_bytes(8, "little") + content[8:]


def change_header(content, rng):
    """Ask for another dtype, shape or place, with the right checksum of the changed file."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    name = rng.choice([name for name in header if name != "__metadata__"])
    key = rng.choice(["dtype", "shape", "data_offsets"])
    numbers = [*WORDS, -1]
    values = ["F64", "BOOL", "F8_E5M2", "X"] if key == "dtype" else [[rng.choice(numbers) for _ in range(2)], [], None]
    header[name][key] = rng.choice(values)
    text = json.dumps(header, separators=(",", ":")).encode()
    return sign(len(text).to_bytes(8, "little") + text + content[8 + length :])


# --- damage of what is in it, with the right checksum -----------------------------------------------------------------


def change_value(content, rng):
    state = load(content)
    name = rng.choice([name for name, tensor in state.items() if tensor.numel() and name != "meta"])
    flat = state[name].reshape(-1)
    if flat.is_floating_point():
        flat[rng.randrange(len(flat))] = rng.choice([math.nan, math.inf, -math.inf])
        return pack(state)
    state[name] = state[name].to(rng.choice([torch.float64, torch.int64, torch.bool, torch.complex64]))
    return pack(state)


def change_tensor(content, rng):
    """Another shape, dtype or name, also in the description."""
    state = load(content)
    meta = json.loads(bytes(state["meta"].tolist()))
    name = rng.choice([name for name in state if name != "meta"])
    tensor = state.pop(name)
    del meta["tensors"][name]
    kind = rng.randrange(4)
    if kind == 0:
        tensor = torch.cat([tensor.reshape(-1)] * 2)
    elif kind == 1:
        tensor = tensor.to(rng.choice([torch.float64, torch.int64, torch.bool, torch.complex64]))
    elif kind == 2:
        name = f"{name}x"
    if kind < 3:
        state[name] = tensor
        meta["tensors"][name] = [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
    return pack(state | {"meta": encode_meta(meta)})


def change_meta(content, rng):
    """Another value somewhere in the description."""
    state = load(content)
    meta = json.loads(bytes(state["meta"].tolist()))
    node, path = meta, []
    while isinstance(node, dict | list) and len(node) and (not path or rng.random() < 0.8):
        path.append(rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node)))
        node = node[path[-1]]
    parent = functools.reduce(operator.getitem, path[:-1], meta)
    if rng.random() < 0.2:
        del parent[path[-1]]
    else:
        parent[path[-1]] = copy.deepcopy(rng.choice(JSON_VALUES))
    return pack(state | {"meta": encode_meta(meta)})


BLIND = (flip_bit, overwrite, truncate, extend, cut_out, change_length)
INFORMED = (change_header, change_value, change_tensor, change_meta)
"""These know the format and put the right checksum into what they change, as nobody does by accident."""


# --- the loop ---------------------------------------------------------------------------------------------------------


class Fuzz:
    """An adapter, a good file of it, and the damage done so far.

    Attributes:
        counts: How many inputs were refused and how many loaded, by kind of damage.
        failures: What went wrong, with the seed of its input.
    """

    def __init__(self, folder):
        self.path, self.adapter = Path(folder, "state.safetensors"), make_adapter()
        self.images = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
        for _ in range(3):
            self.adapter(self.images)
        self.adapter.save(self.path)
        self.good = self.path.read_bytes()
        self.adapter(self.images)
        self.state = self.adapter.state_dict()
        self.counts, self.failures = {}, []

    def try_input(self, damage, seed):
        """Damage the file, load it, and see that it is refused whole or goes on."""
        content = damage(self.good, random.Random(seed))
        if content == self.good:
            return
        self.path.write_bytes(content)
        label = f"{damage.__name__}, seed {seed}"
        refused, loaded = self.counts.get(damage.__name__, (0, 0))
        try:
            self.adapter.load(self.path)
        except dp.errors.StateError:
            self.counts[damage.__name__] = refused + 1, loaded
            if not self.is_unchanged():
                self.failures.append(f"{label}: refused, but the adapter changed")
                self.adapter.load_state_dict(self.state)
            return
        except Exception as error:
            self.failures.append(f"{label}: {error!r}")
            return
        self.counts[damage.__name__] = refused, loaded + 1
        if damage in BLIND:
            self.failures.append(f"{label}: loaded")
        try:
            self.adapter(self.images)
        except dp.errors.DriftproofError:
            pass  # a value that only a batch shows to be wrong, by name
        except Exception as error:
            self.failures.append(f"{label}: loaded, and the next batch raised {error!r}")
        self.adapter.load_state_dict(self.state)

    def is_unchanged(self):
        """Whether the adapter's tensors and counters are those from before, bit for bit."""
        now = (slot for slot in self.adapter.state.slots() if slot.tensor is not None)
        same = all(torch.equal(as_bits(slot.tensor), as_bits(self.state[slot.name])) for slot in now)
        counters = ("index", "num_steps", "accumulated_batches", "paused")
        return same and [int(getattr(self.adapter.state, name)) for name in counters] == [4, 2, 0, 0]


def as_bits(tensor):
    """The bits of a tensor as integers, so that NaN equals NaN."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.dtype != torch.bool else flat


def main():
    """Run so many inputs and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        fuzz = Fuzz(folder)
        for number in range(options.inputs):
            kinds = BLIND if number % 2 else INFORMED
            fuzz.try_input(kinds[number // 2 % len(kinds)], options.seed * 10**9 + number)
    for name, (refused, loaded) in sorted(fuzz.counts.items()):
        print(f"{name:16} refused {refused:8,}  loaded {loaded:8,}")  # noqa: T201  # a script
    print(f"{options.inputs:,} inputs, {len(fuzz.failures)} failures, {time.monotonic() - started:.0f} s")  # noqa: T201
    raise SystemExit("\n".join(fuzz.failures[:50]) or 0)


if __name__ == "__main__":
    main()
