"""Readers for data sets in their official formats, and the downloader.

Every reader is called as `reader(root, …)`, where `root` is the folder the archives were unpacked in. It returns an
`ImageSet`, or `Scenes` for driving scenes, which have a class for every pixel. Images keep their stored order;
files are sorted by name. Streams do the shuffling.
"""

from driftproof.data.auto import open_dataset
from driftproof.data.cifar import cifar10, cifar10_c, cifar100, cifar100_c
from driftproof.data.conversion import to_image_set
from driftproof.data.corrupted import Corrupted, cache_to_disk, stack_severities
from driftproof.data.corrupted_files import write_files
from driftproof.data.digits import digits, digits_unknown
from driftproof.data.download import FileCheck, fetch, verify
from driftproof.data.folder import array_folder, folder
from driftproof.data.imagenet import imagenet, imagenet_c, imagenet_o
from driftproof.data.images import ArraySet, FileSet, ImageSet, ResizeExact, ResizeShorterSide, Subset
from driftproof.data.labeled_batches import LabeledBatches
from driftproof.data.open_sets import imagenet_o_c, svhn_c
from driftproof.data.registry import DATASETS, DatasetInfo, RemoteFile, get_dataset_info
from driftproof.data.scenes import (
    UNKNOWN,
    VOID,
    FitHeight,
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
from driftproof.data.textures import textures
from driftproof.data.tiny_imagenet import tiny_imagenet, tiny_imagenet_c
from driftproof.data.unpacking import unpack

__all__ = [
    "DATASETS",
    "UNKNOWN",
    "VOID",
    "ArraySet",
    "Corrupted",
    "DatasetInfo",
    "FileCheck",
    "FileSet",
    "FitHeight",
    "ImageSet",
    "LabeledBatches",
    "RemoteFile",
    "ResizeExact",
    "ResizeShorterSide",
    "Scenes",
    "Subset",
    "array_folder",
    "bdd100k",
    "cache_to_disk",
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
    "get_dataset_info",
    "gtav",
    "imagenet",
    "imagenet_c",
    "imagenet_o",
    "imagenet_o_c",
    "mapillary",
    "open_dataset",
    "stack_severities",
    "svhn",
    "svhn_c",
    "synthia",
    "textures",
    "tiny_imagenet",
    "tiny_imagenet_c",
    "to_image_set",
    "unpack",
    "verify",
    "write_files",
]
