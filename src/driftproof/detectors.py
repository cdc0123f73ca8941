"""Detectors: adapting copies of the model that learn nothing but to tell known samples from unknown ones."""

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from driftproof.components import Component, Detection, flatten, run_beside
from driftproof.errors import ConfigurationError, ModelError
from driftproof.network import Network, StatisticsRule
from driftproof.norms import norm_layers
from driftproof.predictions import entropy, log_probabilities, upcast
from driftproof.two_groups import fit_otsu

__all__ = ["Detector", "Sentinel", "detect_beside"]

SourcePass: TypeAlias = tuple[Tensor, Tensor | None]
"""The frozen network's logits, and its features where something needs them."""

_LARGEST = 10.0
_BETAS, _EPS = (0.9, 0.999), 1e-8
_FEW = 48
"""How much farther apart the groups of few scores are by chance, times their number."""


class Detector(Component):
    """Tells known samples from unknown ones, before the adapting network sees the batch.

    It gets a network of its own that shares all parameters with the frozen one, and keeps what it learns in buffers.
    Components read what it says as `step.detection`.

    Args:
        statistics: What its batch-norm layers normalize with; None is what the adapting network uses.

    Attributes:
        needs_source: Whether `detect` may read the frozen network's logits.
    """

    needs_source = False

    def __init__(self, statistics: StatisticsRule | None = None) -> None:
        super().__init__()
        self.statistics = statistics

    def detect(
        self, images: Tensor, network: Network, good: Tensor, read_source: Callable[[], Tensor] | None = None
    ) -> Detection:
        """Judge a batch, and learn from it, or leave that to the detection's `learn`.

        Args:
            images: The batch.
            network: The detector's own network.
            good: Which images to learn from, (N,).
            read_source: Returns the frozen network's logits, for a detector that `needs_source`. That network runs
                meanwhile, so it is best called late.
        """
        raise NotImplementedError


def detect_beside(
    detector: Detector,
    images: Tensor,
    network: Network,
    good: Tensor,
    run_source: Callable[[], SourcePass] | None,
    stream: torch.cuda.Stream | None,
    run_view: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Detection, SourcePass | None, Tensor | None, Callable[[], None]]:
    """Have a detector judge a batch while the frozen network runs.

    Returns what both found, and what waits for the detector to have learned.

    Args:
        detector: The detector.
        images: The batch.
        network: The detector's own network.
        good: Which images to learn from, (N,).
        run_source: Runs the frozen network; None where the detector does not need it.
        stream: Where the frozen network runs, and the detector learns; None runs it first.
        run_view: Runs the frozen network once more, on `stream`, when the detector has its logits, which it gets; what
            waits for the stream later waits for this too. Ignored without a stream.
    """
    if run_source is None:
        detection = detector.detect(images, network, good)
        return detection, None, None, _learn_beside(detection, stream)
    with torch.no_grad():
        found, wait = run_beside(stream, run_source)

    views: list[Tensor] = []

    def read() -> Tensor:
        wait()
        if run_view is not None and stream is not None and not views:
            with torch.no_grad():
                views.append(run_beside(stream, partial(run_view, found[0]))[0])
        return found[0]

    detection = detector.detect(images, network, good, read)
    if not views:
        wait()  # whether it was read or not
    return detection, found, views[0] if views else None, _learn_beside(detection, stream)


def _learn_beside(detection: Detection, stream: torch.cuda.Stream | None) -> Callable[[], None]:
    """Start what a detection left; returns what waits for it."""
    with torch.no_grad():
        return run_beside(stream, detection.learn or _learn_nothing)[1]


def _learn_nothing() -> None:
    """For a detection that left nothing."""


