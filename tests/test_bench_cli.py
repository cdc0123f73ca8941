"""Benchmarks on official files: `LocalFiles`, the `bench` commands and their progress display."""

import dataclasses
import gc
import hashlib
import io
import itertools
import json
import pickle
import re
import shutil

import numpy as np
import pytest
import scipy.io
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console
from torch import nn

import driftproof as dp
from driftproof.bench import Results, Spec, Store
from driftproof.bench.datasets import DATASETS
from driftproof.bench.local_files import LocalFiles, SourceImageBatches
from driftproof.bench.runner import ProgressEvent
from driftproof.cli import bench_progress, main
from driftproof.cli.bounded_progress import BoundedProgress
from driftproof.data import ArraySet, cifar10, corrupted
from driftproof.errors import ConfigurationError, InputError
from driftproof.models import MODELS, build_model, save_checkpoint
from driftproof.models.normalized_model import NormalizedModel
from driftproof.paper import SUITES, suite
from driftproof.streams import Shuffled, Stored

# Official files

SIDE = 32


def pixels(count, seed=0, side=SIDE):
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def write_cifar10(root, *, test=12, train=20):
    home = root / "cifar-10-batches-py"
    home.mkdir(parents=True)
    for name, count in {"test_batch": test, "data_batch_1": train}.items():
        flat = pixels(count, seed=count).transpose(0, 3, 1, 2).reshape(count, -1)
        (home / name).write_bytes(pickle.dumps({b"data": flat, b"labels": [index % 10 for index in range(count)]}))


def write_cifar10_c(root, *domains, count=12):
    home = root / "CIFAR-10-C"
    home.mkdir(parents=True, exist_ok=True)
    np.save(home / "labels.npy", np.tile(np.arange(count) % 10, 5))
    for index, domain in enumerate(domains):
        np.save(home / f"{domain}.npy", pixels(5 * count, seed=100 + index))


def write_svhn(root, count=9):
    root.mkdir(parents=True, exist_ok=True)
    digits = np.arange(1, count + 1)[:, None] % 10 + 1
    scipy.io.savemat(root / "test_32x32.mat", {"X": pixels(count, seed=7).transpose(1, 2, 3, 0), "y": digits})


def write_tiny_imagenet_c(root, *domains, count=6):
    for domain, label in itertools.product(domains, ("n01", "n02")):
        home = root / "Tiny-ImageNet-C" / domain / "5" / label
        home.mkdir(parents=True)
        for index, image in enumerate(pixels(count, seed=len(label), side=64)):
            Image.fromarray(image).save(home / f"{index}.JPEG")


def write_weights(folder, name="wrn10_1_cifar10.safetensors", arch="wrn10_1", classes=10):
    torch.manual_seed(3)
    folder.mkdir(parents=True, exist_ok=True)
    network = build_model(arch, classes=classes)
    save_checkpoint(folder / name, network, {"arch": arch})
    return network


def on_cifar10(*domains, unknown=None, **more):
    return Spec("tent", "cifar10-c", "wrn10_1", unknown, domains=domains, batch_size=4, **more)


@pytest.fixture
def files(tmp_path):
    write_cifar10(tmp_path / "data")
    write_svhn(tmp_path / "data")
    return LocalFiles(tmp_path / "data", tmp_path / "weights")


def images_of(stream):
    return torch.cat([batch.images for batch in stream])


def test_published_set_is_streamed_from_its_files(files):
    write_cifar10_c(files.data, "fog", "frost")
    stored = torch.from_numpy(np.load(files.data / "CIFAR-10-C" / "fog.npy")[48:]).permute(0, 3, 1, 2)
    stream = files.stream(on_cifar10("fog", "frost"), rounds=2)
    batches = list(stream)
    assert torch.equal(images_of(batches[:3]), stored / 255), "severity 5, in stored order"
    assert torch.cat([batch.labels for batch in batches[:3]]).tolist() == [*range(10), 0, 1]
    assert [(batch.round, batch.domain) for batch in batches[::3]] == list(itertools.product((1, 2), ("fog", "frost")))
    assert not (files.data / "CIFAR-10-C-made").exists()
    limited = files.stream(on_cifar10("fog", limit=5), rounds=1)
    assert torch.equal(images_of(limited), stored[:5] / 255)


def test_seeds_other_than_zero_shuffle_the_images(files):
    write_cifar10_c(files.data, "fog")
    stored, first, second, again = (
        list(files.stream(on_cifar10("fog", unknown="svhn-c", seed=seed), rounds=1)) for seed in (0, 1, 2, 1)
    )
    assert torch.equal(images_of(first), images_of(again))
    orders = [images_of(batches)[torch.cat([batch.known for batch in batches])] for batches in (stored, first, second)]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(orders, 2))
    sorted_images = [sorted(image.flatten().tolist() for image in images) for images in orders]
    assert sorted_images[0] == sorted_images[1] == sorted_images[2], "the same images"


