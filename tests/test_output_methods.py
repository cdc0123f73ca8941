"""LAME, T3A, TTAug and MEMO against slow implementations written from their descriptions."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

import driftproof as dp
from cases import batches, same_state, shifted
from driftproof.augment import crop_and_flip
from networks import CLASSES, build


def make_model():
    """A network that predicts every class, with some confidence, and is surer of some images than of its rows."""
    model = build("wide_resnet").double().eval()
    with torch.no_grad():
        model.norm.weight.mul_(20.0)
        model.norm.bias.mul_(20.0)
        model.fc.weight.mul_(0.2)
        model.fc.bias -= model(torch.cat(stream())).mean(dim=0)
    return model


def features_and_logits(model, images):
    caught = []
    with model.fc.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0])), torch.no_grad():
        logits = model(images)
    return caught[0], logits


def stream(count=20, size=9):
    return [images.double() for images in batches(count, size=size)]


# LAME


def slow_lame(features, logits, rounds=100):
    count = len(features)
    unit = [row / row.norm() for row in features]
    distance = [[float((one - other).norm()) for other in unit] for one in unit]
    width = sum(sorted(row)[min(5, count) - 1] for row in distance) / count
    affinity = [[math.exp(-(d**2) / (2 * width**2)) for d in row] for row in distance]
    assigned = p = logits.softmax(dim=1).tolist()
    for _ in range(rounds):
        weighted = [
            [
                (p[i][k] + 1e-10) * math.exp(sum(affinity[i][j] * assigned[j][k] for j in range(count)))
                for k in range(CLASSES)
            ]
            for i in range(count)
        ]
        assigned = [[value / sum(row) for value in row] for row in weighted]
    return torch.tensor(assigned, dtype=logits.dtype)


def test_lame_equals_a_slow_implementation():
    model = make_model()
    adapter = dp.lame(model)
    moved = 0.0
    for images in stream():
        answer, (features, logits) = adapter(images).exp(), features_and_logits(model, images)
        assert torch.allclose(answer, slow_lame(features, logits), atol=1e-9, rtol=0)
        moved = max(moved, float((answer - logits.softmax(dim=1)).abs().max()))
    assert moved > 0.1, "else nothing was compared"


def test_lame_without_affinity_returns_the_prediction_and_is_defined_for_few_or_equal_images():
    model, images = make_model(), stream(1)[0]
    plain = dp.source(model)(images)
    output = dp.outputs.LaplacianAdjusted(strength=0.0)
    assert torch.allclose(dp.lame(model, output=output)(images).exp(), plain.softmax(dim=1), atol=1e-9)
    assert dp.lame(model)(images[:2]).isfinite().all()
    for batch in (images[:1], images[:1].expand(6, -1, -1, -1)):
        answer = dp.lame(model)(batch)
        assert answer.isfinite().all()
        assert torch.equal(answer.argmax(dim=1), dp.source(model)(batch).argmax(dim=1))


# T3A


class SlowTemplates:
    """Every feature ever kept, as a list."""

    def __init__(self, model, capacity):
        self.capacity, self.held = capacity, []
        self.add(model.fc.weight.detach(), model.fc(model.fc.weight).detach())

    def add(self, features, logits):
        p = logits.softmax(dim=1)
        entropies = -(p * p.log()).sum(dim=1)
        self.held += zip(logits.argmax(dim=1).tolist(), entropies.tolist(), features, strict=True)
        by_class = [sorted((one for one in self.held if one[0] == c), key=lambda one: one[1]) for c in range(CLASSES)]
        self.held = [one for members in by_class for one in members[: self.capacity]]

    def classify(self, features):
        sums = torch.zeros(CLASSES, features.shape[1], dtype=features.dtype)
        for label, _, row in self.held:
            sums[label] += row / row.norm()
        return features @ F.normalize(sums, dim=1).T


@pytest.mark.parametrize("capacity", [1, 4])
def test_t3a_equals_a_slow_implementation_and_holds_its_capacity(capacity):
    model = make_model()
    adapter, slow = dp.t3a(model, capacity=capacity), SlowTemplates(model, capacity)
    for images in stream():
        features, logits = features_and_logits(model, images)
        slow.add(features, logits)
        assert torch.allclose(adapter(images), slow.classify(features), atol=1e-9, rtol=0)
        output = adapter.method.output
        assert output.supports.shape == (CLASSES, capacity, features.shape[1])
        assert int(output.entropies.isfinite().sum()) == len(slow.held)
    kept = {tuple(row.tolist()) for _, _, row in slow.held}
    assert len(kept - {tuple(row.tolist()) for row in model.fc.weight}) > 1


def test_t3a_starts_as_the_source_classifier():
    model, images = make_model(), stream(1)[0]
    with torch.no_grad():
        model.fc.bias.zero_()
        model.fc.weight.copy_(100 * torch.eye(*model.fc.weight.shape))  # certain of its own rows, all of one norm
    adapter = dp.t3a(model, capacity=1)
    assert torch.equal(adapter(images).argmax(dim=1), model(images).argmax(dim=1))
    assert adapter.method.output.supports.sum() == CLASSES, "no image is as certain as a row"


def test_t3a_takes_its_capacity_from_the_number_of_classes():
    for classes, capacity in ((10, 100), (100, 20)):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, classes))
        assert dp.t3a(model).method.output.supports.shape == (classes, capacity, 12)


# Norm-EMA


def test_norm_ema_normalizes_with_statistics_that_follow_the_stream():
    layer = torch.nn.BatchNorm2d(3, eps=0.0).double().eval()
    layer.running_mean.copy_(torch.tensor([0.1, 0.2, 0.3]))
    model = torch.nn.Sequential(layer, torch.nn.Flatten(), torch.nn.Linear(192, CLASSES).double())
    mean, variance = layer.running_mean.clone(), layer.running_var.clone()
    adapter = dp.norm_ema(model, momentum=0.25)
    for images in stream(4, size=2):
        mean = 0.75 * mean + 0.25 * images.mean(dim=(0, 2, 3))
        variance = 0.75 * variance + 0.25 * images.var(dim=(0, 2, 3), correction=0)
        normalized = (images - mean.view(-1, 1, 1)) / variance.sqrt().view(-1, 1, 1)
        assert torch.allclose(adapter(images), model[1:](normalized), atol=1e-9)


# TTAug and MEMO


def halved(images, generator):
    return images * (0.5 if torch.rand((), generator=generator) < 0.5 else 1.0)


def test_ttaug_averages_the_logits_of_its_views():
    model, images = make_model(), stream(1)[0]
    answers = [model(images), model(images / 2)]
    means = [(answers[0] * (3 - n) + answers[1] * n) / 3 for n in range(4)]
    answer = dp.ttaug(model, views=3, augment=halved)(images)
    assert sum(torch.allclose(answer, mean, atol=1e-12) for mean in means) == 1


def test_memo_steps_on_one_image_predicts_it_and_forgets():
    model, images = make_model(), stream(3, size=1)
    views = [0.5, 0.8, 1.2]
    drawn = iter(views * 3)
    adapter = dp.memo(model, lr=0.1, views=3, augment=lambda x, _: x * next(drawn), statistics=dp.statistics.Source())
    start = copy.deepcopy(adapter.network.model.state_dict())
    for image in images:
        trained = copy.deepcopy(model)
        p = torch.cat([trained(image * view) for view in views]).softmax(dim=1).mean(dim=0)
        (-(p * p.log()).sum()).backward()
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter -= 0.1 * parameter.grad
        answer = adapter(image)
        assert torch.allclose(answer, trained(image), atol=1e-9)
        assert not torch.allclose(answer, model(image), atol=1e-3)
        assert same_state(start, adapter.network.model.state_dict())


# All of them


@pytest.mark.parametrize("name", ["lame", "ttaug", "memo"])
def test_methods_for_images_refuse_pixels(name):
    options = {} if name == "lame" else {"augment": shifted}
    with pytest.raises(dp.errors.ModelError, match=r"logits of shape \(N, C\)|feature vector"):
        getattr(dp, name)(build("segmentation"), **options)(batches(1)[0])


def test_t3a_refuses_models_without_a_matching_linear_classifier():
    convolution = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 8), torch.nn.Flatten())
    with pytest.raises(dp.errors.ModelError, match="linear"):
        dp.t3a(convolution)
    two_heads = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 7), torch.nn.Linear(7, 5))
    with pytest.raises(dp.errors.ModelError, match=r"logits of shape \(N, 7\).*got \(6, 5\)"):
        dp.t3a(two_heads, classifier="1")(batches(1)[0])


def test_crops_are_parts_of_the_padded_image_or_its_mirror_image():
    images = torch.rand(40, 3, 16, 16)
    views = crop_and_flip(images, torch.Generator().manual_seed(0), per_image=True)
    padded = F.pad(images, (2, 2, 2, 2))
    places = [
        (y, x, flipped)
        for view, image in zip(views, padded, strict=True)
        for y in range(5)
        for x in range(5)
        for flipped in (False, True)
        if torch.equal(view.flip(2) if flipped else view, image[:, y : y + 16, x : x + 16])
    ]
    assert len(places) == len(images)
    assert [len(set(values)) for values in zip(*places, strict=True)] == [5, 5, 2]
