"""Shape checks for metric inputs."""

from torch import Tensor

from driftproof.errors import InputError

__all__ = ["check_same_shape"]


def check_same_shape(**tensors: Tensor) -> None:
    """Raise `InputError` unless all tensors have the same shape, because broadcasting would pair wrong samples.

    Examples:
        >>> import torch
        >>> check_same_shape(predicted=torch.zeros(3), labels=torch.zeros(3, 1))
        Traceback (most recent call last):
        driftproof.errors.InputError: Expected `predicted` and `labels` of one shape, but got (3,) and (3, 1).
    """
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        names = " and ".join(f"`{name}`" for name in tensors)
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors.values())
        raise InputError(f"Expected {names} of one shape, but got {shapes}.")
