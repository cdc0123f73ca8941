"""ImageNet's validation images, ImageNet-C and ImageNet-O."""

from pathlib import Path

from driftproof.corruptions import check_corruption
from driftproof.data.folder import class_folders, image_files, locate
from driftproof.data.images import FileSet, ImageSet, ResizeShorterSide, Size
from driftproof.errors import InputError

__all__ = ["imagenet", "imagenet_c", "imagenet_o"]

_DEFAULT_SIZE = ResizeShorterSide(256, crop=224)


def imagenet(root: Path, *, size: Size = _DEFAULT_SIZE) -> ImageSet:
    """Read ImageNet's validation images from `val/{class}` or `imagenet/val/{class}`.

    Labels are the indices of the sorted WordNet identifiers.

    Args:
        root: Folder that holds them.
        size: As in `FileSet`.
    """
    part = locate(root, "imagenet/val", "val", dataset="imagenet")
    if any(path.parent == part for path in part.glob("*.JPEG")):
        raise InputError(
            f"Expected one folder per class in {part}, but the images are not sorted into folders. "
            "`driftproof data list` says how to sort them."
        )
    return class_folders(part, size=size, name="imagenet")


def imagenet_c(root: Path, corruption: str, severity: int, *, size: Size = None) -> ImageSet:
    """Read ImageNet-C from `ImageNet-C/{corruption}/{severity}/{class}`, stored as 224×224.

    The images are stored class by class; shuffle them before adapting.

    Args:
        root: Folder that holds `ImageNet-C` or `imagenet-c`.
        corruption: One of `CORRUPTIONS` or `HELD_OUT`.
        severity: From 1 to 5.
        size: As in `FileSet`.
    """
    check_corruption(corruption, severity)
    home = locate(root, "ImageNet-C", "imagenet-c", dataset="imagenet-c")
    part = locate(home, f"{corruption}/{severity}", dataset="imagenet-c")
    return class_folders(part, size=size, name=f"imagenet-c/{corruption}/{severity}")


def imagenet_o(root: Path, *, size: Size = _DEFAULT_SIZE) -> ImageSet:
    """Read ImageNet-O from `imagenet-o/{class}`.

    Its objects belong to none of ImageNet's 1000 classes, so all images are unlabeled.

    Args:
        root: Folder that holds `imagenet-o`.
        size: As in `FileSet`; (64, 64) matches Tiny-ImageNet.
    """
    home = locate(root, "imagenet-o", dataset="imagenet-o")
    return FileSet(image_files(home), size=size, name="imagenet-o")
