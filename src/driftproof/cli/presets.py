"""Size and normalization of the input of well-known weights, by name or from their configuration file."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from driftproof.errors import InputError
from driftproof.files import read_json
from driftproof.validation import check_choice

if TYPE_CHECKING:
    from driftproof.data.images import Size

__all__ = ["PRESETS", "Preprocessing", "load_preset"]

Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True)
class Preprocessing:
    """Size and normalization of a model's input.

    Attributes:
        mean: Mean of the input normalization, for images in 0..1; None where the model normalizes its images itself.
        std: Standard deviation of the input normalization.
        resize: Side to resize to: the shorter one if a crop follows, else both. None keeps the stored size.
        crop: Side of the central square that is cut out; None crops nothing.
        interpolation: How to resize.
        explicit: Whether the normalization was given as options, so that it replaces that of a built-in network.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    resize: int | None = None
    crop: int | None = None
    interpolation: Interpolation = "bilinear"
    explicit: bool = False

    @property
    def size(self) -> "Size":
        """The size as `driftproof.data.FileSet` takes it."""
        from driftproof.data import ResizeExact, ResizeShorterSide

        if self.resize is None:
            return None
        if self.crop is None:
            return ResizeExact(self.resize, self.resize, self.interpolation)
        return ResizeShorterSide(self.resize, self.crop, self.interpolation)


_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

PRESETS = {
    "imagenet": Preprocessing(*_IMAGENET, 256, 224),  # torchvision, IMAGENET1K_V1
    "imagenet_v2": Preprocessing(*_IMAGENET, 232, 224),  # torchvision, IMAGENET1K_V2
    "timm": Preprocessing(*_IMAGENET, 256, 224, "bicubic"),  # timm's default: crop_pct 0.875
    "inception": Preprocessing(*_HALF, 341, 299, "bicubic"),  # timm's Inception: crop_pct 0.875
    "vit": Preprocessing(*_HALF, 224),  # Hugging Face, google/vit-base-patch16-224
    "clip": Preprocessing(*_CLIP, 224, 224, "bicubic"),  # OpenAI's CLIP
    "openai": Preprocessing(*_CLIP, 224, 224, "bicubic"),
    "cifar10": Preprocessing((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Preprocessing((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}
"""Size and normalization of well-known weights, by name."""


def load_preset(name: str) -> Preprocessing:
    """Return a preset by its name or from a JSON file of timm or Hugging Face.

    Examples:
        >>> load_preset("clip").size
        ResizeShorterSide(side=224, crop=224, interpolation='bicubic')
    """
    if not name.lower().endswith(".json"):
        return PRESETS[check_choice("preset", name, PRESETS)]
    try:
        content = read_json(Path(name))
        content = content.get("pretrained_cfg", content)
        return _parse_timm(content) if "input_size" in content else _parse_hugging_face(content)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise InputError(
            f"Expected {name} to be a preprocessor_config.json of Hugging Face or a config.json of timm, but it cannot "
            f"be used: {error}. Pass `--size`, `--crop`, `--mean` and `--std`."
        ) from error


def _parse_timm(content: dict[str, Any]) -> Preprocessing:
    side = content["input_size"][-1]
    resize, mode = math.floor(side / content.get("crop_pct", 0.875)), content.get("crop_mode", "center")
    if mode != "center" and resize != side:
        raise ValueError(f"crop_mode {mode!r} is not supported")
    crop = side if mode == "center" else None
    return Preprocessing(
        tuple(content["mean"]), tuple(content["std"]), resize, crop, _interpolation(content.get("interpolation"))
    )


def _parse_hugging_face(content: dict[str, Any]) -> Preprocessing:
    if not math.isclose(content.get("rescale_factor", 1 / 255), 1 / 255, rel_tol=1e-3):
        raise ValueError(f"rescale_factor {content['rescale_factor']} is not 1/255")
    size, crop = content.get("size"), content.get("crop_size")
    resize = _side(size) if size and content.get("do_resize", True) else None
    cropped = _side(crop) if crop and content.get("do_center_crop", True) else None
    if resize is not None and resize < 384 and "crop_pct" in content:  # ConvNeXt
        resize, cropped = int(resize / content["crop_pct"]), resize
    elif cropped is None and isinstance(size, dict) and "shortest_edge" in size and "crop_pct" not in content:
        cropped = resize
    elif cropped is not None and isinstance(size, dict) and "height" in size and cropped != resize:
        raise ValueError("a crop after resizing to a fixed height and width is not supported")
    normalized = content.get("do_normalize", True)
    return Preprocessing(
        tuple(content["image_mean"]) if normalized else None,
        tuple(content["image_std"]) if normalized else None,
        resize,
        cropped,
        _interpolation({2: "bilinear", 3: "bicubic"}.get(content.get("resample", 2), content.get("resample"))),
    )


def _side(size: int | dict[str, int]) -> int:
    if isinstance(size, int):
        return size
    sides = {side for key, side in size.items() if key in ("shortest_edge", "height", "width")}
    if len(sides) != 1:
        raise ValueError(f"size {size} is not a square")
    return sides.pop()


def _interpolation(name: object) -> Interpolation:
    if name in (None, "bilinear", "random"):
        return "bilinear"
    if name != "bicubic":
        raise ValueError(f"interpolation {name!r} is neither bilinear nor bicubic")
    return "bicubic"
