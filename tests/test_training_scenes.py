"""Training of segmentation networks: crops compared with a pixel loop, ignored pixels, the train command."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import jaccard_score
from torch import nn

from driftproof import training
from driftproof.cli import main
from driftproof.data.scenes import UNKNOWN, VOID
from driftproof.errors import ConfigurationError, InputError, ModelError, StateError
from driftproof.files import sha256
from driftproof.models import build_from_checkpoint, read_checkpoint
from driftproof.training import DEEPLAB, SceneTrainer, evaluate_mean_iou, load_labeled_scenes, scaled_crop_and_flip

TINY = replace(DEEPLAB, epochs=2, batch_size=2, crop=8)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make_scenes(count=5, height=9, width=12, classes=3, seed=0):
    """Frames whose color encodes the class, with unknown and void pixels."""
    random = generator(seed)
    labels = torch.randint(0, classes, (count, height, width), generator=random, dtype=torch.uint8)
    frames = F.one_hot(labels.long(), 3).permute(0, 3, 1, 2).mul(200).to(torch.uint8)
    labels[:, :2, :2], labels[:, -1, -1] = UNKNOWN, VOID
    return frames.contiguous(), labels


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Conv2d(3, 3, 1)


@settings(max_examples=25)
@given(st.integers(1, 14), st.integers(1, 14), st.integers(1, 9), st.integers(0, 2**31))
def test_crop_labels_equal_a_nearest_pixel_loop(height, width, crop, seed):
    labels = torch.randint(0, 250, (3, height, width), generator=generator(seed), dtype=torch.uint8)
    frames = labels.unsqueeze(1).repeat(1, 3, 1, 1)
    views, maps = scaled_crop_and_flip(frames, labels, generator(seed), crop=crop, scales=(0.5, 2.0))
    draws = torch.rand(4, 3, 1, generator=generator(seed), dtype=torch.float64)
    for index in range(3):
        scale, top, left, flip = draws[:, index, 0].tolist()
        step = 1 / (0.5 + 1.5 * scale)
        for row, column in np.ndindex(crop, crop):
            y = top * (height - crop * step) + (row + 0.5) * step
            x = left * (width - crop * step) + ((crop - 1 - column if flip < 0.5 else column) + 0.5) * step
            inside = 0 <= y < height and 0 <= x < width
            expected = labels[index, math.floor(y), math.floor(x)] if inside else VOID
            assert maps[index, row, column] == expected
            assert inside or views[index, :, row, column].eq(0).all()


def test_crop_at_scale_one_and_full_size_is_the_scene_or_its_flip():
    frames, labels = make_scenes(count=8, height=7, width=7)
    views, maps = scaled_crop_and_flip(frames, labels, generator(), crop=7, scales=(1.0, 1.0))
    flipped = 0
    for view, view_labels, frame, label in zip(views, maps, frames, labels, strict=True):
        same = torch.equal(view_labels, label)
        flipped += not same
        assert torch.equal(view_labels, label if same else label.flip(1))
        torch.testing.assert_close(view, (frame if same else frame.flip(2)) / 255.0, atol=1e-5, rtol=0)
    assert 0 < flipped < 8


def train(frames, labels, **changes):
    """Train a per-pixel model on full square scenes at scale one; return its weights and the history."""
    model = make_model()
    recipe = replace(TINY, scales=(1.0, 1.0), crop=frames.shape[2], **changes)
    return model.weight.detach(), SceneTrainer(model, frames, labels, recipe).run()


def test_unknown_and_void_pixels_do_not_affect_training():
    frames, labels = make_scenes(height=9, width=9)
    ignored = (labels >= UNKNOWN).unsqueeze(1)
    first, _ = train(frames, labels)
    second, _ = train(torch.where(ignored, torch.tensor(77, dtype=torch.uint8), frames), labels)
    third, _ = train(torch.where(ignored, frames, torch.tensor(77, dtype=torch.uint8)), labels)
    torch.testing.assert_close(first, second)
    assert not torch.allclose(first, third)


def test_step_uses_the_gradient_of_the_mean_loss_over_labeled_pixels():
    frames, labels = make_scenes(count=2, height=9, width=9)
    weight, (record,) = train(frames, labels, epochs=1, weight_decay=0.0)
    model = make_model()
    logits = model(frames / 255.0)
    losses, correct = [], []
    for index, row, column in np.ndindex(2, 9, 9):
        label, pixel = int(labels[index, row, column]), logits[index, :, row, column]
        if label < 3:
            losses.append(-pixel.log_softmax(0)[label])
            correct.append(int(pixel.argmax()) == label)
    loss = torch.stack(losses).mean()
    loss.backward()
    assert record.loss == pytest.approx(loss.item(), rel=1e-5)
    assert record.accuracy == pytest.approx(np.mean(correct))
    torch.testing.assert_close(weight, (model.weight - DEEPLAB.lr * model.weight.grad).detach())


def test_mixed_precision_runs_the_network_in_bfloat16_with_similar_loss():
    frames, labels = make_scenes(count=4, height=9, width=9)
    dtypes = set()

    def final_loss(mixed):
        model = make_model()
        model.register_forward_hook(lambda _, __, output: dtypes.add(output.dtype))
        recipe = replace(TINY, scales=(1.0, 1.0), crop=9, lr=0.1)
        return SceneTrainer(model, frames, labels, recipe, mixed=mixed).run()[-1].loss

    full = final_loss(mixed=False)
    assert dtypes == {torch.float32}
    reduced = final_loss(mixed=True)
    assert dtypes == {torch.float32, torch.bfloat16}
    assert reduced == pytest.approx(full, rel=1e-2)


def test_polynomial_schedule():
    rates = [DEEPLAB.lr_at(epoch, batch, 45) for epoch in range(DEEPLAB.epochs) for batch in range(45)]
    progress = np.arange(len(rates)) / len(rates)
    np.testing.assert_allclose(rates, 0.01 * (1 - progress) ** 0.9)


def test_last_batch_of_one_scene_is_dropped():
    class Counting(nn.Conv2d):
        sizes = ()

        def forward(self, images):
            if self.training:
                self.sizes = (*self.sizes, len(images))
            return super().forward(images)

    model = Counting(3, 3, 1)
    SceneTrainer(model, *make_scenes(count=5), TINY).run(until_epoch=1)
    assert model.sizes == (2, 2)


def test_resumed_scene_training_is_bit_identical(tmp_path):
    full, first_half = make_model(), make_model()
    SceneTrainer(full, *make_scenes(), TINY).run()
    SceneTrainer(first_half, *make_scenes(), TINY).run(until_epoch=1, checkpoint=tmp_path / "c.pt")
    resumed = make_model(seed=5)
    SceneTrainer(resumed, *make_scenes(), TINY).run(checkpoint=tmp_path / "c.pt")
    assert torch.equal(full.weight, resumed.weight)


def test_invalid_scene_training_data_raises():
    frames, labels = make_scenes()
    with pytest.raises(InputError, match=r"label maps of shape \(5, 9, 12\)"):
        SceneTrainer(make_model(), frames, labels[:, 0], TINY)
    with pytest.raises(InputError, match="at least two scenes"):
        SceneTrainer(make_model(), frames[:1], labels[:1], TINY)
    with pytest.raises(InputError, match=r"labels in 0\.\.2, or 254 and 255 .* but got 7"):
        SceneTrainer(make_model(), frames, labels.masked_fill(labels == 1, 7), TINY)
    with pytest.raises(InputError, match=r"labels in 0\.\.255, but got -1"):
        SceneTrainer(make_model(), frames, labels.long() - 1, TINY)
    with pytest.raises(ModelError, match=r"logits of shape \(N, classes, H, W\)"):
        SceneTrainer(nn.Sequential(nn.Flatten(), nn.Linear(324, 3)), frames, labels, TINY)
    with pytest.raises(ConfigurationError, match="`batch_size` to be at least 2"):
        replace(TINY, batch_size=1)
    with pytest.raises(ConfigurationError, match="scales"):
        replace(TINY, scales=(2.0, 1.0))


def test_loading_unlabeled_scenes_raises_input_error():
    class UnlabeledScenes:
        name = "frames"

        def __len__(self):
            return 2

        def read(self, index):
            return torch.zeros(3, 4, 4, dtype=torch.uint8), None

    with pytest.raises(InputError, match="label map for every scene of frames, but scene 0"):
        load_labeled_scenes(UnlabeledScenes())


def test_evaluate_mean_iou_equals_sklearn_over_labeled_pixels():
    frames, labels = make_scenes(count=5)
    model = make_model().eval()
    predicted = model(frames / 255.0).argmax(dim=1)
    labeled = labels < 3
    expected = jaccard_score(labels[labeled], predicted[labeled], average=None, labels=[0, 1, 2])
    present = [k for k in range(3) if (labels[labeled] == k).any() or (predicted[labeled] == k).any()]
    found = evaluate_mean_iou(model, frames, labels, classes=3, batch_size=2)
    assert found == pytest.approx(np.mean([expected[k] for k in present]))


def write_camvid(root, count=3):
    """Write a tiny set in CamVid's layout."""
    rng = np.random.default_rng(0)
    for split in ("train", "val", "test"):
        (root / "CamVid" / split).mkdir(parents=True)
        (root / "CamVid" / f"{split}annot").mkdir()
        for index in range(count):
            labels = np.kron(rng.integers(0, 12, (6, 8), dtype=np.uint8), np.ones((4, 4), dtype=np.uint8))
            frame = np.stack([labels * 20, labels * 10, 255 - labels * 20], axis=2).astype(np.uint8)
            Image.fromarray(frame).save(root / "CamVid" / split / f"{index}.png")
            Image.fromarray(labels).save(root / "CamVid" / f"{split}annot" / f"{index}.png")


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def test_train_command_on_scenes_records_its_initial_weights(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(training, "DEEPLAB", replace(DEEPLAB, crop=24))
    write_camvid(tmp_path)
    first, second = (tmp_path / f"{name}.safetensors" for name in ("first", "second"))
    options = ("train", "--model", "deeplabv3plus_small", "--images", "camvid", "--data", tmp_path, "--epochs", 1)
    assert run(*options, "--out", first) == 0
    assert "epoch 1 of 1: loss" in capsys.readouterr().err
    model, meta = build_from_checkpoint(first), read_checkpoint(first).meta
    assert meta["classes"] == ["sky", "building", "pole", "road", "pavement", "tree", "fence", "car"]
    assert 0 <= meta["mean_iou"] <= 1
    assert model.classes == 8
    assert run(*options, "--out", second, "--weights", first) == 0
    assert "tensors loaded; unexpected: none; missing: none" in capsys.readouterr().err.replace("\n", " ")
    assert [read_checkpoint(path).meta["begun_from"] for path in (first, second)] == [None, sha256(first)]
    assert run(*options, "--out", second) == 2, "resumed a run with other initial weights"
    assert "`begun_from` was" in capsys.readouterr().err
    assert run(*options, "--out", second, "--weights", first) == 0
    assert (
        run("train", "--model", "deeplabv3plus_small", "--images", "cifar10", "--data", tmp_path, "--out", first) == 2
    )


def test_train_command_resizes_frames_and_fits_the_crop(tmp_path):
    write_camvid(tmp_path)
    out = tmp_path / "weights.safetensors"
    options = (
        "--model",
        "deeplabv3plus_small",
        "--images",
        "camvid",
        "--height",
        18,
        "--data",
        tmp_path,
        "--epochs",
        1,
    )
    assert run("train", *options, "--out", out) == 0
    assert read_checkpoint(out).meta["height"] == 18
    assert torch.load(out.with_suffix(".training.pt"), weights_only=True)["recipe"]["crop"] == 16


@pytest.mark.parametrize("option", [("--mixed",), ("--height", 32)])
def test_scene_options_are_rejected_for_classifiers(option, tmp_path, capsys):
    assert (
        run("train", "--model", "wrn10_1", *option, "--data", tmp_path, "--out", tmp_path / "weights.safetensors") == 2
    )
    assert f"Expected `{option[0]}` with one of deeplabv3plus" in capsys.readouterr().err


def test_mixed_precision_uses_channels_last_and_gives_similar_weights():
    weights = {}
    for mixed in (False, True):
        model = nn.Conv2d(3, 3, 3, padding=1)
        with torch.no_grad():
            model.weight.copy_(make_model().weight.expand_as(model.weight) / 9), model.bias.zero_()
        SceneTrainer(model, *make_scenes(), TINY, mixed=mixed).run()
        weights[mixed] = model.weight.detach()
    assert weights[True].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(weights[True], weights[False], rtol=0.02, atol=2e-3)


def test_checkpoint_of_another_precision_raises_state_error(tmp_path):
    path = tmp_path / "run.pt"
    SceneTrainer(make_model(), *make_scenes(), TINY).run(1, checkpoint=path)
    with pytest.raises(StateError, match="run: `mixed` was False and is True here"):
        SceneTrainer(make_model(), *make_scenes(), TINY, mixed=True).run(checkpoint=path)
