"""Initialize a segmentation network from the weights of a classifier."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from driftproof.errors import InputError
from driftproof.models.checkpoints import iter_prefix_variants, read_checkpoint

__all__ = ["LoadReport", "load_backbone"]

_PREFIX_MAP = {"conv1.": "layer0.0.", "bn1.": "layer0.1."}
"""Prefixes of the first layers: torchvision's names to those of the segmentation networks."""


@dataclass(frozen=True)
class LoadReport:
    """Which tensors of a file were loaded.

    Attributes:
        loaded: Names in the model that were loaded from the file.
        unexpected: Names in the file that the model lacks, or has with another shape.
        missing: Names in the model that the file lacks; their values are unchanged.
    """

    loaded: tuple[str, ...]
    unexpected: tuple[str, ...]
    missing: tuple[str, ...]

    def __str__(self) -> str:
        missing = ", ".join(sorted({name.partition(".")[0] for name in self.missing})) or "none"
        return f"{len(self.loaded)} tensors loaded; unexpected: {_join(self.unexpected)}; missing: {missing}"


def load_backbone(model: nn.Module, path: str | Path) -> LoadReport:
    """Load the matching weights of a classifier into the backbone of a segmentation network.

    Args:
        model: Segmentation network; changed in place.
        path: Weights of a residual network with torchvision's names, or of a segmentation network.

    Returns:
        Which tensors were loaded, unexpected or missing.

    Raises:
        InputError: If the file cannot be read, or no tensor matches. The model is unchanged then.
    """
    own: dict[str, Tensor] = model.state_dict()
    candidates = (_rename_keys(state) for state in iter_prefix_variants(read_checkpoint(path).state_dict))
    state, loaded = max(((state, _matching_keys(state, own)) for state in candidates), key=lambda pair: len(pair[1]))
    if not any(own[name].ndim for name in loaded):  # 0-d counters match any network
        raise InputError(
            f"Expected {path} to hold weights that fit the backbone of this {type(model).__name__}, but none do. "
            "Use weights of a residual network of the same depth."
        )
    non_finite = [name for name in loaded if not torch.isfinite(state[name][1]).all()]
    if non_finite:
        raise InputError(f"Expected the weights in {path} to be finite, but those of {non_finite[0]} are not.")
    model.load_state_dict(own | {name: state[name][1].to(own[name].dtype) for name in loaded})
    unexpected = tuple(original for name, (original, _) in state.items() if name not in loaded)
    return LoadReport(tuple(loaded), unexpected, tuple(name for name in own if name not in loaded))


def _rename_keys(state: dict[str, Tensor]) -> dict[str, tuple[str, Tensor]]:
    """Map names of the segmentation network to the original name and the tensor."""
    return {_rename(name): (name, value) for name, value in state.items()}


def _matching_keys(state: dict[str, tuple[str, Tensor]], own: dict[str, Tensor]) -> list[str]:
    return [name for name, (_, value) in state.items() if name in own and own[name].shape == value.shape]


def _rename(name: str) -> str:
    for theirs, ours in _PREFIX_MAP.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _join(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") or "none"
