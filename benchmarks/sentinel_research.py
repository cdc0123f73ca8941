"""Search of `dp.sentinel`'s form, on the four held-out corruptions alone.

Plain PyTorch beside the library: sentinels and learners as small captured steps, several at a time on streams of their
own. A learner replays what a sentinel stored, so that variants of the learner cost no sentinel. Errors are of known
images, in percent, per round, for the learner alone and for means of log-probabilities with others; AUROC is of known
against unknown images, mean over corruptions. One JSON line per run.

    python benchmarks/sentinel_research.py --data data --weights weights --out research.jsonl --plan first
"""

import argparse
import copy
import dataclasses
import importlib
import json
import math
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from driftproof.augment import crop_and_flip
from driftproof.corruptions import HELD_OUT, corrupt
from driftproof.data.cifar import cifar10, cifar100
from driftproof.data.svhn import svhn
from driftproof.models import build_from_checkpoint
from driftproof.network import Network
from driftproof.statistics import Batch
from driftproof.statistics.blend import InterpolatedStatistics
from driftproof.two_groups import fit_otsu

NORMS = (torch.nn.BatchNorm2d,)


@dataclass(frozen=True)
class Sentinel:
    """What a sentinel does."""

    name: str
    alpha: float = 1.0
    lr: float = 1e-3
    repel: float = 2.0
    view: str = "none"
    momentum: float = 0.999
    pull: float = 0.0
    teacher: bool = True
    guard: bool = False
    threshold: float = 0.4
    open_only: bool = False


@dataclass(frozen=True)
class Learner:
    """What a learner does."""

    name: str
    sentinel: str = "batch"
    alpha: tuple[float, float] = (0.5, 0.5)
    lr: float = 3e-4
    scope: str = "affine"
    pull: float = 1e-3
    loss: str = "entropy"
    known: str = "not_repelled"
    diff: bool = True
    mean_entropy: float = 0.5
    masked: bool = False
    weighted: bool = False
    temperature: float = 1.0
    members: str = "lxfg"
    smooth: float = 0.0
    momentum: float = 0.0
    first: str = "none"
    second: str = "flip"


class PerLayer(InterpolatedStatistics):
    """A share of the batch that goes linearly from the first layer to the last."""

    def __init__(self, first: float, last: float, layers: int) -> None:
        super().__init__(momentum=None)
        self.shares = [first + (last - first) * index / max(1, layers - 1) for index in range(layers)]

    def alpha_for(self, index: int) -> float:
        """The share of the layer."""
        return self.shares[index]


class Stream:
    """All batches of a stream on the device, as bytes, and what is known of them."""

    def __init__(self, name: str, batches: Tensor, labels: Tensor, known: int, per_domain: int) -> None:
        self.name, self.batches, self.labels = name, batches, labels
        self.known, self.per_domain = known, per_domain
        self.steps = len(batches)
        self.frozen: dict[tuple[float, float], tuple[Tensor, Tensor]] = {}