def test_seed_does_not_shuffle_frames_of_a_drive():
    assert DATASETS["camvid-c"].order(0) == DATASETS["camvid-c"].order(1) == Stored()


def test_sets_stored_by_class_are_shuffled_for_every_seed():
    assert [DATASETS["tiny-imagenet-c"].order(seed) for seed in (0, 1)] == [Shuffled(0), Shuffled(1)]


def test_limited_images_of_a_missing_set_are_computed_and_not_cached(files):
    few, whole = on_cifar10("brightness", "contrast", limit=5), on_cifar10("brightness", "contrast")
    events = []
    computed = images_of(files.stream(few, 1, lambda stage, done: events.append(stage)))
    assert not events
    assert not (files.data / "CIFAR-10-C-made").exists()
    generated = images_of(files.stream(whole, 1)).reshape(2, 12, 3, 32, 32)
    assert torch.equal(computed, generated[:, :5].flatten(0, 1))


def test_missing_set_is_generated_once_and_cached(files, monkeypatch):
    events, spec = [], on_cifar10("brightness", "contrast")
    stream = files.stream(spec, 1, lambda stage, done: events.append((stage, done)))
    clean = torch.from_numpy(pixels(12, seed=12)).permute(0, 3, 1, 2)
    expected = [dp.corruptions.corrupt(clean, name, 5, dataset="cifar10") / 255 for name in spec.domains]
    assert torch.equal(images_of(stream), torch.cat(expected))
    assert events == [(f"cifar10-c/{name}/5", 12) for name in spec.domains]
    monkeypatch.setattr(corrupted.Corrupted, "batch", None)
    again = LocalFiles(files.data, files.weights).stream(spec, 1, events.append)
    assert torch.equal(images_of(again), torch.cat(expected))


def test_half_of_each_open_set_batch_is_unknown(files):
    write_cifar10_c(files.data, "fog")
    stream = files.stream(on_cifar10("fog", unknown="svhn-c"), rounds=1)
    batches = list(stream)
    assert [batch.known.tolist() for batch in batches] == [[True, True, False, False]] * 6
    assert all((batch.labels == -1).equal(~batch.known) for batch in batches)
    digits = torch.from_numpy(pixels(9, seed=7)).permute(0, 3, 1, 2)
    unknown = torch.cat([batch.images[~batch.known] for batch in batches])
    foggy = dp.corruptions.corrupt(digits, "fog", 5, dataset="svhn", constants=32) / 255
    assert torch.equal(unknown, torch.cat([foggy, foggy[:3]])), "all images, then again from the first"
    assert (files.data / "SVHN-C" / "fog" / "5.npy").exists()


def test_tiny_imagenet_c_is_shuffled_by_the_seed(tmp_path):
    write_tiny_imagenet_c(tmp_path, "fog")
    there = sorted(folder.name for folder in (tmp_path / "Tiny-ImageNet-C" / "fog" / "5").iterdir())
    (tmp_path / "tiny-imagenet-200").mkdir()
    (tmp_path / "tiny-imagenet-200" / "wnids.txt").write_text("\n".join([*there, *(f"z{n}" for n in range(198))]))
    files = LocalFiles(tmp_path, tmp_path)

    def labels(seed):
        spec = Spec("tent", "tiny-imagenet-c", "resnet50", domains=("fog",), batch_size=4, seed=seed)
        return torch.cat([batch.labels for batch in files.stream(spec, 1)]).tolist()

    assert sorted(labels(0)) == [0] * 6 + [1] * 6 != labels(0)
    assert labels(0) == labels(0) != labels(1)
    assert {name for name, known in DATASETS.items() if known.shuffled} == {
        *("tiny-imagenet-c", "imagenet-c", "imagenet-o-c-64", "imagenet-o-c-224", "imagenet64-other-c"),
    }


def test_frost_photos_are_needed_only_to_generate_frost(files, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="Frost needs photos"):
        files.stream(on_cifar10("frost"), 1)
    procedural = LocalFiles(files.data, files.weights, use_procedural_frost=True)
    procedural.stream(on_cifar10("frost"), 1)
    assert json.loads((files.data / "CIFAR-10-C-made" / "frost" / "5.json").read_text())["frost"] == "procedural"
    with pytest.raises(InputError, match=r"frost1\.png"):
        LocalFiles(files.data, files.weights, frost=files.data).stream(on_cifar10("frost"), 1)
    write_cifar10_c(files.data, "frost")
    assert len(files.stream(on_cifar10("frost"), 1)) == 3, "a published set includes frost"


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
def test_weights_are_found_by_network_and_set(files, suffix):
    trained = write_weights(files.weights, "wrn10_1_cifar10.safetensors")
    if suffix != ".safetensors":
        (files.weights / "wrn10_1_cifar10.safetensors").unlink()
        torch.save({"state_dict": trained.state_dict()}, files.weights / f"wrn10_1_cifar10{suffix}")
    model = files.model(on_cifar10("fog"))
    assert not model.training
    assert all(torch.equal(found, trained.state_dict()[name]) for name, found in model.state_dict().items())


