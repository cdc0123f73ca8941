"""Data sets in their official formats, and where to get them.

Every reader is called as `reader(root, …) -> ImageSet`, where `root` is the folder the archives were unpacked in; those
of driving scenes, which have a class for every pixel, as `reader(root, …) -> Scenes`. Images keep the order they are
stored in, files being sorted by name; shuffling is a stream's affair.
"""

from driftproof.data.catalogue import SOURCES, RemoteFile, Source, source
from driftproof.data.cifar import cifar10, cifar10_c, cifar100, cifar100_c
from driftproof.data.corrupted import Corrupted, kept, stacked
from driftproof.data.corrupted_files import write_files
from driftproof.data.digits import digits, digits_unknown
from driftproof.data.download import Finding, fetch, unpack, verify
from driftproof.data.folder import array_folder, folder
from driftproof.data.imagenet import imagenet, imagenet_c, imagenet_o
from driftproof.data.images import ArraySet, FileSet, ImageSet, ShorterSide, Subset
from driftproof.data.open_sets import imagenet_o_c, svhn_c
from driftproof.data.opened import opened
from driftproof.data.scenes import (
    UNKNOWN,
    VOID,
    Height,
    Scenes,
    bdd100k,
    camvid,
    cityscapes,
    frames,
    gtav,
    mapillary,
    synthia,
)
from driftproof.data.svhn import svhn
from driftproof.data.tiny_imagenet import tiny_imagenet, tiny_imagenet_c

__all__ = [
    "SOURCES",
    "UNKNOWN",
    "VOID",
    "ArraySet",
    "Corrupted",
    "FileSet",
    "Finding",
    "Height",
    "ImageSet",
    "RemoteFile",
    "Scenes",
    "ShorterSide",
    "Source",
    "Subset",
    "array_folder",
    "bdd100k",
    "camvid",
    "cifar10",
    "cifar10_c",
    "cifar100",
    "cifar100_c",
    "cityscapes",
    "digits",
    "digits_unknown",
    "fetch",
    "folder",
    "frames",
    "gtav",
    "imagenet",
    "imagenet_c",
    "imagenet_o",
    "imagenet_o_c",
    "kept",
    "mapillary",
    "opened",
    "source",
    "stacked",
    "svhn",
    "svhn_c",
    "synthia",
    "tiny_imagenet",
    "tiny_imagenet_c",
    "unpack",
    "verify",
    "write_files",
]
