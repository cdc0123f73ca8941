"""The demo's numbers for several seeds: does it come out the same way?

python benchmarks/demo_seeds.py --out results/demo

Fills the tables of docs/demo.md as well. The command fails if a seed comes out another way.
"""

import argparse
import json
import platform
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import driftproof as dp
from driftproof.demo.garments import load_garments
from driftproof.demo.network import train_network
from driftproof.demo.streams import run_hostile, run_world
from driftproof.files import atomic_write
from driftproof.paper.summary import render_placeholders
from tables import format_protocol, write_results

PAGE = Path("docs/demo.md")
BAGS, LOSS, HARM = 20, 1, 10
"""Share of bags in the stream in %; points that `dp.adapt` may lose on a hostile stream, and that TENT has to lose."""


def run_seed(seed: int) -> dict[str, Any]:
    """Run the demo and return its numbers."""
    garments = load_garments()
    model = train_network(garments.train, garments.train_labels, seed=seed)
    world, hostile = run_world(model, garments, seed=seed), run_hostile(model, garments, seed=seed)
    found = {"seed": seed, "domains": [asdict(each) for each in world.domains], "health": world.health}
    return found | {"bags": world.bags, "hostile": [asdict(each) for each in hostile]}


def mean_errors(run: Mapping[str, Any]) -> tuple[float, float]:
    """Return the mean errors of the network as trained and of `dp.adapt`."""
    before, after = (fmean(domain[name] for domain in run["domains"]) for name in ("source", "adapted"))
    return before, after


def find_exceptions(run: Mapping[str, Any]) -> list[str]:
    """Return what came out another way than the demo says."""
    before, after = mean_errors(run)
    found = [] if after < before else ["the mean error did not fall"]
    found += [] if run["bags"] > BAGS else ["bags are not more frequent among the least familiar images"]
    for each in run["hostile"]:
        found += [f"{each['name']}: dp.adapt lost more than {LOSS} point"] * (each["adapted"] < each["source"] - LOSS)
        found += [f"{each['name']}: TENT lost less than {HARM} points"] * (each["tent"] > each["source"] - HARM)
    return found


def format_tables(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the tables by the names of their placeholders."""
    heads = ["seed", "error as trained", "with `dp.adapt`", "corruptions with a lower error", "bags among the flagged"]
    heads.append("health at the end")
    rows = []
    for run in runs:
        lower = sum(domain["adapted"] < domain["source"] for domain in run["domains"])
        numbers = [f"{number:.1f} %" for number in (*mean_errors(run), run["bags"])]
        rows.append([str(run["seed"]), *numbers[:2], f"{lower} of {len(run['domains'])}", numbers[2], run["health"]])
    answers = {"source": "as trained", "tent": "TENT", "adapted": "`dp.adapt`"}
    found = [
        [each["name"] if key == "source" else "", who, *(f"{run['hostile'][place][key]:.1f}" for run in runs)]
        for place, each in enumerate(runs[0]["hostile"])
        for key, who in answers.items()
    ]
    seeds = [f"seed {run['seed']}" for run in runs]
    return {"demo_world": _format_table(heads, rows), "demo_hostile": _format_table(["stream", "", *seeds], found)}


def _format_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---:" if head not in ("", "stream", "seed", "health at the end") else "---" for head in heads]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows)]
    return "\n".join(["", "", *lines, "", ""])


def main() -> None:
    """Run the demo for each seed, and write the tables and the numbers behind them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/demo"))
    parser.add_argument("--render", action="store_true", help="Write the tables anew from the numbers that are there.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "Adaptation is", RuntimeWarning)
    if arguments.render:
        content = json.loads((arguments.out / "demo.json").read_text(encoding="utf-8"))
    else:
        runs = []
        for seed in arguments.seeds:
            runs.append(run_seed(seed))
            print(seed, *(f"{number:.1f}" for number in mean_errors(runs[-1])), flush=True)
        protocol = {
            "torch": torch.__version__, "driftproof": dp.__version__, "python": platform.python_version(),
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        }  # fmt: skip
        content = {"protocol": protocol, "runs": runs}
    runs, protocol = content["runs"], content["protocol"]
    exceptions = [f"seed {run['seed']}: {each}" for run in runs for each in find_exceptions(run)]
    tables = format_tables(runs)
    page = "# The demo for several seeds\n" + "".join(tables.values()) + "\n".join(format_protocol(protocol))
    write_results(arguments.out, "demo", content, demo=page)
    with atomic_write(PAGE) as unfinished:
        unfinished.write_text(render_placeholders(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")
    sys.exit("\n".join(exceptions) if exceptions else 0)


if __name__ == "__main__":
    main()
