"""Training recipes of the paper's source models."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from driftproof.errors import ConfigurationError

__all__ = [
    "CIFAR_RESNET50",
    "DEEPLAB",
    "RESNEXT_AUGMIX",
    "TINY_RESNET50",
    "WRN_AUGMIX",
    "Recipe",
    "SceneRecipe",
]

Augmentation = Literal["augmix", "crop+flip", "resized crop"]
Schedule = Literal["cosine per iteration", "cosine per epoch", "polynomial per iteration"]

_POWER = 0.9


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyper-parameters of a training run: everything except model, data and seed.

    Attributes:
        epochs: Passes over the training set.
        batch_size: Images per step; the last batch of an epoch may be smaller.
        lr: Initial learning rate.
        final_lr: Final learning rate.
        schedule: Decay of the learning rate, updated per epoch or per iteration; polynomial means (1 − t)^0.9.
        momentum: Momentum of SGD.
        nesterov: Whether to use Nesterov momentum.
        weight_decay: L2 penalty on every parameter.
        augmentation: "crop+flip": random crop of the padded image and random flip; "resized crop": random resized crop
            and random flip; "augmix": "crop+flip", then two AugMix views in addition to the clean one.
        jsd_weight: Weight of the Jensen–Shannon divergence of the three views; used by "augmix" only.
        crop_padding: Black pixels added on each side before a random crop.

    Examples:
        >>> from dataclasses import replace
        >>> replace(WRN_AUGMIX, epochs=2).epochs
        2
    """

    epochs: int
    batch_size: int
    lr: float
    final_lr: float = 0.0
    schedule: Schedule = "cosine per epoch"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    augmentation: Augmentation = "crop+flip"
    jsd_weight: float = 12.0
    crop_padding: int = 4

    def __post_init__(self) -> None:
        _check_at_least(1, epochs=self.epochs, batch_size=self.batch_size)
        _check_at_least(
            0,
            final_lr=self.final_lr,
            weight_decay=self.weight_decay,
            jsd_weight=self.jsd_weight,
            crop_padding=self.crop_padding,
        )
        if not self.lr > 0:
            raise ConfigurationError(f"Expected `lr` to be above 0, but got {self.lr}.")
        if not 0 <= self.momentum < 1 or (self.nesterov and self.momentum == 0):
            raise ConfigurationError(f"Expected `momentum` in 0..1, above 0 with `nesterov`, but got {self.momentum}.")
        _check_one_of(get_args(Augmentation), augmentation=self.augmentation)
        _check_one_of(get_args(Schedule), schedule=self.schedule)

    def lr_at(self, epoch: int, batch: int, batches: int) -> float:
        """Return the learning rate of a batch; epoch and batch count from 0.

        Examples:
            >>> WRN_AUGMIX.lr_at(0, 0, 391)
            0.1
        """
        progress = (epoch + (batch / batches if self.schedule.endswith("iteration") else 0.0)) / self.epochs
        cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
        decay = (1.0 - progress) ** _POWER if self.schedule.startswith("polynomial") else cosine
        return self.final_lr + (self.lr - self.final_lr) * decay


@dataclass(frozen=True, kw_only=True)
class SceneRecipe(Recipe):
    """Recipe for segmentation: square crops at random scales, randomly flipped.

    Attributes:
        crop: Side of the crops, in pixels.
        scales: Smallest and largest scale of a scene before cropping.

    Examples:
        >>> round(DEEPLAB.lr_at(epoch=75, batch=0, batches=45), 4)
        0.0054
    """

    schedule: Schedule = "polynomial per iteration"
    crop: int
    scales: tuple[float, float] = (0.5, 2.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_at_least(2, batch_size=self.batch_size)
        _check_at_least(1, crop=self.crop)
        if not 0 < self.scales[0] <= self.scales[1]:
            raise ConfigurationError(f"Expected `scales` as (smallest, largest), both above 0, but got {self.scales}.")


def _check_at_least(minimum: int, **values: float) -> None:
    for name, value in values.items():
        if not value >= minimum:
            raise ConfigurationError(f"Expected `{name}` to be at least {minimum}, but got {value}.")


def _check_one_of(choices: tuple[str, ...], **values: str) -> None:
    for name, value in values.items():
        if value not in choices:
            raise ConfigurationError(f"Expected `{name}` to be one of {', '.join(choices)}, but got {value!r}.")


WRN_AUGMIX = Recipe(
    epochs=100,
    batch_size=128,
    lr=0.1,
    final_lr=1e-6,
    schedule="cosine per iteration",
    nesterov=True,
    weight_decay=5e-4,
    augmentation="augmix",
)
"""WRN-40-2 on the CIFAR sets."""

RESNEXT_AUGMIX = Recipe(
    epochs=200,
    batch_size=128,
    lr=0.1,
    final_lr=1e-6,
    schedule="cosine per iteration",
    nesterov=True,
    weight_decay=5e-4,
    augmentation="augmix",
)
"""ResNeXt-29 on the CIFAR sets: as WRN-40-2, for twice as many epochs."""

TINY_RESNET50 = Recipe(epochs=50, batch_size=256, lr=0.01, weight_decay=1e-4, augmentation="resized crop")
"""ResNet-50 on Tiny-ImageNet, from ImageNet weights. Our choices: augmentation, momentum, weight decay."""

CIFAR_RESNET50 = Recipe(epochs=200, batch_size=128, lr=0.1, weight_decay=5e-4)
"""ResNet-50 on CIFAR-10. The paper gives no recipe; this is the customary one."""

DEEPLAB = SceneRecipe(epochs=150, batch_size=8, lr=0.01, weight_decay=5e-4, crop=352)
"""DeepLabV3+ on CamVid. Learning rate, weight decay, schedule and scales are RobustNet's. Our choices: crops that fit
360 × 480 frames, the number of epochs, and no color jitter or blur, which would train robustness."""
