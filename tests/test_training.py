"""AugMix compared with Pillow, its loss with SciPy, and resumable training."""

import importlib
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import nn

from driftproof.errors import ConfigurationError, DivergenceError, InputError, ModelError, StateError
from driftproof.training import (
    CIFAR_RESNET50,
    RESNEXT_AUGMIX,
    TINY_RESNET50,
    WRN_AUGMIX,
    Recipe,
    Trainer,
    augmix,
    augmix_loss,
    jensen_shannon,
)
from driftproof.training.augmix import (
    autocontrast,
    equalize,
    posterize,
    rotate,
    shear_x,
    shear_y,
    solarize,
    translate_x,
    translate_y,
)
from driftproof.training.crops import crop_and_flip, resized_crop_and_flip, sample_crop_boxes

augmix_module = importlib.import_module("driftproof.training.augmix")  # the package exports a function of this name
trainer_module = importlib.import_module("driftproof.training.trainer")
UNLIKELY = 1e-4  # p-values below this are treated as failures


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def to_pillow(image):
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())


def apply_pillow(operation, images, *parameters):
    results = [operation(to_pillow(image), *values) for image, *values in zip(images, *parameters, strict=True)]
    return torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in results])


def affine(image, *matrix):
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR)


@st.composite
def byte_images(draw, smooth=False):
    """Images of any contrast, from one gray value to the full range."""
    count, height, width = draw(st.integers(1, 4)), draw(st.integers(2, 40)), draw(st.integers(2, 40))
    low = draw(st.integers(0, 255))
    high = draw(st.integers(low, 255))
    random = generator(draw(st.integers(0, 2**31)))
    values = torch.rand(count, 3, 4, 4, generator=random) if smooth else None
    if values is None:
        values = torch.rand(count, 3, height, width, generator=random) ** draw(st.sampled_from([0.3, 1.0, 4.0]))
    else:
        values = nn.functional.interpolate(values, (height, width), mode="bilinear", align_corners=True)
    return (low + (high - low) * values).round().to(torch.uint8)


def uniform(count, low, high):
    return low + (high - low) * torch.rand(count, dtype=torch.float64)


@settings(max_examples=40)
@given(byte_images())
def test_autocontrast_and_equalize_equal_pillow(images):
    assert torch.equal(autocontrast(images), apply_pillow(ImageOps.autocontrast, images))
    assert torch.equal(equalize(images), apply_pillow(ImageOps.equalize, images))


@settings(max_examples=30)
@given(byte_images(), st.data())
def test_posterize_and_solarize_equal_pillow(images, data):
    bits = data.draw(st.lists(st.integers(1, 8), min_size=len(images), max_size=len(images)))
    thresholds = data.draw(st.lists(st.integers(0, 256), min_size=len(images), max_size=len(images)))
    assert torch.equal(posterize(images, torch.tensor(bits)), apply_pillow(ImageOps.posterize, images, bits))
    assert torch.equal(solarize(images, torch.tensor(thresholds)), apply_pillow(ImageOps.solarize, images, thresholds))


@settings(max_examples=30)
@given(byte_images())
def test_shear_and_translate_equal_pillow(images):
    factors, pixels = uniform(len(images), -0.3, 0.3), uniform(len(images), -13, 13).round()
    shears, shifts = factors.tolist(), pixels.tolist()
    cases = [
        (0, translate_x(images, pixels), lambda image, by: affine(image, 1, 0, by, 0, 1, 0), shifts),
        (0, translate_y(images, pixels), lambda image, by: affine(image, 1, 0, 0, 0, 1, by), shifts),
        # Pillow may be compiled with fused multiply-add, which changes the rounding.
        (1, shear_x(images, factors), lambda image, by: affine(image, 1, by, 0, 0, 1, 0), shears),
        (1, shear_y(images, factors), lambda image, by: affine(image, 1, 0, 0, by, 1, 0), shears),
    ]
    for tolerance, ours, operation, amounts in cases:
        assert (ours.int() - apply_pillow(operation, images, amounts).int()).abs().max() <= tolerance


