"""Measure from which shift on learning helps, to choose where `statistics.Auto` holds it back.

    python benchmarks/learning_threshold.py --data DIR --weights DIR --out DIR [--device cuda] [--networks small-0]

Images are CIFAR-10's: clean, and under the held-out corruptions of severities 1, 3 and 5. They are the third and fourth
thousand of the test images, so none is in the rows of `safety.py`. Networks are the provided WRN-40-2 and small ones
trained on 5,000 images with different seeds. Each stream is answered by the source network and by `dp.adapt` in three
ways: it never learns, it learns whatever the shift is, and it learns and answers with the mean of the adapted and the
frozen network. The page lists for each threshold of `least_cap` what the rule would have done. Networks can be measured
by several commands with the same `--out`.
"""

import argparse
import json
import sys
import warnings
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn

import driftproof as dp
from cifar_domains import CLEAN, Domain, load_domains
from driftproof.bench.environment import hardware
from driftproof.corruptions import HELD_OUT
from driftproof.models import build_from_checkpoint
from driftproof.streams import Shuffled
from small_network import load_small_network
from tables import format_protocol, write_json, write_results

SMALL = tuple(f"small-{seed}" for seed in range(3))
NETWORKS = ("wrn40_2", *SMALL)
SEVERITIES = (1, 3, 5)
SIZES = (64, 200)
THRESHOLDS = (0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7)
ANSWERS = {"learned": "adapted", "averaged": "mean of adapted and frozen"}
NEVER, ALWAYS = 1.0, 0.0
"""As `least_cap`: the cap never reaches `share` as long as no extra pass lifts it, and is never below 0."""


def load_network(name: str, arguments: argparse.Namespace) -> nn.Module:
    """Return a network; a small one is trained if need be."""
    if name not in SMALL:
        return build_from_checkpoint(arguments.weights / f"{name}_cifar10.pt").to(arguments.device).eval()
    seed, path = int(name.removeprefix("small-")), arguments.out / f"{name}.safetensors"
    return load_small_network(path, arguments.data, device=arguments.device, epochs=arguments.epochs, seed=seed)


def load_streams(arguments: argparse.Namespace) -> list[tuple[str, Domain]]:
    """Return the images of each condition, by its name."""
    half, found = arguments.images, []
    for names, severity in (((CLEAN,), 5), *((HELD_OUT, severity) for severity in SEVERITIES)):
        for domain in load_domains(arguments.data, names, device=arguments.device, count=2 * half, severity=severity):
            title = domain.name if domain.name == CLEAN else f"{domain.name} {severity}"
            found.append((title, Domain(domain.name, domain.pixels[half:], domain.labels[half:])))
    return found


def measure(model: nn.Module, domain: Domain, size: int) -> dict[str, float]:
    """Return accuracies in % without and with learning, and the usual cap as a part of `share`."""
    order = Shuffled()(domain.labels.cpu(), domain.name, 0).to(domain.labels.device)
    batches = [(domain.images(indices), domain.labels[indices]) for indices in torch.split(order, size)]
    with torch.no_grad():
        found = {"source": _accuracy([(model(images), labels) for images, labels in batches])}
    arms: dict[str, tuple[float, dict[str, Any]]] = {
        "held": (NEVER, {}),
        "learned": (ALWAYS, {}),
        "averaged": (ALWAYS, {"output": dp.outputs.Ensemble()}),
    }
    for name, (least_cap, options) in arms.items():
        statistics = dp.statistics.Auto(least_cap=least_cap)
        adapter, answers, caps = dp.adapt(model, statistics=statistics, engine="eager", **options), [], []
        for images, labels in batches:
            answers.append((adapter(images), labels))
            caps.append(float(adapter.statistics.cap) / statistics.share)  # type: ignore[arg-type]  # Auto's
        found |= {name: _accuracy(answers), f"cap {name}": median(caps), f"largest cap {name}": max(caps)}
    return found


def _accuracy(answers: list[tuple[Tensor, Tensor]]) -> float:
    right = torch.cat([logits.argmax(dim=1) == labels for logits, labels in answers])
    return 100 * float(right.float().mean())


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Read what was measured so far."""
    files = (folder / f"learning-{name}.json" for name in NETWORKS)
    return [row for path in files if path.exists() for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]


def format_page(rows: list[dict[str, Any]], protocol: dict[str, Any]) -> str:
    """Return what each threshold would have done, and all rows, by cap."""
    lines = ["Accuracy in %, `dp.adapt` less source, if it learns from a cap of so much of `share` on:", ""]
    lines += [
        "| answer | least cap | worst | its row | worst on clean images | mean |",
        "|---|---:|---:|---|---:|---:|",
    ]
    for answer in ANSWERS:
        for threshold in THRESHOLDS:
            gains = [(choose(row, answer, threshold) - row["source"], describe(row)) for row in rows]
            clean = min(gain for (gain, _), row in zip(gains, rows, strict=True) if row["stream"] == CLEAN)
            worst, where = min(gains)
            mean = fmean(gain for gain, _ in gains)
            lines.append(f"| {ANSWERS[answer]} | {threshold:g} | {worst:+.2f} | {where} | {clean:+.2f} | {mean:+.2f} |")
    lines += ["", "| stream | cap | largest cap | source | never learns | always learns | … and averages |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|"]
    for row in sorted(rows, key=lambda row: row["cap held"]):
        numbers = [f"{row[key]:.1f}" for key in ("source", "held", *ANSWERS)]
        caps = [f"{row[key]:.2f}" for key in ("cap held", "largest cap held")]
        lines.append("| " + " | ".join([describe(row), *caps, *numbers]) + " |")
    return "\n".join([*lines, *format_protocol(protocol)])


def choose(row: dict[str, Any], answer: str, threshold: float) -> float:
    """Return the accuracy that a threshold gives; where only some batches reach it, the worse one."""
    if row["largest cap held"] < threshold:
        return float(row["held"])
    return float(row[answer] if row["cap held"] >= threshold else min(row[answer], row["held"]))


def describe(row: dict[str, Any]) -> str:
    """Name a row."""
    return f"{row['network']}, {row['stream']}, batches of {row['size']}"


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder of CIFAR-10 in its official format")
    parser.add_argument("--weights", type=Path, required=True, help="folder of wrn40_2_cifar10.pt")
    parser.add_argument("--out", type=Path, required=True, help="folder for learning.json and learning.md")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--images", type=int, default=2000, help="images of each stream")
    parser.add_argument("--epochs", type=int, default=60, help="of training a small network")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore", message="Adaptation is")  # what goes wrong here is measured
    streams = load_streams(arguments) if arguments.networks else []
    for name in arguments.networks:
        model, rows = load_network(name, arguments), []
        for title, domain in streams:
            for size in SIZES:
                row = {"network": name, "stream": title, "size": size, **measure(model, domain, size)}
                rows.append(row)
                write_json(arguments.out / f"learning-{name}.json", {"rows": rows})
                print(json.dumps(row), flush=True)
    protocol = {
        "images": f"CIFAR-10 test, {arguments.images} after the first {arguments.images}",
        "severities": SEVERITIES,
        "epochs of a small network": arguments.epochs,
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "machine": hardware(torch.device(arguments.device)),
    }
    rows = read_rows(arguments.out)
    page = format_page(rows, protocol)
    print(page)
    write_results(arguments.out, "learning", {"protocol": protocol, "rows": rows}, learning=page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
