"""Folders of unlabeled frames."""

from pathlib import Path

from driftproof.data.folder import image_files
from driftproof.data.scenes.scenes import Scene, Scenes
from driftproof.data.scenes.sizes import FitHeight
from driftproof.errors import InputError

__all__ = ["frames"]


def frames(folder: Path, *, size: FitHeight | None = None) -> Scenes:
    """Open every image below a folder as an unlabeled frame, in sorted order.

    Args:
        folder: The folder.
        size: Size of the frames; None keeps the stored size.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"Expected {folder} to be a folder of frames, but it does not exist.")
    return Scenes(folder.resolve().name, tuple(Scene(path) for path in image_files(folder)), size=size)
