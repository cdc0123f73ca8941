"""The options `--preset`, `--mean`, `--std`, `--size` and `--crop`: how images become the model's input."""

import math
from dataclasses import replace
from typing import Annotated

import typer

from driftproof.cli.presets import PRESETS, Preprocessing, load_preset
from driftproof.errors import ConfigurationError

__all__ = ["Crop", "Mean", "Preset", "Side", "Std", "resolve_preprocessing"]

Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help=f"Size and normalization of the images: {', '.join(PRESETS)}, or the JSON file that came with the weights "
        "(preprocessor_config.json of Hugging Face, config.json of timm).",
        autocompletion=lambda: list(PRESETS),
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(
        "--mean",
        help="Mean of the input normalization for images in 0..1, such as 0.485,0.456,0.406; without it and without a "
        "preset, the model has to normalize its images itself.",
    ),
]
Std = Annotated[str | None, typer.Option("--std", help="Standard deviation of the input normalization.")]
Side = Annotated[
    int | None,
    typer.Option("--size", min=1, help="Resize images to squares of this side; with --crop, their shorter side."),
]
Crop = Annotated[int | None, typer.Option("--crop", min=1, help="Cut out the central square of this side.")]


def resolve_preprocessing(
    preset: str | None = None,
    *,
    mean: str | None = None,
    std: str | None = None,
    size: int | None = None,
    crop: int | None = None,
) -> Preprocessing:
    """Return what the options ask for; single options take precedence over the preset.

    Examples:
        >>> resolve_preprocessing("imagenet", mean="0.5", std="0.5").size
        ResizeShorterSide(side=256, crop=224, interpolation='bilinear')
    """
    found = Preprocessing() if preset is None else load_preset(preset)
    if size is not None:
        found = replace(found, resize=size, crop=None)
    if crop is not None:
        if found.resize is None:
            raise ConfigurationError(f"Expected `--size` with `--crop {crop}`, but got none. Pass the shorter side.")
        found = replace(found, crop=crop)
    if mean is not None:
        found = replace(found, mean=_parse_channels("mean", mean))
    if std is not None:
        found = replace(found, std=_parse_channels("std", std))
    if (found.mean is None) != (found.std is None):
        raise ConfigurationError("Expected `--mean` and `--std` together, but got one of them.")
    return replace(found, explicit=mean is not None or std is not None)


def _parse_channels(name: str, text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in (1, 3) or not all(map(math.isfinite, values)):
        raise ConfigurationError(f"Expected `--{name}` to be one number or three with commas, but got {text!r}.")
    if max(values) > 1:
        raise ConfigurationError(f"Expected `--{name}` for images in 0..1, but got {text}. Divide by 255.")
    return values * 3 if len(values) == 1 else values