@settings(max_examples=30)
@given(byte_images(smooth=True))
def test_rotate_equals_pillow(images):
    degrees = uniform(len(images), -30, 30)
    theirs = apply_pillow(lambda image, by: image.rotate(by, Image.Resampling.BILINEAR), images, degrees.tolist())
    # Pillow rounds sine and cosine to 15 digits, which can change the rounding of a pixel.
    assert (rotate(images, degrees).int() - theirs.int()).abs().max() <= 1


def noise_images(count=64, side=16):
    return torch.randint(256, (count, 3, side, side), dtype=torch.uint8, generator=generator(7))


PILLOW_OPERATIONS = (
    lambda image, level: ImageOps.autocontrast(image),
    lambda image, level: ImageOps.equalize(image),
    lambda image, level: ImageOps.posterize(image, 4 - int(abs(level) * 4 / 10)),
    lambda image, level: image.rotate(30 * level / 10, Image.Resampling.BILINEAR),
    lambda image, level: ImageOps.solarize(image, 256 - int(abs(level) * 256 / 10)),
    lambda image, level: affine(image, 1, level * 0.3 / 10, 0, 0, 1, 0),
    lambda image, level: affine(image, 1, 0, 0, level * 0.3 / 10, 1, 0),
    lambda image, level: affine(image, 1, 0, int(level * (image.width / 3) / 10), 0, 1, 0),
    lambda image, level: affine(image, 1, 0, 0, 0, 1, int(level * (image.height / 3) / 10)),
)


def augmix_by_pillow(images, random, width, depth):
    """AugMix in a loop over images and chains, from the same random numbers."""
    count = len(images)

    def draw():
        return torch.rand(width * count, generator=random, dtype=torch.float64).view(width, count)

    weights = augmix_module._sample_dirichlet(1.0, (width, count), random)
    blend = augmix_module._sample_dirichlet(1.0, (2, count), random)[0]
    lengths = torch.randint(depth[0], depth[1] + 1, (width * count,), generator=random).view(width, count)
    draws = [(draw() * 9, 0.1 + 2.9 * draw(), draw() < 0.5) for _ in range(depth[1])]
    views = torch.zeros(images.shape)
    for index, image in enumerate(images):
        for chain in range(width):
            picture = to_pillow(image)
            for choice, level, negative in draws[: int(lengths[chain, index])]:
                sign = -1 if negative[chain, index] else 1
                picture = PILLOW_OPERATIONS[int(choice[chain, index])](picture, sign * float(level[chain, index]))
            pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
            views[index] += weights[chain, index] * pixels
        views[index] = (1 - blend[index]) * image + blend[index] * views[index]
    return views / 255


@pytest.mark.parametrize(("width", "depth"), [(1, (1, 1)), (3, (1, 3)), (2, (2, 5))])
def test_augmix_equals_a_loop_with_pillow(width, depth):
    images = noise_images(24, side=20)
    ours = augmix(images, generator(3), width=width, depth=depth)
    theirs = augmix_by_pillow(images, generator(3), width, depth)
    # A rotated pixel may be off by one, and a later operation may amplify it.
    close = (ours - theirs).abs() < 1e-5
    assert close.float().mean() > 0.999


def test_every_operation_is_applied_at_its_drawn_level(monkeypatch):
    images = noise_images(24, side=33)
    seen = []

    def spy(operation):
        return lambda group, level: seen.append((group, level, result := operation(group, level))) or result

    monkeypatch.setattr(augmix_module, "_OPERATIONS", tuple(spy(operation) for operation in augmix_module._OPERATIONS))
    augmix(images, generator(), depth=(1, 1), width=3)
    assert len(seen) == len(PILLOW_OPERATIONS)
    assert sum(len(group) for group, _, _ in seen) == 3 * len(images)
    for (group, level, result), pillow in zip(seen, PILLOW_OPERATIONS, strict=True):
        assert (level.abs() >= 0.1).all()
        assert (level.abs() <= 3).all()
        assert (result.int() - apply_pillow(pillow, group, level.tolist()).int()).abs().max() <= 1
    assert {float(sign) for _, level, _ in seen for sign in level.sign()} == {-1.0, 1.0}


