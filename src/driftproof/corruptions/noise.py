"""Noise: gaussian, shot, impulse and speckle."""

import torch
from torch import Tensor

from driftproof.corruptions.counter_rng import CounterRNG

__all__ = ["gaussian_noise", "impulse_noise", "shot_noise", "speckle_noise"]


def gaussian_noise(x: Tensor, rng: CounterRNG, sigma: float) -> Tensor:
    """Add independent normal noise to every value."""
    return x + sigma * rng.normal(*x.shape[1:])


def shot_noise(x: Tensor, rng: CounterRNG, photons: float) -> Tensor:
    """Draw Poisson photon counts, with `photons` expected at full brightness."""
    gray = torch.round(x * 255).to(torch.int64)
    table = _poisson_table(photons, x.device)
    # Row g of the table is the CDF of Poisson(photons·g/255). Adding 2g to it sorts all rows together, so that one
    # search serves every value.
    lifted = (table + 2.0 * torch.arange(256, device=x.device).unsqueeze(1)).flatten()
    found = torch.searchsorted(lifted, 2.0 * gray + rng.uniform(*x.shape[1:]).to(torch.float64))
    return (found - gray * table.shape[1]).to(x.dtype) / photons


def impulse_noise(x: Tensor, rng: CounterRNG, share: float) -> Tensor:
    """Set a share of all values to 0 or 1 (salt and pepper), per channel."""
    hit, salt = rng.uniform(*x.shape[1:]) < share, rng.uniform(*x.shape[1:]) < 0.5
    return torch.where(hit, salt.to(x.dtype), x)


def speckle_noise(x: Tensor, rng: CounterRNG, sigma: float) -> Tensor:
    """Add normal noise proportional to the value."""
    return x + x * sigma * rng.normal(*x.shape[1:])


def _poisson_table(photons: float, device: torch.device) -> Tensor:
    """Return P(X ≤ k) for Poisson means photons·g/255, one row per gray level g; the last entry is 1."""
    most = int(photons + 12.0 * photons**0.5 + 20)
    counts = torch.arange(most, device=device, dtype=torch.float64)
    means = photons * torch.arange(256, device=device, dtype=torch.float64).unsqueeze(1) / 255
    log_mass = torch.xlogy(counts, means) - means - torch.lgamma(counts + 1)
    below = torch.exp(log_mass).cumsum(dim=1).clamp(max=1.0)
    return torch.cat([below, torch.ones_like(means)], dim=1)
