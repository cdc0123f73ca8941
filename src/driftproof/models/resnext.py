"""ResNeXt-29 for small images."""

import torch.nn.functional as F
from torch import Tensor, nn

from driftproof.errors import ConfigurationError
from driftproof.models.normalized_model import ChannelValues, NormalizedModel

__all__ = ["ResNeXt29"]

_EXPANSION = 4


class ResNeXt29(NormalizedModel):
    """ResNeXt-29: a residual network of 29 layers with grouped 3×3 convolutions.

    The parameters are named as in the public AugMix and RobustBench checkpoints. The network takes
    images in [0, 1] and normalizes them itself.

    Args:
        classes: Number of classes.
        cardinality: Groups of each 3×3 convolution.
        base_width: Channels of a group in the first stage, doubled in each later stage.
        mean: Mean of the input normalization; one number, or one per channel.
        std: Standard deviation of the input normalization, likewise.

    Examples:
        >>> model = ResNeXt29(classes=100)
        >>> sum(parameter.numel() for parameter in model.parameters())
        6900132

    Reference:
        Xie, Girshick, Dollár, Tu and He, "Aggregated Residual Transformations for Deep Neural Networks", CVPR 2017.
    """

    def __init__(
        self,
        classes: int = 100,
        *,
        cardinality: int = 4,
        base_width: int = 32,
        mean: ChannelValues = 0.5,
        std: ChannelValues = 0.5,
    ) -> None:
        super().__init__(classes, mean=mean, std=std)
        if cardinality < 1 or base_width < 1:
            raise ConfigurationError(
                f"Expected `cardinality` and `base_width` of at least 1, but got {cardinality} and {base_width}."
            )
        inner = base_width * cardinality
        self.conv_1_3x3 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn_1 = nn.BatchNorm2d(64)
        self.stage_1 = _make_stage(64, inner, 64 * _EXPANSION, groups=cardinality, stride=1)
        self.stage_2 = _make_stage(64 * _EXPANSION, 2 * inner, 128 * _EXPANSION, groups=cardinality, stride=2)
        self.stage_3 = _make_stage(128 * _EXPANSION, 4 * inner, 256 * _EXPANSION, groups=cardinality, stride=2)
        self.classifier = nn.Linear(256 * _EXPANSION, classes)
        self._initialize_convolutions()

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, (N, classes), for images of shape (N, 3, H, W)."""
        x = F.relu(self.bn_1(self.conv_1_3x3(self.normalize(images))))
        x = self.stage_3(self.stage_2(self.stage_1(x)))
        return self.classifier(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


def _make_stage(channels_in: int, inner: int, channels: int, *, groups: int, stride: int) -> nn.Sequential:
    first = _Bottleneck(channels_in, inner, channels, groups, stride)
    return nn.Sequential(first, *(_Bottleneck(channels, inner, channels, groups, 1) for _ in range(2)))


class _Bottleneck(nn.Module):
    def __init__(self, channels_in: int, inner: int, channels: int, groups: int, stride: int) -> None:
        super().__init__()
        self.conv_reduce = nn.Conv2d(channels_in, inner, 1, bias=False)
        self.bn_reduce = nn.BatchNorm2d(inner)
        self.conv_conv = nn.Conv2d(inner, inner, 3, stride, padding=1, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(inner)
        self.conv_expand = nn.Conv2d(inner, channels, 1, bias=False)
        self.bn_expand = nn.BatchNorm2d(channels)
        self.downsample = None
        if channels_in != channels:
            shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn_reduce(self.conv_reduce(x)))
        y = F.relu(self.bn(self.conv_conv(y)))
        return F.relu(self.bn_expand(self.conv_expand(y)) + (x if self.downsample is None else self.downsample(x)))
