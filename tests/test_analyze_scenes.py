"""`analyze scenes`: frame results, pixel counts, drawings, the page and the command."""

import base64
import io
import re
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import driftproof as dp
from driftproof.analyses.scenes import Corruption, FrameResult, adapt_to_frames
from driftproof.cli.analyze_scenes import _paper_defaults
from driftproof.cli.scene_page import (
    colorize,
    count_pixels,
    default_palette,
    describe_counts,
    make_panels,
    write_scenes,
)
from driftproof.corruptions import corrupt
from driftproof.data.scenes import CAMVID, CITYSCAPES, UNKNOWN, VOID
from driftproof.errors import ConfigurationError, InputError, ModelError
from driftproof.methods.by_name import build_method
from driftproof.paper.suites import make_spec
from rows_on_disk import run_command

HEIGHT, WIDTH = 24, 36


class Segmenter(nn.Module):
    """A minimal segmentation network."""

    def __init__(self, classes=8):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.last = nn.Conv2d(8, classes, 1)

    def forward(self, images):
        return 4 * self.last(torch.relu(self.norm(self.first(images))))


def segmenter():
    torch.manual_seed(3)
    return Segmenter()


def classifier():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def of_many_classes():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 300, 1))


class RandomScenes:
    """Random frames with labels."""

    name = "made"

    def __init__(self, count=5, labelled=True):
        random = torch.Generator().manual_seed(0)
        self.frames = torch.randint(0, 256, (count, 3, HEIGHT, WIDTH), dtype=torch.uint8, generator=random)
        self.labels = torch.randint(0, 8, (count, HEIGHT, WIDTH), dtype=torch.uint8, generator=random)
        self.labels[:, :4], self.labels[:, 4:7] = UNKNOWN, VOID
        self.labelled = labelled

    def __len__(self):
        return len(self.frames)

    def read(self, index):
        return self.frames[index], self.labels[index] if self.labelled else None


def adapter():
    return dp.tent(segmenter(), lr=0.3, select=dp.ConfidenceDifference(margin=-0.02))


# Frame results


@pytest.mark.parametrize(("count", "every", "batch_size"), [(5, 1, 2), (9, 1, 3), (2, 2, 2), (1, 1, 1)])
def test_frame_results_equal_a_manual_loop(count, every, batch_size):
    scenes, alarm = RandomScenes(), dp.Alarm(0.05, min_area=2)
    seen = list(adapt_to_frames(adapter(), scenes, alarm=alarm, count=count, every=every, batch_size=batch_size))
    by_hand, expected = adapter(), {}
    for start in range(0, 5, batch_size):
        logits = by_hand(scenes.frames[start : start + batch_size].float() / 255)
        events = alarm(by_hand.last.novelty)
        for row in range(len(logits)):
            own = [event for event in events if event.sample == row]
            expected[start + row] = (logits[row].argmax(dim=0), ~by_hand.last.selected[row], own)
    assert [view.index for view in seen] == list(range(0, 5, every))[:count]
    for view in seen:
        predicted, rejected, events = expected[view.index]
        assert torch.equal(view.predicted, predicted)
        assert torch.equal(view.rejected, rejected)
        assert list(view.events) == events
        assert torch.equal(view.image, scenes.frames[view.index])
        assert torch.equal(view.labels, scenes.labels[view.index])


def test_corrupted_frame_is_the_same_in_any_batch():
    scenes = RandomScenes(4, labelled=False)
    fog = Corruption("fog", 2)
    seen = adapt_to_frames(adapter(), scenes, alarm=dp.Alarm(0.0), count=4, batch_size=3, corruption=fog)
    for view in seen:
        place = torch.tensor([view.index])
        assert torch.equal(view.image, corrupt(scenes.frames[place], "fog", 2, dataset="made", indices=place)[0])
        assert view.labels is None


def test_source_method_rejects_nothing():
    (view,) = adapt_to_frames(dp.source(segmenter()), RandomScenes(), alarm=dp.Alarm(0.0), count=1)
    assert view.rejected is None
    assert list(make_panels(view, default_palette(8))) == ["Input", "Prediction", "Alarms", "Ground truth"]
    assert "rejected" not in describe_counts(count_pixels(view), has_rejected=False)


def test_bad_model_settings_and_labels_raise():
    with pytest.raises(ModelError, match="logits for every pixel"):
        list(adapt_to_frames(dp.source(classifier()), RandomScenes(), alarm=dp.Alarm(0.0), count=1))
    with pytest.raises(ConfigurationError, match="at least 1, but got 0, 1 and 2"):
        list(adapt_to_frames(adapter(), RandomScenes(), alarm=dp.Alarm(0.0), count=0))
    with pytest.raises(ConfigurationError, match="fog"):
        Corruption("fogg")
    scenes = RandomScenes()
    scenes.labels = scenes.labels[:, 1:]
    with pytest.raises(InputError, match="frame 0 of made"):
        list(adapt_to_frames(adapter(), scenes, alarm=dp.Alarm(0.0), count=1))


# Drawings


