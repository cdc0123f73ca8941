"""AugMix as batched tensor operations that round like Pillow.

An operation takes uint8 images, (N, C, H, W), and one strength per image, and returns uint8 images. So a chain rounds
after every operation, as Pillow does.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from driftproof.errors import ConfigurationError, InputError

__all__ = [
    "augmix",
    "autocontrast",
    "equalize",
    "posterize",
    "rotate",
    "shear_x",
    "shear_y",
    "solarize",
    "translate_x",
    "translate_y",
]


def augmix(
    images: Tensor,
    generator: Generator,
    *,
    width: int = 3,
    depth: tuple[int, int] = (1, 3),
    severity: float = 3.0,
    alpha: float = 1.0,
) -> Tensor:
    """Blend every image with a mixture of chains of random operations.

    (1 − m) x + m Σ_k w_k chain_k(x), w ~ Dirichlet(α, …, α), m ~ Beta(α, α), drawn per image. The result is in [0, 1].
    Normalizing it afterwards is equivalent to normalizing first, because the weights sum to one.

    With a CPU generator the random numbers are the same on every device and need no synchronization.

    Args:
        images: uint8 images, (N, C, H, W).
        generator: Random number generator.
        width: Chains per image.
        depth: Smallest and largest number of operations in a chain.
        severity: The level of an operation is drawn from U[0.1, severity], out of 10.
        alpha: Concentration α of the weights.

    Examples:
        >>> images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
        >>> view = augmix(images, torch.Generator().manual_seed(0))
        >>> view.shape, view.dtype
        (torch.Size([4, 3, 8, 8]), torch.float32)

    Reference:
        Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty", ICLR 2020.
    """
    check_uint8_images(images)
    _check_settings(width, depth, severity, alpha)
    count, device = len(images), images.device
    weights = _sample_dirichlet(alpha, (width, count), generator).to(device)
    blend = _sample_dirichlet(alpha, (2, count), generator)[0].to(device)
    lengths = torch.randint(depth[0], depth[1] + 1, (width * count,), generator=generator, device=generator.device)
    chains = images.repeat(width, 1, 1, 1)
    for position in range(depth[1]):
        chains = _augmix_op(chains, lengths > position, severity, generator)
    mixture = (weights.view(width, count, 1, 1, 1) * chains.view(width, *images.shape)).sum(dim=0)
    view = images + blend.view(-1, 1, 1, 1) * (mixture - images)
    return (view / 255.0).clamp(0.0, 1.0)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch every channel to the full range 0..255."""
    low, high = images.amin(dim=(2, 3), keepdim=True).double(), images.amax(dim=(2, 3), keepdim=True).double()
    # `255.0 / tensor` would multiply by the reciprocal, which rounds twice.
    scale = torch.full_like(low, 255.0) / (high - low).clamp(min=1.0)
    stretched = images * scale - low * scale
    return torch.where(high > low, stretched.clamp(0.0, 255.0).to(torch.uint8), images)


