"""Write the page of scenes and its images."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftproof.analyses.scenes import FrameResult
from driftproof.data.scenes import SceneClass
from driftproof.errors import InputError
from driftproof.files import atomic_write
from driftproof.optional import require
from driftproof.report.pictures import embed, scale_down
from driftproof.report.scenes.panels import PHOTOS, count_pixels, describe_counts, make_panels
from driftproof.report.text import write_page

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["write_scenes"]

_PAGE_WIDTH, _SHEET_WIDTH, _GAP = 480, 320, 8


def write_scenes(
    frames: Iterable[FrameResult], palette: Sequence[SceneClass], out: Path, *, title: str, facts: Mapping[str, str]
) -> Path:
    """Draw frames with the predictions, rejections and alarms of an adapter.

    Writes an image with all panels of each frame (`frames/0001.png`), a contact sheet, an animation (`scenes.webp`),
    and, last, a self-contained page (`index.html`).

    Args:
        frames: The frames; may be lazy.
        palette: The model's classes.
        out: The output folder, created if missing.
        title: Of the page.
        facts: Facts about the run to show on the page, by name.

    Returns:
        The path of the page.
    """
    entries: list[dict[str, Any]] = []
    rows: list[dict[str, Image]] = []
    total: Counter[str] = Counter()
    for frame in frames:
        panels, counts, has_rejected = make_panels(frame, palette), count_pixels(frame), frame.rejected is not None
        total += counts
        name = f"frames/{frame.index + 1:04}.png"
        _save(make_grid([panels]), out / name)
        rows.append({kind: _scale(image, kind, _SHEET_WIDTH) for kind, image in panels.items()})
        pictures = {
            kind: embed(_scale(image, kind, _PAGE_WIDTH), "JPEG" if kind in PHOTOS else "PNG")
            for kind, image in panels.items()
        }
        summary = describe_counts(counts, has_rejected=has_rejected)
        entries.append(
            {
                "index": frame.index + 1,
                "summary": summary,
                "skipped": frame.skipped,
                "strip": name,
                "pictures": pictures,
            }
        )
    if not entries:
        raise InputError("Expected at least one frame to draw, but got none.")
    _save(make_grid(rows), out / "contact-sheet.png")
    first, *others = [make_grid([row]) for row in rows]
    _save(first, out / "scenes.webp", save_all=True, append_images=others, duration=800, loop=0, quality=80, method=2)
    summary = describe_counts(total, has_rejected=has_rejected)
    return write_page(
        "scenes.html", out / "index.html", title=title, facts=facts, entries=entries, summary=summary, palette=palette
    )


def make_grid(rows: "Sequence[Mapping[str, Image]]") -> "Image":
    """Arrange images of one size below their titles, in rows and columns."""
    (width, height), columns = next(iter(rows[0].values())).size, max(map(len, rows))
    text = min(max(11, round(width / 16)), 28)
    step = width + _GAP, height + _GAP + round(1.5 * text)
    font = require("PIL.ImageFont", "Drawing scenes").load_default(text)
    sheet: Image = require("PIL.Image", "Drawing scenes").new(
        "RGB", (_GAP + step[0] * columns, _GAP + step[1] * len(rows)), "white"
    )
    draw = require("PIL.ImageDraw", "Drawing scenes").Draw(sheet)
    for row, images in enumerate(rows):
        for column, (title, image) in enumerate(images.items()):
            left, top = _GAP + column * step[0], _GAP + row * step[1]
            draw.text((left, top), title, fill="black", font=font)
            sheet.paste(image, (left, top + round(1.5 * text)))
    return sheet


def _scale(image: "Image", kind: str, width: int) -> "Image":
    return scale_down(image, width, is_photo=kind in PHOTOS)


def _save(image: "Image", path: Path, **options: Any) -> None:  # noqa: ANN401  # options of Pillow
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as unfinished:
        image.save(unfinished, format=path.suffix.removeprefix(".").upper(), **options)
