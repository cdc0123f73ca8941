"""Digital corruptions: contrast, saturation, elastic transform, pixelation and JPEG."""

import io
import os
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from driftproof.corruptions.counter_rng import CounterRNG
from driftproof.corruptions.filters import box_resize, gaussian_weights, reflect
from driftproof.optional import require

__all__ = ["contrast", "elastic_transform", "jpeg", "jpeg_compression", "pixelate", "saturate"]

_MIN_PIXELS_PER_THREAD = 128 * 128  # smaller images lose more to thread overhead than they gain


def contrast(x: Tensor, rng: CounterRNG, factor: float) -> Tensor:
    """Scale the contrast around the mean of each channel."""
    mean = x.double().mean(dim=(2, 3), keepdim=True).to(x.dtype)
    return (x - mean) * factor + mean


def saturate(x: Tensor, rng: CounterRNG, constants: tuple[float, float]) -> Tensor:
    """Scale and shift the saturation in HSV; gray pixels have hue 0, so they turn red."""
    factor, offset = constants
    value = x.amax(dim=1, keepdim=True)
    chroma = value - x.amin(dim=1, keepdim=True)
    saturation = chroma / value.clamp(min=1e-12)
    wanted = (saturation * factor + offset).clamp(0, 1)
    colored = value - (value - x) * (wanted / saturation.clamp(min=1e-12))
    red = torch.cat([value, value * (1 - wanted), value * (1 - wanted)], dim=1)
    return torch.where(chroma > 0, colored, red)


def pixelate(x: Tensor, rng: CounterRNG, share: float) -> Tensor:
    """Downscale and upscale with a box filter."""
    height, width = x.shape[2:]
    small = box_resize(torch.round(x * 255), max(1, int(height * share)), max(1, int(width * share)))
    return box_resize(small, height, width) / 255


def jpeg_compression(x: Tensor, rng: CounterRNG, quality: int) -> Tensor:
    """Compress as JPEG of this quality."""
    return jpeg(torch.round(x * 255).to(torch.uint8), quality).to(x.dtype) / 255


def jpeg(images: Tensor, quality: int) -> Tensor:
    """Encode and decode 8-bit images as JPEG; large images use all cores."""
    pillow = require("PIL.Image", "JPEG compression")
    height, width = images.shape[2:]

    def round_trip(pixels: bytes) -> bytes:
        buffer = io.BytesIO()
        pillow.frombuffer("RGB", (width, height), pixels, "raw", "RGB", 0, 1).save(buffer, "JPEG", quality=quality)
        decoded: bytes = pillow.open(buffer).tobytes()
        return decoded

    def round_trips(some: Tensor) -> bytes:
        return b"".join(round_trip(pixels.tobytes()) for pixels in some.numpy())

    if len(images) == 0:
        return images
    rows = images.permute(0, 2, 3, 1).contiguous().cpu()
    cores = (os.cpu_count() or 1) if height * width >= _MIN_PIXELS_PER_THREAD else 1
    with ThreadPoolExecutor(cores) as pool:
        decoded = b"".join(pool.map(round_trips, torch.chunk(rows, cores)))
    return torch.frombuffer(bytearray(decoded), dtype=torch.uint8).view_as(rows).permute(0, 3, 1, 2).to(images.device)


def elastic_transform(x: Tensor, rng: CounterRNG, constants: tuple[float, float, float], reference: int) -> Tensor:
    """Apply a random affine transform, then a smooth random displacement field.

    Args:
        x: Images.
        rng: Random numbers for each image.
        constants: Strength, smoothness and affine jitter, as fractions of the reference side.
        reference: The reference side: 32, 64, or 244 for ImageNet.
    """
    alpha, sigma, jitter = (value * reference for value in constants)
    x = _sample_bilinear(x, *_affine_coordinates(x, rng, jitter), repeat_edge=False)
    if alpha == 0:
        return x
    height, width = x.shape[2:]
    noise = rng.uniform(2, height, width, low=-1.0, high=1.0).to(torch.float64)
    down, across = _smoothing_matrix(height, sigma, x.device), _smoothing_matrix(width, sigma, x.device)
    shift = (alpha * (down @ noise @ across.T)).to(x.dtype)
    rows = torch.arange(height, device=x.device, dtype=x.dtype).view(1, -1, 1) + shift[:, 1]
    columns = torch.arange(width, device=x.device, dtype=x.dtype).view(1, 1, -1) + shift[:, 0]
    return _sample_bilinear(x, rows, columns, repeat_edge=True)