def test_weights_are_found_in_robustbench_layout(files):
    trained = build_model("wrn40_2")
    path = files.weights / "cifar10" / "corruptions" / "Hendrycks2020AugMix_WRN.pt"
    path.parent.mkdir(parents=True)
    torch.save({f"module.{name}": value for name, value in trained.state_dict().items()}, path)
    model = files.model(dataclasses.replace(on_cifar10("fog"), model="wrn40_2"))
    assert torch.equal(model.fc.weight, trained.fc.weight)


def test_folder_with_missing_classes_raises(files):
    for identifier in ("n01443537", "n01629819"):
        folder = files.data / "Tiny-ImageNet-C" / "fog" / "5" / identifier
        folder.mkdir(parents=True)
        Image.new("RGB", (64, 64)).save(folder / "0.JPEG")
    spec = dataclasses.replace(on_cifar10("fog"), images="tiny-imagenet-c", model="resnet50")
    with pytest.raises(InputError, match="all 200 classes, but it has 2"):
        files.stream(spec, rounds=1)


def test_missing_weights_are_named(files):
    with pytest.raises(InputError, match=r"wrn10_1_cifar10.safetensors or wrn10_1_cifar10.pt, .*driftproof train"):
        files.model(on_cifar10("fog"))
    with pytest.raises(InputError, match=r"or cifar10/corruptions/Hendrycks2020AugMix_WRN\.pt, but"):
        files.model(dataclasses.replace(on_cifar10("fog"), model="wrn40_2"))
    with pytest.raises(InputError, match="svhn-c is only used for unknown images"):
        files.model(dataclasses.replace(on_cifar10("fog"), images="svhn-c"))
    with pytest.raises(ConfigurationError, match="Did you mean cifar10-c"):
        files.model(dataclasses.replace(on_cifar10("fog"), images="cifar10c"))


def test_weights_of_another_network_raise(files):
    write_weights(files.weights, "wrn10_1_cifar10.safetensors", arch="wrn16_1")
    with pytest.raises(InputError, match="a wrn10_1 for the 10 classes of cifar10-c, but it holds a wrn16_1 for 10"):
        files.model(on_cifar10("fog"))
    write_weights(files.weights, "wrn10_1_cifar10.safetensors", classes=6)
    with pytest.raises(InputError, match="but it holds a wrn10_1 for 6"):
        files.model(on_cifar10("fog"))


def test_missing_data_is_named(files):
    with pytest.raises(ConfigurationError, match="corruption"):
        files.stream(on_cifar10("fgo"), 1)
    (files.data / "cifar-10-batches-py").rename(files.data / "elsewhere")
    with pytest.raises(InputError, match=r"cifar-10-batches-py.*data get cifar10"):
        files.stream(on_cifar10("fog"), 1)
    write_cifar10_c(files.data, "fog")
    (files.data / "test_32x32.mat").unlink()
    with pytest.raises(InputError, match=r"test_32x32\.mat.*data get svhn"):
        files.stream(on_cifar10("fog", unknown="svhn-c"), 1)


def test_source_images_have_one_fixed_random_order(files):
    passes = [list(files.source(on_cifar10("fog"), "cpu")) for _ in range(2)]
    images, labels = (torch.cat(parts) for parts in zip(*passes[0], strict=True))
    again, _ = (torch.cat(parts) for parts in zip(*passes[1], strict=True))
    assert torch.equal(images, again)
    stored = torch.from_numpy(pixels(20, seed=20)).permute(0, 3, 1, 2) / 255
    places = [(stored == image).flatten(1).all(dim=1).nonzero().item() for image in images]
    assert sorted(places) == list(range(20)) != places
    assert labels.tolist() == [place % 10 for place in places]
    whole = ArraySet(pixels(7, side=4), list(range(7)))
    assert [len(batch) for batch, _ in SourceImageBatches(whole, batch_size=3)] == [3, 3, 1]
    with pytest.raises(InputError, match="source images for svhn-c"):
        files.source(dataclasses.replace(on_cifar10("fog"), images="svhn-c"), "cpu")


def test_prepare_on_test_uses_clean_test_images(files):
    stand_in = dataclasses.replace(files, prepared_on_test=("cifar10-c",))
    images, labels = (torch.cat(part) for part in zip(*stand_in.source(on_cifar10("fog"), "cpu"), strict=True))
    clean = cifar10(files.data)
    order = [(clean.batch(range(len(clean))) / 255 == image).flatten(1).all(dim=1).nonzero().item() for image in images]
    assert sorted(order) == list(range(len(clean)))
    assert torch.equal(labels, clean.labels[order])
    assert pickle.loads(pickle.dumps(stand_in)).prepared_on_test == ("cifar10-c",)


