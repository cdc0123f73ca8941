"""The demo's numbers for several seeds: does it come out the same way?

python benchmarks/demo_seeds.py --out results/demo
"""

import argparse
import platform
import warnings
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import torch

import driftproof as dp
from driftproof.demo.garments import load_garments
from driftproof.demo.network import train_network
from driftproof.demo.streams import run_hostile, run_world
from tables import format_protocol, write_results


def main() -> None:
    """Run the demo for each seed, and write a table and the numbers behind it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/demo"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "Adaptation is", RuntimeWarning)
    garments, rows, runs = load_garments(), [], []
    for seed in arguments.seeds:
        model = train_network(garments.train, garments.train_labels, seed=seed)
        world, hostile = run_world(model, garments, seed=seed), run_hostile(model, garments, seed=seed)
        before, after = (fmean(getattr(each, name) for each in world.domains) for name in ("source", "adapted"))
        found = [before, after, world.bags]
        found += [number for each in hostile for number in (each.source, each.tent, each.adapted)]
        rows.append([str(seed), *(f"{number:.1f}" for number in found)])
        named = {"seed": seed, "domains": [asdict(each) for each in world.domains], "health": world.health}
        runs.append(named | {"bags": world.bags, "hostile": [asdict(each) for each in hostile]})
        print(rows[-1], flush=True)
    streams = [f"{each.name}: {who}" for each in hostile for who in ("source", "TENT", "`dp.adapt`")]
    heads = ["seed", "error, source", "error, `dp.adapt`", "bags among the least familiar", *streams]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, ["---:"] * len(heads), *rows)]
    protocol = {"torch": torch.__version__, "driftproof": dp.__version__, "machine": platform.machine()}
    page = "\n".join(["All numbers in %.", "", *lines, *format_protocol(protocol)])
    write_results(arguments.out, "demo", {"protocol": protocol, "runs": runs}, demo=page)


if __name__ == "__main__":
    main()
