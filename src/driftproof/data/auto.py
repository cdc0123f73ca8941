"""`open_dataset`: detect a data set by its files."""

from collections.abc import Callable
from pathlib import Path

from driftproof.data.cifar import cifar10, cifar100
from driftproof.data.folder import array_folder, folder
from driftproof.data.images import ImageSet, Size
from driftproof.data.svhn import svhn
from driftproof.data.tiny_imagenet import tiny_imagenet
from driftproof.errors import InputError

__all__ = ["open_dataset"]

_LAYOUTS: dict[str, Callable[[Path], ImageSet]] = {
    "cifar-10-batches-py": cifar10,
    "cifar-100-python": cifar100,
    "test_32x32.mat": svhn,
    "tiny-imagenet-200": tiny_imagenet,
    "images.npy": array_folder,
}


def open_dataset(path: Path, *, size: Size = None) -> ImageSet:
    """Open an official data set, an array folder or any folder of images.

    Args:
        path: Folder that an official archive was unpacked in, the folder it contains, or a folder of images.
        size: As in `FileSet`, for folders of images.
    """
    path = Path(path)
    own = {path.absolute().name, path.resolve().name}
    found = [name for name in _LAYOUTS if (path / name).exists() or (name in own and path.exists())]
    if len(found) > 1:
        raise InputError(
            f"Expected one data set in {path}, but found {' and '.join(found)}. Pass the folder of one of them."
        )
    return _LAYOUTS[found[0]](path) if found else folder(path, size=size)
