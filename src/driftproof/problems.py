"""What will not work with a model, why, and what to do."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Literal

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from driftproof.errors import ModelError
from driftproof.norms import batch_norms, has_source_statistics, norm_layers

__all__ = ["Problem", "blocking_problems", "check", "copy_problem"]

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Problem:
    """One thing to know about a model before adapting it.

    Attributes:
        severity: "error": it cannot be adapted; "warning": some methods will not do what they promise; "note": good
        to know. what: The observation.
        remedy: What to do about it.
        layers: The layers concerned.
    """

    severity: Severity
    message: str
    fix: str
    layers: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" ({_listed(self.layers)})" if self.layers else ""
        return f"{self.severity}: {self.message}{where}. {self.fix}"


def check(model: nn.Module) -> list[Problem]:
    """List what will not work with `model`, errors first; an empty list means every method applies as in the paper.

    The model is only looked at, not run. Its outputs are checked at the first batch, see `logits=` of the adapter, and
    whether its last linear layer is the classifier when swr prepares, see `classifier=`.

    Examples:
        >>> for problem in check(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))):
        ...     print(problem.severity, "-", problem.message)
        warning - The model has no batch norm, so batch, blended and TTN statistics change nothing
    """
    order: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}
    return sorted(_problems(model), key=lambda problem: order[problem.severity])


def _problems(model: nn.Module) -> Iterator[Problem]:
    errors = blocking_problems(model)
    if not errors:
        try:
            copy.deepcopy(model)
        except Exception as error:  # anything a user's own __deepcopy__ may raise
            errors = [copy_problem(error)]
    yield from errors
    if errors:
        return
    yield from _normalization(model)
    yield from _weights(model)
    yield from _randomness(model)


def blocking_problems(model: nn.Module) -> list[Problem]:
    """The errors that can be seen without copying the model."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"Expected `model` to be a torch.nn.Module, but got {type(model).__name__}.")
    return list(_obstacles(model))


def copy_problem(error: Exception) -> Problem:
    """The problem of a model whose copying raised `error`."""
    return Problem(
        "error",
        f"The model cannot be copied: {error}",
        "Replace what cannot be copied; for weight or spectral norm use torch.nn.utils.parametrizations.",
    )


def _obstacles(model: nn.Module) -> Iterator[Problem]:
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        yield Problem(
            "error", f"The model is wrapped in {type(model).__name__}", "Pass the model inside, `model.module`."
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
            f"{'The model is' if whole else 'Some layers are'} TorchScript, which cannot be hooked",
            "Pass the Python model it came from." if whole else "Put the Python layers they came from in their place.",
            () if whole else scripted,
        )
        return
    if type(model).__name__ == "OptimizedModule" and hasattr(model, "_orig_mod"):
        yield Problem("error", "The model was compiled with torch.compile", "Pass the original, `model._orig_mod`.")
        return
    bypassing = tuple(name for name, layer in model.named_modules() if _runs_another(vars(layer).get("forward")))
    if bypassing:
        yield Problem(
            "error",
            "A `forward` was replaced by a function that has hold of the original layer, and a copy would run that one",
            "Put the original back with `del layer.forward`; wrap the adapter instead.",
            tuple(filter(None, bypassing)),
        )
        return
    parameters = dict(model.named_parameters())
    if any(is_lazy(parameter) for parameter in parameters.values()):
        yield Problem("error", "The model has lazy layers that never saw an input", "Run one batch through it first.")
        return
    if not any(torch.is_floating_point(parameter) for parameter in parameters.values()):
        yield Problem("error", "The model has no floating-point parameters", "Pass a trained, unquantized network.")
    elif any(parameter.is_meta for parameter in parameters.values()):
        yield Problem("error", "The model's weights are on the meta device", "Load its weights first.")
    elif len({parameter.device for parameter in parameters.values()}) > 1:
        yield Problem("error", "The model is spread over several devices", "Move it to one with `model.to(device)`.")


