"""Photographs of garments that come with the package, in seven classes, and of bags."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from driftproof.optional import require

__all__ = ["CLASSES", "Garments", "load_garments"]

CLASSES = ("T-shirt", "trouser", "pullover", "dress", "sandal", "sneaker", "ankle boot")
"""What the network learns to tell apart. Coats and shirts are left out: they look like pullovers and T-shirts."""

_FOLDER = Path(__file__).parent / "images"
_SIDE, _COLUMNS, _BORDER = 28, 100, 2


@dataclass(frozen=True)
class Garments:
    """8-bit RGB images, (N, 3, 32, 32), and their classes.

    Attributes:
        train: Images to train on.
        train_labels: Their classes.
        test: Other images of the same classes.
        test_labels: Their classes.
        bags: Images of a class that is not trained on.
    """

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    bags: Tensor


def load_garments() -> Garments:
    """Load the images of Fashion-MNIST that come with the package.

    Examples:
        >>> garments = load_garments()
        >>> len(garments.train), len(garments.test), len(garments.bags)
        (5000, 1500, 400)
    """
    train, test, bags = (_read_sheet(name) for name in ("train", "test", "bags"))
    labels = torch.from_numpy(np.load(_FOLDER / "labels.npy", allow_pickle=False)).long()
    return Garments(train, labels[: len(train)], test, labels[len(train) :], bags)


def _read_sheet(name: str) -> Tensor:
    """Cut a sheet into images, with a black border up to 32 × 32 pixels."""
    image = require("PIL.Image", "The demo").open(_FOLDER / f"{name}.webp").convert("L")
    sheet = torch.from_numpy(np.array(image))
    tiles = sheet.reshape(-1, _SIDE, _COLUMNS, _SIDE).permute(0, 2, 1, 3).flatten(0, 1)
    return F.pad(tiles, [_BORDER] * 4).unsqueeze(1).expand(-1, 3, -1, -1).contiguous()
