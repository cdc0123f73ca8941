"""DeepLabV3+: a class for every pixel."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftproof.errors import ConfigurationError, InputError
from driftproof.models.normalized import Channels, Normalized
from driftproof.models.residual import BasicBlock, Block, Bottleneck, stage
from driftproof.models.resnet import IMAGENET_MEAN, IMAGENET_STD

__all__ = ["DeepLabV3Plus"]

_BACKBONES: dict[int, tuple[Block, tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    50: (Bottleneck, (3, 4, 6, 3)),
}
_RATES = (6, 12, 18)


class DeepLabV3Plus(Normalized):
    """A residual network whose last stage is dilated, pooling at several rates, and a decoder: output stride 16.

    The parameters are named as in RobustNet's public checkpoints, those of the backbone's stages as in torchvision's.
    The auxiliary head with which such networks are trained is no part of it; `load_checkpoint` leaves its weights out
    and says so. Images come in with values in [0, 1], of any size; the logits have the same size.

    The image-pooling branch leaves one value per channel and image. For one image alone batch statistics of it do not
    exist: an adapter takes the source statistics there, and training refuses such a batch.

    Args:
        classes: Number of classes.
        depth: Layers of the backbone: 18 or 50.
        width: Channels of the first stage; all others are in proportion, 64 is the published size.
        mean: Subtracted from the images; one number, or one for each channel.
        std: Divides the images then.

    Examples:
        >>> with torch.device("meta"):
        ...     model = DeepLabV3Plus(19)
        ...     logits = model(torch.rand(2, 3, 80, 145))
        >>> sum(parameter.numel() for parameter in model.parameters()), logits.shape
        (40351667, torch.Size([2, 19, 80, 145]))

    Reference:
        Chen, Zhu, Papandreou, Schroff and Adam, "Encoder-Decoder with Atrous Separable Convolution for Semantic Image
        Segmentation", ECCV 2018; in the form of Choi et al., "RobustNet", CVPR 2021, with plain convolutions.
    """

    training_only = ("dsn.",)
    """What public checkpoints hold besides: the auxiliary head."""

    def __init__(
        self,
        classes: int = 19,
        *,
        depth: int = 50,
        width: int = 64,
        mean: Channels = IMAGENET_MEAN,
        std: Channels = IMAGENET_STD,
    ) -> None:
        super().__init__(classes, mean=mean, std=std)
        if depth not in _BACKBONES or width < 4 or width % 4:
            raise ConfigurationError(
                f"Expected `depth` to be 18 or 50 and `width` a multiple of 4, but got {depth} and {width}."
            )
        block, blocks = _BACKBONES[depth]
        widths = [width, 2 * width, 4 * width, 8 * width]
        first, second, third, last = (channels * block.expansion for channels in widths)
        hidden, low = 4 * width, 3 * width // 4
        stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.layer0 = nn.Sequential(stem, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.layer1 = stage(block, width, widths[0], blocks=blocks[0], stride=1)
        self.layer2 = stage(block, first, widths[1], blocks=blocks[1], stride=2)
        self.layer3 = stage(block, second, widths[2], blocks=blocks[2], stride=2)
        self.layer4 = stage(block, third, widths[3], blocks=blocks[3], stride=1, dilation=2)
        self.aspp = _PyramidPooling(last, hidden)
        self.bot_fine = _layers(first, low)
        self.bot_aspp = _layers((len(_RATES) + 2) * hidden, hidden)
        self.final1 = nn.Sequential(*_layers(hidden + low, hidden, 3), *_layers(hidden, hidden, 3))
        self.final2 = nn.Sequential(nn.Conv2d(hidden, classes, 1))
        self._initialize_convolutions()

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (N, classes, H, W), for images of shape (N, 3, H, W)."""
        if self.training and len(images) == 1:
            raise InputError(
                "Expected at least two images in training mode, but got one: its pooled features have one value per "
                "channel, so that batch statistics do not exist. Use larger batches, or `.eval()`."
            )
        fine = self.layer1(self.layer0(self.normalized(images)))
        coarse = self.bot_aspp(self.aspp(self.layer4(self.layer3(self.layer2(fine)))))
        both = torch.cat([self.bot_fine(fine), _enlarged(coarse, fine)], dim=1)
        return _enlarged(self.final2(self.final1(both)), images)


class _PyramidPooling(nn.Module):
    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        atrous = (_layers(channels_in, channels, 3, dilation=rate) for rate in _RATES)
        self.features = nn.ModuleList([_layers(channels_in, channels), *atrous])
        self.img_conv = _layers(channels_in, channels)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.img_conv(x.mean(dim=(2, 3), keepdim=True)).expand(-1, -1, *x.shape[2:])
        return torch.cat([pooled, *(branch(x) for branch in self.features)], dim=1)


def _layers(channels_in: int, channels: int, size: int = 1, *, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (size // 2)
    convolution = nn.Conv2d(channels_in, channels, size, padding=padding, dilation=dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels), nn.ReLU())


def _enlarged(x: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=True)
