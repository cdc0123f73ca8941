"""Every reader on small data sets in the official formats, valid and damaged."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from driftproof import data
from driftproof.data.folder import image_files
from driftproof.errors import ConfigurationError, InputError


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def chw(images):
    return torch.from_numpy(np.stack([image.transpose(2, 0, 1) for image in images]))


def save(path, image, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, **options)
    return path


def write_cifar(home, name, images, labels, *, key="labels", protocol=2, text=str.encode):
    home.mkdir(parents=True, exist_ok=True)
    content = {text("data"): images, text(key): labels, text("batch_label"): text("a test batch")}
    (home / name).write_bytes(pickle.dumps(content, protocol=protocol))


@pytest.fixture
def cifar_c(tmp_path):
    home = tmp_path / "CIFAR-10-C"
    home.mkdir()
    np.save(home / "fog.npy", pixels(20, 32, 32, 3))
    np.save(home / "labels.npy", np.tile(np.arange(4), 5))
    return home


# ImageSet


@given(
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(4, 6),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 5), max_size=8),
)
def test_array_set_returns_images_in_either_layout(count, height, width, channels_first, as_tensor, requested):
    images = pixels(count, height, width, 3)
    stored = images.transpose(0, 3, 1, 2) if channels_first else images
    indices = [index for index in requested if index < count]
    whole = data.ArraySet(torch.from_numpy(stored.copy()) if as_tensor else stored, list(range(count)))
    batch = whole.batch(indices)
    assert batch.dtype == torch.uint8
    assert batch.shape == (len(indices), 3, height, width)
    for image, index in zip(batch, indices, strict=True):
        assert torch.equal(image, torch.from_numpy(images[index].transpose(2, 0, 1).copy()))
    assert torch.equal(batch, whole.batch(torch.tensor(indices, dtype=torch.int32)))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.data())
def test_subset_of_a_subset_composes_indices(indices, draw):
    whole = data.ArraySet(pixels(5, 4, 4, 3), [3, 1, 4, 1, 2], classes="abcde", name="five")
    again = draw.draw(st.lists(st.integers(0, len(indices) - 1), min_size=1, max_size=5))
    inner = data.Subset(data.Subset(whole, indices), torch.tensor(again), name="inner")
    expected = [indices[index] for index in again]
    assert (inner.name, inner.classes, len(inner)) == ("inner", tuple("abcde"), len(again))
    assert inner.labels.tolist() == [[3, 1, 4, 1, 2][index] for index in expected]
    assert torch.equal(inner.batch(range(len(again))), whole.batch(expected))


def test_fingerprint_covers_every_pixel_and_label():
    images, labels = pixels(7, 4, 4, 3), list(range(7))
    changed = images.copy()
    changed[6, 3, 2, 1] ^= 1
    sets = [data.ArraySet(each, of) for each, of in ((images, labels), (changed, labels), (images, [0] * 7))]
    assert len({each.fingerprint() for each in sets}) == 3
    assert [len(batch) for batch, _ in data.LabeledBatches(sets[0], batch_size=3)] == [3, 3, 1]


def test_batch_is_a_copy():
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    data.ArraySet(images).batch([0, 1]).fill_(9)
    assert not images.any()


def test_unlabeled_images_have_label_minus_one():
    whole = data.ArraySet(pixels(3, 4, 4, 3))
    assert whole.labels.tolist() == [-1, -1, -1]
    assert whole.labels.dtype == torch.int64
    assert whole.classes == ()
    assert repr(whole) == "ArraySet('array', 3 images, 0 classes)"


@pytest.mark.parametrize("indices", [[3], [-1], [[0]], [0.5], torch.tensor([True, False, True])])
def test_bad_indices_raise(indices):
    whole = data.ArraySet(pixels(3, 4, 4, 3))
    with pytest.raises(InputError, match="ndices"):
        whole.batch(indices)
    with pytest.raises(InputError, match="ndices"):
        data.Subset(whole, indices)


@pytest.mark.parametrize(
    "images", [pixels(2, 4, 4), pixels(2, 4, 4, 4), pixels(2, 4, 4, 3).astype(np.float32), torch.zeros(2, 3, 4, 4)]
)
def test_bad_arrays_raise(images):
    with pytest.raises(InputError, match=r"uint8 of shape \(N, H, W, 3\)"):
        data.ArraySet(images)


@pytest.mark.parametrize("labels", [[0], [0, 1, 2], [[0, 1]], [0.0, 1.0], [0, -2], [0, 2], ["a", "b"]])
def test_bad_labels_raise(labels):
    with pytest.raises(InputError, match="label"):
        data.ArraySet(pixels(2, 4, 4, 3), labels, classes=("cat", "dog"))


def test_empty_sets_raise():
    with pytest.raises(InputError, match="at least one image"):
        data.ArraySet(pixels(0, 4, 4, 3))
    with pytest.raises(InputError, match="at least one image"):
        data.FileSet([])
    with pytest.raises(InputError, match="at least one image"):
        data.Subset(data.ArraySet(pixels(2, 4, 4, 3)), [])


# Image files


def test_file_set_returns_images_in_index_order(tmp_path):
    images = [pixels(6, 5, 3, seed=seed) for seed in range(12)]
    files = data.FileSet([save(tmp_path / f"{i}.png", image) for i, image in enumerate(images)], workers=3)
    order = [7, 0, 7, 11, 3]
    assert torch.equal(files.batch(order), chw([images[index] for index in order]))
    assert files.batch([]).shape == (0, 3, 6, 5)


def test_every_pixel_format_becomes_rgb(tmp_path):
    grey, color = pixels(5, 4), pixels(5, 4, 3)
    deep = np.random.default_rng(1).integers(0, 2**16, (5, 4), dtype=np.uint16)
    alpha = np.dstack([color, pixels(5, 4, seed=2)])
    palette = Image.fromarray(grey % 7).convert("P")
    palette.putpalette(pixels(256 * 3, seed=3).tobytes())
    palette_colors = np.array(palette.getpalette(), dtype=np.uint8).reshape(-1, 3)[np.array(palette)]
    palette.save(tmp_path / "palette.png")
    palette.save(tmp_path / "transparent.png", transparency=bytes(range(7)))
    Image.fromarray(deep.astype(np.int32)).save(tmp_path / "wide.tiff")
    Image.fromarray(grey > 127).save(tmp_path / "bits.png")
    expected = {
        save(tmp_path / "grey.png", grey): np.dstack([grey] * 3),
        save(tmp_path / "color.bmp", color): color,
        save(tmp_path / "alpha.png", alpha): color,
        save(tmp_path / "deep.png", deep): np.dstack([deep // 256] * 3),
        save(tmp_path / "deep.tiff", deep): np.dstack([deep // 256] * 3),
        tmp_path / "wide.tiff": np.dstack([deep // 256] * 3),
        tmp_path / "palette.png": palette_colors,
        tmp_path / "transparent.png": palette_colors,
        tmp_path / "bits.png": np.dstack([(grey > 127) * 255] * 3),
    }
    for path, image in expected.items():
        assert torch.equal(data.FileSet([path]).batch([0])[0], chw([image.astype(np.uint8)])[0]), path.name


def interpolated(image, height, width):
    floats = chw([image]).float()
    scaled = torch.nn.functional.interpolate(floats, (height, width), mode="bilinear", antialias=True)
    return scaled.round().clamp(0, 255)


@pytest.mark.parametrize(("height", "width"), [(20, 31), (31, 20), (12, 12), (7, 40)])
def test_resizing_is_antialiased_bilinear(tmp_path, height, width):
    image = pixels(height, width, 3)
    path = save(tmp_path / "image.png", image)
    exact = data.FileSet([path], size=(9, 14)).batch([0])
    assert (exact - interpolated(image, 9, 14)).abs().max() <= 1

    cropped = data.FileSet([path], size=data.ResizeShorterSide(12, crop=8)).batch([0])
    tall, wide = (12 * height // min(height, width), 12 * width // min(height, width))
    top, left = round((tall - 8) / 2), round((wide - 8) / 2)
    expected = interpolated(image, tall, wide)[:, :, top : top + 8, left : left + 8]
    assert cropped.shape == (1, 3, 8, 8)
    assert (cropped - expected).abs().max() <= 1


def test_images_of_the_right_size_are_unchanged(tmp_path):
    image = pixels(6, 6, 3)
    path = save(tmp_path / "image.png", image)
    for size in (None, (6, 6), data.ResizeShorterSide(6, crop=6)):
        assert torch.equal(data.FileSet([path], size=size).batch([0]), chw([image]))


def test_damaged_image_is_named(tmp_path):
    whole = save(tmp_path / "whole.jpg", pixels(64, 64, 3))
    (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[:-200])
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "empty.png").touch()
    Image.fromarray(np.zeros((4, 4), dtype=np.float32)).save(tmp_path / "float.tiff")
    for name in ("cut.jpg", "text.png", "empty.png", "float.tiff", "gone.png"):
        with pytest.raises(InputError, match=name):
            data.FileSet([whole, tmp_path / name], size=(8, 8)).batch([0, 1])


def test_images_of_different_sizes_need_a_size(tmp_path):
    paths = [save(tmp_path / "small.png", pixels(4, 4, 3)), save(tmp_path / "large.png", pixels(5, 4, 3))]
    with pytest.raises(InputError, match=r"small.png is 4×4 and .*large.png is 5×4"):
        data.FileSet(paths).batch([0, 1])
    assert data.FileSet(paths, size=(4, 4)).batch([0, 1]).shape == (2, 3, 4, 4)


def test_bad_sizes_raise(tmp_path):
    for size in ((0, 4), (4,)):
        with pytest.raises(ConfigurationError, match="size"):
            data.FileSet([tmp_path], size=size)
    with pytest.raises(ConfigurationError, match="crop"):
        data.ResizeShorterSide(224, crop=256)
    with pytest.raises(ConfigurationError, match="workers"):
        data.FileSet([tmp_path], workers=0)


def test_missing_packages_name_the_extra_to_install(tmp_path, monkeypatch):
    save(tmp_path / "image.png", pixels(4, 4, 3))
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"pip install 'driftproof\[data\]'"):
        data.folder(tmp_path).batch([0])


# CIFAR


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("text", [str, str.encode])
def test_cifar10_in_every_pickle_protocol(tmp_path, protocol, text):
    home = tmp_path / "cifar-10-batches-py"
    images = pixels(4, 3072)
    write_cifar(home, "test_batch", images, [0, 1, 1, 0], protocol=protocol, text=text)
    (home / "batches.meta").write_bytes(pickle.dumps({text("label_names"): [text("cat"), text("dog")]}, protocol))
    for root in (tmp_path, home):
        read = data.cifar10(root)
        assert (read.name, read.classes, read.labels.tolist()) == ("cifar10", ("cat", "dog"), [0, 1, 1, 0])
        assert torch.equal(read.batch([2, 0]), torch.from_numpy(images[[2, 0]].reshape(2, 3, 32, 32)))


def python2_pickle(images, labels):
    """The bytes that Python 2's cPickle writes at protocol 2, with byte strings everywhere."""

    def string(value):
        return (
            b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + len(value).to_bytes(4, "little") + value
        )

    dtype = (
        b"cnumpy\ndtype\n"
        + string(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + string(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    shape = b"K" + bytes([images.shape[0]]) + b"M" + images.shape[1].to_bytes(2, "little") + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b") + b"\x87R"
    array += b"(K\x01" + shape + dtype + b"\x89" + string(images.tobytes()) + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(b"labels") + numbers + b"u."


def test_cifar10_written_by_python_2(tmp_path):
    images = pixels(3, 3072)
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(python2_pickle(images, [3, 1, 2]))
    read = data.cifar10(tmp_path)
    assert read.labels.tolist() == [3, 1, 2]
    assert torch.equal(read.batch([0, 1, 2]), torch.from_numpy(images.reshape(3, 3, 32, 32)))


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_cifar10_with_both_numpy_module_names(tmp_path, module):
    images = pixels(2, 3072)
    home = tmp_path / "cifar-10-batches-py"
    home.mkdir()
    written = python2_pickle(images, [0, 0]).replace(b"numpy.core.multiarray", module.encode())
    (home / "test_batch").write_bytes(written)
    assert len(data.cifar10(tmp_path)) == 2


def test_cifar10_train_reads_the_batches_that_exist(tmp_path):
    home = tmp_path / "cifar-10-batches-py"
    second, fifth = pixels(2, 3072, seed=2), np.asfortranarray(pixels(3, 3072, seed=5))
    write_cifar(home, "data_batch_5", fifth, [5, 5, 5])
    write_cifar(home, "data_batch_2", second, [2, 2])
    read = data.cifar10(tmp_path, train=True)
    assert read.name == "cifar10/train"
    assert read.labels.tolist() == [2, 2, 5, 5, 5]
    assert torch.equal(read.batch(range(5)).flatten(1), torch.from_numpy(np.concatenate([second, fifth])))
    with pytest.raises(InputError, match="test_batch"):
        data.cifar10(tmp_path)


def test_cifar100_reads_fine_labels(tmp_path):
    home = tmp_path / "cifar-100-python"
    for part, label in (("train", 1), ("test", 0)):
        write_cifar(home, part, pixels(2, 3072), [label, label], key="fine_labels")
    (home / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"apple", b"bee"]}))
    assert data.cifar100(tmp_path).labels.tolist() == [0, 0]
    assert data.cifar100(tmp_path, train=True).labels.tolist() == [1, 1]
    assert data.cifar100(tmp_path).classes == ("apple", "bee")


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (self.path.__class__.touch, (self.path,))


