"""Benchmarks on official files: `LocalFiles`, the `bench` commands and their progress display."""

import dataclasses
import hashlib
import itertools
import json
import pickle
import re
from functools import partial

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from torch import nn

import driftproof as dp
from driftproof.bench import Spec, Store
from driftproof.bench.local_files import NETWORKS, LocalFiles
from driftproof.bench.metrics import MEASURES
from driftproof.cli.suites import suite_builders
from driftproof.data import cifar10, corrupted
from driftproof.errors import ConfigurationError, InputError
from driftproof.models import MODELS, build_model, save_checkpoint
from driftproof.models.normalized_model import NormalizedModel
from driftproof.paper import suite
from driftproof.streams import Shuffled, Stored
from driftproof.streams.datasets import DATASETS
from rows_on_disk import run_command
from small_bench import contents
from test_data import write_cifar


def pixels(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def write_cifar10(root):
    for name, count in {"test_batch": 12, "data_batch_1": 20}.items():
        flat = pixels(count, seed=count).transpose(0, 3, 1, 2).reshape(count, -1)
        write_cifar(root / "cifar-10-batches-py", name, flat, [index % 10 for index in range(count)])


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
    batches = list(files.stream(on_cifar10("fog", "frost"), rounds=2))
    assert torch.equal(images_of(batches[:3]), stored / 255), "severity 5, in stored order"
    assert torch.cat([batch.labels for batch in batches[:3]]).tolist() == [*range(10), 0, 1]
    assert [(batch.round, batch.domain) for batch in batches[::3]] == list(itertools.product((1, 2), ("fog", "frost")))
    assert torch.equal(images_of(files.stream(on_cifar10("fog", limit=5), rounds=1)), stored[:5] / 255)
    seeded = images_of(files.stream(on_cifar10("fog", seed=1), rounds=1))
    assert sorted(seeded.flatten(1).tolist()) == sorted((stored / 255).flatten(1).tolist())
    assert not torch.equal(seeded, stored / 255), "all seeds but 0 shuffle"
    assert DATASETS["camvid-c"].order(1) == Stored(), "but not the frames of a drive"
    assert DATASETS["tiny-imagenet-c"].order(0) == Shuffled(0), "stored by class"
    assert not (files.data / "CIFAR-10-C-made").exists()


def test_missing_set_is_generated_once_and_cached(files, monkeypatch):
    few, whole, events = on_cifar10("brightness", "contrast", limit=5), on_cifar10("brightness", "contrast"), []
    computed = images_of(files.stream(few, 1, lambda stage, done: events.append(stage)))
    assert not events
    assert not (files.data / "CIFAR-10-C-made").exists(), "a limited run makes only what it needs"
    stream = files.stream(whole, 1, lambda stage, done: events.append((stage, done)))
    clean = torch.from_numpy(pixels(12, seed=12)).permute(0, 3, 1, 2)
    expected = torch.stack([dp.corruptions.corrupt(clean, name, 5, dataset="cifar10") / 255 for name in whole.domains])
    assert torch.equal(images_of(stream), expected.flatten(0, 1))
    assert torch.equal(computed, expected[:, :5].flatten(0, 1))
    assert events == [(f"cifar10-c/{name}/5", 12) for name in whole.domains]
    monkeypatch.setattr(corrupted.Corrupted, "batch", None)
    again = LocalFiles(files.data, files.weights).stream(whole, 1, events.append)
    assert torch.equal(images_of(again), expected.flatten(0, 1))


def test_missing_frost_photos_are_named_before_anything_runs(files, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    write_weights(files.weights)
    with pytest.raises(InputError, match=r"Frost needs photos.*`--procedural-frost`"):
        files.fingerprints(on_cifar10("brightness", "frost"))
    assert not (files.data / "CIFAR-10-C-made").exists(), "nothing was generated"
    procedural = LocalFiles(files.data, files.weights, use_procedural_frost=True)
    procedural.stream(on_cifar10("frost"), 1)
    assert json.loads((files.data / "CIFAR-10-C-made" / "frost" / "5.json").read_text())["frost"] == "procedural"
    with pytest.raises(InputError, match=r"frost1\.png"):
        LocalFiles(files.data, files.weights, frost=files.data).stream(on_cifar10("frost"), 1)
    write_cifar10_c(files.data, "frost", "brightness")
    assert files.fingerprints(on_cifar10("brightness", "frost")), "a published set includes frost"


def test_weights_are_found_by_network_and_set(files):
    trained = write_weights(files.weights, "wrn10_1_cifar10.safetensors")
    for suffix in (".safetensors", ".pt", ".pth"):
        path = files.weights / f"wrn10_1_cifar10{suffix}"
        if suffix != ".safetensors":
            torch.save({"state_dict": trained.state_dict()}, path)
        for where in (files, dataclasses.replace(files, weights=path)):
            model = where.model(on_cifar10("fog"))
            assert not model.training
            assert all(torch.equal(found, trained.state_dict()[name]) for name, found in model.state_dict().items())
        path.unlink()
    public = files.weights / "cifar10" / "corruptions" / "Hendrycks2020AugMix_WRN.pt"
    public.parent.mkdir(parents=True)
    torch.save({f"module.{name}": value for name, value in build_model("wrn40_2").state_dict().items()}, public)
    assert files.model(dataclasses.replace(on_cifar10("fog"), model="wrn40_2")).fc.out_features == 10


def test_unusable_weights_and_data_are_named(files):
    spec = on_cifar10("fog")
    for images, error, message in (
        ("cifar10-c", InputError, r"wrn10_1_cifar10.safetensors or wrn10_1_cifar10.pt, .*driftproof train"),
        ("svhn-c", InputError, r"svhn-c has none\. Pass a file as `weights`"),
        ("cifar10c", ConfigurationError, "Did you mean cifar10-c"),
    ):
        with pytest.raises(error, match=message):
            files.model(dataclasses.replace(spec, images=images))
    write_weights(files.weights, arch="wrn16_1")
    with pytest.raises(InputError, match="a wrn10_1 for the 10 classes of cifar10-c, but it holds a wrn16_1 for 10"):
        files.model(spec)
    with pytest.raises(ConfigurationError, match="corruption"):
        files.stream(on_cifar10("fgo"), 1)
    (files.data / "cifar-10-batches-py").rename(files.data / "elsewhere")
    with pytest.raises(InputError, match=r"cifar-10-batches-py.*data get cifar10"):
        files.stream(spec, 1)
    folder = files.data / "Tiny-ImageNet-C" / "fog" / "5" / "n01443537"
    folder.mkdir(parents=True)
    Image.new("RGB", (64, 64)).save(folder / "0.JPEG")
    with pytest.raises(InputError, match="all 200 classes, but it has 1"):
        files.stream(dataclasses.replace(spec, images="tiny-imagenet-c", model="resnet50"), 1)


def test_source_images_have_one_fixed_random_order(files):
    passes = [list(files.source(on_cifar10("fog"), "cpu")) for _ in range(2)]
    images, labels = (torch.cat(parts) for parts in zip(*passes[0], strict=True))
    assert torch.equal(images, torch.cat([images for images, _ in passes[1]]))
    stored = torch.from_numpy(pixels(20, seed=20)).permute(0, 3, 1, 2) / 255
    places = [(stored == image).flatten(1).all(dim=1).nonzero().item() for image in images]
    assert sorted(places) == list(range(20)) != places
    assert labels.tolist() == [place % 10 for place in places]
    stand_in = dataclasses.replace(files, prepared_on_test=("cifar10-c",))
    clean, ((images, _),) = cifar10(files.data), stand_in.source(on_cifar10("fog"), "cpu")
    assert sorted(images.flatten(1).tolist()) == sorted((clean.batch(range(12)) / 255).flatten(1).tolist())


def test_fingerprints_and_pickles_are_those_of_the_files(files):
    write_weights(files.weights)
    write_cifar10_c(files.data, "fog", "snow")
    events, spec = [], on_cifar10("fog", unknown="svhn-c")
    found = files.fingerprints(spec, lambda stage, done: events.append(stage))
    (weights,) = files.weights.iterdir()
    assert found["weights wrn10_1 cifar10-c"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert set(found) == {"weights wrn10_1 cifar10-c", "images cifar10-c fog 5", "images svhn-c fog 5"}
    assert events == ["svhn-c/fog/5"]
    sent = pickle.loads(pickle.dumps(files))
    assert (sent, sent.fingerprints(spec)) == (files, found)
    assert len(pickle.dumps(files)) < 2000, "open files are not pickled"


run = partial(run_command, "bench")


class TinyNetwork(NormalizedModel):
    def __init__(self, classes=10, mean=0.5, std=0.5):
        super().__init__(classes, mean=mean, std=std)
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 4, stride=4), nn.BatchNorm2d(8), nn.Linear(8, classes)

    def forward(self, images):
        return 10 * self.fc(torch.relu(self.norm(self.conv(self.normalize(images)))).mean(dim=(2, 3)))


@pytest.fixture(scope="module")
def files_at(tmp_path_factory):
    """Options for the folders of data and weights; WRN-40-2 is replaced by a tiny network."""
    root = tmp_path_factory.mktemp("official")
    write_cifar10(root / "data")
    write_cifar10_c(root / "data", *dp.corruptions.CORRUPTIONS)
    write_svhn(root / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "wrn40_2", dataclasses.replace(MODELS["wrn40_2"], build=TinyNetwork))
        write_weights(root / "weights", "wrn40_2_cifar10.safetensors", arch="wrn40_2")
        yield "--data", root / "data", "--weights", root / "weights"


@pytest.fixture(scope="module")
def finished(files_at, tmp_path_factory):
    """Results of one round."""
    out = tmp_path_factory.mktemp("bench") / "out"
    assert run("run", "table1", *files_at, *SELECTED_RUNS, "--rounds", 1, "--out", out) == 0
    return out


SELECTED_RUNS = ("--images", "cifar10-c", "--methods", "source,tent+crowd", "--closed")


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "2000")


def test_list_shows_suites_methods_measures_images_and_networks(capsys):
    assert run("list") == 0
    out = capsys.readouterr().out
    for name, build in suite_builders().items():
        made = build()
        (line,) = (line for line in out.splitlines() if line.split()[:1] == [name])
        cells = re.split(r"\s{2,}", line.strip())
        shown = [name, made.title, str(made.rounds), str(len(list(made.specs()))), made.note]
        assert cells == [cell for cell in shown if cell]
    assert all(name in out for name in (*DATASETS, *NETWORKS, *MEASURES, "tent+crowd"))
    assert run("list", "-v") == 0
    shown = capsys.readouterr().out
    options = itertools.chain(*(spec.options for spec in suite("table1").specs()))
    assert all(f"{key} = {value}" in shown for key, value in options)
    assert run("list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    for name, build in suite_builders().items():
        assert [Spec.from_data(data) for data in listed["suites"][name]] == list(build().specs())


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
    shared = Store(finished).metadata
    assert set(shared) >= {"weights wrn40_2 cifar10-c", "images cifar10-c gaussian_noise 5"}
    command = shared["commands"][0]["command"]
    assert command.startswith("driftproof bench run table1 --data ")
    assert command.endswith("--out .../out")
    assert str(files_at[1].parent) not in command, "folders of a machine are not recorded"


def test_repeated_or_longer_run_continues(finished, files_at, tmp_path, monkeypatch):
    methods = (*SELECTED_RUNS[:2], "--methods", "tent+crowd", "--closed", "--limit", 3)
    for out, stages in {"bits": [1, 2], "whole": [2]}.items():
        for rounds in stages:
            assert run("run", "table1", *files_at, *methods, "--rounds", rounds, "--out", tmp_path / out) == 0
    assert contents(tmp_path / "bits") == contents(tmp_path / "whole")
    before = contents(finished)
    monkeypatch.setattr(LocalFiles, "model", None)
    assert run("run", "table2", *files_at, *SELECTED_RUNS, "--out", finished) == 0, "table2 shares these runs"
    assert contents(finished) == before


def test_limited_open_run_averages_two_seeds(files_at, tmp_path, capsys):
    asked = ("--open", "--limit", 4, "--seeds", "0,1", "--methods", "source", "--images", "cifar10-c")
    assert run("run", "table2", *files_at, *asked, "--procedural-frost", "--out", tmp_path / "out") == 0
    cells = list(Store(tmp_path / "out").runs())
    assert sorted(cell.spec.seed for cell in cells) == [0, 1]
    assert {row["samples"] for cell in cells for row in cell.rows} == {8}
    assert Store(tmp_path / "out").metadata["frost"] == "made up"
    capsys.readouterr()
    assert run("compare", tmp_path / "out", "table2", "--json") == 0
    ((number,),) = ([v for v in table["values"] if v["ours"]] for table in json.loads(capsys.readouterr().out))
    mean = pytest.approx(np.mean([row["error"] for cell in cells for row in cell.rows]))
    expected = {"row": "source", "column": "CIFAR-10-C/Open", "seeds": 2, "reference": 18.27, "ours": mean}
    assert expected.items() <= number.items()


def test_run_rejects_other_settings_and_weights(finished, files_at, capsys, tmp_path):
    before = contents(finished)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalFiles, "fingerprints", None)  # refused before data are read
        for other, message in {
            ("--limit", 5): "limit was None and is 5 here",
            ("--procedural-frost",): "frost was 'photos' and is 'made up' here",
            ("--replace", "svhn-c=imagenet64-other-c"): "is {'svhn-c': 'imagenet64-other-c'} here",
            ("--prepare-on-test", "cifar10-c"): "prepared on test images was [] and is ['cifar10-c'] here",
        }.items():
            assert run("run", "table1", *files_at, *SELECTED_RUNS, "--rounds", 1, "--out", finished, *other) == 2
            assert message in capsys.readouterr().err
    assert contents(finished) == before
    other = tmp_path / "wrn40_2_cifar10.safetensors"
    save_checkpoint(other, TinyNetwork(), {"arch": "wrn40_2"})
    assert run("run", "table1", *files_at, *SELECTED_RUNS, "--rounds", 1, "--out", finished, "--weights", other) == 2
    assert "weights wrn40_2 cifar10-c was" in capsys.readouterr().err


def test_runs_with_missing_weights_do_not_stop_the_others(files_at, tmp_path, capsys):
    nowhere = ("--data", files_at[1], "--weights", tmp_path / "nowhere", "--out", tmp_path / "out")
    assert run("run", "table2", *nowhere, *SELECTED_RUNS, "--limit", 3) == 1
    assert "Expected weights of wrn40_2 for cifar10" in capsys.readouterr().err
    assert not (tmp_path / "out").exists(), "so that the corrected command works"
    asked = ("--images", "cifar10-c", "--methods", "tent,tent+crowd", "--rounds", 1, "--limit", 3)
    assert run("run", "s3", *files_at, *asked, "--out", tmp_path / "out") == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "2 of 4 runs failed; the others are done." in message
    assert message.count("Expected weights of wrn28_10 for cifar10") == 1, "once for all runs that need them"
    assert {cell.spec.model for cell in Store(tmp_path / "out").runs()} == {"wrn40_2"}
    assert not [fact for fact in Store(tmp_path / "out").metadata if "wrn28_10" in fact]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "tabel1"), "known suite, but got 'tabel1'. Did you mean table1"),
        (("run", "table1", "--executor", "locl"), "known executor, but got 'locl'. Did you mean local"),
        (("run", "table1", "--replace", "svhn-c"), "`--replace` to be OLD=NEW, but got 'svhn-c'"),
        (("run", "table1", "--seeds", "0,one"), "`--seeds` to be integers, but got 'one'"),
        (("run", "table1", "--seeds", str(2**63)), f"`--seeds` to be from 0 to {2**63 - 1}"),
        (("run", "table1", "--device", "abacus"), "`--device` to be available on this machine"),
        (("run", "--option", "lr=1"), "`--option` to be METHOD.NAME=VALUE, but got 'lr=1'"),
        (("compare", "nowhere"), "known results folder or suite, but got 'nowhere'"),
        (("compare",), "Expected results in bench, but there are none."),
        (("export", "nowhere", "kept"), "Expected results in nowhere, but there are none."),
    ],
)
def test_usage_errors_exit_with_code_2_and_a_message(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())
