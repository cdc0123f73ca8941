"""Augmentations against per-image references from the standard library and scipy."""

import colorsys

import numpy as np
import pytest
import scipy.ndimage
import torch
from hypothesis import given
from hypothesis import strategies as st

import driftproof as dp
from driftproof import augment


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def factor(values):
    return torch.tensor(values, dtype=torch.float64).view(-1, 1, 1, 1)


@given(st.integers(0, 2**31))
def test_hue_equals_colorsys(seed):
    images = torch.rand(3, 3, 4, 5, generator=generator(seed), dtype=torch.float64)
    shifts = [0.0, 0.21, -0.3]
    shifted = augment._hue(images, factor(shifts)).movedim(1, -1).flatten(1, 2)
    for actual, pixels, shift in zip(shifted, images.movedim(1, -1).flatten(1, 2).tolist(), shifts, strict=True):
        hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in pixels]
        expected = [colorsys.hsv_to_rgb((h + shift) % 1.0, s, v) for h, s, v in hsv]
        torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64))


def test_hue_of_gray_is_gray():
    gray = torch.rand(2, 1, 3, 3).expand(-1, 3, -1, -1)
    torch.testing.assert_close(augment._hue(gray, torch.tensor(0.2)), gray)


@pytest.mark.parametrize("sigma", [0.15, 0.8, 1.3])
def test_blur_equals_scipy(sigma):
    images = torch.rand(2, 3, 9, 11, dtype=torch.float64)
    blurred = augment._blur(images, factor([sigma, sigma]), radius=4)
    expected = scipy.ndimage.gaussian_filter(images.numpy(), (0, 0, sigma, sigma), mode="nearest", radius=(0, 0, 4, 4))
    torch.testing.assert_close(blurred, torch.from_numpy(expected))


def test_color_jitter_equals_formula():
    images = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    gray = (images * torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64).view(1, 3, 1, 1)).sum(1, keepdim=True)
    for n, amount in enumerate((0.4, 1.7)):
        amounts = factor([amount, amount])
        clip = {"min": 0, "max": 1}
        torch.testing.assert_close(augment._brightness(images, amounts)[n], (images[n] * amount).clamp(**clip))
        mixed = (images[n] * amount + (1 - amount) * gray[n]).clamp(**clip)
        torch.testing.assert_close(augment._saturation(images, amounts)[n], mixed)
        mixed = (images[n] * amount + (1 - amount) * gray[n].mean()).clamp(**clip)
        torch.testing.assert_close(augment._contrast(images, amounts)[n], mixed)


def affine(images, angle=0.0, x=0.0, y=0.0, scale=1.0):
    values = {"angle": angle, "shift_x": x, "shift_y": y, "scale": scale}
    return augment._affine(images, **{name: factor([value]) for name, value in values.items()})


def test_affine_translates_rotates_and_scales():
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(affine(images), images)
    torch.testing.assert_close(affine(images, x=2 / 16)[..., 2:], images[..., :-2])
    torch.testing.assert_close(affine(images, y=-3 / 16)[..., :-3, :], images[..., 3:, :])
    torch.testing.assert_close(affine(images, angle=90.0), images.rot90(1, (-1, -2)))
    spot = torch.zeros(1, 1, 33, 33, dtype=torch.float64)
    spot[..., 16, 26] = 1
    larger = scipy.ndimage.center_of_mass(affine(spot, scale=1.5)[0, 0].numpy())
    np.testing.assert_allclose(larger, (16, 31), atol=0.2)


def test_affine_rotation_preserves_distance_on_non_square_images():
    spot = torch.zeros(1, 1, 21, 41, dtype=torch.float64)
    spot[..., 10, 28] = 1
    turned = scipy.ndimage.center_of_mass(affine(spot, angle=60.0)[0, 0].numpy())
    distance = np.hypot(turned[0] - 10, turned[1] - 20)
    assert distance == pytest.approx(8, abs=0.3)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("view", [augment.photometric, augment.cotta_view])
def test_views_keep_shape_and_range_and_are_seeded(view, channels):
    images = torch.rand(5, channels, 8, 10)
    first = view(images, generator(3))
    assert first.shape == images.shape
    assert first.min() >= 0
    assert first.max() <= 1
    assert torch.equal(first, view(images, generator(3)))
    assert not torch.equal(first, view(images, generator(4)))


def test_photometric_draws_per_image_and_cotta_view_per_batch():
    images = torch.rand(1, 3, 8, 8).expand(4, -1, -1, -1)
    per_image = augment.photometric(images, generator())
    assert (per_image[0] - per_image[1]).abs().max() > 0.05
    per_batch = augment.cotta_view(images, generator())
    assert (per_batch[0] - per_batch[1]).abs().max() < 0.06, "only the noise differs"


