"""Corrupted sets on demand, cached and written as files; the commands `corrupt`, `train` and `data`."""

import errno
import importlib.util
import json
import os
import pickle
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

import driftproof as dp
from driftproof.cli import main
from driftproof.corruptions import CORRUPTIONS, FrostPhotos, corrupt, jpeg
from driftproof.data import (
    ArraySet,
    Corrupted,
    FileSet,
    ResizeShorterSide,
    cache_to_disk,
    corrupted,
    folder,
    imagenet_o,
    imagenet_o_c,
    open_dataset,
    svhn_c,
    write_files,
)
from driftproof.data.npy_rows import write_rows
from driftproof.files import atomic_write
from driftproof.models import build_from_checkpoint
from test_corruptions import FROST, make_images


@pytest.fixture
def clean():
    return ArraySet(make_images(25), torch.arange(25) % 5, classes=tuple("abcde"), name="set")


def test_corrupted_set_applies_the_corruption(clean):
    images = Corrupted(clean, "fog", 4)
    assert images.name == "set-c/fog/4"
    assert images.classes == clean.classes
    assert torch.equal(images.labels, clean.labels)
    whole = corrupt(clean.batch(range(25)), "fog", 4, dataset="set")
    assert torch.equal(images.batch([7, 3]), whole[[7, 3]])
    resaved = Corrupted(clean, "fog", 4, resave=85)
    assert torch.equal(resaved.batch([7]), jpeg(whole[7:8], 85))


def test_missing_frost_photos_raise_before_streaming(clean, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert torch.equal(
        cache_to_disk(Corrupted(clean, "fog", 4), tmp_path, make=False).batch([3]),
        Corrupted(clean, "fog", 4).batch([3]),
    )
    with pytest.raises(dp.errors.InputError, match="Frost needs photos"):
        cache_to_disk(Corrupted(clean, "frost", 4), tmp_path, make=False)
    given = Corrupted(clean, "frost", 4, frost_photos=FROST)
    assert cache_to_disk(given, tmp_path, make=False) is given


def test_cached_set_is_generated_once(clean, tmp_path, monkeypatch):
    images = Corrupted(clean, "gaussian_noise", 5)
    events = []
    first = cache_to_disk(images, tmp_path, progress=lambda name, done: events.append((name, done)))
    assert events[-1] == (images.name, 25)
    assert torch.equal(first.batch(range(25)), images.batch(range(25)))
    monkeypatch.setattr(Corrupted, "batch", None)
    again = cache_to_disk(images, tmp_path)
    assert torch.equal(again.batch([4]), first.batch([4]))
    assert torch.equal(again.labels, clean.labels)


def test_interrupted_generation_resumes_with_equal_bytes(clean, tmp_path, monkeypatch):
    monkeypatch.setattr(corrupted, "_CHUNK_SIZE", 10)
    images = Corrupted(clean, "shot_noise", 3)
    cache_to_disk(images, tmp_path / "whole")
    batch_sizes = []

    class PowerCutError(Exception):
        pass

    def cut(_, done):
        if done == 20:
            raise PowerCutError

    with pytest.raises(PowerCutError):
        cache_to_disk(images, tmp_path / "cut", progress=cut)
    assert not (tmp_path / "cut" / "shot_noise" / "3.npy").exists(), "an unfinished set has another name"
    original = Corrupted.batch
    monkeypatch.setattr(
        Corrupted, "batch", lambda self, places: batch_sizes.append(len(places)) or original(self, places)
    )
    cache_to_disk(images, tmp_path / "cut")
    assert batch_sizes == [5], "only the missing images"
    whole, cut_short = ((tmp_path / name / "shot_noise" / "3.npy").read_bytes() for name in ("whole", "cut"))
    assert whole == cut_short
    assert sorted(path.name for path in (tmp_path / "cut" / "shot_noise").iterdir()) == ["3.json", "3.npy"]


def test_partial_set_of_another_protocol_is_discarded(clean, tmp_path, monkeypatch):
    monkeypatch.setattr(corrupted, "_CHUNK_SIZE", 10)

    def cut(_, done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache_to_disk(Corrupted(clean, "fog", 5, constants=64), tmp_path, progress=cut)
    images = Corrupted(clean, "fog", 5)
    assert torch.equal(cache_to_disk(images, tmp_path).batch(range(25)), images.batch(range(25)))


def test_cached_set_of_another_protocol_raises(clean, tmp_path):
    cache_to_disk(Corrupted(clean, "fog", 5), tmp_path)
    with pytest.raises(dp.errors.InputError, match="constants was None and is 64 here"):
        cache_to_disk(Corrupted(clean, "fog", 5, constants=64), tmp_path)
    cache_to_disk(Corrupted(clean, "frost", 5, frost_photos=FROST), tmp_path)
    assert json.loads((tmp_path / "frost" / "5.json").read_text())["frost"] == "procedural"
    (tmp_path / "fog" / "5.json").write_text("{")
    with pytest.raises(dp.errors.InputError, match="protocol"):
        cache_to_disk(Corrupted(clean, "fog", 5), tmp_path)


def test_damaged_cached_set_raises(clean, tmp_path):
    images = Corrupted(clean, "contrast", 5)
    cache_to_disk(images, tmp_path)
    path = tmp_path / "contrast" / "5.npy"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(dp.errors.InputError, match=r"complete \.npy file"):
        cache_to_disk(images, tmp_path)


def test_concurrent_requests_generate_a_set_once(clean, tmp_path, monkeypatch):
    images, generated = Corrupted(clean, "contrast", 5), []
    expected, compute = images.batch(range(len(clean))), Corrupted.batch

    def compute_slowly(self, places):
        generated.extend(places.tolist())
        time.sleep(0.02)
        return compute(self, places)

    monkeypatch.setattr(Corrupted, "batch", compute_slowly)
    monkeypatch.setattr(corrupted, "_CHUNK_SIZE", 2)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: cache_to_disk(images, tmp_path).batch(range(len(clean))), range(3)))
    assert all(torch.equal(pixels, expected) for pixels in found)
    assert generated == list(range(len(clean)))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_is_an_error_with_the_name_of_the_file():
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"), write_rows(Path("/dev/full"), (2, 3)):
        pass


