"""The networks by name, with what their public weights expect."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from driftproof.models.deeplab import DeepLabV3Plus
from driftproof.models.normalized import Channels
from driftproof.models.resnet import IMAGENET_MEAN, IMAGENET_STD, ResNet50
from driftproof.models.resnext import ResNeXt29
from driftproof.models.wide_resnet import WideResNet
from driftproof.validation import check_choice

__all__ = ["MODELS", "Entry", "build"]


@dataclass(frozen=True)
class Entry:
    """A network, and what is known of its public weights.

    Attributes:
        name: What `build` calls it.
        build: Makes it, given `classes`, `mean` and `std`.
        input_size: Height and width of the images it is meant for, or of the crops it is trained on.
        classes: Number of classes of the public weights.
        mean: Subtracted from the images.
        std: Divides the images then.
        source: Where the public weights come from.
        licence: Under which they are published.
    """

    name: str
    build: Callable[..., nn.Module]
    input_size: int
    classes: int
    mean: Channels
    std: Channels
    source: str
    licence: str


_ROBUSTBENCH = "RobustBench, https://github.com/RobustBench/robustbench"
_TORCHVISION = "torchvision, https://download.pytorch.org/models/resnet50-0676ba61.pth (IMAGENET1K_V1)"
_ROBUSTNET = "RobustNet, https://github.com/shachoi/RobustNet (baseline, DeepR50V3PlusD)"
_UNTRAINED = ("none are public: train it", "does not apply")

MODELS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "wrn40_2", partial(WideResNet, 40, 2), 32, 10, 0.5, 0.5,
            f"{_ROBUSTBENCH}: Hendrycks2020AugMix_WRN, corruptions, for cifar10 and cifar100", "MIT",
        ),
        Entry(
            "wrn28_10", partial(WideResNet, 28, 10), 32, 10, 0.0, 1.0,
            f"{_ROBUSTBENCH}: Standard, for cifar10", "MIT",
        ),
        Entry("resnet50", ResNet50, 224, 1000, IMAGENET_MEAN, IMAGENET_STD, _TORCHVISION, "BSD-3-Clause"),
        Entry("resnet50_cifar", partial(ResNet50, stem="cifar"), 32, 10, 0.5, 0.5, *_UNTRAINED),
        Entry(
            "resnext29", ResNeXt29, 32, 100, 0.5, 0.5,
            f"{_ROBUSTBENCH}: Hendrycks2020AugMix_ResNeXt, corruptions, for cifar10 and cifar100", "MIT",
        ),
        Entry(
            "deeplabv3plus_resnet50", DeepLabV3Plus, 768, 19, IMAGENET_MEAN, IMAGENET_STD, _ROBUSTNET, "BSD-3-Clause",
        ),
        Entry(
            "deeplabv3plus_resnet18", partial(DeepLabV3Plus, depth=18), 768, 19, IMAGENET_MEAN, IMAGENET_STD,
            *_UNTRAINED,
        ),
        Entry(
            "deeplabv3plus_small", partial(DeepLabV3Plus, depth=18, width=16), 240, 19, IMAGENET_MEAN, IMAGENET_STD,
            *_UNTRAINED,
        ),
        Entry("wrn10_1", partial(WideResNet, 10, 1), 32, 10, 0.5, 0.5, *_UNTRAINED),
        Entry("wrn16_1", partial(WideResNet, 16, 1), 32, 10, 0.5, 0.5, *_UNTRAINED),
    )
}  # fmt: skip


def build(name: str, *, classes: int | None = None, **overrides: Any) -> nn.Module:  # noqa: ANN401  # relayed
    """A fresh network of the catalogue.

    Args:
        name: One of `MODELS`.
        classes: Number of classes; those of the public weights if None.
        **overrides: Anything else the network takes, such as `mean` and `std`.

    Examples:
        >>> build("wrn10_1", classes=6).fc
        Linear(in_features=64, out_features=6, bias=True)
    """
    entry = MODELS[check_choice("model", name, MODELS)]
    settings = {"mean": entry.mean, "std": entry.std} | overrides
    return entry.build(classes=entry.classes if classes is None else classes, **settings)
