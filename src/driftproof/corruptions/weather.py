"""Weather corruptions: snow, frost, fog and brightness."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from driftproof.corruptions.counter_rng import CounterRNG
from driftproof.corruptions.filters import motion_filter, sum_center_zooms, to_grayscale

__all__ = ["brightness", "fog", "frost", "plasma_fractal", "snow"]


def snow(x: Tensor, rng: CounterRNG, constants: tuple[float, float, float, float, int, float, float]) -> Tensor:
    """Whiten the image and add streaks of snowflakes in two directions."""
    mean, sigma, zoom, threshold, radius, blur, mix = constants
    flakes = sum_center_zooms(mean + sigma * rng.normal(1, *x.shape[2:]), [zoom])
    flakes = torch.where(flakes < threshold, torch.zeros_like(flakes), flakes)
    flakes = torch.floor(flakes.clamp(0, 1) * 255)
    flakes = torch.round(motion_filter(flakes, radius, blur, rng.uniform(low=-135.0, high=-45.0))) / 255
    whitened = mix * x + (1 - mix) * torch.maximum(x, 1.5 * to_grayscale(x) + 0.5)
    return whitened + flakes + flakes.flip(-1, -2)


def frost(x: Tensor, rng: CounterRNG, constants: tuple[float, float], photos: list[Tensor]) -> Tensor:
    """Blend a random crop of a random photo of frost into the image.

    Args:
        x: Images.
        rng: Random numbers for each image.
        constants: Weights of the image and of the frost.
        photos: Photos of frost, (3, H, W) with values 0..255. Photos smaller than the images are enlarged.
    """
    own, ice = constants
    height, width = x.shape[2:]
    which = rng.integers(low=0, high=len(photos))
    top, left = rng.uniform(), rng.uniform()
    layer = torch.empty_like(x)
    for index, photo in enumerate(_enlarge_to_cover(photo, height, width) for photo in photos):
        chosen = (which == index).nonzero().flatten()
        rows = (top[chosen] * (photo.shape[1] - height)).to(torch.int64).view(-1, 1, 1)
        columns = (left[chosen] * (photo.shape[2] - width)).to(torch.int64).view(-1, 1, 1)
        rows = rows + torch.arange(height, device=x.device).view(1, -1, 1)
        columns = columns + torch.arange(width, device=x.device).view(1, 1, -1)
        layer[chosen] = photo[:, rows, columns].transpose(0, 1)
    return own * x + ice * layer / 255


def _enlarge_to_cover(photo: Tensor, height: int, width: int) -> Tensor:
    """Enlarge a photo if it is smaller than (height, width)."""
    scale = max(height / photo.shape[1], width / photo.shape[2])
    if scale <= 1:
        return photo
    size = (max(height, round(photo.shape[1] * scale)), max(width, round(photo.shape[2] * scale)))
    return F.interpolate(photo.unsqueeze(0), size=size, mode="bilinear", align_corners=False)[0]


def fog(x: Tensor, rng: CounterRNG, constants: tuple[float, float]) -> Tensor:
    """Add fractal fog of uneven thickness."""
    thickness, decay = constants
    height, width = x.shape[2:]
    veil = plasma_fractal(rng, 2 ** math.ceil(math.log2(max(height, width))), decay)[:, None, :height, :width]
    brightest = x.amax(dim=(1, 2, 3), keepdim=True)
    return (x + thickness * veil) * brightest / (brightest + thickness)


def brightness(x: Tensor, rng: CounterRNG, amount: float) -> Tensor:
    """Raise the value channel in HSV."""
    value = x.amax(dim=1, keepdim=True)
    raised = (value + amount).clamp(0, 1)
    return torch.where(value > 0, x * (raised / value.clamp(min=1e-12)), raised)


def plasma_fractal(rng: CounterRNG, side: int, decay: float) -> Tensor:
    """Generate (N, side, side) plasma fractals in [0, 1] by diamond–square on a torus.

    As in the reference, the noise of each round is w·U[−w, w], so its amplitude is w².
    """
    cloud = torch.zeros(len(rng), side, side, device=rng.device)
    step, wobble = side, 100.0

    def add_noise(neighbors: Tensor) -> Tensor:
        return neighbors / 4 + wobble * rng.uniform(*neighbors.shape[1:], low=-wobble, high=wobble)

    while step >= 2:
        half = step // 2
        corners = cloud[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        cloud[:, half::step, half::step] = add_noise(pairs + pairs.roll(-1, 2))
        centers = cloud[:, half::step, half::step]
        cloud[:, ::step, half::step] = add_noise(corners + corners.roll(-1, 2) + centers + centers.roll(1, 1))
        cloud[:, half::step, ::step] = add_noise(corners + corners.roll(-1, 1) + centers + centers.roll(1, 2))
        step, wobble = half, wobble / decay
    cloud = cloud - cloud.amin(dim=(1, 2), keepdim=True)
    return cloud / cloud.amax(dim=(1, 2), keepdim=True)
