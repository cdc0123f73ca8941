"""Search of `dp.sentinel`'s form, on the four held-out corruptions alone.

Plain PyTorch beside the library: sentinels and learners as small captured steps, several at a time on streams of their
own. A learner replays what a sentinel stored, so that variants of the learner cost no sentinel. Errors are of known
images, in percent, per round, for the learner alone and for means of log-probabilities with others; AUROC is of known
against unknown images, mean over corruptions. One JSON line per run.

    python benchmarks/sentinel_research.py --data data --weights weights --out research.jsonl --plan first
"""

import argparse
import dataclasses
import importlib
import json
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from driftproof.bench.environment import hardware
from driftproof.corruptions import CORRUPTIONS, HELD_OUT
from driftproof.models import build_from_checkpoint
from sentinel_jobs import Learner, LearnerJob, Sentinel, SentinelJob, run_frozen, run_together
from sentinel_report import report_learner, report_sentinel
from sentinel_streams import make_streams


def main() -> None:
    """Run a plan, group by group, until the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plan", default="first")
    parser.add_argument("--limit", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sets", default="cifar10,cifar100")
    parser.add_argument("--streams", default="open,closed")
    parser.add_argument("--together", type=int, default=4)
    parser.add_argument("--deadline", type=float, default=130.0)
    parser.add_argument("--frost", type=Path, help="folder of frost photos")
    parser.add_argument("--corruptions", default=",".join(HELD_OUT))
    parser.add_argument("--mixtures", action="store_true", help="report every mixture of opinions, which takes time")
    arguments = parser.parse_args()
    start = time.time()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sets = arguments.sets.split(",")
    plan = importlib.import_module("sentinel_plans").PLANS[arguments.plan]
    wanted = list(CORRUPTIONS) if arguments.corruptions == "fifteen" else arguments.corruptions.split(",")
    streams = make_streams(sets, arguments.data, arguments.limit, device, wanted, arguments.batch, arguments.frost)
    models = {name: build_from_checkpoint(arguments.weights / f"wrn40_2_{name}.pt") for name in sets}
    classes = {"cifar10": 10, "cifar100": 100}
    places = [(name, kind) for name in sets for kind in arguments.streams.split(",")]
    print(f"data after {time.time() - start:.1f} s", flush=True)
    plan = {
        **plan,
        "sentinels": [one for one in plan["sentinels"] if "closed" not in arguments.streams or not one.open_only],
    }
    rules = {learner.frozen_rule for learner in plan["learners"]}
    rules |= {((1.0, 1.0), 0)} if plan["sentinels"] else set()  # for the error of BN Adapt
    rules |= {one.rule for one in plan["sentinels"] if one.momentum == 1}
    views = sorted({"none", "flip", "shift", "shift_back"}.union(*(learner.views for learner in plan["learners"])))
    for place in places:
        run_frozen(streams[place], models[place[0]], sorted(rules), views, classes[place[0]], device, start)
    print(f"frozen after {time.time() - start:.1f} s", flush=True)

    def write(
        kind: str, choice: Sentinel | Learner, place: tuple[str, str], found: dict[str, Any], seconds: float
    ) -> None:
        line = {"kind": kind, "set": place[0], "stream": place[1], "choice": dataclasses.asdict(choice), **found}
        line |= {"limit": arguments.limit, "rounds": arguments.rounds, "seconds": round(seconds, 2)}
        line |= {"hardware": hardware(device), "torch": torch.__version__}
        with arguments.out.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def run_all(
        wanted: list[tuple[Any, tuple[str, str]]], make: Callable[..., Any], report: Callable[..., Any], kind: str
    ) -> dict[Any, Any]:
        done = {}
        for first in range(0, len(wanted), arguments.together):
            if time.time() - start > arguments.deadline:
                print("not started:", [choice.name for choice, _ in wanted[first:]], flush=True)
                break
            group, begun = wanted[first : first + arguments.together], time.time()
            try:
                jobs = [make(choice, place) for choice, place in group]
                if not run_together(jobs, start, arguments.deadline + 5):
                    break
                for (choice, place), job in zip(group, jobs, strict=True):
                    write(kind, choice, place, report(job), time.time() - begun)
                    job.graph = job.network = job.optimizer = None
                    if kind == "sentinel":
                        done[choice.name, place] = job
            except Exception:
                print("failed:", [choice.name for choice, _ in group], traceback.format_exc(), flush=True)
            print(f"{kind} {[choice.name for choice, _ in group]} after {time.time() - start:.1f} s", flush=True)
        return done

    def make_sentinel(choice: Sentinel, place: tuple[str, str]) -> SentinelJob:
        return SentinelJob(choice, models[place[0]], streams[place], arguments.rounds, classes[place[0]], device)

    def make_learner(choice: Learner, place: tuple[str, str]) -> LearnerJob:
        sentinel = sentinels.get((choice.sentinel, place))
        if sentinel is None and choice.sentinel != "none":
            raise RuntimeError(f"no sentinel {choice.sentinel} at {place}")
        model = models[place[0]]
        return LearnerJob(choice, sentinel, model, streams[place], arguments.rounds, classes[place[0]], device)

    needed = {learner.sentinel for learner in plan["learners"]}
    first = [(one, place) for one in plan["sentinels"] if one.name in needed for place in places]
    others = [(one, place) for one in plan["sentinels"] if one.name not in needed for place in places]
    sentinels = run_all(first, make_sentinel, report_sentinel, "sentinel")
    learners = [(one, place) for one in plan["learners"] for place in places]
    cut = plan.get("before_other_sentinels", len(plan["learners"])) * len(places)
    report = partial(report_learner, mixtures=arguments.mixtures)
    run_all(learners[:cut], make_learner, report, "learner")
    run_all(others, make_sentinel, report_sentinel, "sentinel")
    run_all(learners[cut:], make_learner, report, "learner")
    print(f"all after {time.time() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