@settings(max_examples=25)
@given(st.integers(1, 16), st.data())
def test_fingerprint_changes_with_any_pixel_and_label(count, data):
    images, labels = pixels(count, side=4), np.arange(count) % 5
    before = ArraySet(images.copy(), labels.tolist()).fingerprint()
    assert before == ArraySet(torch.from_numpy(images.copy()), labels.tolist()).fingerprint()
    assert before.startswith(f"{count} images, ")
    place = data.draw(st.integers(0, count - 1))
    relabelled = labels.copy()
    relabelled[place] += 1
    assert ArraySet(images, relabelled.tolist()).fingerprint() != before
    images[place, data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3)), data.draw(st.integers(0, 2))] ^= 1
    assert ArraySet(images, labels.tolist()).fingerprint() != before


def test_fingerprints_cover_weights_and_images_of_a_run(files):
    write_weights(files.weights)
    write_cifar10_c(files.data, "fog", "snow")
    events, spec = [], on_cifar10("fog", unknown="svhn-c")
    found = files.fingerprints(spec, lambda stage, done: events.append(stage))
    (weights,) = files.weights.iterdir()
    assert found["weights wrn10_1 cifar10-c"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert set(found) == {"weights wrn10_1 cifar10-c", "images cifar10-c fog 5", "images svhn-c fog 5"}
    assert events == ["svhn-c/fog/5"]
    assert found == files.fingerprints(spec) == LocalFiles(files.data, files.weights).fingerprints(spec)
    other = files.fingerprints(on_cifar10("snow"))
    assert other["images cifar10-c snow 5"] != found["images cifar10-c fog 5"], "each domain has its own fingerprint"


def test_local_files_can_be_pickled(files):
    write_weights(files.weights)
    write_cifar10_c(files.data, "fog")
    files.fingerprints(on_cifar10("fog"))
    sent = pickle.loads(pickle.dumps(files))
    assert sent == files
    assert len(pickle.dumps(files)) < 2000, "open files are not pickled"
    assert torch.equal(*(images_of(bench.stream(on_cifar10("fog"), 1)) for bench in (files, sent)))


# Commands


@pytest.fixture(scope="module", autouse=True)
def frozen_gc():
    """Exempt imported libraries from garbage collection, which every run starts with."""
    import torch._dynamo  # noqa: F401  # optimizers import it anyway

    gc.freeze()
    yield
    gc.unfreeze()


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["bench", *map(str, arguments)])
    return ended.value.code


class TinyNetwork(NormalizedModel):
    """One convolution, one batch norm and a linear layer."""

    def __init__(self, classes=10, mean=0.5, std=0.5):
        super().__init__(classes, mean=mean, std=std)
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 4, stride=4), nn.BatchNorm2d(8), nn.Linear(8, classes)

    def forward(self, images):
        return 10 * self.fc(torch.relu(self.norm(self.conv(self.normalize(images)))).mean(dim=(2, 3)))


