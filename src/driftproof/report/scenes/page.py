"""Write the HTML page of scenes and its images."""

import base64
import io
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from driftproof.analyses.scenes import FrameResult
from driftproof.data.scenes import SceneClass
from driftproof.errors import InputError
from driftproof.files import atomic_write
from driftproof.optional import require
from driftproof.report.scenes.colorize import REJECTED_COLOR, UNKNOWN_COLOR, VOID_COLORS
from driftproof.report.scenes.contact_sheet import (
    Swatch,
    TitledImage,
    add_titles,
    make_grid,
    make_legend,
    save_animation,
    save_image,
)
from driftproof.report.scenes.panels import ALARM_COLOR, TITLES, FramePanel, make_panels
from driftproof.report.scenes.pixel_stats import PixelStats, count_pixels

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["write_scenes"]

_PAGE_WIDTH, _SHEET_WIDTH = 480, 320


@dataclass(frozen=True)
class _FrameEntry:
    """A frame on the page: its number, statistics, image file, and panels as data URLs."""

    index: int
    sentences: Sequence[str]
    skipped: str | None
    strip: str
    pictures: Mapping[str, str]
    small: "Sequence[tuple[str, Image]]"


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
    for module in ("PIL", "jinja2"):
        require(module, "Drawing scenes", "'driftproof[data,report]'")
    (out / "frames").mkdir(parents=True, exist_ok=True)
    entries, total, has_rejected = list[_FrameEntry](), PixelStats(), True
    for frame in frames:
        stats, has_rejected = count_pixels(frame), frame.rejected is not None
        total += stats
        entries.append(_make_entry(frame, make_panels(frame, palette), stats, out))
    if not entries:
        raise InputError("Expected at least one frame to draw, but got none.")
    rows = [add_titles(entry.small, f"{entry.index}: ") for entry in entries]
    colors = ("Colors", make_legend(_swatches(palette, entries[0].pictures), entries[0].small[0][1].size))
    save_image(make_grid([*rows, [colors]]), out / "contact-sheet.png")
    sheets = [_wrap_images([*row, colors], 3) for row in rows]
    save_animation(sheets, out / "scenes.webp")
    still = _data_url(sheets[0], "JPEG")
    page = _render_page(
        title=title,
        facts=facts,
        entries=entries,
        sentences=total.sentences(has_rejected=has_rejected),
        palette=palette,
        animation=f"data:image/webp;base64,{_base64((out / 'scenes.webp').read_bytes())}",
        still=still,
        size=sheets[0].size,
    )
    with atomic_write(out / "index.html") as unfinished:
        unfinished.write_text(page, encoding="utf-8")
    return out / "index.html"


def _swatches(palette: Sequence[SceneClass], kinds: Container[str]) -> list[Swatch]:
    """The legend of panels of these kinds."""
    swatches = [(each.name, each.color) for each in palette]
    if "rejected" in kinds:
        swatches.append(("rejected", REJECTED_COLOR))
    if "truth" in kinds:
        swatches += [("unknown class", UNKNOWN_COLOR), ("not labeled", VOID_COLORS[0])]
    return swatches


def _wrap_images(images: Sequence[TitledImage], columns: int) -> "Image":
    return make_grid([images[start : start + columns] for start in range(0, len(images), columns)])


def _make_entry(frame: FrameResult, panels: Sequence[FramePanel], stats: PixelStats, out: Path) -> _FrameEntry:
    name = f"frames/{frame.index + 1:04}.png"
    save_image(make_grid([add_titles([(panel.kind, panel.image) for panel in panels])]), out / name)
    pictures = {
        panel.kind: _data_url(panel.scaled(_PAGE_WIDTH), "JPEG" if panel.is_photo else "PNG") for panel in panels
    }
    small = [(panel.kind, panel.scaled(_SHEET_WIDTH)) for panel in panels]
    sentences = stats.sentences(has_rejected=frame.rejected is not None)
    return _FrameEntry(frame.index + 1, sentences, frame.skipped, name, pictures, small)


def _data_url(image: "Image", kind: str) -> str:
    content = io.BytesIO()
    image.save(content, format=kind, **({"quality": 82} if kind == "JPEG" else {"optimize": True}))
    return f"data:image/{kind.lower()};base64,{_base64(content.getvalue())}"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _render_page(**content: object) -> str:
    import jinja2

    files = resources.files("driftproof.report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(files.joinpath("scenes/page.html").read_text(encoding="utf-8"))
    styles = [files.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "scenes/scenes.css")]
    colors = {
        "rejected": _css(REJECTED_COLOR),
        "unknown": _css(UNKNOWN_COLOR),
        "alarm": _css(ALARM_COLOR),
        "void": [_css(color) for color in VOID_COLORS],
    }
    text: str = template.render(style="\n".join(styles), titles=TITLES, colors=colors, css=_css, **content)
    return text


def _css(color: tuple[int, int, int]) -> str:
    return f"rgb{color}"
