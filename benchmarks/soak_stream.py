"""The stream of the soak: images of changing domains and sizes, bursts, and files that no reader can read."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["FAULTS", "MODEL", "jumping_clock", "make_images", "make_lines"]

MODEL = '''
import torch
from torch import nn


class Normalize(nn.Module):
    """Scales each image by its own deviation: an image of one color becomes NaN."""

    def forward(self, x):
        return (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True)


def build():
    torch.manual_seed(3)
    body = [nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(Normalize(), *body, nn.Linear(4, 4))
'''

_DOMAINS, _PER_DOMAIN, _SIDES = 4, 48, (12, 16)
FAULTS = ("nan", "corrupt", "truncated", "missing", "size", "link", "folder", "empty")
"""What can be wrong: a frame of one color, which the model turns into NaN, and files that no reader can read."""


def make_images(folder: Path, seed: int = 0) -> None:
    """Write the images of all domains and one file for each fault."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    for domain in range(_DOMAINS):
        color, contrast = generator.random(3) * 150, 30 + 25 * domain
        for side in _SIDES:
            for number in range(_PER_DOMAIN):
                pixels = color + generator.random((side, side, 3)) * contrast
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{domain}-{side}-{number:02}.png")
    good = (folder / "0-12-00.png").read_bytes()
    Image.new("RGB", (12, 12), (90, 90, 90)).save(folder / "nan.png")
    (folder / "corrupt.png").write_bytes(bytes(reversed(good)))
    (folder / "truncated.png").write_bytes(good[: len(good) // 2])
    Image.new("RGB", (33, 33)).save(folder / "size.png")
    (folder / "link.png").symlink_to(folder / "link.png")
    (folder / "folder.png").mkdir()
    (folder / "empty.png").touch()
    for path in folder.glob("*.png"):  # the clock of whoever wrote them jumped
        if path.is_file():
            os.utime(path, (moment := int(generator.integers(0, 2**32)), moment))


def make_lines(steps: int, folder: Path, seed: int = 0) -> Iterator[str]:
    """Yield the lines of the stream: names of images, and an empty line after each batch.

    The domain changes suddenly after 100 to 900 batches, the image size after 50 to 400. A batch has 1 to 4 images, in
    a burst 16. One batch in twenty has a fault, one in a hundred nothing else.
    """
    draw = random.Random(seed)
    until: dict[str, int] = {"domain": 0, "side": 0}
    domain, side = 0, _SIDES[0]
    for step in range(steps):
        if step >= until["domain"]:
            domain, until["domain"] = draw.randrange(_DOMAINS), step + draw.randint(100, 900)
        if step >= until["side"]:
            side, until["side"] = draw.choice(_SIDES), step + draw.randint(50, 400)
        count = 16 if draw.random() < 0.01 else draw.randint(1, 4)
        names = [f"{domain}-{side}-{draw.randrange(_PER_DOMAIN):02}.png" for _ in range(count)]
        if draw.random() < 0.05:
            names[draw.randrange(count)] = f"{draw.choice(FAULTS)}.png"
        if draw.random() < 0.01:
            names = [f"{draw.choice(FAULTS)}.png" for _ in names]
        yield from (str(folder / name) for name in names)
        yield ""


def jumping_clock(clock: Callable[[], float], seed: int) -> Callable[[], float]:
    """Return a clock of wall time that jumps by up to a year now and then."""
    draw = random.Random(seed)
    offset = 0.0

    def read() -> float:
        nonlocal offset
        if draw.random() < 0.01:
            offset = draw.uniform(-1, 1) * 365 * 86400
        return clock() + offset

    return read
