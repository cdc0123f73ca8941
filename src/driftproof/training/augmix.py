"""AugMix as batched tensor operations, with the arithmetic of Pillow.

An operation takes images as bytes, (N, C, H, W), and one strength per image, and returns bytes: between two operations
a chain rounds as it would with Pillow.
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

    (1 − m) x + m Σ_k w_k chain_k(x), w ~ Dirichlet(α, …, α), m ~ Beta(α, α); every image draws its own. The images come
    back with values in [0, 1]; a normalization afterwards changes nothing, since the weights sum to one.

    With a generator on the CPU the draws are the same on every device, and none of them waits for it.

    Args:
        images: Bytes of shape (N, C, H, W).
        generator: Source of every random choice.
        width: Chains per image.
        depth: Fewest and most operations in a chain.
        severity: An operation's level is drawn from U[0.1, severity], out of 10.
        alpha: α, the concentration of the weights.

    Examples:
        >>> images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
        >>> view = augmix(images, torch.Generator().manual_seed(0))
        >>> view.shape, view.dtype
        (torch.Size([4, 3, 8, 8]), torch.float32)

    Reference:
        Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty", ICLR 2020.
    """
    expect_bytes(images)
    _expect_settings(width, depth, severity, alpha)
    count, device = len(images), images.device
    weights = _dirichlet(alpha, (width, count), generator).to(device)
    blend = _dirichlet(alpha, (2, count), generator)[0].to(device)
    lengths = torch.randint(depth[0], depth[1] + 1, (width * count,), generator=generator, device=generator.device)
    chains = images.repeat(width, 1, 1, 1)
    for position in range(depth[1]):
        chains = _link(chains, lengths > position, severity, generator)
    mixture = (weights.view(width, count, 1, 1, 1) * chains.view(width, *images.shape)).sum(dim=0)
    view = images + blend.view(-1, 1, 1, 1) * (mixture - images)
    return (view / 255.0).clamp(0.0, 1.0)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch every channel to the whole range 0..255."""
    low, high = images.amin(dim=(2, 3), keepdim=True).double(), images.amax(dim=(2, 3), keepdim=True).double()
    # A number divided by a tensor would be a product with the reciprocal, which rounds twice.
    scale = torch.full_like(low, 255.0) / (high - low).clamp(min=1.0)
    stretched = images * scale - low * scale
    return torch.where(high > low, stretched.clamp(0.0, 255.0).to(torch.uint8), images)


def equalize(images: Tensor) -> Tensor:
    """Spread the values of every channel evenly over 0..255."""
    pixels = images.flatten(2).long()
    counts = pixels.new_zeros(*pixels.shape[:2], 256).scatter_add_(2, pixels, torch.ones_like(pixels))
    brightest = counts.gather(2, pixels.amax(dim=2, keepdim=True))
    step = (pixels.shape[2] - brightest) // 255
    darker = counts.cumsum(dim=2) - counts
    table = ((step // 2 + darker) // step.clamp(min=1)).clamp(max=255).to(torch.uint8)
    return torch.where(step.unsqueeze(3) > 0, table.gather(2, pixels).view(images.shape), images)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the leading `bits`, 0..8, of every value."""
    return images & _per_image(256 - 2 ** (8 - bits.long())).to(torch.uint8)


def solarize(images: Tensor, thresholds: Tensor) -> Tensor:
    """Invert the values from the threshold, 0..256, on."""
    return torch.where(images < _per_image(thresholds), images, 255 - images)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate counter-clockwise about the centre."""
    middle_y, middle_x = images.shape[2] / 2, images.shape[3] / 2
    cos, sin = torch.cos(torch.deg2rad(degrees.double())), torch.sin(torch.deg2rad(degrees.double()))
    shift_x = middle_x - cos * middle_x + sin * middle_y
    shift_y = middle_y - sin * middle_x - cos * middle_y
    return _affine(images, (cos, -sin, shift_x), (sin, cos, shift_y))


def shear_x(images: Tensor, factors: Tensor) -> Tensor:
    """Take a pixel from further right the lower it lies."""
    return _affine(images, (1.0, factors, 0.0), (0.0, 1.0, 0.0))


def shear_y(images: Tensor, factors: Tensor) -> Tensor:
    """Take a pixel from further down the more to the right it lies."""
    return _affine(images, (1.0, 0.0, 0.0), (factors, 1.0, 0.0))


def translate_x(images: Tensor, pixels: Tensor) -> Tensor:
    """Move to the left."""
    return _affine(images, (1.0, 0.0, pixels), (0.0, 1.0, 0.0))


def translate_y(images: Tensor, pixels: Tensor) -> Tensor:
    """Move up."""
    return _affine(images, (1.0, 0.0, 0.0), (0.0, 1.0, pixels))


# Each takes images and their levels, whose signs are the directions.
_OPERATIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda images, level: autocontrast(images),
    lambda images, level: equalize(images),
    lambda images, level: posterize(images, 4 - _whole(level.abs(), 4)),
    lambda images, level: rotate(images, level * 30 / 10),
    lambda images, level: solarize(images, 256 - _whole(level.abs(), 256)),
    lambda images, level: shear_x(images, level * 0.3 / 10),
    lambda images, level: shear_y(images, level * 0.3 / 10),
    lambda images, level: translate_x(images, _whole(level, images.shape[3] / 3)),
    lambda images, level: translate_y(images, _whole(level, images.shape[2] / 3)),
)


def bilinear(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Values of (N, C, H, W) images between their pixels, in double precision; beyond the edge the edge continues.

    Args:
        images: Images of any type.
        rows: Where to look, broadcast with `columns` to (N, height, width); the first pixel's centre is at 0.
        columns: Likewise.
    """
    last_row, last_column = images.shape[2] - 1, images.shape[3] - 1
    rows, columns = rows.clamp(0, last_row), columns.clamp(0, last_column)
    top, left = rows.long(), columns.long()
    bottom, right = (top + 1).clamp(max=last_row), (left + 1).clamp(max=last_column)
    down, along = (rows - top).unsqueeze(1), (columns - left).unsqueeze(1)
    pixels = images.flatten(2)

    def at(row: Tensor, column: Tensor) -> Tensor:
        place = row * images.shape[3] + column
        values = pixels.gather(2, place.flatten(1).unsqueeze(1).expand(-1, pixels.shape[1], -1))
        return values.view(*pixels.shape[:2], *place.shape[1:]).double()

    upper = _between(at(top, left), at(top, right), along)
    lower = _between(at(bottom, left), at(bottom, right), along)
    return _between(upper, lower, down)


