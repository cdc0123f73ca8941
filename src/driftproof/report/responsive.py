"""Figures with a wide and a narrow version; equal numbers give equal bytes."""

import io
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftproof.files import atomic_write
from driftproof.optional import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "INK",
    "NARROW",
    "PAPER",
    "QUIET",
    "RULE",
    "WIDE",
    "Layout",
    "ResponsiveFigure",
    "import_matplotlib",
    "make_figure",
    "max_text_width",
    "new_figure",
]

INK, QUIET, RULE, PAPER = "#1d2126", "#5c6670", "#dfe3e8", "#fefefe"
"""Colors of text, secondary text, grid lines and background; a page replaces them with its own."""


@dataclass(frozen=True)
class Layout:
    """The kind of page a figure is drawn for; lengths are in CSS pixels.

    Attributes:
        name: Of the layout.
        width: Of the figure.
        text: Font size.
        panels: Number of panels in a row.
    """

    name: str
    width: int
    text: float
    panels: int


WIDE = Layout("wide", width=960, text=13.0, panels=2)
NARROW = Layout("narrow", width=350, text=11.5, panels=1)


@dataclass(frozen=True)
class ResponsiveFigure:
    """A figure in a wide and a narrow version.

    Attributes:
        name: Of its files.
        title: The source of the numbers.
        caption: What the figure shows.
        description: Title, caption and numbers as text, for screen readers.
        wide: The SVG document for wide pages.
        narrow: The SVG document for narrow pages.
        png: The wide version as PNG.
    """

    name: str
    title: str
    caption: str
    description: str
    wide: str
    narrow: str
    png: bytes

    def inline(self, layout: Layout) -> str:
        """The SVG for embedding in a page, with unique ids and the page's colors."""
        document = {WIDE: self.wide, NARROW: self.narrow}[layout]
        text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", document[document.index("<svg") :])
        text = re.sub(r'(<svg) width="[^"]*" height="[^"]*"', r"\1", text, count=1)
        text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}-{layout.name}-", text)
        for color, variable in {INK: "--ink", QUIET: "--quiet", RULE: "--rule", PAPER: "--paper"}.items():
            text = text.replace(color, f"var({variable})")
        return text

    def save(self, folder: Path) -> None:
        """Write the wide version to a folder, as SVG and as PNG."""
        for suffix, content in {".svg": self.wide.encode(), ".png": self.png}.items():
            with atomic_write(folder / f"{self.name}{suffix}") as unfinished:
                unfinished.write_bytes(content)


def make_figure(
    name: str, title: str, caption: str, numbers: str, draw: Callable[[Layout], "Figure"]
) -> ResponsiveFigure:
    """Draw a figure in both layouts.

    Args:
        name: Of its files.
        title: The source of the numbers.
        caption: What the figure shows.
        numbers: The most important numbers, as text.
        draw: Draws the figure for a layout.
    """
    with _figure_style(name):
        wide, narrow, pixels = draw(WIDE), draw(NARROW), io.BytesIO()
        wide.savefig(pixels, format="png", dpi=144, metadata={"Software": None})
        description = f"{title}. {caption} {numbers}."
        return ResponsiveFigure(
            name, title, caption, description, _render_svg(wide), _render_svg(narrow), pixels.getvalue()
        )


def _render_svg(figure: "Figure") -> str:
    document = io.StringIO()
    figure.savefig(document, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return document.getvalue()


def import_matplotlib(module: str) -> Any:  # noqa: ANN401  # a module of an optional package
    """Import a module of matplotlib, or raise an error that names the extra to install."""
    return require(f"matplotlib.{module}", "ResponsiveFigure figures", "'driftproof[report]'")


def new_figure(layout: Layout, height: float) -> "Figure":
    """Create an empty figure in which font sizes are CSS pixels."""
    figure: Figure = import_matplotlib("figure").Figure(figsize=(layout.width / 72, height / 72), dpi=72)
    return figure


def max_text_width(names: Iterable[str], size: float) -> float:
    """The width of the longest name, measured in DejaVu Sans, which is wider than most fonts.

    Args:
        names: At least one.
        size: Font size.
    """
    return max(_text_width(name, size) for name in names)


@lru_cache(maxsize=4096)
def _text_width(name: str, size: float) -> float:
    font = import_matplotlib("font_manager").FontProperties(family="DejaVu Sans", size=size)
    measure = import_matplotlib("textpath").text_to_path.get_text_width_height_descent
    return float(measure(name, font, ismath=False)[0])


def ellipsize(name: str, size: float, room: float) -> str:
    """Replace the middle of a name by an ellipsis if it does not fit.

    The end is kept because names often differ only there. A round suffix such as ` @2` is always kept.

    Args:
        name: The full name.
        size: Font size.
        room: The available width.
    """
    if max_text_width([name], size) <= room:
        return name
    suffix = found[0] if (found := re.search(r" @\d+$", name)) else ""
    stem = name.removesuffix(suffix)
    return next(
        short
        for kept in range(len(stem) - 1, -1, -1)
        if max_text_width([short := f"{_cut_middle(stem, kept)}{suffix}"], size) <= room or not kept
    )


def _cut_middle(name: str, kept: int) -> str:
    return f"{name[: kept - kept // 2]}…{name[len(name) - kept // 2 :]}"


@contextmanager
def _figure_style(salt: str) -> Iterator[None]:
    matplotlib = require("matplotlib", "ResponsiveFigure figures", "'driftproof[report]'")
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "text.parse_math": False,
        "axes.unicode_minus": True,
        "font.family": "DejaVu Sans",
        "axes.edgecolor": QUIET,
        "axes.labelcolor": QUIET,
        "xtick.color": QUIET,
        "ytick.color": QUIET,
        "text.color": INK,
        "figure.facecolor": PAPER,
        "axes.facecolor": "none",
    }
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(style)
        yield
