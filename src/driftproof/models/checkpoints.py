"""Weights in files: read safely, checked whole before anything is loaded, saved with what they need to be used."""

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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from driftproof.errors import ConfigurationError, InputError
from driftproof.files import atomic_write
from driftproof.models.catalogue import MODELS, build
from driftproof.models.normalized import Channels, Normalized

__all__ = ["Checkpoint", "load_checkpoint", "read_checkpoint", "restore", "save_checkpoint", "without_prefixes"]

_Model = TypeVar("_Model", bound=nn.Module)
_log = logging.getLogger(__name__)

_CONTAINERS = ("state_dict_ema", "state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.")
_NORMALIZERS = {"mu": "mean", "sigma": "std", "normalize.mean": "mean", "normalize.std": "std"}
_FORMULA = re.compile(r"\(\s*x\s*-\s*(\d*\.?\d+)\s*\)\s*/\s*(\d*\.?\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """What a file of weights holds.

    Attributes:
        state_dict: The weights under the names in the file.
        meta: What the file says about them; empty if it says nothing.
    """

    state_dict: dict[str, Tensor]
    meta: dict[str, Any]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a file of weights without running anything that is in it.

    Safetensors files are read, and torch files of tensors and plain values: a bare state dict, or one inside a
    dictionary under `state_dict_ema`, `state_dict` or `model`, the first of these that is there.

    Raises:
        InputError: If the file is damaged, holds no weights, or asks for code to be run.
    """
    path = Path(path)
    with path.open("rb") as file:
        start = file.read(9)
    if start.lstrip().startswith(b"<"):
        raise InputError(f"Expected {path} to hold weights, but it is a web page: the download failed; repeat it.")
    # A safetensors file begins with the length of its header in eight bytes, then the header, which is JSON.
    return _read_safetensors(path) if start[8:] == b"{" else _read_torch(path)


def load_checkpoint(model: _Model, path: str | Path, *, new_head: bool = False) -> _Model:
    """Load a file of weights into a model, all of it or nothing.

    The prefixes that wrappers leave on the names (`module.`, `_orig_mod.`, `model.`, `backbone.`) are taken off if the
    names fit the model then. Layers that only training needs, which a network lists in `training_only`, are left out,
    and that is logged. Values are cast to the model's types. If the file says how images are normalized, in its
    description or in RobustBench's `mu` and `sigma`, and the model normalizes them itself, the two have to agree.

    Args:
        model: The model.
        path: The file.
        new_head: Leave the last layer as it is, to train it for other classes.

    Raises:
        InputError: If the file cannot be read, or does not fit; the model is as before then.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> model, wrapped = build("wrn10_1"), torch.nn.DataParallel(build("wrn10_1"))
        >>> with TemporaryDirectory() as folder:
        ...     torch.save({"state_dict": wrapped.state_dict()}, Path(folder, "weights.pt"))
        ...     model = load_checkpoint(model, Path(folder, "weights.pt"))
        >>> torch.equal(model.fc.weight, wrapped.module.fc.weight)
        True
    """
    return _loaded(model, read_checkpoint(path), path, new_head=new_head)


def save_checkpoint(path: str | Path, model: nn.Module, meta: Mapping[str, Any]) -> None:
    """Write a model's weights and their description to a safetensors file, in one act.

    Number of classes, mean and standard deviation of a network of the catalogue are added to the description, so that
    `restore` needs only `arch`.

    Args:
        path: Where to; a file that is there is replaced.
        model: Whose weights.
        meta: Description that JSON can express. `arch` is the network's name in the catalogue; `classes` may be the
            names of the classes.

    Raises:
        ConfigurationError: If JSON cannot express the description, or it does not describe the model.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     save_checkpoint(Path(folder, "digits"), build("wrn10_1", classes=6), {"arch": "wrn10_1", "epochs": 3})
        ...     read_checkpoint(Path(folder, "digits")).meta
        {'arch': 'wrn10_1', 'epochs': 3, 'classes': 6, 'mean': 0.5, 'std': 0.5}
    """
    description = _description(model, meta)
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
    with atomic_write(Path(path)) as unfinished:
        unfinished.write_bytes(save(tensors, metadata={"format": "pt", "meta": description}))


def restore(path: str | Path) -> nn.Module:
    """Build the network a file describes, with the file's weights, ready to predict.

    The description has to name `arch`, a network of the catalogue, and the normalization: `mean` and `std`, or
    `normalize` with both or as "(x-0.5)/0.5". `classes` is their number or their names.

    Raises:
        InputError: If the file cannot be read, or does not describe its network.
    """
    checkpoint = read_checkpoint(path)
    arch, normalization = checkpoint.meta.get("arch"), _normalization(checkpoint.meta)
    if not isinstance(arch, str) or not normalization:
        lacking = "how images are normalized" if isinstance(arch, str) else "which architecture it belongs to"
        raise InputError(
            f"Expected {path} to say {lacking}, but it does not. Build the model, then load_checkpoint(model, path)."
        )
    with torch.random.fork_rng(devices=[]):  # nobody should notice that weights were drawn only to be replaced
        model = build(arch, classes=_class_count(checkpoint.meta), **normalization)
    return _loaded(model, checkpoint, path).eval()


def _read_safetensors(path: Path) -> Checkpoint:
    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dictionary
            said = file.metadata() or {}
        meta = json.loads(said["meta"]) if "meta" in said else said
    except (SafetensorError, ValueError) as error:
        raise _damaged(path) from error
    if not isinstance(meta, dict) or not state:
        raise _damaged(path)
    return Checkpoint(state, meta)


def _read_torch(path: Path) -> Checkpoint:
    try:
        with torch.serialization.safe_globals(_numbers_of_numpys()):
            contents = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        blocked = re.search(r"GLOBAL ([\w.]+)", str(error))
        if blocked is None:
            raise _damaged(path) from error
        raise InputError(
            f"Expected {path} to hold tensors and plain values only, but it asks for `{blocked[1]}`, which could run "
            "anything; nothing was run. Ask for the weights as safetensors. If you trust whoever made the file, load "
            "it yourself with weights_only=False and save its state dict alone."
        ) from None
    except Exception as error:  # the reader of a damaged file may stumble over anything
        raise _damaged(path) from error
    return _unpacked(contents, path)


def _numbers_of_numpys() -> list[Any]:
    """What a pickle names for a number of NumPy's, such as the score that public files keep beside the weights."""
    scalar = np.float64(0).__reduce__()[0]
    kinds = {type(np.dtype(kind)) for kind in "?bhilqBHILQefd"}
    return [np.dtype, *kinds, *((scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core"))]


def _unpacked(contents: object, path: Path) -> Checkpoint:
    if _is_state(contents):
        return Checkpoint(dict(contents), {})
    if not isinstance(contents, Mapping):
        raise InputError(f"Expected {path} to hold a state dict, but it holds a {type(contents).__name__}.")
    for key in _CONTAINERS:
        if _is_state(state := contents.get(key)):
            meta = contents.get("meta")
            plain = {name: value for name, value in contents.items() if isinstance(value, str | int | float)}
            return Checkpoint(dict(state), dict(meta) if isinstance(meta, Mapping) else plain)
    raise InputError(
        f"Expected {path} to hold a state dict, bare or under {_listed(_CONTAINERS)}, but it holds "
        f"{_listed([str(key) for key in contents]) or 'nothing'}. Save the state dict alone."
    )


def _is_state(value: object) -> TypeGuard[Mapping[str, Tensor]]:
    if not isinstance(value, Mapping) or not value:
        return False
    return all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items())


def _damaged(path: Path) -> InputError:
    return InputError(
        f"Expected {path} to hold weights, but it is damaged, incomplete or something else. Get it again."
    )


def _loaded(model: _Model, checkpoint: Checkpoint, path: str | Path, *, new_head: bool = False) -> _Model:
    own: dict[str, Tensor] = model.state_dict()
    state = max(without_prefixes(checkpoint.state_dict), key=lambda state: len(own.keys() & state.keys()))
    _leave_out_training_only(model, state, path)
    if new_head:
        state |= {name: tensor for name, tensor in own.items() if name.rpartition(".")[0] == _head(own)}
    if isinstance(model, Normalized):
        _refuse_other_normalization(model, _taken_normalization(state), path)
        _refuse_other_normalization(model, _normalization(checkpoint.meta), path)
    if misfits := list(_misfits(own, state)):
        raise InputError(f"Expected {path} to fit this {type(model).__name__}, but {'; '.join(misfits)}.")
    state = {name: value.to(own[name].dtype) for name, value in state.items()}
    if spoilt := [name for name, value in state.items() if not value.isfinite().all()]:
        raise InputError(f"Expected the weights in {path} to be finite, but those of {_listed(spoilt)} are not.")
    model.load_state_dict(own | state)
    return model


def _leave_out_training_only(model: nn.Module, state: dict[str, Tensor], path: str | Path) -> None:
    prefixes: tuple[str, ...] = getattr(model, "training_only", ())
    extra = [name for name in state if name.startswith(prefixes)]
    for name in extra:
        del state[name]
    if extra:
        _log.warning("Left out %d tensors of %s that only training needs: %s.", len(extra), path, _listed(extra))


def without_prefixes(state: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The state as it is, then with each prefix off that all weights share."""
    yield dict(state)
    weights = [name for name in state if name not in _NORMALIZERS]
    for prefix in _PREFIXES:
        if weights and all(name.startswith(prefix) for name in weights):
            yield from without_prefixes({name.removeprefix(prefix): value for name, value in state.items()})


def _misfits(own: dict[str, Tensor], state: dict[str, Tensor]) -> Iterator[str]:
    shared = [name for name in own if name in state]
    # Files of old versions of torch do not count batches.
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    unknown = [name for name in state if name not in own]
    shapes = {name: (tuple(state[name].shape), tuple(own[name].shape)) for name in shared}
    reshaped = [f"{name} is {theirs}, not {ours}" for name, (theirs, ours) in shapes.items() if theirs != ours]
    integers = [name for name in shared if own[name].is_floating_point() and not state[name].is_floating_point()]
    if missing:
        yield f"it lacks {_listed(missing)}"
    if unknown:
        yield f"it has {_listed(unknown)}, unknown to the model"
    if reshaped:
        yield f"the shapes differ: {_listed(reshaped)}{_advice_on_classes(own, state)}"
    if integers:
        yield f"{_listed(integers)} should be of floating point"


def _head(own: dict[str, Tensor]) -> str:
    return list(own)[-1].rpartition(".")[0]


def _advice_on_classes(own: dict[str, Tensor], state: dict[str, Tensor]) -> str:
    """What to do if only the last layer differs, and only in the number of its outputs."""
    head = _head(own)
    reshaped = [name for name in own if name in state and state[name].shape != own[name].shape]
    for name in reshaped:
        theirs, ours = state[name], own[name]
        if name.rpartition(".")[0] != head or theirs.ndim != ours.ndim or theirs.shape[1:] != ours.shape[1:]:
            return ""
    there, here = (len(tensors[reshaped[-1]]) for tensors in (state, own))
    return f" (it has {there} classes and the model {here}: build the model with classes={there})"


def _taken_normalization(state: dict[str, Tensor]) -> dict[str, Channels]:
    """Take mean and standard deviation out of a state."""
    names = [name for name in _NORMALIZERS if name in state and state[name].numel() in (1, 3)]
    said: dict[str, list[float]] = {_NORMALIZERS[name]: state.pop(name).flatten().tolist() for name in names}
    return {word: values if len(values) == 3 else values[0] for word, values in said.items()}


def _refuse_other_normalization(model: Normalized, said: Mapping[str, Channels], path: str | Path) -> None:
    own = _own_normalization(model)
    for word, value in said.items():
        if not _same(value, own[word]):
            raise InputError(
                f"Expected a model that normalizes images as in the training of {path}, with {word} {value}, but this "
                f"one has {word} {own[word]}. Build it with {word}={value}."
            )


def _same(one: Channels, other: Channels) -> bool:
    first, second = (torch.tensor(values, dtype=torch.double) for values in (one, other))
    return bool(torch.isclose(first, second, rtol=1e-3).all())  # as far as half precision can tell


def _own_normalization(model: Normalized) -> dict[str, Channels]:
    return {"mean": _plain(model.mean), "std": _plain(model.std)}


def _plain(values: Tensor) -> Channels:
    # numpy writes the shortest decimals that read back as the same number: 0.485, not 0.48500001430511475.
    numbers = [float(str(value)) for value in values.float().flatten().cpu().numpy()]
    return numbers[0] if values.ndim == 0 else numbers


def _normalization(meta: Mapping[str, Any]) -> dict[str, Channels]:
    """Mean and standard deviation as a description says them; empty if it does not, or not so that it is understood."""
    said = meta.get("normalize")
    if isinstance(said, str) and (formula := _FORMULA.fullmatch(said)):
        said = {"mean": float(formula[1]), "std": float(formula[2])}
    said = {**(said if isinstance(said, Mapping) else {}), **meta}
    understood = _is_channels(said.get("mean")) and _is_channels(said.get("std"))
    return {word: said[word] for word in ("mean", "std")} if understood else {}


def _is_channels(value: object) -> bool:
    if isinstance(value, list | tuple) and len(value) == 3:
        return all(isinstance(number, int | float) for number in value)
    return isinstance(value, int | float)


def _class_count(meta: Mapping[str, Any]) -> int | None:
    classes = meta.get("classes")
    if isinstance(classes, list | tuple):
        return len(classes)
    return classes if isinstance(classes, int) else None


def _description(model: nn.Module, meta: Mapping[str, Any]) -> str:
    description = dict(meta)
    if isinstance(model, Normalized):
        own, said = _own_normalization(model), _normalization(meta)
        if wrong := [word for word in said if not _same(said[word], own[word])]:
            raise ConfigurationError(
                f"Expected `meta` to give the model's {wrong[0]}, {own[wrong[0]]}, but got {said}."
            )
        description = {**meta, "classes": meta.get("classes", model.classes), **own}
    _refuse_wrong_name(model, description)
    try:
        return json.dumps(description, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"Expected `meta` to be what JSON can express, but got another: {error}.") from error


def _refuse_wrong_name(model: nn.Module, description: Mapping[str, Any]) -> None:
    arch = description.get("arch")
    if not isinstance(arch, str) or arch not in MODELS:
        return
    with torch.device("meta"):
        twin = build(arch, classes=_class_count(description))
    if misfits := list(_misfits(twin.state_dict(), model.state_dict())):
        raise ConfigurationError(f"Expected `meta` to describe the model, but seen as a {arch}, {'; '.join(misfits)}.")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
