"""ImageNet's validation images, ImageNet-C and ImageNet-O."""

from pathlib import Path

from driftproof.corruptions import check_corruption
from driftproof.data.folder import class_folders, image_files, locate
from driftproof.data.images import FileSet, ImageSet, ResizeShorterSide, Size
from driftproof.errors import InputError

__all__ = ["imagenet", "imagenet_c", "imagenet_o"]

_DEFAULT_SIZE = ResizeShorterSide(256, crop=224)


def imagenet(root: Path, *, size: Size = _DEFAULT_SIZE) -> ImageSet:
    """ImageNet's validation images from `val/{class}`, or `imagenet/val/{class}`.

    Labels count the WordNet identifiers in sorted order.

    Args:
        root: The folder that holds them.
        size: As in `FileSet`.
    """
    part = locate(root, "imagenet/val", "val", source="imagenet")
    if any(path.parent == part for path in part.glob("*.JPEG")):
        raise InputError(
            f"Expected the images in {part} to be sorted into one folder per class, but they lie side by side. "
            "`driftproof data list` says how to sort them."
        )
    return class_folders(part, size=size, name="imagenet")


def imagenet_c(root: Path, corruption: str, severity: int, *, size: Size = None) -> ImageSet:
    """ImageNet-C from `ImageNet-C/{corruption}/{severity}/{class}`, 224×224 as stored.

    The images are stored class by class: shuffle them before adapting to them.

    Args:
        root: The folder that holds `ImageNet-C` or `imagenet-c`.
        corruption: One of `CORRUPTIONS`.
        severity: 1 to 5.
        size: As in `FileSet`.
    """
    check_corruption(corruption, severity)
    home = locate(root, "ImageNet-C", "imagenet-c", source="imagenet-c")
    part = locate(home, f"{corruption}/{severity}", source="imagenet-c")
    return class_folders(part, size=size, name=f"imagenet-c/{corruption}/{severity}")


def imagenet_o(root: Path, *, size: Size = _DEFAULT_SIZE) -> ImageSet:
    """ImageNet-O from `imagenet-o/{class}`: objects of none of ImageNet's thousand classes, so all unlabelled.

    Args:
        root: The folder that holds `imagenet-o`.
        size: As in `FileSet`; (64, 64) to go with Tiny-ImageNet.
    """
    home = locate(root, "imagenet-o", source="imagenet-o")
    return FileSet(image_files(home), size=size, name="imagenet-o")