def _affine_coordinates(x: Tensor, rng: CounterRNG, jitter: float) -> tuple[Tensor, Tensor]:
    """Return the rows and columns to sample, given a jitter of three anchors around the center."""
    height, width = x.shape[2:]
    reach = max(min(height, width) // 3, 1)
    middle_x, middle_y = width // 2, height // 2
    moves = rng.uniform(3, 2, low=-jitter, high=jitter).to(torch.float64)
    along_x = (moves[:, 1] - moves[:, 2]) / (2 * reach) + moves.new_tensor([1.0, 0.0])
    along_y = (moves[:, 0] - moves[:, 1]) / (2 * reach) + moves.new_tensor([0.0, 1.0])
    (xx, yx), (xy, yy) = along_x.unbind(1), along_y.unbind(1)
    determinant = xx * yy - xy * yx
    anchor = moves.new_tensor([middle_x + reach, middle_y - reach])
    moved = (anchor + moves[:, 1]).unbind(1)
    rows = torch.arange(height, device=x.device, dtype=torch.float64).view(1, -1, 1)
    columns = torch.arange(width, device=x.device, dtype=torch.float64).view(1, 1, -1)
    from_x, from_y = columns - moved[0].view(-1, 1, 1), rows - moved[1].view(-1, 1, 1)

    def solve(of_x: Tensor, of_y: Tensor, start: Tensor) -> Tensor:
        position = start + (of_x.view(-1, 1, 1) * from_x + of_y.view(-1, 1, 1) * from_y) / determinant.view(-1, 1, 1)
        return position.to(x.dtype)

    return solve(-yx, xx, anchor[1]), solve(yy, -xy, anchor[0])


def _smoothing_matrix(side: int, sigma: float, device: torch.device) -> Tensor:
    """Return a 1-D Gaussian blur as a matrix, truncated at 3σ, reflecting with the edge repeated."""
    radius = int(3.0 * sigma + 0.5)
    weights = gaussian_weights(sigma, radius) if radius else [1.0]
    positions = torch.arange(side, dtype=torch.float64).unsqueeze(1) + torch.arange(-radius, radius + 1)
    positions = reflect(positions, side, repeat_edge=True).round().clamp(0, side - 1).to(torch.int64)
    matrix = torch.zeros(side, side, dtype=torch.float64)
    return matrix.scatter_add_(1, positions, torch.tensor(weights, dtype=torch.float64).expand(side, -1)).to(device)


def _sample_bilinear(x: Tensor, rows: Tensor, columns: Tensor, *, repeat_edge: bool) -> Tensor:
    """Sample bilinearly at the given coordinates, reflected at the border."""
    count, channels, height, width = x.shape
    rows = reflect(rows, height, repeat_edge=repeat_edge).clamp(0, height - 1)
    columns = reflect(columns, width, repeat_edge=repeat_edge).clamp(0, width - 1)
    top, left = rows.floor().to(torch.int64), columns.floor().to(torch.int64)
    bottom, right = (top + 1).clamp(max=height - 1), (left + 1).clamp(max=width - 1)
    down, across = (rows - top).unsqueeze(1), (columns - left).unsqueeze(1)
    planes = x.reshape(count, channels, -1)

    def at(row: Tensor, column: Tensor) -> Tensor:
        position = (row * width + column).view(count, 1, -1).expand(-1, channels, -1)
        return planes.gather(2, position).view_as(x)

    upper = at(top, left) * (1 - across) + at(top, right) * across
    lower = at(bottom, left) * (1 - across) + at(bottom, right) * across
    return upper * (1 - down) + lower * down
