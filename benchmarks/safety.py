"""Measure what happens to users who do something unusual or wrong, with the defaults of `dp.adapt`.

    python benchmarks/safety.py --data DIR --weights DIR --out DIR [--device cuda] [--workers 4] [--rows fog]

Images are CIFAR-10's, networks the provided WRN-40-2 and a small one that is trained on the 5,000 training images at
hand. Each row is measured with the source network, with the published method alone (tent with the paper's selection,
no guards), with `dp.adapt`, and for some rows with `driftproof adapt` on a folder of PNG files. `dp.adapt` must be at
most one point below the source network in every row, and not below the published method where that is above it.
Mistakes must be named by `dp.check`, a collapsed network by its health. The script exits with 1 otherwise.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import driftproof as dp
from cifar_domains import load_domains, parse_part
from driftproof.bench.environment import hardware
from driftproof.models import build_from_checkpoint, read_checkpoint
from safety_rows import ROWS, count_batches, find_failures, measure, measure_command
from small_network import load_small_network
from tables import format_protocol, write_json, write_results

COLUMNS = {"source": "source", "plain": "tent+crowd", "adapt": "`dp.adapt`", "command": "`driftproof adapt`"}
NETWORKS = ("wrn40_2", "small")


def load_network(name: str, arguments: argparse.Namespace) -> tuple[nn.Module, Path]:
    """Return a network and the file of its weights; the small one is trained if need be."""
    if name == "small":
        path = small_path(arguments)
        small = load_small_network(
            path, arguments.data, device=arguments.device, epochs=arguments.epochs, seed=arguments.seed
        )
        return small, path
    path = arguments.weights / f"{name}_cifar10.pt"
    return build_from_checkpoint(path).to(arguments.device).eval(), path


def describe_small_network(arguments: argparse.Namespace) -> str:
    """Return how and on what machine it was trained."""
    meta = read_checkpoint(small_path(arguments)).meta
    return f"{meta['epochs']} epochs, seed {meta['seed']}, trained on {meta['trained_on']}"


def small_path(arguments: argparse.Namespace) -> Path:
    """Where the small network is kept; by its seed and length of training."""
    return Path(arguments.out, f"small-{arguments.seed}-{arguments.epochs}.safetensors")


def measure_rows(tasks: list[tuple[str, str]], arguments: argparse.Namespace) -> None:
    """Measure rows of networks, and write each as it comes."""
    networks = {name: load_network(name, arguments) for name in dict.fromkeys(name for name, _ in tasks)}
    wanted = sorted({ROWS[row].domain for _, row in tasks})
    domains = load_domains(arguments.data, wanted, device=arguments.device, count=arguments.images)
    by_name, has_command = {domain.name: domain for domain in domains}, has_command_line(arguments)
    path = arguments.out / f"rows-{'-'.join(networks)}-{arguments.part[0]}.json"
    results: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name, title in tasks:
        row, (model, weights) = ROWS[title], networks[name]
        found = measure(row, model, by_name[row.domain], max_batches=arguments.max_batches)
        if row.command and has_command:
            found["command"] = measure_command(by_name[row.domain], weights, device=arguments.device)
        found["failures"] = find_failures(row, found)
        found |= {"images": arguments.images, "at most batches": arguments.max_batches}
        results.setdefault(name, {})[title] = found
        write_json(path, results)
        numbers = ", ".join(f"{column} {found[column]:.1f}" for column in COLUMNS if found.get(column) is not None)
        print(f"{name}, {title}: {numbers}. {'; '.join(found['failures'])}", flush=True)


def has_command_line(arguments: argparse.Namespace) -> bool:
    """Whether `driftproof adapt` shall and can be run."""
    return arguments.command and all(map(importlib.util.find_spec, ("typer", "rich", "PIL")))


def list_tasks(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Return networks and rows; those with most batches come first, so that workers end at about the same time."""
    rows = [title for title in ROWS if any(part in title for part in arguments.rows)]
    tasks = [(name, row) for name in arguments.networks for row in rows]
    return sorted(tasks, key=lambda task: -count_batches(ROWS[task[1]], arguments.images, arguments.max_batches))


