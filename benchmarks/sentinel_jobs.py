"""Captured steps of sentinels and learners, for `sentinel_research.py`."""

import math
import time
import traceback
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from driftproof.augment import crop_and_flip
from driftproof.two_groups import fit_otsu
from sentinel_streams import Shares, Stream, keep_statistics, make_network, running_statistics, trainable

KERNELS = {
    "shift": (1.0, 0.0, 0.0),
    "shift_back": (0.0, 0.0, 1.0),
    "half": (0.5, 0.5, 0.0),
    "half_back": (0.0, 0.5, 0.5),
    "quarter": (0.25, 0.75, 0.0),
    "quarter_back": (0.0, 0.75, 0.25),
    "further": (0.5, 0.0, 0.5),
    "smooth": (0.125, 0.75, 0.125),
    "smoother": (0.25, 0.5, 0.25),
    "sharp": (-0.125, 1.25, -0.125),
}
"""Views of mirror images: each pixel is this mean of its neighbor before it, itself and the one after, on both axes.

So `shift` moves them by a pixel to the right and down, and `half` by half a pixel, which smooths them.
"""
VIEWS = ("none", "flip", *KERNELS)


@dataclass(frozen=True)
class Sentinel:
    """What a sentinel does."""

    name: str
    alpha: float | Shares = 1.0
    lr: float = 1e-3
    repel: float = 2.0
    view: str = "none"
    teacher_view: str = ""
    momentum: float = 0.999
    pull: float = 0.0
    teacher: bool = True
    guard: bool = False
    threshold: float = 0.4
    open_only: bool = False
    window: int = 0
    layers: float = 1.0

    @property
    def rule(self) -> tuple[Shares, int]:
        """Its statistics."""
        return self.alpha if isinstance(self.alpha, tuple) else (self.alpha, self.alpha), self.window


@dataclass(frozen=True)
class Learner:
    """What a learner does."""

    name: str
    sentinel: str = "batch"
    alpha: Shares = (0.5, 0.5)
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
    spread: str = "known"
    window: int = 0
    frozen_alpha: Shares | None = None
    views: tuple[str, ...] = ()
    eps: float = 1e-8

    @property
    def frozen_rule(self) -> tuple[Shares, int]:
        """The statistics of the frozen network beside it."""
        return (self.alpha, self.window) if self.frozen_alpha is None else (self.frozen_alpha, 0)


def entropy(log_p: Tensor) -> Tensor:
    """The entropy of each prediction."""
    return -(log_p.exp() * log_p).sum(dim=1)


