"""What can be read off logits: log-probabilities, entropy, confidence.

Classes lie along dimension 1, (N, C) or (N, C, H, W); one number comes back per sample (pixel), (N,) or (N, H, W).
Nothing takes the logarithm of a probability, and half-precision logits are widened first.
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
    "mean_prediction_entropy",
    "upcast",
]

_SMALLEST_PROBABILITY = 1e-8


def upcast(logits: Tensor) -> Tensor:
    """`logits` in at least single precision: selection compares nearly equal numbers."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def log_probabilities(logits: Tensor) -> Tensor:
    """Ln softmax over the classes."""
    return upcast(logits).log_softmax(dim=1)


def entropy(log_p: Tensor, p: Tensor | None = None) -> Tensor:
    """H(p) = −Σ_k p^k ln p^k in nats, from log-probabilities, and the probabilities where they are at hand."""
    return -((log_p.exp() if p is None else p) * log_p).sum(dim=1)


def gather_probability(log_p: Tensor, classes: Tensor) -> Tensor:
    """The probability each sample gives to its entry of `classes`."""
    return log_p.gather(1, classes.unsqueeze(1)).squeeze(1).exp()


def confidence_change(log_p: Tensor, source_logits: Tensor) -> Tensor:
    """How far adaptation raised the confidence in the class that the original model predicts.

    ŷ^{c_o} − ỹ^{c_o} with c_o = argmax ỹ: the *original* model's class, not the adapted one's. Exactly zero for the
    log-probabilities of equal logits, whatever their precision.
    """
    classes = source_logits.argmax(dim=1)
    return gather_probability(log_p, classes) - gather_probability(log_probabilities(source_logits), classes)


def logit_change(logits: Tensor, source_logits: Tensor) -> Tensor:
    """As `confidence_change`, with the logits z^{c_o} − z̃^{c_o} in place of the probabilities."""
    classes = source_logits.argmax(dim=1, keepdim=True)
    return (upcast(logits).gather(1, classes) - upcast(source_logits).gather(1, classes)).squeeze(1)


def mean_prediction_entropy(p: Tensor, weights: Tensor | None = None, distributed: Distributed | None = None) -> Tensor:
    """H(ȳ) of the mean ȳ of probabilities over all samples of all ranks, or over those with a positive weight."""
    distributed = distributed or Distributed()
    p = p.transpose(0, 1).flatten(start_dim=1)
    if weights is None:
        mean = distributed.sum(p.sum(dim=1))[0] / distributed.global_count(p.shape[1])
    else:
        chosen = (weights > 0).to(p.dtype).flatten()
        total, count = distributed.sum((p * chosen).sum(dim=1), chosen.sum())
        mean = total / count.clamp(min=1)
    mean = mean.clamp(min=_SMALLEST_PROBABILITY)
    return -(mean * mean.log()).sum()
