"""The benchmark over official files, and its commands."""

import dataclasses
import hashlib
import io
import itertools
import json
import pickle
import re
import shutil
from functools import partial

import numpy as np
import pytest
import scipy.io
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

import driftproof as dp
from driftproof.bench import SUITES, Results, Spec, Store, suite
from driftproof.bench.datasets import DATASETS
from driftproof.bench.local_files import LocalFiles, SourceImageBatches
from driftproof.bench.runner import ProgressEvent
from driftproof.cli import bench_progress, main
from driftproof.cli.bounded_progress import BoundedProgress
from driftproof.data import ArraySet, cifar10, corrupted
from driftproof.errors import ConfigurationError, InputError
from driftproof.models import MODELS, WideResNet, build_model, save_checkpoint
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


def test_a_published_set_is_read_where_it_is(files):
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


def test_a_seed_other_than_the_first_puts_the_images_in_an_order_of_its_own(files):
    write_cifar10_c(files.data, "fog")
    stored, first, second, again = (
        list(files.stream(on_cifar10("fog", unknown="svhn-c", seed=seed), rounds=1)) for seed in (0, 1, 2, 1)
    )
    assert torch.equal(images_of(first), images_of(again))
    orders = [images_of(batches)[torch.cat([batch.known for batch in batches])] for batches in (stored, first, second)]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(orders, 2))
    alike = [sorted(image.flatten().tolist() for image in images) for images in orders]
    assert alike[0] == alike[1] == alike[2], "the same images"


def test_the_frames_of_a_drive_keep_their_order_whatever_the_seed():
    assert DATASETS["camvid-c"].order(0) == DATASETS["camvid-c"].order(1) == Stored()


def test_what_is_stored_class_by_class_is_shuffled_by_every_seed():
    assert [DATASETS["tiny-imagenet-c"].order(seed) for seed in (0, 1)] == [Shuffled(0), Shuffled(1)]


def test_a_few_images_of_a_set_that_is_not_there_are_computed_and_nothing_is_kept(files):
    few, whole = on_cifar10("brightness", "contrast", limit=5), on_cifar10("brightness", "contrast")
    told = []
    computed = images_of(files.stream(few, 1, lambda stage, done: told.append(stage)))
    assert not told
    assert not (files.data / "CIFAR-10-C-made").exists()
    made = images_of(files.stream(whole, 1)).reshape(2, 12, 3, 32, 32)
    assert torch.equal(computed, made[:, :5].flatten(0, 1))


def test_a_set_that_is_not_there_is_made_once_and_kept(files, monkeypatch):
    told, spec = [], on_cifar10("brightness", "contrast")
    stream = files.stream(spec, 1, lambda stage, done: told.append((stage, done)))
    clean = torch.from_numpy(pixels(12, seed=12)).permute(0, 3, 1, 2)
    expected = [dp.corruptions.corrupt(clean, name, 5, dataset="cifar10") / 255 for name in spec.domains]
    assert torch.equal(images_of(stream), torch.cat(expected))
    assert told == [(f"cifar10-c/{name}/5", 12) for name in spec.domains]
    monkeypatch.setattr(corrupted.Corrupted, "batch", None)
    again = LocalFiles(files.data, files.weights).stream(spec, 1, told.append)
    assert torch.equal(images_of(again), torch.cat(expected))


def test_unknown_images_make_up_half_of_an_open_stream(files):
    write_cifar10_c(files.data, "fog")
    stream = files.stream(on_cifar10("fog", unknown="svhn-c"), rounds=1)
    batches = list(stream)
    assert [batch.known.tolist() for batch in batches] == [[True, True, False, False]] * 6
    assert all((batch.labels == -1).equal(~batch.known) for batch in batches)
    digits = torch.from_numpy(pixels(9, seed=7)).permute(0, 3, 1, 2)
    unknown = torch.cat([batch.images[~batch.known] for batch in batches])
    foggy = dp.corruptions.corrupt(digits, "fog", 5, dataset="svhn", constants=32) / 255
    assert torch.equal(unknown, torch.cat([foggy, foggy[:3]])), "all of them, then again from the first"
    assert (files.data / "SVHN-C" / "fog" / "5.npy").exists()


