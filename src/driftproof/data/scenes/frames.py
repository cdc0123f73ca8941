"""Any folder of frames."""

from pathlib import Path

from driftproof.data.folder import image_files
from driftproof.data.scenes.scenes import Scene, Scenes
from driftproof.data.scenes.sizes import FitHeight
from driftproof.errors import InputError

__all__ = ["frames"]


def frames(folder: Path, *, size: FitHeight | None = None) -> Scenes:
    """Every image below a folder, in sorted order, without labels.

    Args:
        folder: The folder.
        size: What to bring every frame to.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"Expected {folder} to be a folder of frames, but there is no such folder.")
    return Scenes(folder.resolve().name, tuple(Scene(path) for path in image_files(folder)), size=size)
