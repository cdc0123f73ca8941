"""TENT, without and with selection, as plain PyTorch loops."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["tent_by_hand", "tent_crowd_by_hand"]


def tent_by_hand(model: nn.Module, lr: float = 1e-3) -> Callable[[Tensor], Tensor]:
    """Return a TENT step: batch statistics, affine parameters, entropy, Adam."""
    optimizer = torch.optim.Adam(_configure(model), lr=lr)

    def step(images: Tensor) -> Tensor:
        logits: Tensor = model(images)
        loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return logits.detach()

    return step


def tent_crowd_by_hand(model: nn.Module, lr: float = 1e-3) -> Callable[[Tensor], Tensor]:
    """Return the step of `tent(select=ConfidenceDifference())`.

    A copy of the model gives the source logits, with batch statistics too. A sample is selected if its confidence in
    the source model's class is not below the source model's. The loss is the mean entropy over the selected samples
    minus half the entropy of the mean prediction over the whole batch.
    """
    source = copy.deepcopy(model)
    _configure(source)
    source.requires_grad_(False)
    optimizer = torch.optim.Adam(_configure(model), lr=lr)

    def step(images: Tensor) -> Tensor:
        logits: Tensor = model(images)
        log_p = logits.log_softmax(1)
        p = log_p.exp()
        with torch.no_grad():
            source_logits: Tensor = source(images)
            classes = source_logits.argmax(1, keepdim=True)
            source_confidences = source_logits.log_softmax(1).gather(1, classes).exp()
            selected = (log_p.gather(1, classes).exp() >= source_confidences).squeeze(1).float()
        entropies = -(p * log_p).sum(1)
        mean = p.mean(0).clamp(min=1e-8)
        loss = (selected * entropies).sum() / selected.sum().clamp(min=1) + 0.5 * (mean * mean.log()).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return logits.detach()

    return step


def _configure(model: nn.Module) -> list[nn.Parameter]:
    """Use batch statistics, make the affine parameters the only trainable ones, and return them."""
    model.eval().requires_grad_(False)
    affine: list[nn.Parameter] = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(True)
            module.track_running_stats = False
            module.running_mean = module.running_var = None
            affine += [module.weight, module.bias]
    return affine
