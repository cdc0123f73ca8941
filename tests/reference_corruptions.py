"""Reference corruptions for single images, written from their description with numpy, scipy and Pillow.

Images are float arrays (H, W, 3) in [0, 1], and so are results, before clipping. Constants are arguments.
"""

import colorsys
import io
import math

import cv2
import numpy as np
import scipy.ndimage
from PIL import Image


def gaussian_noise(x, c, rng):
    return x + rng.normal(0, c, x.shape)


def shot_noise(x, c, rng):
    return rng.poisson(x * c) / c


def impulse_noise(x, c, rng):
    hit = rng.random(x.shape) < c
    return np.where(hit, rng.integers(0, 2, x.shape), x)


def speckle_noise(x, c, rng):
    return x + x * rng.normal(0, c, x.shape)


def defocus_blur(x, c, rng):
    radius, alias = c
    reach = 8 if radius <= 8 else int(radius)
    span = np.arange(-reach, reach + 1)
    disk = (span[None] ** 2 + span[:, None] ** 2 <= radius**2).astype(float)
    disk /= disk.sum()
    half = 1 if radius <= 8 else 2
    bell = np.exp(-0.5 * (np.arange(-half, half + 1) / alias) ** 2)
    bell /= bell.sum()
    for axis in (0, 1):
        disk = scipy.ndimage.correlate1d(disk, bell, axis=axis, mode="mirror")
    return np.stack([scipy.ndimage.correlate(x[..., k], disk, mode="mirror") for k in range(3)], axis=-1)


def gaussian_filter(x, sigma):
    return scipy.ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest", truncate=4.0)


def gaussian_blur(x, c, rng):
    return gaussian_filter(x, c)


def glass_blur(x, c, rng):
    sigma, reach, rounds = c
    x = (np.clip(gaussian_filter(x, sigma), 0, 1) * 255).astype(np.uint8)
    side = x.shape[0]
    for _ in range(rounds):
        shifts = rng.integers(-reach, reach, (side + 1, side + 1, 2)).tolist()
        for h in range(side - reach, reach, -1):
            for w in range(side - reach, reach, -1):
                dx, dy = shifts[h][w]
                x[h, w] = x[h + dy, w + dx]
    return gaussian_filter(x / 255, sigma)


def motion_filter(x, radius, sigma, degrees):
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    rows, columns = np.indices(x.shape[:2])
    total = np.zeros_like(x)
    for i, weight in enumerate(weights):
        dx = math.ceil(i * math.cos(math.radians(degrees)) - 0.5)
        dy = math.ceil(i * math.sin(math.radians(degrees)) - 0.5)
        total += weight * x[np.clip(rows + dy, 0, x.shape[0] - 1), np.clip(columns + dx, 0, x.shape[1] - 1)]
    return total


def motion_blur(x, c, rng):
    return motion_filter(x, *c, rng.uniform(-45, 45))


def zoom_center(x, factor):
    side = x.shape[0]
    part = math.ceil(side / factor)
    start = (side - part) // 2
    window = x[start : start + part, start : start + part]
    large = scipy.ndimage.zoom(window, (factor, factor, 1)[: x.ndim], order=1)
    trim = (large.shape[0] - side) // 2
    return large[trim : trim + side, trim : trim + side]


def zoom_blur(x, c, rng):
    return (x + sum(zoom_center(x, factor) for factor in c)) / (len(c) + 1)


def snow(x, c, rng):
    mean, sigma, zoom, threshold, radius, blur, mix = c
    layer = zoom_center(rng.normal(mean, sigma, x.shape[:2]), zoom)
    layer[layer < threshold] = 0
    layer = (np.clip(layer, 0, 1) * 255).astype(np.uint8).astype(float)
    layer = np.round(motion_filter(layer, radius, blur, rng.uniform(-135, -45))) / 255
    gray = x @ [0.299, 0.587, 0.114]
    white = mix * x + (1 - mix) * np.maximum(x, (1.5 * gray + 0.5)[..., None])
    return white + layer[..., None] + np.rot90(layer, 2)[..., None]


def frost(x, c, rng, photos):
    photo = photos[rng.integers(len(photos))]
    side = x.shape[0]
    top, left = rng.integers(0, photo.shape[0] - side), rng.integers(0, photo.shape[1] - side)
    return c[0] * x + c[1] * photo[top : top + side, left : left + side] / 255


def plasma_fractal(side, decay, rng):
    """Plasma fractal by diamond–square on a torus, point by point."""
    cloud = [[0.0] * side for _ in range(side)]
    step, wobble = side, 100.0

    def set_point(y, x, neighbors):
        mean = sum(cloud[a % side][b % side] for a, b in neighbors) / 4
        cloud[y][x] = mean + wobble * rng.uniform(-wobble, wobble)

    while step >= 2:
        half = step // 2
        for i in range(0, side, step):
            for j in range(0, side, step):
                set_point(i + half, j + half, [(i + a, j + b) for a in (0, step) for b in (0, step)])
        for i in range(0, side, step):
            for j in range(0, side, step):
                for y, x in ((i, j + half), (i + half, j)):
                    set_point(y, x, [(y - half, x), (y + half, x), (y, x - half), (y, x + half)])
        step, wobble = half, wobble / decay
    cloud = np.array(cloud)
    cloud -= cloud.min()
    return cloud / cloud.max()