def test_sets_stored_by_class_are_shuffled_by_the_seed(tmp_path):
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


def test_frost_photos_are_needed_only_where_frost_is_made(files, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="Frost needs photos"):
        files.stream(on_cifar10("frost"), 1)
    procedural = LocalFiles(files.data, files.weights, use_procedural_frost=True)
    procedural.stream(on_cifar10("frost"), 1)
    assert json.loads((files.data / "CIFAR-10-C-made" / "frost" / "5.json").read_text())["frost"] == "procedural"
    with pytest.raises(InputError, match=r"frost1\.png"):
        LocalFiles(files.data, files.weights, frost=files.data).stream(on_cifar10("frost"), 1)
    write_cifar10_c(files.data, "frost")
    assert len(files.stream(on_cifar10("frost"), 1)) == 3, "a published set has its frost already"


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
def test_weights_are_found_by_network_and_set(files, suffix):
    trained = write_weights(files.weights, "wrn10_1_cifar10.safetensors")
    if suffix != ".safetensors":
        (files.weights / "wrn10_1_cifar10.safetensors").unlink()
        torch.save({"state_dict": trained.state_dict()}, files.weights / f"wrn10_1_cifar10{suffix}")
    model = files.model(on_cifar10("fog"))
    assert not model.training
    assert all(torch.equal(found, trained.state_dict()[name]) for name, found in model.state_dict().items())


def test_weights_are_found_where_robustbench_keeps_them(files):
    trained = build_model("wrn40_2")
    path = files.weights / "cifar10" / "corruptions" / "Hendrycks2020AugMix_WRN.pt"
    path.parent.mkdir(parents=True)
    torch.save({f"module.{name}": value for name, value in trained.state_dict().items()}, path)
    model = files.model(dataclasses.replace(on_cifar10("fog"), model="wrn40_2"))
    assert torch.equal(model.fc.weight, trained.fc.weight)


def test_a_folder_without_some_of_its_classes_is_refused(files):
    for identifier in ("n01443537", "n01629819"):
        folder = files.data / "Tiny-ImageNet-C" / "fog" / "5" / identifier
        folder.mkdir(parents=True)
        Image.new("RGB", (64, 64)).save(folder / "0.JPEG")
    spec = dataclasses.replace(on_cifar10("fog"), images="tiny-imagenet-c", model="resnet50")
    with pytest.raises(InputError, match="all 200 classes, but it has 2"):
        files.stream(spec, rounds=1)


def test_weights_that_are_not_there_are_named(files):
    with pytest.raises(InputError, match=r"wrn10_1_cifar10.safetensors or wrn10_1_cifar10.pt, .*driftproof train"):
        files.model(on_cifar10("fog"))
    with pytest.raises(InputError, match=r"or cifar10/corruptions/Hendrycks2020AugMix_WRN\.pt, but"):
        files.model(dataclasses.replace(on_cifar10("fog"), model="wrn40_2"))
    with pytest.raises(InputError, match="svhn-c only ever is unknown"):
        files.model(dataclasses.replace(on_cifar10("fog"), images="svhn-c"))
    with pytest.raises(ConfigurationError, match="Did you mean cifar10-c"):
        files.model(dataclasses.replace(on_cifar10("fog"), images="cifar10c"))


def test_weights_of_another_network_are_refused(files):
    write_weights(files.weights, "wrn10_1_cifar10.safetensors", arch="wrn16_1")
    with pytest.raises(
        InputError, match="a wrn10_1 for the 10 classes of cifar10-c, but it says it is a wrn16_1 for 10"
    ):
        files.model(on_cifar10("fog"))
    write_weights(files.weights, "wrn10_1_cifar10.safetensors", classes=6)
    with pytest.raises(InputError, match="but it says it is a wrn10_1 for 6"):
        files.model(on_cifar10("fog"))