def test_augmix_blend_weight_is_beta_distributed(monkeypatch):
    # All chains turn black images white, so the result equals the blend weight.
    monkeypatch.setattr(augmix_module, "_OPERATIONS", (lambda group, level: torch.full_like(group, 255),))
    black = torch.zeros(4000, 3, 1, 1, dtype=torch.uint8)
    blend = augmix(black, generator())[:, 0, 0, 0].numpy()
    assert scipy.stats.kstest(blend, "uniform").pvalue > UNLIKELY
    blend = augmix(black, generator(), alpha=4.0)[:, 0, 0, 0].numpy()
    assert scipy.stats.kstest(blend, scipy.stats.beta(4, 4).cdf).pvalue > UNLIKELY


@pytest.mark.parametrize("alpha", [0.3, 1.0, 5.0])
def test_chain_weights_are_dirichlet_distributed(alpha):
    weights = augmix_module._sample_dirichlet(alpha, (3, 4000), generator())
    torch.testing.assert_close(weights.sum(dim=0), torch.ones(4000))
    for weight in weights.numpy():
        distribution = scipy.stats.beta(alpha, 2 * alpha)
        assert scipy.stats.kstest(weight, distribution.cdf, method="asymp").pvalue > UNLIKELY


def test_chain_lengths_are_uniform(monkeypatch):
    active = []
    augmix_op = augmix_module._augmix_op
    monkeypatch.setattr(
        augmix_module,
        "_augmix_op",
        lambda chains, mask, *rest: active.append(int(mask.sum())) or augmix_op(chains, mask, *rest),
    )
    augmix(noise_images(400, side=4), generator(), width=3, depth=(1, 3))
    assert active[0] == 1200
    assert active[1] == pytest.approx(800, abs=80)
    assert active[2] == pytest.approx(400, abs=80)


def test_augmix_is_deterministic_and_leaves_images_unchanged():
    images = noise_images()
    before = images.clone()
    view = augmix(images, generator(1))
    assert torch.equal(images, before)
    assert torch.equal(view, augmix(images, generator(1)))
    assert not torch.equal(view, augmix(images, generator(2)))
    assert view.dtype == torch.float32
    assert view.min() >= 0
    assert view.max() <= 1
    assert augmix(images[:0], generator()).shape == (0, 3, 16, 16)


def test_augmix_draws_per_image():
    same = noise_images(1).expand(32, -1, -1, -1)
    view = augmix(same, generator())
    assert len(torch.unique(view.flatten(1), dim=0)) == 32
    assert all((one != original / 255).any() for one, original in zip(view, same, strict=True))


def test_augmix_rejects_invalid_input():
    with pytest.raises(InputError, match="float32 of shape"):
        augmix(torch.rand(2, 3, 8, 8), generator())
    with pytest.raises(InputError, match=r"\(3, 8, 8\)"):
        augmix(noise_images()[0, :, :8, :8], generator())
    for bad in [{"width": 0}, {"depth": (0, 3)}, {"depth": (3, 2)}, {"severity": 11}, {"alpha": 0.0}]:
        with pytest.raises(ConfigurationError, match=next(iter(bad))):
            augmix(noise_images(), generator(), **bad)


@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(2, 6), st.sampled_from([0.1, 1.0, 5.0]), st.integers(0, 2**31))
def test_jensen_shannon_and_augmix_loss_equal_scipy(count, classes, scale, seed):
    logits = scale * torch.randn(3, count, classes, dtype=torch.float64, generator=generator(seed))
    p = scipy.special.softmax(logits.numpy(), axis=-1)
    mean = p.mean(axis=0).clip(1e-7, 1)
    expected = scipy.special.rel_entr(p, mean).sum(axis=-1).mean()
    assert float(jensen_shannon(*logits)) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    labels = torch.arange(count) % classes
    entropy = -np.log(p[0][np.arange(count), labels.numpy()]).mean()
    assert float(augmix_loss(*logits, labels)) == pytest.approx(entropy + 12 * expected, rel=1e-9, abs=1e-12)


