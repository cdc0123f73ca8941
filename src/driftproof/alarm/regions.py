"""Label connected regions of masks."""

from typing import Literal

import torch
from torch import Tensor

__all__ = ["Connectivity", "label_regions"]

Connectivity = Literal[4, 8]


def label_regions(mask: Tensor, *, connectivity: Connectivity = 4) -> Tensor:
    """Label the connected regions of each mask in a batch, (N, H, W).

    Returns the same shape: the label of a region is the smallest flat index in it, outside it is −1. Regions are merged
    in parallel: every root is linked to its smallest neighbor, then links are followed to their ends. The number of
    rounds grows with the logarithm of the region's length.
    """
    index = torch.arange(mask.numel(), device=mask.device).view(mask.shape)
    neighbors = [(index[:, :, :-1], index[:, :, 1:]), (index[:, :-1], index[:, 1:])]
    if connectivity == 8:
        neighbors += [(index[:, :-1, :-1], index[:, 1:, 1:]), (index[:, :-1, 1:], index[:, 1:, :-1])]
    first, second = (torch.cat([side.flatten() for side in ends]) for ends in zip(*neighbors, strict=True))
    inside = mask.flatten()
    edges = inside[first] & inside[second]
    first, second = first[edges], second[edges]
    root = index.flatten()
    while len(first):
        low, high = torch.minimum(root[first], root[second]), torch.maximum(root[first], root[second])
        unmerged = low != high
        first, second = first[unmerged], second[unmerged]
        root = root.scatter_reduce(0, high[unmerged], low[unmerged], "amin")
        while not torch.equal(root, parent := root[root]):
            root = parent
    return torch.where(inside, root, -1).view(mask.shape)
