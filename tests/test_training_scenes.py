"""Training on label maps: crops against a pixel loop, what is never learned from, and the command."""

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
from driftproof.models import read_checkpoint, restore
from driftproof.training import DEEPLAB, SceneTrainer, labelled_scenes, mean_iou, scaled_crops

TINY = replace(DEEPLAB, epochs=2, batch_size=2, crop=8)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def scenes(count=5, height=9, width=12, classes=3, seed=0):
    """Frames whose color tells the class, with unknown and void pixels."""
    random = generator(seed)
    labels = torch.randint(0, classes, (count, height, width), generator=random, dtype=torch.uint8)
    frames = F.one_hot(labels.long(), 3).permute(0, 3, 1, 2).mul(200).to(torch.uint8)
    labels[:, :2, :2], labels[:, -1, -1] = UNKNOWN, VOID
    return frames.contiguous(), labels


def pixelwise(seed=0):
    torch.manual_seed(seed)
    return nn.Conv2d(3, 3, 1)


@settings(max_examples=25)
@given(st.integers(1, 14), st.integers(1, 14), st.integers(1, 9), st.integers(0, 2**31))
def test_a_crops_labels_are_those_of_the_nearest_pixels(height, width, crop, seed):
    labels = torch.randint(0, 250, (3, height, width), generator=generator(seed), dtype=torch.uint8)
    frames = labels.unsqueeze(1).repeat(1, 3, 1, 1)
    views, maps = scaled_crops(frames, labels, generator(seed), crop=crop, scales=(0.5, 2.0))
    draws = torch.rand(4, 3, 1, generator=generator(seed), dtype=torch.float64)
    for place in range(3):
        scale, top, left, flip = draws[:, place, 0].tolist()
        step = 1 / (0.5 + 1.5 * scale)
        for row, column in np.ndindex(crop, crop):
            y = top * (height - crop * step) + (row + 0.5) * step
            x = left * (width - crop * step) + ((crop - 1 - column if flip < 0.5 else column) + 0.5) * step
            inside = 0 <= y < height and 0 <= x < width
            expected = labels[place, math.floor(y), math.floor(x)] if inside else VOID
            assert maps[place, row, column] == expected
            assert inside or views[place, :, row, column].eq(0).all()


def test_at_the_scenes_own_scale_and_size_a_crop_is_the_scene_or_its_mirror():
    frames, labels = scenes(count=8, height=7, width=7)
    views, maps = scaled_crops(frames, labels, generator(), crop=7, scales=(1.0, 1.0))
    mirrored = 0
    for place in range(8):
        same = torch.equal(maps[place], labels[place])
        mirrored += not same
        frame, label = (frames[place], labels[place]) if same else (frames[place].flip(2), labels[place].flip(1))
        assert torch.equal(maps[place], label)
        torch.testing.assert_close(views[place], frame / 255.0, atol=1e-5, rtol=0)
    assert 0 < mirrored < 8


def trained(frames, labels, **changes):
    """A pixelwise model after training on whole square scenes at their own scale, and what was recorded."""
    model = pixelwise()
    recipe = replace(TINY, scales=(1.0, 1.0), crop=frames.shape[2], **changes)
    return model.weight.detach(), SceneTrainer(model, frames, labels, recipe).run()


def test_unknown_and_void_pixels_are_never_learned_from():
    frames, labels = scenes(height=9, width=9)
    untaught = (labels >= UNKNOWN).unsqueeze(1)
    first, _ = trained(frames, labels)
    second, _ = trained(torch.where(untaught, torch.tensor(77, dtype=torch.uint8), frames), labels)
    third, _ = trained(torch.where(untaught, frames, torch.tensor(77, dtype=torch.uint8)), labels)
    torch.testing.assert_close(first, second)
    assert not torch.allclose(first, third)


