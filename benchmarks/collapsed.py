"""Compute Table 5's scores of a collapsed network, which predicts one class for every image.

    python benchmarks/collapsed.py --data data --weights weights [--images cifar10-c] [--limit N] [--out FOLDER]

The confidence difference of a collapsed network depends on the source network only: the confidence is unchanged where
the source network predicts the remaining class, and lost everywhere else. So nothing is adapted here. The source
network predicts the stream of Table 5 once, with batch statistics. Every class in turn is then the remaining one.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

import driftproof as dp
from driftproof.bench import Spec
from driftproof.bench.environment import hardware
from driftproof.bench.local_files import LocalFiles
from driftproof.corruptions import find_frost_photos
from driftproof.metrics import auroc, fpr_at_tpr
from driftproof.paper.suites import make_spec
from driftproof.scores import confidence_difference
from tables import format_protocol, write_results

CERTAIN = 1e4
"""A logit so large that the softmax of all others, at zero, is 0."""

PROTOCOLS = {"including": "wrong and unknown", "excluding": "unknown"}
"""The paper's two protocols, and the negatives of each; the positives are correct predictions."""

MEASURES = {"auroc": "AUROC", "fpr": "FPR@TPR95"}
MAX_ROWS = 10
"""Classes in a table; of more classes, evenly spaced ones from the lowest AUROC to the highest."""


def predict_domains(files: LocalFiles, spec: Spec, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the source network's logits and the labels of each domain; an unknown image has label −1."""
    original = dp.bn_adapt(files.model(spec).to(device))
    for domain, batches in itertools.groupby(files.stream(spec, rounds=1), key=lambda batch: batch.domain):
        seen = [(original(batch.images.to(device)).cpu(), batch.labels) for batch in batches]
        logits, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
        wrong = (logits.argmax(dim=1) != labels)[labels >= 0].float().mean()
        print(f"{domain}: error {100 * float(wrong):.2f} %", flush=True)
        yield logits, labels


def compute_scores(logits: Tensor, labels: Tensor, remaining: int) -> dict[str, float]:
    """Return Table 5's scores of the confidence difference in one domain, for a collapsed network.

    Args:
        logits: Of the source network, (N, C).
        labels: (N,); −1 for an unknown image.
        remaining: The class that the collapsed network predicts.
    """
    collapsed = CERTAIN * one_hot(torch.full_like(labels, remaining), logits.shape[1]).float()
    familiarity = -confidence_difference(collapsed, source_logits=logits)
    right = labels == remaining
    scores = {"taken": 100 * float((logits.argmax(dim=1) == remaining)[labels < 0].float().mean())}
    for protocol, negatives in zip(PROTOCOLS, (~right, labels < 0), strict=True):
        scores[f"{protocol}/auroc"] = 100 * auroc(familiarity[right], familiarity[negatives])
        scores[f"{protocol}/fpr"] = 100 * fpr_at_tpr(familiarity[right], familiarity[negatives])
    return scores


def format_page(by_class: dict[str, dict[str, float]], protocol: dict[str, Any]) -> str:
    """Return the classes, sorted by their AUROC, as a page of Markdown."""
    ranked = sorted(by_class, key=lambda name: by_class[name]["including/auroc"])
    steps = torch.linspace(0, len(ranked) - 1, min(MAX_ROWS, len(ranked))).round().long().tolist()
    heads = [f"{title}, {words}" for words in PROTOCOLS.values() for title in MEASURES.values()]
    lines = ["| class that is left | " + " | ".join(heads) + " | unknown images that the original took for it |"]
    lines.append("|---|" + "---:|" * (len(heads) + 1))
    shown = [*(f"{name}/{measure}" for name in PROTOCOLS for measure in MEASURES), "taken"]
    for remaining in (ranked[step] for step in steps):
        lines.append(f"| {remaining} | " + " | ".join(f"{by_class[remaining][name]:.1f}" for name in shown) + " |")
    return "\n".join([*lines, *format_protocol(protocol)])


def main() -> int:
    """Compute, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True, help="folder of the source weights")
    parser.add_argument("--images", choices=("cifar10-c", "cifar100-c"), default="cifar10-c")
    parser.add_argument("--limit", type=int, help="only the first so many images of each domain")
    parser.add_argument("--frost", type=Path, help="folder of frost photos; otherwise the installed package's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder for IMAGES.json and the table in IMAGES.md")
    arguments = parser.parse_args()
    spec = replace(make_spec("bn_adapt", arguments.images, "wrn40_2", unknown="svhn-c"), limit=arguments.limit)
    photos = find_frost_photos(arguments.frost)  # fails here if missing, not at the ninth domain
    files = LocalFiles(arguments.data, arguments.weights, arguments.frost, device=arguments.device)
    domains = list(predict_domains(files, spec, arguments.device))
    logits, labels = domains[0]
    by_class = {
        str(remaining): {measure: fmean(scores[measure] for scores in per_domain) for measure in per_domain[0]}
        for remaining in range(logits.shape[1])
        if (labels == remaining).any()  # with --limit not every class occurs
        for per_domain in [[compute_scores(*domain, remaining) for domain in domains]]
    }
    protocol = {
        "images": spec.images,
        "of each domain": spec.limit or "all",
        "severity": spec.severity,
        "unknown": spec.unknown,
        "frost": photos.origin,
        "network": spec.model,
        "batch": spec.batch_size,
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "machine": hardware(torch.device(arguments.device)),
    }
    page = format_page(by_class, protocol)
    print(page)
    if arguments.out:
        write_results(arguments.out, spec.images, {"protocol": protocol, "classes": by_class}, **{spec.images: page})
    return 0


if __name__ == "__main__":
    sys.exit(main())
