"""The `--device` option."""

from typing import TYPE_CHECKING, Annotated

import typer

from driftproof.errors import ConfigurationError

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Device", "move_model", "resolve_device"]

Device = Annotated[str, typer.Option("--device", help="Device, such as cpu, cuda or cuda:1.")]


def resolve_device(name: str) -> "torch.device":
    """Return the device of this name; raise `ConfigurationError` if it is not available.

    Examples:
        >>> resolve_device("cpu")
        device(type='cpu')
    """
    import torch

    try:
        return torch.empty(0, device=name).device
    # torch raises one of these, depending on the problem.
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigurationError(
            f"Expected `--device` to be available on this machine, but got {name!r}: {reason}."
        ) from error


def move_model(model: "nn.Module", device: "torch.device") -> "nn.Module":
    """Move a model to a device; a model without weights, on the meta device, stays there for `check` to report."""
    tensors = [*model.parameters(), *model.buffers()]
    return model if any(tensor.is_meta for tensor in tensors) else model.to(device)
