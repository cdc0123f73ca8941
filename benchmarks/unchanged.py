"""Compare the results of this working tree with those of another commit, bit for bit.

    python benchmarks/unchanged.py COMMIT [--steps 50] [--only tent cotta+crowd] [--networks wide_resnet]

Every method, plain and with selection, adapts each network of the contract tests to one stream, with a batch of NaN, a
batch of one image and a reset in it. Logits, masks, novelty and the final state are recorded by the code of both, each
in a process of its own, with the cases of this tree. The script prints every case that differs, and by how much at
most, relative to the largest value; it exits with 1 if any does. What both refuse alike is counted, not compared.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).parents[1]
Recording = dict[str, Tensor | str]


def record(case: str, network: str, steps: int) -> Recording:
    """Run a case; returns everything it answered and remembers, or why it cannot run."""
    cases, networks = import_module("cases"), import_module("networks")
    is_segmentation, kept = networks.is_segmentation(network), {}
    try:
        adapter = cases.adapter_for(case, networks.build(network), segmentation=is_segmentation)
        torch.manual_seed(0)
        for number, images in enumerate(_make_stream(cases.batches(steps))):
            if number == 3 * steps // 5:
                adapter.reset()
            kept[f"logits {number}"] = adapter(images).clone()
            kept[f"mask {number}"], kept[f"novelty {number}"] = adapter.last.selected, adapter.last.novelty
    except (TypeError, ValueError, RuntimeError) as error:  # all errors of the library are one of these
        return {"refused": type(error).__name__}
    state = {f"final {name}": value.clone() for name, value in adapter.state_dict().items() if name != "meta"}
    return kept | state


def _make_stream(batches: list[Tensor]) -> list[Tensor]:
    batches[len(batches) // 5] = torch.full_like(batches[0], torch.nan)
    batches[2 * len(batches) // 5] = batches[0][:1]
    return batches


def largest_difference(one: Recording, other: Recording) -> tuple[float, str] | None:
    """Return the largest relative difference and where it is; None if all is equal, infinity if not comparable."""
    found: list[tuple[float, str]] = []
    for name in sorted(one.keys() | other.keys()):
        a, b = one.get(name), other.get(name)
        if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.shape != b.shape or a.dtype != b.dtype:
            found += [] if isinstance(a, str) and a == b else [(float("inf"), name)]
        elif not torch.equal(a.isnan(), b.isnan()):
            found.append((float("inf"), name))
        elif not torch.equal(a.nan_to_num(), b.nan_to_num()):
            a, b = a.double().nan_to_num(), b.double().nan_to_num()
            found.append((float((a - b).abs().max() / torch.stack([a, b]).abs().max()), name))
    return max(found, default=None)


def list_pairs(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the cases and networks to run."""
    cases, networks = import_module("cases"), import_module("networks")
    every = (*cases.CASES, *(f"{name}+crowd" for name in cases.GRADIENT_METHODS if f"{name}+crowd" not in cases.CASES))
    chosen = arguments.only or every
    return [(case, network) for case in chosen for network in arguments.networks or networks.CONTRACT_NETWORKS]


def record_all(tree: Path, to: Path, options: list[str]) -> subprocess.Popen[bytes]:
    """Start a process that records all cases with the code of a tree."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tree / "src", ROOT / "tests")))}
    return subprocess.Popen([sys.executable, __file__, "--record", to, *options], env=environment)


def compare(commit: str, options: list[str]) -> int:
    """Record both, print what differs, and return 1 if anything does."""
    with tempfile.TemporaryDirectory() as folder:
        files, tree = (Path(folder, "now"), Path(folder, "then")), Path(folder, "tree")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            processes = [record_all(code, file, options) for code, file in zip((ROOT, tree), files, strict=True)]
            codes = [process.wait() for process in processes]
            if any(codes):
                raise SystemExit("Expected both commits to run all cases, but one failed; see above.")
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
        now, then = (torch.load(file, weights_only=True) for file in files)
    differences = {name: largest_difference(now[name], then[name]) for name in now}
    changed = {name: found for name, found in differences.items() if found is not None}
    for name, (size, where) in changed.items():
        print(f"{name}: {where} differs by {size:.2g}")
    refused = sum("refused" in recording for recording in now.values())
    print(f"{len(now)} cases: {refused} refused, {len(changed)} differ from {commit}")
    return 1 if changed else 0


def main() -> int:
    """Record with this code, or compare two recordings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("commit", nargs="?", help="compare with this commit")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--only", nargs="+", help="these cases; otherwise all")
    parser.add_argument("--networks", nargs="+", help="these networks; otherwise all")
    parser.add_argument("--record", type=Path, help="only record, to this file")
    arguments = parser.parse_args()
    if arguments.record is None:
        if arguments.commit is None:
            parser.error("Expected a commit to compare with.")
        return compare(arguments.commit, [one for one in sys.argv[1:] if one != arguments.commit])
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Adaptation is")  # the networks have learned nothing
    results: dict[str, Any] = {
        f"{case} {network}": record(case, network, arguments.steps) for case, network in list_pairs(arguments)
    }
    torch.save(results, arguments.record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
