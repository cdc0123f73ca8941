"""What components may read while one batch is processed."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from driftproof.augment import Augment, check_keeps_pixels, check_unit_range
from driftproof.components.beside import run_beside
from driftproof.components.detection import Detection
from driftproof.components.lazy import lazy_property
from driftproof.distributed import Distributed
from driftproof.errors import ConfigurationError, ModelError
from driftproof.network import Network
from driftproof.predictions import entropy, log_probabilities, logit_change

__all__ = ["Step", "batch_seed", "flatten"]


class Step:
    """One batch: images, predictions of the networks, and the parameters that learn from it.

    Everything expensive is computed on first access and shared by all components. The frozen network, for example,
    runs only if a component reads `source_logits`.

    Args:
        sample_mask: Computes which samples the adapting network takes batch statistics from, before it runs; None is
            all of them.
        view: Draws the random view of the batch that the adapting network and its teacher see; None shows them the
            batch itself. The frozen network always sees the batch.
        student_view: The same for the adapting network alone, in place of `view`.
        detection: What the method's detector says of the batch; None without one.
        source_pass: The frozen network's logits and features where it ran already; None runs it on demand.
        source_view: The frozen network's logits of another view, where an output asked for them and they are there; to
            be read in `predict_beside` alone.
        wait: Waits for the detector to have learned; called in `join`. None where nothing runs beside.
        generator: Source of random numbers, or a step that has it; None makes one from the seed and the index.
        side_stream: CUDA stream for what runs beside the adapting network, such as the frozen one; None runs that on
            demand.

    Attributes:
        images: The batch.
        network: The adapting network θ_a.
        source: The frozen network θ_o.
        parameters: The trainable parameters of `network`.
        source_parameters: The same parameters at their start, in `source`.
        index: How many good batches came before, as a 0-d tensor on the device.
        num_steps: How many steps separate the weights of the two networks, as a 0-d tensor; None where they differ in
            more than that, or never do.
        always_at_source: Whether the two networks always have equal weights and statistics.
        logits: The adapting network's logits, with their graph.
        weights: The weight ≥ 0 with which each sample attracts; until the selection has run one, or zero for samples
            that only fill a memory.
        repel_weights: The weight ≥ 0 with which each sample repels; None is zero for all.
        gradients: The gradient for each of `parameters`, once it is known.
    """

    def __init__(
        self,
        images: Tensor,
        *,
        network: Network,
        source: Network,
        parameters: tuple[nn.Parameter, ...],
        source_parameters: tuple[nn.Parameter, ...],
        index: Tensor | None = None,
        seed: int = 0,
        num_steps: Tensor | None = None,
        always_at_source: bool = False,
        teacher: Network | None = None,
        needs_features: bool = False,
        needs_source_features: bool = False,
        sample_mask: Callable[["Step"], Tensor] | None = None,
        view: Augment | None = None,
        student_view: Augment | None = None,
        detection: Detection | None = None,
        source_pass: tuple[Tensor, Tensor | None] | None = None,
        source_view: Tensor | None = None,
        wait: Callable[[], None] | None = None,
        generator: "torch.Generator | Step | None" = None,
        side_stream: torch.cuda.Stream | None = None,
    ) -> None:
        self.images = images
        self.network = network
        self.source = source
        self.parameters = parameters
        self.source_parameters = source_parameters
        self.index = images.new_zeros((), dtype=torch.int64) if index is None else index
        self.num_steps = num_steps
        self.always_at_source = always_at_source
        self.repel_weights: Tensor | None = None
        self.gradients: tuple[Tensor, ...] = ()
        self._waits = [] if wait is None else [wait]
        self.view = view
        self.source_view = source_view
        self._teacher = teacher
        self._detection = detection
        self._seed = seed
        self._generator = generator
        self._needs_features = needs_features
        self._needs_source_features = needs_source_features
        self._features: Tensor | None = None
        self._source_features: Tensor | None = None
        if source_pass is not None:
            self.source_logits, self._source_features = source_pass
        self._side_stream = side_stream if network.distributed.size == 1 else None
        runs_source = side_stream is not None and source_pass is None
        _, wait_for_source = run_beside(side_stream, lambda: self.source_logits) if runs_source else (None, None)
        with nullcontext() if sample_mask is None else network.statistics_of(sample_mask(self)):
            seen = self.draw_view() if student_view is None else student_view(images, self.generator)
            self.logits, self._features = network.try_features(seen) if needs_features else (network(seen), None)
        if wait_for_source is not None:
            wait_for_source()
        if view is not None:
            check_keeps_pixels(view, self.logits)
        self.output = self.logits

    @property
    def output(self) -> Tensor:
        """What the adapter returns; the logits until `output=` has run."""
        self.join()
        return self._output

    @output.setter
    def output(self, value: Tensor) -> None:
        self._output = value

    def predict_beside(self, predict: Callable[[], Tensor]) -> Tensor:
        """Compute the output beside the gradient, where a captured step can: for outputs that run a network.

        Args:
            predict: Computes it. What it reads of the step must have been computed before.

        Returns:
            What `output` will be. It may be read as `step.output` alone, which waits for it.
        """
        predicted, wait = run_beside(self._side_stream, predict)
        self._waits.append(wait)
        return predicted

    def join(self) -> None:
        """Wait for what runs beside; called before parameters change, and before a detector's buffers are read."""
        for wait in self._waits:
            wait()
        self._waits.clear()

    @lazy_property
    def weights(self) -> Tensor:
        """One for every sample; a `sample_mask` is computed before the adapting network runs."""
        logits = self.logits if "logits" in self.__dict__ else self.source_logits
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return torch.ones(_sample_shape(logits), dtype=dtype, device=logits.device)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one number per sample: (N,), or (N, H, W) where labels are maps."""
        return _sample_shape(self.logits)

    @property
    def distributed(self) -> Distributed:
        """The ranks that share the batch: reduce over them whatever is reduced over samples."""
        return self.network.distributed

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return self.logits.shape[1]

    @property
    def features(self) -> Tensor:
        """The classifier's input, (N, D); only for components that declare `needs_features`."""
        if self._features is None and self._needs_features:
            raise self.network.missing_features()
        if self._features is None:
            raise ModelError("A component that reads `step.features` must declare `needs_features = True`.")
        return self._features

    @property
    def has_features(self) -> bool:
        """Whether the adapting network was run with features and has some."""
        return self._features is not None

    @property
    def has_source_features(self) -> bool:
        """Whether the frozen network was run with features and has some."""
        return self._source_features is not None

    @property
    def source_features(self) -> Tensor:
        """The input of the frozen network's classifier, (N, D), without a graph; declare `needs_source_features`."""
        self.source_logits  # noqa: B018  # one pass gives both
        if self._source_features is None and self._needs_source_features:
            raise self.source.missing_features()
        if self._source_features is None:
            raise ModelError(
                "A component that reads `step.source_features` must declare `needs_source_features = True`."
            )
        return self._source_features

    @lazy_property
    def log_probabilities(self) -> Tensor:
        """Ln ŷ of the adapting network, with its graph even if the first reader needs none."""
        with torch.set_grad_enabled(self.logits.requires_grad):
            return log_probabilities(self.logits)

    @lazy_property
    def probabilities(self) -> Tensor:
        """ŷ, as `log_probabilities`."""
        with torch.set_grad_enabled(self.logits.requires_grad):
            return self.log_probabilities.exp()

    @lazy_property
    def entropies(self) -> Tensor:
        """H(ŷ) of each sample, as `log_probabilities`."""
        with torch.set_grad_enabled(self.logits.requires_grad):
            return entropy(self.log_probabilities, self.probabilities)

    @lazy_property
    def source_logits(self) -> Tensor:
        """z̃ of the frozen network on the same batch; never part of a graph."""
        with torch.no_grad():
            if not self._needs_source_features:
                return self.source(self.images)
            logits, self._source_features = self.source.try_features(self.images)
            return logits

    @lazy_property
    def source_log_probabilities(self) -> Tensor:
        """Ln ỹ of the frozen network."""
        return log_probabilities(self.source_logits)

    @lazy_property
    def source_probabilities(self) -> Tensor:
        """ỹ of the frozen network."""
        return self.source_log_probabilities.exp()

    @lazy_property
    def source_classes(self) -> Tensor:
        """The classes c_o that the frozen network predicts."""
        return self.source_logits.argmax(dim=1)

    @property
    def teacher(self) -> Network:
        """The moving average of the adapting network."""
        if self._teacher is None:
            raise ConfigurationError("Expected a teacher, but the method has none. Choose `teacher=EMA(0.999)`.")
        return self._teacher

    @property
    def detection(self) -> Detection:
        """What the detector says of the batch."""
        if self._detection is None:
            raise ConfigurationError(
                "Expected a detector, but the method has none. Choose `detector=detectors.Sentinel()`."
            )
        return self._detection

    @lazy_property
    def teacher_logits(self) -> Tensor:
        """The teacher's logits on the same batch, or on a view of its own; never part of a graph."""
        with torch.no_grad():
            return self.teacher(self.draw_view())

    @lazy_property
    def confidence_change(self) -> Tensor:
        """ŷ^{c_o} − ỹ^{c_o}: how much adaptation raised the confidence in the frozen network's class.

        Zero while the networks are equal: a difference would be the rounding of different kernels.
        """
        classes = self.source_classes.unsqueeze(1)
        change = self.probabilities.detach().gather(1, classes) - self.source_probabilities.gather(1, classes)
        return self._zero_at_source(change.squeeze(1))

    @lazy_property
    def flip_rate(self) -> Tensor:
        """The share of samples whose class differs from the one that the frozen network predicts, over all ranks."""
        flipped = (self.logits.detach().argmax(dim=1) != self.source_classes).to(torch.float32)
        return self.distributed.mean(self._zero_at_source(flipped))

    @lazy_property
    def logit_change(self) -> Tensor:
        """z^{c_o} − z̃^{c_o}: the same for the logits of that class."""
        return self._zero_at_source(logit_change(self.logits.detach(), self.source_logits))

    @lazy_property
    def at_source(self) -> Tensor | bool:
        """Whether the two networks still have equal weights and statistics, as a 0-d tensor or a bool."""
        return self.always_at_source if self.num_steps is None else self.num_steps == 0

    def _zero_at_source(self, change: Tensor) -> Tensor:
        if isinstance(self.at_source, bool):
            return torch.zeros_like(change) if self.at_source else change
        return torch.where(self.at_source, 0.0, change)

    def draw_view(self) -> Tensor:
        """A fresh random view of the batch, as `view=` makes them; the batch itself without one."""
        return self.images if self.view is None else self.augment(self.view)

    def augment(self, augment: Augment) -> Tensor:
        """A random view of the batch; each rank gets its rows of what one process would draw for all of it."""
        if self._generator is None:  # the host waits for the index in any case
            check_unit_range(self.images, augment)
        return self.distributed.map_global_batch(self.images, lambda images: augment(images, self.generator))

    def predict_view(self, images: Tensor, weights: Tensor) -> Tensor:
        """The adapting network's logits of other images in place of the batch.

        Args:
            images: A view of every image of the batch.
            weights: Batch statistics are taken from samples of positive weight; if there are none, from all.
        """
        chosen = weights > 0
        (number,) = self.distributed.sum(chosen.sum(dtype=torch.float32))
        with self.network.statistics_of(chosen | (number == 0)):
            return self.network(images)

    @property
    def used_source(self) -> bool:
        """Whether a component read the frozen network's logits."""
        return "source_logits" in self.__dict__

    @lazy_property
    def generator(self) -> torch.Generator:
        """The random numbers of this batch: a function of the seed and the batch's index alone.

        So a replay, a resumed run and a run that skipped a bad batch draw the same numbers, and the only state to save
        is the index. Reading the index makes the host wait for the device.
        """
        generator = self._generator.generator if isinstance(self._generator, Step) else self._generator
        if generator is None:
            generator = torch.Generator(self.images.device)
            generator.manual_seed(batch_seed(self._seed, int(self.index)))
        return generator

    @property
    def used_rng(self) -> bool:
        """Whether a component read the generator."""
        return "generator" in self.__dict__


def _sample_shape(logits: Tensor) -> tuple[int, ...]:
    return (logits.shape[0], *logits.shape[2:])


def batch_seed(seed: int, index: int) -> int:
    """The seed of the random numbers of the `index`-th batch."""
    return (seed * 0x9E3779B97F4A7C15 + index) % 2**63


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """Concatenate tensors into one vector: one operation where a loop would launch one per tensor."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