class Evaluate:
    def __init__(self, code):
        self.code = code

    def __reduce__(self):
        return (eval, (self.code,))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_malicious_pickle_executes_nothing(tmp_path, protocol):
    home = tmp_path / "cifar-10-batches-py"
    home.mkdir()
    trace = tmp_path / "executed"
    for attack in (Touch(trace), Evaluate(f"open({str(trace)!r}, 'w').close()"), print, np.float64(1.0)):
        content = {"data": pixels(1, 3072), "labels": [0], "extra": attack}
        (home / "test_batch").write_bytes(pickle.dumps(content, protocol))
        with pytest.raises(InputError, match="nothing was executed"):
            data.cifar10(tmp_path)
    assert not trace.exists()


def test_truncated_cifar_raises(tmp_path):
    home = tmp_path / "cifar-10-batches-py"
    with pytest.raises(InputError, match="driftproof data get cifar10"):
        data.cifar10(tmp_path)
    write_cifar(home, "test_batch", pixels(2, 3072), [0, 1])
    whole = (home / "test_batch").read_bytes()
    for length in (0, 1, 10, 60, len(whole) // 2, len(whole) - 1):
        (home / "test_batch").write_bytes(whole[:length])
        with pytest.raises(InputError, match="test_batch"):
            data.cifar10(tmp_path)


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (pixels(2, 3071), [0, 1]),
        (pixels(2, 3, 1024), [0, 1]),
        (pixels(2, 3072).astype(np.int64), [0, 1]),
        (pixels(2, 3072).astype(np.float32), [0, 1]),
        (np.array([{}, {}]), [0, 1]),
        ([1, 2], [0, 1]),
        (pixels(2, 3072), [0]),
        (pixels(2, 3072), [[0], [1, 2]]),
        (pixels(2, 3072), "no"),
    ],
)
def test_malformed_cifar_raises(tmp_path, images, labels):
    write_cifar(tmp_path / "cifar-10-batches-py", "test_batch", images, labels)
    with pytest.raises(InputError, match="test_batch"):
        data.cifar10(tmp_path)


