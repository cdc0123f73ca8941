"""The memory that adaptation needs, counted from the network's shapes alone.

The counting is TinyTL's: parameters that move take 4 bytes, the others 1; the backward pass keeps the input of every
convolution, linear and normalization layer whose weight moves, at 4 bytes an element, and 1 bit for every element that
enters a ReLU. Pooling, additions and whatever else a network does are free. It says how methods compare on any device;
what a run really takes is `driftproof.analyses.peak_memory`.

Reference:
    Cai, Gan, Zhu and Han, "TinyTL: Reduce Memory, Not Parameters for Efficient On-Device Learning", NeurIPS 2020.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from driftproof.errors import ConfigurationError, ModelError
from driftproof.network import LogitsAccessor, read_logits
from driftproof.norms import norm_layers
from driftproof.scopes import Scope, everything
from driftproof.validation import check_choice

__all__ = ["FORMULAS", "SCENE_FORMULAS", "Formula", "MemoryCounts", "count_memory", "method_memory"]

_MEBIBYTE = 2**20
_TRAINABLE_BYTES, _FROZEN_BYTES, _RELU_BYTES = 4, 1, 1 / 8

# Batch norm without statistics of its own refuses a single value per channel, which is what pooling may leave of one.
_BATCH_SIZE = 2

# Where each function takes its weight.
_LAYERS: dict[object, int] = {
    torch.conv1d: 1, torch.conv2d: 1, torch.conv3d: 1, F.linear: 1,
    torch.conv_transpose1d: 1, torch.conv_transpose2d: 1, torch.conv_transpose3d: 1,
}  # fmt: skip
_NORMS: dict[object, int] = {F.batch_norm: 3, F.instance_norm: 3, F.group_norm: 2, F.layer_norm: 2, F.rms_norm: 2}
_RELUS: frozenset[object] = frozenset({F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_})


@dataclass(frozen=True)
class MemoryCounts:
    """What a network's memory is made of.

    Attributes:
        parameters: Number of parameters.
        moving: Those of them that may move.
        affine: Those of the moving ones that belong to normalization layers.
        layer_inputs: Elements per image that enter convolutions and linear layers whose weight may move.
        norm_inputs: Elements per image that enter normalization layers whose weight may move.
        relu_inputs: Elements per image that enter ReLUs.
        outputs: Elements per image of the logits.
    """

    parameters: int
    moving: int
    affine: int
    layer_inputs: int
    norm_inputs: int
    relu_inputs: int
    outputs: int

    def copy_bytes(self) -> int:
        """Bytes of one full-precision copy of the network."""
        return _TRAINABLE_BYTES * self.parameters

    def weight_bytes(self, *, affine_only: bool) -> int:
        """Bytes of the adapting network's parameters."""
        moving = self.affine if affine_only else self.moving
        return _TRAINABLE_BYTES * moving + _FROZEN_BYTES * (self.parameters - moving)

    def activation_bytes(self, *, affine_only: bool) -> float:
        """Bytes per image that the backward pass needs."""
        inputs = self.norm_inputs + (0 if affine_only else self.layer_inputs)
        return _TRAINABLE_BYTES * inputs + _RELU_BYTES * self.relu_inputs

    def output_bytes(self) -> int:
        """Bytes per image of the logits."""
        return _TRAINABLE_BYTES * self.outputs

    def mebibytes(self, *, batch: int) -> dict[str, float]:
        """Every component in MiB, for a batch of so many images.

        Examples:
            >>> network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            >>> count_memory(network, (3, 64, 64)).mebibytes(batch=8)["norm_inputs"]
            1.0
        """
        _check_batch(batch)
        amounts = {
            "copy": self.copy_bytes(),
            "weights": self.weight_bytes(affine_only=False),
            "affine_weights": self.weight_bytes(affine_only=True),
            "layer_inputs": batch * _TRAINABLE_BYTES * self.layer_inputs,
            "norm_inputs": batch * _TRAINABLE_BYTES * self.norm_inputs,
            "relu_inputs": batch * _RELU_BYTES * self.relu_inputs,
            "outputs": batch * self.output_bytes(),
        }
        return {name: amount / _MEBIBYTE for name, amount in amounts.items()}


