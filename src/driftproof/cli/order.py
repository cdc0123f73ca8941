"""The options `--order` and `--seed`: the order in which images are gone through."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from driftproof.cli.options import MAX_SEED

__all__ = ["Order", "OrderName", "OrderSeed", "arrange"]

Order = Literal["random", "name", "time"]
OrderName = Annotated[
    Order,
    typer.Option(
        "--order",
        help="Order of the images: random; by name, as they lie in the folders; or by time of last change. By name, "
        "a folder per class shows one class after the other, which harms adaptation.",
    ),
]
OrderSeed = Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED, help="Seed of the random order.")]


def arrange(paths: Sequence[Path], order: Order, seed: int = 0) -> list[int]:
    """Return the positions of the files in the order to go through.

    Examples:
        >>> sorted(arrange([Path("a.png"), Path("b.png"), Path("c.png")], "random", seed=1))
        [0, 1, 2]
    """
    positions = list(range(len(paths)))
    if order == "random":
        random.Random(seed).shuffle(positions)
    elif order == "time":
        positions.sort(key=lambda index: (_time_of_change(paths[index]), index))
    return positions


def _time_of_change(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # a broken link comes first, and is reported when it is read
        return 0
