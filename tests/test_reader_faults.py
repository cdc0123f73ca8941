"""Readers on hostile and special files: named errors only, in bounded memory and time. `test_fuzz.py` damages files."""

import os
import random
import struct
import tracemalloc
import zipfile
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from driftproof import data
from driftproof.data.mat_file import read_mat
from driftproof.errors import ConfigurationError, DriftproofError, InputError
from driftproof.models import read_checkpoint, save_checkpoint
from fuzz_readers import mutate


def fuzz(path, seeds, read, count, *, named=None):
    """Read mutations of the seeds; return how many were refused, all with errors of driftproof."""
    refusals = []
    for index in range(count):
        path.write_bytes(mutate(seeds[index % len(seeds)], random.Random(index)))
        try:
            read()
        except DriftproofError as error:
            refusals.append(str(error))
    assert all((named or path.name) in refusal for refusal in refusals)
    return len(refusals)


@pytest.fixture
def traced():
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


# MATLAB files


def mat_files(path):
    content = {"X": np.ones((32, 32, 3, 1), np.uint8), "y": np.ones((1, 1), np.uint8)}
    seeds = []
    for compressed in (False, True):
        scipy.io.savemat(path, content, do_compression=compressed)
        seeds.append(path.read_bytes())
    return seeds


def test_mat_reader_agrees_with_scipy(tmp_path):
    path = tmp_path / "arrays.mat"
    rng = np.random.default_rng(0)
    for compressed in (False, True):
        written = {
            kind: rng.integers(0, 100, shape).astype(kind)
            for kind, shape in {"uint8": (3, 5), "int16": (2, 2, 2), "float64": (1, 7), "uint64": (0, 3)}.items()
        }
        scipy.io.savemat(path, {"text": "left out", **written}, do_compression=compressed)
        read = read_mat(path, written)
        assert read.keys() == written.keys()
        for name, array in scipy.io.loadmat(path, variable_names=list(written)).items():
            if name in written:
                np.testing.assert_array_equal(read[name], array)


def test_mat_file_that_inflates_without_end_stays_small(tmp_path, traced):
    path = tmp_path / "test_32x32.mat"
    plain = mat_files(path)[0]
    bomb = b"\0" * (1 << 24)
    matrix = bytearray(plain[128:192] + bomb)
    matrix[4:8] = len(matrix).to_bytes(4, "little")
    matrix[60:64] = (1 << 24).to_bytes(4, "little")
    packed = zlib.compress(bytes(matrix))
    del bomb, matrix
    path.write_bytes(plain[:128] + (15).to_bytes(4, "little") + len(packed).to_bytes(4, "little") + packed)
    before = traced()
    with pytest.raises(InputError, match="at most 24,576 are read"):
        data.svhn(tmp_path)
    assert traced() - before < 1 << 20


def test_mat_variables_of_other_kinds_are_named(tmp_path):
    path = tmp_path / "test_32x32.mat"
    for wrong, reason in ((np.ones((1, 1), complex), "'y' is no array of real numbers"), ("text", "'y' is no array")):
        scipy.io.savemat(path, {"X": np.ones((32, 32, 3, 1), np.uint8), "y": wrong})
        with pytest.raises(InputError, match=reason):
            data.svhn(tmp_path)


# Pickles


@pytest.fixture
def cifar(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    return tmp_path / "cifar-10-batches-py" / "test_batch"


def doubled_tuples(count):
    """A dictionary whose key is a tuple of twice a tuple of twice …, so that its hash never ends."""
    return b"\x80\x02}K\x01\x85" + b"q\x00h\x00\x86" * count + b"K\x01s."


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x02}r\xff\xff\xff\x1f.",  # a memo of 512 million entries
        b"\x80\x04B\xff\xff\xff\xff.",  # 4 GiB of bytes
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f}.",
        doubled_tuples(64),
        b"\x80\x02c_codecs\nencode\nX\x40\x42\x0f\x00" + b"a" * 1_000_000 + b"\x85q\x00"
        b"c_codecs\nencode\nh\x00R" * 1000 + b"\x85.",  # a text encoded again and again
    ],
)
def test_pickles_that_ask_for_much_are_refused_in_little_memory(cifar, traced, program):
    cifar.write_bytes(program)
    before = traced()
    with pytest.raises(InputError, match="test_batch"):
        data.cifar10(cifar.parent)
    assert traced() - before < (1 << 20) + 20 * len(program)


def test_pickle_of_too_many_opcodes_is_refused(cifar, monkeypatch):
    monkeypatch.setattr("driftproof.data.plain_pickle._MAX_OPCODES", 1000)
    cifar.write_bytes(b"\x80\x02" + b"]" * 1000 + b".")
    with pytest.raises(InputError, match="more than 1,000 opcodes"):
        data.cifar10(cifar.parent)


# Arrays


