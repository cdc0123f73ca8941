"""Blocks of residual networks, with torchvision's names."""

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["BasicBlock", "Block", "Bottleneck", "make_stage"]


class BasicBlock(nn.Module):
    """Residual block of two 3×3 convolutions.

    Args:
        channels_in: Input channels.
        width: Inner and output channels.
        stride: Stride of the first convolution.
        dilation: Dilation of both convolutions.
    """

    expansion = 1

    def __init__(self, channels_in: int, width: int, stride: int, dilation: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, width, 3, stride, padding=dilation, dilation=dilation, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _make_shortcut(channels_in, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input plus the residual, after ReLU."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """Residual block of a 3×3 convolution between two 1×1 convolutions.

    Args:
        channels_in: Input channels.
        width: Inner channels; the output has four times as many.
        stride: Stride of the 3×3 convolution, as in ResNet v1.5.
        dilation: Dilation of the 3×3 convolution.
    """

    expansion = 4

    def __init__(self, channels_in: int, width: int, stride: int, dilation: int = 1) -> None:
        super().__init__()
        channels = width * self.expansion
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=dilation, dilation=dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.downsample = _make_shortcut(channels_in, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input plus the residual, after ReLU."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x)))


Block = type[BasicBlock] | type[Bottleneck]


def make_stage(
    block: Block, channels_in: int, width: int, *, blocks: int, stride: int, dilation: int = 1
) -> nn.Sequential:
    """Return a sequence of blocks; the first one has the stride.

    Examples:
        >>> import torch
        >>> make_stage(Bottleneck, 8, 4, blocks=2, stride=2)(torch.rand(1, 8, 6, 6)).shape
        torch.Size([1, 16, 3, 3])
    """
    first = block(channels_in, width, stride, dilation)
    more = (block(width * block.expansion, width, 1, dilation) for _ in range(blocks - 1))
    return nn.Sequential(first, *more)


def _make_shortcut(channels_in: int, channels: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and channels_in == channels:
        return None
    return nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
