"""The memory that adaptation needs, computed from the layer shapes of a network.

As in TinyTL, trainable parameters take 4 bytes and frozen ones 1. The backward pass stores the input of every
convolution, linear and normalization layer with a trainable weight, at 4 bytes per element, and 1 bit per element that
enters a ReLU. Everything else is free. The counts compare methods independently of the device;
`driftproof.analyses.peak_memory` measures the real memory of a run.

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

# Batch norm with batch statistics rejects a single value per channel, which pooling may leave of a single image.
_BATCH_SIZE = 2

# Position of the weight among the arguments of each function.
_LAYERS: dict[object, int] = {
    torch.conv1d: 1, torch.conv2d: 1, torch.conv3d: 1, F.linear: 1,
    torch.conv_transpose1d: 1, torch.conv_transpose2d: 1, torch.conv_transpose3d: 1,
}  # fmt: skip
_NORMS: dict[object, int] = {F.batch_norm: 3, F.instance_norm: 3, F.group_norm: 2, F.layer_norm: 2, F.rms_norm: 2}
_RELUS: frozenset[object] = frozenset({F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_})


@dataclass(frozen=True)
class MemoryCounts:
    """Counts that determine the memory of a network.

    Attributes:
        parameters: Number of parameters.
        trainable: Number of trainable parameters.
        affine: Number of trainable parameters of normalization layers.
        layer_inputs: Elements per image that enter convolutions and linear layers with a trainable weight.
        norm_inputs: Elements per image that enter normalization layers with a trainable weight.
        relu_inputs: Elements per image that enter ReLUs.
        outputs: Elements per image of the logits.
    """

    parameters: int
    trainable: int
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
        trainable = self.affine if affine_only else self.trainable
        return _TRAINABLE_BYTES * trainable + _FROZEN_BYTES * (self.parameters - trainable)

    def activation_bytes(self, *, affine_only: bool) -> float:
        """Bytes per image that the backward pass stores."""
        inputs = self.norm_inputs + (0 if affine_only else self.layer_inputs)
        return _TRAINABLE_BYTES * inputs + _RELU_BYTES * self.relu_inputs

    def output_bytes(self) -> int:
        """Bytes per image of the logits."""
        return _TRAINABLE_BYTES * self.outputs

    def mebibytes(self, *, batch: int) -> dict[str, float]:
        """All amounts in MiB for a batch.

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
    """What a method stores in addition to the adapting network and its activations.

    Args:
        affine_only: Whether only the affine parameters of normalization layers are trainable.
        full_copies: Full-precision copies of the whole network.
        trainable_copies: Further sets of parameters, stored like the adapting network's.
        passes: Number of forward passes whose activations are stored at the same time.
        outputs: Further sets of logits.

    Examples:
        >>> network = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False))
        >>> counts = count_memory(network, (8,))
        >>> Formula(full_copies=1).mebibytes(counts, batch=16) * 2**20
        1680.0
    """

    affine_only: bool = False
    full_copies: int = 0
    trainable_copies: int = 0
    passes: float = 1
    outputs: int = 0

    def mebibytes(self, counts: MemoryCounts, *, batch: int) -> float:
        """The memory in MiB for a batch."""
        _check_batch(batch)
        weights = (1 + self.trainable_copies) * counts.weight_bytes(affine_only=self.affine_only)
        activations = self.passes * counts.activation_bytes(affine_only=self.affine_only)
        per_image = activations + self.outputs * counts.output_bytes()
        return (weights + self.full_copies * counts.copy_bytes() + batch * per_image) / _MEBIBYTE


FORMULAS: dict[str, Formula] = {
    "ent": Formula(),
    "swr": Formula(full_copies=1),
    "tent": Formula(affine_only=True),
    "eata": Formula(affine_only=True, trainable_copies=1),
    "tent+crowd": Formula(affine_only=True, full_copies=1, outputs=1),
    "cotta": Formula(full_copies=2, passes=32),
}
"""The methods of the paper's comparison on images."""

SCENE_FORMULAS = FORMULAS | {"cotta": Formula(full_copies=2, passes=3.5)}
"""The methods of its comparison on scenes, where its number for CoTTA is that of 3.5 passes instead of 32."""


def method_memory(name: str, counts: MemoryCounts, *, batch: int) -> float:
    """The memory in MiB that a method needs for a batch.

    Args:
        name: One of `FORMULAS`.
        counts: Of the network, from `count_memory`.
        batch: Images per batch.

    Examples:
        >>> from driftproof.models import build_model
        >>> counts = count_memory(build_model("wrn40_2"), (3, 32, 32))
        >>> {name: round(method_memory(name, counts, batch=200)) for name in ("tent", "tent+crowd")}
        {'tent': 556, 'tent+crowd': 565}
    """
    return FORMULAS[check_choice("method", name, FORMULAS)].mebibytes(counts, batch=batch)


