"""Record `driftproof demo` in a terminal and write it as an animated SVG.

python benchmarks/animation.py [--out docs/images/demo.svg] [-- COMMAND …]

The command runs in a pseudo-terminal. Time runs faster, nothing else is changed. Viewers who ask for less motion see
the last screen.
"""

import argparse
import os
import pty
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import pyte

from driftproof.files import atomic_write

COLUMNS, ROWS = 92, 34
CELL, LINE, MARGIN = 7.83, 17, 14
LENGTH, HOLD, TYPING, APART = 12.0, 8.0, 0.06, 0.15
"""Seconds: how long the command seems to take, how long its last screen stays, a typed letter, and between screens."""

COLORS = {
    "default": "#d6dde4", "black": "#5c6773", "red": "#ff7a6b", "green": "#8fd16f", "brown": "#f0c75e",
    "yellow": "#f0c75e", "blue": "#6cb6ff", "magenta": "#d79bf0", "cyan": "#67d4d4", "white": "#f4f7fa",
}  # fmt: skip
BACKGROUND = "#15202b"


class Frame(NamedTuple):
    """A screen, and when it appeared, in seconds since the start."""

    at: float
    lines: tuple[str, ...]


def record(command: Sequence[str]) -> Iterator[tuple[float, bytes]]:
    """Run a command in a pseudo-terminal, and yield what it writes and when."""
    lead, follow = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
    started = time.monotonic()
    with subprocess.Popen(command, stdin=follow, stdout=follow, stderr=follow, env=environment) as process:
        os.close(follow)
        while True:
            try:
                written = os.read(lead, 65536)
            except OSError:  # Linux says so when the other side is closed
                break
            if not written:
                break
            yield time.monotonic() - started, written
        if process.wait():
            sys.exit(f"Expected {shlex.join(command)} to succeed, but it ended with {process.returncode}.")


def draw_screens(written: Iterable[tuple[float, bytes]], prompt: str) -> list[Frame]:
    """Return what a terminal shows after each piece, after a prompt that is typed letter by letter."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream, typed, shown = pyte.ByteStream(screen), [], []
    for place, letter in enumerate(["$ ", *prompt, "\r\n"]):
        stream.feed(letter.encode())
        typed.append(Frame(place * TYPING, _draw_lines(screen)))
    for at, piece in written:
        stream.feed(piece)
        shown.append(Frame(at, _draw_lines(screen)))
    faster = min(1.0, LENGTH / shown[-1].at)
    return typed + thin([Frame(typed[-1].at + faster * at, lines) for at, lines in shown])


def _draw_lines(screen: Any) -> tuple[str, ...]:  # noqa: ANN401  # pyte has no types
    """Return each line of a terminal as SVG text, in runs of one style."""
    lines = []
    for row in range(screen.lines):
        runs: list[tuple[int, str, str]] = []
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            style = f"{_color(cell.fg)}{' bold' * cell.bold}"
            if runs and runs[-1][1] == style:
                runs[-1] = runs[-1][0], style, runs[-1][2] + cell.data
            else:
                runs.append((column, style, cell.data))
        lines.append("".join(_draw_run(*run) for run in runs))
    return tuple(lines)


def _color(name: str) -> str:
    return COLORS.get(
        name.removeprefix("bright"), f"#{name}" if re.fullmatch("[0-9a-f]{6}", name) else COLORS["default"]
    )


def _draw_run(column: int, style: str, text: str) -> str:
    column += len(text) - len(text.lstrip(" "))
    text = text.strip(" ")
    if not text:
        return ""
    color, _, weight = style.partition(" ")
    place = f'x="{column * CELL:.1f}" textLength="{len(text) * CELL:.1f}"'
    bold = f' font-weight="{weight}"' if weight else ""
    return f'<text {place} fill="{color}"{bold}>{escape(text)}</text>'


def write_animation(frames: Sequence[Frame], path: Path, *, title: str) -> None:
    """Write frames side by side, and move them past the window one after the other."""
    width, height = COLUMNS * CELL + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
    duration = frames[-1].at + HOLD
    known: dict[str, str] = {}
    strips = []
    for index, frame in enumerate(frames):
        used = []
        for row, line in enumerate(frame.lines):
            if line:
                name = known.setdefault(line, f"l{len(known)}")
                used.append(f'<use href="#{name}" y="{(row + 1) * LINE - 4}"/>')
        strips.append(f'<g transform="translate({index * width:.1f})">{"".join(used)}</g>')
    moves = "".join(
        f"{100 * frame.at / duration:.3f}%{{transform:translateX({-index * width:.1f}px)}}"
        for index, frame in enumerate(frames)
    )
    last = -(len(frames) - 1) * width
    style = (
        "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
        f".f{{animation:f {duration:.2f}s step-end infinite}}@keyframes f{{{moves}}}"
        f"@media(prefers-reduced-motion:reduce){{.f{{animation:none;transform:translateX({last:.1f}px)}}}}"
    )
    symbols = "".join(f'<g id="{name}">{line}</g>' for line, name in known.items())
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.1f} {height}" '
        f'width="{width:.0f}" height="{height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title><style>{style}</style>"
        f'<defs>{symbols}</defs><rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>'
        f'<svg x="{MARGIN}" y="{MARGIN}" width="{COLUMNS * CELL:.1f}" height="{ROWS * LINE}">'
        f'<g class="f">{"".join(strips)}</g></svg></svg>\n'
    )
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def thin(frames: Sequence[Frame]) -> list[Frame]:
    """Return frames that differ and are far enough apart, and the last one."""
    kept: list[Frame] = []
    for frame in frames[:-1]:
        if not kept or (frame.at - kept[-1].at >= APART and frame.lines != kept[-1].lines):
            kept.append(frame)
    return [*kept, frames[-1]]


def main() -> None:
    """Record a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images/demo.svg"))
    parser.add_argument("command", nargs="*", default=["driftproof", "demo"])
    options = parser.parse_args()
    frames = draw_screens(record(options.command), shlex.join(options.command))
    write_animation(frames, options.out, title=f"{shlex.join(options.command)} in a terminal")
    print(f"{options.out}: {len(frames)} screens, {frames[-1].at:.0f} s, {options.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
