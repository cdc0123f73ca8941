"""Networks by name, with the settings of their public weights."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from driftproof.models.deeplab import DeepLabV3Plus
from driftproof.models.normalized_model import ChannelValues
from driftproof.models.resnet import IMAGENET_MEAN, IMAGENET_STD, ResNet50
from driftproof.models.resnext import ResNeXt29
from driftproof.models.wide_resnet import WideResNet
from driftproof.validation import check_choice

__all__ = ["MODELS", "ModelInfo", "build_model"]


@dataclass(frozen=True)
class ModelInfo:
    """A network and the settings of its public weights.

    Attributes:
        name: Name for `build_model`.
        build: Constructor that takes `classes`, `mean` and `std`.
        input_size: Height and width of the input images, or of the training crops.
        classes: Number of classes of the public weights.
        mean: Mean of the input normalization.
        std: Standard deviation of the input normalization.
        source: Origin of the public weights.
        license: License of the public weights.
    """

    name: str
    build: Callable[..., nn.Module]
    input_size: int
    classes: int
    mean: ChannelValues
    std: ChannelValues
    source: str
    license: str


_ROBUSTBENCH = "RobustBench, https://github.com/RobustBench/robustbench"
_TORCHVISION = "torchvision, https://download.pytorch.org/models/resnet50-0676ba61.pth (IMAGENET1K_V1)"
_ROBUSTNET = "RobustNet, https://github.com/shachoi/RobustNet (baseline, DeepR50V3PlusD)"
_UNTRAINED = ("none are public: train it", "does not apply")

MODELS: dict[str, ModelInfo] = {
    info.name: info
    for info in (
        ModelInfo(
            "wrn40_2", partial(WideResNet, 40, 2), 32, 10, 0.5, 0.5,
            f"{_ROBUSTBENCH}: Hendrycks2020AugMix_WRN, corruptions, for cifar10 and cifar100", "MIT",
        ),
        ModelInfo(
            "wrn28_10", partial(WideResNet, 28, 10), 32, 10, 0.0, 1.0,
            f"{_ROBUSTBENCH}: Standard, for cifar10", "MIT",
        ),
        ModelInfo("resnet50", ResNet50, 224, 1000, IMAGENET_MEAN, IMAGENET_STD, _TORCHVISION, "BSD-3-Clause"),
        ModelInfo("resnet50_cifar", partial(ResNet50, stem="cifar"), 32, 10, 0.5, 0.5, *_UNTRAINED),
        ModelInfo(
            "resnext29", ResNeXt29, 32, 100, 0.5, 0.5,
            f"{_ROBUSTBENCH}: Hendrycks2020AugMix_ResNeXt, corruptions, for cifar10 and cifar100", "MIT",
        ),
        ModelInfo(
            "deeplabv3plus_resnet50", DeepLabV3Plus, 768, 19, IMAGENET_MEAN, IMAGENET_STD, _ROBUSTNET, "BSD-3-Clause",
        ),
        ModelInfo(
            "deeplabv3plus_resnet18", partial(DeepLabV3Plus, depth=18), 768, 19, IMAGENET_MEAN, IMAGENET_STD,
            *_UNTRAINED,
        ),
        ModelInfo(
            "deeplabv3plus_small", partial(DeepLabV3Plus, depth=18, width=16), 240, 19, IMAGENET_MEAN, IMAGENET_STD,
            *_UNTRAINED,
        ),
        ModelInfo("wrn10_1", partial(WideResNet, 10, 1), 32, 10, 0.5, 0.5, *_UNTRAINED),
        ModelInfo("wrn16_1", partial(WideResNet, 16, 1), 32, 10, 0.5, 0.5, *_UNTRAINED),
    )
}  # fmt: skip


def build_model(name: str, *, classes: int | None = None, **overrides: Any) -> nn.Module:  # noqa: ANN401  # relayed
    """Build a network with random weights.

    Args:
        name: A name in `MODELS`.
        classes: Number of classes; None for that of the public weights.
        **overrides: Other arguments of the network, such as `mean` and `std`.

    Examples:
        >>> build_model("wrn10_1", classes=6).fc
        Linear(in_features=64, out_features=6, bias=True)
    """
    info = MODELS[check_choice("model", name, MODELS)]
    settings = {"mean": info.mean, "std": info.std} | overrides
    return info.build(classes=info.classes if classes is None else classes, **settings)