def mean_over(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of weighted values over those of positive weight."""
    return (values * mask).sum() / (mask > 0).sum().clamp(min=1)


class Job:
    """A step that is captured once and replayed for every batch."""

    optimizer: torch.optim.Optimizer
    parameters: list[Tensor]
    source: list[Tensor]
    pull: float

    def __init__(self, stream: Stream, rounds: int, classes: int, device: torch.device) -> None:
        self.stream, self.rounds, self.device = stream, rounds, device
        self.total = stream.steps * rounds
        self.counter = torch.zeros(1, dtype=torch.int64, device=device)
        self.results: dict[str, Tensor] = {}
        self.classes = classes
        self.cuda_stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.generator = torch.Generator(device).manual_seed(0)
        self._tensors: list[Tensor] = []

    def step(self) -> None:
        """Predict and learn."""
        raise NotImplementedError

    def images(self) -> Tensor:
        """The current batch."""
        index = self.counter % self.stream.steps
        batch = self.stream.batches.index_select(0, index)[0].float() / 255
        return batch.contiguous(memory_format=torch.channels_last)

    def see(self, images: Tensor, view: str) -> Tensor:
        """A view of the batch."""
        if view == "flip":
            return images.flip(-1)
        if view in KERNELS:
            images = pad(images.flip(-1), (1, 1, 1, 1), mode="replicate")
            for axis in (-2, -1):
                size = images.shape[axis] - 2
                parts = [share * images.narrow(axis, at, size) for at, share in enumerate(KERNELS[view]) if share]
                images = torch.stack(parts).sum(dim=0)
            return images.contiguous(memory_format=torch.channels_last)
        if view == "crop":
            return crop_and_flip(images, self.generator).contiguous(memory_format=torch.channels_last)
        return images

    def store(self, name: str, value: Tensor) -> None:
        """Keep a value of the current batch."""
        value = value.to(torch.uint8) if value.dtype == torch.bool else value
        if name not in self.results:
            self.results[name] = value.new_zeros((self.total, *value.shape))
        self.results[name].index_copy_(0, self.counter, value.detach().unsqueeze(0))

    def learn(self, loss: Tensor) -> None:
        """Take a step."""
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

    def cut(self, steps: int) -> bool:
        """Keep the rounds that so many steps finished; whether there is one."""
        self.rounds = min(self.rounds, steps // self.stream.steps)
        self.total = self.rounds * self.stream.steps
        torch.cuda.synchronize()
        self.results = {name: value[: self.total] for name, value in self.results.items()}
        return self.rounds > 0

    def advance(self) -> None:
        """Go on by one batch."""
        if self.graph is not None:
            with torch.cuda.stream(self.cuda_stream):
                self.graph.replay()
        elif self.cuda_stream is not None:
            with torch.cuda.stream(self.cuda_stream):
                self.step()
        else:
            self.step()


class SentinelJob(Job):
    """A sentinel over a stream."""

    def __init__(
        self, choice: Sentinel, model: nn.Module, stream: Stream, rounds: int, classes: int, device: torch.device
    ) -> None:
        super().__init__(stream, rounds, classes, device)
        self.choice = choice
        alpha, window = choice.rule
        self.network = make_network(model, alpha, device, window)
        self.teacher = make_network(model, alpha, device, window)
        self.parameters = trainable(self.network, "affine", choice.layers)
        self.teachers = trainable(self.teacher, "affine", choice.layers)
        self.source = [parameter.detach().clone() for parameter in self.parameters]
        self.pull = choice.pull
        self.optimizer = torch.optim.Adam(self.parameters, lr=choice.lr, capturable=device.type == "cuda")
        self._tensors = [*self.parameters, *self.teachers]
        self._tensors += [*running_statistics(self.network), *running_statistics(self.teacher)]
        self.limit = choice.threshold * math.log(classes)
        # An average that keeps all of itself is the frozen network, whose predictions are there.
        still = choice.momentum == 1 and (choice.teacher_view or choice.view) in ("none", "flip")
        stored = stream.frozen.get(choice.rule) if still else None
        self.frozen = None if stored is None else stored["none"]

    def step(self) -> None:
        """Predict and learn."""
        choice, images = self.choice, self.images()
        logits = self.network(self.see(images, choice.view))
        log_p = logits.log_softmax(dim=1)
        losses = entropy(log_p)
        with torch.no_grad():
            if choice.teacher and self.frozen is not None:
                index = self.counter % self.stream.steps
                theirs = entropy(self.frozen.index_select(0, index)[0].log_softmax(dim=1))
            elif choice.teacher:
                usual = "crop" if choice.view == "crop" else "none"
                teacher = self.teacher(self.see(images, choice.teacher_view or usual))
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
            keep_statistics(self.network)
            keep_statistics(self.teacher)
            self.counter.add_(1)


class LearnerJob(Job):
    """A learner over a stream, with what a sentinel stored."""

    def __init__(
        self,
        choice: Learner,
        sentinel: "SentinelJob | None",
        model: nn.Module,
        stream: Stream,
        rounds: int,
        classes: int,
        device: torch.device,
    ) -> None:
        super().__init__(stream, rounds, classes, device)
        self.choice, self.sentinel = choice, sentinel
        self.network = make_network(model, choice.alpha, device, choice.window)
        self.average = make_network(model, choice.alpha, device) if choice.momentum else None
        self.parameters = trainable(self.network, choice.scope)
        self.averages = [] if self.average is None else trainable(self.average, choice.scope)
        self.frozen = make_network(model, choice.alpha, device) if choice.masked else None
        self.source = [parameter.detach().clone() for parameter in self.parameters]
        self.pull = choice.pull
        self.optimizer = torch.optim.Adam(
            self.parameters, lr=choice.lr, eps=choice.eps, capturable=device.type == "cuda"
        )
        self.marginal = torch.full((classes,), 1 / classes, device=device)
        self._tensors = [*self.parameters, *self.averages, self.marginal, *running_statistics(self.network)]
        self.limit = 0.4 * math.log(classes)

    def read(self, name: str) -> Tensor:
        """What the sentinel stored of the current batch."""
        assert self.sentinel is not None
        return self.sentinel.results[name].index_select(0, self.counter)[0]

    def step(self) -> None:
        """Predict and learn."""
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
            frozen = self.stream.frozen[choice.frozen_rule]["none"].index_select(0, index)[0]
        with self.network.statistics_of(mask):
            logits = self.network(self.see(images, choice.first))
            with torch.no_grad():
                flipped = self.network(self.see(images, choice.second))
                for view in choice.views:
                    self.store(view, self.network(self.see(images, view)))
        log_p = logits.log_softmax(dim=1)
        with torch.no_grad():
            frozen_p = frozen.log_softmax(dim=1)
            cls = frozen_p.argmax(dim=1, keepdim=True)
            change = (log_p.gather(1, cls).exp() - frozen_p.gather(1, cls).exp())[:, 0]
            kept = known & (change >= -1e-6) if choice.diff else known
            weights = kept.float()
            members = {"l": log_p.detach(), "f": frozen_p, "x": flipped.log_softmax(dim=1)}
            if self.frozen is None:
                mirrored = self.stream.frozen[choice.frozen_rule]["flip"].index_select(0, index)[0]
                members["g"] = mirrored.log_softmax(dim=1)
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
        elif choice.loss == "labels":  # what no method has: the true classes, learned after the answer
            labels, number = self.stream.labels.index_select(0, index)[0], self.stream.known
            losses = torch.zeros_like(weights)
            losses[:number] = nn.functional.cross_entropy(logits[:number], labels, reduction="none")
            weights = torch.zeros_like(weights)
            weights[:number] = 1.0
        elif choice.loss == "cross":  # the mirror image learns what the moving average says of the image
            losses = -(members["e"].exp() * log_p).sum(dim=1)
        else:
            chosen = [members[letter] for letter in choice.members if letter in members]
            target = (torch.stack(chosen).mean(dim=0) / choice.temperature).softmax(dim=1)
            losses = -(target * log_p).sum(dim=1)
        loss = mean_over(losses, weights)
        if choice.mean_entropy:
            counted = known
            if choice.spread != "known":  # the surer group, while there are two
                counted = self.read("below_cut").bool() | (self.read("separation") < 2.75 + 48 / len(images))
            mean = (p * counted.float().unsqueeze(1)).sum(dim=0) / counted.sum().clamp(min=1)
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
            keep_statistics(self.network)
            self.counter.add_(1)


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
                finished = [job.cut(number + 1) for job in jobs]
                return all(finished)
    if jobs[0].cuda_stream is not None:
        torch.cuda.synchronize()
    return True


class FrozenJob(Job):
    """The source network with a share of the batch's statistics, on several views of the images."""

    def __init__(
        self,
        model: nn.Module,
        stream: Stream,
        rules: list[tuple[Shares, int]],
        views: list[str],
        classes: int,
        device: torch.device,
    ) -> None:
        super().__init__(stream, 1, classes, device)
        self.networks = {(alpha, window): make_network(model, alpha, device, window) for alpha, window in rules}
        self.views = views
        self.optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
        self._tensors = [tensor for network in self.networks.values() for tensor in running_statistics(network)]

    @torch.no_grad()
    def step(self) -> None:
        """Predict and learn."""
        images = self.images()
        for rule, network in self.networks.items():
            for view in self.views:
                self.store(f"{rule} {view}", network(self.see(images, view)))
            keep_statistics(network)
        self.counter.add_(1)


def run_frozen(
    stream: Stream,
    model: nn.Module,
    rules: list[tuple[Shares, int]],
    views: list[str],
    classes: int,
    device: torch.device,
    start: float,
) -> None:
    """Store the predictions of the source network for every rule of statistics and every view."""
    job = FrozenJob(model, stream, rules, views, classes, device)
    run_together([job], start, 1e9)
    for rule in rules:
        stream.frozen[rule] = {view: job.results[f"{rule} {view}"] for view in views}
