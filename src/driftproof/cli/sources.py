"""Where the images of `driftproof adapt` come from: a fixed set, or images that arrive."""

import glob
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftproof.cli.arrivals import Arrivals, LineArrivals, SequentialArrivals
from driftproof.cli.folder_arrivals import FolderArrivals
from driftproof.cli.images import find_images
from driftproof.cli.video import is_video
from driftproof.errors import ConfigurationError

if TYPE_CHECKING:
    from driftproof.cli.live_batches import LiveBatches
    from driftproof.cli.prediction_rows import RowFile
    from driftproof.cli.run_folder import RunFolder
    from driftproof.cli.snapshots import Checkpoint
    from driftproof.cli.stop_signals import StopRequest
    from driftproof.data.images import Size

__all__ = ["BatchSeconds", "Follow", "Idle", "Settle", "StreamOptions", "open_arrivals", "open_live_batches"]

_PANEL = "Images that arrive"
_STDIN = Path("-")

Follow = Annotated[
    bool,
    typer.Option(
        "--follow", help="Wait for new images in the folders, until --idle or a signal.", rich_help_panel=_PANEL
    ),
]
BatchSeconds = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="Predict what arrived within so many seconds, without waiting for --batch-size images.",
        rich_help_panel=_PANEL,
    ),
]
Idle = Annotated[
    float | None,
    typer.Option(min=0.0, help="End after so many seconds without a new image.", rich_help_panel=_PANEL),
]
Settle = Annotated[
    float,
    typer.Option(
        min=0.0,
        help="A followed file counts as fully written after so many seconds without a change.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True)
class StreamOptions:
    """Options for images that arrive.

    Attributes:
        follow: Whether to wait for new images in folders.
        batch_seconds: How long a batch waits for more images; None waits for all.
        idle: End after so many seconds without an image; None waits for a signal.
        settle: Seconds without a change after which a file counts as fully written.
    """

    follow: bool = False
    batch_seconds: float | None = None
    idle: float | None = None
    settle: float = 1.0


def open_arrivals(images: Sequence[Path], options: StreamOptions, fixed_only: Sequence[str] = ()) -> Arrivals | None:
    """Return the images that arrive; None for a fixed set of files.

    Args:
        images: The arguments: files, folders and patterns, or `-` for names on stdin.
        options: The options.
        fixed_only: Given options that need a fixed set.
    """
    arrivals = _open(images, options)
    if arrivals is not None and fixed_only:
        raise ConfigurationError(
            f"Expected {fixed_only[0]} only with a fixed set of image files, but these images arrive one after the "
            "other. Leave it out."
        )
    if arrivals is None or arrivals.repeats:
        waiting = {"--batch-seconds": options.batch_seconds, "--idle": options.idle}
        for name, value in waiting.items():
            if value is not None:
                raise ConfigurationError(
                    f"Expected {name} only with images that arrive, but all are there. Add `--follow`, or name the "
                    "files on stdin and pass `-`."
                )
    return arrivals


def _open(images: Sequence[Path], options: StreamOptions) -> Arrivals | None:
    if options.follow:
        if _STDIN in images:
            raise ConfigurationError("Expected `--follow` with folders, but got `-`. Names on stdin need no option.")
        return FolderArrivals(images, options.settle)
    if _STDIN in images:
        if len(images) > 1:
            raise ConfigurationError("Expected `-` alone, but got more images. Write their names to stdin.")
        return LineArrivals()
    matches = (match for image in images if glob.has_magic(str(image)) for match in glob.iglob(str(image)))  # noqa: PTH207
    if any(map(is_video, (*images, *map(Path, matches)))):
        return SequentialArrivals(find_images(images))
    return None


def open_live_batches(
    arrivals: Arrivals,
    options: StreamOptions,
    *,
    batch_size: int,
    size: "Size",
    stop: "StopRequest",
    folder: "RunFolder",
    rows: "RowFile",
    checkpoint: "Checkpoint | None",
) -> "LiveBatches":
    """Return the batches of images that arrive, after those of a checkpoint."""
    from driftproof.cli.live_batches import LiveBatches

    batches = LiveBatches(
        arrivals,
        batch_size=batch_size,
        batch_seconds=math.inf if options.batch_seconds is None else options.batch_seconds,
        idle=math.inf if options.idle is None else options.idle,
        size=size,
        stop=stop,
        journal=None if arrivals.repeats else folder.journal,
    )
    if checkpoint is not None:
        batches.resume(checkpoint, _read_names(rows))
    return batches


def _read_names(rows: "RowFile") -> Iterator[str]:
    from driftproof.cli.prediction_rows import read_rows

    place = list(rows.columns).index("path")
    if rows.length:
        yield from (str(row[place]) for row in read_rows(rows.path, rows.columns, rows.length))