RANGES = {  # view -> operation -> argument -> range it is drawn from
    augment.photometric: {
        "_brightness": {1: (0.2, 1.8)},
        "_contrast": {1: (0.2, 1.8)},
        "_saturation": {1: (0.2, 1.8)},
        "_hue": {1: (-0.3, 0.3)},
        "_blur": {1: (0.15, 1.3)},
    },
    augment.cotta_view: {
        "_brightness": {1: (0.6, 1.4)},
        "_contrast": {1: (0.7, 1.3)},
        "_saturation": {1: (0.5, 1.5)},
        "_hue": {1: (-0.06, 0.06)},
        "_affine": {
            "angle": (-15, 15),
            "shift_x": (-1 / 16, 1 / 16),
            "shift_y": (-1 / 16, 1 / 16),
            "scale": (0.9, 1.1),
        },
        "_blur": {1: (0.001, 0.5)},
    },
}


@pytest.mark.parametrize("view", RANGES, ids=lambda view: view.__name__)
def test_views_draw_from_documented_ranges_in_documented_order(view, monkeypatch):
    calls = []

    def make_spy(name, function):
        def spy(*args, **kwargs):
            calls.append((name, dict(enumerate(args)) | kwargs))
            return function(*args, **kwargs)

        return spy

    for name in RANGES[view]:
        monkeypatch.setattr(augment, name, make_spy(name, getattr(augment, name)))
    # 400 draws of each value: cotta_view draws once per batch, photometric once per image.
    rng, calls_of_view, images = generator(), *((400, 1) if view is augment.cotta_view else (4, 100))
    for _ in range(calls_of_view):
        view(torch.rand(images, 3, 2, 2), rng)
    length = len(RANGES[view])
    orders = {tuple(name for name, _ in calls[start : start + length]) for start in range(0, len(calls), length)}
    fixed = ("_affine", "_blur") if view is augment.cotta_view else tuple(RANGES[view])
    assert all(order[-len(fixed) :] == fixed for order in orders)
    assert len(orders) == (1 if view is augment.photometric else 24), (
        "cotta_view uses every order of the color operations"
    )
    for name, ranges in RANGES[view].items():
        for key, (low, high) in ranges.items():
            values = torch.cat([arguments[key].flatten() for called, arguments in calls if called == name])
            assert len(values) == 400
            assert low <= values.min() < low + 0.05 * (high - low)
            assert high - 0.05 * (high - low) < values.max() <= high


@pytest.mark.parametrize("view", [augment.photometric, augment.cotta_view])
def test_views_reject_inputs_that_are_not_images(view):
    with pytest.raises(dp.errors.InputError, match="augment="):
        view(torch.rand(4, 6), generator())


def small_network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(4, 5),
    )  # fmt: skip


def first_view(method, images, augment=None):
    """Run a method until it has augmented images once; return the adapter."""
    options = {} if augment is None else {"augment": augment}
    if method == "cotta":
        adapter = dp.cotta(small_network(), threshold=1.0, views=dp.outputs.RandomViews(2, **options))
        adapter(images)
    elif method == "ttn":
        adapter = dp.ttn(small_network(), statistics=dp.statistics.TTN(prior_batches=1, epochs=0, **options))
        adapter.prepare([(images, torch.zeros(len(images), dtype=torch.long))])
    else:
        adapter = dp.swr(small_network(), prototypes=False, **options)
        adapter.prepare([(images, torch.zeros(len(images), dtype=torch.long))])
    return adapter


@pytest.mark.parametrize("method", ["cotta", "ttn", "swr"])
def test_images_outside_unit_range_raise_before_augmentation(method):
    pixels = torch.rand(4, 3, 8, 8, generator=generator())
    pixels[0, 0, 0, :2] = torch.tensor([0.0, 1.0])
    for wrong in ((pixels - 0.45) / 0.225, 2 * pixels - 1, 255 * pixels):
        with pytest.raises(dp.errors.InputError, match=r"values in \[0, 1\].*normalization inside the model"):
            first_view(method, wrong)
        first_view(method, wrong, augment=lambda images, _: images.flip(-1))
    first_view(method, 1.2 * pixels - 0.1)  # resampling overshoots


def test_non_finite_images_are_skipped_not_rejected():
    for value in (torch.nan, torch.inf):
        images = torch.rand(4, 3, 8, 8, generator=generator())
        images[:, 0, 0, 0] = value
        assert first_view("cotta", images).last.skipped.startswith("NaN or Inf in the images")
