"""Read the frames of video files."""

from collections.abc import Iterator
from pathlib import Path

from driftproof.cli.frames import Frame, format_name
from driftproof.errors import InputError
from driftproof.optional import require

__all__ = ["is_video", "read_video"]

_SUFFIXES = {".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm"}
# Playlists, devices and network protocols would open other files.
_FORMATS = {"avi", "matroska", "mov", "mpeg"}


def is_video(path: Path) -> bool:
    """Whether the suffix of a file is a video's."""
    return path.suffix.lower() in _SUFFIXES


def read_video(path: Path) -> Iterator[Frame]:
    """Iterate over the frames of a video as `clip.mp4#0`, `clip.mp4#1`, …; a broken one ends with a frame that says so.

    Frames are converted to 8-bit RGB. Frames of more pixels than images may have are left undecoded.
    """
    from driftproof.data.open_image import check_pixels
    from driftproof.files import check_regular_file

    av = require("av", "Reading videos", "'driftproof[video]'")
    number = 0
    try:
        check_regular_file(path)
        with av.open(str(path), options={"protocol_whitelist": "file"}) as video:
            names = set(video.format.name.split(","))
            if not names & _FORMATS or not video.streams.video:
                raise InputError(f"Expected {path} to be a video, but it is {video.format.long_name}.")
            context = video.streams.video[0].codec_context
            check_pixels(path, context.height, context.width)
            for frame in video.decode(video=0):
                check_pixels(path, frame.height, frame.width)
                yield Frame(_format_name(path, number), path, frame.to_image())
                number += 1
        if not number:
            raise InputError(f"Expected frames in {path}, but it has none.")
    except InputError as error:
        yield Frame(_format_name(path, number), path, error=str(error))
    # The library below raises almost any exception for a damaged file.
    except Exception as error:
        message = f"Expected frame {number} of {path} to be readable, but it is not: {error}."
        yield Frame(_format_name(path, number), path, error=message)


def _format_name(path: Path, number: int) -> str:
    return format_name(f"{path}#{number}")