def test_malformed_cifar_class_names_raise(tmp_path):
    home = tmp_path / "cifar-10-batches-py"
    write_cifar(home, "test_batch", pixels(2, 3072), [0, 1])
    (home / "batches.meta").write_bytes(pickle.dumps({"label_names": 3}))
    with pytest.raises(InputError, match="list of names"):
        data.cifar10(tmp_path)
    (home / "batches.meta").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(InputError, match="dictionary"):
        data.cifar10(tmp_path)


# CIFAR-C


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_cifar10_c_reads_rows_of_the_severity(tmp_path, cifar_c, severity):
    read = data.cifar10_c(tmp_path, "fog", severity)
    rows = np.load(cifar_c / "fog.npy")[4 * (severity - 1) : 4 * severity]
    assert read.name == f"cifar10-c/fog/{severity}"
    assert read.labels.tolist() == [0, 1, 2, 3]
    assert torch.equal(read.batch(range(4)), chw(rows))


def test_cifar100_c_has_its_own_folder(tmp_path, cifar_c):
    cifar_c.rename(tmp_path / "CIFAR-100-C")
    assert data.cifar100_c(tmp_path, "fog", 1).name == "cifar100-c/fog/1"
    with pytest.raises(InputError, match="data get cifar10-c"):
        data.cifar10_c(tmp_path, "fog", 1)


