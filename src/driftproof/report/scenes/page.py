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
    """Draw frames with the predictions, rejections and alarms of an adapter, and return the path of the page.

    Writes an image with all panels of each frame (`frames/0001.png`), a contact sheet, an animation (`scenes.webp`),
    and, last, a self-contained page (`index.html`).

    Args:
        frames: The frames; may be lazy.
        palette: The model's classes.
        out: The output folder, created if missing.
        title: Of the page.
        facts: Facts about the run to show on the page, by name.
    """
    entries: list[dict[str, Any]] = []
    rows: list[dict[str, Image]] = []
    total: Counter[str] = Counter()
    for frame in frames:
        panels, counts, has_rejected = make_panels(frame, palette), count_pixels(frame), frame.rejected is not None
        total += counts
        _save(_make_grid([panels]), out / (name := f"frames/{frame.index + 1:04}.png"))
        rows.append({kind: scale_down(image, _SHEET_WIDTH, is_photo=kind in PHOTOS) for kind, image in panels.items()})
        small = {kind: scale_down(image, _PAGE_WIDTH, is_photo=kind in PHOTOS) for kind, image in panels.items()}
        pictures = {kind: embed(image, "JPEG" if kind in PHOTOS else "PNG") for kind, image in small.items()}
        summary = describe_counts(counts, has_rejected=has_rejected)
        entries.append({"frame": frame, "summary": summary, "strip": name, "pictures": pictures})
    if not entries:
        raise InputError("Expected at least one frame to draw, but got none.")
    _save(_make_grid(rows), out / "contact-sheet.png")
    first, *others = [_make_grid([row]) for row in rows]
    _save(first, out / "scenes.webp", save_all=True, append_images=others, duration=800, loop=0, quality=80, method=2)
    summary, page = describe_counts(total, has_rejected=has_rejected), out / "index.html"
    return write_page("scenes.html", page, title=title, facts=facts, entries=entries, summary=summary, palette=palette)


def _make_grid(rows: "Sequence[Mapping[str, Image]]") -> "Image":
    """Arrange images of one size below their titles, in rows and columns."""
    pillow, fonts, drawing = (require(f"PIL.{name}", "Drawing scenes") for name in ("Image", "ImageFont", "ImageDraw"))
    width, height = next(iter(rows[0].values())).size
    text = min(max(11, round(width / 16)), 28)
    right, down = width + _GAP, height + _GAP + round(1.5 * text)
    sheet: Image = pillow.new("RGB", (_GAP + right * max(map(len, rows)), _GAP + down * len(rows)), "white")
    draw, font = drawing.Draw(sheet), fonts.load_default(text)
    for row, images in enumerate(rows):
        for column, (title, image) in enumerate(images.items()):
            draw.text((_GAP + column * right, _GAP + row * down), title, fill="black", font=font)
            sheet.paste(image, (_GAP + column * right, (row + 1) * down - height))
    return sheet


def _save(image: "Image", path: Path, **options: Any) -> None:  # noqa: ANN401  # options of Pillow
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as unfinished:
        image.save(unfinished, format=path.suffix.removeprefix(".").upper(), **options)
