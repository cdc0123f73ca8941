"""The options of the command line that say what images, models, classes and labels are."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import driftproof as dp
from driftproof import models
from driftproof.cli.class_names import parse_classes, read_class_names
from driftproof.cli.labels import UNKNOWN, UNLABELED, check_outputs, read_labels
from driftproof.cli.model import load_model
from driftproof.cli.preprocessing import resolve_preprocessing
from driftproof.cli.presets import PRESETS, Preprocessing
from driftproof.data import FileSet, ResizeExact, ResizeShorterSide
from test_cli import project, run, save_images, table

__all__ = ["project"]


# --preset, --mean, --std, --size, --crop


def test_normalization_options_equal_a_model_that_normalizes(project, tmp_path):
    folder = save_images(tmp_path / "images", 4)
    base = ("adapt", folder, "--force", "--method", "source", "--model")
    for name in ("cifar10", "vit"):
        preset = PRESETS[name]
        Path("inside.py").write_text(
            f"from {project} import build\n"
            "from driftproof.models import NormalizedInput\n"
            f"def {name}():\n"
            f"    return NormalizedInput(build(), mean={preset.mean}, std={preset.std})\n"
        )
        mean, std = (",".join(map(str, values)) for values in (preset.mean, preset.std))
        assert run(*base, f"{project}:build", "--preset", name, "--size", 12, "--out", "preset.csv") == 0
        assert run(*base, f"{project}:build", "--mean", mean, "--std", std, "--out", "options.csv") == 0
        assert run(*base, f"{project}:build", "--out", "raw.csv") == 0
        model = load_model(f"{project}:build", None)
        images = FileSet(sorted(folder.iterdir())).batch(range(4)) / 255
        channels = (torch.tensor(values).view(3, 1, 1) for values in (preset.mean, preset.std))
        shift, scale = channels
        expected = model.eval()((images - shift) / scale).softmax(dim=1).amax(dim=1)
        found = [float(row["probability"]) for row in table(Path("preset.csv"))]
        assert table(Path("preset.csv")) == table(Path("options.csv")) != table(Path("raw.csv"))
        torch.testing.assert_close(torch.tensor(found), expected.detach())


def test_builtin_networks_normalize_their_images_themselves(tmp_path):
    plain = load_model("wrn10_1", None, "3")
    assert type(load_model("wrn10_1", None, "3", PRESETS["cifar10"])) is type(plain)
    replaced = load_model("wrn10_1", None, "3", resolve_preprocessing(mean="0.1", std="0.2,0.3,0.4"))
    torch.testing.assert_close(replaced.mean.flatten(), torch.full((3,), 0.1))
    torch.testing.assert_close(replaced.std.flatten(), torch.tensor([0.2, 0.3, 0.4]))
    weights = tmp_path / "weights"
    models.save_checkpoint(weights, plain, {"arch": "wrn10_1"})
    assert float(load_model(None, weights, None, PRESETS["cifar10"]).mean) == 0.5
    with pytest.raises(dp.errors.ConfigurationError, match="normalizes them itself"):
        load_model(None, weights, None, resolve_preprocessing(mean="0.1", std="0.2"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mean": "0.5"}, "together"),
        ({"mean": "0.5,0.5", "std": "1"}, "one number or three"),
        ({"mean": "a", "std": "1"}, "one number or three"),
        ({"mean": "nan", "std": "1"}, "one number or three"),
        ({"mean": "123.675,116.28,103.53", "std": "0.2"}, "Divide by 255"),
        ({"crop": 3}, "`--size` with `--crop 3`"),
        ({"preset": "imagnet"}, "Did you mean imagenet"),
    ],
)
def test_bad_preprocessing_options_are_explained(options, reason):
    with pytest.raises(dp.errors.ConfigurationError, match=reason):
        resolve_preprocessing(**options)


def test_size_options_take_precedence_over_the_preset():
    assert resolve_preprocessing("imagenet").size == ResizeShorterSide(256, 224)
    assert resolve_preprocessing("imagenet", size=64).size == ResizeExact(64, 64)
    assert resolve_preprocessing("timm", crop=200).size == ResizeShorterSide(256, 200, "bicubic")
    assert resolve_preprocessing(size=40, crop=32).size == ResizeShorterSide(40, 32)
    assert resolve_preprocessing("cifar10").size is None


MEAN, STD = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
HUGGING_FACE = {"image_mean": MEAN, "image_std": STD, "resample": 3, "rescale_factor": 1 / 255}
TIMM = {"mean": MEAN, "std": STD, "interpolation": "bicubic", "input_size": [3, 224, 224]}


@pytest.mark.parametrize(
    ("content", "resize", "crop"),
    [
        ({"pretrained_cfg": TIMM | {"crop_pct": 0.9}}, 248, 224),
        (TIMM | {"crop_pct": 1.0}, 224, 224),
        (TIMM | {"crop_pct": 1.0, "crop_mode": "squash"}, 224, None),
        (HUGGING_FACE | {"size": {"height": 384, "width": 384}}, 384, None),
        (HUGGING_FACE | {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}, 256, 224),
        (HUGGING_FACE | {"size": 224, "crop_size": 224, "do_center_crop": True}, 224, 224),
        (HUGGING_FACE | {"size": 224}, 224, None),
        (HUGGING_FACE | {"size": {"shortest_edge": 224}, "crop_pct": 0.875}, 256, 224),
    ],
)
def test_presets_are_read_from_the_files_of_timm_and_hugging_face(content, resize, crop, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(content))
    expected = Preprocessing(MEAN, STD, resize, crop, "bicubic")
    assert resolve_preprocessing(str(tmp_path / "config.json")) == expected


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"a": 1}',
        json.dumps(HUGGING_FACE | {"rescale_factor": 1 / 127.5}),
        json.dumps(HUGGING_FACE | {"size": {"height": 256, "width": 256}, "crop_size": 224}),
        json.dumps(HUGGING_FACE | {"size": {"height": 256, "width": 128}}),
        json.dumps(HUGGING_FACE | {"resample": 1}),
        json.dumps(TIMM | {"crop_mode": "squash"}),
    ],
)
def test_preset_files_that_cannot_be_followed_raise(content, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(dp.errors.InputError, match="cannot be used"):
        resolve_preprocessing(str(tmp_path / "config.json"))


def test_images_are_resized_as_pillow_does(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (30, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "0.png")
    whole = Image.fromarray(pixels)
    for name, filter_ in (("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC)):
        squares = FileSet([tmp_path / "0.png"], size=ResizeExact(9, 12, name)).batch([0])[0]
        assert np.array_equal(squares.permute(1, 2, 0), np.asarray(whole.resize((12, 9), filter_)))
        cropped = FileSet([tmp_path / "0.png"], size=ResizeShorterSide(18, 12, name)).batch([0])[0]
        assert np.array_equal(
            cropped.permute(1, 2, 0), np.asarray(whole.resize((30, 18), filter_).crop((9, 3, 21, 15)))
        )


# --classes


@pytest.mark.parametrize(
    "content",
    [
        "cat\nsea lion\nox\n",
        '["cat", "sea lion", "ox"]',
        '{"1": "sea lion", "0": "cat", "2": "ox"}',
        '{"0": ["n01", "cat"], "1": ["n02", "sea lion"], "2": ["n03", "ox"]}',
        '{"id2label": {"0": "cat", "1": "sea lion", "2": "ox"}, "hidden_size": 3}',
    ],
)
def test_class_names_are_read_from_lines_and_json(content, tmp_path):
    (tmp_path / "names").write_text(content)
    assert parse_classes(str(tmp_path / "names")) == (3, ("cat", "sea lion", "ox"))


def test_class_files_without_names_raise(tmp_path):
    for content in ("", "a\n\nb", '{"1": "a"}', "{}", '{"a": '):
        (tmp_path / "names").write_text(content)
        with pytest.raises(dp.errors.InputError, match="class name"):
            read_class_names(tmp_path / "names")
    assert parse_classes("12") == (12, ())
    for count in ("0", "-3"):
        with pytest.raises(dp.errors.ConfigurationError, match="at least 1"):
            parse_classes(count)


def test_rows_list_class_names_and_the_likeliest_classes(project, tmp_path, capsys):
    folder = save_images(tmp_path / "images", 3)
    Path("names.txt").write_text("oak\nelm\nfir\nyew")
    options = ("--model", f"{project}:build", "--method", "source", "--out", "predictions.csv", "--force")
    assert run("adapt", folder, *options, "--classes", "names.txt", "--top-k", 3) == 0
    images = FileSet(sorted(folder.iterdir())).batch(range(3)) / 255
    logits = load_model(f"{project}:build", None).eval()(images).detach()
    best = logits.softmax(dim=1).sort(descending=True)
    for index, row in enumerate(table(Path("predictions.csv"))):
        for rank, suffix in enumerate(("", "_2", "_3")):
            assert int(row[f"predicted{suffix}"]) == best.indices[index, rank]
            assert row[f"class{suffix}"] == ("oak", "elm", "fir", "yew")[best.indices[index, rank]]
            assert float(row[f"probability{suffix}"]) == pytest.approx(float(best.values[index, rank]))
    Path("names.txt").write_text("oak\nelm\nfir")
    capsys.readouterr()
    assert run("adapt", folder, *options, "--classes", "names.txt") == 2
    assert "name the model's 4 classes, but it names 3" in capsys.readouterr().err


# --labels


@pytest.fixture
def tree(tmp_path):
    for name in ("ant", "bee", "cow"):
        save_images(tmp_path / "tree" / name, 2, first=ord(name[0]))
    return tmp_path / "tree"


def image_paths(root):
    return sorted(root.rglob("*.png"))


def test_sub_folders_are_labels_by_order_number_or_name(tree):
    paths = image_paths(tree)
    assert read_labels(tree, paths).values == (0, 0, 1, 1, 2, 2)
    assert read_labels(tree, paths[2:4]).values == (1, 1), "the order is that of all sub-folders"
    by_name = read_labels(tree, paths, ("cow", "fox", "ant"))
    assert by_name.values == (2, 2, UNKNOWN, UNKNOWN, 0, 0)
    assert by_name.unknown == ("bee",)
    for number, name in (("10", "ant"), ("9", "bee"), ("0", "cow")):
        (tree / name).rename(tree / number)
    assert read_labels(tree, image_paths(tree)).values == (0, 0, 10, 10, 9, 9)


def test_csv_labels_are_found_by_path(tree, tmp_path):
    paths = image_paths(tree)
    names = [path.relative_to(tree).as_posix() for path in paths]
    lines = ["file,label", f"{names[0]},2", f"{names[3]},0", f"{names[4]},", "elsewhere.png,1", f"{names[5]},-1"]
    for place in (tree / "labels.csv", tmp_path / "labels.csv"):
        place.write_text("\n".join(lines) + "\n\n")
        values = read_labels(place, paths, (), [tree]).values
        assert values == (2, UNLABELED, UNLABELED, 0, UNLABELED, UNLABELED)
    (tree / "labels.csv").write_text(f"{names[0]},bee\n{paths[1].resolve()},ant")
    assert read_labels(tree / "labels.csv", paths[:2], ("ant", "bee")).values == (1, 0)


def test_bad_labels_are_explained(tree, tmp_path):
    paths, table_ = image_paths(tree), tmp_path / "labels.csv"
    save_images(tmp_path / "loose", 1)
    with pytest.raises(dp.errors.InputError, match="does not exist"):
        read_labels(tmp_path / "nowhere", paths)
    with pytest.raises(dp.errors.InputError, match="in a sub-folder of"):
        read_labels(tmp_path / "loose", image_paths(tmp_path / "loose"))
    with pytest.raises(dp.errors.InputError, match="indices or names of `--classes`, but got 'ant'"):
        read_labels(tree, paths, ("x", "y"))
    with pytest.raises(dp.errors.InputError, match="'cow' names several"):
        read_labels(tree, paths, ("cow", "ant", "cow"))
    for content, reason in (("a.png", "lines of file,label"), ("a.png,1", "none for any of them")):
        table_.write_text(content)
        with pytest.raises(dp.errors.InputError, match=reason):
            read_labels(table_, paths)
    labels = read_labels(tree, paths)
    check_outputs(3, (), labels)
    with pytest.raises(dp.errors.InputError, match="each of the model's 4 classes, but got 3"):
        check_outputs(4, (), labels)
    table_.write_text(f"{paths[0]},7")
    with pytest.raises(dp.errors.InputError, match="labels below 4"):
        check_outputs(4, (), read_labels(table_, paths))


def test_adapt_writes_labels_and_prints_the_accuracy(project, tree, capsys):
    Path("names.json").write_text('["cow", "ant", "elk", "fox"]')
    options = ("--model", f"{project}:build", "--method", "source", "--out", "predictions.csv")
    assert run("adapt", tree, *options, "--labels", tree, "--classes", "names.json") == 0
    rows = table(Path("predictions.csv"))
    assert [row["label"] for row in rows] == ["1", "1", "", "", "0", "0"]
    right = sum(row["label"] == row["predicted"] for row in rows)
    assert f"accuracy: {right / 4:.1%} of 4 labeled images" in capsys.readouterr().err
