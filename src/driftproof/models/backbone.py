"""The weights of a classifier as the start of a segmentation network."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from driftproof.errors import InputError
from driftproof.models.checkpoints import read_checkpoint, without_prefixes

__all__ = ["Transfer", "load_backbone"]

_RENAMED = {"conv1.": "layer0.0.", "bn1.": "layer0.1."}
"""Where torchvision's names of the first layers stand in a segmentation network."""


@dataclass(frozen=True)
class Transfer:
    """What became of the weights in a file.

    Attributes:
        taken: Names in the model whose values came from the file.
        unused: Names in the file that have no place in the model, or another shape there.
        fresh: Names in the model that the file has no value for; they are as before.
    """

    taken: tuple[str, ...]
    unused: tuple[str, ...]
    fresh: tuple[str, ...]

    def __str__(self) -> str:
        fresh = ", ".join(sorted({name.partition(".")[0] for name in self.fresh})) or "nothing"
        return f"{len(self.taken)} tensors taken; without a place: {_listed(self.unused)}; fresh: {fresh}"


def load_backbone(model: nn.Module, path: str | Path) -> Transfer:
    """Load what fits of a classifier's weights into the backbone of a segmentation network.

    Args:
        model: The network; changed in place.
        path: Weights of a residual network under torchvision's names, or of a segmentation network.

    Returns:
        What was taken and what did not fit.

    Raises:
        InputError: If the file cannot be read, or nothing in it fits; the model is as before then.
    """
    own: dict[str, Tensor] = model.state_dict()
    candidates = (_placed(state) for state in without_prefixes(read_checkpoint(path).state_dict))
    state, taken = max(((state, _fitting(state, own)) for state in candidates), key=lambda found: len(found[1]))
    if not any(own[name].ndim for name in taken):  # counters fit anywhere
        raise InputError(
            f"Expected {path} to hold weights that fit the backbone of this {type(model).__name__}, but none do. "
            "Give it weights of a residual network of the same depth."
        )
    spoilt = [name for name in taken if not torch.isfinite(state[name][1]).all()]
    if spoilt:
        raise InputError(f"Expected the weights in {path} to be finite, but those of {spoilt[0]} are not.")
    model.load_state_dict(own | {name: state[name][1].to(own[name].dtype) for name in taken})
    unused = tuple(original for name, (original, _) in state.items() if name not in taken)
    return Transfer(tuple(taken), unused, tuple(name for name in own if name not in taken))


def _placed(state: dict[str, Tensor]) -> dict[str, tuple[str, Tensor]]:
    """Values, with the names they had, under the names they would have in a segmentation network."""
    return {_renamed(name): (name, value) for name, value in state.items()}


def _fitting(state: dict[str, tuple[str, Tensor]], own: dict[str, Tensor]) -> list[str]:
    return [name for name, (_, value) in state.items() if name in own and own[name].shape == value.shape]


def _renamed(name: str) -> str:
    for theirs, ours in _RENAMED.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") or "nothing"