def expect_bytes(images: Tensor) -> None:
    """Refuse what is not a batch of images as bytes."""
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise InputError(
            "Expected images of type uint8 and shape (N, C, H, W), "
            f"but got {str(images.dtype).removeprefix('torch.')} of shape {tuple(images.shape)}. "
            "Multiply values in [0, 1] by 255 and round them."
        )


def _expect_settings(width: int, depth: tuple[int, int], severity: float, alpha: float) -> None:
    if width < 1 or not 1 <= depth[0] <= depth[1]:
        raise ConfigurationError(
            f"Expected `width` of at least 1 and `depth` as (fewest, most) from 1 on, but got {width} and {depth}."
        )
    if not 0.1 <= severity <= 10 or alpha <= 0:
        raise ConfigurationError(f"Expected `severity` in 0.1..10 and `alpha` above 0, but got {severity} and {alpha}.")


def _dirichlet(alpha: float, shape: tuple[int, int], generator: Generator) -> Tensor:
    """Columns drawn from Dirichlet(α, …, α)."""
    concentration = torch.full(shape, alpha, dtype=torch.float64, device=generator.device)
    masses = torch._standard_gamma(concentration, generator=generator).clamp(min=torch.finfo(torch.float64).tiny)
    return (masses / masses.sum(dim=0)).float()


def _link(chains: Tensor, going: Tensor, severity: float, generator: Generator) -> Tensor:
    """Apply one operation to every chain that is still going: each operation once, to those that drew it."""

    def draw() -> Tensor:
        return torch.rand(len(chains), generator=generator, device=generator.device, dtype=torch.float64)

    choices = torch.where(going, (draw() * len(_OPERATIONS)).long() + 1, 0).cpu()
    levels = (0.1 + (severity - 0.1) * draw()) * torch.where(draw() < 0.5, -1.0, 1.0)
    order, sizes = choices.argsort(stable=True), choices.bincount(minlength=len(_OPERATIONS) + 1).tolist()
    members = order.to(chains.device)
    ended, *parts = torch.split(chains[members], sizes)
    _, *strengths = torch.split(levels.cpu()[order].to(chains.device), sizes)
    drawn = zip(_OPERATIONS, parts, strengths, strict=True)
    linked = [operation(part, strength) for operation, part, strength in drawn if len(part)]
    return chains.index_copy(0, members, torch.cat([ended, *linked]))


def _whole(level: Tensor, largest: float) -> Tensor:
    return (level * largest / 10).trunc()


def _affine(images: Tensor, x: tuple[Tensor | float, ...], y: tuple[Tensor | float, ...]) -> Tensor:
    """Pixel (x, y) is taken from (a x + b y + c, d x + e y + f); what comes from outside is black."""
    height, width = images.shape[2:]
    across = torch.arange(width, device=images.device, dtype=torch.float64).view(1, 1, -1) + 0.5
    down = torch.arange(height, device=images.device, dtype=torch.float64).view(1, -1, 1) + 0.5
    (a, b, c), (d, e, f) = ([_per_row(value) for value in values] for values in (x, y))
    columns = (a * across + b * down + c).expand(len(images), height, width)
    rows = (d * across + e * down + f).expand(len(images), height, width)
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    values = bilinear(images, rows - 0.5, columns - 0.5)
    return torch.where(inside.unsqueeze(1), values, 0.0).to(torch.uint8)


def _between(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    return first + (second - first) * share


def _per_image(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def _per_row(value: Tensor | float) -> Tensor | float:
    return value.double().view(-1, 1, 1) if isinstance(value, Tensor) else value