@dataclass(frozen=True)
class Formula:
    """What a method keeps in memory, besides the network that adapts and what its backward pass needs.

    Args:
        affine_only: Whether only the affine parameters of normalization move.
        copies: Full-precision copies of the whole network.
        twins: Further sets of parameters, stored as the adapting network's.
        passes: How often the activations are there at once.
        outputs: Further sets of logits.

    Examples:
        >>> network = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False))
        >>> counted = count_memory(network, (8,))
        >>> Formula(copies=1).mebibytes(counted, batch=16) * 2**20
        1680.0
    """

    affine_only: bool = False
    copies: int = 0
    twins: int = 0
    passes: float = 1
    outputs: int = 0

    def mebibytes(self, components: MemoryCounts, *, batch: int) -> float:
        """The memory in MiB for a batch of so many images."""
        _check_batch(batch)
        weights = (1 + self.twins) * components.weight_bytes(affine_only=self.affine_only)
        kept = self.passes * components.activation_bytes(affine_only=self.affine_only)
        per_image = kept + self.outputs * components.output_bytes()
        return (weights + self.copies * components.copy_bytes() + batch * per_image) / _MEBIBYTE


FORMULAS: dict[str, Formula] = {
    "ent": Formula(),
    "swr": Formula(copies=1),
    "tent": Formula(affine_only=True),
    "eata": Formula(affine_only=True, twins=1),
    "tent+crowd": Formula(affine_only=True, copies=1, outputs=1),
    "cotta": Formula(copies=2, passes=32),
}
"""The methods of the paper's comparison on images."""

SCENE_FORMULAS = FORMULAS | {"cotta": Formula(copies=2, passes=3.5)}
"""Those of its comparison on scenes: its number for CoTTA is that of three and a half passes, where images take 32."""


def method_memory(name: str, components: MemoryCounts, *, batch: int) -> float:
    """The memory in MiB that a method needs for a batch.

    Args:
        name: One of `FORMULAS`.
        components: What `count_memory` counted on the network.
        batch: Images per batch.

    Examples:
        >>> from driftproof.models import build_model
        >>> counted = count_memory(build_model("wrn40_2"), (3, 32, 32))
        >>> {name: round(method_memory(name, counted, batch=200)) for name in ("tent", "tent+crowd")}
        {'tent': 556, 'tent+crowd': 565}
    """
    return FORMULAS[check_choice("method", name, FORMULAS)].mebibytes(components, batch=batch)


def count_memory(
    model: nn.Module,
    image_shape: Sequence[int],
    *,
    scope: Scope | None = None,
    logits: LogitsAccessor | None = None,
) -> MemoryCounts:
    """Count what a network's memory is made of, in one forward pass that computes nothing.

    The pass runs on a stand-in without data, so the size of the network and its images does not matter and the model is
    left alone. Layers are seen where they are computed: as modules or as functions, and as often as they are called.

    Args:
        model: The network.
        image_shape: Shape of one image, such as (3, 32, 32).
        scope: What may move at all; None for everything. As always, `requires_grad` plays no role.
        logits: Where the logits are in the model's output, as for `Adapter`.

    Examples:
        >>> network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))
        >>> counted = count_memory(network, (3, 2, 2))
        >>> counted.layer_inputs, counted.relu_inputs, counted.outputs
        (28, 16, 5)
    """
    if not image_shape or any(size < 1 for size in image_shape):
        raise ConfigurationError(f"Expected `image_shape` to be sizes of at least 1, but got {tuple(image_shape)}.")
    moving = {id(parameter) for parameter in (scope or everything()).parameters(model).values()}
    norms = {id(p) for _, layer in norm_layers(model) for p in layer.parameters(recurse=False)}
    counter = _Counter()
    with torch.inference_mode(False), torch.enable_grad():
        output = _forward(_to_meta(model, moving), image_shape, counter)
    return MemoryCounts(
        parameters=_count_elements(model.parameters()),
        moving=_count_elements(p for p in model.parameters() if id(p) in moving),
        affine=_count_elements(p for p in model.parameters() if id(p) in moving & norms),
        layer_inputs=counter.layer_inputs // _BATCH_SIZE,
        norm_inputs=counter.norm_inputs // _BATCH_SIZE,
        relu_inputs=counter.relu_inputs // _BATCH_SIZE,
        outputs=read_logits(output, logits).numel() // _BATCH_SIZE,
    )


