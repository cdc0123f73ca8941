"""Readers of driving scenes on tiny data sets in the official formats, checked by class names."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from driftproof import data
from driftproof.cli import main
from driftproof.data.scenes import CAMVID, CITYSCAPES
from driftproof.errors import ConfigurationError, InputError

UNKNOWN, VOID = 254, 255

TRAINED = [
    *("road", "sidewalk", "building", "wall", "fence", "pole", "light", "sign", "vegetation", "terrain", "sky"),
    *("person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle"),
]

CITYSCAPES_IDS = [
    *("void", "void", "void", "void", "static", "dynamic", "ground", "road", "sidewalk", "parking", "rail track"),
    *("building", "wall", "fence", "guard rail", "bridge", "tunnel", "pole", "polegroup", "light", "sign"),
    *("vegetation", "terrain", "sky", "person", "rider", "car", "truck", "bus", "caravan", "trailer", "train"),
    *("motorcycle", "bicycle"),
]
SYNTHIA_IDS = [
    *("void", "sky", "building", "road", "sidewalk", "fence", "vegetation", "pole", "car", "sign", "person"),
    *("bicycle", "motorcycle", "parking slot", "road work", "light", "terrain", "rider", "truck", "bus", "train"),
    *("wall", "lane marking"),
]
MAPILLARY_IDS = [
    *("bird", "ground animal", "sidewalk", "fence", "guard rail", "barrier", "wall", "bike lane", "crosswalk"),
    *("curb cut", "parking", "pedestrian area", "rail track", "road", "service lane", "sidewalk", "bridge"),
    *("building", "tunnel", "person", "rider", "rider", "rider", "zebra", "road", "mountain", "sand", "sky", "snow"),
    *("terrain", "vegetation", "water", "banner", "bench", "bike rack", "billboard", "catch basin", "cctv"),
    *("hydrant", "junction box", "mailbox", "road", "phone booth", "pothole", "street light", "pole"),
    *("sign frame", "pole", "light", "sign back", "sign", "trash can", "bicycle", "boat", "bus", "car", "caravan"),
    *("motorcycle", "train", "other vehicle", "trailer", "truck", "wheeled slow", "void", "void", "void"),
]
_COLORS = (
    "000000 000000 000000 000000 141414 6f4a00 510051 804080 f423e8 faaaa0 e6968c 464646 66669c be9999 b4a5b4 966464 "
    "96785a 999999 999999 faaa1e dcdc00 6b8e23 98fb98 4682b4 dc143c ff0000 00008e 000046 003c64 00005a 00006e 005064 "
    "0000e6 770b20 00008e"
)
GTAV_PALETTE = _COLORS.split()


def class_of(name):
    return VOID if name == "void" else TRAINED.index(name) if name in TRAINED else UNKNOWN


def expected_labels(numbers, names):
    """The classes of a label image, looked up by name for each pixel."""
    return [[class_of(names[number]) for number in row] for row in numbers.tolist()]


def random_image(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def all_ids_below(count, height=6, width=9, seed=0):
    """An array with every number below `count`, if they fit, then random ones."""
    some = np.random.default_rng(seed).integers(0, count, height * width)
    some[: min(count, height * width)] = np.arange(count)[: height * width]
    return some.reshape(height, width)


def save(path, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return path


def save_palette(path, numbers, colors):
    image = Image.fromarray(numbers.astype(np.uint8)).convert("L")
    path.parent.mkdir(parents=True, exist_ok=True)
    painted = Image.frombytes("P", image.size, image.tobytes())
    painted.putpalette(bytes.fromhex("".join(colors)))
    painted.save(path)
    return path


def save_deep_color(path, channels, filter_type=0):
    """Write a PNG with three 16-bit channels, which Pillow cannot do."""
    height, width, _ = channels.shape
    raw = channels.astype(">u2").tobytes()
    stride, before, rows = width * 6, bytes(width * 6), b""
    for row in range(height):
        line = raw[row * stride : (row + 1) * stride]
        left, up = bytes(6) + line[:-6], before
        expected = [bytes(stride), left, up, bytes((a + b) // 2 for a, b in zip(left, up, strict=True))][filter_type]
        rows += bytes([filter_type]) + bytes((x - y) % 256 for x, y in zip(line, expected, strict=True))
        before = line
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in chunks
        )
    )
    return path


def labels_of(scenes, index=0):
    frame, labels = scenes.read(index)
    assert (frame.dtype, labels.dtype) == (torch.uint8, torch.uint8)
    assert frame.shape == (3, *labels.shape)
    return labels.tolist()


# Official formats


def write_cityscapes(root, numbers, kind="labelIds", split="val", city="ulm", stem="ulm_000000_000019"):
    frame = save(root / "leftImg8bit" / split / city / f"{stem}_leftImg8bit.png", random_image(*numbers.shape))
    save(root / "gtFine" / split / city / f"{stem}_gtFine_{kind}.png", numbers.astype(np.uint8))
    return frame


def test_cityscapes_label_ids(tmp_path):
    for place, city in enumerate(("ulm", "bochum")):
        write_cityscapes(
            tmp_path / "cityscapes", all_ids_below(34, seed=place), city=city, stem=f"{city}_000001_000019"
        )
    scenes = data.cityscapes(tmp_path, split="val")
    assert (scenes.name, len(scenes), len(scenes.classes)) == ("cityscapes/val", 2, 19)
    assert labels_of(scenes, 0) == expected_labels(all_ids_below(34, seed=1), CITYSCAPES_IDS)
    assert labels_of(scenes, 1) == expected_labels(all_ids_below(34, seed=0), CITYSCAPES_IDS)
    assert torch.equal(scenes.read(1)[0].permute(1, 2, 0), torch.from_numpy(random_image(6, 9)))
    assert repr(scenes) == "Scenes('cityscapes/val', 2 frames, 19 classes)"


def test_cityscapes_train_ids(tmp_path):
    numbers = np.array([[0, 18, 255], [7, 255, 3]])
    write_cityscapes(tmp_path, numbers, "labelTrainIds")
    assert labels_of(data.cityscapes(tmp_path / "leftImg8bit")) == [[0, 18, UNKNOWN], [7, UNKNOWN, 3]]


def test_splits_are_joined_in_order(tmp_path):
    for split in ("train", "val"):
        write_cityscapes(tmp_path, all_ids_below(34), split=split)
    scenes = data.cityscapes(tmp_path, split="val+train")
    assert [scene.frame.parts[-3] for scene in scenes.scenes] == ["val", "train"]
    with pytest.raises(ConfigurationError, match=r"known split, but got 'vall'.*val"):
        data.cityscapes(tmp_path, split="vall")


@pytest.mark.parametrize(
    ("frames", "masks", "ending"),
    [("images/10k", "labels/sem_seg/masks", ".png"), ("seg/images", "seg/labels", "_train_id.png")],
)
def test_bdd100k_in_both_layouts(tmp_path, frames, masks, ending):
    root, numbers = tmp_path / "bdd100k", np.array([[0, 5, 255, 18]])
    save(root / frames / "val" / "7d4a9094-0455564b.jpg", random_image(1, 4))
    save(root / masks / "val" / f"7d4a9094-0455564b{ending}", numbers.astype(np.uint8))
    for place in (tmp_path, root):
        assert labels_of(data.bdd100k(place)) == [[0, 5, UNKNOWN, 18]]


@pytest.mark.parametrize("folder", ["labels", "v1.2/labels", "instances", "v1.2/instances"])
def test_mapillary_with_palettes_and_16_bits(tmp_path, folder):
    numbers, home = all_ids_below(66, 8, 9), tmp_path / "validation"
    save(home / "images" / "one.jpg", random_image(8, 9))
    if folder.endswith("instances"):
        counted = numbers * 256 + np.random.default_rng(1).integers(0, 256, numbers.shape)
        save(home / folder / "one.png", counted.astype(np.uint16))
    else:
        save_palette(home / folder / "one.png", numbers, ["808080"] * 66)
    assert labels_of(data.mapillary(tmp_path, split="val")) == expected_labels(numbers, MAPILLARY_IDS)


@pytest.fixture
def gtav(tmp_path):
    for number in (1, 2, 3, 4):
        save(tmp_path / "images" / f"{number:05}.png", random_image(6, 9))
        save_palette(tmp_path / "labels" / f"{number:05}.png", all_ids_below(34, seed=number), GTAV_PALETTE)
    ids = {"trainIds": [[1], [3]], "valIds": [[4]], "testIds": [[2]]}
    scipy.io.savemat(tmp_path / "split.mat", {name: np.array(each) for name, each in ids.items()})
    return tmp_path


def test_gtav_by_palette_color_and_id(gtav):
    numbers = all_ids_below(34, seed=1)
    painted = ["pole" if name == "polegroup" else name for name in CITYSCAPES_IDS]  # both are of one color
    assert labels_of(data.gtav(gtav)) == expected_labels(numbers, painted)
    palette = np.array([list(bytes.fromhex(color)) for color in GTAV_PALETTE], dtype=np.uint8)
    save(gtav / "labels" / "00001.png", palette[numbers])
    assert labels_of(data.gtav(gtav)) == expected_labels(numbers, painted)
    save(gtav / "labels" / "00001.png", numbers.astype(np.uint8))
    assert labels_of(data.gtav(gtav)) == expected_labels(numbers, CITYSCAPES_IDS)


def test_gtav_official_split(gtav):
    names = {split: [scene.frame.stem for scene in data.gtav(gtav, split=split).scenes] for split in ("train", "test")}
    assert names == {"train": ["00001", "00003"], "test": ["00002"]}
    assert len(data.gtav(gtav, split="val+test")) == 2
    with pytest.raises(ConfigurationError, match="split"):
        data.gtav(gtav, split="validation")
    (gtav / "split.mat").write_bytes(b"not a table")
    with pytest.raises(InputError, match=r"split\.mat to be a complete MATLAB 5 file"):
        data.gtav(gtav, split="val")


@pytest.mark.parametrize("filter_type", range(4))
def test_synthia_reads_16_bits_of_the_first_channel(tmp_path, filter_type):
    numbers = all_ids_below(23)
    channels = np.stack([numbers, np.random.default_rng(0).integers(0, 2**16, numbers.shape), 0 * numbers], axis=-1)
    save(tmp_path / "RGB" / "0000001.png", random_image(6, 9))
    labels = save_deep_color(tmp_path / "GT" / "LABELS" / "0000001.png", channels, filter_type)
    assert labels_of(data.synthia(tmp_path)) == expected_labels(numbers, SYNTHIA_IDS)
    channels[2, 3, 0] = 2560 + 7
    save_deep_color(labels, channels, filter_type)
    with pytest.raises(InputError, match=r"0000001\.png, but 1 pixels are 2567\."):
        data.synthia(tmp_path).read(0)


def test_synthia_reads_listed_frames(tmp_path):
    for number in range(3):
        save(tmp_path / "synthia" / "RGB" / f"000000{number}.png", random_image(2, 2))
        save_deep_color(tmp_path / "synthia" / "GT" / "LABELS" / f"000000{number}.png", np.ones((2, 2, 3)))
    listing = tmp_path / "val.txt"
    listing.write_text("0000002.png\n\nRGB/0000000.png\n")
    scenes = data.synthia(tmp_path, listing=listing)
    assert (scenes.name, [scene.frame.stem for scene in scenes.scenes]) == ("synthia/val", ["0000000", "0000002"])
    listing.write_text("0000007.png")
    with pytest.raises(InputError, match="0000007 does not"):
        data.synthia(tmp_path, listing=listing)
    with pytest.raises(InputError, match=r"no\.txt to be a list of frames"):
        data.synthia(tmp_path, listing=tmp_path / "no.txt")


def write_camvid(root, numbers, split="test", stem="0001TP_008550"):
    save(root / split / f"{stem}.png", random_image(*numbers.shape))
    return save(root / f"{split}annot" / f"{stem}.png", numbers.astype(np.uint8))


@settings(max_examples=20)
@given(st.sets(st.integers(0, 10), max_size=10), st.integers(0, 2**31))
def test_camvid_renumbers_known_classes(tmp_path_factory, unknown, seed):
    root, numbers = tmp_path_factory.mktemp("camvid"), all_ids_below(12, 4, 5, seed)
    write_camvid(root, numbers)
    scenes = data.camvid(root, unknown=[CAMVID[number].name for number in unknown])
    left = [number for number in range(11) if number not in unknown]
    expected = [
        [VOID if number == 11 else UNKNOWN if number in unknown else left.index(number) for number in row]
        for row in numbers.tolist()
    ]
    assert labels_of(scenes) == expected
    assert list(scenes.classes) == [CAMVID[number].name for number in left]


def test_camvid_rejects_unknown_class_names(tmp_path):
    write_camvid(tmp_path, all_ids_below(12))
    with pytest.raises(ConfigurationError, match=r"'cyclist'.*bicyclist"):
        data.camvid(tmp_path, unknown=["cyclist"])
    with pytest.raises(ConfigurationError, match="at least one class"):
        data.camvid(tmp_path, unknown=[each.name for each in CAMVID])


def test_folder_of_frames_is_unlabeled(tmp_path):
    for name in ("b.png", "night/a.png", "a.png"):
        save(tmp_path / name, random_image(2, 3))
    (tmp_path / "notes.txt").write_text("not a frame")
    scenes = data.frames(tmp_path)
    assert [scene.frame.relative_to(tmp_path).as_posix() for scene in scenes.scenes] == [
        "a.png",
        "b.png",
        "night/a.png",
    ]
    assert scenes.read(0)[1] is None
    assert scenes.classes == ()
    with pytest.raises(InputError, match="does not exist"):
        data.frames(tmp_path / "elsewhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="at least one frame in empty"):
        data.frames(tmp_path / "empty")


def test_class_colors_and_names_are_distinct():
    for palette in (CITYSCAPES, CAMVID):
        assert len({each.color for each in palette}) == len(palette)
        assert len({each.name for each in palette}) == len(palette)


# Sizes


def nearest(count, stored):
    """For each of `count` positions, the nearest stored ones: two if the position is halfway between them."""
    exact = [(place + 0.5) * stored / count for place in range(count)]
    return [{min(max(int(place + shift), 0), stored - 1) for shift in (-1e-9, 1e-9)} for place in exact]


@settings(max_examples=40)
@given(st.integers(2, 12), st.integers(2, 12), st.integers(1, 15), st.none() | st.integers(1, 15))
def test_labels_are_resized_by_nearest_pixel_and_padded_with_void(tmp_path_factory, height, width, to, across):
    root, numbers = tmp_path_factory.mktemp("camvid"), all_ids_below(11, height, width)
    write_camvid(root, numbers)
    scenes = data.camvid(root, unknown=(), size=data.FitHeight(to, width=across))
    frame, labels = scenes.read(0)
    scaled = max(1, int(width * to / height + 1e-9))
    shift = ((across or scaled) - scaled + 1) // 2
    assert labels.shape == scenes.extent == (to, across or scaled)
    rows, columns = nearest(to, height), nearest(scaled, width)
    for (row, column), label in np.ndenumerate(labels.numpy()):
        if 0 <= column - shift < scaled:
            assert label in {numbers[y, x] for y in rows[row] for x in columns[column - shift]}
        else:
            assert label == VOID
    top, left, bottom, right = scenes.content_box(0)
    content = torch.zeros_like(labels, dtype=torch.bool)
    content[top:bottom, left:right] = True
    assert torch.equal(content, labels != VOID)
    assert not frame[:, ~content].any()


def test_frames_are_resized_bicubically(tmp_path):
    smooth = np.stack(np.meshgrid(np.linspace(60, 190, 40), np.linspace(70, 180, 30), indexing="xy"), axis=-1)
    image = np.concatenate([smooth, 255 - smooth[..., :1]], axis=-1).astype(np.uint8)
    image[10:14, 8:20] = 200
    save(tmp_path / "one.png", image)
    frame, _ = data.frames(tmp_path, size=data.FitHeight(21)).read(0)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(image).permute(2, 0, 1)[None].float(), size=(21, 28), mode="bicubic", antialias=True
    )
    assert frame.shape == (3, 21, 28)
    assert (frame - expected[0]).abs().max() <= 1


def test_fit_height_gives_the_sizes_of_the_paper():
    assert data.FitHeight(800).extent(1052, 1914) == (800, 1455)
    assert data.FitHeight(800).extent(720, 1280) == (800, 1422)
    assert data.FitHeight(800).extent(1024, 2048) == (800, 1600)
    assert data.FitHeight(800, width=1422).content_box(3024, 4032) == (0, 178, 800, 1244)
    assert data.FitHeight(800, width=1422).content_box(1024, 2048) == (0, 0, 800, 1422)
    with pytest.raises(ConfigurationError, match="at least 1, but got 0"):
        data.FitHeight(0)


def test_frames_of_different_sizes_need_a_size(tmp_path):
    save(tmp_path / "a.png", random_image(4, 6))
    save(tmp_path / "b.png", random_image(4, 8))
    scenes = data.frames(tmp_path)
    assert scenes.read(0)[0].shape == (3, 4, 6)
    with pytest.raises(InputError, match=r"a\.png is 4×6 and .*b\.png is 4×8\. Pass `size=FitHeight\(4, width=6\)`"):
        scenes.read(1)
    assert data.frames(tmp_path, size=data.FitHeight(4, width=6)).read(1)[0].shape == (3, 4, 6)


# Damaged files


def test_unknown_label_ids_raise(tmp_path):
    numbers = all_ids_below(12)
    numbers[0, :3] = (200, 200, 77)
    labels = write_camvid(tmp_path, numbers)
    with pytest.raises(InputError, match=rf"{labels.name}, but 3 pixels are 77, 200\."):
        data.camvid(tmp_path).read(0)


def test_unknown_label_colors_raise(gtav):
    save(gtav / "labels" / "00001.png", np.full((6, 9, 3), 9, dtype=np.uint8))
    with pytest.raises(InputError, match=r"00001\.png, but 54 pixels are \[9, 9, 9\]\."):
        data.gtav(gtav).read(0)


@pytest.mark.parametrize("mode", ["RGB", "LA", "F"])
def test_color_visualization_as_label_image_raises(tmp_path, mode):
    labels = write_camvid(tmp_path, all_ids_below(12))
    image = Image.fromarray(random_image(6, 9)).convert(mode)
    image.save(labels, format="TIFF" if mode == "F" else "PNG")
    with pytest.raises(InputError, match=f"{labels.name} to be label IDs, but it is an image of mode {mode}"):
        data.camvid(tmp_path).read(0)


def test_gray_label_images_of_16_bits_are_read(tmp_path):
    numbers = all_ids_below(12)
    labels = write_camvid(tmp_path, numbers)
    before = labels_of(data.camvid(tmp_path))
    save(labels, numbers.astype(np.uint16))
    assert labels_of(data.camvid(tmp_path)) == before


def test_missing_label_images_are_named_and_counted(tmp_path):
    for number in range(4):
        write_camvid(tmp_path, all_ids_below(12), stem=f"frame_{number}")
    for number in (1, 3):
        (tmp_path / "testannot" / f"frame_{number}.png").unlink()
    with pytest.raises(InputError, match=r"frame_1\.png has none: .*1 others are missing too.*`frames\(folder\)`"):
        data.camvid(tmp_path)


def test_truncated_files_are_named(tmp_path):
    labels = write_camvid(tmp_path, all_ids_below(12, 40, 40))
    frame = tmp_path / "test" / "0001TP_008550.png"
    for path, what in ((labels, "label image"), (frame, "an image")):
        whole = path.read_bytes()
        for length in (len(whole) * 2 // 3, 10):
            path.write_bytes(whole[:length])
            with pytest.raises(InputError, match=f"{path.name} to be .*{what}.*cannot be read"):
                data.camvid(tmp_path).read(0)
        path.write_bytes(whole)
    assert data.camvid(tmp_path).read(0)[1].shape == (40, 40)


def test_labels_of_another_resolution_are_resized_of_another_shape_raise(tmp_path):
    labels = write_camvid(tmp_path, all_ids_below(12, 6, 8))
    half = all_ids_below(11, 3, 4)
    save(labels, half.astype(np.uint8))
    assert labels_of(data.camvid(tmp_path, unknown=())) == half.repeat(2, axis=0).repeat(2, axis=1).tolist()
    save(labels, np.zeros((8, 6), dtype=np.uint8))
    with pytest.raises(InputError, match=r"every pixel of .*which is 6×8, but it is 8×6"):
        data.camvid(tmp_path).read(0)


def test_missing_data_and_bad_indices_raise(tmp_path):
    for reader in (data.cityscapes, data.bdd100k, data.mapillary, data.gtav, data.synthia, data.camvid):
        with pytest.raises(InputError, match=f"driftproof data get {reader.__name__}"):
            reader(tmp_path)
    write_camvid(tmp_path, all_ids_below(12))
    for index in (-1, 1):
        with pytest.raises(InputError, match=rf"index in 0\.\.0 of camvid/test, but got {index}"):
            data.camvid(tmp_path).read(index)


def test_data_get_explains_manual_downloads(tmp_path, capsys):
    for name in ("cityscapes", "bdd100k", "mapillary", "gtav", "synthia", "camvid"):
        with pytest.raises(SystemExit, match="2"):
            main(["data", "get", name, "--data", str(tmp_path)])
        assert data.DATASETS[name].homepage in capsys.readouterr().err
        with pytest.raises(SystemExit, match="0"):
            main(["data", "verify", name, "--data", str(tmp_path)])
        assert "unchecked" in capsys.readouterr().out


# The real CamVid

REAL = os.environ.get("DRIFTPROOF_CAMVID")


@pytest.mark.skipif(REAL is None, reason="set DRIFTPROOF_CAMVID to CamVid's folder")
@pytest.mark.parametrize(("split", "count"), [("train", 367), ("val", 101), ("test", 233)])
def test_real_camvid(split, count):
    scenes = data.camvid(Path(REAL), split=split)
    assert (len(scenes), scenes.extent) == (count, (360, 480))
    for index in range(0, count, 50):
        _, labels = scenes.read(index)
        stored = np.asarray(Image.open(scenes.scenes[index].labels))
        assert ((labels == VOID).numpy() == (stored == 11)).all()
        assert ((labels == UNKNOWN).numpy() == np.isin(stored, (6, 9, 10))).all()