def make_streams(
    sets: list[str], data: Path, limit: int, device: torch.device, corruptions: list[str], batch: int
) -> dict:
    """Corrupt the images on the device and cut them into batches."""
    half = batch // 2
    read = {"cifar10": lambda: cifar10(data), "cifar100": lambda: cifar100(data)}
    digits = svhn(data, limit=limit).batch(range(limit)).to(device)
    streams = {}
    for name in sets:
        source = read[name]()
        images, labels = source.batch(range(limit)).to(device), source.labels[:limit].to(device)
        closed, opened, closed_labels, open_labels = [], [], [], []
        for corruption in corruptions:
            known = corrupt(images, corruption, 5, dataset=name)
            unknown = corrupt(digits, corruption, 5, dataset="svhn")
            closed.append(known.view(-1, batch, 3, 32, 32))
            closed_labels.append(labels.view(-1, batch))
            halves = (known.view(-1, half, 3, 32, 32), unknown.view(-1, half, 3, 32, 32))
            opened.append(torch.cat(halves, dim=1))
            open_labels.append(labels.view(-1, half))
        streams[name, "closed"] = Stream("closed", torch.cat(closed), torch.cat(closed_labels), batch, limit // batch)
        streams[name, "open"] = Stream("open", torch.cat(opened), torch.cat(open_labels), half, limit // half)
    return streams


def make_network(model: torch.nn.Module, alpha: tuple[float, float], device: torch.device) -> Network:
    """A copy of the model under a rule for statistics."""
    model = copy.deepcopy(model).to(device)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    layers = sum(isinstance(module, NORMS) for module in model.modules())
    rule = Batch() if alpha == (1.0, 1.0) else PerLayer(*alpha, layers)
    return Network(model, rule, precision="bf16" if device.type == "cuda" else None)


def trainable(network: Network, scope: str) -> list[torch.nn.Parameter]:
    """The parameters that learn."""
    if scope == "all":
        chosen = list(network.model.parameters())
    else:
        norms = (module for module in network.model.modules() if isinstance(module, NORMS))
        chosen = [parameter for module in norms for parameter in module.parameters()]
    for parameter in chosen:
        parameter.requires_grad_(True)
    return chosen


def entropy(log_p: Tensor) -> Tensor:
    return -(log_p.exp() * log_p).sum(dim=1)


def mean_over(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / (mask > 0).sum().clamp(min=1)


class Job:
    """A step that is captured once and replayed for every batch."""

    def __init__(self, stream: Stream, rounds: int, classes: int, device: torch.device) -> None:
        self.stream, self.rounds, self.device = stream, rounds, device
        self.total = stream.steps * rounds
        self.counter = torch.zeros(1, dtype=torch.int64, device=device)
        self.results: dict[str, Tensor] = {}
        self.classes = classes
        self.cuda_stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.graph = None
        self.generator = torch.Generator(device).manual_seed(0)
        self._tensors: list[Tensor] = []

    def images(self) -> Tensor:
        index = self.counter % self.stream.steps
        batch = self.stream.batches.index_select(0, index)[0].float() / 255
        return batch.contiguous(memory_format=torch.channels_last)

    def see(self, images: Tensor, view: str) -> Tensor:
        if view == "flip":
            return images.flip(-1)
        if view == "crop":
            return crop_and_flip(images, self.generator).contiguous(memory_format=torch.channels_last)
        return images

    def store(self, name: str, value: Tensor) -> None:
        value = value.to(torch.uint8) if value.dtype == torch.bool else value
        if name not in self.results:
            self.results[name] = value.new_zeros((self.total, *value.shape))
        self.results[name].index_copy_(0, self.counter, value.detach().unsqueeze(0))

    def learn(self, loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.contiguous(
                memory_format=torch.channels_last if parameter.ndim == 4 else torch.contiguous_format
            )
        self.optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None
        with torch.no_grad():
            if self.pull:
                torch._foreach_lerp_(self.parameters, self.source, self.pull)

    def prepare(self) -> None:
        """Warm up, capture, and return to the start."""
        start = [tensor.detach().clone() for tensor in self._tensors]
        if self.cuda_stream is None:
            return
        self.cuda_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.cuda_stream):
            for _ in range(2):
                self.step()
        torch.cuda.synchronize()
        try:
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self.generator)
            with torch.cuda.graph(graph, stream=self.cuda_stream, capture_error_mode="thread_local"):
                self.step()
            self.graph = graph
        except Exception:
            print("capture failed", traceback.format_exc(), flush=True)
            torch.cuda.synchronize()
        with torch.no_grad():
            for tensor, first in zip(self._tensors, start, strict=True):
                tensor.copy_(first)
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()
            self.counter.zero_()
        torch.cuda.synchronize()

    def advance(self) -> None:
        if self.graph is not None:
            with torch.cuda.stream(self.cuda_stream):
                self.graph.replay()
        elif self.cuda_stream is not None:
            with torch.cuda.stream(self.cuda_stream):
                self.step()
        else:
            self.step()


class SentinelJob(Job):
    def __init__(self, choice: Sentinel, model, stream, rounds, classes, device) -> None:
        super().__init__(stream, rounds, classes, device)
        self.choice = choice
        alpha = (choice.alpha, choice.alpha)
        self.network = make_network(model, alpha, device)
        self.teacher = make_network(model, alpha, device)
        self.parameters = trainable(self.network, "affine")
        self.teachers = trainable(self.teacher, "affine")
        self.source = [parameter.detach().clone() for parameter in self.parameters]
        self.pull = choice.pull
        self.optimizer = torch.optim.Adam(self.parameters, lr=choice.lr, capturable=device.type == "cuda")
        self._tensors = [*self.parameters, *self.teachers]
        self.limit = choice.threshold * math.log(classes)

    def step(self) -> None:
        choice, images = self.choice, self.images()
        logits = self.network(self.see(images, choice.view))
        log_p = logits.log_softmax(dim=1)
        losses = entropy(log_p)
        with torch.no_grad():
            if choice.teacher:
                teacher = self.teacher(images if choice.view != "crop" else self.see(images, choice.view))
                theirs = entropy(teacher.log_softmax(dim=1))
                self.store("teacher", teacher)
            else:
                theirs = losses.detach()
            own = losses.detach()
            attract, repel = own < self.limit, (own >= self.limit) & (theirs >= self.limit)
            weight = (self.limit - theirs).clamp(-10, 10).exp()
            energy = -logits.logsumexp(dim=1)
            groups = fit_otsu(energy, torch.ones_like(energy), by_size=True)
            separation = groups.separation
            below = groups.is_below_cut(energy)
            self.store("logits", logits)
            self.store("energy", energy)
            self.store("not_repelled", ~repel)
            self.store("attract", attract)
            self.store("below_cut", below)
            self.store("separation", separation.reshape(()))
            strength = torch.full_like(separation, choice.repel)
            if choice.guard:
                strength = strength * (separation >= 2.75 + 48 / len(energy))
        loss = mean_over(weight * losses, attract.float()) - strength * mean_over(losses, repel.float())
        self.learn(loss)
        with torch.no_grad():
            torch._foreach_lerp_(self.teachers, self.parameters, 1 - choice.momentum)
            self.counter.add_(1)


class LearnerJob(Job):
    def __init__(self, choice: Learner, sentinel, model, stream, rounds, classes, device) -> None:
        super().__init__(stream, rounds, classes, device)
        self.choice, self.sentinel = choice, sentinel
        self.network = make_network(model, choice.alpha, device)
        self.average = make_network(model, choice.alpha, device) if choice.momentum else None
        self.parameters = trainable(self.network, choice.scope)
        self.averages = [] if self.average is None else trainable(self.average, choice.scope)
        self.frozen = make_network(model, choice.alpha, device) if choice.masked else None
        self.source = [parameter.detach().clone() for parameter in self.parameters]
        self.pull = choice.pull
        self.optimizer = torch.optim.Adam(self.parameters, lr=choice.lr, capturable=device.type == "cuda")
        self.marginal = torch.full((classes,), 1 / classes, device=device)
        self._tensors = [*self.parameters, *self.averages, self.marginal]
        self.limit = 0.4 * math.log(classes)

    def read(self, name: str) -> Tensor:
        return self.sentinel.results[name].index_select(0, self.counter)[0]

    def step(self) -> None:
        choice, images = self.choice, self.images()
        ones = torch.ones(len(images), device=self.device, dtype=torch.bool)
        known = ones
        if self.sentinel is not None and choice.known != "all":
            known = self.read("not_repelled" if choice.known == "guarded" else choice.known).bool()
            if choice.known == "guarded":
                known = known | (self.read("separation") < 2.75 + 48 / len(images))
        mask = known if choice.masked else None
        index = self.counter % self.stream.steps
        if self.frozen is not None:
            with torch.no_grad(), self.frozen.statistics_of(mask):
                frozen = self.frozen(images)
        else:
            frozen = self.stream.frozen[choice.alpha][0].index_select(0, index)[0]
        with self.network.statistics_of(mask):
            logits = self.network(self.see(images, choice.first))
            with torch.no_grad():
                flipped = self.network(self.see(images, choice.second))
        log_p = logits.log_softmax(dim=1)
        with torch.no_grad():
            frozen_p = frozen.log_softmax(dim=1)
            cls = frozen_p.argmax(dim=1, keepdim=True)
            change = (log_p.gather(1, cls).exp() - frozen_p.gather(1, cls).exp())[:, 0]
            kept = known & (change >= -1e-6) if choice.diff else known
            weights = kept.float()
            members = {"l": log_p.detach(), "f": frozen_p, "x": flipped.log_softmax(dim=1)}
            if self.frozen is None:
                members["g"] = self.stream.frozen[choice.alpha][1].index_select(0, index)[0].log_softmax(dim=1)
            if self.sentinel is not None:
                members["s"] = self.read("logits").log_softmax(dim=1)
            if self.average is not None:
                with self.average.statistics_of(mask):
                    members["e"] = self.average(images).log_softmax(dim=1)
                    members["m"] = self.average(images.flip(-1)).log_softmax(dim=1)
                self.store("average", members["e"])
                self.store("mirrored", members["m"])
            if choice.weighted:
                weights = weights * (self.limit - entropy(log_p.detach())).clamp(-10, 10).exp()
            self.store("learner", logits)
            self.store("flipped", flipped)
            self.store("kept", kept)
        p = log_p.exp()
        if choice.loss == "entropy":
            losses = -(p * log_p).sum(dim=1)
        elif choice.loss == "slr":
            q = p.clamp(max=0.99)
            losses = -(q * (q / (1 - q) + 1e-5).log()).sum(dim=1)
        elif choice.loss == "cross":  # the mirror image learns what the moving average says of the image
            losses = -(members["e"].exp() * log_p).sum(dim=1)
        else:
            chosen = [members[letter] for letter in choice.members if letter in members]
            target = (torch.stack(chosen).mean(dim=0) / choice.temperature).softmax(dim=1)
            losses = -(target * log_p).sum(dim=1)
        loss = mean_over(losses, weights)
        if choice.mean_entropy:
            mean = (p * known.float().unsqueeze(1)).sum(dim=0) / known.sum().clamp(min=1)
            mean = torch.lerp(mean, self.marginal, choice.smooth)
            weight = choice.mean_entropy / (1 - choice.smooth)
            loss = loss + weight * (mean * mean.clamp(min=1e-12).log()).sum()
            if choice.smooth:
                with torch.no_grad():
                    self.marginal.copy_(mean)
        self.learn(loss)
        with torch.no_grad():
            if self.average is not None:
                torch._foreach_lerp_(self.averages, self.parameters, 1 - choice.momentum)
            self.counter.add_(1)


def auroc(scores: Tensor, known: int) -> float:
    """The area under the ROC curve of (steps, 200) scores whose first `known` columns are known."""
    low, high = scores[:, :known].flatten().double(), scores[:, known:].flatten().double()
    both = torch.cat([low, high])
    ranks = torch.empty_like(both)
    ranks[both.argsort()] = torch.arange(1, len(both) + 1, device=both.device, dtype=both.dtype)
    total = ranks[len(low) :].sum() - len(high) * (len(high) + 1) / 2
    return 100 * float(total / (len(low) * len(high)))


def by_round(job: Job, log_p: Tensor) -> list[float]:
    stream = job.stream
    labels = stream.labels.repeat(job.rounds, 1)
    wrong = (log_p[:, : stream.known].argmax(dim=2) != labels).float()
    return [round(100 * float(part.mean()), 2) for part in wrong.chunk(job.rounds)]


def auroc_by_round(job: Job, scores: Tensor) -> list[float]:
    if job.stream.known == job.stream.batches.shape[1]:
        return []
    found = []
    for part in scores.chunk(job.rounds):
        domains = part.split(job.stream.per_domain)
        found.append(round(sum(auroc(one, job.stream.known) for one in domains) / len(domains), 2))
    return found


def shares(job: Job, mask: Tensor) -> dict[str, list[float]]:
    known = [round(float(part[:, : job.stream.known].float().mean()), 3) for part in mask.chunk(job.rounds)]
    if job.stream.known == job.stream.batches.shape[1]:
        return {"known": known}
    return {
        "known": known,
        "unknown": [round(float(part[:, job.stream.known :].float().mean()), 3) for part in mask.chunk(job.rounds)],
    }


def combine(parts: dict[str, Tensor], letters: str) -> Tensor | None:
    if any(letter not in parts for letter in letters):
        return None
    return sum(parts[letter] for letter in letters)


COMBINATIONS = (
    "l", "x", "f", "g", "s", "e", "lx", "lg", "xg", "lf", "ls", "lgs", "lxg", "lxf", "lxs", "lxsf", "lxfg", "lxsfg",
    "fg", "fgs", "em", "emg", "emfg", "emlx", "emlxfg", "eg",
)  # fmt: skip


def report_sentinel(job: SentinelJob) -> dict:
    log_p = job.results["logits"].log_softmax(dim=2)
    frozen = job.stream.frozen[1.0, 1.0][0].log_softmax(dim=2).repeat(job.rounds, 1, 1)
    errors = {"sentinel": by_round(job, log_p), "bn_adapt": by_round(job, frozen)[:1]}
    found = {"errors": errors, "auroc_energy": auroc_by_round(job, job.results["energy"])}
    found["auroc_entropy"] = auroc_by_round(job, -(log_p.exp() * log_p).sum(dim=2))
    if "teacher" in job.results:
        teacher = job.results["teacher"].log_softmax(dim=2)
        errors["teacher"] = by_round(job, teacher)
        errors["sum3"] = by_round(job, log_p + teacher + frozen)
        found["auroc_teacher"] = auroc_by_round(job, -job.results["teacher"].logsumexp(dim=2))
    for name in ("not_repelled", "attract", "below_cut"):
        found[name] = shares(job, job.results[name])
    separation = job.results["separation"]
    found["separation"] = [
        [round(float(part.quantile(q)), 2) for q in (0.05, 0.5, 0.95)] for part in separation.chunk(job.rounds)
    ]
    return found


def report_learner(job: LearnerJob) -> dict:
    repeat = lambda tensor: tensor.log_softmax(dim=2).repeat(job.rounds, 1, 1)  # noqa: E731
    parts = {"l": job.results["learner"].log_softmax(dim=2), "x": job.results["flipped"].log_softmax(dim=2)}
    if job.choice.alpha in job.stream.frozen:
        frozen, mirrored = job.stream.frozen[job.choice.alpha]
        parts |= {"f": repeat(frozen), "g": repeat(mirrored)}
    if job.sentinel is not None:
        parts["s"] = job.sentinel.results["logits"].log_softmax(dim=2)
    if "average" in job.results:
        parts |= {"e": job.results["average"], "m": job.results["mirrored"]}
    errors = {}
    for letters in COMBINATIONS:
        mixed = combine(parts, letters)
        if mixed is not None:
            errors[letters] = by_round(job, mixed)
    domains = {}
    for letters in ("l", "f", "lx", "fg", "lxg", "lxfg", "em", "emfg"):
        mixed = combine(parts, letters)
        if mixed is not None:
            wrong = (mixed[-job.stream.steps :, : job.stream.known].argmax(dim=2) != job.stream.labels).float()
            domains[letters] = [round(100 * float(part.mean()), 2) for part in wrong.split(job.stream.per_domain)]
    found = {"errors": errors, "domains": domains, "kept": shares(job, job.results["kept"])}
    found["auroc_energy"] = auroc_by_round(job, -job.results["learner"].logsumexp(dim=2))
    if job.sentinel is not None:
        energy = job.sentinel.results["energy"]
        found["auroc_sentinel"] = auroc_by_round(job, energy)
        mixed = energy - job.results["learner"].logsumexp(dim=2)
        found["auroc_sum"] = auroc_by_round(job, mixed)
    return found


def run_together(jobs: list[Job], start: float, deadline: float) -> bool:
    """Run jobs side by side, each on its own stream."""
    for job in jobs:
        job.prepare()
    for number in range(max(job.total for job in jobs)):
        for job in jobs:
            if number < job.total:
                job.advance()
        if number % 50 == 49 and jobs[0].cuda_stream is not None:
            jobs[0].cuda_stream.synchronize()
            if time.time() - start > deadline:
                print("out of time", flush=True)
                return False
    if jobs[0].cuda_stream is not None:
        torch.cuda.synchronize()
    return True


class FrozenJob(Job):
    """The source network with a share of the batch's statistics, on the images and their mirror images."""

    def __init__(self, model, stream, alphas, classes, device) -> None:
        super().__init__(stream, 1, classes, device)
        self.networks = {alpha: make_network(model, alpha, device) for alpha in alphas}
        self.optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])

    @torch.no_grad()
    def step(self) -> None:
        images = self.images()
        for alpha, network in self.networks.items():
            self.store(f"{alpha} plain", network(images))
            self.store(f"{alpha} mirrored", network(images.flip(-1)))
        self.counter.add_(1)


