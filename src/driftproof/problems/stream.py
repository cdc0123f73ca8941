"""Problems of a stream: small batches, and classes that come one after the other."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from driftproof.problems.problem import Problem

__all__ = ["check_batch_sizes", "check_order"]

_SMALL = 8
_WINDOW = 32  # the fewest predictions that show a mix of classes
_MIN_WINDOWS = 2
_ONE_CLASS = 0.95
_ORDERED = 0.2  # share of the information about the class that lies in the position
_DEVIATIONS = 5.0
_SHUFFLES = 50

_SAFE = 'use `dp.adapt(model)` or `statistics="auto"`'


def check_batch_sizes(sizes: Sequence[int]) -> Iterator[Problem]:
    """Find batches too small for batch statistics.

    Args:
        sizes: Number of images of each batch.
    """
    typical = sorted(sizes)[len(sizes) // 2]
    if typical < _SMALL:
        message = f"Batches of {typical} {'image' if typical == 1 else 'images'} are too small for batch statistics"
        yield Problem("warning", message, f"Use batches of {_SMALL} or more, better 64, or {_SAFE}.")


def check_order(predictions: Sequence[Tensor]) -> Iterator[Problem]:
    """Find a stream of one class, and one in which each class comes at its own time.

    Args:
        predictions: The predicted classes of each batch in the order of the stream.
    """
    windows = _join_small(predictions)
    predicted = torch.cat(windows)
    if len(predicted) < _WINDOW:
        return
    share = float(torch.bincount(predicted).max()) / len(predicted)
    if share >= _ONE_CLASS:
        message = f"{share:.0%} of the images are predicted as one class"
        fix = f"If the stream has more classes, shuffle it and check how images are prepared; otherwise {_SAFE}."
        yield Problem("warning", message, fix)
    elif len(windows) >= _MIN_WINDOWS and _is_ordered(predicted, [len(window) for window in windows]):
        message = "The stream is ordered by class: batches hold few of the classes that the whole stream has"
        yield Problem("warning", message, f"Shuffle it, or {_SAFE}.")


def _join_small(predictions: Sequence[Tensor]) -> list[Tensor]:
    """Join consecutive batches until each window is large enough to show a mix."""
    windows: list[Tensor] = []
    for batch in predictions:
        if windows and len(windows[-1]) < _WINDOW:
            windows[-1] = torch.cat([windows[-1], batch])
        else:
            windows.append(batch)
    return windows


def _is_ordered(predicted: Tensor, sizes: Sequence[int]) -> bool:
    """Return whether the windows differ in their classes much more than those of shuffled predictions."""
    classes = torch.nn.functional.one_hot(predicted).double()
    entropy = _entropy(classes.mean(dim=0))
    information = entropy - _entropy_within(classes, sizes)
    generator = torch.Generator().manual_seed(0)
    shuffled = torch.stack(
        [
            entropy - _entropy_within(classes[torch.randperm(len(classes), generator=generator)], sizes)
            for _ in range(_SHUFFLES)
        ]
    )
    excess = information - shuffled.mean()
    return bool(excess > _ORDERED * (entropy - shuffled.mean()) and excess > _DEVIATIONS * shuffled.std())


def _entropy_within(classes: Tensor, sizes: Sequence[int]) -> Tensor:
    parts: tuple[Tensor, ...] = torch.split(classes, list(sizes))
    return torch.stack([len(part) / len(classes) * _entropy(part.mean(dim=0)) for part in parts]).sum()


def _entropy(probabilities: Tensor) -> Tensor:
    return -torch.xlogy(probabilities, probabilities).sum()