def test_data_that_is_not_there_is_named(files):
    with pytest.raises(ConfigurationError, match="corruption"):
        files.stream(on_cifar10("fgo"), 1)
    (files.data / "cifar-10-batches-py").rename(files.data / "elsewhere")
    with pytest.raises(InputError, match=r"cifar-10-batches-py.*data get cifar10"):
        files.stream(on_cifar10("fog"), 1)
    write_cifar10_c(files.data, "fog")
    (files.data / "test_32x32.mat").unlink()
    with pytest.raises(InputError, match=r"test_32x32\.mat.*data get svhn"):
        files.stream(on_cifar10("fog", unknown="svhn-c"), 1)


def test_source_images_come_in_one_fixed_random_order(files):
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


def test_clean_test_images_can_stand_in_for_training_images(files):
    stand_in = dataclasses.replace(files, prepared_on_test=("cifar10-c",))
    images, labels = (torch.cat(part) for part in zip(*stand_in.source(on_cifar10("fog"), "cpu"), strict=True))
    clean = cifar10(files.data)
    order = [(clean.batch(range(len(clean))) / 255 == image).flatten(1).all(dim=1).nonzero().item() for image in images]
    assert sorted(order) == list(range(len(clean)))
    assert torch.equal(labels, clean.labels[order])
    assert pickle.loads(pickle.dumps(stand_in)).prepared_on_test == ("cifar10-c",)


@given(st.integers(1, 16), st.data())
def test_a_fingerprint_tells_sets_apart_by_any_pixel_and_any_label(count, data):
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


def test_facts_are_the_checksums_of_what_a_cell_rests_on(files):
    write_weights(files.weights)
    write_cifar10_c(files.data, "fog", "snow")
    told, spec = [], on_cifar10("fog", unknown="svhn-c")
    facts = files.fingerprints(spec, lambda stage, done: told.append(stage))
    (weights,) = files.weights.iterdir()
    assert facts["weights wrn10_1 cifar10-c"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert set(facts) == {"weights wrn10_1 cifar10-c", "images cifar10-c fog 5", "images svhn-c fog 5"}
    assert told == ["svhn-c/fog/5"]
    assert facts == files.fingerprints(spec) == LocalFiles(files.data, files.weights).fingerprints(spec)
    other = files.fingerprints(on_cifar10("snow"))
    assert other["images cifar10-c snow 5"] != facts["images cifar10-c fog 5"], "each domain has its own"


def test_files_can_be_sent_to_another_process(files):
    write_weights(files.weights)
    write_cifar10_c(files.data, "fog")
    files.fingerprints(on_cifar10("fog"))
    sent = pickle.loads(pickle.dumps(files))
    assert sent == files
    assert len(pickle.dumps(files)) < 2000, "what is open here is opened again there"
    assert torch.equal(*(images_of(bench.stream(on_cifar10("fog"), 1)) for bench in (files, sent)))


# The commands


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["bench", *map(str, arguments)])
    return ended.value.code


