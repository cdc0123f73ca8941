"""Where to compute."""

from typing import TYPE_CHECKING, Annotated

import typer

from driftproof.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

__all__ = ["Device", "resolve_device"]

Device = Annotated[str, typer.Option("--device", help="Where to compute, such as cpu, cuda or cuda:1.")]


def resolve_device(name: str) -> "torch.device":
    """The device of this name, refused unless this machine has it.

    Examples:
        >>> resolve_device("cpu")
        device(type='cpu')
    """
    import torch

    try:
        return torch.empty(0, device=name).device
    # Depending on what is amiss, torch raises one or the other.
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigurationError(
            f"Expected `--device` to be one that this machine has, but got {name!r}: {reason}."
        ) from error