def _runs_another(function: object, seen: tuple[object, ...] = ()) -> bool:
    """Whether a function has hold of a module. Its copies have, too; those of methods and partials hold the copy."""
    if not isinstance(function, FunctionType) or function in seen:
        return False
    enclosed = map(_enclosed_in, function.__closure__ or ())
    held = [*enclosed, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    modules = (item.__self__ if isinstance(item, MethodType) else item for item in held)
    return any(isinstance(module, nn.Module) for module in modules) or any(
        _runs_another(item, (*seen, function)) for item in held
    )


def _enclosed_in(cell: CellType) -> object:
    try:
        contents: object = cell.cell_contents
    except ValueError:  # of a name that has no value yet
        return None
    return contents


def _normalization(model: nn.Module) -> Iterator[Problem]:
    layers = list(norm_layers(model))
    frozen = tuple(name for name, layer in model.named_modules() if type(layer).__name__ == "FrozenBatchNorm2d")
    if frozen:
        yield Problem(
            "warning",
            "Frozen batch norms keep weight and bias as buffers and ignore the batch",
            "They stay as they are; rebuild the model with torch.nn.BatchNorm2d to adapt them.",
            frozen,
        )
    if not layers:
        yield Problem(
            "warning",
            "The model has no normalization layers, so tent, eata, gce and conjugate have nothing to move and bn_adapt "
            "and ttn change nothing",
            "ent, swr and cotta move every parameter and still work, as does any method with "
            "`scope=driftproof.scopes.named(...)`.",
        )
        return
    without_affine = tuple(name for name, layer in layers if not any(True for _ in layer.parameters(recurse=False)))
    if len(without_affine) == len(layers):
        yield Problem(
            "warning",
            "No normalization layer has a weight or bias, so tent, eata, gce and conjugate have nothing to move",
            "ent, swr and cotta move every parameter and still work.",
            without_affine,
        )
    elif without_affine:
        yield Problem("note", "Some normalization layers have no weight or bias", "They do not move.", without_affine)
    batch = list(batch_norms(model))
    if not batch:
        yield Problem(
            "warning",
            "The model has no batch norm, so batch, blended and TTN statistics change nothing",
            "bn_adapt and ttn equal source; the methods that take steps work.",
        )
    elif len(batch) < len(layers):
        yield Problem(
            "note",
            "Some normalization layers are no batch norms",
            "Batch, blended and TTN statistics leave them as they are.",
            tuple(name for name, layer in layers if layer not in {other for _, other in batch}),
        )
    memoryless = tuple(name for name, layer in batch if not has_source_statistics(layer))
    if memoryless:
        yield Problem(
            "warning",
            "Some batch norms keep no running statistics and always use the batch's",
            "source depends on the batch; Blend, TTN and a batch of one are not possible.",
            memoryless,
        )


def _weights(model: nn.Module) -> Iterator[Problem]:
    held = tuple(name for name, parameter in model.named_parameters() if not parameter.requires_grad)
    if held and len(held) < sum(1 for _ in model.parameters()):
        yield Problem(
            "note",
            "Some parameters have requires_grad switched off",
            "The scope alone decides what moves; leave them out with `scope.without(...)`.",
            held,
        )
    if any(parameter.dtype == torch.float16 for parameter in model.parameters()):
        yield Problem(
            "warning",
            "Some weights are float16, in which small steps are lost and large ones overflow",
            "Use float32 or bfloat16.",
        )


def _randomness(model: nn.Module) -> Iterator[Problem]:
    random = tuple(
        name
        for name, layer in model.named_modules()
        if isinstance(layer, nn.modules.dropout._DropoutNd) or type(layer).__name__ in ("DropPath", "StochasticDepth")
    )
    if random:
        yield Problem("note", "Dropout and stochastic depth stay off during adaptation", "Nothing to do.", random)


def _listed(names: tuple[str, ...], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