def test_a_step_follows_the_gradient_of_the_mean_over_taught_pixels():
    frames, labels = scenes(count=2, height=9, width=9)
    weight, (record,) = trained(frames, labels, epochs=1, weight_decay=0.0)
    model = pixelwise()
    logits = model(frames / 255.0)
    losses, right = [], []
    for place, row, column in np.ndindex(2, 9, 9):
        label, pixel = int(labels[place, row, column]), logits[place, :, row, column]
        if label < 3:
            losses.append(-pixel.log_softmax(0)[label])
            right.append(int(pixel.argmax()) == label)
    loss = torch.stack(losses).mean()
    loss.backward()
    assert record.loss == pytest.approx(loss.item(), rel=1e-5)
    assert record.accuracy == pytest.approx(np.mean(right))
    torch.testing.assert_close(weight, (model.weight - DEEPLAB.lr * model.weight.grad).detach())


def test_mixed_precision_computes_the_network_in_few_bits_and_learns_much_the_same():
    frames, labels = scenes(count=4, height=9, width=9)
    kinds = set()

    def noted(mixed):
        model = pixelwise()
        model.register_forward_hook(lambda _, __, output: kinds.add(output.dtype))
        recipe = replace(TINY, scales=(1.0, 1.0), crop=9, lr=0.1)
        return SceneTrainer(model, frames, labels, recipe, mixed=mixed).run()[-1].loss

    full = noted(mixed=False)
    assert kinds == {torch.float32}
    rounded = noted(mixed=True)
    assert kinds == {torch.float32, torch.bfloat16}
    assert rounded == pytest.approx(full, rel=1e-2)


def test_the_rate_falls_as_a_polynomial():
    rates = [DEEPLAB.lr_at(epoch, batch, 45) for epoch in range(DEEPLAB.epochs) for batch in range(45)]
    passed = np.arange(len(rates)) / len(rates)
    np.testing.assert_allclose(rates, 0.01 * (1 - passed) ** 0.9)


def test_a_last_batch_of_one_scene_is_left_out(tmp_path):
    class Counting(nn.Conv2d):
        sizes = ()

        def forward(self, images):
            if self.training:
                self.sizes = (*self.sizes, len(images))
            return super().forward(images)

    model = Counting(3, 3, 1)
    SceneTrainer(model, *scenes(count=5), TINY).run(until_epoch=1)
    assert model.sizes == (2, 2)


def test_training_continues_as_if_it_had_not_stopped(tmp_path):
    whole, parts = pixelwise(), pixelwise()
    SceneTrainer(whole, *scenes(), TINY).run()
    SceneTrainer(parts, *scenes(), TINY).run(until_epoch=1, checkpoint=tmp_path / "c.pt")
    again = pixelwise(seed=5)
    SceneTrainer(again, *scenes(), TINY).run(checkpoint=tmp_path / "c.pt")
    assert torch.equal(whole.weight, again.weight)


def test_what_cannot_be_trained_on_is_refused():
    frames, labels = scenes()
    with pytest.raises(InputError, match=r"label maps of shape \(5, 9, 12\)"):
        SceneTrainer(pixelwise(), frames, labels[:, 0], TINY)
    with pytest.raises(InputError, match="at least two scenes"):
        SceneTrainer(pixelwise(), frames[:1], labels[:1], TINY)
    with pytest.raises(InputError, match=r"labels in 0\.\.2, or 254 and 255 .* but got 7"):
        SceneTrainer(pixelwise(), frames, labels.masked_fill(labels == 1, 7), TINY)
    with pytest.raises(InputError, match=r"labels in 0\.\.255, but got -1"):
        SceneTrainer(pixelwise(), frames, labels.long() - 1, TINY)
    with pytest.raises(ModelError, match=r"logits of shape \(N, classes, H, W\)"):
        SceneTrainer(nn.Sequential(nn.Flatten(), nn.Linear(324, 3)), frames, labels, TINY)
    with pytest.raises(ConfigurationError, match="`batch_size` to be at least 2"):
        replace(TINY, batch_size=1)
    with pytest.raises(ConfigurationError, match="scales"):
        replace(TINY, scales=(2.0, 1.0))


def test_scenes_without_labels_are_no_training_set():
    class Unlabelled:
        name = "frames"

        def __len__(self):
            return 2

        def read(self, index):
            return torch.zeros(3, 4, 4, dtype=torch.uint8), None

    with pytest.raises(InputError, match="label map for every scene of frames, but scene 0"):
        labelled_scenes(Unlabelled())


