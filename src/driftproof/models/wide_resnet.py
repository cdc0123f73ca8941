"""Wide residual networks for small images."""

import torch.nn.functional as F
from torch import Tensor, nn

from driftproof.errors import ConfigurationError
from driftproof.models.normalized_model import ChannelValues, NormalizedModel

__all__ = ["WideResNet"]


class WideResNet(NormalizedModel):
    """Pre-activation wide residual network, WRN-depth-width.

    The parameters are named as in the public AugMix and RobustBench checkpoints. The network takes
    images in [0, 1] and normalizes them itself.

    Args:
        depth: Number of convolutions along the main path, 6n + 4; 40 for WRN-40-2.
        width: Factor on the channels 16, 32, 64; 2 for WRN-40-2.
        classes: Number of classes.
        mean: Mean of the input normalization; one number, or one per channel.
        std: Standard deviation of the input normalization, likewise.

    Examples:
        >>> model = WideResNet(depth=40, width=2)
        >>> sum(parameter.numel() for parameter in model.parameters())
        2243546

    Reference:
        Zagoruyko and Komodakis, "Wide Residual Networks", BMVC 2016.
    """

    def __init__(
        self, depth: int = 40, width: int = 2, classes: int = 10, *, mean: ChannelValues = 0.5, std: ChannelValues = 0.5
    ) -> None:
        super().__init__(classes, mean=mean, std=std)
        if depth < 10 or (depth - 4) % 6:
            raise ConfigurationError(f"Expected `depth` to be 6n + 4 with n of at least 1, but got {depth}.")
        blocks = (depth - 4) // 6
        widths = [16 * width, 32 * width, 64 * width]
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.block1 = _Group(16, widths[0], blocks, stride=1)
        self.block2 = _Group(widths[0], widths[1], blocks, stride=2)
        self.block3 = _Group(widths[1], widths[2], blocks, stride=2)
        self.bn1 = nn.BatchNorm2d(widths[2])
        self.fc = nn.Linear(widths[2], classes)
        self._initialize_convolutions()

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, (N, classes), for images of shape (N, 3, H, W)."""
        x = self.conv1(self.normalize(images))
        x = self.block3(self.block2(self.block1(x)))
        return self.fc(F.relu(self.bn1(x)).mean(dim=(2, 3)))  # type: ignore[no-any-return]


class _Group(nn.Module):
    def __init__(self, channels_in: int, channels: int, blocks: int, stride: int) -> None:
        super().__init__()
        first = _Block(channels_in, channels, stride)
        self.layer = nn.Sequential(first, *(_Block(channels, channels, 1) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


class _Block(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        # Named as in the public checkpoints.
        self.convShortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False) if channels_in != channels else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        y = self.conv2(F.relu(self.bn2(self.conv1(active))))
        # A convolutional shortcut takes the activated input.
        return y + (x if self.convShortcut is None else self.convShortcut(active))  # type: ignore[no-any-return]