def test_jensen_shannon_is_bounded_with_finite_gradient():
    logits = torch.tensor([[[1e4, 0.0, 0.0]], [[0.0, 1e4, 0.0]], [[0.0, 0.0, 1e4]]], requires_grad=True)
    divergence = jensen_shannon(*logits)
    divergence.backward()
    assert divergence.item() == pytest.approx(np.log(3), rel=1e-5)
    assert logits.grad.isfinite().all()


def test_crop_and_flip_returns_windows_of_the_padded_image():
    images = noise_images(40, side=5)
    crops = crop_and_flip(images, generator(), padding=2)
    padded = nn.functional.pad(images, (2, 2, 2, 2))
    windows = [(top, left, flipped) for top in range(5) for left in range(5) for flipped in (False, True)]
    found = set()
    for crop, image in zip(crops, padded, strict=True):
        matches = [
            (top, left, flipped)
            for top, left, flipped in windows
            if torch.equal(crop.flip(-1) if flipped else crop, image[:, top : top + 5, left : left + 5])
        ]
        assert len(matches) == 1
        found.update(matches)
    assert len({(top, left) for top, left, _ in found}) > 10
    assert {flipped for _, _, flipped in found} == {False, True}
    assert torch.equal(crop_and_flip(images, generator(3), padding=0).sum(dim=(1, 2, 3)), images.sum(dim=(1, 2, 3)))


@settings(max_examples=20)
@given(st.integers(4, 40), st.integers(4, 40), st.integers(0, 2**31))
def test_resized_crop_equals_pillow(height, width, seed):
    images = torch.randint(256, (6, 3, height, width), dtype=torch.uint8, generator=generator(seed))
    boxes = torch.cat(sample_crop_boxes(6, height, width, generator(seed)), dim=1).int().tolist()
    ours = resized_crop_and_flip(images, generator(seed)).int()
    for image, view, (top, left, crop_height, crop_width) in zip(images, ours, boxes, strict=True):
        crop = to_pillow(image).crop((left, top, left + crop_width, top + crop_height))
        resized = crop.resize((width, height), Image.Resampling.BILINEAR)
        theirs = torch.from_numpy(np.array(resized)).permute(2, 0, 1).int()
        # Pillow rounds twice, once along each axis.
        assert min((view - theirs).abs().max(), (view.flip(-1) - theirs).abs().max()) <= 1


@pytest.mark.parametrize(("height", "width"), [(64, 64), (8, 100), (100, 8), (1, 1)])
def test_crop_boxes_lie_inside_and_respect_area_and_aspect_ratio(height, width):
    top, left, crop_height, crop_width = sample_crop_boxes(500, height, width, generator())
    assert (top >= 0).all() and (left >= 0).all()  # noqa: PT018
    assert (top + crop_height <= height).all()
    assert (left + crop_width <= width).all()
    assert (crop_height >= 1).all() and (crop_width >= 1).all()  # noqa: PT018
    if height == width == 64:
        share = crop_height * crop_width / (height * width)
        assert 0.07 < share.min() < 0.15
        assert share.max() > 0.8
        assert ((crop_width / crop_height) <= 1.45).all()


RECIPE = Recipe(epochs=4, batch_size=32, lr=0.1, weight_decay=5e-4, nesterov=True, crop_padding=1)
AUGMIX = replace(RECIPE, augmentation="augmix", schedule="cosine per iteration", final_lr=1e-6)


def toy_set(count=200, side=8):
    """Horizontal or vertical stripes with noise: crops and flips keep the class."""
    labels = torch.arange(count) % 2
    stripes = (torch.arange(side) % 4 < 2).float().expand(side, side)
    stripe_images = torch.where(labels.view(-1, 1, 1) == 0, stripes, stripes.T)
    noise = 0.3 * torch.randn(count, 3, side, side, generator=generator(5))
    return ((0.25 + 0.5 * stripe_images.unsqueeze(1) + noise).clamp(0, 1) * 255).to(torch.uint8), labels


def toy_net(seed=0, channels=8, dropout=0.1):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(channels, 2),
    )


def accuracy_on(images, labels):
    return lambda model: float((model(images / 255).argmax(dim=1) == labels).float().mean())


def has_same_state(first, second):
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def without_seconds(history):
    return [astuple(record)[:-1] for record in history]