class _Counter(TorchFunctionMode):
    """Sees every call of a function of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_inputs = self.norm_inputs = self.relu_inputs = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  # a function may return anything
        kwargs = kwargs or {}
        if func in _RELUS:
            self.relu_inputs += _input_size(args, kwargs)
        elif func in _LAYERS and _is_weight_trainable(_LAYERS[func], args, kwargs):
            self.layer_inputs += _input_size(args, kwargs)
        elif func in _NORMS and _is_weight_trainable(_NORMS[func], args, kwargs):
            self.norm_inputs += _input_size(args, kwargs)
        elif func is F.multi_head_attention_forward:
            self.layer_inputs += _attention_input_size(*args, **kwargs)
        return func(*args, **kwargs)


def _input_size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    entered: Tensor = args[0] if args else kwargs["input"]
    return entered.numel()


def _attention_input_size(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *others: Any,  # noqa: ANN401  # of the many arguments of a function of torch
    **named: Any,  # noqa: ANN401  # likewise
) -> int:
    """Elements that enter the linear layers of attention, which torch computes out of sight."""
    packed, out = others[2], others[8]
    if packed is None:
        made = list(zip((named[f"{kind}_proj_weight"] for kind in "qkv"), (query, key, value), strict=True))
    elif key is not value:
        made = [(packed, entered) for entered in (query, key, value)]
    else:  # one product makes all that is made from one tensor
        made = [(packed, entered) for entered in ((query,) if query is key else (query, key))]
    return sum(entered.numel() for weight, entered in [*made, (out, query)] if weight.requires_grad)


def _is_weight_trainable(place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    weight = args[place] if len(args) > place else kwargs.get("weight")
    return weight is not None and bool(weight.requires_grad)


def _to_meta(model: nn.Module, moving: set[int]) -> nn.Module:
    """A copy of the model that has shapes only, in which exactly the moving parameters require gradients."""
    stand_ins: dict[int, Any] = {id(buffer): torch.empty_like(buffer, device="meta") for buffer in model.buffers()}
    for parameter in model.parameters():
        shape_only = torch.empty_like(parameter, device="meta")
        stand_ins[id(parameter)] = nn.Parameter(shape_only, requires_grad=id(parameter) in moving)
    return copy.deepcopy(model, stand_ins).eval()


def _forward(model: nn.Module, image_shape: Sequence[int], counter: _Counter) -> Any:  # noqa: ANN401  # likewise
    kind = next((p.dtype for p in model.parameters() if torch.is_floating_point(p)), torch.float32)
    images = torch.empty(_BATCH_SIZE, *image_shape, dtype=kind, device="meta")
    try:
        with counter:
            return model(images)
    except Exception as error:
        raise ModelError(
            f"Expected a model that runs on images of shape {tuple(image_shape)} without their data (on torch's "
            f"`meta` device), but it failed: {error}"
        ) from error


def _count_elements(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _check_batch(batch: int) -> None:
    if batch < 1:
        raise ConfigurationError(f"Expected `batch` to be at least 1, but got {batch}.")
