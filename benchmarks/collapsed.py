"""What table 5 says of a network that has collapsed: it answers every image with one class, and which one decides.

    python benchmarks/collapsed.py --data data --weights weights [--images cifar10-c] [--limit N] [--out FOLDER]

Of such a network the confidence difference rests on the original one alone: an image that the original took for the
class has lost nothing, any other all that it had. So nothing is adapted here. The original network answers the stream
of table 5 once, with statistics of the batch, and every class in turn is taken for the one that is left.
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
from driftproof.bench.suites.settings import make_spec
from driftproof.corruptions import find_frost_photos
from driftproof.metrics import auroc, fpr_at_tpr
from driftproof.scores import confidence_difference
from tables import format_protocol, write_results

CERTAIN = 1e4
"""A logit beside which all others, at zero, come to nothing."""

PROTOCOLS = {"including": "wrong and unknown", "excluding": "unknown"}
"""The paper's two, and what is to be told from right answers under each."""

MEASURES = {"auroc": "AUROC", "fpr": "FPR@TPR95"}
SHOWN = 10
"""Classes in a table; of more, as many in even steps from the lowest AUROC to the highest."""


def answers(files: LocalFiles, spec: Spec, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """For each domain, the original network's logits, and the labels; −1 for what is unknown."""
    original = dp.bn_adapt(files.model(spec).to(device))
    for domain, batches in itertools.groupby(files.stream(spec, rounds=1), key=lambda batch: batch.domain):
        seen = [(original(batch.images.to(device)).cpu(), batch.labels) for batch in batches]
        logits, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
        wrong = (logits.argmax(dim=1) != labels)[labels >= 0].float().mean()
        print(f"{domain}: error {100 * float(wrong):.2f} %", flush=True)
        yield logits, labels


def scores_of(logits: Tensor, labels: Tensor, left: int) -> dict[str, float]:
    """Table 5's numbers of the confidence difference in one domain, if the network now answers one class alone.

    Args:
        logits: Of the original network, (N, C).
        labels: (N,); −1 for what is unknown.
        left: The class.
    """
    collapsed = CERTAIN * one_hot(torch.full_like(labels, left), logits.shape[1]).float()
    familiarity = -confidence_difference(collapsed, source_logits=logits)
    right = labels == left
    found = {"taken": 100 * float((logits.argmax(dim=1) == left)[labels < 0].float().mean())}
    for protocol, negatives in zip(PROTOCOLS, (~right, labels < 0), strict=True):
        found[f"{protocol}/auroc"] = 100 * auroc(familiarity[right], familiarity[negatives])
        found[f"{protocol}/fpr"] = 100 * fpr_at_tpr(familiarity[right], familiarity[negatives])
    return found


def page_of(by_class: dict[str, dict[str, float]], protocol: dict[str, Any]) -> str:
    """The classes in order of their AUROC, as a page of Markdown."""
    ranked = sorted(by_class, key=lambda left: by_class[left]["including/auroc"])
    steps = torch.linspace(0, len(ranked) - 1, min(SHOWN, len(ranked))).round().long().tolist()
    heads = [f"{title}, {words}" for words in PROTOCOLS.values() for title in MEASURES.values()]
    lines = ["| class that is left | " + " | ".join(heads) + " | unknown images that the original took for it |"]
    lines.append("|---|" + "---:|" * (len(heads) + 1))
    shown = [*(f"{told}/{measure}" for told in PROTOCOLS for measure in MEASURES), "taken"]
    for left in (ranked[step] for step in steps):
        lines.append(f"| {left} | " + " | ".join(f"{by_class[left][name]:.1f}" for name in shown) + " |")
    return "\n".join([*lines, *format_protocol(protocol)])


def main() -> int:
    """Measure, print, and write down where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True, help="folder of the source weights")
    parser.add_argument("--images", choices=("cifar10-c", "cifar100-c"), default="cifar10-c")
    parser.add_argument("--limit", type=int, help="only the first so many images of each domain")
    parser.add_argument("--frost", type=Path, help="folder of frost photos; otherwise the installed package's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder for a page, and for JSON beside it")
    arguments = parser.parse_args()
    spec = replace(make_spec("bn_adapt", arguments.images, "wrn40_2", unknown="svhn-c"), limit=arguments.limit)
    photos = find_frost_photos(arguments.frost)  # found missing here, not at the ninth domain
    files = LocalFiles(arguments.data, arguments.weights, arguments.frost, device=arguments.device)
    domains = list(answers(files, spec, arguments.device))
    logits, labels = domains[0]
    by_class = {
        str(left): {measure: fmean(found[measure] for found in everywhere) for measure in everywhere[0]}
        for left in range(logits.shape[1])
        if (labels == left).any()  # among few images not every class is there
        for everywhere in [[scores_of(*domain, left) for domain in domains]]
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
    page = page_of(by_class, protocol)
    print(page)
    if arguments.out:
        write_results(arguments.out, spec.images, {"protocol": protocol, "classes": by_class}, **{spec.images: page})
    return 0


if __name__ == "__main__":
    sys.exit(main())