@pytest.mark.parametrize("augmentation", ["augmix", "crop+flip", "resized crop"])
def test_trainer_learns_a_toy_set(augmentation):
    images, labels = toy_set()
    held_out = accuracy_on(*(half[100:] for half in toy_set()))
    recipe = replace(RECIPE, epochs=6, batch_size=20, augmentation=augmentation)
    seen = []
    trainer = Trainer(toy_net(), images[:100], labels[:100], recipe)
    history = trainer.run(evaluate=held_out, progress=seen.append)
    assert seen == history
    assert [record.epoch for record in history] == list(range(1, 7))
    assert history[-1].evaluation > 0.95
    assert held_out(trainer.model) == history[-1].evaluation
    assert history[-1].loss < history[0].loss
    assert history[-1].accuracy > history[0].accuracy
    assert all(record.seconds > 0 for record in history)
    assert not trainer.model.training


@pytest.mark.parametrize("recipe", [RECIPE, AUGMIX, replace(RECIPE, augmentation="resized crop")])
def test_resumed_run_is_bit_identical(recipe, tmp_path):
    images, labels = toy_set(40)
    recipe = replace(recipe, epochs=3)
    full, first_half = toy_net(), toy_net()
    expected = Trainer(full, images, labels, recipe).run(evaluate=accuracy_on(images, labels))
    path = tmp_path / "run.pt"
    Trainer(first_half, images, labels, recipe).run(2, checkpoint=path, evaluate=accuracy_on(images, labels))
    torch.rand(3)
    resumed = toy_net(seed=9)
    history = Trainer(resumed, images, labels, recipe).run(checkpoint=path, evaluate=accuracy_on(images, labels))
    assert has_same_state(resumed, full)
    assert without_seconds(history) == without_seconds(expected)
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


def test_run_continued_in_memory_is_bit_identical():
    images, labels = toy_set(40)
    full, resumed = toy_net(), toy_net()
    Trainer(full, images, labels, RECIPE).run()
    trainer = Trainer(resumed, images, labels, RECIPE)
    assert len(trainer.run(1)) == 1
    assert len(trainer.run(1)) == 1

    def interrupt(model):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.run(evaluate=interrupt)
    assert len(trainer.run()) == 4
    assert has_same_state(resumed, full)


def test_training_depends_on_its_seed_and_not_on_global_rng():
    images, labels = toy_set(40)
    models = [toy_net(), toy_net(), toy_net()]
    for model, seed, stray in zip(models, [0, 0, 1], [1, 2, 3], strict=True):
        torch.manual_seed(stray)
        expected = torch.rand(4)
        torch.manual_seed(stray)
        Trainer(model, images, labels, RECIPE, seed=seed).run(1)
        assert torch.equal(torch.rand(4), expected)
    assert has_same_state(models[0], models[1])
    assert not has_same_state(models[0], models[2])


def test_every_batch_has_its_own_random_numbers(monkeypatch):
    images, labels = toy_set(40)
    crop = trainer_module.crop_and_flip
    runs = []
    for until in (4, 2):
        drawn = []

        def spy(images, random, *, padding, drawn=drawn):
            drawn.append((images.sum().item(), torch.rand(1, generator=random).item()))
            return crop(images, random, padding=padding)

        monkeypatch.setattr(trainer_module, "crop_and_flip", spy)
        Trainer(toy_net(), images, labels, RECIPE).run(until)
        runs.append(drawn)
    orders, numbers = zip(*runs[0], strict=True)
    assert len(set(numbers)) == len(set(orders)) == 4 * 2
    assert runs[1] == runs[0][: 2 * 2]