def leave_out_measured(tasks: list[tuple[str, str]], folder: Path) -> list[tuple[str, str]]:
    """Return the tasks whose rows are not in the folder."""
    measured = read_results(folder)
    return [(name, row) for name, row in tasks if row not in measured.get(name, {})]


def run_parts(arguments: argparse.Namespace) -> None:
    """Measure each network in several processes; those of the first do not wait for the training of the second."""
    command, parts = [sys.executable, __file__, *sys.argv[1:]], []
    for name in arguments.networks:
        load_network(name, arguments)
        for index in range(arguments.workers):
            part = ["--networks", name, "--part", f"{index}/{arguments.workers}"]
            parts.append(subprocess.Popen([*command, *part]))
    failed = sum(part.wait() != 0 for part in parts)
    if failed:
        raise RuntimeError(f"Expected every part to finish, but {failed} failed. See the messages above.")


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Read what all parts have measured, network by network."""
    results: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("rows-*.json")):
        for name, rows in json.loads(path.read_text(encoding="utf-8")).items():
            results.setdefault(name, {}).update(rows)
    return {name: results[name] for name in NETWORKS if name in results}


def format_page(results: dict[str, dict[str, Any]], protocol: dict[str, Any]) -> str:
    """Return accuracies, what the records say, and what `check` says as Markdown."""
    lines = []
    for name, rows in results.items():
        lines += ["| " + " | ".join([name, *COLUMNS.values(), "`dp.adapt` says", "falls short"]) + " |"]
        lines += ["|---|" + "---:|" * len(COLUMNS) + "---|---|"]
        for title in (title for title in ROWS if title in rows):
            found = rows[title]
            numbers = ["" if found.get(column) is None else f"{found[column]:.1f}" for column in COLUMNS]
            lines.append("| " + " | ".join([title, *numbers, found["adapt says"], "; ".join(found["failures"])]) + " |")
        for title in (title for title in ROWS if rows.get(title, {}).get("check")):
            lines += ["", f"`dp.check`, {title}:", "", *(f"- {finding}" for finding in rows[title]["check"])]
        lines.append("")
    return "\n".join([*lines, *format_protocol(protocol)])


def main() -> int:
    """Measure, print, write, and return 1 if a row falls short."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder of CIFAR-10 in its official format")
    parser.add_argument("--weights", type=Path, required=True, help="folder of wrn40_2_cifar10.pt")
    parser.add_argument("--out", type=Path, required=True, help="folder for the rows, safety.json and safety.md")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--rows", nargs="+", default=[""], help="only rows whose names contain one of these")
    parser.add_argument("--images", type=int, default=2000, help="the first so many test images")
    parser.add_argument("--max-batches", type=int, default=400, help="so many batches of a corruption at most")
    parser.add_argument("--epochs", type=int, default=60, help="of training the small network")
    parser.add_argument("--command", action=argparse.BooleanOptionalAction, default=True, help="run the command too")
    parser.add_argument("--seed", type=int, default=0, help="of training the small network")
    parser.add_argument("--workers", type=int, default=1, help="processes at the same time, for each network")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the folder holds")
    parser.add_argument("--part", type=parse_part, help="I/N: only every N-th row from the I-th on, without a page")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    tasks = list_tasks(arguments)
    if arguments.part:
        index, count = arguments.part
        measure_rows(leave_out_measured(tasks[index::count], arguments.out), arguments)
        return 0
    for path in arguments.out.glob("rows-*.json") if not arguments.resume else ():
        path.unlink()  # of an earlier run
    if arguments.workers > 1:
        run_parts(arguments)
    else:
        arguments.part = (0, 1)
        measure_rows(leave_out_measured(tasks, arguments.out), arguments)
    results = read_results(arguments.out)
    protocol = {
        "images": f"CIFAR-10 test, the first {arguments.images}",
        "batches": f"at most {arguments.max_batches} of a corruption",
        "severity": 5,
        **({"small network": describe_small_network(arguments)} if "small" in results else {}),
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "machine": hardware(torch.device(arguments.device)),
    }
    page = format_page(results, protocol)
    print(page)
    write_results(arguments.out, "safety", {"protocol": protocol, "networks": results}, safety=page)
    return 1 if any(found["failures"] for rows in results.values() for found in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
