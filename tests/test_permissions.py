"""Files and folders that may not be read say so, and do not seem to be missing."""

import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from driftproof import data
from driftproof.bench import load
from driftproof.bench.benchmark import read_toml
from driftproof.cli.class_names import read_class_names
from driftproof.cli.labels import read_labels
from driftproof.cli.presets import load_preset
from driftproof.errors import DriftproofError
from driftproof.models import read_checkpoint

NOBODY = 65534


@pytest.fixture
def folder():
    """A folder with a file that nobody may read; a superuser becomes an ordinary user meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        (path / "inner").mkdir()
        write_files(path / "inner")
        for file in path.rglob("*"):
            if file.is_file():
                file.chmod(0)
        is_superuser = os.geteuid() == 0
        if is_superuser:
            os.seteuid(NOBODY)
        try:
            yield path / "inner"
        finally:
            if is_superuser:
                os.seteuid(0)
            (path / "inner").chmod(0o755)


def write_files(folder):
    torch.save({}, folder / "weights.pt")
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "image.png")
    (folder / "cifar-10-batches-py").mkdir()
    (folder / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps({}))
    np.save(folder / "images.npy", np.zeros((2, 4, 4, 3), np.uint8))
    for name in ("test_32x32.mat", "classes.txt", "labels.csv", "config.json", "suite.toml", "runs.parquet"):
        (folder / name).write_text("x")


READERS = {
    "weights": lambda folder: read_checkpoint(folder / "weights.pt"),
    "image": lambda folder: data.FileSet([folder / "image.png"], workers=1).batch([0]),
    "frame": lambda folder: data.frames(folder).read(0),
    "cifar": data.cifar10,
    "arrays": data.array_folder,
    "svhn": data.svhn,
    "class names": lambda folder: read_class_names(folder / "classes.txt"),
    "labels": lambda folder: read_labels(folder / "labels.csv", [folder / "image.png"]),
    "preset": lambda folder: load_preset(str(folder / "config.json")),
    "suite": lambda folder: read_toml(folder / "suite.toml"),
    "archive": load,
}


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs users")
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("denied", ["file", "folder"])
def test_denied_permission_is_named(folder, name, denied):
    if denied == "folder":
        if os.geteuid() == NOBODY and os.getuid() == 0:
            os.seteuid(0)
            folder.chmod(0)
            os.seteuid(NOBODY)
        else:
            folder.chmod(0)
    with pytest.raises((DriftproofError, PermissionError)) as caught:
        READERS[name](folder)
    text = f"{caught.value} {caught.value.__cause__}"
    assert "Permission denied" in text
    assert "No such file" not in text
