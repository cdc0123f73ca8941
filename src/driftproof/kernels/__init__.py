"""Operations that PyTorch takes several passes over memory for."""

import torch

from driftproof.kernels.availability import can_compile
from driftproof.kernels.layer import KINDS, normalise_alone, suits
from driftproof.kernels.normalisation import add_normalise, normalise
from driftproof.kernels.tickets import new_tickets

__all__ = [
    "KINDS",
    "OPERATIONS",
    "add_normalise",
    "can_compile",
    "new_tickets",
    "normalise",
    "normalise_alone",
    "suits",
]

OPERATIONS = torch.ops.driftproof
"""The same under the names by which torch knows them."""
