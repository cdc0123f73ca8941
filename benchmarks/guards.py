"""Find runs that collapse and runs that do not, and rerun them with guards.

    python benchmarks/guards.py --data DIR --weights DIR --out DIR [--device cuda] [--workers 5] [--record] [--held-out]

A run adapts WRN-40-2 to corrupted CIFAR-10 images, one corruption after the other: a method, a learning rate, an order
of the images and a batch size. First runs of a grid go without guards until enough of both kinds are found. With
`--record` all of them go, every fifth batch is compared with the frozen network, and the script stops there. A run has
collapsed if its error in the last quarter of the stream is 10 points above the source network's on the same images. It
is healthy if the error is not above the source network's. Twenty of each then run again with the guards and the
statistics of `dp.adapt`, or as `--arms` says.

At least 19 of 20 must be rescued: final error at most 2 points above the source network's. Healthy runs may raise one
alarm in 10,000 batches. The script exits with 1 otherwise. Runs without guards are kept in DIR and not repeated. With
`--found guards.json` there is no search: the runs without guards are those of an earlier result. With `--resume` its
runs with guards are kept too, and only those that it lacks are repeated.
"""

import argparse
import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import driftproof as dp
from cifar_domains import find_frost, load_domains, parse_part, predict
from driftproof.bench.environment import hardware
from driftproof.corruptions import CORRUPTIONS, HELD_OUT
from driftproof.data import cifar10
from driftproof.models import build_from_checkpoint
from guard_results import Line, append_line, choose, classify, format_page, indicator_table, is_good, judge, read_lines
from guard_runs import Bench, Run, is_mild, make_grid, run_stream
from tables import write_results

ARMS: dict[str, dict[str, Any]] = {
    "guards": {"guard": True},
    "guards, statistics auto": {"guard": True, "statistics": "auto"},
}
"""How the chosen runs are repeated: with guards, and with guards and the statistics of `dp.adapt`."""


def load_bench(arguments: argparse.Namespace) -> Bench:
    """Load network and images, and let the source network predict all of them."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    names = HELD_OUT if arguments.held_out else CORRUPTIONS
    frost = find_frost(arguments.frost)
    model = build_from_checkpoint(arguments.weights / "wrn40_2_cifar10.pt").to(arguments.device).eval()
    domains = load_domains(arguments.data, names, device=arguments.device, count=arguments.images, frost=frost)
    train = cifar10(arguments.data, train=True)
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[: arguments.source_images]
    pixels, labels = train.batch(chosen).to(arguments.device), train.labels[chosen].to(arguments.device)
    pairs = zip(torch.split(pixels, 200), torch.split(labels, 200), strict=True)
    source = [(some.float() / 255, theirs) for some, theirs in pairs]
    return Bench(model, domains, [predict(model, domain) for domain in domains], source)


def share(runs: list[Run], part: tuple[int, int]) -> list[Run]:
    """Return the runs of one part."""
    return runs[part[0] :: part[1]]


def record(arguments: argparse.Namespace, bench: Bench) -> None:
    """Run this part of the grid without guards; runs that are in the folder already are left out.

    Without `--record` the search stops when this part has found its share of both kinds, and a quarter more.
    """
    path, runs = arguments.out / f"record-{arguments.part[0]}.jsonl", share(make_grid(), arguments.part)
    done = {Run(**line["run"]): classify(line) for line in read_lines(arguments.out, "record")}
    found = Counter(kind for run, kind in done.items() if run in runs)
    enough = len(runs) if arguments.record else math.ceil(1.25 * arguments.runs / arguments.part[1])
    for run in runs:
        if run in done or found["healthy" if is_mild(run) else "collapsed"] >= enough:
            continue
        line = run_stream(bench, run, batches=arguments.batches, every=arguments.every if arguments.record else 0)
        append_line(path, line)
        found[classify(line)] += 1
        print(f"{run}: {line['final']:.1f} %, source {line['source']:.1f} %, {line['seconds']:.0f} s", flush=True)


def find_runs(arguments: argparse.Namespace) -> tuple[list[Line], list[Line]]:
    """Return the collapsed and the healthy runs: of an earlier result, or of the search."""
    if arguments.found is None:
        return choose(read_lines(arguments.out, "record"), arguments.runs)
    lines = json.loads(arguments.found.read_text(encoding="utf-8"))["without guards"]
    kinds = ("collapsed", "healthy")
    collapsed, healthy = ([line for line in lines if classify(line) == kind] for kind in kinds)
    return collapsed, healthy


def find_repeated(arguments: argparse.Namespace) -> list[Line]:
    """Return the runs with guards of the earlier result that is resumed."""
    if not arguments.resume:
        return []
    lines: list[Line] = json.loads(arguments.found.read_text(encoding="utf-8"))["with guards"]
    return lines


def runs_of(found: tuple[list[Line], list[Line]]) -> list[Run]:
    """Return the collapsed runs, then the healthy ones."""
    return [Run(**line["run"]) for line in [*found[0], *found[1]]]


def repeat(arguments: argparse.Namespace, bench: Bench) -> None:
    """Run this part of the chosen runs again with guards."""
    path = arguments.out / f"guarded-{arguments.part[0]}.jsonl"
    path.unlink(missing_ok=True)
    done = {(Run(**line["run"]), line["arm"]) for line in find_repeated(arguments)}
    for run in share(runs_of(find_runs(arguments)), arguments.part):
        for arm in arguments.arms:
            if (run, arm) in done:
                continue
            line = run_stream(bench, run, batches=arguments.batches, **ARMS[arm])
            append_line(path, line | {"arm": arm})
            alarms = f"{line['alarms']} alarms, first at {line['first_alarm']}"
            print(f"{run}, {arm}: {line['final']:.1f} %, source {line['source']:.1f} %, {alarms}", flush=True)


def run_parts(arguments: argparse.Namespace, phase: str) -> None:
    """Run a phase in several processes, or in this one."""
    if arguments.workers == 1:
        PHASES[phase](arguments, load_bench(arguments))
        return
    command = [sys.executable, __file__, *sys.argv[1:], "--phase", phase]
    parts = [subprocess.Popen([*command, "--part", f"{i}/{arguments.workers}"]) for i in range(arguments.workers)]
    failed = [part.args for part in parts if part.wait() != 0]
    if failed:
        raise RuntimeError(f"Expected every part to finish, but {len(failed)} failed. See the messages above.")


PHASES = {"record": record, "repeat": repeat}


def describe_protocol(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the numbers depend on."""
    return {
        "network": "wrn40_2",
        "images": "CIFAR-10 held-out corruptions" if arguments.held_out else "CIFAR-10, fifteen corruptions",
        "of each": arguments.images or "all",
        "severity": 5,
        "frost": find_frost(arguments.frost).origin,
        "batches": f"about {arguments.batches} a run",
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "machine": hardware(torch.device(arguments.device)),
    }


