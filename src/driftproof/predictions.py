"""Log-probabilities, entropy and confidence from logits.

Logits are (N, C) or (N, C, H, W); per-sample results are (N,) or (N, H, W). Half-precision logits are upcast first.
Per-sample results never take the logarithm of a probability.
"""

import torch
from torch import Tensor

from driftproof.distributed import Distributed

__all__ = [
    "confidence_change",
    "entropy",
    "gather_probability",
    "log_probabilities",
    "logit_change",
    "mean_prediction",
    "mean_prediction_entropy",
    "upcast",
]

_MIN_PROBABILITY = 1e-8


def upcast(logits: Tensor) -> Tensor:
    """Return logits in at least float32, because selection compares nearly equal values."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def log_probabilities(logits: Tensor) -> Tensor:
    """Return the log-softmax over the classes."""
    return upcast(logits).log_softmax(dim=1)


def entropy(log_p: Tensor, p: Tensor | None = None) -> Tensor:
    """Return the entropy −Σ_k p^k ln p^k in nats.

    Args:
        log_p: Log-probabilities.
        p: Probabilities, if already computed.
    """
    return -((log_p.exp() if p is None else p) * log_p).sum(dim=1)


def gather_probability(log_p: Tensor, classes: Tensor) -> Tensor:
    """Return the probability of each sample's entry of `classes`."""
    return log_p.gather(1, classes.unsqueeze(1)).squeeze(1).exp()


def confidence_change(log_p: Tensor, source_log_p: Tensor, source_classes: Tensor) -> Tensor:
    """Return the gain in confidence of the class that the source model predicts.

    ŷ^{c_o} − ỹ^{c_o} with c_o = argmax ỹ, the class of the *source* model, not of the adapted one. Exactly zero for
    equal logits, in every precision.
    """
    return gather_probability(log_p, source_classes) - gather_probability(source_log_p, source_classes)


def logit_change(logits: Tensor, source_logits: Tensor) -> Tensor:
    """Return the gain in the logit of that class, z^{c_o} − z̃^{c_o}; compare `confidence_change`."""
    classes = source_logits.argmax(dim=1, keepdim=True)
    return (upcast(logits).gather(1, classes) - upcast(source_logits).gather(1, classes)).squeeze(1)


def mean_prediction(p: Tensor, distributed: Distributed | None = None) -> Tensor:
    """Return the mean prediction ȳ over the samples of all ranks, (C,).

    Args:
        p: Probabilities.
        distributed: The ranks to average over; None is a single process.
    """
    distributed = distributed or Distributed()
    total = p.sum(dim=0) if p.ndim == 2 else p.transpose(0, 1).flatten(start_dim=1).sum(dim=1)
    return distributed.sum(total)[0] / distributed.global_count(p.numel() // p.shape[1])


def mean_prediction_entropy(p: Tensor, weights: Tensor | None = None, distributed: Distributed | None = None) -> Tensor:
    """Return the entropy H(ȳ) of the mean prediction ȳ over the samples of all ranks.

    Args:
        p: Probabilities.
        weights: Average only over samples with a positive weight; None is all samples.
        distributed: The ranks to average over; None is a single process.
    """
    distributed = distributed or Distributed()
    if weights is None:
        mean = mean_prediction(p, distributed)
    else:
        p = p.transpose(0, 1).flatten(start_dim=1)
        mask = (weights > 0).to(p.dtype).flatten()
        total, count = distributed.sum((p * mask).sum(dim=1), mask.sum())
        mean = total / count.clamp(min=1)
    mean = mean.clamp(min=_MIN_PROBABILITY)
    return -(mean * mean.log()).sum()
