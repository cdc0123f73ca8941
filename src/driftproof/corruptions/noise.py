"""Noise: gaussian, shot, impulse and speckle."""

import torch
from torch import Tensor

from driftproof.corruptions.counter_rng import CounterRNG

__all__ = ["gaussian_noise", "impulse_noise", "shot_noise", "speckle_noise"]


def gaussian_noise(x: Tensor, rng: CounterRNG, sigma: float) -> Tensor:
    """Independent normal noise on every value."""
    return x + sigma * rng.normal(*x.shape[1:])


def shot_noise(x: Tensor, rng: CounterRNG, photons: float) -> Tensor:
    """The noise of counting light: Poisson with `photons` at full brightness."""
    grey = torch.round(x * 255).to(torch.int64)
    table = _poisson_table(photons, x.device)
    # Row g of the table is the distribution function of Poisson(photons·g/255), lifted by 2g so that all rows together
    # are sorted and one search serves every value.
    lifted = (table + 2.0 * torch.arange(256, device=x.device).unsqueeze(1)).flatten()
    found = torch.searchsorted(lifted, 2.0 * grey + rng.uniform(*x.shape[1:]).to(torch.float64))
    return (found - grey * table.shape[1]).to(x.dtype) / photons


def impulse_noise(x: Tensor, rng: CounterRNG, share: float) -> Tensor:
    """Salt and pepper: a share of all values becomes black or white, each channel by itself."""
    hit, salt = rng.uniform(*x.shape[1:]) < share, rng.uniform(*x.shape[1:]) < 0.5
    return torch.where(hit, salt.to(x.dtype), x)


def speckle_noise(x: Tensor, rng: CounterRNG, sigma: float) -> Tensor:
    """Normal noise in proportion to the value."""
    return x + x * sigma * rng.normal(*x.shape[1:])


def _poisson_table(photons: float, device: torch.device) -> Tensor:
    """P(X ≤ k) for Poisson means photons·g/255, one row per grey level g, with one as the last entry."""
    most = int(photons + 12.0 * photons**0.5 + 20)
    counts = torch.arange(most, device=device, dtype=torch.float64)
    means = photons * torch.arange(256, device=device, dtype=torch.float64).unsqueeze(1) / 255
    log_mass = torch.xlogy(counts, means) - means - torch.lgamma(counts + 1)
    below = torch.exp(log_mass).cumsum(dim=1).clamp(max=1.0)
    return torch.cat([below, torch.ones_like(means)], dim=1)
