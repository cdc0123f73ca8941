"""Operations that PyTorch takes several passes over memory for."""

import torch

from driftproof.kernels.arrival_counters import new_tickets
from driftproof.kernels.availability import can_compile
from driftproof.kernels.batch_norm_ops import add_normalize, normalize
from driftproof.kernels.layer import KINDS, normalize_alone, suits

__all__ = [
    "KINDS",
    "OPERATIONS",
    "add_normalize",
    "can_compile",
    "new_tickets",
    "normalize",
    "normalize_alone",
    "suits",
]

OPERATIONS = torch.ops.driftproof
"""The same under the names by which torch knows them."""
