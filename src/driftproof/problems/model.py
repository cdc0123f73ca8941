"""Problems of a model that its layers and parameters show."""

import copy
from collections.abc import Iterator
from types import CellType, FunctionType, MethodType

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from driftproof.errors import ModelError
from driftproof.norms import batch_norms, has_source_statistics, norm_layers
from driftproof.problems.problem import Problem

__all__ = ["blocking_problems", "copy_problem", "find_model_problems"]


def find_model_problems(model: nn.Module) -> Iterator[Problem]:
    """Find the problems of a model by its layers and parameters, without running it."""
    errors = blocking_problems(model)
    if not errors:
        try:
            copy.deepcopy(model)
        except Exception as error:  # anything a user's own __deepcopy__ may raise
            errors = [copy_problem(error)]
    yield from errors
    if errors:
        return
    yield from _check_norms(model)
    yield from _check_parameters(model)
    yield from _check_dropout(model)


def blocking_problems(model: nn.Module) -> list[Problem]:
    """Return the errors that can be found without copying the model."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"Expected `model` to be a torch.nn.Module, but got {type(model).__name__}.")
    return list(_find_blocking(model))


def copy_problem(error: Exception) -> Problem:
    """Return the problem of a model whose `copy.deepcopy` raised `error`."""
    return Problem(
        "error",
        f"The model cannot be copied: {error}",
        "Make it work with copy.deepcopy; for weight or spectral norm use torch.nn.utils.parametrizations.",
    )


def _find_blocking(model: nn.Module) -> Iterator[Problem]:
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        yield Problem(
            "error", f"The model is wrapped in {type(model).__name__}", "Pass the wrapped model, `model.module`."
        )
        return
    scripted = tuple(
        name
        for name, layer in model.named_modules()
        if isinstance(layer, torch.jit.ScriptModule) and any(True for _ in layer.parameters())
    )
    if scripted:
        whole = isinstance(model, torch.jit.ScriptModule)
        yield Problem(
            "error",
            f"{'The model is' if whole else 'Some layers are'} TorchScript, which does not support hooks",
            "Pass the original Python model." if whole else "Replace them by the original Python layers.",
            () if whole else scripted,
        )
        return
    if type(model).__name__ == "OptimizedModule" and hasattr(model, "_orig_mod"):
        yield Problem("error", "The model was compiled with torch.compile", "Pass the original, `model._orig_mod`.")
        return
    replaced = tuple(name for name, layer in model.named_modules() if _closes_over_module(vars(layer).get("forward")))
    if replaced:
        yield Problem(
            "error",
            "A `forward` was replaced by a function bound to the original layer, which a copy would still run",
            "Restore it with `del layer.forward` and wrap the adapter instead.",
            tuple(filter(None, replaced)),
        )
        return
    parameters = dict(model.named_parameters())
    if any(is_lazy(parameter) for parameter in parameters.values()):
        yield Problem("error", "The model has uninitialized lazy layers", "Run one batch through it first.")
        return
    if not any(torch.is_floating_point(parameter) for parameter in parameters.values()):
        yield Problem("error", "The model has no floating-point parameters", "Pass a trained, unquantized network.")
    elif any(parameter.is_meta for parameter in parameters.values()):
        yield Problem("error", "The model's weights are on the meta device", "Load the weights first.")
    elif len({parameter.device for parameter in parameters.values()}) > 1:
        yield Problem("error", "The model is on several devices", "Move it to one with `model.to(device)`.")


def _closes_over_module(function: object, seen: tuple[object, ...] = ()) -> bool:
    """Return whether a function refers to a module by its closure or defaults.

    `copy.deepcopy` does not copy functions, so the copied model would run that module. It does copy methods and
    partials, which are therefore fine.
    """
    if not isinstance(function, FunctionType) or function in seen:
        return False
    enclosed = map(_cell_value, function.__closure__ or ())
    referenced = [*enclosed, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    modules = (item.__self__ if isinstance(item, MethodType) else item for item in referenced)
    return any(isinstance(module, nn.Module) for module in modules) or any(
        _closes_over_module(item, (*seen, function)) for item in referenced
    )


def _cell_value(cell: CellType) -> object:
    try:
        value: object = cell.cell_contents
    except ValueError:  # the variable is not assigned yet
        return None
    return value


def _check_norms(model: nn.Module) -> Iterator[Problem]:
    layers = list(norm_layers(model))
    frozen = tuple(name for name, layer in model.named_modules() if type(layer).__name__ == "FrozenBatchNorm2d")
    if frozen:
        yield Problem(
            "warning",
            "Frozen batch norms keep weight and bias as buffers and ignore the batch",
            "They are not adapted. Rebuild the model with torch.nn.BatchNorm2d to adapt them.",
            frozen,
        )
    if not layers:
        yield Problem(
            "warning",
            "The model has no normalization layers, so tent, eata, gce and conjugate have nothing to train, and "
            "bn_adapt and ttn have no effect",
            "ent, swr and cotta train every parameter and still work, as does any method with "
            "`scope=driftproof.scopes.named(...)`.",
        )
        return
    without_affine = tuple(name for name, layer in layers if not any(True for _ in layer.parameters(recurse=False)))
    if len(without_affine) == len(layers):
        yield Problem(
            "warning",
            "No normalization layer has a weight or bias, so tent, eata, gce and conjugate have nothing to train",
            "ent, swr and cotta train every parameter and still work.",
            without_affine,
        )
    elif without_affine:
        yield Problem(
            "note", "Some normalization layers have no weight or bias", "They are not trained.", without_affine
        )
    batch = list(batch_norms(model))
    if not batch:
        yield Problem(
            "warning",
            "The model has no batch norm, so batch, blended and TTN statistics have no effect",
            "bn_adapt and ttn equal source; methods that train parameters work.",
        )
    elif len(batch) < len(layers):
        yield Problem(
            "note",
            "Some normalization layers are not batch norms",
            "Batch, blended and TTN statistics do not affect them.",
            tuple(name for name, layer in layers if layer not in {other for _, other in batch}),
        )
    untracked = tuple(name for name, layer in batch if not has_source_statistics(layer))
    if untracked:
        yield Problem(
            "warning",
            "Some batch norms have no running statistics and always use those of the batch",
            "source depends on the batch; Blend, TTN and batches of one image do not work.",
            untracked,
        )


def _check_parameters(model: nn.Module) -> Iterator[Problem]:
    frozen = tuple(name for name, parameter in model.named_parameters() if not parameter.requires_grad)
    if frozen and len(frozen) < sum(1 for _ in model.parameters()):
        yield Problem(
            "note",
            "Some parameters have requires_grad=False",
            "Only the scope decides what is trained; exclude them with `scope.without(...)`.",
            frozen,
        )
    if any(parameter.dtype == torch.float16 for parameter in model.parameters()):
        yield Problem(
            "warning",
            "Some weights are float16, so small updates are lost and large ones overflow",
            "Use float32 or bfloat16.",
        )


def _check_dropout(model: nn.Module) -> Iterator[Problem]:
    stochastic = tuple(
        name
        for name, layer in model.named_modules()
        if isinstance(layer, nn.modules.dropout._DropoutNd) or type(layer).__name__ in ("DropPath", "StochasticDepth")
    )
    if stochastic:
        yield Problem("note", "Dropout and stochastic depth are off during adaptation", "Nothing to do.", stochastic)
