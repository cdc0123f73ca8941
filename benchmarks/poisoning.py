"""Measure what an attacker who controls some of the images can do to an adapting model.

    python benchmarks/poisoning.py --data DIR --weights DIR --out DIR [--device cuda] [--workers 4]
    python benchmarks/poisoning.py --out results/poisoning --fill docs/security.md

A network adapts to the four held-out corruptions of CIFAR-10, one after the other. While the attack lasts, a share of
the images is the attacker's (`poisoning_attacks.py`); then the four corruptions come once more without them, with
other images. Each run is compared with the run of the same method and guards without an attacker, on the same images
that are not the attacker's. A run holds if its accuracy after the attack is at most three points below. The page says
where it does not, and from which share on.

Runs are kept in DIR as they come, and not repeated. Without guards only a tenth of the stream is attacked. `--fill`
runs nothing: it writes the tables of the runs in DIR into a page.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import driftproof as dp
from cifar_domains import load_domains, parse_part
from driftproof.bench.environment import hardware
from driftproof.corruptions import HELD_OUT
from driftproof.data import cifar10
from driftproof.errors import DriftproofError
from driftproof.files import atomic_write
from driftproof.methods.by_name import method_names
from driftproof.models import build_from_checkpoint
from guard_results import append_line
from poisoning_attacks import ATTACKS, Attacker
from poisoning_page import MAIN_SHARE, fill_page, format_page, read_runs
from poisoning_runs import ARMS, Bench, Cell, make_poison, measure
from small_network import load_small_network
from tables import write_json, write_results

METHODS = [name for name in ("tent", "tent+crowd", "adapt", "sentinel") if name in method_names()]


_SOURCE = 1000
"""Training images for methods that prepare."""


def load_network(arguments: argparse.Namespace) -> nn.Module:
    """Return the source network; the small one is trained if need be."""
    if arguments.network == "small":
        path = arguments.out / "small.safetensors"
        return load_small_network(path, arguments.data, device=arguments.device, epochs=arguments.epochs)
    return build_from_checkpoint(arguments.weights / "wrn40_2_cifar10.pt").to(arguments.device).eval()


def load_bench(arguments: argparse.Namespace) -> tuple[Bench, Attacker]:
    """Load network and images, the stream's and the attacker's."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    model = load_network(arguments)
    count = arguments.size * (arguments.batches + arguments.after)
    domains = load_domains(arguments.data, HELD_OUT, device=arguments.device, count=count)
    train = cifar10(arguments.data, train=True)
    images = train.batch(torch.arange(len(train))).to(arguments.device).float() / 255
    labels = train.labels.to(arguments.device)
    source = list(zip(torch.split(images[:_SOURCE], 200), torch.split(labels[:_SOURCE], 200), strict=True))
    bench = Bench(model, domains, arguments.size, arguments.batches, arguments.after, source)
    return bench, Attacker(model, images, labels, arguments.size)


def list_cells(arguments: argparse.Namespace) -> list[Cell]:
    """List attacks and shares, the share of the first table first."""
    shares = sorted(arguments.shares, key=lambda share: (abs(share - MAIN_SHARE), share))
    chosen = [name for name in ATTACKS if any(part in name for part in arguments.attacks)]
    cells = [Cell(name, share) for share in shares for name in chosen]
    return [cell for cell in cells if cell.share == MAIN_SHARE or not ATTACKS[cell.name].whole_batches]


def run_part(arguments: argparse.Namespace) -> None:
    """Run this part of the methods and guards; runs that are in the folder already are left out."""
    bench, attacker = load_bench(arguments)
    part, parts = arguments.part
    done = {(line["attack"], line["share"], line["method"], line["arm"]) for line in read_runs(arguments.out)}
    pairs = [(method, arm) for arm in ARMS for method in arguments.methods][part::parts]
    cells = list_cells(arguments)
    first = len([cell for cell in cells if cell.share == MAIN_SHARE])
    start = part * first // parts  # so that parts do not make the same images at the same time
    for cell in cells[start:first] + cells[:start] + cells[first:]:
        for method, arm in pairs:
            if (cell.name, cell.share, method, arm) in done or (cell.share != MAIN_SHARE and arm != "guards"):
                continue
            attack = ATTACKS[cell.name]
            poison = load_poison(arguments.out, cell, lambda: make_poison(attack, attacker, cell.share))  # noqa: B023
            try:
                line = measure(bench, method, arm, attack, cell, poison.to(arguments.device))
            except DriftproofError as error:  # other methods go on; the page shows the gap
                print(f"{cell.name} {cell.share:.0%}, {method}, {arm}: {error}", flush=True)
                continue
            append_line(arguments.out / f"runs-{part}.jsonl", line)
            lost = line["unattacked after"] - line["attacked after"]
            print(f"{cell.name} {cell.share:.0%}, {method}, {arm}: {lost:+.1f} points lost after", flush=True)


