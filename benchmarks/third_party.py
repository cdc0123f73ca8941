"""Import torchvision and timm, which are optional and may lack their compiled operators."""

import importlib
from types import ModuleType

import torch

__all__ = ["import_timm", "import_torchvision"]

_operators = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]  # defines while it lives


def import_torchvision(name: str = "torchvision") -> ModuleType:
    """Import torchvision or one of its modules, also where its operators were built for another torch."""
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
    for operator in ("nms", "qnms"):
        signature = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        _operators.define(signature)  # type: ignore[no-untyped-call]
    return importlib.import_module(name)


def import_timm() -> ModuleType:
    """Import timm, which needs torchvision."""
    import_torchvision()
    return importlib.import_module("timm")
