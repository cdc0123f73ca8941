"""ResNet-50 for large and for small images."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from driftproof.errors import ConfigurationError
from driftproof.models.normalized_model import ChannelValues, NormalizedModel
from driftproof.models.residual import Bottleneck, make_stage

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "ResNet50"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class ResNet50(NormalizedModel):
    """ResNet-50 v1.5: the 3×3 convolution of a bottleneck has the stride.

    The parameters are named as in torchvision's checkpoints. The network takes images in [0, 1] and normalizes them
    itself.

    Args:
        classes: Number of classes.
        stem: "imagenet": a 7×7 convolution of stride 2 and max pooling; "cifar", for 32×32 images: one 3×3 convolution
            of stride 1.
        mean: Mean of the input normalization; one number, or one per channel.
        std: Standard deviation of the input normalization, likewise.

    Examples:
        >>> import torch
        >>> with torch.device("meta"):
        ...     model = ResNet50(200)
        >>> sum(parameter.numel() for parameter in model.parameters())
        23917832

    Reference:
        He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016.
    """

    def __init__(
        self,
        classes: int = 1000,
        *,
        stem: Literal["imagenet", "cifar"] = "imagenet",
        mean: ChannelValues = IMAGENET_MEAN,
        std: ChannelValues = IMAGENET_STD,
    ) -> None:
        super().__init__(classes, mean=mean, std=std)
        if stem not in ("imagenet", "cifar"):
            raise ConfigurationError(f"Expected `stem` to be 'imagenet' or 'cifar', but got {stem!r}.")
        large = stem == "imagenet"
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False) if large else nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        self.layer1 = make_stage(Bottleneck, 64, 64, blocks=3, stride=1)
        self.layer2 = make_stage(Bottleneck, 256, 128, blocks=4, stride=2)
        self.layer3 = make_stage(Bottleneck, 512, 256, blocks=6, stride=2)
        self.layer4 = make_stage(Bottleneck, 1024, 512, blocks=3, stride=2)
        self.fc = nn.Linear(512 * Bottleneck.expansion, classes)
        self._initialize_convolutions()

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, (N, classes), for images of shape (N, 3, H, W)."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(self.normalize(images)))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]