@given(
    st.sampled_from([CITYSCAPES, CAMVID, default_palette(4)]), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99)
)
def test_classes_are_painted_in_their_colors(palette, height, width, seed):
    numbers = torch.randint(0, len(palette) + 2, (height, width), generator=torch.Generator().manual_seed(seed))
    classes = torch.tensor([*range(len(palette)), UNKNOWN, VOID], dtype=torch.uint8)[numbers]
    colors = {number: [entry.color] for number, entry in enumerate(palette)}
    colors |= {UNKNOWN: [(255, 255, 255)], VOID: [(150, 150, 150), (185, 185, 185)]}
    for color, number in zip(colorize(classes, palette).reshape(-1, 3), classes.flatten().tolist(), strict=True):
        assert tuple(color.tolist()) in colors[number]


@settings(max_examples=30)
@given(st.integers(0, 999), st.booleans())
def test_pixel_counts_equal_a_loop(seed, labelled):
    random = torch.Generator().manual_seed(seed)
    predicted = torch.randint(0, 3, (5, 6), generator=random)
    rejected = torch.rand(5, 6, generator=random) < 0.4
    labels = torch.tensor([0, 1, 2, UNKNOWN, VOID])[torch.randint(0, 5, (5, 6), generator=random)]
    frame = torch.zeros(3, 5, 6, dtype=torch.uint8)
    view = FrameResult(0, frame, predicted, rejected, (dp.Event(0, 1.0),), labels if labelled else None)
    expected = Counter({"": 30, "alarms": 1})
    for guess, out, truth in zip(predicted.flatten(), rejected.flatten(), labels.flatten(), strict=True):
        group = "unknown" if truth == UNKNOWN else "correct" if truth == guess else "wrong"
        expected["rejected"] += bool(out)
        if labelled and truth != VOID:
            expected[group] += 1
            expected[f"rejected {group}"] += bool(out)
    assert count_pixels(view) == expected


def test_counts_are_told_as_shares():
    counts = {"": 100, "correct": 50, "wrong": 20, "unknown": 10, "rejected": 30, "alarms": 0}
    rejected = {"rejected correct": 5, "rejected wrong": 10, "rejected unknown": 9}
    assert describe_counts(counts | rejected, has_rejected=True) == (
        "71.4 % of the known pixels correct; 30.0 % of the pixels rejected "
        "(10.0 % of the correct, 50.0 % of the wrong, 90.0 % of the unknown ones); 0 alarms"
    )


def test_rejected_pixels_are_black_and_alarms_framed():
    rejected = torch.zeros(40, 60, dtype=torch.bool)
    rejected[10:20, 30:45] = True
    frame = torch.randint(0, 200, (3, 40, 60), dtype=torch.uint8)
    event = dp.Event(0, 1.0, 150, (10, 30, 20, 45))
    view = FrameResult(0, frame, torch.ones(40, 60, dtype=torch.int64), rejected, (event,))
    shown = {title: np.asarray(image) for title, image in make_panels(view, CITYSCAPES).items()}
    assert list(shown) == ["Input", "Prediction", "Rejected in black", "Alarms"]
    assert (shown["Rejected in black"][rejected.numpy()] == 0).all()
    assert (shown["Rejected in black"][~rejected.numpy()] == CITYSCAPES[1].color).all()
    original = frame.permute(1, 2, 0).numpy()
    assert (shown["Input"] == original).all()
    assert (shown["Alarms"][10:20, 30:45] == original[10:20, 30:45]).all()
    assert (shown["Alarms"][9, 30:45] == (255, 214, 0)).all()
    assert (shown["Alarms"][10:20, 45] == (255, 214, 0)).all()


# The page


def pictures_of(page):
    for kind, content in re.findall(r"data:image/(\w+);base64,([\w+/=]+)", page):
        image = Image.open(io.BytesIO(base64.b64decode(content)))
        assert image.format.lower() == kind
        yield image


def draw_page(out, **more):
    seen = adapt_to_frames(adapter(), RandomScenes(**more), alarm=dp.Alarm(0.05), count=3)
    facts = {"Model": "<b>mine</b>"}
    return write_scenes(seen, default_palette(8), out, title="made & seen", facts=facts)


def test_page_is_self_contained_and_files_exist(tmp_path):
    page = draw_page(tmp_path / "scenes")
    text = page.read_text()
    pictures = list(pictures_of(text))
    assert len(pictures) == 3 * 5
    links = re.findall(r'href="([^"#][^"]*)"', text)
    assert set(links) == {"contact-sheet.png", "scenes.webp", *(f"frames/000{number}.png" for number in (1, 2, 3))}
    assert all((page.parent / link).exists() for link in links)
    assert re.findall(r'(?:src|srcset)="(?!data:)', text) == []
    assert "http" not in re.sub(r"base64,[\w+/=]+", "", text)
    assert "&lt;b&gt;mine" in text
    assert "made &amp; seen" in text
    assert "rejected: not learned from" in text
    with Image.open(page.parent / "scenes.webp") as animation:
        assert (animation.format, animation.n_frames) == ("WEBP", 3)
    with Image.open(page.parent / "frames" / "0001.png") as strip:
        assert strip.width > 5 * WIDTH
    assert [path.name for path in page.parent.rglob(".*")] == []


