"""The driving suites, ours and the paper's, on tiny files in the official formats."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch

from driftproof.bench.jobs import Job, run_job
from driftproof.bench.local_files import LocalFiles
from driftproof.bench.plan import RunFilter, plan_runs
from driftproof.bench.results import Results, fill_table
from driftproof.bench.runner import RunSettings
from driftproof.bench.store import Store
from driftproof.data import FitHeight
from driftproof.data.scenes import camvid, driving
from driftproof.errors import ConfigurationError, InputError
from driftproof.methods import by_name
from driftproof.models import MODELS, DeepLabV3Plus, save_checkpoint
from driftproof.paper import suite
from driftproof.statistics import TTN
from small_bench import ignore
from test_scene_streams import write_camvid

NETWORK = "deeplabv3plus_resnet50"
FRAMES = 3


@pytest.fixture(scope="module")
def small_network():
    """Replace the segmentation network by a tiny one, and shorten TTN's preparation."""
    with pytest.MonkeyPatch.context() as patch:
        build = partial(DeepLabV3Plus, depth=18, width=4)
        patch.setitem(MODELS, NETWORK, dataclasses.replace(MODELS[NETWORK], build=build))
        quick = TTN(momentum=0.1, prior_batches=1, epochs=1, batch_size=4)
        patch.setitem(by_name._STATISTICS, "online ttn", quick)
        yield


@pytest.fixture(scope="module")
def files(small_network, tmp_path_factory):
    root = tmp_path_factory.mktemp("road")
    write_camvid(root / "data" / "CamVid", ("train", "val", "test"), count=3, height=24, width=32)
    (root / "weights").mkdir()
    torch.manual_seed(0)
    path = root / "weights" / f"{NETWORK}_camvid.safetensors"
    save_checkpoint(path, MODELS[NETWORK].build(8), {"arch": NETWORK})
    return LocalFiles(root / "data", root / "weights", use_procedural_frost=True)


def specs_of(name, *wanted):
    return {spec.method: spec for spec in suite(name).specs() if spec.method in wanted}


def test_camvid_run_fills_tables_and_corrupted_frames_have_clean_labels(files, tmp_path):
    specs = specs_of("camvid", "source", "tent+crowd")
    for spec in specs.values():
        run_job(Job(spec, rounds=1), tmp_path, files, RunSettings(), ignore)
    store = Store(tmp_path)
    rows = {method: store.run(spec).rows for method, spec in specs.items()}
    for method in specs:
        assert [row["domain"] for row in rows[method]] == list(specs[method].domains)
        assert all((row["batches"], row["samples"]) == (3, 6) for row in rows[method])
        assert all(0 <= row["mean_iou"] <= 100 and row["skipped"] == 0 for row in rows[method])
    assert rows["tent+crowd"][0]["rejected"] < 1
    assert rows["tent+crowd"][0]["novelty/unknown/auroc"] is not None
    table = fill_table(Results(tmp_path), suite("camvid").tables[0])
    mean = np.mean([row["mean_iou"] for row in rows["source"]])
    assert table.values["source", "Round 1"].ours == pytest.approx(mean)
    assert table.values["ttn", "Round 1"].ours is None
    batches = list(files.stream(specs["source"], 1))
    clean, foggy = batches[0], batches[3]
    assert (clean.domain, foggy.domain) == ("clean", "fog")
    assert torch.equal(clean.labels, foggy.labels)
    assert not torch.equal(clean.images, foggy.images)
    assert len({fact for fact in files.fingerprints(specs["source"]) if fact.startswith("images")}) == 1


def test_preparing_on_test_images_and_unknown_domains_are_refused_before_anything_runs(files, tmp_path):
    on_test = dataclasses.replace(files, prepared_on_test=("camvid-c",))
    with pytest.raises(InputError, match="source images for camvid-c"):
        on_test.source(specs_of("camvid", "ttn")["ttn"], "cpu")
    with pytest.raises(ConfigurationError, match="image set with clean test images, but got 'camvid-c'"):
        plan_runs(suite("camvid"), RunFilter(prepared_on_test=["camvid-c"]))
    spec, stages = dataclasses.replace(specs_of("camvid", "ttn")["ttn"], domains=("clean", "fogg")), []
    with pytest.raises(ConfigurationError, match="Did you mean fog"):
        run_job(Job(spec, rounds=1), tmp_path, files, RunSettings(), lambda event: stages.append(event.stage))
    assert not any("TTN" in stage for stage in stages)


def test_segmentation_costs_use_options_of_each_method(all_sets, tmp_path):
    (spec,) = suite("s4").specs()
    spec = spec.with_options(trials=1, warm_up=0)
    run_job(Job(spec, rounds=1), tmp_path, all_sets, RunSettings(), ignore)
    rows = Store(tmp_path).run(spec).rows
    assert [row["domain"] for row in rows] == ["tent", "swr", "cotta", "tent+crowd"]
    assert all(row["milliseconds"] > 0 and row["memory"] > 0 for row in rows)
    wrong = spec.with_options(**{"eata.lr": 1.0})
    with pytest.raises(ConfigurationError, match="option of costs"):
        run_job(Job(wrong, rounds=1), tmp_path, all_sets, RunSettings(), ignore)


@pytest.fixture(scope="module")
def all_sets(small_network, tmp_path_factory):
    """Small frames in the place of every dataset, whose official files `test_scenes` reads; Mapillary's vary."""

    def read(name, root, *, split, size):
        width = None if size.width is None else size.width // 50
        return camvid(root / name, split="train+val+test", size=FitHeight(size.height // 50, width=width))

    root = tmp_path_factory.mktemp("roads")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(driving._READERS):
            for number, split in enumerate(("train", "val", "test")):
                width = 40 + 16 * (number if name == "mapillary" else 1)
                write_camvid(root / "data" / name, (split,), count=1, height=32, width=width, seed=number)
            patch.setitem(driving._READERS, name, partial(read, name))
        (root / "weights").mkdir()
        torch.manual_seed(0)
        for trained_on in ("gtav", "cityscapes"):
            path = root / "weights" / f"{NETWORK}_{trained_on}.safetensors"
            save_checkpoint(path, MODELS[NETWORK].build(19), {"arch": NETWORK})
        yield LocalFiles(root / "data", root / "weights")


@pytest.mark.parametrize(
    ("name", "methods", "rounds"),
    [
        ("table3", ("bn_adapt", "swr+crowd"), 1),
        pytest.param("s3b", ("cotta",), 1, marks=pytest.mark.slow),
        pytest.param("table4", ("tent+crowd",), 2, marks=pytest.mark.slow),
    ],
)
def test_tables_fill_from_incomplete_batches_and_mixed_frame_sizes(all_sets, tmp_path, name, methods, rounds):
    specs = [spec for spec in suite(name).specs() if spec.method in methods]
    for spec in specs:
        run_job(Job(spec, rounds=rounds), tmp_path, all_sets, RunSettings(), ignore)
        rows = Store(tmp_path).run(spec).rows
        assert [row["domain"] for row in rows] == [*spec.domains] * rounds
        assert all((row["batches"], row["samples"], row["skipped"]) == (2, FRAMES, 0) for row in rows)
        assert all(0 <= row["mean_iou"] <= 100 and row["mean_iou@100"] == row["mean_iou"] for row in rows)
    (table,) = suite(name).tables
    table = dataclasses.replace(table, entries=tuple(entry for entry in table.entries if entry.specs[0] in specs))
    values = fill_table(Results(tmp_path), table).values
    assert all(value.ours is not None for value in values.values())
