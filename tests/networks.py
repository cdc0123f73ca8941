"""Small networks of every kind that an adapter has to support."""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

from driftproof.models import DeepLabV3Plus

CLASSES = 5


class Block(nn.Module):
    def __init__(self, width_in, width_out, stride):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(width_in)
        self.conv1 = nn.Conv2d(width_in, width_out, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width_out)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(width_in, width_out, 1, stride, bias=False) if width_in != width_out else None

    def forward(self, x):
        active = F.relu(self.bn1(x))
        y = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return y + (x if self.shortcut is None else self.shortcut(active))


class WideResNet(nn.Module):
    """Pre-activation residual blocks with batch norm."""

    def __init__(self, width=4, classes=CLASSES):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.blocks = nn.Sequential(Block(width, width, 1), Block(width, 2 * width, 2))
        self.norm = nn.BatchNorm2d(2 * width)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x):
        return self.fc(F.relu(self.norm(self.blocks(self.stem(x)))).mean(dim=(2, 3)))


class GroupNormNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, 1, 1), nn.GroupNorm(4, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        return self.head(F.relu(self.norm2(self.conv2(x))).mean(dim=(2, 3)))


class AttentionNet(nn.Module):
    """Patches, one self-attention layer with layer norm and dropout, a mean over tokens."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.norm1, self.norm2, self.norm = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        normed = self.norm1(tokens)
        tokens = tokens + self.attention(normed, normed, normed, need_weights=False)[0]
        tokens = tokens + self.mlp(self.norm2(tokens))
        return self.head(self.norm(tokens).mean(dim=1))


class SegmentationNet(nn.Module):
    """Down, an image-pooling branch with batch norm, up again: logits for every pixel."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.pooled = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU()
        )
        self.fuse = nn.Sequential(nn.Conv2d(12, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x):
        low = self.down(x)
        pooled = self.pooled(low).expand(-1, -1, *low.shape[2:])
        logits = self.head(self.fuse(torch.cat([low, pooled], dim=1)))
        return F.interpolate(logits, size=x.shape[2:], mode="bilinear", align_corners=True)


def _vector_net(norm):
    return nn.Sequential(nn.Linear(6, 8), norm, nn.ReLU(), nn.Linear(8, CLASSES))


def _volume_net(norm):
    return nn.Sequential(
        nn.Conv3d(2, 8, 3, padding=1), norm, nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, CLASSES)
    )


def _image_net(norm):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)
    )


class Tied(nn.Module):
    """One batch norm and one convolution used twice."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.again = self.conv
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(self.stem(x))))
        return self.head(F.relu(self.norm(self.again(x))).mean(dim=(2, 3)))


class ActivatedNorm(nn.BatchNorm2d):
    """A batch norm with its activation built in, as model libraries have it."""

    def forward(self, x):
        from_batch = self.training or (self.running_mean is None and self.running_var is None)
        y = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, from_batch, 0.1, self.eps)
        return F.relu(y)


class DictNet(WideResNet):
    def forward(self, x):
        return {"aux": x, "out": super().forward(x)}


class TupleNet(WideResNet):
    def forward(self, x):
        return x, super().forward(x)


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class DataclassNet(WideResNet):
    def forward(self, x):
        return Output(super().forward(x))


CONTRACT_NETWORKS = {
    "wide_resnet": WideResNet,
    "group_norm": GroupNormNet,
    "attention": AttentionNet,
    "segmentation": SegmentationNet,
}

# Every kind of normalization, with the shape of an input.
NORM_NETWORKS = {
    "batch_norm_1d": (lambda: _vector_net(nn.BatchNorm1d(8)), (6,)),
    "batch_norm_2d": (lambda: _image_net(nn.BatchNorm2d(8)), (3, 6, 6)),
    "batch_norm_3d": (lambda: _volume_net(nn.BatchNorm3d(8)), (2, 4, 4, 4)),
    "sync_batch_norm": (lambda: _image_net(nn.SyncBatchNorm(8)), (3, 6, 6)),
    "activated_norm": (lambda: _image_net(ActivatedNorm(8)), (3, 6, 6)),
    "group_norm": (lambda: _image_net(nn.GroupNorm(2, 8)), (3, 6, 6)),
    "instance_norm": (lambda: _image_net(nn.InstanceNorm2d(8, affine=True)), (3, 6, 6)),
    "instance_norm_tracking": (
        lambda: _image_net(nn.InstanceNorm2d(8, affine=True, track_running_stats=True)),
        (3, 6, 6),
    ),
    "layer_norm": (lambda: _vector_net(nn.LayerNorm(8)), (6,)),
    "rms_norm": (lambda: _vector_net(nn.RMSNorm(8)), (6,)),
    "tied": (Tied, (3, 6, 6)),
}


def randomize(model, shape=(3, 8, 8)):
    """Give a fresh network predictions that vary and are moderately sure, and statistics unlike the standard ones."""
    colors = torch.rand(64, shape[0], *([1] * (len(shape) - 1)))
    with torch.no_grad():
        logits = model(colors * torch.rand(64, *shape)).transpose(0, 1).flatten(1)
        scale = 2.0 / logits.std(dim=1).mean()
        head = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)][-1]
        head.weight.mul_(scale)
        head.bias.sub_(logits.mean(dim=1)).mul_(scale)
        for module in model.modules():
            if getattr(module, "running_mean", None) is not None:
                module.running_mean.add_(0.1 * torch.randn_like(module.running_mean))
                module.running_var.mul_(0.5 + torch.rand_like(module.running_var))
    return model


def build(name):
    """Build a network of `CONTRACT_NETWORKS`, or a small DeepLab, always with the same weights."""
    torch.manual_seed(1)
    return randomize(DeepLabV3Plus(CLASSES, depth=18, width=4) if name == "deeplab" else CONTRACT_NETWORKS[name]())


def is_segmentation(name):
    return name in ("segmentation", "deeplab")


def train_digits_network(images, labels, epochs=8):
    """A small convolutional network with batch norm, trained on images; takes a second."""
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
        for before, after, stride in ((3, 8, 2), (8, 16, 2), (16, 16, 1))
    ]
    network = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, int(labels.max()) + 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(network(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    return network.eval()
