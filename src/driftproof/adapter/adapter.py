"""The adapter: a model that keeps learning from the stream it predicts on."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from driftproof.adapter.method import (
    AverageOver,
    EngineName,
    MeanEntropyOver,
    Novelty,
    OutputName,
    Schedule,
    check_engine_options,
    make_method,
)
from driftproof.adapter.networks import build_networks, restore_buffers
from driftproof.adapter.predict_step import predict_step
from driftproof.adapter.rank_consistency import announce_batch, broadcast_buffers
from driftproof.adapter.state import State
from driftproof.adapter.state_holder import StateHolder
from driftproof.adapter.storage import Backup
from driftproof.adapter.unwrap import keep_recent, list_batches, unwrap_with
from driftproof.after import After
from driftproof.augment import Augment
from driftproof.components import PrepareContext, Progress, SourceBatches
from driftproof.detectors import Detector
from driftproof.distributed import Distributed, RankGroup
from driftproof.errors import CallOrderError, DriftproofError, InputError, NotPreparedError, StateError
from driftproof.gradients import Gradient
from driftproof.guards import Guard
from driftproof.locking import synchronized
from driftproof.losses import Loss
from driftproof.memories import Memory
from driftproof.network import LogitsAccessor, Precision, tf32_mode
from driftproof.optimizers import MakeOptimizer
from driftproof.outputs import Output
from driftproof.problems import check_batch
from driftproof.quarantine import replace_bad
from driftproof.record import LazyNovelty, StepResult
from driftproof.regularizers import Regularizer
from driftproof.scopes import Scope
from driftproof.scores import Unfamiliarity
from driftproof.selection import Selection
from driftproof.statistics import Statistics
from driftproof.teacher import EMA
from driftproof.validation import check_choice, check_keywords

__all__ = ["Adapter"]


class Adapter(StateHolder):
    """A model that keeps learning from the unlabeled stream it predicts on.

    Every call predicts, then takes one step. The model that is passed in is copied and never touched; a second copy
    stays frozen as the reference θ_o (the two share what does not train). Invalid input raises a named error; a step
    with NaN or Inf is undone and `last.skipped` says why. The state is unchanged in both cases, except for buffers
    that the wrapped model writes itself. A bad image among good ones is kept out (`last.quarantined`).

    A method is one choice for each keyword; `driftproof.methods` has the published ones, and a new one is a call of
    this. Threads may share an adapter: calls run one after the other. Use `step` to get each answer with its record.

    Args:
        model: Any module that maps a batch to logits (N, C) or (N, C, H, W).
        scope: Which parameters train.
        statistics: What batch-norm layers normalize with; "auto" is `statistics.Auto()`.
        loss: A loss per sample.
        select: Which samples to learn from; None is all of them.
        mean_entropy: λ_max, the weight of −H(ȳ); None takes the value that goes with the selection (0.5 for
            `ConfidenceDifference`, else 0). If nothing is selected, a step is taken only if this term remains.
        regularizer: A term that holds the parameters.
        gradient: How the gradient comes from the objective; None is `gradients.Plain()`.
        optimizer: Makes the optimizer from the parameters, e.g. `functools.partial(torch.optim.Adam, lr=1e-3)`.
        lr_schedule: Maps the number of steps taken, a 0-d tensor on the device, to a factor on the learning rate.
        accumulate: Average the gradients of so many batches before each optimizer step; "auto" is as many as make 64
            images.
        memory: What is learned from in place of the batch; None is the batch itself.
        teacher: A moving average of the adapting network that components can read; None is none.
        detector: A copy that learns to tell known samples from unknown ones, for components that ask; None is none.
        view: Draws a random view of the batch, see `driftproof.augment`; the adapting network and the teacher each see
            one of their own, the frozen network the batch itself. None shows the batch to all.
        after: What happens after each optimizer step: one component or several.
        output: What is returned: the prediction from "before" or "after" the update, the "teacher"'s, the "ensemble" of
            adapting and frozen network, or a component.
        source_statistics: What θ_o normalizes with; None is the same as the adapting network.
        average_over: Divide the weighted loss by the number of selected samples or by the size of the batch; None
            takes what goes with the selection ("batch" for UniEnt+, else "selected").
        mean_entropy_over: Form ȳ over the whole "batch" or over the "selected" samples. "auto" is the selected ones,
            and the whole batch if its mean prediction has less than 0.98 of the entropy of the frozen network's:
            classes that the network has come to avoid are not selected.
        novelty: What `last.novelty` holds: the name of a score, such as "energy" or "adapted_msp" (see
            `driftproof.scores`), a component, or a function of the step; None is `scores.Unfamiliarity()`.
        guard: What to do when adaptation goes wrong: one of `guards` or several; None warns once, () does nothing.
        logits: Where the logits are in the model's output: a key, an attribute, an index or a function.
        classifier: Name of the layer whose input is the feature vector, for components that read features; None is the
            last linear layer.
        seed: Seed of all random numbers.
        engine: How a step runs: "auto" captures it in a CUDA graph where that works and else runs it eagerly; "eager",
            "compile" (compiled networks) and "graph" force one. The results are the same.
        precision: "fp32", "tf32" or "bf16" for the networks; losses, selection and statistics are computed in single
            precision in any case. None leaves PyTorch's own switches as they are.
        source_precision: "bf16" for the frozen network alone. It then costs less, and comparisons with it are blurred
            by a hundredth or so: use it with a margin. None is as `precision`.
        channels_last: Lay out images and convolutions with channels last, which suits tensor cores.
        process_group: "all" or a process group shares every batch out among ranks: each is called with its rows and
            answers for them, and all learn from the whole. `last` is about the rank's own samples but for the loss.

    Examples:
        >>> from functools import partial
        >>> from driftproof import losses, scopes, statistics
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.LazyLinear(5))
        >>> _ = model(torch.rand(2, 3, 6, 6))
        >>> adapter = Adapter(
        ...     model, scope=scopes.norm_affine(), statistics=statistics.Blend(0.5), loss=losses.GCE(),
        ...     optimizer=partial(torch.optim.SGD, lr=1e-2),
        ... )
        >>> adapter(torch.rand(4, 3, 6, 6)).shape, adapter.last.kept
        (torch.Size([4, 5]), 1.0)
    """

    @check_keywords
    def __init__(
        self,
        model: nn.Module,
        *,
        scope: Scope,
        statistics: Statistics | Literal["auto"],
        loss: Loss | None = None,
        select: Selection | None = None,
        mean_entropy: float | None = None,
        regularizer: Regularizer | None = None,
        gradient: Gradient | None = None,
        optimizer: MakeOptimizer | None = None,
        lr_schedule: Schedule | None = None,
        accumulate: int | Literal["auto"] = 1,
        memory: Memory | None = None,
        teacher: EMA | None = None,
        detector: Detector | None = None,
        view: Augment | None = None,
        after: After | Sequence[After] = (),
        output: OutputName | Output = "before",
        source_statistics: Statistics | Literal["auto"] | None = None,
        average_over: AverageOver | None = None,
        mean_entropy_over: MeanEntropyOver = "batch",
        novelty: str | Novelty | None = None,
        guard: Guard | Sequence[Guard] | None = None,
        logits: LogitsAccessor | None = None,
        classifier: str | None = None,
        seed: int = 0,
        engine: EngineName = "auto",
        precision: Precision | None = None,
        source_precision: Literal["bf16"] | None = None,
        channels_last: bool = False,
        process_group: RankGroup = None,
    ) -> None:
        check_engine_options(engine=engine, precision=precision, source_precision=source_precision)
        with torch.inference_mode(False):
            method = make_method(
                scope=scope,
                statistics=statistics,
                source_statistics=source_statistics,
                loss=loss,
                select=select,
                mean_entropy=mean_entropy,
                regularizer=regularizer,
                gradient=gradient,
                optimizer=optimizer,
                lr_schedule=lr_schedule,
                accumulate=accumulate,
                memory=memory,
                teacher=teacher,
                detector=detector,
                view=view,
                after=after,
                output=output,
                novelty=novelty,
                average_over=average_over,
                mean_entropy_over=mean_entropy_over,
                guard=guard,
            )
            networks, names = build_networks(
                model,
                method,
                channels_last=channels_last,
                precision=precision,
                source_precision=source_precision,
                logits=logits,
                classifier=classifier,
                distributed=Distributed(process_group),
            )
            capturable = engine != "eager" and method.dynamic_reason is None
            state = State(method, networks, names, capturable=capturable, seed=int(seed))
        super().__init__(method, state, engine=engine, channels_last=channels_last)
        self._requires_grad = {name: parameter.requires_grad for name, parameter in model.named_parameters()}

    # --- predict and learn --------------------------------------------------------------------------------------------

    def forward(self, images: Tensor) -> Tensor:
        """Predict a batch and learn from it; returns the logits, without a graph."""
        return self.step(images).logits

    @synchronized
    def step(self, images: Tensor) -> StepResult:
        """Predict a batch and learn from it; returns the logits and the record of this batch."""
        with self._running(gradients=self.method.learns):
            images = self._check_batch(images)
            if self.distributed.size > 1:
                announce_batch(self.method, self.state, images, ranks_checked=self._ranks_checked)
            self.state.require_gradients()
            try:
                result = self._watch.after_batch(images, self._engine.run(images), self._engine.run_frozen)
            except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
                if not self._is_first_after_load or isinstance(error, DriftproofError | torch.OutOfMemoryError):
                    raise
                raise StateError(
                    f"Expected a state that fits this method, but the first batch after loading it failed: {error}. "
                    "Call `reset()` or load another state."
                ) from error
            result = self._defer_novelty(images, result, self._stream)
            self._last = result.record
            keep_recent(self._recent, images)
            self._ranks_checked, self._is_first_after_load = True, False
            return result

    @synchronized
    def predict(self, images: Tensor) -> StepResult:
        """Predict a batch without learning from it; returns what `step` would answer, and the state stays as it is.

        The record says that nothing was selected. An output that needs the updated network answers from before it.
        """
        with self._running(gradients=False):
            images = self._check_batch(images)
            return self._defer_novelty(images, predict_step(self.method, self.state, images), None)

    @contextmanager
    def _running(self, *, gradients: bool) -> Iterator[None]:
        """A context in which all ranks run their networks, whatever modes the caller has set."""
        with (
            self.state.distributed.collective(self.state.device),
            torch.inference_mode(False),
            torch.set_grad_enabled(gradients),
            tf32_mode(self.state.network.precision),
        ):
            yield

    def _defer_novelty(self, images: Tensor, result: StepResult, stream: object | None) -> StepResult:
        """Have the record run the frozen network for the default score, where the method does not."""
        has_pass = self.state.health.compares or not self.state.names or self.distributed.size > 1
        if has_pass or type(self.method.novelty) is not Unfamiliarity:
            return result
        score = partial(self._score_frozen, stream=stream)
        novelty: Any = LazyNovelty(score, images, result.record.quarantined)
        return result._replace(record=replace(result.record, novelty=novelty))

    @synchronized
    def _score_frozen(self, images: Tensor, bad: Tensor, *, stream: object | None) -> Tensor:
        """The default score of a batch, which the score remembers if the stream is still the present one."""
        score, good = self.method.novelty, ~bad
        assert isinstance(score, Unfamiliarity)
        with self._running(gradients=False):
            logits, features = self.source.try_features(replace_bad(images, good))
            novelty = score.score_later(self.source, logits, features, good.any() if stream is self._stream else None)
            self.source.rollback()
            return novelty

    def _check_batch(self, images: Tensor) -> Tensor:
        """The batch as the networks take it; raises if they cannot, or are not prepared."""
        check_batch("`images`", images)
        if images.device != self.device:
            raise InputError(f"Expected `images` on {self.device}, where the model is, but got {images.device}.")
        missing = [component for component in self.method.components.values() if not component.prepared]
        if missing:
            raise NotPreparedError(
                f"Expected `adapter.prepare(source)` with batches of (images, labels) before the first batch, "
                f"since {' and '.join(map(repr, missing))} needs source data."
            )
        # A tensor of the caller's inference mode cannot be part of a graph; its copy can.
        images = images.clone() if images.is_inference() else images.detach() if images.requires_grad else images
        is_image = self.channels_last and images.ndim == 4
        return images.contiguous(memory_format=torch.channels_last) if is_image else images

    # --- prepare, reset, unwrap ---------------------------------------------------------------------------------------

    @synchronized
    def prepare(self, source: SourceBatches, *, missing_only: bool = False, progress: Progress | None = None) -> Self:
        """Let the components learn from labeled source data, before the first batch; returns the adapter.

        All ranks call it, and each prepares by itself; then all use what rank zero found.

        Args:
            source: Batches of (images, labels), such as a DataLoader or a list. Iterated several times.
            missing_only: Skip components that were prepared before, such as statistics taken over from another adapter
                of the same model with `statistics=other.statistics`.
            progress: Called with the name of the stage and the number of images done in it.
        """
        if int(self.state.index) > 0:
            raise CallOrderError("`prepare` comes before the first batch: call `reset()` first.")
        make_context = partial(
            PrepareContext,
            source,
            network=self.network,
            trainable=self.trainable_parameters,
            seed=self.seed,
            progress=progress,
        )
        self._engine.invalidate()
        with self._running(gradients=True):
            before = Backup(self.state.storage)
            try:
                with self.distributed.local():
                    for component in self.method.components.values():
                        if not (missing_only and component.prepared):
                            component.prepare(make_context())  # each draws from the seed, whatever the others drew
                broadcast_buffers(self.method, self.state)
                self._ranks_checked = False
            except BaseException:
                before.restore()
                raise
            finally:
                self.network.rollback()
                restore_buffers(self.network.model, self.source.model)
                self.state.drop_storage()
        return self

    @synchronized
    def reset(self) -> Self:
        """Return to exactly the starting point: weights, optimizer, every component. What `prepare` found stays."""
        self._engine.invalidate()
        self.state.reset()
        self._watch.reset()
        self._forget_stream()
        return self

    @synchronized
    def unwrap(self, statistics: Literal["training", "stream"] | Tensor | Iterable[Tensor] = "training") -> nn.Module:
        """The adapted model as an ordinary module, independent of the adapter.

        Args:
            statistics: What its batch norms carry. "training" is the running statistics they came with: a rule such as
                `statistics.Batch()` belongs to the adapter, so predictions in evaluation mode are not the adapter's.
                "stream" is what the rule takes from the last batches, at least 128 images where so many came, so that
                the module predicts about as the adapter does now. Batches of images take the place of the last ones.

        With other statistics than those of training, it is the network that answers: the frozen one while a guard falls
        back or `statistics.Auto` holds learning back. Answers of a teacher or of several networks are no module's.
        """
        if isinstance(statistics, str):
            check_choice("`statistics`", statistics, ("training", "stream"))
        if isinstance(statistics, str) and statistics == "training":
            plain = self.network.to_plain_module()
        else:
            recent = [batch.images for batch in self._recent]
            batches = recent if isinstance(statistics, str) else list_batches(statistics)
            watch = self._watch
            plain = unwrap_with(
                self.method, self.state, batches, falls_back=watch.falls_back, of_training=watch.uses_training
            )
        for name, parameter in plain.named_parameters():
            parameter.requires_grad_(self._requires_grad[name])
        return plain
