"""Operations that PyTorch takes several passes over memory for."""

from driftproof.kernels.normalisation import OPERATIONS, add_normalise, new_tickets, normalise

__all__ = ["OPERATIONS", "add_normalise", "new_tickets", "normalise"]