def equalize(images: Tensor) -> Tensor:
    """Equalize the histogram of every channel."""
    pixels = images.flatten(2).long()
    counts = pixels.new_zeros(*pixels.shape[:2], 256).scatter_add_(2, pixels, torch.ones_like(pixels))
    brightest = counts.gather(2, pixels.amax(dim=2, keepdim=True))
    step = (pixels.shape[2] - brightest) // 255
    darker = counts.cumsum(dim=2) - counts
    table = ((step // 2 + darker) // step.clamp(min=1)).clamp(max=255).to(torch.uint8)
    return torch.where(step.unsqueeze(3) > 0, table.gather(2, pixels).view(images.shape), images)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the leading `bits` (0..8) of every value."""
    return images & _per_image(256 - 2 ** (8 - bits.long())).to(torch.uint8)


def solarize(images: Tensor, thresholds: Tensor) -> Tensor:
    """Invert the values at or above the threshold (0..256)."""
    return torch.where(images < _per_image(thresholds), images, 255 - images)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate counter-clockwise about the center."""
    middle_y, middle_x = images.shape[2] / 2, images.shape[3] / 2
    cos, sin = torch.cos(torch.deg2rad(degrees.double())), torch.sin(torch.deg2rad(degrees.double()))
    shift_x = middle_x - cos * middle_x + sin * middle_y
    shift_y = middle_y - sin * middle_x - cos * middle_y
    return _affine(images, (cos, -sin, shift_x), (sin, cos, shift_y))


def shear_x(images: Tensor, factors: Tensor) -> Tensor:
    """Shear horizontally: pixel (x, y) is taken from (x + factor y, y)."""
    return _affine(images, (1.0, factors, 0.0), (0.0, 1.0, 0.0))


def shear_y(images: Tensor, factors: Tensor) -> Tensor:
    """Shear vertically: pixel (x, y) is taken from (x, y + factor x)."""
    return _affine(images, (1.0, 0.0, 0.0), (factors, 1.0, 0.0))


def translate_x(images: Tensor, pixels: Tensor) -> Tensor:
    """Shift to the left."""
    return _affine(images, (1.0, 0.0, pixels), (0.0, 1.0, 0.0))


def translate_y(images: Tensor, pixels: Tensor) -> Tensor:
    """Shift up."""
    return _affine(images, (1.0, 0.0, 0.0), (0.0, 1.0, pixels))


# Each takes images and signed levels; the sign gives the direction.
_OPERATIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda images, level: autocontrast(images),
    lambda images, level: equalize(images),
    lambda images, level: posterize(images, 4 - _int_level(level.abs(), 4)),
    lambda images, level: rotate(images, level * 30 / 10),
    lambda images, level: solarize(images, 256 - _int_level(level.abs(), 256)),
    lambda images, level: shear_x(images, level * 0.3 / 10),
    lambda images, level: shear_y(images, level * 0.3 / 10),
    lambda images, level: translate_x(images, _int_level(level, images.shape[3] / 3)),
    lambda images, level: translate_y(images, _int_level(level, images.shape[2] / 3)),
)


def bilinear(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Sample images bilinearly in double precision, with the border replicated.

    Args:
        images: Images, (N, C, H, W), of any dtype.
        rows: Row coordinates, broadcast with `columns` to (N, height, width); the center of the first pixel is at 0.
        columns: Column coordinates, likewise.
    """
    last_row, last_column = images.shape[2] - 1, images.shape[3] - 1
    rows, columns = rows.clamp(0, last_row), columns.clamp(0, last_column)
    top, left = rows.long(), columns.long()
    bottom, right = (top + 1).clamp(max=last_row), (left + 1).clamp(max=last_column)
    down, along = (rows - top).unsqueeze(1), (columns - left).unsqueeze(1)
    pixels = images.flatten(2)

    def at(row: Tensor, column: Tensor) -> Tensor:
        index = row * images.shape[3] + column
        values = pixels.gather(2, index.flatten(1).unsqueeze(1).expand(-1, pixels.shape[1], -1))
        return values.view(*pixels.shape[:2], *index.shape[1:]).double()

    upper = _lerp(at(top, left), at(top, right), along)
    lower = _lerp(at(bottom, left), at(bottom, right), along)
    return _lerp(upper, lower, down)


def check_uint8_images(images: Tensor) -> None:
    """Raise `InputError` unless the images are uint8 of shape (N, C, H, W)."""
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise InputError(
            "Expected uint8 images of shape (N, C, H, W), "
            f"but got {str(images.dtype).removeprefix('torch.')} of shape {tuple(images.shape)}. "
            "Multiply values in [0, 1] by 255 and round them."
        )


def _check_settings(width: int, depth: tuple[int, int], severity: float, alpha: float) -> None:
    if width < 1 or not 1 <= depth[0] <= depth[1]:
        raise ConfigurationError(
            f"Expected `width` of at least 1 and `depth` as (min, max) from 1, but got {width} and {depth}."
        )
    if not 0.1 <= severity <= 10 or alpha <= 0:
        raise ConfigurationError(f"Expected `severity` in 0.1..10 and `alpha` above 0, but got {severity} and {alpha}.")


def _sample_dirichlet(alpha: float, shape: tuple[int, int], generator: Generator) -> Tensor:
    """Sample columns from Dirichlet(α, …, α)."""
    concentration = torch.full(shape, alpha, dtype=torch.float64, device=generator.device)
    masses = torch._standard_gamma(concentration, generator=generator).clamp(min=torch.finfo(torch.float64).tiny)
    return (masses / masses.sum(dim=0)).float()


def _augmix_op(chains: Tensor, active: Tensor, severity: float, generator: Generator) -> Tensor:
    """Apply one random operation to every active chain; each operation runs once, on the chains that drew it."""

    def uniform() -> Tensor:
        return torch.rand(len(chains), generator=generator, device=generator.device, dtype=torch.float64)

    choices = torch.where(active, (uniform() * len(_OPERATIONS)).long() + 1, 0).cpu()
    levels = (0.1 + (severity - 0.1) * uniform()) * torch.where(uniform() < 0.5, -1.0, 1.0)
    order, sizes = choices.argsort(stable=True), choices.bincount(minlength=len(_OPERATIONS) + 1).tolist()
    members = order.to(chains.device)
    finished, *groups = torch.split(chains[members], sizes)
    _, *group_levels = torch.split(levels.cpu()[order].to(chains.device), sizes)
    jobs = zip(_OPERATIONS, groups, group_levels, strict=True)
    results = [operation(group, level) for operation, group, level in jobs if len(group)]
    return chains.index_copy(0, members, torch.cat([finished, *results]))


def _int_level(level: Tensor, max_value: float) -> Tensor:
    return (level * max_value / 10).trunc()


def _affine(images: Tensor, x: tuple[Tensor | float, ...], y: tuple[Tensor | float, ...]) -> Tensor:
    """Take pixel (x, y) from (a x + b y + c, d x + e y + f); pixels from outside are black."""
    height, width = images.shape[2:]
    across = torch.arange(width, device=images.device, dtype=torch.float64).view(1, 1, -1) + 0.5
    down = torch.arange(height, device=images.device, dtype=torch.float64).view(1, -1, 1) + 0.5
    (a, b, c), (d, e, f) = ([_per_row(value) for value in values] for values in (x, y))
    columns = (a * across + b * down + c).expand(len(images), height, width)
    rows = (d * across + e * down + f).expand(len(images), height, width)
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    values = bilinear(images, rows - 0.5, columns - 0.5)
    return torch.where(inside.unsqueeze(1), values, 0.0).to(torch.uint8)


def _lerp(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    return first + (second - first) * weight


def _per_image(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def _per_row(value: Tensor | float) -> Tensor | float:
    return value.double().view(-1, 1, 1) if isinstance(value, Tensor) else value