def test_generation_resumes_after_a_full_disk(clean, tmp_path, monkeypatch):
    images = Corrupted(clean, "contrast", 3)
    monkeypatch.setattr(corrupted, "_CHUNK_SIZE", 10)
    whole = cache_to_disk(images, tmp_path / "whole").batch(range(25))

    @contextmanager
    def fill_up(*arguments, **options):
        with write_rows(*arguments, **options) as write:

            def write_first(index, rows):
                if index:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "3.part.npy")
                write(index, rows)

            yield write_first

    with monkeypatch.context() as patched:
        patched.setattr(corrupted, "write_rows", fill_up)
        with pytest.raises(OSError, match=r"3\.part\.npy"):
            cache_to_disk(images, tmp_path / "full")
    done = []
    resumed = cache_to_disk(images, tmp_path / "full", progress=lambda _, count: done.append(count))
    assert done == [20, 25]
    assert torch.equal(resumed.batch(range(25)), whole)


@pytest.fixture
def photos(tmp_path):
    root = tmp_path / "photos"
    for index, pixels in enumerate(make_images(6, 40)):
        path = root / ("cat" if index < 3 else "dog") / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path)
    return root


def test_files_are_written_once_in_the_same_folders(photos, tmp_path):
    images = Corrupted(folder(photos, size=(32, 32)), "brightness", 2)
    destination = tmp_path / "out"
    assert write_files(images, destination) == 6
    assert write_files(images, destination) == 0
    written = sorted(path.relative_to(destination).as_posix() for path in destination.rglob("*.png"))
    assert written == [f"brightness/2/{kind}/{n}.png" for n, kind in enumerate(["cat"] * 3 + ["dog"] * 3)]
    (destination / written[1]).unlink()
    assert write_files(images, destination) == 1
    read = folder(destination / "brightness" / "2")
    assert torch.equal(read.batch(range(6)), images.batch(range(6)))
    with pytest.raises(dp.errors.InputError, match="format was png and is jpeg"):
        write_files(images, destination, file_format="jpeg")
    write_files(images, tmp_path / "published", file_format="jpeg")
    read = folder(tmp_path / "published" / "brightness" / "2")
    assert {path.suffix for path in read.paths} == {".JPEG"}
    assert torch.equal(read.batch(range(6)), jpeg(images.batch(range(6)), 85))


