"""Read, load and save weights: no code from a file runs, and a file loads completely or not at all."""

import json
import logging
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from driftproof.errors import ConfigurationError, InputError
from driftproof.files import atomic_write, check_regular_file
from driftproof.models.checkpoint_limits import check_pickles, check_tensors
from driftproof.models.normalized_model import ChannelValues, NormalizedModel
from driftproof.models.registry import MODELS, build_model

__all__ = [
    "Checkpoint",
    "build_from_checkpoint",
    "iter_prefix_variants",
    "load_checkpoint",
    "read_checkpoint",
    "save_checkpoint",
]

_Model = TypeVar("_Model", bound=nn.Module)
_log = logging.getLogger(__name__)

_CONTAINERS = ("state_dict_ema", "state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.")
_NORMALIZERS = {"mu": "mean", "sigma": "std", "normalize.mean": "mean", "normalize.std": "std"}
_FORMULA = re.compile(r"\(\s*x\s*-\s*(\d*\.?\d+)\s*\)\s*/\s*(\d*\.?\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """Content of a weights file.

    Attributes:
        state_dict: Weights, named as in the file.
        meta: Metadata of the file; may be empty.
    """

    state_dict: dict[str, Tensor]
    meta: dict[str, Any]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a weights file without running code from it.

    Reads safetensors files, and torch files of tensors and plain values: a bare state dict, or a dictionary with a
    state dict under `state_dict_ema`, `state_dict` or `model`, in this order of preference.

    Raises:
        InputError: If the file is damaged, holds no weights, or would run code.
    """
    path = Path(path)
    check_regular_file(path)
    with path.open("rb") as file:
        start = file.read(9)
    if start.lstrip().startswith(b"<"):
        raise InputError(f"Expected {path} to hold weights, but it is a web page: the download failed. Repeat it.")
    # A safetensors file starts with the header length in eight bytes, then the header in JSON.
    checkpoint = _read_safetensors(path) if start[8:] == b"{" else _read_torch(path)
    try:
        check_tensors(checkpoint.state_dict, path.stat().st_size)
    except ValueError as error:
        raise _damaged_error(path, f" ({error})") from error
    return checkpoint


def load_checkpoint(model: _Model, path: str | Path, *, new_head: bool = False) -> _Model:
    """Load a weights file into a model, completely or not at all.

    Prefixes of wrappers (`module.`, `_orig_mod.`, `model.`, `backbone.`) are removed if the names match the model then.
    Layers that only training needs, listed in the `training_only` of a network, are dropped with a logged warning.
    Values are cast to the dtypes of the model. If the file gives the input normalization, in its metadata or as
    RobustBench's `mu` and `sigma`, and the model normalizes its input, the two must agree.

    Args:
        model: The model; changed in place.
        path: The file.
        new_head: Keep the last layer of the model, to train it for other classes.

    Raises:
        InputError: If the file cannot be read, or does not match. The model is unchanged then.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> model, wrapped = build_model("wrn10_1"), torch.nn.DataParallel(build_model("wrn10_1"))
        >>> with TemporaryDirectory() as folder:
        ...     torch.save({"state_dict": wrapped.state_dict()}, Path(folder, "weights.pt"))
        ...     model = load_checkpoint(model, Path(folder, "weights.pt"))
        >>> torch.equal(model.fc.weight, wrapped.module.fc.weight)
        True
    """
    return _load(model, read_checkpoint(path), path, new_head=new_head)


def save_checkpoint(path: str | Path, model: nn.Module, meta: Mapping[str, Any]) -> None:
    """Write weights and metadata to a safetensors file, atomically.

    For networks in `MODELS`, the number of classes, mean and standard deviation are added to the metadata, so that
    `build_from_checkpoint` needs only `arch`.

    Args:
        path: Output file; an existing file is replaced.
        model: The model.
        meta: JSON-serializable metadata. `arch` is a name in `MODELS`; `classes` may be the class names.

    Raises:
        ConfigurationError: If the metadata is not JSON-serializable, or does not match the model.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "digits")
        ...     save_checkpoint(path, build_model("wrn10_1", classes=6), {"arch": "wrn10_1", "epochs": 3})
        ...     read_checkpoint(path).meta
        {'arch': 'wrn10_1', 'epochs': 3, 'classes': 6, 'mean': 0.5, 'std': 0.5}
    """
    metadata = _make_metadata(model, meta)
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
    with atomic_write(Path(path)) as unfinished:
        unfinished.write_bytes(save(tensors, metadata={"format": "pt", "meta": metadata}))


def build_from_checkpoint(path: str | Path) -> nn.Module:
    """Build the network described in a weights file and load its weights, in evaluation mode.

    The metadata must give `arch`, a name in `MODELS`, and the input normalization: `mean` and `std`, or `normalize`
    with both or as "(x-0.5)/0.5". `classes` is the number of classes or their names.

    Raises:
        InputError: If the file cannot be read, or its metadata is incomplete.
    """
    checkpoint = read_checkpoint(path)
    arch, normalization = checkpoint.meta.get("arch"), _normalization(checkpoint.meta)
    if not isinstance(arch, str) or not normalization:
        missing = "the input normalization" if isinstance(arch, str) else "the architecture"
        raise InputError(
            f"Expected {path} to give {missing}, but it does not. Build the model, then load_checkpoint(model, path)."
        )
    with torch.random.fork_rng(devices=[]):  # the random initial weights are replaced at once
        model = build_model(arch, classes=_num_classes(checkpoint.meta), **normalization)
    return _load(model, checkpoint, path).eval()


def _read_safetensors(path: Path) -> Checkpoint:
    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dictionary
            header = file.metadata() or {}
        meta = json.loads(header["meta"]) if "meta" in header else header
    # Reading a damaged file may raise anything.
    except Exception as error:
        raise _damaged_error(path) from error
    if not isinstance(meta, dict) or not state:
        raise _damaged_error(path)
    return Checkpoint(state, meta)


def _read_torch(path: Path) -> Checkpoint:
    try:
        check_pickles(path)
        with torch.serialization.safe_globals(_numpy_scalar_globals()):
            contents = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        blocked = re.search(r"GLOBAL ([\w.]+)", str(error))
        if blocked is None:
            raise _damaged_error(path) from error
        raise InputError(
            f"Expected {path} to hold tensors and plain values only, but it asks for `{blocked[1]}`, which could run "
            "code; nothing was run. Ask for the weights as safetensors. If you trust the author of the file, load it "
            "with torch.load(..., weights_only=False) and save only its state dict."
        ) from None
    except Exception as error:  # reading a damaged file may raise anything
        raise _damaged_error(path, f" ({error})" if isinstance(error, ValueError) else "") from error
    return _find_state_dict(contents, path)


def _numpy_scalar_globals() -> list[Any]:
    """Return the globals that unpickling a NumPy scalar needs; public files store scores as such scalars."""
    scalar = np.float64(0).__reduce__()[0]
    dtypes = {type(np.dtype(code)) for code in "?bhilqBHILQefd"}
    return [np.dtype, *dtypes, *((scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core"))]


def _find_state_dict(contents: object, path: Path) -> Checkpoint:
    if _is_state_dict(contents):
        return Checkpoint(dict(contents), {})
    if not isinstance(contents, Mapping):
        raise InputError(f"Expected {path} to hold a state dict, but it holds a {type(contents).__name__}.")
    for key in _CONTAINERS:
        if _is_state_dict(state := contents.get(key)):
            meta = contents.get("meta")
            plain = {name: value for name, value in contents.items() if isinstance(value, str | int | float)}
            return Checkpoint(dict(state), dict(meta) if isinstance(meta, Mapping) else plain)
    raise InputError(
        f"Expected {path} to hold a state dict, bare or under {_join(_CONTAINERS)}, but it holds "
        f"{_join([str(key) for key in contents]) or 'nothing'}. Save only the state dict."
    )


def _is_state_dict(value: object) -> TypeGuard[Mapping[str, Tensor]]:
    if not isinstance(value, Mapping) or not value:
        return False
    return all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items())


def _damaged_error(path: Path, reason: str = "") -> InputError:
    return InputError(
        f"Expected {path} to hold weights, but it is damaged, incomplete or something else{reason}. Download it again."
    )


def _load(model: _Model, checkpoint: Checkpoint, path: str | Path, *, new_head: bool = False) -> _Model:
    own: dict[str, Tensor] = model.state_dict()
    state = max(iter_prefix_variants(checkpoint.state_dict), key=lambda state: len(own.keys() & state.keys()))
    _drop_training_only(model, state, path)
    if new_head:
        state |= {name: tensor for name, tensor in own.items() if name.rpartition(".")[0] == _head_name(own)}
    if isinstance(model, NormalizedModel):
        _check_normalization(model, _pop_normalization(state), path)
        _check_normalization(model, _normalization(checkpoint.meta), path)
    if mismatches := list(_describe_mismatches(own, state)):
        raise InputError(f"Expected {path} to match this {type(model).__name__}, but {'; '.join(mismatches)}.")
    state = {name: value.to(own[name].dtype) for name, value in state.items()}
    if non_finite := [name for name, value in state.items() if not value.isfinite().all()]:
        raise InputError(f"Expected the weights in {path} to be finite, but those of {_join(non_finite)} are not.")
    model.load_state_dict(own | state)
    return model


def _drop_training_only(model: nn.Module, state: dict[str, Tensor], path: str | Path) -> None:
    prefixes: tuple[str, ...] = getattr(model, "training_only", ())
    extra = [name for name in state if name.startswith(prefixes)]
    for name in extra:
        del state[name]
    if extra:
        _log.warning("Dropped %d tensors of %s that only training needs: %s.", len(extra), path, _join(extra))


def iter_prefix_variants(state: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield the state dict as it is, then without each prefix that all weights share."""
    yield dict(state)
    weights = [name for name in state if name not in _NORMALIZERS]
    for prefix in _PREFIXES:
        if weights and all(name.startswith(prefix) for name in weights):
            yield from iter_prefix_variants({name.removeprefix(prefix): value for name, value in state.items()})


def _describe_mismatches(own: dict[str, Tensor], state: dict[str, Tensor]) -> Iterator[str]:
    shared = [name for name in own if name in state]
    # Files of old torch versions lack these counters.
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in state if name not in own]
    shapes = {name: (tuple(state[name].shape), tuple(own[name].shape)) for name in shared}
    reshaped = [f"{name} is {theirs}, not {ours}" for name, (theirs, ours) in shapes.items() if theirs != ours]
    not_floating = [name for name in shared if own[name].is_floating_point() and not state[name].is_floating_point()]
    if missing:
        yield f"it lacks {_join(missing)}"
    if unexpected:
        yield f"it has {_join(unexpected)}, which the model lacks"
    if reshaped:
        yield f"the shapes differ: {_join(reshaped)}{_classes_hint(own, state)}"
    if not_floating:
        yield f"{_join(not_floating)} should be floating point"


def _head_name(own: dict[str, Tensor]) -> str:
    return list(own)[-1].rpartition(".")[0]


def _classes_hint(own: dict[str, Tensor], state: dict[str, Tensor]) -> str:
    """Return a hint if only the last layer differs, and only in its number of outputs; else an empty string."""
    head = _head_name(own)
    reshaped = [name for name in own if name in state and state[name].shape != own[name].shape]
    for name in reshaped:
        theirs, ours = state[name], own[name]
        if name.rpartition(".")[0] != head or theirs.ndim != ours.ndim or theirs.shape[1:] != ours.shape[1:]:
            return ""
    in_file, in_model = (len(tensors[reshaped[-1]]) for tensors in (state, own))
    return f" (it has {in_file} classes and the model {in_model}: build the model with classes={in_file})"


def _pop_normalization(state: dict[str, Tensor]) -> dict[str, ChannelValues]:
    """Remove mean and standard deviation from a state dict and return them."""
    names = [name for name in _NORMALIZERS if name in state and state[name].numel() in (1, 3)]
    found: dict[str, list[float]] = {_NORMALIZERS[name]: state.pop(name).flatten().tolist() for name in names}
    return {key: values if len(values) == 3 else values[0] for key, values in found.items()}


def _check_normalization(model: NormalizedModel, expected: Mapping[str, ChannelValues], path: str | Path) -> None:
    own = _model_normalization(model)
    for key, value in expected.items():
        if not _is_close(value, own[key]):
            raise InputError(
                f"Expected a model with the input normalization of {path}, {key} {value}, but this one has {key} "
                f"{own[key]}. Build it with {key}={value}."
            )


def _is_close(one: ChannelValues, other: ChannelValues) -> bool:
    first, second = (torch.tensor(values, dtype=torch.double) for values in (one, other))
    return bool(torch.isclose(first, second, rtol=1e-3).all())  # to half precision


def _model_normalization(model: NormalizedModel) -> dict[str, ChannelValues]:
    return {"mean": _to_python(model.mean), "std": _to_python(model.std)}


def _to_python(values: Tensor) -> ChannelValues:
    # NumPy prints the shortest decimal that reads back as the same float32: 0.485, not 0.48500001430511475.
    numbers = [float(str(value)) for value in values.float().flatten().cpu().numpy()]
    return numbers[0] if values.ndim == 0 else numbers


def _normalization(meta: Mapping[str, Any]) -> dict[str, ChannelValues]:
    """Return mean and standard deviation given in metadata; empty if absent or not understood."""
    given = meta.get("normalize", meta.get("normalise"))
    if isinstance(given, str) and (formula := _FORMULA.fullmatch(given)):
        given = {"mean": float(formula[1]), "std": float(formula[2])}
    given = {**(given if isinstance(given, Mapping) else {}), **meta}
    valid = _is_channel_values(given.get("mean")) and _is_channel_values(given.get("std"))
    return {key: given[key] for key in ("mean", "std")} if valid else {}


def _is_channel_values(value: object) -> bool:
    if isinstance(value, list | tuple) and len(value) == 3:
        return all(isinstance(number, int | float) for number in value)
    return isinstance(value, int | float)


def _num_classes(meta: Mapping[str, Any]) -> int | None:
    classes = meta.get("classes")
    if isinstance(classes, list | tuple):
        return len(classes)
    return classes if isinstance(classes, int) else None


def _make_metadata(model: nn.Module, meta: Mapping[str, Any]) -> str:
    metadata = dict(meta)
    if isinstance(model, NormalizedModel):
        own, given = _model_normalization(model), _normalization(meta)
        if wrong := [key for key in given if not _is_close(given[key], own[key])]:
            raise ConfigurationError(
                f"Expected `meta` to give the model's {wrong[0]}, {own[wrong[0]]}, but got {given}."
            )
        metadata = {**meta, "classes": meta.get("classes", model.classes), **own}
    _check_arch(model, metadata)
    try:
        return json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"Expected `meta` to be JSON-serializable, but got: {error}.") from error


def _check_arch(model: nn.Module, metadata: Mapping[str, Any]) -> None:
    arch = metadata.get("arch")
    if not isinstance(arch, str) or arch not in MODELS:
        return
    with torch.device("meta"):
        described = build_model(arch, classes=_num_classes(metadata))
    if mismatches := list(_describe_mismatches(described.state_dict(), model.state_dict())):
        raise ConfigurationError(
            f"Expected `meta` to describe the model, but compared with a {arch}, {'; '.join(mismatches)}."
        )


def _join(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