@pytest.mark.parametrize("reader", [data.cifar10_c, data.cifar100_c, data.tiny_imagenet_c, data.imagenet_c])
def test_unknown_corruptions_and_severities_raise(tmp_path, reader):
    for name in ("CIFAR-10-C", "CIFAR-100-C", "Tiny-ImageNet-C", "ImageNet-C"):
        (tmp_path / name).mkdir()
    with pytest.raises(ConfigurationError, match=r"'gausian_noise'.*gaussian_noise"):
        reader(tmp_path, "gausian_noise", 5)
    with pytest.raises(ConfigurationError, match="corruption"):
        reader(tmp_path, "../fog", 5)
    for severity in (0, 6, 2.0, True):
        with pytest.raises(ConfigurationError, match=f"in 1..5, but got {severity!r}"):
            reader(tmp_path, "fog", severity)
    with pytest.raises(InputError, match=r"fog.*does not exist"):
        reader(tmp_path, "fog", 5)


def test_truncated_cifar_c_raises(tmp_path, cifar_c):
    whole = (cifar_c / "fog.npy").read_bytes()
    for length in (0, 5, 40, 128, len(whole) - 1):
        (cifar_c / "fog.npy").write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"fog\.npy"):
            data.cifar10_c(tmp_path, "fog", 1)
    np.save(cifar_c / "fog.npy", np.array([{"an": "object"}] * 20), allow_pickle=True)
    with pytest.raises(InputError, match=r"fog\.npy"):
        data.cifar10_c(tmp_path, "fog", 1)