@pytest.mark.parametrize(
    ("source", "side", "size", "expected"),
    [
        ("JPEG", 128, None, ".JPEG"),
        ("jpg", 130, None, ".JPEG"),
        ("JPEG", 127, None, ".png"),
        ("JPEG", 130, (140, 64), ".png"),
        ("JPEG", 90, (128, 200), ".JPEG"),
        ("JPEG", 200, ResizeShorterSide(140, 120), ".png"),
        ("png", 130, None, ".png"),
        ("bmp", 130, None, ".png"),
    ],
)
def test_files_are_jpeg_only_where_the_source_is_and_images_are_large(source, side, size, expected, tmp_path):
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (side + 3, side), "teal").save(tmp_path / "photos" / f"0.{source}")
    write_files(Corrupted(folder(tmp_path / "photos", size=size), "contrast", 1), tmp_path / "out")
    assert (tmp_path / "out" / "contrast" / "1" / f"0{expected}").exists()


def test_folder_written_before_the_format_was_noted_holds_jpeg(photos, tmp_path):
    images = Corrupted(folder(photos), "contrast", 1)
    write_files(images, tmp_path / "out", file_format="jpeg")
    noted = tmp_path / "out" / "contrast" / "1" / ".protocol.json"
    noted.write_text(
        json.dumps({key: value for key, value in json.loads(noted.read_text()).items() if key != "format"})
    )
    assert write_files(images, tmp_path / "out", file_format="jpeg") == 0
    with pytest.raises(dp.errors.InputError, match="format was jpeg and is png"):
        write_files(images, tmp_path / "out")


def test_single_class_keeps_its_folder(photos, tmp_path):
    shutil.rmtree(photos / "dog")
    write_files(Corrupted(folder(photos), "contrast", 3), tmp_path / "out")
    assert folder(tmp_path / "out" / "contrast" / "3").classes == ("cat",)


