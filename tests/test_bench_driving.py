"""The paper's segmentation tables, run on tiny datasets in the official formats."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import scipy.io
import torch

from driftproof.bench.jobs import Job, run_job
from driftproof.bench.local_files import LocalFiles
from driftproof.bench.results import Results, fill_table
from driftproof.bench.runner import RunSettings
from driftproof.bench.store import Store
from driftproof.data import FitHeight
from driftproof.data.scenes import driving
from driftproof.models import MODELS, save_checkpoint
from driftproof.paper import suite
from small_bench import ignore
from test_bench_scenes import NETWORK, small_network
from test_scenes import (
    GTAV_PALETTE,
    all_ids_below,
    random_image,
    save,
    save_deep_color,
    save_palette,
    write_cityscapes,
)

__all__ = ["small_network"]

FRAMES = 3


def write_sets(root):
    """Write a few frames for every split of every dataset; Mapillary's differ in shape."""
    for number in range(FRAMES):
        wide = all_ids_below(34, 32, 56, seed=number)
        for split, folder in (("train", "training"), ("val", "validation")):
            write_cityscapes(root / "cityscapes", wide, split=split, stem=f"ulm_{number:06}_000019")
            save(root / "bdd100k/images/10k" / split / f"{number}.jpg", random_image(32, 56, number))
            save(root / "bdd100k/labels/sem_seg/masks" / split / f"{number}.png", (wide % 19).astype(np.uint8))
            varying = all_ids_below(66, 32, 40 + 16 * number, seed=number)
            save(root / "mapillary" / folder / "images" / f"{number}.jpg", random_image(*varying.shape, number))
            save_palette(root / "mapillary" / folder / "labels" / f"{number}.png", varying, ["808080"] * 66)
        for each in (number + 1, number + 1 + FRAMES):
            save(root / "gtav/images" / f"{each:05}.png", random_image(32, 56, each))
            save_palette(root / "gtav/labels" / f"{each:05}.png", wide, GTAV_PALETTE)
        save(root / "synthia/RGB" / f"{number}.png", random_image(32, 56, number))
        channels = np.stack([all_ids_below(23, 32, 56, seed=number)] * 3, axis=-1)
        save_deep_color(root / "synthia/GT/LABELS" / f"{number}.png", channels)
    ids = {"trainIds": [[1], [2], [3]], "valIds": [[4], [5], [6]], "testIds": [[7]]}
    scipy.io.savemat(root / "gtav/split.mat", {name: np.array(each) for name, each in ids.items()})


@pytest.fixture(scope="module")
def files(small_network, tmp_path_factory):
    """The datasets, read at a fiftieth of the paper's size."""

    def smaller(read, root, *, split, size):
        width = None if size.width is None else size.width // 50
        return read(root, split=split, size=FitHeight(size.height // 50, width=width))

    root = tmp_path_factory.mktemp("roads")
    write_sets(root / "data")
    (root / "weights").mkdir()
    torch.manual_seed(0)
    for trained_on in ("gtav", "cityscapes"):
        path = root / "weights" / f"{NETWORK}_{trained_on}.safetensors"
        save_checkpoint(path, MODELS[NETWORK].build(19), {"arch": NETWORK})
    with pytest.MonkeyPatch.context() as patch:
        for name, read in list(driving._READERS.items()):
            patch.setitem(driving._READERS, name, partial(smaller, read))
        yield LocalFiles(root / "data", root / "weights")


@pytest.mark.parametrize(
    ("name", "methods", "rounds"),
    [
        ("table3", ("bn_adapt", "swr+crowd"), 1),
        ("s1", ("tent",), 1),
        ("s3b", ("cotta",), 1),
        ("table4", ("tent+crowd",), 2),
    ],
)
def test_tables_fill_from_incomplete_batches_and_mixed_frame_sizes(files, tmp_path, name, methods, rounds):
    specs = [spec for spec in suite(name).specs() if spec.method in methods]
    for spec in specs:
        run_job(Job(spec, rounds=rounds), tmp_path, files, RunSettings(), ignore)
        rows = Store(tmp_path).run(spec).rows
        assert [row["domain"] for row in rows] == [*spec.domains] * rounds
        assert all((row["batches"], row["samples"], row["skipped"]) == (2, FRAMES, 0) for row in rows)
        assert all(0 <= row["mean_iou"] <= 100 and row["mean_iou@100"] == row["mean_iou"] for row in rows)
    (table,) = suite(name).tables
    table = dataclasses.replace(table, entries=tuple(entry for entry in table.entries if entry.specs[0] in specs))
    values = fill_table(Results(tmp_path), table).values
    assert all(value.ours is not None for value in values.values())
