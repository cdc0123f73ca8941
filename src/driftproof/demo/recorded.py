"""Curves of recorded runs: what happens to TENT over fifty rounds, and what prevents it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driftproof.bench.frames import load
from driftproof.bench.libraries import pl
from driftproof.files import atomic_write

__all__ = ["RECORDED", "load_recorded", "record_curves"]

RECORDED = Path(__file__).parent / "recorded.json"
"""Error per round of recorded methods, written by `record_curves`."""

_METHODS = ("tent", "tent+crowd", "bn_adapt", "source")


def record_curves(archive: Path, out: Path = RECORDED) -> None:
    """Write the mean error over the corruptions, per round, of recorded runs on CIFAR-10-C among unknown images.

    Args:
        archive: Folder of results, such as `results/classification`.
        out: Where the curves go.
    """
    rows = load(archive).filter(
        pl.col("measure") == "error",
        pl.col("stream") == "cifar10-c",
        pl.col("setting") == "open",
        pl.col("seed") == 0,
        pl.col("method").is_in(_METHODS),
    )
    means = rows.group_by("method", "round").agg(pl.col("value").mean()).sort("method", "round")
    curves = {method: means.filter(method=method)["value"].round(2).to_list() for method in _METHODS}
    content = {
        "about": "Error in % per round through fifteen corruptions of CIFAR-10. Half of all images are of unknown "
        "classes (SVHN). WRN-40-2, batches of 200, never reset. source and bn_adapt learn nothing: their error is "
        "constant. The runs are archived in the project's results folder.",
        "curves": curves,
    }
    with atomic_write(out) as unfinished:
        unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load_recorded() -> Mapping[str, Any]:
    """Return the curves by method, and a sentence about them."""
    content: Mapping[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return content
