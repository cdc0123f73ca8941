"""Time the batched corruptions against `imagecorruptions-imaug`, in images per second.

    python benchmarks/corruptions.py [--images 1000] [--reference-images 60] [--severity 5] [--device cpu] [--json FILE]

Both corrupt 32×32 images with all fifteen corruptions at one severity, on the same threads. Speed is the number of
images over the total time. On a CPU ours must be at least ten times the reference's; on another device only ours is
measured.
"""

import argparse
import platform
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor

import driftproof as dp
from driftproof.bench.environment import hardware
from driftproof.corruptions import CORRUPTIONS, corrupt
from tables import write_json

MIN_RATIO = 10.0


def time_ours(images: Tensor, severity: int) -> dict[str, float]:
    """Return the seconds per image of each corruption."""
    taken = {}
    for name in CORRUPTIONS:
        corrupt(images[:64], name, severity)  # the first call loads constants and photos
        start = time.perf_counter()
        corrupt(images, name, severity)
        if images.is_cuda:
            torch.cuda.synchronize()
        taken[name] = (time.perf_counter() - start) / len(images)
    return taken


def time_reference(images: Tensor, severity: int) -> dict[str, float]:
    """Return the same for the reference, which takes one image at a time."""
    from imagecorruptions import corrupt as reference

    arrays = images.permute(0, 2, 3, 1).contiguous().numpy()
    taken = {}
    for name in CORRUPTIONS:
        reference(arrays[0], severity=severity, corruption_name=name)
        start = time.perf_counter()
        for array in arrays:
            reference(array, severity=severity, corruption_name=name)
        taken[name] = (time.perf_counter() - start) / len(arrays)
    return taken


def main() -> int:
    """Measure, print, and return 1 if ours is too slow."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--reference-images", type=int, default=60)
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # the reference warns about its own use of its libraries
    generator = torch.Generator().manual_seed(0)
    images = (256 * torch.rand(arguments.images, 3, 32, 32, generator=generator)).to(torch.uint8)
    ours = time_ours(images.to(arguments.device), arguments.severity)
    theirs = (
        time_reference(images[: arguments.reference_images], arguments.severity) if arguments.device == "cpu" else {}
    )
    print(f"torch {torch.__version__}  threads {torch.get_num_threads()}  {platform.machine()}  {arguments.device}")
    print(f"{'images per second':<20} {'driftproof':>12} {'reference':>12} {'ratio':>8}")
    for name, seconds in ours.items():
        line = f"{name:<20} {1 / seconds:12.0f}"
        print(line + (f" {1 / theirs[name]:12.0f} {theirs[name] / seconds:8.1f}" if theirs else ""))
    speed = len(ours) / sum(ours.values())
    ratio = sum(theirs.values()) / sum(ours.values()) if theirs else None
    print(
        f"{'all fifteen':<20} {speed:12.0f}"
        + (f" {len(theirs) / sum(theirs.values()):12.0f} {ratio:8.1f}" if ratio else "")
    )
    print(f"150,000 images (a whole severity of CIFAR-10-C) would take {150_000 / speed:.0f} s")
    if arguments.json:
        rows = {
            "driftproof": dp.__version__,
            "torch": torch.__version__,
            "hardware": hardware(torch.device(arguments.device)),
            "threads": torch.get_num_threads(),
            "images": arguments.images,
            "severity": arguments.severity,
            "seconds": ours,
            "reference_seconds": theirs,
            "ratio": ratio,
        }
        write_json(arguments.json, rows)
    return 0 if ratio is None or ratio >= MIN_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