def count_memory(
    model: nn.Module,
    image_shape: Sequence[int],
    *,
    scope: Scope | None = None,
    logits: LogitsAccessor | None = None,
) -> MemoryCounts:
    """Count parameters, activations and logits of a network in one forward pass on the `meta` device.

    The pass uses a copy without data, so it is cheap and does not change the model. Layers are counted at each call,
    as modules or as functions.

    Args:
        model: The network.
        image_shape: Shape of one image, such as (3, 32, 32).
        scope: The trainable parameters; None for all. `requires_grad` is ignored.
        logits: Where the logits are in the model's output, as for `Adapter`.

    Examples:
        >>> network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))
        >>> counts = count_memory(network, (3, 2, 2))
        >>> counts.layer_inputs, counts.relu_inputs, counts.outputs
        (28, 16, 5)
    """
    if not image_shape or any(size < 1 for size in image_shape):
        raise ConfigurationError(f"Expected `image_shape` to be sizes of at least 1, but got {tuple(image_shape)}.")
    trainable = {id(parameter) for parameter in (scope or everything()).parameters(model).values()}
    norms = {id(p) for _, layer in norm_layers(model) for p in layer.parameters(recurse=False)}
    counter = _Counter()
    with torch.inference_mode(False), torch.enable_grad():
        output = _forward(_to_meta(model, trainable), image_shape, counter)
    return MemoryCounts(
        parameters=_count_elements(model.parameters()),
        trainable=_count_elements(p for p in model.parameters() if id(p) in trainable),
        affine=_count_elements(p for p in model.parameters() if id(p) in trainable & norms),
        layer_inputs=counter.layer_inputs // _BATCH_SIZE,
        norm_inputs=counter.norm_inputs // _BATCH_SIZE,
        relu_inputs=counter.relu_inputs // _BATCH_SIZE,
        outputs=read_logits(output, logits).numel() // _BATCH_SIZE,
    )


class _Counter(TorchFunctionMode):
    """Counts the inputs of layers in every torch function call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_inputs = self.norm_inputs = self.relu_inputs = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  # any return value
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
    tensor: Tensor = args[0] if args else kwargs["input"]
    return tensor.numel()


def _attention_input_size(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *others: Any,  # noqa: ANN401  # further arguments of the torch function
    **named: Any,  # noqa: ANN401  # likewise
) -> int:
    """Elements that enter the linear layers of attention, whose calls torch does not expose."""
    packed, out = others[2], others[8]
    if packed is None:
        projections = list(zip((named[f"{kind}_proj_weight"] for kind in "qkv"), (query, key, value), strict=True))
    elif key is not value:
        projections = [(packed, tensor) for tensor in (query, key, value)]
    else:  # one matrix product computes all projections of the same tensor
        projections = [(packed, tensor) for tensor in ((query,) if query is key else (query, key))]
    return sum(tensor.numel() for weight, tensor in [*projections, (out, query)] if weight.requires_grad)


def _is_weight_trainable(position: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    weight = args[position] if len(args) > position else kwargs.get("weight")
    return weight is not None and bool(weight.requires_grad)


def _to_meta(model: nn.Module, trainable: set[int]) -> nn.Module:
    """Copy the model to the `meta` device; exactly the trainable parameters require gradients."""
    meta_tensors: dict[int, Any] = {id(buffer): torch.empty_like(buffer, device="meta") for buffer in model.buffers()}
    for parameter in model.parameters():
        tensor = torch.empty_like(parameter, device="meta")
        meta_tensors[id(parameter)] = nn.Parameter(tensor, requires_grad=id(parameter) in trainable)
    return copy.deepcopy(model, meta_tensors).eval()


def _forward(model: nn.Module, image_shape: Sequence[int], counter: _Counter) -> Any:  # noqa: ANN401  # likewise
    dtype = next((p.dtype for p in model.parameters() if torch.is_floating_point(p)), torch.float32)
    images = torch.empty(_BATCH_SIZE, *image_shape, dtype=dtype, device="meta")
    try:
        with counter:
            return model(images)
    except Exception as error:
        raise ModelError(
            f"Expected a model that runs on images of shape {tuple(image_shape)} on torch's `meta` device, but it "
            f"failed: {error}"
        ) from error


def _count_elements(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _check_batch(batch: int) -> None:
    if batch < 1:
        raise ConfigurationError(f"Expected `batch` to be at least 1, but got {batch}.")
