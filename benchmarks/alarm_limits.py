"""Show two streams whose scores an alarm cannot tell apart, although their right thresholds differ.

    python benchmarks/alarm_limits.py --data data --weights weights [--limit N] [--device cuda] [--out FOLDER]

CIFAR-10 images under contrast, all known, and under saturate, a tenth of them SVHN: quantiles of all scores, which an
alarm sees, and of those of known images, which it should go by. Scores and network are those of `alarms.py`.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import driftproof as dp
from alarms import SCORES, BothCosines, compute_scores
from driftproof.bench.environment import hardware
from driftproof.bench.local_files import LocalFiles
from driftproof.bench.spec import Spec
from driftproof.paper.suites import make_spec
from tables import format_protocol, write_results

QUANTILES = (0.02, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
STREAMS: dict[str, tuple[str, str | None, float]] = {
    "contrast, known only": ("contrast", None, 0.0),
    "saturate, a tenth unknown": ("saturate", "svhn-c", 0.1),
}


def make_stream_spec(domain: str, unknown: str | None, share: float, limit: int | None) -> Spec:
    """Return one domain of CIFAR-10-C with a share of unknown images."""
    spec = make_spec("bn_adapt", "cifar10-c", "wrn40_2", unknown=unknown)
    spec = replace(spec, domains=(domain,), limit=limit)
    return spec if unknown is None else replace(spec, unknown_share=share)


def find_quantiles(scores: Tensor) -> list[float]:
    """Return the quantiles of scores."""
    found = torch.quantile(scores.double(), torch.tensor(QUANTILES, dtype=torch.float64))
    return [round(float(value), 3) for value in found]


def format_page(found: dict[str, dict[str, list[float]]], protocol: dict[str, Any]) -> str:
    """Return the quantiles as a page of Markdown."""
    lines = [f"Quantiles of the {SCORES[0]} of two streams.", ""]
    lines.append("| stream | images | " + " | ".join(f"{100 * share:g} %" for share in QUANTILES) + " |")
    lines.append("|---|---|" + "---:|" * len(QUANTILES))
    for name, groups in found.items():
        for group, values in groups.items():
            lines.append(f"| {name} | {group} | " + " | ".join(f"{value:.2f}" for value in values) + " |")
    return "\n".join([*lines, *format_protocol(protocol)])


def main() -> int:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True, help="folder of the source weights")
    parser.add_argument("--limit", type=int, help="only the first so many known images")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder for limits.json and .md")
    arguments = parser.parse_args()
    files = LocalFiles(arguments.data, arguments.weights, device=arguments.device)
    found: dict[str, dict[str, list[float]]] = {}
    for name, stream in STREAMS.items():
        spec = make_stream_spec(*stream, arguments.limit)
        network = dp.bn_adapt(files.model(spec).to(arguments.device), novelty=BothCosines())
        batches = list(files.stream(spec, rounds=1))
        scores = torch.cat([compute_scores(network, batch.images.to(arguments.device))[SCORES[0]] for batch in batches])
        known = torch.cat([batch.labels for batch in batches]) >= 0
        found[name] = {"all": find_quantiles(scores), "known": find_quantiles(scores[known])}
    protocol = {
        "images": "cifar10-c",
        "known": arguments.limit or "all",
        "severity": 5,
        "network": "wrn40_2, frozen, batch statistics",
        "batch": 200,
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "machine": hardware(torch.device(arguments.device)),
    }
    page = format_page(found, protocol)
    print(page)
    if arguments.out:
        write_results(arguments.out, "limits", {"protocol": protocol, "quantiles": QUANTILES, **found}, limits=page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
