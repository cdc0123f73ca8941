"""Arrange panels in a grid: per frame, as a contact sheet, and as an animation."""

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
"""A title and the image below it."""

Swatch = tuple[str, Color]
"""A label and its color."""

_PAPER, _INK, _RULE = (253, 253, 252), (29, 33, 38), (150, 150, 150)


def make_grid(rows: Sequence[Sequence[TitledImage]], *, gap: int = 8) -> "Image":
    """Arrange titled images of one size in rows and columns.

    Args:
        rows: The first has the most columns.
        gap: Pixels between and around the images.
    """
    width, height = rows[0][0][1].size
    text = min(max(11, round(width / 16)), 28)
    step_x, step_y = width + gap, height + gap + round(1.5 * text)
    pillow, font = require("PIL.Image", "Drawing scenes"), _load_font(text)
    sheet: Image = pillow.new("RGB", (gap + step_x * len(rows[0]), gap + step_y * len(rows)), _PAPER)
    draw = require("PIL.ImageDraw", "Drawing scenes").Draw(sheet)
    for row, images in enumerate(rows):
        for column, (title, image) in enumerate(images):
            left, top = gap + column * step_x, gap + row * step_y
            draw.text((left, top), title, fill=_INK, font=font)
            sheet.paste(image, (left, top + step_y - gap - height))
    return sheet


def make_legend(swatches: Sequence[Swatch], size: tuple[int, int]) -> "Image":
    """Draw a legend in two columns.

    Args:
        swatches: Labels and colors.
        size: Width and height of the image.
    """
    width, height = size
    sheet: Image = require("PIL.Image", "Drawing scenes").new("RGB", size, _PAPER)
    draw = require("PIL.ImageDraw", "Drawing scenes").Draw(sheet)
    lines = -(-len(swatches) // 2)
    pitch = min(height / lines, width / 11)
    font, side = _load_font(max(8, round(0.62 * pitch))), round(0.7 * pitch)
    for index, (label, color) in enumerate(swatches):
        left, top = index // lines * width // 2, round(index % lines * pitch)
        draw.rectangle((left, top, left + side, top + side), fill=color, outline=_RULE)
        draw.text((left + 1.5 * side, top + side / 2), label, fill=_INK, font=font, anchor="lm")
    return sheet


def save_image(image: "Image", path: Path) -> None:
    """Write an image atomically."""
    with atomic_write(path) as unfinished:
        image.save(unfinished, format=path.suffix.removeprefix(".").upper())


def save_animation(images: "Sequence[Image]", path: Path, *, seconds: float = 0.8) -> None:
    """Write images as a looping WebP animation.

    Args:
        images: All of one size.
        path: Of the file.
        seconds: Duration of each image.
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


def add_titles(images: "Sequence[tuple[str, Image]]", prefix: str = "") -> list[TitledImage]:
    """Replace the kind of each image by its title.

    Args:
        images: Keys of `TITLES`, and the images.
        prefix: Text before the first title.
    """
    titled = [(TITLES[kind], image) for kind, image in images]
    return [(f"{prefix}{title}" if index == 0 else title, image) for index, (title, image) in enumerate(titled)]


def _load_font(size: int) -> Any:  # noqa: ANN401  # a font class of Pillow
    return require("PIL.ImageFont", "Drawing scenes").load_default(size)
