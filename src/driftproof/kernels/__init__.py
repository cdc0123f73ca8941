"""Operations that PyTorch takes several passes over memory for."""

import torch

from driftproof.kernels.normalisation import add_normalise, normalise
from driftproof.kernels.tickets import new_tickets

__all__ = ["OPERATIONS", "add_normalise", "new_tickets", "normalise"]

OPERATIONS = torch.ops.driftproof
"""The same under the names by which torch knows them."""