class Sentinel(Detector):
    """Lowers the entropy of predictions it is sure of, and raises that of the others.

    The weights and biases of normalization layers learn, with Adam. With τ the threshold, h the entropy and h_e that of
    a moving average of the sentinel: samples with h < τ attract, weighted by exp(τ − h_e). Samples with h ≥ τ and h_e ≥
    τ repel; the others take no part. This is PAF-KIP's rule without random views, in a network that never answers, so
    that what it forgets of hard known samples costs no error. A sample that does not repel counts as known. The novelty
    is the sentinel's energy.

    Args:
        lr: Learning rate.
        repel: α, the weight of the entropy that is raised.
        threshold: τ as a share of ln C.
        momentum: Share of itself the moving average keeps at each step; 1 is the frozen network, at no pass of its own.
        pull: Share of the way back to the source after each step.
        mirror: Whether the sentinel sees the images mirrored, which makes it a second opinion on them. Scenes in which
            every pixel has a label it sees as they are: a mirrored scene is novel by itself.
        min_separation: All samples count as known unless the energies of the batch form two groups, with means at least
            this + 48/n standard deviations apart; 0 trusts the sentinel always.
        layers: The share of the normalization layers that learn, the last ones; the gradient ends at the first of them.
        images_per_step: Gradients of smaller batches wait for each other until they come from so many images. The
            pixels of an image are too much alike to count by themselves.
        statistics: See `Detector`.

    Reference:
        Lee et al., "Stabilizing Open-Set Test-Time Adaptation via Primary-Auxiliary Filtering and Knowledge-Integrated
        Prediction", BMVC 2025.
    """

    affine: Tensor
    average: Tensor
    mean: Tensor
    square: Tensor
    count: Tensor
    waiting: Tensor
    num_waiting: Tensor

    def __init__(
        self,
        *,
        lr: float = 1e-3,
        repel: float = 2.0,
        threshold: float = 0.4,
        momentum: float = 0.999,
        pull: float = 0.0,
        mirror: bool = True,
        min_separation: float = 0.0,
        layers: float = 1.0,
        images_per_step: int = 64,
        statistics: StatisticsRule | None = None,
    ) -> None:
        super().__init__(statistics)
        for name, value in (
            ("lr", lr),
            ("repel", repel),
            ("min_separation", min_separation),
            ("images_per_step", images_per_step),
        ):
            if not 0 <= value < math.inf:
                raise ConfigurationError(f"Expected `{name}` to be at least 0, but got {value}.")
        for name, value in (("threshold", threshold), ("momentum", momentum), ("pull", pull), ("layers", layers)):
            if not 0 <= value <= 1:
                raise ConfigurationError(f"Expected `{name}` to be in 0..1, but got {value}.")
        self.lr, self.repel, self.threshold = lr, repel, threshold
        self.momentum, self.pull, self.mirror, self.min_separation = momentum, pull, mirror, min_separation
        self.layers, self.images_per_step = layers, images_per_step
        self.needs_source = momentum == 1
        self._sizes: dict[str, int] = {}
        self._has_maps = False
        for name in ("affine", "average", "mean", "square", "count", "waiting", "num_waiting"):
            self.register_buffer(name, None)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Return to the source's weights."""
        norms = [own for _, layer in norm_layers(network.model) if (own := [*layer.parameters(recurse=False)])]
        left_out = math.floor((1 - self.layers) * len(norms) + 1e-9)
        affine = {id(parameter) for own in norms[min(left_out, len(norms) - 1) :] for parameter in own}
        found = {name: parameter for name, parameter in network.model.named_parameters() if id(parameter) in affine}
        if not found:
            raise ModelError(
                f"Expected a model whose normalization layers have weights, since {type(self).__name__} trains them, "
                f"but {type(network.model).__name__} has none."
            )
        self._sizes = {name: parameter.numel() for name, parameter in found.items()}
        start = upcast(flatten(found.values()).detach())
        self.affine, self.average = start.clone(), start.clone()
        self.mean, self.square, self.waiting = (torch.zeros_like(start) for _ in range(3))
        self.count, self.num_waiting = start.new_zeros(()), start.new_zeros(())

    def detect(
        self, images: Tensor, network: Network, good: Tensor, read_source: Callable[[], Tensor] | None = None
    ) -> Detection:
        """Judge a batch, and compute what to learn from it."""
        affine = self.affine.detach().requires_grad_()
        with torch.enable_grad(), network.replace_parameters(self._split(affine)):
            logits = self._predict(network, images)
            losses = entropy(log_probabilities(logits))
            with torch.no_grad():
                averaged = self._predict_average(network, images) if read_source is None else read_source()
                weights, attracts, repels = self._weigh(losses.detach(), averaged, good)
            loss = self._objective(losses, weights, attracts, repels, network)
            (gradient,) = network.distributed.gradients(loss, (affine,))
            network.restore_batch_norms()
        with torch.no_grad():
            logits = logits.detach()
            novelty = -upcast(logits).logsumexp(dim=1)
            known = ~repels
            if self.min_separation > 0:
                known = known | ~self._is_trusted(novelty, network)
            start, samples = self._read_source(network), network.distributed.global_count(len(images))
            return Detection(known, novelty, logits, partial(self._step, gradient, start, samples))

    def _predict(self, network: Network, images: Tensor) -> Tensor:
        """The logits for the mirror images, or for the images where every pixel has a label."""
        if not self.mirror or images.ndim != 4 or self._has_maps:
            return network(images)
        logits = network(images.flip(-1))
        if logits.ndim != 4:
            return logits
        self._has_maps = True  # known from the first batch on, which takes a pass more
        network.rollback()
        return network(images)

    def _predict_average(self, network: Network, images: Tensor) -> Tensor:
        """The moving average's logits for the images as they are."""
        with network.replace_parameters(self._split(self.average)):
            return network(images)

    def _weigh(self, own: Tensor, averaged: Tensor, good: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What attracts, with which weight, and what repels, by the sentinel's entropies and the average's logits."""
        limit = self.threshold * math.log(averaged.shape[1])
        theirs = entropy(log_probabilities(averaged))
        valid = good.view(-1, *[1] * (own.ndim - 1)).expand_as(own)
        attracts, repels = (own < limit) & valid, (own >= limit) & (theirs >= limit) & valid
        return (limit - theirs).clamp(-_LARGEST, _LARGEST).exp() * attracts, attracts, repels

    def _objective(self, losses: Tensor, weights: Tensor, attracts: Tensor, repels: Tensor, network: Network) -> Tensor:
        """The mean entropy of what attracts, less α times that of what repels."""
        sums = [(weights * losses).sum(), attracts.sum(), (repels * losses).sum(), repels.sum()]
        attracted, number, repelled, others = network.distributed.sum(*sums)
        return attracted / number.clamp(min=1) - self.repel * repelled / others.clamp(min=1)

    def _is_trusted(self, novelty: Tensor, network: Network) -> Tensor:
        """Whether the scores of the batch form two groups."""
        scores = network.distributed.gather_rows(novelty).flatten()
        return fit_otsu(scores).separation >= self.min_separation + _FEW / len(scores)

    def _step(self, gradient: Tensor, start: Tensor, samples: int) -> None:
        """A step of Adam, where one is due and its gradient is finite; the buffers are replaced.

        Where a batch is always enough for a step, fewer operations are launched.
        """
        total, number = torch.add(self.waiting, gradient, alpha=samples), self.num_waiting + samples
        finite = torch.linalg.vector_norm(total, math.inf) < math.inf
        due = None if samples >= self.images_per_step else number >= self.images_per_step
        gradient, stepped, count = total / number, finite if due is None else finite & due, self.count + 1
        mean = torch.lerp(self.mean, gradient, 1 - _BETAS[0])
        square = torch.lerp(self.square, gradient**2, 1 - _BETAS[1])
        size = (square / (1 - _BETAS[1] ** count)).sqrt() + _EPS
        affine = self.affine - self.lr * mean / (1 - _BETAS[0] ** count) / size
        affine = torch.lerp(affine, start, self.pull) if self.pull else affine
        moved = {"affine": affine, "mean": mean, "square": square, "count": count}
        if self.momentum < 1:
            moved["average"] = torch.lerp(affine, self.average, self.momentum)
        for name, value in moved.items():
            setattr(self, name, torch.where(stepped, value, getattr(self, name)))
        if due is None:
            self.waiting, self.num_waiting = torch.zeros_like(total), torch.zeros_like(number)
        else:
            self.waiting = torch.where(due, 0.0, torch.where(finite, total, self.waiting))
            self.num_waiting = torch.where(due, 0.0, torch.where(finite, number, self.num_waiting))

    def _read_source(self, network: Network) -> Tensor:
        """The source's parameters as a vector; an average that stands still is that."""
        if self.momentum == 1:
            return self.average
        return flatten(map(network.model.get_parameter, self._sizes)).to(self.average)

    def _split(self, values: Tensor) -> dict[str, Tensor]:
        """The parameters that a vector holds, by name."""
        return dict(zip(self._sizes, torch.split(values, list(self._sizes.values())), strict=True))
