"""Batched corruptions against single-image references, and the guarantees of `corrupt`."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import driftproof as dp
import reference_corruptions as reference
from driftproof.corruptions import CORRUPTIONS, HELD_OUT, FrostPhotos, corrupt, find_frost_photos, procedural_frost
from driftproof.corruptions.constants import CONSTANTS
from driftproof.corruptions.corrupt import _ELASTIC_REFERENCE
from driftproof.corruptions.counter_rng import CounterRNG, image_keys
from reference_severities import CONSTANTS_OF_PUBLISHED_SETS

ALL_CORRUPTIONS = (*CORRUPTIONS, *HELD_OUT)
DETERMINISTIC = (
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
)
# Number of images for which sampling noise is well below the tolerance.
RANDOM = {
    **dict.fromkeys(("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "glass_blur", "fog"), 500),
    **dict.fromkeys(("motion_blur", "snow"), 600),
    "elastic_transform": 1500,
}
# The reference takes seconds for a few hundred images.
SLOW = ("fog", "elastic_transform", "motion_blur", "snow", "glass_blur")
FROST = procedural_frost()


def make_images(count, side=32, seed=0):
    """Smooth colored images with some texture; the first ones are black, white and gray."""
    rng = np.random.default_rng(seed)
    coarse = torch.from_numpy(rng.random((count, 3, 5, 5)))
    images = torch.nn.functional.interpolate(coarse, size=side, mode="bicubic", align_corners=False)
    images = images + 0.05 * torch.from_numpy(rng.standard_normal(images.shape))
    images = (images.clamp(0, 1) * 255).to(torch.uint8)
    if count > 3:
        images[0], images[1], images[2] = 0, 255, images[2, :1]
    return images


def to_hwc(images):
    return images.permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("side", CONSTANTS_OF_PUBLISHED_SETS)
@pytest.mark.parametrize("name", ALL_CORRUPTIONS)
def test_constants_match_the_published_sets(name, side):
    published = CONSTANTS_OF_PUBLISHED_SETS[side][name]
    if name == "zoom_blur":  # the reference takes its factors from `arange`, so they have to agree in every bit
        published = tuple(
            tuple(np.arange(1.0, 2.0, step)[: round((last - 1.0) / step) + 1].tolist()) for last, step in published
        )
    assert CONSTANTS[side][name] == published
    assert CONSTANTS.keys() == CONSTANTS_OF_PUBLISHED_SETS.keys()


def test_frost_photos_and_elastic_reference_scale_with_image_size():
    photos = FrostPhotos([torch.rand(3, 100, 200)], "procedural")
    sizes = {side: tuple(photos.scaled(side, torch.device("cpu"))[0].shape[1:]) for side in CONSTANTS_OF_PUBLISHED_SETS}
    assert sizes == {32: (20, 40), 64: (30, 60), 224: (100, 200)}
    assert _ELASTIC_REFERENCE == {32: 32, 64: 64, 224: 244}, "244 is a slip of the reference"


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_corruptions_match_the_reference(name, severity, side):
    images = make_images(6, side)
    constant = CONSTANTS[side][name][severity - 1]
    ours = to_hwc(corrupt(images, name, severity)).astype(int)
    for corrupted, image in zip(ours, to_hwc(images), strict=True):
        expected = reference.to_uint8(getattr(reference, name)(image / 255, constant, None)).astype(int)
        assert np.abs(corrupted - expected).max() <= 1


@pytest.mark.parametrize("name", ["defocus_blur", "zoom_blur", "pixelate"])
def test_deterministic_corruptions_match_the_reference_at_full_size(name):
    images = make_images(2, 224)
    ours = to_hwc(corrupt(images, name, 5)).astype(int)
    for corrupted, image in zip(ours, to_hwc(images), strict=True):
        expected = reference.to_uint8(getattr(reference, name)(image / 255, CONSTANTS[224][name][4], None)).astype(int)
        assert np.abs(corrupted - expected).max() <= 1


def assert_same_distribution(images, ours, apply_reference, tolerance=0.04):
    rng = np.random.default_rng(1)
    before = to_hwc(images).astype(float)
    expected = np.stack([reference.to_uint8(apply_reference(image / 255, rng)) for image in to_hwc(images)]).astype(
        float
    )
    our_change, reference_change = to_hwc(ours).astype(float) - before, expected - before
    assert np.abs(our_change).mean() == pytest.approx(np.abs(reference_change).mean(), rel=tolerance)
    assert our_change.var() == pytest.approx(reference_change.var(), rel=tolerance)
    assert our_change.mean() == pytest.approx(reference_change.mean(), abs=tolerance * np.abs(reference_change).mean())


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        pytest.param(name, severity, marks=pytest.mark.slow if name in SLOW and severity == 2 else ())
        for name in RANDOM
        for severity in (2, 5)
    ],
)
def test_random_corruptions_match_the_reference_in_distribution(name, severity):
    images = make_images(RANDOM[name] if severity == 2 else RANDOM[name] * 3 // 5)  # strong ones vary less
    constant = CONSTANTS[32][name][severity - 1]
    extra = (32,) if name == "elastic_transform" else ()
    ours = corrupt(images, name, severity)
    assert_same_distribution(images, ours, lambda x, rng: getattr(reference, name)(x, constant, rng, *extra))


def test_frost_matches_the_reference_in_distribution():
    images = make_images(600)
    photos = [photo.permute(1, 2, 0).numpy() for photo in FROST.scaled(32, torch.device("cpu"))]
    ours = corrupt(images, "frost", 5, frost_photos=FROST)
    assert_same_distribution(images, ours, lambda x, rng: reference.frost(x, CONSTANTS[32]["frost"][4], rng, photos))


@pytest.mark.parametrize(
    ("severity", "count", "tolerance"),
    [
        *((1, 1000, 0.04), (5, 1500, 0.055)),
        *(pytest.param(*each, 0.04, marks=pytest.mark.slow) for each in ((3, 1500), (4, 6000), (5, 3000))),
    ],
)
def test_spatter_matches_the_reference_in_distribution(severity, count, tolerance):
    images, constant = make_images(count), CONSTANTS[32]["spatter"][severity - 1]
    spatter = reference.mud if constant[-1] else reference.water
    ours = corrupt(images, "spatter", severity)
    assert_same_distribution(images, ours, lambda x, rng: spatter(x, constant, rng), tolerance)


@pytest.mark.parametrize(("name", "severity"), [*((name, 5) for name in ALL_CORRUPTIONS), ("spatter", 1)])
def test_image_is_the_same_alone_and_in_a_batch(name, severity):
    images = make_images(140)
    options = {"dataset": "set", "frost_photos": FROST}
    whole = corrupt(images, name, severity, **options)
    assert whole.shape == images.shape
    assert whole.dtype == torch.uint8
    assert not torch.equal(whole, images)
    for places in ([3], [0, 139], [77, 5, 128]):
        indices = torch.tensor(places)
        assert torch.equal(corrupt(images[indices], name, severity, indices=indices, **options), whole[indices])


@pytest.mark.parametrize("name", ["gaussian_noise", "fog", "glass_blur", "elastic_transform"])
def test_randomness_depends_on_set_and_index(name):
    images = make_images(1).expand(3, -1, -1, -1)
    whole = corrupt(images, name, 5)
    assert not torch.equal(whole[0], whole[1])
    assert not torch.equal(whole, corrupt(images, name, 5, dataset="another"))


@pytest.mark.parametrize("name", ALL_CORRUPTIONS)
def test_severity_increases_change_and_other_shapes_work(name):
    images = make_images(30)
    mild, strong = (corrupt(images, name, severity, frost_photos=FROST).float() for severity in (1, 5))
    if name not in ("elastic_transform", "saturate", "spatter"):  # these change in kind, not only in strength
        assert (strong - images).abs().mean() > (mild - images).abs().mean()
    oblong = make_images(2, 64)[..., :48, :]
    assert corrupt(oblong, name, 3, frost_photos=FROST).shape == oblong.shape


@pytest.mark.parametrize("name", ALL_CORRUPTIONS)
def test_images_smaller_than_a_kernel_keep_their_size(name):
    for height, width in ((1, 1), (1, 4), (2, 3), (8, 5)):
        images = torch.full((2, 3, height, width), 90, dtype=torch.uint8)
        small = corrupt(images, name, 5, frost_photos=FROST)
        assert small.shape == images.shape
        if name in ("defocus_blur", "pixelate"):
            assert (small - 90.0).abs().max() <= 1, "an image of one color stays so"


def test_corruptions_are_in_benchmark_order():
    assert (
        *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
        *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    ) == CORRUPTIONS
    assert [len(CONSTANTS[32]["zoom_blur"][s]) for s in range(5)] == [7, 12, 16, 21, 26]
    assert [len(CONSTANTS[224]["zoom_blur"][s]) for s in range(5)] == [12, 16, 11, 13, 11]
    assert all(len(values) == 5 for table in CONSTANTS.values() for values in table.values())
    assert all(table.keys() == CONSTANTS[32].keys() for table in CONSTANTS.values())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("gaussian_nose", 5), dp.errors.ConfigurationError, "Did you mean gaussian_noise"),
        (("fog", 0), dp.errors.ConfigurationError, r"1\.\.5, but got 0"),
        (("fog", 6), dp.errors.ConfigurationError, r"1\.\.5, but got 6"),
        (("fog", True), dp.errors.ConfigurationError, "True"),
    ],
)
def test_unknown_names_and_severities_raise(arguments, error, message):
    with pytest.raises(error, match=message):
        corrupt(make_images(1), *arguments)


@pytest.mark.parametrize("convert", [lambda x: x.float(), lambda x: x[0], lambda x: x[:, :1]])
def test_other_image_formats_raise(convert):
    with pytest.raises(dp.errors.InputError, match="8-bit RGB"):
        corrupt(convert(make_images(2)), "fog")


def test_bad_constants_and_indices_raise():
    with pytest.raises(dp.errors.ConfigurationError, match="32, 64 or 224"):
        corrupt(make_images(1), "fog", constants=128)
    with pytest.raises(dp.errors.InputError, match="one index per image"):
        corrupt(make_images(2), "fog", indices=torch.tensor([1]))
    assert corrupt(make_images(4)[:0], "fog").shape == (0, 3, 32, 32)


@pytest.mark.parametrize(("height", "width"), [(300, 240), (240, 400), (230, 250)])
def test_frost_photos_are_enlarged_to_cover_large_images(height, width):
    ramp = torch.linspace(0, 255, 260).expand(3, 235, 260).contiguous()
    photos = FrostPhotos((ramp, ramp.flip(2)), "folder")
    found = corrupt(torch.zeros(6, 3, height, width, dtype=torch.uint8), "frost", 5, frost_photos=photos).int()
    assert (found == found[:, :, :1]).all(), "the photos are equal in every row"
    steps = found.diff(dim=3)
    assert all((step >= 0).all() or (step <= 0).all() for step in steps), "the crop is contiguous"
    assert found.amax() > 50


def test_find_frost_photos_in_folder_or_package(tmp_path, monkeypatch):
    with pytest.raises(dp.errors.InputError, match=r"frost1\.png"):
        find_frost_photos(tmp_path)
    for index, suffix in enumerate(("png", "png", "png", "jpg", "jpg"), start=1):
        reference.as_image(np.full((60, 90, 3), 0.1 * index)).save(tmp_path / f"frost{index}.{suffix}")
    found = find_frost_photos(tmp_path)
    assert found.origin == "folder"
    assert [photo.shape for photo in found.photos] == [(3, 60, 90)] * 5
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(dp.errors.InputError, match="pip install imagecorruptions-imaug"):
        find_frost_photos()
    assert procedural_frost().origin == "procedural"
    assert isinstance(FROST, FrostPhotos)


@settings(max_examples=20)
@given(st.integers(0, 2**40), st.integers(1, 400))
def test_counter_rng_is_uniform_normal_and_independent(start, count):
    keys = image_keys("set", "noise", 1, torch.arange(start, start + 64))
    rng = CounterRNG(keys)
    uniform, normal = rng.uniform(64, 64), rng.normal(64, 64)
    assert uniform.min() > 0
    assert uniform.max() < 1
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(normal.mean()) == pytest.approx(0, abs=0.01)
    assert float(normal.std()) == pytest.approx(1, abs=0.01)
    flat = torch.stack([uniform.flatten() - 0.5, normal.flatten()])
    assert abs(float(torch.corrcoef(flat)[0, 1])) < 0.01
    neighbors = torch.stack([uniform[:-1].flatten(), uniform[1:].flatten()])
    assert abs(float(torch.corrcoef(neighbors)[0, 1])) < 0.01
    integers = rng.integers(count, low=-2, high=3)
    assert integers.min() >= -2
    assert integers.max() <= 2