def fog(x, c, rng):
    veil = plasma_fractal(32, c[1], rng)[: x.shape[0], : x.shape[1], None]
    return (x + c[0] * veil) * x.max() / (x.max() + c[0])


def per_pixel(x, change):
    return np.array([[change(*pixel) for pixel in row] for row in x])


def brightness(x, c, rng):
    def change(*rgb):
        h, s, v = colorsys.rgb_to_hsv(*rgb)
        return colorsys.hsv_to_rgb(h, s, min(max(v + c, 0), 1))

    return per_pixel(x, change)


def saturate(x, c, rng):
    def change(*rgb):
        h, s, v = colorsys.rgb_to_hsv(*rgb)
        return colorsys.hsv_to_rgb(h, min(max(s * c[0] + c[1], 0), 1), v)

    return per_pixel(x, change)


def contrast(x, c, rng):
    mean = x.mean(axis=(0, 1), keepdims=True)
    return (x - mean) * c + mean


def elastic_transform(x, c, rng, reference):
    alpha, sigma, jitter = (value * reference for value in c)
    side = x.shape[0]
    center, reach = side // 2, side // 3
    start = np.array(
        [(center + reach, center + reach), (center + reach, center - reach), (center - reach, center - reach)]
    )
    end = start + rng.uniform(-jitter, jitter, (3, 2))
    # The affine map from the moved anchors to the original ones: [x y 1] @ matrix.
    matrix = np.linalg.solve(np.column_stack([end, np.ones(3)]), start)
    rows, columns = np.indices((side, side)).astype(float)
    source_x, source_y = np.moveaxis(np.stack([columns, rows, np.ones_like(rows)], -1) @ matrix, -1, 0)
    x = np.stack([sample_bilinear(x[..., k], source_y, source_x, "mirror") for k in range(3)], -1)
    if alpha == 0:
        return x

    def field():
        noise = rng.uniform(-1, 1, (side, side))
        return alpha * scipy.ndimage.gaussian_filter(noise, sigma, mode="reflect", truncate=3.0)

    dx, dy = field(), field()
    return np.stack([sample_bilinear(x[..., k], rows + dy, columns + dx, "reflect") for k in range(3)], -1)


def sample_bilinear(channel, rows, columns, mode):
    return scipy.ndimage.map_coordinates(channel, [rows, columns], order=1, mode=mode)


def as_image(x):
    return Image.fromarray(np.round(x * 255).astype(np.uint8))


def pixelate(x, c, rng):
    height, width = x.shape[:2]
    small = as_image(x).resize((int(width * c), int(height * c)), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX)) / 255


def jpeg_compression(x, c, rng):
    buffer = io.BytesIO()
    as_image(x).save(buffer, "JPEG", quality=c)
    return np.asarray(Image.open(buffer)) / 255


def water(x, c, rng):
    """Spatter with water; edges and distances are those of OpenCV, as in the description."""
    mean, sigma, blur, threshold, strength, _ = c
    layer = scipy.ndimage.gaussian_filter(rng.normal(mean, sigma, x.shape[:2]), blur, mode="nearest")
    layer[layer < threshold] = 0
    drops = (np.clip(layer, 0, 1) * 255).astype(np.uint8)
    distance = np.minimum(cv2.distanceTransform(255 - cv2.Canny(drops, 50, 150), cv2.DIST_L2, 5), 20)
    rim = cv2.equalizeHist(cv2.blur(distance, (3, 3)).astype(np.uint8))
    rim = cv2.filter2D(rim, cv2.CV_8U, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]))
    shaded = drops * cv2.blur(rim, (3, 3)).astype(float)
    shaded = shaded / max(shaded.max(), 1e-12) * strength
    return x + shaded[..., None] * np.array([175, 238, 238]) / 255


def mud(x, c, rng):
    """Spatter with mud."""
    mean, sigma, blur, threshold, strength, _ = c
    layer = scipy.ndimage.gaussian_filter(rng.normal(mean, sigma, x.shape[:2]), blur, mode="nearest")
    mask = scipy.ndimage.gaussian_filter((layer > threshold).astype(float), strength, mode="nearest")
    mask[mask < 0.8] = 0
    return x * (1 - mask[..., None]) + mask[..., None] * np.array([63, 42, 20]) / 255


def to_uint8(x):
    """Convert to 8 bits by truncation."""
    return (np.clip(x, 0, 1) * 255 + 1e-6).astype(np.uint8)