def test_destination_inside_the_source_raises(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for inside in (photos, photos / "cat" / "made", Path("photos", "made")):
        with pytest.raises(dp.errors.InputError, match="destination outside"):
            write_files(Corrupted(folder(photos), "fog", 1), inside)
    assert write_files(Corrupted(folder(photos), "contrast", 1), tmp_path / "photos-c") == 6


def test_files_keep_their_sizes(photos, tmp_path):
    Image.new("RGB", (50, 36), (10, 200, 30)).save(photos / "cat" / "wide.png")
    write_files(Corrupted(folder(photos), "contrast", 3), tmp_path / "out")
    with Image.open(tmp_path / "out" / "contrast" / "3" / "cat" / "wide.png") as wide:
        assert wide.size == (50, 36)


def test_files_of_another_protocol_raise(photos, tmp_path):
    write_files(Corrupted(folder(photos, size=(32, 32)), "frost", 2, frost_photos=FROST), tmp_path / "out")
    for size, frost in (((16, 16), FROST), ((32, 32), FrostPhotos(FROST.photos, "folder"))):
        with pytest.raises(dp.errors.InputError, match=r"made differently: (size was|frost was procedural)"):
            write_files(Corrupted(folder(photos, size=size), "frost", 2, frost_photos=frost), tmp_path / "out")
    Image.new("RGB", (40, 40)).save(sorted(photos.iterdir())[-1] / "more.png")
    assert write_files(Corrupted(folder(photos, size=(32, 32)), "frost", 2, frost_photos=FROST), tmp_path / "out") == 1


def test_write_files_needs_files_with_unique_names(clean, photos, tmp_path):
    with pytest.raises(dp.errors.InputError, match="array"):
        write_files(Corrupted(clean, "fog", 1), tmp_path)
    Image.new("RGB", (40, 40)).save(photos / "cat" / "0.bmp")
    with pytest.raises(dp.errors.InputError, match="two of them would become"):
        write_files(Corrupted(folder(photos), "fog", 1), tmp_path)


def write_array_folder(path, images):
    path.mkdir()
    np.save(path / "images.npy", images.permute(0, 2, 3, 1).numpy())
    np.save(path / "labels.npy", np.arange(len(images)) % 3)
    return path


def test_open_dataset_detects_the_layout(photos, tmp_path):
    assert isinstance(open_dataset(photos), FileSet)
    arrays = write_array_folder(tmp_path / "arrays", make_images(4))
    assert isinstance(open_dataset(arrays), ArraySet)
    (arrays / "cifar-10-batches-py").mkdir()
    with pytest.raises(dp.errors.InputError, match=r"cifar-10-batches-py and images\.npy"):
        open_dataset(arrays)


def test_svhn_c_is_generated_once(tmp_path, monkeypatch):
    images = make_images(12)
    scipy.io.savemat(
        tmp_path / "test_32x32.mat",
        {"X": images.permute(2, 3, 1, 0).numpy(), "y": np.arange(1, 13).reshape(-1, 1) % 10 + 1},
    )
    generated = svhn_c(tmp_path, "contrast", 5)
    assert generated.name == "svhn-c/contrast/5"
    assert torch.equal(generated.batch(range(12)), corrupt(images, "contrast", 5, dataset="svhn"))
    assert (tmp_path / "SVHN-C" / "contrast" / "5.npy").exists()
    monkeypatch.setattr(Corrupted, "batch", None)
    assert len(svhn_c(tmp_path, "contrast", 5)) == 12


def test_imagenet_o_c_is_resized_corrupted_and_saved_as_jpeg(tmp_path):
    for index, pixels in enumerate(make_images(4, 80)):
        path = tmp_path / "imagenet-o" / f"n0{index}" / "image.JPEG"
        path.parent.mkdir(parents=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path, quality=95)
    generated = imagenet_o_c(tmp_path, "brightness", 3)
    assert (generated.labels == -1).all()
    small = imagenet_o(tmp_path, size=(64, 64)).batch(range(4))
    expected = jpeg(corrupt(small, "brightness", 3, dataset="imagenet-o", constants=64), 85)
    assert torch.equal(generated.batch(range(4)), expected)
    assert imagenet_o_c(tmp_path, "brightness", 3, side=224).batch([0]).shape == (1, 3, 224, 224)
    with pytest.raises(dp.errors.ConfigurationError, match="64 or 224"):
        imagenet_o_c(tmp_path, "brightness", 3, side=128)


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def test_corrupt_command(photos, tmp_path, capsys):
    arrays = write_array_folder(tmp_path / "arrays", make_images(4))
    out = tmp_path / "arrays-c"
    options = ("--corruption", "fog", "--corruption", "frost", "--severity", 1, "--severity", 5, "--procedural-frost")
    assert run("corrupt", arrays, out, *options) == 0
    expected = corrupt(make_images(4), "fog", 5, dataset="arrays")
    assert torch.equal(torch.from_numpy(np.load(out / "fog" / "5.npy")).permute(0, 3, 1, 2), expected)
    assert np.load(out / "labels.npy").tolist() == [0, 1, 2, 0]
    assert run("corrupt", photos, tmp_path / "photos-c", "--corruption", "contrast", "--size", 32) == 0
    assert len(list((tmp_path / "photos-c").rglob("*.png"))) == 6
    options = ("--corruption", "contrast", "--size", 32, "--format", "jpeg")
    assert run("corrupt", photos, tmp_path / "published", *options) == 0
    assert len(list((tmp_path / "published").rglob("*.JPEG"))) == 6
    few = ("--corruption", "fog", "--limit", 2)
    assert run("corrupt", arrays, tmp_path / "few", *few) == run("corrupt", photos, tmp_path / "some", *few) == 0
    found = torch.from_numpy(np.load(tmp_path / "few" / "fog" / "5.npy")).permute(0, 3, 1, 2)
    assert torch.equal(found, expected[:2]), "the first images, as in the whole set"
    assert len(list((tmp_path / "some").rglob("*.png"))) == 2
    capsys.readouterr()
    assert run("corrupt", arrays, out, "--corruption", "contrst") == 2
    assert "Did you mean contrast" in " ".join(capsys.readouterr().err.split())
    assert run("corrupt", tmp_path / "nowhere", out) == 2


def test_corrupt_command_stacks_severities_as_in_cifar_c(tmp_path):
    images = make_images(20)
    arrays = write_array_folder(tmp_path / "arrays", images)
    out = tmp_path / "CIFAR-10-C"
    assert run("corrupt", arrays, out, "--corruption", "contrast", "--stack") == 0
    whole = np.load(out / "contrast.npy")
    assert whole.shape == (100, 32, 32, 3)
    third = torch.from_numpy(whole[40:60]).permute(0, 3, 1, 2)
    assert torch.equal(third, corrupt(images, "contrast", 3, dataset="arrays"))
    assert np.load(out / "labels.npy").tolist() == [index % 3 for index in range(20)] * 5


def write_cifar(root):
    """Write a tiny CIFAR-10 in its official format."""
    data = {}
    for name, count in (("data_batch_1", 20), ("test_batch", 10)):
        labels = torch.arange(count) % 10
        images = torch.randint(0, 60, (count, 3, 32, 32), dtype=torch.uint8)
        images[torch.arange(count), labels % 3] += 120
        data[name] = {b"data": images.flatten(1).numpy(), b"labels": labels.tolist()}
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, content in data.items():
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    names = {b"label_names": [str(digit).encode() for digit in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names, protocol=2))


def test_train_command_trains_resumes_and_saves(tmp_path, capsys):
    write_cifar(tmp_path)
    out = tmp_path / "weights.safetensors"
    options = ("train", "--model", "wrn10_1", "--data", tmp_path, "--out", out, "--epochs", 1)
    assert run(*options) == 0
    assert "epoch 1 of 1: loss" in capsys.readouterr().err
    model = build_from_checkpoint(out)
    assert model.fc.out_features == 10
    assert run(*options) == 0, "training is complete already"
    assert "epoch" not in capsys.readouterr().err
    again = build_from_checkpoint(out).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())
    onward = tmp_path / "onward.safetensors"
    assert run(*options[:5], "--out", onward, "--epochs", 1, "--weights", out, "--seed", 1) == 0
    assert run(*options[:5], "--out", onward, "--weights", tmp_path / "nowhere") == 2
    assert run("train", "--model", "wrn", "--data", tmp_path, "--out", out) == 2
    assert run("train", "--model", "wrn10_1", "--data", tmp_path, "--out", out, "--images", "mnist") == 2


