"""The digits dataset against scikit-learn's arrays, upscaled by Pillow, and the demo's network on it."""

import itertools
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from driftproof.bench.local_files import LocalFiles
from driftproof.bench.spec import Spec
from driftproof.corruptions import corrupt, procedural_frost
from driftproof.data.digits import digits, digits_unknown
from driftproof.errors import MissingPackageError


def upscale(image):
    larger = np.array(Image.fromarray(image.astype(np.float32)).resize((16, 16), Image.Resampling.BILINEAR))
    return torch.from_numpy(np.floor(larger * 255 / 16 + 0.5)).byte()


def test_every_digit_is_in_exactly_one_set_and_upscaled():
    stored = load_digits()
    order = np.random.default_rng(0).permutation(len(stored.target))
    known, unknown = ([place for place in order if (stored.target[place] < 6) == which] for which in (True, False))
    places = known[: len(known) // 2], known[len(known) // 2 :], unknown
    sets = digits(train=True), digits(), digits_unknown()
    assert sorted(map(int, itertools.chain(*places))) == list(range(len(stored.images)))
    for images, own in zip(sets, places, strict=True):
        assert torch.equal(images.labels, torch.from_numpy(stored.target[own]).long())
        expected = torch.stack([upscale(stored.images[place]) for place in own])
        assert torch.equal(images.batch(range(len(images))), expected.unsqueeze(1).expand(-1, 3, -1, -1))
    assert [images.name for images in sets] == ["digits/train", "digits", "digits-unknown"]
    assert sets[0].classes == sets[1].classes == ("0", "1", "2", "3", "4", "5")


def test_digits_are_streamed_corrupted(tmp_path):
    spec = Spec("source", "digits-c", "five_layers", "digits-unknown-c", domains=("frost", "fog"), batch_size=100)
    batch = next(iter(LocalFiles(tmp_path).stream(spec, 1)))
    assert (batch.images.shape, batch.num_known) == ((100, 3, 16, 16), 50)
    assert torch.equal(batch.labels[:50], digits().labels[:50])
    photos = procedural_frost()
    frozen = corrupt(digits().batch(range(50)), "frost", 5, dataset="digits", constants=32, frost_photos=photos)
    assert torch.equal(batch.images[:50], frozen / 255)


def test_missing_scikit_learn_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    for reader in (digits, digits_unknown):
        with pytest.raises(MissingPackageError, match=r"needs sklearn.*'driftproof\[demo\]'"):
            reader()
