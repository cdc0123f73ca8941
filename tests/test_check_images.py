"""`check` names mistakes in the data on real photos, and takes no change of domain for one."""

import copy
import json
import sys
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import nn

import driftproof as dp
from driftproof import cli
from driftproof.corruptions import CORRUPTIONS, corrupt, procedural_frost
from driftproof.data.digits import digits
from networks import GroupNormNet

MEAN, STD = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def normalize(images):
    return (images - MEAN) / STD


class TrainedOnNormalized(nn.Module):
    """The same network as if it had been trained on normalized images."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return self.model(images * STD + MEAN)


def train(pixels, labels, classes):
    images = pixels.float() / 255
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU()]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for chosen in torch.randint(len(images), (20, 48)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    for layer in (model[1], model[4]):  # statistics of the final weights, as after training at a small learning rate
        layer.reset_running_stats()
        layer.momentum = None
    with torch.no_grad():
        model(images)
    return model.eval()


@pytest.fixture(scope="module")
def patches():
    """Patches of two photos, with the photo as label."""
    photos = [torch.from_numpy(photo.copy()).permute(2, 0, 1) for photo in load_sample_images().images]
    generator = np.random.default_rng(0)
    places = [(int(generator.integers(395)), int(generator.integers(608))) for _ in range(600)]
    labels = torch.arange(len(places)) % 2
    cut = [photos[label][:, y : y + 32, x : x + 32] for label, (y, x) in zip(labels, places, strict=True)]
    return torch.stack(cut), labels


@pytest.fixture(scope="module")
def model(patches):
    pixels, labels = patches
    return train(pixels[:450], labels[:450], 2)


@pytest.fixture(scope="module")
def pixels(patches):
    return patches[0][450:]


@pytest.fixture(scope="module")
def images(pixels):
    return pixels.float() / 255


def messages(model, images, **options):
    return [problem.message for problem in dp.check(model, images, **options)]


MISTAKES = {
    "bytes": (lambda x: x * 255, False, "in 0..255"),
    "scaled twice": (lambda x: x / 255, False, "divided by 255 twice"),
    "normalized for a model that does it": (normalize, False, "normalized, but the model was trained on 0..1"),
    "BGR": (lambda x: x.flip(1), False, "reverse order"),
    "grey": (lambda x: x.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1), False, "grey"),
    "not normalized": (lambda x: x, True, "not normalized"),
    "bytes, not normalized": (lambda x: x * 255, True, "in 0..255, but the model was trained on normalized"),
    "normalized twice": (lambda x: normalize(normalize(x)), True, "normalized twice"),
    "normalized bytes": (lambda x: normalize(x * 255), True, "without division by 255"),
    "BGR, normalized": (lambda x: normalize(x.flip(1)), True, "reverse order"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_preparation_are_named(model, images, mistake):
    prepare, needs_normalized, message = MISTAKES[mistake]
    found = messages(TrainedOnNormalized(model) if needs_normalized else model, prepare(images))
    assert [message in one for one in found if "one class" not in one] == [True]


def test_normalization_inside_a_model_trained_without_it_is_named(model, images):
    class Normalizing(TrainedOnNormalized):
        def forward(self, images):
            return self.model(normalize(images))

    found = messages(Normalizing(model), images)
    assert "normalized inside the model" in found[0]


def test_images_as_in_training_have_no_problems(model, images):
    assert dp.check(model, images) == []
    assert dp.check(TrainedOnNormalized(model), normalize(images)) == []


@pytest.mark.parametrize(
    "corruption",
    [pytest.param(name, marks=pytest.mark.slow if index % 3 else ()) for index, name in enumerate(CORRUPTIONS)],
)
def test_corruptions_are_not_taken_for_mistakes(model, pixels, corruption):
    shifted = corrupt(pixels, corruption, 5, frost_photos=procedural_frost()).float() / 255
    found = messages(model, shifted) + messages(TrainedOnNormalized(model), normalize(shifted))
    assert [message for message in found if "one class" not in message] == []


def test_grey_images_suit_a_model_trained_on_grey():
    training = digits(train=True)
    model = train(training.batch(range(len(training))), training.labels, 6)
    test = digits().batch(range(200))
    for shifted in (test, corrupt(test, "fog", 5, constants=32), corrupt(test, "defocus_blur", 5, constants=32)):
        assert not any("grey" in message for message in messages(model, shifted.float() / 255))


def test_without_batch_norm_the_range_is_judged(images):
    def found(images):
        return [
            message
            for message in messages(GroupNormNet(), images)
            if "no batch norm" not in message and "one class" not in message
        ]

    assert found(images) == []
    assert "0..255" in found(images * 255)[0]
    assert "divided by 255 twice" in found(images / 255)[0]
    assert "unusual" in found(images * 100 - 50)[0]
    assert found(torch.cat([images[:, :2], torch.zeros_like(images[:, :1])], dim=1)) == ["Channel 2 is constant"]


def test_untrained_statistics_are_not_compared(images):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 9))
    assert not any("trained on" in message or "far from" in message for message in messages(model, images * 2 - 1))


def test_outputs_that_are_no_logits_are_named(model, images):
    assert messages(nn.Sequential(model, nn.Softmax(dim=1)), images) == ["The model returns probabilities, not logits"]
    (problem,) = dp.check(nn.Sequential(model, nn.LogSoftmax(dim=1)), images)
    assert problem.severity == "note"
    assert "log-probabilities" in problem.message
    assert "one output" in messages(nn.Sequential(model, nn.Linear(2, 1)), images)[0]


def test_logits_in_another_output_need_their_name(model, images):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, images):
            return {"out": self.model(images)}

    assert "Pass `logits=`" in messages(Named(), images)[0]
    assert messages(Named(), images, logits="out") == []


def test_order_and_size_of_batches(model, images):
    order = model(images).argmax(dim=1).argsort()
    ordered = [message for message in messages(model, images[order].split(50)) if "ordered by class" in message]
    assert len(ordered) == 1
    assert messages(model, images.split(50)) == []
    assert "ordered by class" in " ".join(messages(model, images[order].split(10)))
    assert messages(model, images.split(4)) == ["Batches of 4 images are too small for batch statistics"]
    assert "one class" in " ".join(messages(model, images[order][:60].split(20)))


def test_form_of_batches_is_named(model, images):
    labels = torch.zeros(len(images)).long()
    for given in ((images, labels), [(images[:50], labels[:50]), (images[50:], labels[50:])]):
        (problem,) = dp.check(model, given)
        assert (problem.severity, problem.message) == ("note", "Batches are pairs of images and labels")
    mistakes = {
        "numpy array": images.numpy(),
        "dict with the keys image": [{"image": images}],
        "torch.uint8": (images * 255).byte(),
        "tensor of shape (0, 3, 32, 32)": images[:0],
        "no images": [],
        "`images.permute(0, 3, 1, 2)`": images.permute(0, 2, 3, 1),
    }
    for text, given in mistakes.items():
        (problem,) = dp.check(model, given)
        assert problem.severity == "error"
        assert text in str(problem)
    damaged = images.clone()
    damaged[3, 0, 0, 0] = torch.nan
    assert messages(model, damaged) == [f"1 of {len(images)} images contain NaN or Inf"]


def test_checking_images_leaves_the_model_unchanged(model, images):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = copy.deepcopy(model)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, images):
            self.calls += 1
            return self.model(images)

    counting = Counting().train()
    before = copy.deepcopy(counting.state_dict())
    dp.check(counting, images.split(50))
    assert all(torch.equal(before[name], value) for name, value in counting.state_dict().items())
    assert all(layer.training and not layer._forward_pre_hooks for layer in counting.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in counting.parameters())


def run_check(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", *map(str, arguments)])
    return ended.value.code, capsys.readouterr().out


def test_command_reports_what_check_finds(model, images, pixels, tmp_path, monkeypatch, capsys):
    project = SimpleNamespace(model=model, soft=nn.Sequential(model, nn.Softmax(dim=1)))
    monkeypatch.setitem(sys.modules, "photo_project", project)
    order = model(images).argmax(dim=1).argsort()
    for place, index in enumerate(order):
        Image.fromarray(pixels[index].permute(1, 2, 0).numpy()).save(tmp_path / f"{place:03}.png")
    shared = (tmp_path, "--model", "photo_project:model", "--batch-size", 50)
    code, output = run_check(capsys, *shared, "--order", "name", "--json")
    expected = json.loads(json.dumps([asdict(problem) for problem in dp.check(model, images[order].split(50))]))
    assert (code, json.loads(output)) == (0, expected)
    assert expected, "the stream is ordered"
    assert run_check(capsys, *shared)[1].startswith("No problems"), "the default order is random"
    assert "normalized inside the model" in run_check(capsys, *shared, "--preset", "cifar10", "--json")[1]
    code, output = run_check(capsys, tmp_path, "--model", "photo_project:soft")
    assert code == 1
    assert "probabilities" in output