def test_page_leaves_out_what_is_not_known(tmp_path):
    text = draw_page(tmp_path, labelled=False).read_text()
    assert len(list(pictures_of(text))) == 3 * 4
    assert "ruth" not in text
    with pytest.raises(InputError, match="at least one frame"):
        write_scenes([], CAMVID, tmp_path, title="", facts={})


# The command


@pytest.fixture
def camvid(tmp_path):
    random = np.random.default_rng(0)
    for split in ("train", "test"):
        for number in range(5):
            for folder, shape, top in ((split, (HEIGHT, WIDTH, 3), 256), (f"{split}annot", (HEIGHT, WIDTH), 12)):
                path = tmp_path / "CamVid" / folder / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(random.integers(0, top, shape).astype(np.uint8)).save(path)
    return tmp_path


run = partial(run_command, "analyze", "scenes")
MODEL = ("--model", "test_analyze_scenes:segmenter")


@pytest.mark.parametrize(
    ("method", "corruption"), [("tent+crowd", "contrast"), ("source", "frost"), ("swr+crowd", "fog")]
)
def test_scenes_command_draws_a_data_set(camvid, capsys, method, corruption):
    words = ("--images", "camvid", "--data", camvid, "--frames", 3, "--method", method, "--corruption", corruption)
    words += ("--severity", 2, "--source-frames", 4, "--procedural-frost")
    assert run(*MODEL, *words, "--out", camvid / "out") == 0
    assert capsys.readouterr().out.strip() == str(camvid / "out" / "index.html")
    text = (camvid / "out" / "index.html").read_text()
    assert f"camvid/test under {corruption}, seen by {method}" in text
    assert f"{corruption}, severity 2" in text
    assert (", made up" in text) == (corruption == "frost")
    assert "pavement" in text


@pytest.mark.parametrize("method", ["tent", "tent+crowd", "swr", "swr+crowd", "cotta"])
def test_scenes_command_defaults_match_the_suites(method):
    suites = dict(make_spec(method, "camvid-c", domains=("clean",)).options)
    for name, value in _paper_defaults(method, {}).items():
        assert suites[name] == value
    adapters = [build_method(method, segmenter(), options) for options in (suites, _paper_defaults(method, {}))]
    assert len({(adapter.method.mean_entropy, repr(adapter.select)) for adapter in adapters}) == 1
    assert _paper_defaults(method, {"lr": 0.5})["lr"] == 0.5


def test_scenes_command_draws_a_folder(camvid):
    frames = camvid / "CamVid" / "test"
    words = ("--out", camvid / "out", "--every", 2, "--height", 12, "--width", 20)
    assert run(frames, *MODEL, *words) == 0
    text = (camvid / "out" / "index.html").read_text()
    assert re.findall(r"<h2>Frame (\d)</h2>", text) == ["1", "3", "5"]
    assert "12×20 pixels" in text
    assert "class 7" in text
    assert run(frames, *MODEL, *words, "--images", "camvid", "--unknown", "sky,road,car") == 0
    assert "bicyclist" in (camvid / "out" / "index.html").read_text()


def test_scenes_command_suggests_height_and_width(tmp_path, capsys):
    (tmp_path / "frames").mkdir()
    for name, width in (("a.png", 32), ("b.png", 48)):
        Image.new("RGB", (width, 24)).save(tmp_path / "frames" / name)
    words = (tmp_path / "frames", *MODEL, "--out", tmp_path / "out")
    assert run(*words) == 2
    advice = re.search(r"`(--height \d+ --width \d+)`", " ".join(capsys.readouterr().err.split()))
    assert run(*words, *advice[1].split()) == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "Expected a folder of frames or `--images`"),
        ("--images camvit", "Did you mean camvid"),
        ("--images camvid --unknown sky", "Expected a model for the 10 classes of camvid/test"),
        ("--images cityscapes --unknown sky", "`--unknown` with `--images camvid`, but got it with cityscapes"),
        ("--images synthia --split val", "`--split` with a data set that has splits, but got it with synthia"),
        (". --images camvid --split val", "`--split` with a data set that has splits, but got it with ."),
        ("--images camvid --width 9", "Expected `--height` with `--width`"),
        ("--images camvid --corruption fogg", "Did you mean fog"),
        ("--images camvid --corruption frost --frost {}", "frost1.png"),
        ("{} --method ttn", "Expected `--images`, since this method has to be prepared on source data"),
        ("--images camvid --model test_analyze_scenes:classifier", "Expected a segmentation network"),
        ("{} --model test_analyze_scenes:of_many_classes", "Expected at most 254 classes, but got 300"),
    ],
)
def test_scenes_command_explains_bad_options(camvid, capsys, line, message):
    words = line.format(camvid / "CamVid" / "test").split()
    assert run(*MODEL, *words, "--data", camvid, "--out", camvid / "out") == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (camvid / "out").exists()