def test_mean_iou_is_scikit_learns_over_taught_pixels():
    frames, labels = scenes(count=5)
    model = pixelwise().eval()
    predicted = model(frames / 255.0).argmax(dim=1)
    taught = labels < 3
    expected = jaccard_score(labels[taught], predicted[taught], average=None, labels=[0, 1, 2])
    present = [k for k in range(3) if (labels[taught] == k).any() or (predicted[taught] == k).any()]
    found = mean_iou(model, frames, labels, classes=3, batch_size=2)
    assert found == pytest.approx(np.mean([expected[k] for k in present]))


def camvid_at(root, count=3):
    """A tiny set in CamVid's arrangement."""
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


def test_the_train_command_trains_on_scenes_from_a_backbone(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(training, "DEEPLAB", replace(DEEPLAB, crop=24))
    camvid_at(tmp_path)
    out, onward = tmp_path / "weights.safetensors", tmp_path / "onward.safetensors"
    options = ("train", "deeplabv3plus_small", "--set", "camvid", "--data", tmp_path, "--epochs", 1)
    assert run(*options, "--out", out) == 0
    assert "epoch 1 of 1: loss" in capsys.readouterr().err
    model, meta = restore(out), read_checkpoint(out).meta
    assert meta["classes"] == ["sky", "building", "pole", "road", "pavement", "tree", "fence", "car"]
    assert 0 <= meta["mean_iou"] <= 1
    assert model.classes == 8
    assert run(*options, "--out", onward, "--start", out) == 0
    assert "tensors taken; without a place: nothing; fresh: nothing" in capsys.readouterr().err.replace("\n", " ")
    assert run("train", "deeplabv3plus_small", "--set", "cifar10", "--data", tmp_path, "--out", out) == 2


def test_the_train_command_does_not_go_on_from_what_was_begun_otherwise(tmp_path, capsys):
    camvid_at(tmp_path)
    first, second = (tmp_path / f"{name}.safetensors" for name in ("first", "second"))
    options = ("train", "deeplabv3plus_small", "--set", "camvid", "--data", tmp_path, "--epochs", 1)
    assert run(*options, "--out", first) == 0
    assert run(*options, "--out", second, "--start", first) == 0
    assert [read_checkpoint(one).meta["begun_from"] for one in (first, second)] == [None, sha256(first)]
    assert run(*options, "--out", second) == 2
    assert "`begun_from` was" in capsys.readouterr().err
    assert run(*options, "--out", second, "--start", first) == 0


def test_the_train_command_takes_smaller_frames(tmp_path):
    camvid_at(tmp_path)
    out = tmp_path / "weights.safetensors"
    options = ("deeplabv3plus_small", "--set", "camvid", "--height", 18, "--data", tmp_path, "--epochs", 1)
    assert run("train", *options, "--out", out) == 0
    assert read_checkpoint(out).meta["height"] == 18
    assert torch.load(out.with_suffix(".training.pt"), weights_only=True)["recipe"]["crop"] == 16


@pytest.mark.parametrize("option", [("--mixed",), ("--height", 32)])
def test_what_is_for_scenes_alone_is_refused_elsewhere(option, tmp_path, capsys):
    assert run("train", "wrn10_1", *option, "--data", tmp_path, "--out", tmp_path / "weights.safetensors") == 2
    assert f"Expected `{option[0]}` with one of deeplabv3plus" in capsys.readouterr().err


def test_in_mixed_precision_channels_come_last_and_the_model_learns_the_same(tmp_path):
    found = {}
    for mixed in (False, True):
        model = nn.Conv2d(3, 3, 3, padding=1)
        with torch.no_grad():
            model.weight.copy_(pixelwise().weight.expand_as(model.weight) / 9), model.bias.zero_()
        SceneTrainer(model, *scenes(), TINY, mixed=mixed).run()
        found[mixed] = model.weight.detach()
    assert found[True].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found[True], found[False], rtol=0.02, atol=2e-3)


def test_a_run_that_was_begun_in_another_precision_is_refused(tmp_path):
    path = tmp_path / "run.pt"
    SceneTrainer(pixelwise(), *scenes(), TINY).run(1, checkpoint=path)
    with pytest.raises(StateError, match="run: `mixed` was False and is True here"):
        SceneTrainer(pixelwise(), *scenes(), TINY, mixed=True).run(checkpoint=path)