@pytest.fixture(scope="module")
def small_wrn():
    """Replace WRN-40-2 with a tiny network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "wrn40_2", dataclasses.replace(MODELS["wrn40_2"], build=TinyNetwork))
        yield


@pytest.fixture(scope="module")
def files_at(small_wrn, tmp_path_factory):
    """Options for the folders of data and weights."""
    root = tmp_path_factory.mktemp("official")
    write_cifar10(root / "data")
    write_cifar10_c(root / "data", *dp.corruptions.CORRUPTIONS)
    write_svhn(root / "data")
    write_weights(root / "weights", "wrn40_2_cifar10.safetensors", arch="wrn40_2")
    return "--data", root / "data", "--weights", root / "weights"


@pytest.fixture(scope="module")
def finished(files_at, tmp_path_factory):
    """Results of one round."""
    out = tmp_path_factory.mktemp("bench") / "out"
    assert run("run", "table1", *files_at, *SELECTED_RUNS, "--rounds", 1, "--out", out) == 0
    return out


SELECTED_RUNS = ("--sets", "cifar10-c", "--methods", "source,tent+crowd", "--closed")


def contents(folder):
    names = ("folder.json", "cells/*/spec.json", "cells/*/rows.jsonl")
    return {path.relative_to(folder): path.read_bytes() for name in names for path in folder.glob(name)}


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "600")


def test_list_shows_every_suite(capsys, wide):
    assert run("list") == 0
    lines = capsys.readouterr().out.splitlines()
    for name in SUITES:
        generated = suite(name)
        (line,) = (line for line in lines if f"│ {name} " in line)
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        assert cells == [
            name,
            generated.title,
            str(generated.rounds),
            str(len(list(generated.specs()))),
            generated.note,
        ]


def test_verbose_list_shows_every_hyper_parameter(capsys, wide):
    assert run("list", "-v") == 0
    out = capsys.readouterr().out
    for name in SUITES:
        for spec in suite(name).specs():
            assert ", ".join(f"{key} = {value}" for key, value in spec.options) in out
    (line,) = {line for line in out.splitlines() if "eata+crowd" in line and "tiny" in line and "imagenet-o" in line}
    for shown in ("fisher = 2000.0", "fisher_samples = 2000", "lr = 0.001", "mean_entropy = 0.5", "resnet50", "200"):
        assert shown in line
    assert "The paper does not say how many rounds" in out


def test_list_truncates_nothing_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("driftproof.paper.SUITES", {name: SUITES[name] for name in ("table1", "table8")})
    assert run("list") == run("list", "-v") == 0
    assert "…" not in capsys.readouterr().out


def test_json_list_round_trips_every_spec(capsys):
    assert run("list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert list(listed) == list(SUITES)
    for name, specs in listed.items():
        assert [Spec.from_data(data) for data in specs] == list(suite(name).specs())


def test_run_measures_the_error_of_the_network(finished, files_at):
    cells = {cell.spec.method: cell for cell in Store(finished).runs()}
    assert set(cells) == {"source", "tent+crowd"}
    network = LocalFiles(files_at[1], files_at[3]).model(cells["source"].spec)
    labels = torch.arange(12) % 10
    for row, domain in zip(cells["source"].rows, dp.corruptions.CORRUPTIONS, strict=True):
        stored = torch.from_numpy(np.load(files_at[1] / "CIFAR-10-C" / f"{domain}.npy")[48:]).permute(0, 3, 1, 2)
        with torch.no_grad():
            wrong = (network(stored / 255).argmax(dim=1) != labels).float().mean()
        assert (row["round"], row["domain"], row["samples"], row["batches"]) == (1, domain, 12, 1)
        assert row["error"] == pytest.approx(100 * float(wrong))
    first = cells["tent+crowd"].rows[0]
    assert first["selected_known"] == 1, "at the first batch, everything is selected"
    shared = Store(finished).metadata
    assert shared["limit"] is None
    assert shared["frost"] == "photos"
    assert set(shared) >= {"weights wrn40_2 cifar10-c", "images cifar10-c gaussian_noise 5"}


def test_repeated_run_command_does_nothing(finished, files_at, monkeypatch):
    before = contents(finished)
    monkeypatch.setattr(LocalFiles, "model", None)
    assert run("run", "table1", *files_at, *SELECTED_RUNS, "--rounds", 1, "--out", finished) == 0
    assert run("run", "table2", *files_at, *SELECTED_RUNS, "--out", finished) == 0, "table2 shares these runs"
    assert contents(finished) == before


def test_run_with_more_rounds_continues(files_at, tmp_path):
    methods = (*SELECTED_RUNS[:2], "--methods", "tent+crowd", "--closed", "--limit", 3)
    for out, stages in {"bits": [1, 2], "whole": [2]}.items():
        for rounds in stages:
            assert run("run", "table1", *files_at, *methods, "--rounds", rounds, "--out", tmp_path / out) == 0
    assert contents(tmp_path / "bits") == contents(tmp_path / "whole")
    (cell,) = Store(tmp_path / "bits").runs()
    assert [row["round"] for row in cell.rows] == [1] * 15 + [2] * 15


def test_limited_open_run_averages_two_seeds(files_at, tmp_path, capsys):
    asked = ("--open", "--limit", 4, "--seeds", "0,1", "--methods", "source", "--sets", "cifar10-c")
    assert run("run", "table2", *files_at, *asked, "--procedural-frost", "--out", tmp_path / "out") == 0
    assert "bench compare" in capsys.readouterr().err
    cells = list(Store(tmp_path / "out").runs())
    assert sorted(cell.spec.seed for cell in cells) == [0, 1]
    assert {row["samples"] for cell in cells for row in cell.rows} == {8}
    assert Store(tmp_path / "out").metadata["frost"] == "made up"
    assert run("compare", tmp_path / "out", "--json") == 0
    (table2,) = (table for table in json.loads(capsys.readouterr().out) if table["table"] == "table2")
    (number,) = (number for number in table2["values"] if number["ours"] is not None)
    errors = [np.mean([row["error"] for row in cell.rows]) for cell in cells]
    assert (number["row"], number["column"], number["seeds"]) == ("source", "CIFAR-10-C/Open", 2)
    assert number["ours"] == pytest.approx(np.mean(errors))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (("--limit", 5), "limit was None and is 5 here"),
        (("--procedural-frost",), "frost was 'photos' and is 'made up' here"),
        (("--replace", "svhn-c=imagenet64-other-c"), "replaced was {} and is {'svhn-c': 'imagenet64-other-c'} here"),
        (("--prepare-on-test", "cifar10-c"), "prepared on test images was [] and is ['cifar10-c'] here"),
    ],
)
def test_run_rejects_other_settings_before_reading_data(finished, files_at, capsys, monkeypatch, other, message):
    before = contents(finished)
    monkeypatch.setattr(LocalFiles, "fingerprints", None)
    assert run("run", "table1", *files_at, *SELECTED_RUNS, "--rounds", 1, "--out", finished, *other) == 2
    assert message in capsys.readouterr().err
    assert contents(finished) == before


def test_run_rejects_other_weights(finished, files_at, capsys, tmp_path):
    before = contents(finished)
    torch.manual_seed(8)
    save_checkpoint(tmp_path / "wrn40_2_cifar10.safetensors", build_model("wrn40_2"), {"arch": "wrn40_2"})
    options = ("--data", files_at[1], "--weights", tmp_path)
    assert run("run", "table1", *options, *SELECTED_RUNS, "--rounds", 1, "--out", finished) == 2
    assert "weights wrn40_2 cifar10-c was" in capsys.readouterr().err
    assert contents(finished) == before


def test_failed_run_leaves_no_folder(files_at, tmp_path, capsys):
    nowhere = ("--data", files_at[1], "--weights", tmp_path / "nowhere")
    assert run("run", "table2", *nowhere, *SELECTED_RUNS, "--limit", 3, "--out", tmp_path / "out") == 2
    assert "Expected weights of wrn40_2 for cifar10" in capsys.readouterr().err
    assert not (tmp_path / "out").exists(), "so that the corrected command works"
    replaced = ("--replace", "cifar10-c=cifar10", "--out", tmp_path / "out")
    assert run("run", "table2", *files_at, *SELECTED_RUNS, *replaced) == 2
    assert "Did you mean cifar10-c" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_runs_with_missing_weights_do_not_stop_the_others(files_at, tmp_path, capsys, wide):
    out = tmp_path / "out"
    asked = ("--sets", "cifar10-c", "--methods", "tent,tent+crowd", "--rounds", 1, "--limit", 3)
    assert run("run", "s3", *files_at, *asked, "--out", out) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "2 of 4 runs failed; the others are done." in message
    assert message.count("Expected weights of wrn28_10 for cifar10") == 1, "once for all runs that need them"
    assert {cell.spec.model for cell in Store(out).runs()} == {"wrn40_2"}
    assert not [fact for fact in Store(out).metadata if "wrn28_10" in fact]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "tabel1"), "known suite, but got 'tabel1'. Did you mean table1"),
        (("run", "table1", "--methods", "tnet"), "Did you mean tent"),
        (("run", "table1", "--methods", "tent,cotta"), "known method of table1, but got 'cotta'"),
        (("run", "table1", "--sets", "cifar10"), "Did you mean cifar10-c"),
        (("run", "table1", "--executor", "locl"), "known executor, but got 'locl'. Did you mean local"),
        (("run", "table1", "--replace", "svhn-c"), "`--replace` to be OLD=NEW, but got 'svhn-c'"),
        (("run", "table1", "--replace", "svhnc=x"), "Did you mean svhn-c"),
        (("run", "table1", "--seeds", "0,one"), "`--seeds` to be integers, but got 'one'"),
        (("run", "table1", "--seeds", ","), "`--seeds` to be a list separated by commas, but got ','"),
        (("run", "table1", "--methods", ""), "`--methods` to be a list separated by commas, but got ''"),
        (("run", "table1", "--seeds", str(2**63)), f"`--seeds` to be from 0 to {2**63 - 1}"),
        (("run", "table1", "--seeds=-1"), f"`--seeds` to be from 0 to {2**63 - 1}"),
        (("run", "table1", "--rounds", "0"), "`rounds` to be at least 1, but got 0"),
        (("run", "table1", "--limit", "0"), "`limit` to be at least 1, but got 0"),
        (("run", "table1", "--engine", "grph"), "eager, compile, graph, but got 'grph'"),
        (("run", "table1", "--precision", "bf61"), "`precision` to be one of fp32, tf32, bf16, but got 'bf61'"),
        (("run", "table1", "--device", "abacus"), "`--device` to be available on this machine"),
        (("run", "table1", "--methdos", "tent"), "--methods"),
        (("compare", "nowhere"), "Expected results in nowhere, but there are none."),
        (("report", "nowhere"), "Expected results in nowhere, but there are none."),
        (("export", "nowhere", "kept"), "Expected results in nowhere, but there are none."),
        (("summarize", "nowhere"), "Expected archives in subfolders of nowhere, but found none."),
        (("summarize", "."), "with `driftproof bench export`"),
        (("run", "table1", "--sets", "cifar10-c"), " more: Expected weights of wrn40_2 for cifar10 in weights"),
    ],
)
def test_usage_errors_exit_with_code_2_and_a_message(tmp_path, monkeypatch, capsys, wide, words, message):
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["{}", "5", '{"round": 1}', None])
def test_damaged_rows_are_named(finished, tmp_path, capsys, wide, damage):
    shutil.copytree(finished, tmp_path / "damaged")
    (rows, *_) = sorted((tmp_path / "damaged").glob("cells/*/rows.jsonl"))
    if damage is None:
        rows.with_name("conditions.jsonl").unlink()
    else:
        rows.write_text(rows.read_text() + f"{damage}\n")
    for words in (("compare",), ("report",), ("export", tmp_path / "archive")):
        assert run(words[0], tmp_path / "damaged", *words[1:]) == 2
        assert f"for every row of {rows.parent.name} in" in " ".join(capsys.readouterr().err.split())


def test_compare_shows_our_numbers_and_the_papers(finished, capsys, wide):
    assert run("compare", finished, "--json") == 0
    tables = {table["table"]: table["values"] for table in json.loads(capsys.readouterr().out)}
    measured = {table.table.name: table for table in Results(finished).tables()}
    assert {name: table.as_data()["values"] for name, table in measured.items()} == tables
    errors = {cell.spec.method: np.mean([row["error"] for row in cell.rows]) for cell in Store(finished).runs()}
    (ours,) = (v for v in tables["table2"] if (v["row"], v["column"]) == ("tent+crowd", "CIFAR-10-C/Closed"))
    assert ours["ours"] == pytest.approx(errors["tent+crowd"])
    assert (ours["paper"], ours["round"], ours["wanted"]) == (12.39, 1, 1)
    assert run("compare", finished) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert all(table.table.title in out for table in measured.values())
    assert f"{errors['tent+crowd']:.1f}" in out
    assert "12.4" in out


def test_compare_notes_limits_and_replaced_sets(finished, files_at, tmp_path, capsys, wide):
    few = ("--sets", "cifar10-c", "--methods", "source", "--rounds", 1, "--limit", 3)
    instead = ("--replace", "svhn-c=other", "--replace", "cifar100-c=another")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, "other", DATASETS["svhn-c"])
        patch.setitem(DATASETS, "another", DATASETS["cifar100-c"])
        assert run("run", "table2", *files_at, *few, *instead, "--out", tmp_path) == 0
    for folder, message in ((finished, 0), (tmp_path, 1)):
        capsys.readouterr()
        assert run("compare", folder) == 0
        (table2,) = re.findall(r"Error after one round.*?(?=\n\n\S|\Z)", capsys.readouterr().out, re.DOTALL)
        assert table2.count("Only the first 3 images of each domain.") == message
        assert table2.count("other replaces svhn-c.") == message
        assert "another" not in table2, "no number here is on what it replaces"


def test_report_writes_one_page(finished, tmp_path, capsys):
    assert run("report", finished, "--out", tmp_path / "report") == 0
    page = tmp_path / "report" / "index.html"
    assert capsys.readouterr().out.split() == [str(page)]
    assert "tent+crowd" in page.read_text()


def test_results_without_rows_are_reported(tmp_path, capsys, wide):
    (spec, *_) = suite("table1").specs()
    cell = Store(tmp_path / "out").run(spec)
    with cell.locked():
        cell.write_spec(spec, {})
    assert run("compare", tmp_path / "out") == 0
    assert capsys.readouterr().out == "No table has results yet.\n"
    assert run("compare", tmp_path / "out", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert run("report", tmp_path / "out") == 2
    assert f"Expected rows in {tmp_path / 'out'}, but no run has written one yet" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not (tmp_path / "out" / "report").exists()


# Progress display


class RecordedProgress:
    """A progress display that records its lines."""

    def __init__(self):
        self.lines = {}

    def add_task(self, description, total=None):
        self.lines[len(self.lines)] = description
        return len(self.lines) - 1

    def update(self, task, *, completed, total, description):
        self.lines[task] = (description, completed, total)


def test_progress_has_one_line_per_run():
    shown, spec = RecordedProgress(), Spec("tent", "cifar10-c", "wrn40_2", domains=("fog",))
    seeded = dataclasses.replace(spec, unknown="svhn-c", seed=3)
    costs = dataclasses.replace(spec, method="tent,eata", task="costs")
    on_progress = bench_progress._ProgressLines(shown, [spec, seeded, costs])
    notes = {
        ProgressEvent(spec, "svhn-c/fog/5", 40): ("tent on cifar10-c, closed: svhn-c/fog/5, 40 images", 40, None),
        ProgressEvent(spec, "adapting", 1, 9): ("tent on cifar10-c, closed: adapting", 1, 9),
    }
    for note, line in notes.items():
        on_progress(note)
        assert shown.lines[0] == line
    on_progress(ProgressEvent(spec, "measured", 3, 9, {"round": 1, "domain": "fog", "error": 12.34}))
    on_progress(ProgressEvent(spec, "adapting", 4, 9))
    assert shown.lines[0] == ("tent on cifar10-c, closed: round 1, fog 12.3 %", 4, 9)
    on_progress(ProgressEvent(seeded, "failed", 0))
    assert shown.lines[1] == ("tent on cifar10-c, open, seed 3: failed", 0, None)
    on_progress(ProgressEvent(costs, "timing", 0))
    assert shown.lines[2] == ("costs on cifar10-c, closed: timing", 0, None)
    on_progress(ProgressEvent(costs, "measured", 2, 2, {"round": 1, "domain": "tent", "memory": 5.0}))
    assert shown.lines[2] == ("costs on cifar10-c, closed: round 1, tent", 2, 2)


def test_progress_titles_of_similar_runs_are_distinct():
    shown, specs = RecordedProgress(), [spec for name in ("table8", "table7", "table4") for spec in suite(name).specs()]
    on_progress = bench_progress._ProgressLines(shown, specs)
    for spec in specs:
        on_progress(ProgressEvent(spec, "measured", 1, 2, {"round": 1, "domain": "fog", "error": 12.34}))
    titles = [description.partition(":")[0] for description, *_ in shown.lines.values()]
    assert len(set(titles)) == len(specs)
    assert titles[0] == "source on tiny-imagenet-c, closed", "a unique title stays short"
    assert "tent on tiny-imagenet-c, closed, lr=0.0005, batches of 200" in titles
    assert "tent on driving-val, gtav" in {title.replace(", framed=True", "") for title in titles}
    assert {line[1:] for line in shown.lines.values()} == {(1, 2)}
    on_progress(ProgressEvent(specs[1], "failed", 0))
    assert shown.lines[1] == (f"{titles[1]}: failed", 0, None)


def test_log_prints_every_failure(capsys, monkeypatch):
    spec = Spec("tent", "cifar10-c", "wrn40_2", domains=("fog",))
    others = [dataclasses.replace(spec, method=method) for method in ("gce", "ent")]
    monkeypatch.setattr(bench_progress, "monotonic", lambda: 0.0)
    with bench_progress.progress_display([spec, *others]) as on_progress:
        on_progress(ProgressEvent(spec, "measured", 1, 2, {"round": 1, "domain": "fog", "error": 12.0}))
        for other in others:
            on_progress(ProgressEvent(other, "failed", 0))
        message = capsys.readouterr().err.splitlines()
        assert message[1:] == [f"{other.method} on cifar10-c, closed: failed" for other in others]


def test_log_prints_results_every_ten_seconds(capsys, monkeypatch):
    spec, now = Spec("tent", "a-set-with-a-long-name", "wrn40_2", domains=("impulse_noise",)), [0.0]
    monkeypatch.setattr(bench_progress, "monotonic", lambda: now[0])
    with bench_progress.progress_display([spec]) as on_progress:
        for seconds, measure, value in [(0, "error", 12.34), (9, "error", 13.0), (10, "mean_iou", 56.78)]:
            now[0] = float(seconds)
            on_progress(ProgressEvent(spec, "adapting", 1, 2))
            on_progress(ProgressEvent(spec, "measured", 2, 2, {"round": 12, "domain": "impulse_noise", measure: value}))
            line = f"tent on a-set-with-a-long-name, closed: round 12, impulse_noise {value:.1f} %\n"
            assert capsys.readouterr().err == ("" if seconds == 9 else line)


def test_log_prints_preparation_stages(capsys, monkeypatch):
    spec, now = Spec("tent", "camvid-c", "deeplab", domains=("fog",), measures=("iou",)), [0.0]
    monkeypatch.setattr(bench_progress, "monotonic", lambda: now[0])
    with bench_progress.progress_display([spec]) as on_progress:
        for seconds, message in [(0, "learning shares"), (5, ""), (11, "learning shares, 110 images")]:
            now[0] = float(seconds)
            on_progress(ProgressEvent(spec, "learning shares", 10 * seconds))
            assert capsys.readouterr().err == (message and f"tent on camvid-c: {message}\n")


def test_bounded_progress_always_shows_unfinished_tasks():
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=10)
    with BoundedProgress(console=console, auto_refresh=False) as progress:
        slow = progress.add_task("slow", total=2)
        for number in range(20):
            progress.update(progress.add_task(f"cell {number}", total=1), completed=number < 19)
        console.file.truncate(0)
        progress.refresh()
        shown = console.file.getvalue()
        assert all(f"{name} " in shown for name in ("slow", "cell 19", "cell 18"))
        assert "cell 0 " not in shown
        assert "..." not in shown
        progress.update(slow, completed=2)
        console.file.truncate(0)
    assert all(f"cell {number} " in console.file.getvalue() for number in range(20)), "all tasks are shown at the end"