def load_poison(folder: Path, cell: Cell, make: Callable[[], Tensor]) -> Tensor:
    """Return the attacker's images of a cell, which are made once and kept in the folder."""
    path = folder / "images" / f"{cell.name.replace(' ', '_')}-{cell.share}.pt"
    if path.exists():
        kept: Tensor = torch.load(path, weights_only=True)
        return kept
    images = make()
    path.parent.mkdir(exist_ok=True)
    with atomic_write(path) as unfinished:
        torch.save(images.cpu(), unfinished)
    return images


def run_parts(arguments: argparse.Namespace) -> None:
    """Run all parts, in several processes or in this one."""
    if arguments.workers == 1:
        run_part(arguments)
        return
    command = [sys.executable, __file__, *sys.argv[1:], "--workers", "1"]
    parts = [subprocess.Popen([*command, "--part", f"{i}/{arguments.workers}"]) for i in range(arguments.workers)]
    failed = [part.args for part in parts if part.wait() != 0]
    if failed:
        raise RuntimeError(f"Expected every part to finish, but {len(failed)} failed. See the messages above.")


def describe_protocol(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the numbers depend on."""
    return {
        "network": arguments.network,
        "images": f"CIFAR-10, {', '.join(HELD_OUT)}",
        "severity": 5,
        "batches": f"{arguments.batches} of {arguments.size} of each corruption attacked, then {arguments.after}",
        "seed": 0,
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "machine": hardware(torch.device(arguments.device)),
    }


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10 in its official format")
    parser.add_argument("--weights", type=Path, help="folder of wrn40_2_cifar10.pt")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs, poisoning.json and poisoning.md")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", choices=("wrn40_2", "small"), default="wrn40_2")
    parser.add_argument("--epochs", type=int, default=60, help="of training the small network")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="by name")
    parser.add_argument("--attacks", nargs="+", default=[""], help="only attacks whose names contain one of these")
    parser.add_argument("--shares", nargs="+", type=float, default=[0.05, 0.1, 0.2, 0.4], help="of the stream")
    parser.add_argument("--size", type=int, default=200, help="images per batch")
    parser.add_argument("--batches", type=int, default=12, help="of each corruption while the attack lasts")
    parser.add_argument("--after", type=int, default=4, help="batches of each corruption after the attack")
    parser.add_argument("--workers", type=int, default=1, help="processes at the same time, up to two for each method")
    parser.add_argument(
        "--part",
        type=parse_part,
        default=None,
        help="I/N: only every N-th method and guard from the I-th on",
    )
    parser.add_argument("--fill", type=Path, help="page to write the tables into; nothing is run")
    arguments = parser.parse_args()
    if arguments.fill is None and (arguments.data is None or arguments.weights is None):
        parser.error("--data and --weights are needed to run anything")
    return arguments


def main() -> int:
    """Run, print and write."""
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.part is not None:
        run_part(arguments)
        return 0
    if arguments.fill is None:
        arguments.part = (0, 1)
        write_json(arguments.out / "protocol.json", describe_protocol(arguments))
        run_parts(arguments)
    lines = read_runs(arguments.out)
    protocol = json.loads((arguments.out / "protocol.json").read_text(encoding="utf-8"))
    page = format_page(lines, protocol)
    write_results(arguments.out, "poisoning", {"protocol": protocol, "runs": lines}, poisoning=page)
    if arguments.fill is None:
        print(page)
    else:
        fill_page(arguments.fill, lines, protocol)
    return 0


if __name__ == "__main__":
    sys.exit(main())
