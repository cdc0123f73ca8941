"""The digits dataset against scikit-learn's arrays, upscaled by exact arithmetic and by Pillow."""

import itertools
import sys
from fractions import Fraction
from math import floor

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from driftproof.data import Corrupted
from driftproof.data.digits import digits, digits_unknown
from driftproof.errors import MissingPackageError
from driftproof.streams import Domain, OpenSet


@pytest.fixture(scope="module")
def stored():
    return load_digits()


def all_pixels(images):
    return images.batch(range(len(images)))


def interpolate(line, place):
    """Return the value of a row or column at a position between its pixel centers, which are integers."""
    place = min(max(place, Fraction(0)), Fraction(len(line) - 1))
    low = min(floor(place), len(line) - 2)
    return line[low] + (place - low) * (line[low + 1] - line[low])


def upscale(image):
    """Upscale by two with linear interpolation, rows first, in exact fractions."""
    places = [(Fraction(pixel) + Fraction(1, 2)) / 2 - Fraction(1, 2) for pixel in range(16)]
    rows = [[interpolate([int(value) for value in row], place) for place in places] for row in image]
    columns = [[interpolate([row[column] for row in rows], place) for place in places] for column in range(16)]
    return [[columns[column][row] for column in range(16)] for row in range(16)]


def to_bytes(image):
    return [[floor(value * Fraction(255, 16) + Fraction(1, 2)) for value in row] for row in image]


def upscale_with_pillow(image):
    larger = np.array(Image.fromarray(image.astype(np.float32)).resize((16, 16), Image.Resampling.BILINEAR))
    return torch.from_numpy(np.floor(larger * 255 / 16 + 0.5)).byte()


def indices_of(stored):
    """Return the indices of the three sets in scikit-learn's arrays."""
    order = np.random.default_rng(0).permutation(len(stored.target))
    known = [place for place in order if stored.target[place] in (0, 1, 2, 3, 4, 5)]
    unknown = [place for place in order if stored.target[place] in (6, 7, 8, 9)]
    return known[: len(known) // 2], known[len(known) // 2 :], unknown


def all_sets():
    return digits(train=True), digits(), digits_unknown()


def test_every_image_is_in_exactly_one_set(stored):
    sets, places = all_sets(), indices_of(stored)
    assert [len(images) for images in sets] == [541, 542, 714]
    assert sorted(map(int, itertools.chain(*places))) == list(range(len(stored.images)))
    for images, own in zip(sets, places, strict=True):
        assert torch.equal(images.labels, torch.from_numpy(stored.target[own]).long())
        expected = torch.stack([upscale_with_pillow(stored.images[place]) for place in own])
        assert torch.equal(all_pixels(images), expected.unsqueeze(1).expand(-1, 3, -1, -1))


def test_pixels_match_exact_interpolation(stored):
    for images, own in zip(all_sets(), indices_of(stored), strict=True):
        some = range(0, len(images), 37)
        batch = images.batch(some)
        assert batch.dtype == torch.uint8
        for image, place in zip(batch, some, strict=True):
            expected = torch.tensor(to_bytes(upscale(stored.images[own[place]])))
            assert torch.equal(image.long(), expected.expand(3, -1, -1))


def test_pixels_use_the_full_range():
    pixels = torch.cat([all_pixels(images) for images in all_sets()])
    assert (int(pixels.min()), int(pixels.max())) == (0, 255)


def test_labels_are_the_digits():
    train, test, unknown = all_sets()
    assert train.classes == test.classes == ("0", "1", "2", "3", "4", "5")
    assert [images.name for images in (train, test, unknown)] == ["digits/train", "digits", "digits-unknown"]
    for images, taught in ((train, "012345"), (test, "012345"), (unknown, "6789")):
        assert {images.classes[label] for label in images.labels} == set(taught)
        assert images.labels.bincount()[-4:].min() > 70


def test_nearest_neighbor_on_training_half_classifies_test_half():
    train, test, _ = all_sets()
    judge = KNeighborsClassifier(1).fit(all_pixels(train).flatten(1).numpy(), train.labels.numpy())
    assert judge.score(all_pixels(test).flatten(1).numpy(), test.labels.numpy()) > 0.95


def test_known_and_unknown_digits_make_an_open_set_stream():
    domains = [[Domain(of.name, of)] for of in (Corrupted(digits(), "fog"), Corrupted(digits_unknown(), "fog"))]
    batch = next(iter(OpenSet(*domains, batch_size=20)))
    assert batch.images.shape == (20, 3, 16, 16)
    assert (batch.domain, batch.num_known) == ("digits-c/fog/5", 10)


def test_missing_scikit_learn_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    for reader in (digits, digits_unknown):
        with pytest.raises(MissingPackageError, match=r"needs sklearn.*'driftproof\[demo\]'"):
            reader()
