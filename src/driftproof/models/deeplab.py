"""DeepLabV3+ for semantic segmentation."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftproof.errors import ConfigurationError, InputError
from driftproof.models.normalized_model import ChannelValues, NormalizedModel
from driftproof.models.residual import BasicBlock, Block, Bottleneck, make_stage
from driftproof.models.resnet import IMAGENET_MEAN, IMAGENET_STD

__all__ = ["DeepLabV3Plus"]

_BACKBONES: dict[int, tuple[Block, tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    50: (Bottleneck, (3, 4, 6, 3)),
}
_ATROUS_RATES = (6, 12, 18)


class DeepLabV3Plus(NormalizedModel):
    """DeepLabV3+ with a ResNet backbone, dilated last stage and output stride 16.

    The parameters are named as in RobustNet's public checkpoints, those of the backbone stages as in torchvision's. The
    network has no auxiliary head; `load_checkpoint` drops the weights of that head and logs it. Images in [0, 1] may
    have any size; the logits have the same size.

    The image-pooling branch has one value per channel and image, so a single image has no batch statistics there: an
    adapter uses the source statistics, and training mode raises an error.

    Args:
        classes: Number of classes.
        depth: Layers of the backbone, 18 or 50.
        width: Channels of the first stage; the others scale with it. 64 is the published size.
        mean: Mean of the input normalization; one number, or one per channel.
        std: Standard deviation of the input normalization, likewise.

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
    """Prefixes of checkpoint entries to drop: the auxiliary head."""

    def __init__(
        self,
        classes: int = 19,
        *,
        depth: int = 50,
        width: int = 64,
        mean: ChannelValues = IMAGENET_MEAN,
        std: ChannelValues = IMAGENET_STD,
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
        self.layer1 = make_stage(block, width, widths[0], blocks=blocks[0], stride=1)
        self.layer2 = make_stage(block, first, widths[1], blocks=blocks[1], stride=2)
        self.layer3 = make_stage(block, second, widths[2], blocks=blocks[2], stride=2)
        self.layer4 = make_stage(block, third, widths[3], blocks=blocks[3], stride=1, dilation=2)
        self.aspp = _ASPP(last, hidden)
        self.bot_fine = _conv_bn_relu(first, low)
        self.bot_aspp = _conv_bn_relu((len(_ATROUS_RATES) + 2) * hidden, hidden)
        self.final1 = nn.Sequential(*_conv_bn_relu(hidden + low, hidden, 3), *_conv_bn_relu(hidden, hidden, 3))
        self.final2 = nn.Sequential(nn.Conv2d(hidden, classes, 1))
        self._initialize_convolutions()

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, (N, classes, H, W), for images of shape (N, 3, H, W)."""
        if self.training and len(images) == 1:
            raise InputError(
                "Expected at least two images in training mode, but got one: its pooled features have one value per "
                "channel, so there are no batch statistics. Use larger batches, or `.eval()`."
            )
        fine = self.layer1(self.layer0(self.normalize(images)))
        coarse = self.bot_aspp(self.aspp(self.layer4(self.layer3(self.layer2(fine)))))
        features = torch.cat([self.bot_fine(fine), _resize_like(coarse, fine)], dim=1)
        return _resize_like(self.final2(self.final1(features)), images)


class _ASPP(nn.Module):
    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        atrous = (_conv_bn_relu(channels_in, channels, 3, dilation=rate) for rate in _ATROUS_RATES)
        self.features = nn.ModuleList([_conv_bn_relu(channels_in, channels), *atrous])
        self.img_conv = _conv_bn_relu(channels_in, channels)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.img_conv(x.mean(dim=(2, 3), keepdim=True)).expand(-1, -1, *x.shape[2:])
        return torch.cat([pooled, *(branch(x) for branch in self.features)], dim=1)


def _conv_bn_relu(channels_in: int, channels: int, size: int = 1, *, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (size // 2)
    convolution = nn.Conv2d(channels_in, channels, size, padding=padding, dilation=dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels), nn.ReLU())


def _resize_like(x: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=True)