def test_corrupt_command_defaults_to_all_fifteen(tmp_path):
    arrays = write_array_folder(tmp_path / "arrays", make_images(4))
    assert run("corrupt", arrays, tmp_path / "out") == 0
    assert sorted(path.parent.name for path in (tmp_path / "out").rglob("*.npy") if path.name == "5.npy") == sorted(
        CORRUPTIONS
    )


def test_data_commands(tmp_path, capsys):
    assert run("data", "list", "--json") == 0
    assert {"cifar10", "cifar10-c", "svhn"} <= {entry["name"] for entry in json.loads(capsys.readouterr().out)}
    assert run("data", "list") == 0
    assert "license" in capsys.readouterr().out
    assert run("data", "verify", "svhn", "--data", tmp_path, "--json") == 1
    assert json.loads(capsys.readouterr().out)["svhn"][0]["state"] == "missing"
    assert run("data", "verify", "--data", tmp_path) == 2, "an empty folder is not a verified one"
    assert run("data", "get", "cifr10", "--data", tmp_path) == 2
    assert "cifar10" in capsys.readouterr().err


def test_atomic_write_errors_name_the_target(tmp_path):
    (tmp_path / "taken").mkdir()
    for path in (tmp_path / "taken", tmp_path / "nowhere" / "file.txt"):
        with pytest.raises(OSError, match=path.name) as caught, atomic_write(path) as unfinished:
            unfinished.write_text("new")
        assert str(path) in str(caught.value)
        assert ".part" not in str(caught.value)
    assert [found.name for found in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("name", ["x" * 255, "写" * 85])
def test_atomic_write_supports_longest_names(tmp_path, name):
    with atomic_write(tmp_path / name) as unfinished:
        unfinished.write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_failed_atomic_write_leaves_no_files(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def write_and_fail():
        with atomic_write(path) as unfinished:
            unfinished.write_text("ne")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_and_fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_cached_set_of_other_images_raises(tmp_path):
    shades = np.repeat(np.uint8([0, 0, 255, 255]), 32 * 32 * 3).reshape(4, 32, 32, 3)
    whole = dp.data.ArraySet(shades, [0, 0, 1, 1], name="shades")
    dark, light = (dp.data.Subset(whole, places) for places in ([0, 1], [2, 3]))
    cache_to_disk(Corrupted(dark, "brightness", 1), tmp_path)
    with pytest.raises(dp.errors.InputError, match="clean was 2 images"):
        cache_to_disk(Corrupted(light, "brightness", 1), tmp_path)
    assert cache_to_disk(Corrupted(dark, "brightness", 1), tmp_path).batch([0]).float().mean() < 100


def test_new_files_must_sort_after_existing_ones(tmp_path):
    source, generated = tmp_path / "source", tmp_path / "made"
    source.mkdir()

    def write():
        return write_files(Corrupted(dp.data.folder(source), "gaussian_noise", 5), generated)

    for name in ("b", "c"):
        Image.new("RGB", (32, 32), "grey").save(source / f"{name}.png")
    assert write() == 2
    Image.new("RGB", (32, 32), "grey").save(source / "d.png")
    assert write() == 1
    Image.new("RGB", (32, 32), "grey").save(source / "a.png")
    with pytest.raises(dp.errors.InputError, match="sorts before or is gone"):
        write()


def test_corrupt_command_rejects_other_labels(tmp_path, capsys):
    first, second = (write_array_folder(tmp_path / name, make_images(count)) for name, count in (("a", 4), ("b", 5)))

    def run(source, *words):
        with pytest.raises(SystemExit) as ending:
            main(["corrupt", str(source), str(tmp_path / "out"), *words])
        return ending.value.code

    assert run(first, "--corruption", "fog") == 0
    before = np.load(tmp_path / "out" / "labels.npy")
    assert run(second, "--corruption", "contrast") == 2
    assert "labels of b" in " ".join(capsys.readouterr().err.split())
    assert np.array_equal(np.load(tmp_path / "out" / "labels.npy"), before)
    assert run(first, "--corruption", "contrast", "--stack") == 0
    assert len(np.load(tmp_path / "out" / "labels.npy")) == 5 * len(before)