@pytest.mark.parametrize("shape", [(16, 32, 32, 3), (25, 32, 32, 3), (20, 32, 32), (20, 32, 32, 1)])
def test_cifar_c_of_another_shape_raises(tmp_path, cifar_c, shape):
    np.save(cifar_c / "fog.npy", pixels(*shape))
    with pytest.raises(InputError, match="shape"):
        data.cifar10_c(tmp_path, "fog", 1)


# SVHN


def test_textures_are_the_same_in_every_number_and_rough_in_the_order_of_their_names():
    many, few = data.textures(64, side=16), data.textures(8, side=16)
    assert torch.equal(many.batch(range(8)), few.batch(range(8)))
    assert few.batch(range(8)).shape == (8, 3, 16, 16)
    pixels = many.batch(range(64)).float()
    steps = (pixels - pixels.roll(1, dims=3)).abs().mean(dim=(1, 2, 3)) / pixels.std(dim=(2, 3)).mean(dim=1)
    roughness = {name: float(steps[many.labels == kind].mean()) for kind, name in enumerate(many.classes)}
    assert roughness["clouds"] < roughness["stone"] < roughness["noise"]
    assert roughness["waves"] < roughness["noise"]


@pytest.mark.parametrize("place", ["svhn", "."])
@pytest.mark.parametrize("compress", [False, True])
def test_svhn_labels_and_limit(tmp_path, place, compress):
    images = pixels(32, 32, 3, 5)
    (tmp_path / place).mkdir(exist_ok=True)
    written = {"X": images, "y": np.array([[10], [1], [9], [10], [5]], dtype=np.uint8)}
    scipy.io.savemat(tmp_path / place / "test_32x32.mat", written, do_compression=compress)
    read = data.svhn(tmp_path)
    assert read.labels.tolist() == [0, 1, 9, 0, 5]
    assert read.classes == tuple("0123456789")
    assert torch.equal(read.batch(range(5)), chw([images[..., index] for index in range(5)]))
    first = data.svhn(tmp_path, limit=2)
    assert torch.equal(first.batch([0, 1]), read.batch([0, 1]))
    assert first.labels.tolist() == [0, 1]
    assert len(data.svhn(tmp_path, limit=99)) == 5


