"""Compare an adapter with the ordinary modules that `unwrap` makes of it, on the last domain it saw.

    python benchmarks/unwrapping.py --data DIR --weights DIR --out DIR [--device cuda]

WRN-40-2 adapts to two held-out corruptions of CIFAR-10, one after the other. The accuracy of the adapter on the second
one, from its second half on, is compared with that of `unwrap()` and of `unwrap(statistics="stream")` on the same
images. The second module may be one point below the adapter. The script exits with 1 otherwise.
"""

import argparse
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import driftproof as dp
from cifar_domains import Domain, load_domains
from driftproof.bench.environment import hardware
from driftproof.corruptions import HELD_OUT
from driftproof.methods.by_name import build_method
from driftproof.models import build_from_checkpoint
from tables import format_protocol, write_results

METHODS = ("tent", "tent+crowd", "adapt")
SIZES = (200, 16)
LIMIT = 1.0
"""Points that the module may be below the adapter."""


def measure(model: nn.Module, method: str, size: int, domains: tuple[Domain, Domain]) -> dict[str, Any]:
    """Adapt to both domains, and return accuracies in % on the second half of the second one."""
    adapter, right = build_method(method, model, {}), []
    for domain in domains:
        order = torch.arange(len(domain.labels), device=domain.labels.device)
        right = [
            adapter(domain.images(chosen)).argmax(dim=1) == domain.labels[chosen]
            for chosen in torch.split(order, size)
            if len(chosen) == size
        ]
    half = len(right) // 2
    judged = order[half * size : len(right) * size]
    modules: dict[str, Callable[[Tensor], Tensor]] = {
        "source": model,
        "training": adapter.unwrap(),
        "stream": adapter.unwrap(statistics="stream"),
    }
    line = {"method": method, "size": size, "from": domains[0].name, "to": domains[1].name}
    return (
        line | {"adapter": percent(right[half:])} | {name: score(one, domain, judged) for name, one in modules.items()}
    )


@torch.no_grad()
def score(model: Callable[[Tensor], Tensor], domain: Domain, judged: Tensor) -> float:
    """Return the accuracy of a module in %."""
    some = torch.split(judged, 500)
    return percent([model(domain.images(chosen)).argmax(dim=1) == domain.labels[chosen] for chosen in some])


def percent(right: list[Tensor]) -> float:
    """Return the share of right answers in %."""
    return 100 * float(torch.cat(right).float().mean())


def format_page(lines: list[dict[str, Any]], protocol: dict[str, Any]) -> str:
    """Return accuracies as Markdown."""
    page = ["Accuracy in %, second half of the last domain.", ""]
    page += ['| method | batches of | last domain | source | adapter | `unwrap()` | `unwrap(statistics="stream")` |']
    page += ["|---|---:|---|---:|---:|---:|---:|"]
    for line in lines:
        numbers = " | ".join(f"{line[name]:.1f}" for name in ("source", "adapter", "training", "stream"))
        page.append(f"| `{line['method']}` | {line['size']} | {line['to']} | {numbers} |")
    return "\n".join([*page, *format_protocol(protocol)])


def main() -> int:
    """Measure, print, write, and return 1 if a module is too far below its adapter."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder of CIFAR-10 in its official format")
    parser.add_argument("--weights", type=Path, required=True, help="folder of wrn40_2_cifar10.pt")
    parser.add_argument("--out", type=Path, required=True, help="folder for unwrapping.json and unwrapping.md")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=2000, help="of each corruption")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="images per batch")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="by name")
    arguments = parser.parse_args()
    model = build_from_checkpoint(arguments.weights / "wrn40_2_cifar10.pt").to(arguments.device).eval()
    domains = load_domains(arguments.data, HELD_OUT, device=arguments.device, count=arguments.images)
    lines = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Adaptation is")  # of small batches
        for pair in pairwise([domains[-1], *domains]):
            for method in arguments.methods:
                for size in arguments.sizes:
                    lines.append(measure(model, method, size, pair))
                    print(lines[-1], flush=True)
    protocol = {
        "network": "wrn40_2",
        "images": f"CIFAR-10, held-out corruptions, the first {arguments.images}",
        "severity": 5,
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "machine": hardware(torch.device(arguments.device)),
    }
    page = format_page(lines, protocol)
    print(page)
    write_results(arguments.out, "unwrapping", {"protocol": protocol, "runs": lines}, unwrapping=page)
    return int(any(line["stream"] < line["adapter"] - LIMIT for line in lines))


if __name__ == "__main__":
    sys.exit(main())