@pytest.fixture(scope="module")
def small_wrn():
    """For a while, what goes by the name of WRN-40-2 is a WRN-10-1."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "wrn40_2", dataclasses.replace(MODELS["wrn40_2"], build=partial(WideResNet, 10, 1)))
        yield


@pytest.fixture(scope="module")
def files_at(small_wrn, tmp_path_factory):
    """The options that say where data and weights are."""
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
    assert run("run", "table1", *files_at, *CHOSEN, "--rounds", 1, "--out", out) == 0
    return out


CHOSEN = ("--sets", "cifar10-c", "--methods", "source,tent+crowd", "--closed")


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
        made = suite(name)
        (line,) = (line for line in lines if f"│ {name} " in line)
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        assert cells == [name, made.title, str(made.rounds), str(len(list(made.specs()))), made.note]


def test_list_shows_every_hyper_parameter_when_asked(capsys, wide):
    assert run("list", "-v") == 0
    out = capsys.readouterr().out
    for name in SUITES:
        for spec in suite(name).specs():
            assert ", ".join(f"{key} = {value}" for key, value in spec.options) in out
    (line,) = {line for line in out.splitlines() if "eata+crowd" in line and "tiny" in line and "imagenet-o" in line}
    for shown in ("fisher = 2000.0", "fisher_samples = 2000", "lr = 0.001", "mean_entropy = 0.5", "resnet50", "200"):
        assert shown in line
    assert "The paper does not say how many rounds" in out


def test_a_narrow_terminal_loses_no_letter(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert run("list") == run("list", "-v") == 0
    assert "…" not in capsys.readouterr().out


def test_list_for_scripts_is_every_spec(capsys):
    assert run("list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert list(listed) == list(SUITES)
    for name, specs in listed.items():
        assert [Spec.from_data(data) for data in specs] == list(suite(name).specs())


def test_a_run_measures_what_the_network_does(finished, files_at):
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


def test_the_same_command_again_does_nothing(finished, files_at, monkeypatch):
    before = contents(finished)
    monkeypatch.setattr(LocalFiles, "model", None)
    assert run("run", "table1", *files_at, *CHOSEN, "--rounds", 1, "--out", finished) == 0
    assert run("run", "table2", *files_at, *CHOSEN, "--out", finished) == 0, "it shows the same runs"
    assert contents(finished) == before


def test_more_rounds_go_on_where_the_last_ended(files_at, tmp_path):
    methods = (*CHOSEN[:2], "--methods", "tent+crowd", "--closed", "--limit", 3)
    for out, stages in {"bits": [1, 2], "whole": [2]}.items():
        for rounds in stages:
            assert run("run", "table1", *files_at, *methods, "--rounds", rounds, "--out", tmp_path / out) == 0
    assert contents(tmp_path / "bits") == contents(tmp_path / "whole")
    (cell,) = Store(tmp_path / "bits").runs()
    assert [row["round"] for row in cell.rows] == [1] * 15 + [2] * 15


def test_a_limited_open_run_of_two_seeds(files_at, tmp_path, capsys):
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
    ("other", "said"),
    [
        (("--limit", 5), "limit was None and is 5 here"),
        (("--procedural-frost",), "frost was 'photos' and is 'made up' here"),
        (("--replace", "svhn-c=imagenet64-other-c"), "replaced was {} and is {'svhn-c': 'imagenet64-other-c'} here"),
        (("--prepare-on-test", "cifar10-c"), "prepared on test images was [] and is ['cifar10-c'] here"),
    ],
)
def test_results_made_differently_are_refused_at_once(finished, files_at, capsys, monkeypatch, other, said):
    before = contents(finished)
    monkeypatch.setattr(LocalFiles, "fingerprints", None)
    assert run("run", "table1", *files_at, *CHOSEN, "--rounds", 1, "--out", finished, *other) == 2
    assert said in capsys.readouterr().err
    assert contents(finished) == before


def test_other_weights_are_refused(finished, files_at, capsys, tmp_path):
    before = contents(finished)
    torch.manual_seed(8)
    save_checkpoint(tmp_path / "wrn40_2_cifar10.safetensors", build_model("wrn40_2"), {"arch": "wrn40_2"})
    options = ("--data", files_at[1], "--weights", tmp_path)
    assert run("run", "table1", *options, *CHOSEN, "--rounds", 1, "--out", finished) == 2
    assert "weights wrn40_2 cifar10-c was" in capsys.readouterr().err
    assert contents(finished) == before


def test_a_command_that_fails_leaves_no_folder_behind(files_at, tmp_path, capsys):
    nowhere = ("--data", files_at[1], "--weights", tmp_path / "nowhere")
    assert run("run", "table2", *nowhere, *CHOSEN, "--limit", 3, "--out", tmp_path / "out") == 2
    assert "Expected weights of wrn40_2 for cifar10" in capsys.readouterr().err
    assert not (tmp_path / "out").exists(), "so the corrected command is not refused"
    replaced = ("--replace", "cifar10-c=cifar10", "--out", tmp_path / "out")
    assert run("run", "table2", *files_at, *CHOSEN, *replaced) == 2
    assert "Did you mean cifar10-c" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_cells_whose_weights_are_missing_are_named_and_keep_no_others_from_being_run(files_at, tmp_path, capsys, wide):
    out = tmp_path / "out"
    asked = ("--sets", "cifar10-c", "--methods", "tent,tent+crowd", "--rounds", 1, "--limit", 3)
    assert run("run", "s3", *files_at, *asked, "--out", out) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "2 of 4 cells failed; the others are done." in said
    assert said.count("Expected weights of wrn28_10 for cifar10") == 1, "once for all cells that want them"
    assert {cell.spec.model for cell in Store(out).runs()} == {"wrn40_2"}
    assert not [fact for fact in Store(out).metadata if "wrn28_10" in fact]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "tabel1"), "known suite, but got 'tabel1'. Did you mean table1"),
        (("run", "table1", "--methods", "tnet"), "Did you mean tent"),
        (("run", "table1", "--methods", "tent,cotta"), "known method of table1, but got 'cotta'"),
        (("run", "table1", "--sets", "cifar10"), "Did you mean cifar10-c"),
        (("run", "table1", "--executor", "locl"), "known executor, but got 'locl'. Did you mean local"),
        (("run", "table1", "--replace", "svhn-c"), "`--replace` to be given as OLD=NEW, but got 'svhn-c'"),
        (("run", "table1", "--replace", "svhnc=x"), "Did you mean svhn-c"),
        (("run", "table1", "--seeds", "0,one"), "`--seeds` to be whole numbers, but got 'one'"),
        (("run", "table1", "--seeds", ","), "`--seeds` to name something, but got ','"),
        (("run", "table1", "--methods", ""), "`--methods` to name something, but got ''"),
        (("run", "table1", "--seeds", str(2**63)), f"`--seeds` to be from 0 to {2**63 - 1}"),
        (("run", "table1", "--seeds=-1"), f"`--seeds` to be from 0 to {2**63 - 1}"),
        (("run", "table1", "--rounds", "0"), "`rounds` to be at least 1, but got 0"),
        (("run", "table1", "--limit", "0"), "`limit` to be at least 1, but got 0"),
        (("run", "table1", "--engine", "grph"), "`engine` to be one of eager, compile, graph, but got 'grph'"),
        (("run", "table1", "--precision", "bf61"), "`precision` to be one of fp32, tf32, bf16, but got 'bf61'"),
        (("run", "table1", "--device", "abacus"), "`--device` to be one that this machine has"),
        (("run", "table1", "--methdos", "tent"), "--methods"),
        (("compare", "nowhere"), "Expected results in nowhere, but there are none."),
        (("report", "nowhere"), "Expected results in nowhere, but there are none."),
        (("export", "nowhere", "kept"), "Expected results in nowhere, but there are none."),
        (("summarize", "nowhere"), "Expected archives in nowhere, each in a folder of its own, but there are none."),
        (("summarize", "."), "`driftproof bench export` makes them"),
        (("run", "table1", "--sets", "cifar10-c"), " more: Expected weights of wrn40_2 for cifar10 in weights"),
    ],
)
def test_mistakes_are_answered_in_words_and_with_status_2(tmp_path, monkeypatch, capsys, wide, words, said):
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["{}", "5", '{"round": 1}', None])
def test_rows_that_somebody_damaged_are_named(finished, tmp_path, capsys, wide, damage):
    shutil.copytree(finished, tmp_path / "damaged")
    (rows, *_) = sorted((tmp_path / "damaged").glob("cells/*/rows.jsonl"))
    if damage is None:
        rows.with_name("conditions.jsonl").unlink()
    else:
        rows.write_text(rows.read_text() + f"{damage}\n")
    for words in (("compare",), ("report",), ("export", tmp_path / "archive")):
        assert run(words[0], tmp_path / "damaged", *words[1:]) == 2
        assert f"of every row of {rows.parent.name} in" in " ".join(capsys.readouterr().err.split())


def test_compare_shows_ours_beside_the_papers(finished, capsys, wide):
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


def test_compare_says_how_the_numbers_differ_from_the_papers_in_kind(finished, files_at, tmp_path, capsys, wide):
    few = ("--sets", "cifar10-c", "--methods", "source", "--rounds", 1, "--limit", 3)
    instead = ("--replace", "svhn-c=other", "--replace", "cifar100-c=another")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, "other", DATASETS["svhn-c"])
        patch.setitem(DATASETS, "another", DATASETS["cifar100-c"])
        assert run("run", "table2", *files_at, *few, *instead, "--out", tmp_path) == 0
    for folder, said in ((finished, 0), (tmp_path, 1)):
        capsys.readouterr()
        assert run("compare", folder) == 0
        (table2,) = re.findall(r"Error after one round.*?(?=\n\n\S|\Z)", capsys.readouterr().out, re.DOTALL)
        assert table2.count("Only the first 3 images of each domain.") == said
        assert table2.count("other stands in for svhn-c.") == said
        assert "another" not in table2, "no number here is on what it stands in for"


def test_report_writes_one_page(finished, tmp_path, capsys):
    assert run("report", finished, "--out", tmp_path / "report") == 0
    page = tmp_path / "report" / "index.html"
    assert capsys.readouterr().out.split() == [str(page)]
    assert "tent+crowd" in page.read_text()


def test_a_run_that_was_killed_before_it_saved_anything_is_answered_in_words(tmp_path, capsys, wide):
    (spec, *_) = suite("table1").specs()
    cell = Store(tmp_path / "out").run(spec)
    with cell.locked():
        cell.write_spec(spec, {})
    assert run("compare", tmp_path / "out") == 0
    assert capsys.readouterr().out == "No table has a number yet.\n"
    assert run("compare", tmp_path / "out", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert run("report", tmp_path / "out") == 2
    assert f"Expected rows in {tmp_path / 'out'}, but no cell has one yet" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out" / "report").exists()


# What is seen of a run


class Written:
    """A progress display that remembers its lines."""

    def __init__(self):
        self.lines = {}

    def add_task(self, description, total=None):
        self.lines[len(self.lines)] = description
        return len(self.lines) - 1

    def update(self, task, *, completed, total, description):
        self.lines[task] = (description, completed, total)


def test_every_cell_at_work_has_a_line_that_says_what_it_does():
    shown, spec = Written(), Spec("tent", "cifar10-c", "wrn40_2", domains=("fog",))
    seeded = dataclasses.replace(spec, unknown="svhn-c", seed=3)
    costs = dataclasses.replace(spec, method="tent,eata", task="costs")
    told = bench_progress._ProgressLines(shown, [spec, seeded, costs])
    notes = {
        ProgressEvent(spec, "svhn-c/fog/5", 40): ("tent on cifar10-c, closed: svhn-c/fog/5, 40 images", 40, None),
        ProgressEvent(spec, "adapting", 1, 9): ("tent on cifar10-c, closed: adapting", 1, 9),
    }
    for note, line in notes.items():
        told(note)
        assert shown.lines[0] == line
    told(ProgressEvent(spec, "measured", 3, 9, {"round": 1, "domain": "fog", "error": 12.34}))
    told(ProgressEvent(spec, "adapting", 4, 9))
    assert shown.lines[0] == ("tent on cifar10-c, closed: round 1, fog 12.3 %", 4, 9)
    told(ProgressEvent(seeded, "failed", 0))
    assert shown.lines[1] == ("tent on cifar10-c, open, seed 3: failed", 0, None)
    told(ProgressEvent(costs, "timing", 0))
    assert shown.lines[2] == ("costs on cifar10-c, closed: timing", 0, None)
    told(ProgressEvent(costs, "measured", 2, 2, {"round": 1, "domain": "tent", "memory": 5.0}))
    assert shown.lines[2] == ("costs on cifar10-c, closed: round 1, tent", 2, 2)


def test_cells_that_would_be_called_the_same_say_what_differs():
    shown, specs = Written(), [spec for name in ("table8", "table7", "table4") for spec in suite(name).specs()]
    told = bench_progress._ProgressLines(shown, specs)
    for spec in specs:
        told(ProgressEvent(spec, "measured", 1, 2, {"round": 1, "domain": "fog", "error": 12.34}))
    titles = [description.partition(":")[0] for description, *_ in shown.lines.values()]
    assert len(set(titles)) == len(specs)
    assert titles[0] == "source on tiny-imagenet-c, closed", "there is one"
    assert "tent on tiny-imagenet-c, closed, lr=0.0005, batches of 200" in titles
    assert "tent on driving-val, gtav" in {title.replace(", framed=True", "") for title in titles}
    assert {line[1:] for line in shown.lines.values()} == {(1, 2)}
    told(ProgressEvent(specs[1], "failed", 0))
    assert shown.lines[1] == (f"{titles[1]}: failed", 0, None)


def test_a_log_names_every_failure_however_soon_it_comes(capsys, monkeypatch):
    spec = Spec("tent", "cifar10-c", "wrn40_2", domains=("fog",))
    others = [dataclasses.replace(spec, method=method) for method in ("gce", "ent")]
    monkeypatch.setattr(bench_progress, "monotonic", lambda: 0.0)
    with bench_progress.progress_display([spec, *others]) as told:
        told(ProgressEvent(spec, "measured", 1, 2, {"round": 1, "domain": "fog", "error": 12.0}))
        for other in others:
            told(ProgressEvent(other, "failed", 0))
        said = capsys.readouterr().err.splitlines()
        assert said[1:] == [f"{other.method} on cifar10-c, closed: failed" for other in others]


def test_a_log_gets_a_line_of_what_is_measured_every_ten_seconds(capsys, monkeypatch):
    spec, now = Spec("tent", "a-set-with-a-long-name", "wrn40_2", domains=("impulse_noise",)), [0.0]
    monkeypatch.setattr(bench_progress, "monotonic", lambda: now[0])
    with bench_progress.progress_display([spec]) as told:
        for seconds, measure, value in [(0, "error", 12.34), (9, "error", 13.0), (10, "mean_iou", 56.78)]:
            now[0] = float(seconds)
            told(ProgressEvent(spec, "adapting", 1, 2))
            told(ProgressEvent(spec, "measured", 2, 2, {"round": 12, "domain": "impulse_noise", measure: value}))
            line = f"tent on a-set-with-a-long-name, closed: round 12, impulse_noise {value:.1f} %\n"
            assert capsys.readouterr().err == ("" if seconds == 9 else line)


def test_a_log_is_not_silent_while_something_is_prepared(capsys, monkeypatch):
    spec, now = Spec("tent", "camvid-c", "deeplab", domains=("fog",), measures=("iou",)), [0.0]
    monkeypatch.setattr(bench_progress, "monotonic", lambda: now[0])
    with bench_progress.progress_display([spec]) as told:
        for seconds, said in [(0, "learning shares"), (5, ""), (11, "learning shares, 110 images")]:
            now[0] = float(seconds)
            told(ProgressEvent(spec, "learning shares", 10 * seconds))
            assert capsys.readouterr().err == (said and f"tent on camvid-c: {said}\n")


def test_a_cell_at_work_is_seen_however_many_came_before_it():
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
    assert all(f"cell {number} " in console.file.getvalue() for number in range(20)), "at the end all are left to read"
