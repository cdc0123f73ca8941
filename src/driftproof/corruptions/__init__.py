"""The common corruptions of the benchmark data sets, as batched tensor operations for any device."""

from driftproof.corruptions.corrupt import CORRUPTIONS, HELD_OUT, check_corruption, corrupt
from driftproof.corruptions.digital import jpeg
from driftproof.corruptions.frost_photos import FrostPhotos, find_frost_photos, procedural_frost

__all__ = [
    "CORRUPTIONS",
    "HELD_OUT",
    "FrostPhotos",
    "check_corruption",
    "corrupt",
    "find_frost_photos",
    "jpeg",
    "procedural_frost",
]