def test_damaged_svhn_raises(tmp_path):
    path = tmp_path / "test_32x32.mat"
    with pytest.raises(InputError, match="data get svhn"):
        data.svhn(tmp_path)
    scipy.io.savemat(path, {"X": pixels(32, 32, 3, 5), "y": np.ones((5, 1), np.uint8)}, do_compression=True)
    whole = path.read_bytes()
    for length in (0, 10, 200, len(whole) // 2):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"test_32x32\.mat"):
            data.svhn(tmp_path)
    for wrong in ({"X": pixels(32, 32, 3, 5)}, {"X": pixels(32, 32, 3, 5), "y": np.ones((4, 1), np.uint8)}):
        scipy.io.savemat(path, wrong)
        with pytest.raises(InputError, match="N labels"):
            data.svhn(tmp_path)
    with pytest.raises(ConfigurationError, match="limit"):
        data.svhn(tmp_path, limit=0)


# Tiny-ImageNet


@pytest.fixture
def tiny(tmp_path):
    home = tmp_path / "tiny-imagenet-200"
    for index in range(3):
        save(home / "val" / "images" / f"val_{index}.JPEG", pixels(64, 64, 3, seed=index))
    lines = ["val_2.JPEG\tn01\t0\t0\t9\t9", "val_0.JPEG\tn03\t0\t0\t9\t9", "val_1.JPEG\tn02\t1\t2\t3\t4"]
    (home / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (home / "wnids.txt").write_text("n03\nn01\nn02\nn04\n")
    return home


def test_tiny_imagenet_as_distributed(tmp_path, tiny):
    read = data.tiny_imagenet(tmp_path)
    assert read.classes == ("n01", "n02", "n03", "n04")
    assert read.labels.tolist() == [2, 1, 0]
    decoded = [np.array(Image.open(tiny / "val" / "images" / f"val_{index}.JPEG")) for index in range(3)]
    assert torch.equal(read.batch([0, 1, 2]), chw(decoded))
    (tiny / "wnids.txt").unlink()
    assert data.tiny_imagenet(tmp_path).labels.tolist() == [2, 1, 0]


def test_tiny_imagenet_sorted_into_folders_is_the_same(tmp_path, tiny):
    before = data.tiny_imagenet(tmp_path)
    for index, identifier in enumerate(["n03", "n02", "n01"]):
        target = tiny / "val" / identifier / "images" / f"val_{index}.JPEG"
        target.parent.mkdir(parents=True)
        (tiny / "val" / "images" / f"val_{index}.JPEG").rename(target)
    (tiny / "val" / "images").rmdir()
    after = data.tiny_imagenet(tmp_path)
    assert after.classes == before.classes
    assert after.labels.tolist() == [0, 1, 2]
    assert after.batch([2, 1, 0]).shape == (3, 3, 64, 64)


def test_tiny_imagenet_training_images(tmp_path, tiny):
    save(tiny / "train" / "n04" / "images" / "n04_0.JPEG", pixels(64, 64, 3))
    save(tiny / "train" / "n01" / "images" / "n01_0.JPEG", pixels(64, 64, 3))
    (tiny / "train" / "n01" / "n01_boxes.txt").touch()
    read = data.tiny_imagenet(tmp_path, train=True)
    assert (read.name, read.labels.tolist()) == ("tiny-imagenet/train", [0, 3])


def test_bad_tiny_imagenet_annotations_raise(tmp_path, tiny):
    annotations = tiny / "val" / "val_annotations.txt"
    for wrong, message in (("val_0.JPEG\tn03\n", "val_1.JPEG"), ("val_0.JPEG\n", "every line"), ("", "val_0.JPEG")):
        annotations.write_text(wrong)
        with pytest.raises(InputError, match=message):
            data.tiny_imagenet(tmp_path)


def test_tiny_imagenet_c_shares_labels_with_tiny_imagenet(tmp_path, tiny):
    home = tmp_path / "Tiny-ImageNet-C" / "snow" / "5"
    save(home / "n04" / "test_1.JPEG", pixels(64, 64, 3))
    save(home / "n02" / "test_9.JPEG", pixels(64, 64, 3))
    read = data.tiny_imagenet_c(tmp_path, "snow", 5)
    assert (read.name, read.labels.tolist()) == ("tiny-imagenet-c/snow/5", [1, 3])
    save(home / "n99" / "test_9.JPEG", pixels(64, 64, 3))
    with pytest.raises(InputError, match="n99"):
        data.tiny_imagenet_c(tmp_path, "snow", 5)
    (tiny / "wnids.txt").unlink()
    assert data.tiny_imagenet_c(tmp_path, "snow", 5).labels.tolist() == [0, 1, 2]


# ImageNet


@pytest.mark.parametrize("place", ["val", "imagenet/val"])
def test_imagenet_from_class_folders(tmp_path, place):
    save(tmp_path / place / "n2" / "b.JPEG", pixels(300, 260, 3))
    save(tmp_path / place / "n1" / "c.JPEG", pixels(30, 40, 3))
    save(tmp_path / place / "n1" / "a.JPEG", pixels(256, 500, 3))
    read = data.imagenet(tmp_path)
    assert (read.classes, read.labels.tolist()) == (("n1", "n2"), [0, 0, 1])
    assert [path.name for path in read.paths] == ["a.JPEG", "c.JPEG", "b.JPEG"]
    assert read.batch([0, 1, 2]).shape == (3, 3, 224, 224)


def test_unsorted_imagenet_raises(tmp_path):
    save(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG", pixels(8, 8, 3))
    with pytest.raises(InputError, match="not sorted into folders"):
        data.imagenet(tmp_path)


@pytest.mark.parametrize("place", ["ImageNet-C", "imagenet-c"])
def test_imagenet_c_is_read_as_stored(tmp_path, place):
    path = save(tmp_path / place / "frost" / "3" / "n1" / "a.JPEG", pixels(224, 224, 3))
    read = data.imagenet_c(tmp_path, "frost", 3)
    assert torch.equal(read.batch([0]), chw([np.array(Image.open(path))]))


def test_imagenet_o_is_unlabeled(tmp_path):
    for name in ("n2/b.JPEG", "n1/a.JPEG"):
        save(tmp_path / "imagenet-o" / name, pixels(40, 30, 3))
    read = data.imagenet_o(tmp_path, size=(64, 64))
    assert [path.name for path in read.paths] == ["a.JPEG", "b.JPEG"]
    assert (read.classes, read.labels.tolist()) == ((), [-1, -1])
    assert read.batch([0, 1]).shape == (2, 3, 64, 64)


# Folders


def test_folder_of_loose_images_is_unlabeled(tmp_path):
    for name in ("b.PNG", "a.jpg", ".hidden.png"):
        save(tmp_path / "mine" / name, pixels(4, 4, 3))
    (tmp_path / "mine" / "notes.txt").touch()
    (tmp_path / "mine" / "no images").mkdir()
    read = data.folder(tmp_path / "mine")
    assert [path.name for path in read.paths] == ["a.jpg", "b.PNG"]
    assert (read.name, read.classes, read.labels.tolist()) == ("mine", (), [-1, -1])


def test_folder_of_folders_is_labeled(tmp_path):
    for name in ("dog/1.png", "cat/2.png", "cat/10.png", "cat/more/3.png"):
        save(tmp_path / name, pixels(4, 4, 3))
    read = data.folder(tmp_path, size=(8, 8))
    assert [path.relative_to(tmp_path).as_posix() for path in read.paths] == [
        "cat/10.png",
        "cat/2.png",
        "cat/more/3.png",
        "dog/1.png",
    ]
    assert (read.classes, read.labels.tolist()) == (("cat", "dog"), [0, 0, 0, 1])
    assert read.batch([3]).shape == (1, 3, 8, 8)


def test_links_are_followed_but_cycles_are_not(tmp_path):
    for name in ("elsewhere/a.png", "mine/day/b.png", "mine/.thumbnails/c.png", "mine/roll.png/d.png"):
        save(tmp_path / name, pixels(4, 4, 3))
    (tmp_path / "mine" / "night").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "mine" / "day" / "back").symlink_to(tmp_path / "mine", target_is_directory=True)
    (tmp_path / "elsewhere" / "across").symlink_to(tmp_path / "mine" / "day", target_is_directory=True)
    found = [path.relative_to(tmp_path / "mine").as_posix() for path in image_files(tmp_path / "mine")]
    assert found == ["day/b.png", "night/a.png", "night/across/b.png", "roll.png/d.png"]


def test_open_dataset_works_inside_the_folder_and_through_links(tmp_path, monkeypatch):
    for place in ("elsewhere/batches", "mine"):
        (tmp_path / place).mkdir(parents=True)
    content = {b"data": np.zeros((10, 3072), np.uint8), b"labels": list(range(10))}
    (tmp_path / "elsewhere" / "batches" / "test_batch").write_bytes(pickle.dumps(content))
    link = tmp_path / "cifar-10-batches-py"
    link.symlink_to(tmp_path / "elsewhere" / "batches", target_is_directory=True)
    assert data.open_dataset(link).name == "cifar10"
    link.unlink()
    (tmp_path / "elsewhere" / "batches").rename(link)
    monkeypatch.chdir(link)
    assert data.open_dataset(Path()).name == "cifar10"
    save(tmp_path / "mine" / "a.png", pixels(4, 4, 3))
    monkeypatch.chdir(tmp_path / "mine")
    assert data.open_dataset(Path()).name == data.open_dataset(tmp_path / "mine").name == "mine"


def test_ambiguous_or_empty_folders_raise(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        data.folder(tmp_path / "nowhere")
    with pytest.raises(InputError, match="empty"):
        data.folder(tmp_path)
    save(tmp_path / "cat" / "1.png", pixels(4, 4, 3))
    (tmp_path / "dog").mkdir()
    with pytest.raises(InputError, match=r"every sub-folder of .*, but dog holds none"):
        data.folder(tmp_path)
    save(tmp_path / "loose.png", pixels(4, 4, 3))
    with pytest.raises(InputError, match=r"both.*loose\.png and cat"):
        data.folder(tmp_path)
    for reader, place in ((data.imagenet, "val"), (data.imagenet_o, "imagenet-o")):
        (tmp_path / place).mkdir()
        with pytest.raises(InputError, match=r"no image|empty"):
            reader(tmp_path)


def test_array_folder_reads_images_and_labels(tmp_path):
    images = pixels(3, 5, 6, 3)
    np.save(tmp_path / "images.npy", images)
    with pytest.raises(InputError, match=r"labels\.npy"):
        data.array_folder(tmp_path)
    np.save(tmp_path / "labels.npy", np.array([2, -1, 0], dtype=np.int8))
    read = data.array_folder(tmp_path)
    assert torch.equal(read.batch([2, 0]), chw(images[[2, 0]]))
    assert read.labels.tolist() == [2, -1, 0]
    np.save(tmp_path / "labels.npy", np.zeros(4, dtype=np.int64))
    with pytest.raises(InputError, match="3 images"):
        data.array_folder(tmp_path)


def test_images_are_taken_in_any_usual_form():
    stored = pixels(4, 8, 8, 3)
    expected = data.ArraySet(stored, [0, 1, 2, 3]).batch(range(4))
    channels_first = torch.from_numpy(stored).permute(0, 3, 1, 2)
    for images in (stored, channels_first, channels_first / 255, stored / 255, list(stored)):
        found = data.to_image_set((images, [0, 1, 2, 3]), "mine")
        assert torch.equal(found.batch(range(4)), expected)
        assert found.labels.tolist() == [0, 1, 2, 3]
    assert data.to_image_set(found, "other") is found
    assert data.to_image_set(stored, "mine").labels.tolist() == [-1] * 4
    for wrong in (stored.astype(float), stored[0], np.full((2, 8, 8, 3), np.nan)):
        with pytest.raises(InputError, match="mine"):
            data.to_image_set(wrong, "mine")