def run_frozen(stream: Stream, model, alphas: list, classes: int, device: torch.device, start: float) -> None:
    job = FrozenJob(model, stream, alphas, classes, device)
    run_together([job], start, 1e9)
    for alpha in alphas:
        stream.frozen[alpha] = (job.results[f"{alpha} plain"], job.results[f"{alpha} mirrored"])


def main() -> None:
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
    parser.add_argument("--corruptions", default=",".join(HELD_OUT))
    arguments = parser.parse_args()
    start = time.time()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sets = arguments.sets.split(",")
    plan = importlib.import_module("sentinel_plans").PLANS[arguments.plan]
    streams = make_streams(
        sets, arguments.data, arguments.limit, device, arguments.corruptions.split(","), arguments.batch
    )
    models = {name: build_from_checkpoint(arguments.weights / f"wrn40_2_{name}.pt") for name in sets}
    classes = {"cifar10": 10, "cifar100": 100}
    places = [(name, kind) for name in sets for kind in arguments.streams.split(",")]
    print(f"data after {time.time() - start:.1f} s", flush=True)
    plan = {
        **plan,
        "sentinels": [one for one in plan["sentinels"] if "closed" not in arguments.streams or not one.open_only],
    }
    alphas = {(1.0, 1.0), *(learner.alpha for learner in plan["learners"])}
    for place in places:
        run_frozen(streams[place], models[place[0]], sorted(alphas), classes[place[0]], device, start)
    print(f"frozen after {time.time() - start:.1f} s", flush=True)

    def write(kind: str, choice: Sentinel | Learner, place: tuple[str, str], found: dict, seconds: float) -> None:
        line = {"kind": kind, "set": place[0], "stream": place[1], "choice": dataclasses.asdict(choice), **found}
        line |= {"limit": arguments.limit, "rounds": arguments.rounds, "seconds": round(seconds, 2)}
        with arguments.out.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def run_all(wanted: list[tuple], make: Callable, report: Callable, kind: str) -> dict:
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
    run_all(learners[:cut], make_learner, report_learner, "learner")
    run_all(others, make_sentinel, report_sentinel, "sentinel")
    run_all(learners[cut:], make_learner, report_learner, "learner")
    print(f"all after {time.time() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