def test_training_equals_a_plain_sgd_loop(monkeypatch):
    images, labels = toy_set(64)
    recipe = replace(RECIPE, batch_size=1000, crop_padding=0, epochs=3)
    monkeypatch.setattr(trainer_module, "crop_and_flip", lambda images, generator, padding: images)
    ours, theirs = toy_net(dropout=0.0).double(), toy_net(dropout=0.0).double()
    ours.register_forward_pre_hook(lambda module, inputs: (inputs[0].double(),))
    Trainer(ours, images, labels, recipe).run()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(theirs((images / 255).double()), labels).backward()
        optimizer.step()
        schedule.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_save_is_called_for_new_best_scores_across_a_resume(tmp_path):
    images, labels = toy_set(40)
    scores, saved = iter([0.5, 0.7, 0.6, 0.8]), []
    arguments = {"checkpoint": tmp_path / "run.pt", "evaluate": lambda model: next(scores)}

    def save(model, record):
        saved.append(record.epoch)

    Trainer(toy_net(), images, labels, RECIPE).run(2, save=save, **arguments)
    Trainer(toy_net(), images, labels, RECIPE).run(save=save, **arguments)
    assert saved == [1, 2, 4]


def test_save_is_called_every_epoch_without_evaluation():
    saved = []
    trainer = Trainer(toy_net(), *toy_set(40), RECIPE)
    trainer.run(2, save=lambda model, record: saved.append((model is trainer.model, record.epoch)))
    assert saved == [(True, 1), (True, 2)]


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (
            {"recipe": replace(RECIPE, lr=0.2, epochs=5)},
            r"recipe: `epochs` was 4 and is 5 here; `lr` was 0.1 and is 0.2",
        ),
        ({"seed": 1}, "run: `seed` was 0 and is 1 here"),
        ({"begun_from": "5feceb"}, "run: `begun_from` was None and is 5feceb here"),
        ({"images": noise_images(40, side=8)}, "run: `images`"),
        ({"model": toy_net(channels=9)}, r"architecture: `0.weight` was \(8, 3, 3, 3\) .* \(9, 3, 3, 3\) .* and more"),
        (
            {"model": nn.Sequential(nn.Flatten(), nn.Linear(192, 2))},
            r"`0.weight` was \(8, 3, 3, 3\) .* and is absent here.* and more",
        ),
    ],
)
def test_checkpoint_of_another_run_raises_state_error(changed, difference, tmp_path):
    path = tmp_path / "run.pt"
    images, labels = toy_set(40)
    arguments = {"model": toy_net(), "images": images, "labels": labels, "recipe": RECIPE, "seed": 0}
    Trainer(**arguments).run(1, checkpoint=path)
    before = path.read_bytes()
    trainer = Trainer(**arguments | changed)
    with pytest.raises(StateError, match=difference):
        trainer.run(checkpoint=path)
    assert path.read_bytes() == before
    assert trainer.history == []


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_damaged_checkpoint_raises_state_error(content, tmp_path):
    path = tmp_path / "run.pt"
    trainer = Trainer(toy_net(), *toy_set(40), RECIPE)
    trainer.run(1, checkpoint=path)
    path.write_bytes(path.read_bytes()[:-200] if content is None else content)
    with pytest.raises(StateError, match="reading it failed"):
        trainer.run(checkpoint=path)
    torch.save({"weights": torch.zeros(2)}, path)
    with pytest.raises(StateError, match="something else"):
        trainer.run(checkpoint=path)


