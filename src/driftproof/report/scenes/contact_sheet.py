"""Many panels in one picture: a strip for a frame, a sheet for all frames, an animation of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftproof.data.scenes.classes import Color
from driftproof.files import atomic_write
from driftproof.optional import require
from driftproof.report.scenes.panels import TITLES

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Swatch", "TitledImage", "add_titles", "make_grid", "make_legend", "save_animation", "save_image"]

TitledImage = tuple[str, "Image"]
"""Words, and the picture below them."""

Swatch = tuple[str, Color]
"""What a color stands for, and the color."""

_PAPER, _INK, _RULE = (253, 253, 252), (29, 33, 38), (150, 150, 150)


def make_grid(rows: Sequence[Sequence[TitledImage]], *, gap: int = 8) -> "Image":
    """Pictures of one size in rows and columns, each with its words above it.

    Args:
        rows: The first has the most columns.
        gap: Pixels between them, and around all of them.
    """
    width, height = rows[0][0][1].size
    text = min(max(11, round(width / 16)), 28)
    across, down = width + gap, height + gap + round(1.5 * text)
    pillow, font = require("PIL.Image", "Drawing scenes"), _load_font(text)
    sheet: Image = pillow.new("RGB", (gap + across * len(rows[0]), gap + down * len(rows)), _PAPER)
    draw = require("PIL.ImageDraw", "Drawing scenes").Draw(sheet)
    for row, cells in enumerate(rows):
        for column, (words, image) in enumerate(cells):
            left, top = gap + column * across, gap + row * down
            draw.text((left, top), words, fill=_INK, font=font)
            sheet.paste(image, (left, top + down - gap - height))
    return sheet


def make_legend(swatches: Sequence[Swatch], size: tuple[int, int]) -> "Image":
    """What colors stand for, in two columns, as a picture of this size.

    Args:
        swatches: Colors and their meanings.
        size: Width and height.
    """
    width, height = size
    sheet: Image = require("PIL.Image", "Drawing scenes").new("RGB", size, _PAPER)
    draw = require("PIL.ImageDraw", "Drawing scenes").Draw(sheet)
    lines = -(-len(swatches) // 2)
    pitch = min(height / lines, width / 11)
    font, side = _load_font(max(8, round(0.62 * pitch))), round(0.7 * pitch)
    for place, (words, color) in enumerate(swatches):
        left, top = place // lines * width // 2, round(place % lines * pitch)
        draw.rectangle((left, top, left + side, top + side), fill=color, outline=_RULE)
        draw.text((left + 1.5 * side, top + side / 2), words, fill=_INK, font=font, anchor="lm")
    return sheet


def save_image(image: "Image", path: Path) -> None:
    """Write a picture in one act."""
    with atomic_write(path) as unfinished:
        image.save(unfinished, format=path.suffix.removeprefix(".").upper())


def save_animation(images: "Sequence[Image]", path: Path, *, seconds: float = 0.8) -> None:
    """Write pictures as one that moves, round and round, as WebP.

    Args:
        images: All of one size.
        path: Where to.
        seconds: How long each stays.
    """
    first, *others = images
    with atomic_write(path) as unfinished:
        first.save(
            unfinished,
            format="WEBP",
            save_all=True,
            append_images=others,
            duration=round(1000 * seconds),
            loop=0,
            quality=80,
            method=2,
        )


def add_titles(kinds: "Sequence[tuple[str, Image]]", prefix: str = "") -> list[TitledImage]:
    """Pictures by kind, under the titles of their kinds.

    Args:
        kinds: Keys of `TITLES`, and the pictures.
        prefix: What to say before the first title.
    """
    cells = [(TITLES[kind], image) for kind, image in kinds]
    return [(f"{prefix}{words}" if place == 0 else words, image) for place, (words, image) in enumerate(cells)]


def _load_font(size: int) -> Any:  # noqa: ANN401  # whichever font Pillow comes with
    return require("PIL.ImageFont", "Drawing scenes").load_default(size)
