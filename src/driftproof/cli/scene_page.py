"""Driving scenes: an image per frame, a contact sheet, an animation and a page."""

import colorsys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from driftproof.analyses.scenes import FrameResult
from driftproof.data.scenes import CAMVID, CITYSCAPES, UNKNOWN, VOID, SceneClass
from driftproof.errors import ConfigurationError, InputError
from driftproof.files import atomic_write
from driftproof.optional import require
from driftproof.report.pictures import embed, scale_down
from driftproof.report.text import format_number, write_page

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["colorize", "count_pixels", "default_palette", "describe_counts", "make_panels", "write_scenes"]

_ALARM = (255, 214, 0)
_PHOTOS = ("Input", "Alarms")  # panels that show the frame itself; the others are maps of classes
_PAGE_WIDTH, _SHEET_WIDTH, _GAP, _STRIPE = 480, 320, 8, 6
_GOLDEN_RATIO = 0.618034


def write_scenes(
    frames: Iterable[FrameResult], palette: Sequence[SceneClass], out: Path, *, title: str, facts: Mapping[str, str]
) -> Path:
    """Draw frames with the predictions, rejections and alarms of an adapter, and return the path of the page.

    Writes an image with all panels of each frame (`frames/0001.png`), a contact sheet, an animation (`scenes.webp`),
    and, last, a self-contained page (`index.html`) with facts about the run. Frames may be lazy.
    """
    entries: list[dict[str, Any]] = []
    rows: list[dict[str, Image]] = []
    total: Counter[str] = Counter()
    for frame in frames:
        panels, counts, has_rejected = make_panels(frame, palette), count_pixels(frame), frame.rejected is not None
        total += counts
        _save(_make_grid([panels]), out / (name := f"frames/{frame.index + 1:04}.png"))
        row, small = (
            {kind: scale_down(image, width, is_photo=kind in _PHOTOS) for kind, image in panels.items()}
            for width in (_SHEET_WIDTH, _PAGE_WIDTH)
        )
        rows.append(row)
        pictures = {kind: embed(image, "JPEG" if kind in _PHOTOS else "PNG") for kind, image in small.items()}
        summary = describe_counts(counts, has_rejected=has_rejected)
        entries.append({"frame": frame, "summary": summary, "strip": name, "pictures": pictures})
    if not entries:
        raise InputError("Expected at least one frame to draw, but got none.")
    _save(_make_grid(rows), out / "contact-sheet.png")
    first, *others = [_make_grid([row]) for row in rows]
    _save(first, out / "scenes.webp", save_all=True, append_images=others, duration=800, loop=0, quality=80, method=2)
    summary, page = describe_counts(total, has_rejected=has_rejected), out / "index.html"
    content = {"title": title, "facts": facts, "entries": entries, "summary": summary, "palette": palette}
    return write_page("scenes.html", page, package="driftproof.cli", **content)


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


def make_panels(frame: FrameResult, palette: Sequence[SceneClass]) -> "dict[str, Image]":
    """Return the panels of a frame by title; those without data are left out."""
    make_image = require("PIL.Image", "Drawing scenes").fromarray
    pixels, predicted = frame.image.permute(1, 2, 0).contiguous().numpy(), colorize(frame.predicted, palette)
    panels = {"Input": make_image(pixels), "Prediction": make_image(predicted)}
    if frame.rejected is not None:
        panels["Rejected in black"] = make_image(predicted * ~frame.rejected.numpy()[..., None])
    panels["Alarms"] = alarms = make_image(pixels)
    draw = require("PIL.ImageDraw", "Drawing scenes").Draw(alarms)
    line = max(2, round(alarms.height / 120))
    for top, left, bottom, right in (event.box for event in frame.events if event.box is not None):
        for margin, color in ((line + 1, (0, 0, 0)), (line, _ALARM)):
            box = (left - margin, top - margin, right - 1 + margin, bottom - 1 + margin)
            draw.rectangle(box, outline=color, width=margin)
    if frame.labels is not None:
        panels["Ground truth"] = make_image(colorize(frame.labels, palette))
    return panels


def count_pixels(frame: FrameResult) -> Counter[str]:
    """Count correct, wrong and unknown pixels, how many of each are rejected, and alarms."""
    rejected = frame.predicted < 0 if frame.rejected is None else frame.rejected
    groups = {"": rejected | True}
    if frame.labels is not None:
        known, correct = frame.labels < UNKNOWN, frame.labels == frame.predicted
        groups |= {"correct": known & correct, "wrong": known & ~correct, "unknown": frame.labels == UNKNOWN}
    counts = Counter({name: int(group.sum()) for name, group in groups.items()})
    counts.update({f"rejected {name}".strip(): int((group & rejected).sum()) for name, group in groups.items()})
    return counts + Counter(alarms=len(frame.events))


def describe_counts(counts: Mapping[str, int], *, has_rejected: bool) -> str:
    """Describe what `count_pixels` counted, of one frame or several; rejections if the method learns.

    Examples:
        >>> describe_counts({"": 100, "rejected": 30, "alarms": 1}, has_rejected=True)
        '30.0 % of the pixels rejected; 1 alarm'
    """
    get, parts = Counter(counts), []
    if known := get["correct"] + get["wrong"]:
        parts.append(f"{_share(get['correct'], known)} of the known pixels correct")
    if has_rejected:
        groups = [group for group in ("correct", "wrong", "unknown") if get[group]]
        shares = ", ".join(f"{_share(get[f'rejected {group}'], get[group])} of the {group}" for group in groups)
        among = f" ({shares} ones)" if shares else ""
        parts.append(f"{_share(get['rejected'], get[''])} of the pixels rejected{among}")
    return "; ".join([*parts, f"{get['alarms']} alarm{'s' * (get['alarms'] != 1)}"])


def _share(part: int, whole: int) -> str:
    return f"{format_number(100 * part / whole)} %"


def default_palette(classes: int) -> tuple[SceneClass, ...]:
    """Return names and colors of the classes of a model, from their number alone.

    Examples:
        >>> default_palette(19)[0].name, default_palette(3)[2].name
        ('road', 'class 2')
    """
    if classes > UNKNOWN:
        raise ConfigurationError(
            f"Expected at most {UNKNOWN} classes, but got {classes}: {UNKNOWN} and {VOID} mark unknown and void pixels."
        )
    known = {len(palette): palette for palette in (CITYSCAPES, CAMVID)}
    colors = (colorsys.hsv_to_rgb(index * _GOLDEN_RATIO % 1, 0.65, 0.85) for index in range(classes))
    return known.get(classes) or tuple(
        SceneClass(f"class {index}", (round(255 * red), round(255 * green), round(255 * blue)))
        for index, (red, green, blue) in enumerate(colors)
    )


def colorize(classes: Tensor, palette: Sequence[SceneClass]) -> npt.NDArray[np.uint8]:
    """Color a map of classes (H, W), giving (H, W, 3); unknown is white, void is striped gray."""
    table = np.full((256, 3), 255, dtype=np.uint8)
    table[: len(palette)] = [each.color for each in palette]
    indices = classes.numpy().astype(np.uint8)
    image: npt.NDArray[np.uint8] = table[indices]
    stripes = np.add.outer(*map(np.arange, indices.shape)) // _STRIPE % 2
    return np.where((indices == VOID)[..., None], (150 + 35 * stripes)[..., None], image).astype(np.uint8)
