"""The options `--model`, `--weights` and `--classes`, and the model they name."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftproof.cli.class_names import parse_classes
from driftproof.cli.completion import NETWORKS
from driftproof.cli.presets import Preprocessing
from driftproof.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Classes", "ModelName", "Weights", "load_model"]

_PROGRAMS = {".pt2", ".torchscript", ".ts"}

ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Model or function that builds one, as `package.module:name`, importable from the current folder; a "
        "`torch.export` program, such as net.pt2; or the name of a built-in network, such as wrn40_2.",
        autocompletion=lambda: list(NETWORKS),
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(help="Weights: safetensors or a torch state dict; without `--model`, a file of `driftproof train`."),
]
Classes = Annotated[
    str | None,
    typer.Option(
        "--classes",
        help="File of class names in the order of the outputs, one per line or JSON; or, for a built-in network, the "
        "number of classes.",
    ),
]


def load_model(
    name: str | None,
    weights: Path | None,
    classes: str | None = None,
    preprocessing: Preprocessing | None = None,
) -> "nn.Module":
    """Build or import a model, load its weights and let it normalize its images.

    Output of user code is redirected to stderr, so that stdout stays clean.

    Args:
        name: `package.module:name`, a file of `torch.export`, or the name of a built-in network; None if the weights
            name it.
        weights: File of weights; None keeps the initial ones.
        classes: Number of classes of a built-in network, or a file of class names.
        preprocessing: Normalization of the images; None if the model takes images in 0..1. Built-in networks normalize
            their images themselves; only mean and standard deviation given as options replace theirs.
    """
    from driftproof.models import build_from_checkpoint, load_checkpoint
    from driftproof.named import load_own_model

    if name is None and weights is None:
        raise ConfigurationError("Expected `--model` or `--weights`, but got neither.")
    count, names = parse_classes(classes)
    if count is not None and not names and (name is None or ":" in name or Path(name).suffix in _PROGRAMS):
        raise ConfigurationError(
            f"Expected `--classes {count}` only with a built-in network, but got it with another model. "
            "Pass a file of class names."
        )
    normalization = preprocessing or Preprocessing()
    with redirect_stdout(sys.stderr):
        if name is None:
            assert weights is not None
            return _normalize_input(build_from_checkpoint(weights), normalization)
        if Path(name).suffix in _PROGRAMS or (":" not in name and Path(name).is_file()):
            return _normalize_input(_load_program(name, weights), normalization)
        if ":" not in name:
            model = _build_builtin(name, count, normalization if normalization.explicit else Preprocessing())
            return model if weights is None else load_checkpoint(model, weights)
        model = load_own_model(name, what="`--model`")
        return _normalize_input(model if weights is None else load_checkpoint(model, weights), normalization)


def _load_program(name: str, weights: Path | None) -> "nn.Module":
    from driftproof.models import load_exported

    if weights is not None:
        raise ConfigurationError(f"Expected no `--weights` with {name}, which holds its own. Leave it out.")
    return load_exported(Path(name))


def _normalize_input(model: "nn.Module", preprocessing: Preprocessing) -> "nn.Module":
    from driftproof.models import NormalizedInput
    from driftproof.models.normalized_model import NormalizedModel

    if preprocessing.mean is None or preprocessing.std is None:
        return model
    if not isinstance(model, NormalizedModel):
        return NormalizedInput(model, mean=preprocessing.mean, std=preprocessing.std)
    if preprocessing.explicit:
        raise ConfigurationError(
            f"Expected `--mean` and `--std` with a model that takes normalized images, but this {type(model).__name__} "
            "normalizes them itself. Leave them out."
        )
    return model


def _build_builtin(name: str, classes: int | None, normalization: Preprocessing) -> "nn.Module":
    from driftproof.models import MODELS, build_model

    if name not in MODELS and "." in name:
        raise ConfigurationError(
            f"Expected `--model` to be `package.module:name` or a built-in network, but got {name!r}. "
            f"Put a colon before the last part: {':'.join(name.rsplit('.', 1))}."
        )
    given = {"mean": normalization.mean, "std": normalization.std}
    return build_model(name, classes=classes, **{key: values for key, values in given.items() if values is not None})