def report(arguments: argparse.Namespace) -> int:
    """Judge, print and write; return 1 if too few runs are rescued or too many alarms are false."""
    guarded = [*find_repeated(arguments), *read_lines(arguments.out, "guarded")]
    found = find_runs(arguments)
    repeated = {Run(**line["run"]) for line in guarded}
    collapsed, healthy = ([line for line in lines if Run(**line["run"]) in repeated] for lines in found)
    chosen, missing = (collapsed, healthy), [run for run in runs_of(found) if run not in repeated]
    verdicts = {arm: judge(chosen, [line for line in guarded if line["arm"] == arm]) for arm in arguments.arms}
    protocol = describe_protocol(arguments) | {"runs searched": describe_search(arguments)}
    protocol |= {"not repeated": "; ".join(map(str, missing))} if missing else {}
    page = format_page(chosen, guarded, verdicts, protocol)
    print(page)
    without_series = [{key: line[key] for key in line if key != "series"} for line in [*found[0], *found[1]]]
    results = {"protocol": protocol, "verdicts": verdicts, "without guards": without_series, "with guards": guarded}
    write_results(arguments.out, "guards", results, guards=page)
    return 0 if is_good(verdicts[arguments.arms[0]], arguments.runs) else 1


def describe_search(arguments: argparse.Namespace) -> str:
    """Return how many runs of each kind the search has seen."""
    if arguments.found is not None:
        earlier = json.loads(arguments.found.read_text(encoding="utf-8"))["protocol"]["runs searched"]
        return f"{earlier.removesuffix(' (an earlier result)')} (an earlier result)"
    kinds = Counter(map(classify, read_lines(arguments.out, "record")))
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder of CIFAR-10 in its official format")
    parser.add_argument("--weights", type=Path, required=True, help="folder of wrn40_2_cifar10.pt")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs, guards.json and guards.md")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--frost", type=Path, help="folder of frost photos; else the package's, else procedural ones")
    parser.add_argument("--held-out", action="store_true", help="the four held-out corruptions, to choose thresholds")
    parser.add_argument("--images", type=int, help="only the first so many images of each corruption")
    parser.add_argument("--batches", type=int, default=500, help="length of a run")
    parser.add_argument("--every", type=int, default=5, help="compare with the frozen network on every so many batches")
    parser.add_argument("--source-images", type=int, default=2000, help="training images for methods that prepare")
    parser.add_argument("--runs", type=int, default=20, help="collapsed runs, and healthy ones")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=["guards, statistics auto"])
    parser.add_argument("--workers", type=int, default=1, help="processes at the same time")
    parser.add_argument("--found", type=Path, help="guards.json of an earlier result, whose runs are repeated")
    parser.add_argument("--resume", action="store_true", help="keep the runs with guards of the earlier result")
    parser.add_argument("--record", action="store_true", help="only the runs without guards, and their indicators")
    parser.add_argument("--report", action="store_true", help="only judge the runs with guards that the folder holds")
    parser.add_argument("--phase", choices=list(PHASES), help="only this phase, of this part")
    parser.add_argument("--part", type=parse_part, default=(0, 1), help="I/N: every N-th run from the I-th on")
    return parser.parse_args()


def main() -> int:
    """Record, repeat with guards, and judge."""
    arguments = parse_arguments()
    if arguments.resume and arguments.found is None:
        raise SystemExit("--resume needs --found: the result whose runs are kept.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.phase:
        PHASES[arguments.phase](arguments, load_bench(arguments))
        return 0
    if arguments.report:
        return report(arguments)
    if arguments.found is None:
        run_parts(arguments, "record")
    if arguments.record:
        print(indicator_table(read_lines(arguments.out, "record")))
        return 0
    run_parts(arguments, "repeat")
    return report(arguments)


if __name__ == "__main__":
    sys.exit(main())