@pytest.fixture
def arrays(tmp_path):
    np.save(tmp_path / "images.npy", np.zeros((2, 4, 4, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.zeros(2, np.int64))
    return tmp_path


@pytest.mark.parametrize(
    "content",
    [
        b"\x93NUMPY\x01\x00\x4e\x00"
        + b"{'descr': '|u1', 'fortran_order': False, 'shape': (4294967296, 99999, 4, 3)}\n",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b"{",
        b"PK\x05\x06" + b"\0" * 18,  # an empty .npz
    ],
)
def test_arrays_larger_than_their_file_are_refused(arrays, traced, content):
    (arrays / "images.npy").write_bytes(content)
    before = traced()
    with pytest.raises(InputError, match=r"images\.npy to be a complete \.npy file"):
        data.array_folder(arrays)
    assert traced() - before < 1 << 20


def test_arrays_of_objects_and_labels_beyond_64_bits_are_refused(arrays):
    np.save(arrays / "labels.npy", np.array([0, 2**63], np.uint64))
    with pytest.raises(InputError, match="labels"):
        data.array_folder(arrays)
    np.save(arrays / "labels.npy", np.array([{}, {}]), allow_pickle=True)
    with pytest.raises(InputError, match=r"labels\.npy .* object"):
        data.array_folder(arrays)


# Images


def bomb(path, height, width):
    """Write a PNG of zeros; it is a thousandth of the length of its pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" * ((width + 1) * height), 9)
    chunks = [b"\x89PNG\r\n\x1a\n"]
    for name, content in ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")):
        chunks += [len(content).to_bytes(4, "big"), name, content, zlib.crc32(name + content).to_bytes(4, "big")]
    path.write_bytes(b"".join(chunks))


def test_images_of_too_many_pixels_are_refused_and_the_limit_can_be_raised(tmp_path, monkeypatch):
    path = tmp_path / "bomb.png"
    bomb(path, 7000, 6000)
    assert path.stat().st_size < 50_000
    readers = [lambda: data.FileSet([path], size=(8, 8)).batch([0]), lambda: data.frames(tmp_path).read(0)]
    for read in readers:
        with pytest.raises(InputError, match=r"bomb\.png to have at most 36,000,000 pixels, but it has 7000×6000"):
            read()
    monkeypatch.setattr("driftproof.data.open_image.MAX_PIXELS", 50)
    bomb(path, 10, 10)
    with pytest.raises(InputError, match="at most 50 pixels"):
        data.FileSet([path], size=(8, 8)).batch([0])
    assert data.FileSet([path], size=(8, 8), max_pixels=100).batch([0]).shape == (1, 3, 8, 8)
    monkeypatch.setenv("DRIFTPROOF_MAX_PIXELS", "100")
    assert data.FileSet([path], size=(8, 8)).batch([0]).shape == (1, 3, 8, 8)
    monkeypatch.setenv("DRIFTPROOF_MAX_PIXELS", "many")
    with pytest.raises(ConfigurationError, match="DRIFTPROOF_MAX_PIXELS"):
        data.FileSet([path]).batch([0])
    with pytest.raises(ConfigurationError, match="max_pixels"):
        data.FileSet([path], max_pixels=0)


def test_narrow_images_do_not_grow_beyond_the_limit(tmp_path):
    path = tmp_path / "narrow.png"
    bomb(path, 1, 1_000_000)
    for read in (
        lambda: data.FileSet([path], size=data.ResizeShorterSide()).batch([0]),
        lambda: data.frames(tmp_path, size=data.FitHeight(512, width=512)).read(0),
    ):
        with pytest.raises(InputError, match=r"narrow\.png to have at most"):
            read()


def test_formats_that_start_other_programs_are_not_opened(tmp_path):
    path = tmp_path / "image.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path, format="EPS")
    with pytest.raises(InputError, match=r"image\.png to be an image"):
        data.FileSet([path]).batch([0])


# Weights


@pytest.fixture
def weights(tmp_path):
    model, path = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)), tmp_path / "weights.pt"
    seeds = []
    for zipped in (True, False):
        torch.save(model.state_dict(), path, _use_new_zipfile_serialization=zipped)
        seeds.append(path.read_bytes())
    save_checkpoint(path, model, {"epochs": 1})
    return model, path, [*seeds, path.read_bytes()]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1).expand(1 << 40),
        torch.zeros(2).to_sparse(),
        torch.zeros(2, device="meta"),
        torch.zeros(2, dtype=torch.complex64),
    ],
    ids=["expanded", "sparse", "meta", "complex"],
)
@pytest.mark.filterwarnings("ignore")
def test_weights_that_are_no_plain_tensors_are_refused(tmp_path, tensor):
    path = tmp_path / "weights.pt"
    torch.save({"weight": tensor}, path)
    with pytest.raises(InputError, match=r"weights\.pt to hold weights, but"):
        read_checkpoint(path)


def test_weights_that_ask_for_more_than_their_file_holds_are_refused(weights):
    _, path, (zipped, legacy, _) = weights
    path.write_bytes(legacy.replace(b"K\x06", b"\x8a\x05" + (1 << 36).to_bytes(5, "little"), 1))
    with pytest.raises(InputError, match=r"a storage of 68,719,476,736 numbers"):
        read_checkpoint(path)
    with zipfile.ZipFile(BytesIO(zipped)) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in source.namelist():
            packed.writestr(name, source.read(name) + b"\0" * (1 << 16 if name.endswith("data/0") else 0))
    with pytest.raises(InputError, match="longer than the file"):
        read_checkpoint(path)


# Files of other kinds


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("test_32x32.mat", data.svhn),
        ("cifar-10-batches-py/test_batch", data.cifar10),
        ("images.npy", data.array_folder),
        ("frame.png", lambda root: data.FileSet([root / "frame.png"]).batch([0])),
        ("frame.png", lambda root: data.frames(root).read(0)),
        ("weights.pt", lambda root: read_checkpoint(root / "weights.pt")),
    ],
)
def test_named_pipes_are_refused_without_waiting(tmp_path, name, read):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=rf"{Path(name).name} to be a regular file, but it is a named pipe"):
        read(tmp_path)
