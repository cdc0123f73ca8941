"""Putting back what a step had changed when it failed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from driftproof.adapter.adapter import Adapter

__all__ = ["nothing_lost"]


@contextmanager
def nothing_lost(adapter: "Adapter") -> Iterator[None]:
    """Leave an adapter as it was where a step fails half-way, in a part or because another rank was lost.

    Parts replace their buffers, so references to those will do. Their parameters are copied only where there are
    several ranks: alone, a part of the library's own does not fail once it has begun to change them.
    """
    modules = _remembering(adapter)
    buffers = {module: dict(module._buffers) for module in modules}
    copied = modules if adapter.distributed.size > 1 else ()
    parameters = {own: own.detach().clone() for module in copied for own in module.parameters(recurse=False)}
    index, stepper = adapter._index, adapter._stepper if adapter._names else None
    steps = (stepper.total, stepper.waiting, stepper.taken) if stepper is not None else None
    try:
        yield
    except BaseException:
        adapter.network.cut_graphs()
        for module, before in buffers.items():
            module._buffers.update(before)
        with torch.no_grad():
            for parameter, value in parameters.items():
                parameter.copy_(value)
        adapter._index = index
        if stepper is not None and steps is not None:
            stepper.rewind(*steps)
        raise


def _remembering(adapter: "Adapter") -> list[nn.Module]:
    """All that learns besides the network itself: the parts and the rules of both networks."""
    roots: list[nn.Module] = [*adapter._parts, adapter.network.rules, adapter.source.rules]
    return [module for root in roots for module in root.modules()]
