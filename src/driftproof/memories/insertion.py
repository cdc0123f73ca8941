"""Insert images into a bank one after the other: with five or six small operations for each, or in one kernel."""

import torch
import torch.nn.functional as F
from torch import Tensor

from driftproof.kernels import runs_triton

__all__ = ["insert_one_by_one"]

_MOST = 4096
"""Candidates for which one program of the kernel is enough."""


def insert_one_by_one(
    present: Tensor, scores: Tensor, *, capacity: int, same_class: Tensor | None = None, quota: int | None = None
) -> Tensor:
    """Decide which candidates a bank holds once all images of a batch have come, one after the other.

    Candidates are the places of the bank, then the images of the batch. Each image costs somebody the place once the
    bank is full: the candidate with the largest score among those of the largest classes, and of the image's own class
    if none is larger. All candidates, and nobody as one more, are ranked by one number, the largest loses: twice the
    size of the class, less one in the image's own class, which the image itself has made larger by one; then the score.

    Args:
        present: Whether each place of the bank is taken, and whether each image of the batch may enter, (M,).
        scores: Who leaves first when the n-th image comes, (N, M); of equal ones, who came last.
        capacity: How many candidates to hold.
        same_class: Whether two candidates have the same class, (M, M); None ranks by the scores alone.
        quota: The most images of a class, at least `capacity` over the number of classes. With it, an image competes
            for its place with those it could replace, and with those of its own class if that is at its quota. None
            gives every image a place.

    Returns:
        Which candidates are held, a boolean mask.
    """
    count, size = scores.shape
    unit, first = 2.0 * (size + 1), size - count  # ranks take less than half a unit
    keys = F.pad(scores.argsort(dim=1, stable=True).argsort(dim=1).double(), (0, 1))
    itself = torch.eye(size + 1, dtype=keys.dtype, device=keys.device)[first:-1]
    if same_class is not None:
        keys[:, :-1].sub_(unit * same_class[first:])
    if quota is None:
        keys -= 4.0 * unit * (size + 2) * itself
    if _can_fuse(keys):
        from driftproof.kernels import triton_insertion

        return triton_insertion.insert(keys, present, same_class, unit=unit, capacity=capacity, quota=quota)
    counting = keys.new_zeros(size + 1, size + 1)
    if same_class is None:
        counting[:, -1].fill_(1.0)  # an assignment would copy the number from the host
    else:
        counting[:-1, :-1].copy_(same_class)
    # Nobody loses while there is room: its own count is positive as long as the bank holds no more than its capacity.
    counting[-1, :-1].fill_(-4.0 * (size + 1))
    counting[-1, -1].fill_(4.0 * (size + 1) * (capacity + 0.5))
    if quota is not None:
        # As many as the largest classes have for the image itself; for nobody, less than a class above its quota.
        nobody_alone = torch.arange(size + 1, device=keys.device) == size
        least, most = (quota + 0.5) * itself, torch.where(nobody_alone, quota + 0.45, keys.new_full((), size + 1.0))
    here = F.pad(torch.ones_like(scores, dtype=keys.dtype).tril(first), (0, 1))
    held, nobody = F.pad(present.to(keys.dtype), (0, 1)), F.pad(keys.new_zeros(size), (0, 1), value=1.0)
    for number in range(count):
        inside = torch.addcmul(nobody, held, here[number])
        counts = counting @ inside
        if quota is not None:
            counts = counts.clamp(least[number], most)
        loser = torch.addcmul(keys[number], counts, inside, value=2.0 * unit).argmax(dim=0, keepdim=True)
        held.scatter_(0, loser, 0.0)
    return held[:-1] > 0


def _can_fuse(keys: Tensor) -> bool:
    return keys.is_cuda and keys.shape[1] <= _MOST and runs_triton(keys.device)
