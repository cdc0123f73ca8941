"""The spatter corruption: drops of water or mud on the lens."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from driftproof.corruptions.counter_rng import CounterRNG
from driftproof.corruptions.filters import gaussian_filter
from driftproof.optional import require

__all__ = ["spatter"]

_WATER = (175 / 255, 238 / 255, 238 / 255)
_MUD = (63 / 255, 42 / 255, 20 / 255)
_EMBOSS = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))


def spatter(x: Tensor, rng: CounterRNG, constants: tuple[float, float, float, float, float, int]) -> Tensor:
    """Add drops where smooth noise is high: bright water with shaded rims, or opaque mud."""
    mean, sigma, blur, threshold, strength, mud = constants
    layer = gaussian_filter(mean + sigma * rng.normal(1, *x.shape[2:]), blur)
    layer = torch.where(layer < threshold, torch.zeros_like(layer), layer)
    if mud:
        mask = gaussian_filter((layer > threshold).to(x.dtype), strength)
        mask = torch.where(mask < 0.8, torch.zeros_like(mask), mask)
        return x * (1 - mask) + mask * x.new_tensor(_MUD).view(1, 3, 1, 1)
    drops = _shade_drops(layer)
    drops = drops / drops.amax(dim=(1, 2, 3), keepdim=True).clamp(min=1e-12) * strength
    return x + drops * x.new_tensor(_WATER).view(1, 3, 1, 1)


def _shade_drops(layer: Tensor) -> Tensor:
    """Shade the rims of drops, from their edges and the distance to them."""
    cv2 = require("cv2", "Spatter of water", "opencv-python-headless")

    def shade(drop: Any) -> Any:  # noqa: ANN401  # OpenCV is untyped
        gray = (np.clip(drop, 0, 1) * 255).astype(np.uint8)
        distance = cv2.distanceTransform(255 - cv2.Canny(gray, 50, 150), cv2.DIST_L2, 5)
        rim = cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8)
        rim = cv2.filter2D(cv2.equalizeHist(rim), cv2.CV_8U, np.array(_EMBOSS, dtype=np.float32))
        return gray.astype(np.float32) * cv2.blur(rim, (3, 3)).astype(np.float32)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        shaded = list(pool.map(shade, layer[:, 0].cpu().numpy()))
    return torch.from_numpy(np.stack(shaded)).unsqueeze(1).to(layer.device)