class PickleExploit:
    """Creates a file when unpickled unsafely."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_checkpoint_cannot_run_code_and_unknown_format_raises(tmp_path):
    path, created = tmp_path / "run.pt", tmp_path / "created"
    trainer = Trainer(toy_net(), *toy_set(40), RECIPE)
    trainer.run(1, checkpoint=path)
    content = torch.load(path, weights_only=True)
    torch.save(content | {"format": 2}, path)
    with pytest.raises(StateError, match="of format 1, but got format 2"):
        trainer.run(checkpoint=path)
    torch.save(content | {"format": PickleExploit(created)}, path)
    with pytest.raises(StateError, match="reading it failed"):
        trainer.run(checkpoint=path)
    assert not created.exists()


def test_nan_loss_restores_the_last_good_epoch(tmp_path):
    path = tmp_path / "run.pt"
    model = toy_net()
    trainer = Trainer(model, *toy_set(40), RECIPE)
    trainer.run(1, checkpoint=path)
    before, good = path.read_bytes(), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hook = model.register_forward_hook(lambda module, inputs, output: output * float("nan"))
    with pytest.raises(DivergenceError, match="the loss of batch 1 in epoch 2"):
        trainer.run(checkpoint=path)
    hook.remove()
    assert path.read_bytes() == before
    assert all(torch.equal(tensor, good[name]) for name, tensor in model.state_dict().items())
    assert len(trainer.run(checkpoint=path)) == 4


def test_non_finite_parameters_restore_the_last_good_epoch():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    trainer = Trainer(model, *toy_set(40), replace(RECIPE, batch_size=40, weight_decay=1e38, lr=1e10))
    with pytest.raises(DivergenceError, match="a parameter in epoch 1"):
        trainer.run()
    assert model[1].weight.isfinite().all()


def test_invalid_training_data_raises():
    images, labels = toy_set(40)
    for wrong in [images.float(), images[0]]:
        with pytest.raises(InputError, match="uint8"):
            Trainer(toy_net(), wrong, labels, RECIPE)
    for wrong, message in [
        (labels[:-1], "Expected 40 labels"),
        (labels.float(), "float32"),
        (labels + 1, r"0\.\.1, since the model has 2 classes, but got 1\.\.2"),
        (labels - 1, r"-1\.\.0"),
    ]:
        with pytest.raises(InputError, match=message):
            Trainer(toy_net(), images, wrong, RECIPE)
    with pytest.raises(InputError, match="at least one image"):
        Trainer(toy_net(), images[:0], labels[:0], RECIPE)
    with pytest.raises(ModelError, match="frozen"):
        Trainer(nn.Flatten(), images, labels, RECIPE)
    with pytest.raises(ModelError, match="logits of shape"):
        Trainer(nn.Conv2d(3, 2, 1), images, labels, RECIPE)


def test_checkpoint_every_delays_writing_except_after_the_last_epoch(tmp_path):
    path, exists = tmp_path / "run.pt", []
    trainer = Trainer(toy_net(), *toy_set(40), RECIPE)
    options = {"checkpoint": path, "checkpoint_every": 3600.0, "progress": lambda record: exists.append(path.exists())}
    trainer.run(3, **options)
    assert exists == [False, False, True]
    again = Trainer(toy_net(), *toy_set(40), RECIPE)
    assert [record.epoch for record in again.run(checkpoint=path)] == [1, 2, 3, 4]


def test_until_epoch_out_of_range_raises_configuration_error(tmp_path):
    path = tmp_path / "run.pt"
    Trainer(toy_net(), *toy_set(40), RECIPE).run(2, checkpoint=path)
    trainer = Trainer(toy_net(), *toy_set(40), RECIPE)
    for until, message in [(1, r"in 2\.\.4"), (5, r"in 2\.\.4")]:
        with pytest.raises(ConfigurationError, match=message):
            trainer.run(until, checkpoint=path)
    assert trainer.history == []


def test_recipes_match_the_paper():
    assert replace(WRN_AUGMIX, epochs=200) == RESNEXT_AUGMIX
    assert (WRN_AUGMIX.epochs, WRN_AUGMIX.batch_size, WRN_AUGMIX.lr) == (100, 128, 0.1)
    assert (TINY_RESNET50.epochs, TINY_RESNET50.batch_size, TINY_RESNET50.lr) == (50, 256, 0.01)
    assert (CIFAR_RESNET50.epochs, CIFAR_RESNET50.augmentation) == (200, "crop+flip")


def test_cosine_schedule_steps_per_iteration_or_per_epoch():
    rates = [WRN_AUGMIX.lr_at(epoch, batch, 4) for epoch in range(100) for batch in range(4)]
    reference = [1e-6 + (0.1 - 1e-6) * 0.5 * (1 + np.cos(step / 400 * np.pi)) for step in range(400)]
    assert rates == pytest.approx(reference, rel=1e-12)
    assert len({TINY_RESNET50.lr_at(3, batch, 4) for batch in range(4)}) == 1
    assert TINY_RESNET50.lr_at(25, 0, 4) == pytest.approx(0.005)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"momentum": 1.0},
        {"momentum": 0.0},
        {"weight_decay": -1.0},
        {"crop_padding": -1},
        {"augmentation": "mixup"},
        {"schedule": "step"},
    ],
)
def test_invalid_recipe_raises_configuration_error(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        replace(RECIPE, **wrong)
