"""Figures: one drawing for wide pages and one for phones, the same bytes for the same numbers."""

import io
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
"""Text, lesser text, lines in the background, and the background; a page puts its own colors in their place."""


@dataclass(frozen=True)
class Layout:
    """For which kind of page a figure is drawn; lengths are in CSS pixels.

    Attributes:
        name: Of the kind.
        width: Of the figure.
        text: Height of the letters.
        panels: How many go side by side.
    """

    name: str
    width: int
    text: float
    panels: int


WIDE = Layout("wide", width=960, text=13.0, panels=2)
NARROW = Layout("narrow", width=350, text=11.5, panels=1)


@dataclass(frozen=True)
class ResponsiveFigure:
    """A figure, drawn for wide pages and for narrow ones.

    Attributes:
        name: Of its files.
        title: Where the numbers are from.
        caption: What one sees.
        description: The same in words, for those who do not see it.
        wide: An SVG document.
        narrow: Another.
        png: The wide one in pixels.
    """

    name: str
    title: str
    caption: str
    description: str
    wide: str
    narrow: str
    png: bytes

    def inline(self, layout: Layout) -> str:
        """The figure as a part of a page: no two on a page share an id, and colors are the page's own."""
        drawn = {WIDE: self.wide, NARROW: self.narrow}[layout]
        text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", drawn[drawn.index("<svg") :])
        text = re.sub(r'(<svg) width="[^"]*" height="[^"]*"', r"\1", text, count=1)
        text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}-{layout.name}-", text)
        for color, variable in {INK: "--ink", QUIET: "--quiet", RULE: "--rule", PAPER: "--paper"}.items():
            text = text.replace(color, f"var({variable})")
        return text

    def save(self, folder: Path) -> None:
        """Write the wide figure into a folder, as SVG and as PNG."""
        for suffix, content in {".svg": self.wide.encode(), ".png": self.png}.items():
            with atomic_write(folder / f"{self.name}{suffix}") as unfinished:
                unfinished.write_bytes(content)


def make_figure(name: str, title: str, caption: str, numbers: str, draw: Callable[[Layout], "Figure"]) -> ResponsiveFigure:
    """A figure, drawn.

    Args:
        name: Of its files.
        title: Where the numbers are from.
        caption: What one sees.
        numbers: The numbers that matter, in words.
        draw: Makes the figure, given a layout.
    """
    with _figure_style(name):
        wide, narrow, pixels = draw(WIDE), draw(NARROW), io.BytesIO()
        wide.savefig(pixels, format="png", dpi=144, metadata={"Software": None})
        description = f"{title}. {caption} {numbers}."
        return ResponsiveFigure(name, title, caption, description, _render_svg(wide), _render_svg(narrow), pixels.getvalue())


def _render_svg(figure: "Figure") -> str:
    document = io.StringIO()
    figure.savefig(document, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return document.getvalue()


def import_matplotlib(module: str) -> Any:  # noqa: ANN401  # the modules of a package that may be missing
    """A module of the plotting package."""
    return require(f"matplotlib.{module}", "ResponsiveFigure figures", "'driftproof[report]'")


def new_figure(layout: Layout, height: float) -> "Figure":
    """An empty figure; one unit of text size is one CSS pixel in it."""
    figure: Figure = import_matplotlib("figure").Figure(figsize=(layout.width / 72, height / 72), dpi=72)
    return figure


def max_text_width(names: Iterable[str], size: float) -> float:
    """The length of the longest of some names. Few fonts run as wide as the one it is measured in.

    Args:
        names: At least one.
        size: Height of the letters.
    """
    font = import_matplotlib("font_manager").FontProperties(family="DejaVu Sans", size=size)
    measure = import_matplotlib("textpath").text_to_path.get_text_width_height_descent
    return max(float(measure(name, font, ismath=False)[0]) for name in names)


def ellipsize(name: str, size: float, room: float) -> str:
    """A name without its middle where it would not fit: names that begin alike differ in the end.

    The mark of an early round, such as ` @2`, does not count as the end.

    Args:
        name: As it is.
        size: Height of the letters.
        room: The length there is.
    """
    if max_text_width([name], size) <= room:
        return name
    mark = found[0] if (found := re.search(r" @\d+$", name)) else ""
    whole = name.removesuffix(mark)
    return next(
        short
        for kept in range(len(whole) - 1, -1, -1)
        if max_text_width([short := f"{_cut_middle(whole, kept)}{mark}"], size) <= room or not kept
    )


def _cut_middle(name: str, kept: int) -> str:
    return f"{name[: kept - kept // 2]}…{name[len(name) - kept // 2 :]}"


@contextmanager
def _figure_style(salt: str) -> Iterator[None]:
    matplotlib = require("matplotlib", "ResponsiveFigure figures", "'driftproof[report]'")
    chosen = {
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
        matplotlib.rcParams.update(chosen)
        yield
