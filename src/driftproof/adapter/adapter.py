"""The adapter: predict, select, step."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from driftproof.adapter import sentence, snapshot
from driftproof.adapter.copies import make_adapting_and_frozen, restore_buffers
from driftproof.adapter.engines import EngineName, engine_for
from driftproof.adapter.introduction import agree_on, present
from driftproof.adapter.settings import Novelty, expect_axes, expect_choices
from driftproof.adapter.stepper import MakeOptimizer, Stepper
from driftproof.adapter.turns import in_turn, new_turn
from driftproof.components import Component, PrepareContext, Progress, SourceBatches, Step
from driftproof.distributed import Distributed, RankGroup
from driftproof.errors import CallOrderError, ConfigurationError, InputError, NotPreparedError, StateError
from driftproof.losses import Loss
from driftproof.network import LogitsAccessor, Network, Precision, tf32_mode
from driftproof.record import Record
from driftproof.regularizers import Regularizer
from driftproof.scopes import Scope
from driftproof.selection import Selection
from driftproof.statistics import Statistics

__all__ = ["Adapter"]


class Adapter(nn.Module):
    """A model that keeps learning from the unlabelled stream it predicts on.

    Every call predicts, then takes one step. The model that is passed in is copied and never touched; a second copy
    stays frozen for ever as the reference θ_o (the two share what cannot move). Bad input raises a named error or is
    skipped with the reason in `last.skipped`; the state is what it was, but for buffers that the model itself writes.

    A method is a choice on each axis; `driftproof.methods` has the published ones, and a new one is a call of this.

    Args:
        model: Any module that maps a batch to logits (N, C) or (N, C, H, W).
        scope: Which parameters move.
        statistics: What batch-norm layers normalize with.
        loss: A loss per sample.
        select: Which samples to learn from; None is all of them.
        mean_entropy: λ_max, the weight of −H(ȳ); None takes the value that goes with the selection (0.5 for
            `ConfidenceDifference`, else 0). When nothing is selected, the step is taken only if this term remains.
        regularizer: A pull on the parameters.
        optimizer: Makes the optimizer from the parameters, e.g. `functools.partial(torch.optim.Adam, lr=1e-3)`.
        accumulate: Average the gradients of so many batches before each optimizer step.
        source_statistics: What θ_o normalizes with; None is the same as the adapting network.
        average_over: Divide the weighted loss by the number of selected samples or by the size of the batch.
        mean_entropy_over: Form ȳ over the whole batch or over the selected samples.
        output: Return the prediction from before the update, or predict again after it.
        novelty: What `last.novelty` holds, as a function of the step; None is the confidence difference where the
            method compares with θ_o, and one less the largest probability elsewhere.
        logits: Where the logits are in the model's output: a key, an attribute, an index or a function.
        classifier: Name of the layer whose input is the feature vector, for parts that read features; None is the last
            linear layer.
        seed: Seed of every random choice.
        engine: How a step runs: "eager" as written, "compile" through compiled networks, "graph" recorded once per
            shape of batch and replayed (CUDA devices only). The results are the same.
        precision: "fp32", "tf32" or "bf16" for the passes through the networks; losses, selection and statistics are
            computed in single precision in any case. None leaves PyTorch's own switches as they are.
        source_precision: "bf16" for the frozen network alone. It costs less then, and what it is compared by is blurred
            by a hundredth or so: for selection with a margin. None is as `precision`.
        channels_last: Lay out images and convolutions with channels last, which suits tensor cores.
        process_group: "all", or a process group, shares every batch out among processes: each is called with its rows and
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

    _index: int
    _introduced: bool
    _last: Record | None
    _stepper: Stepper

    def __init__(
        self,
        model: nn.Module,
        *,
        scope: Scope,
        statistics: Statistics,
        loss: Loss | None = None,
        select: Selection | None = None,
        mean_entropy: float | None = None,
        regularizer: Regularizer | None = None,
        optimizer: MakeOptimizer | None = None,
        accumulate: int = 1,
        source_statistics: Statistics | None = None,
        average_over: Literal["selected", "batch"] = "selected",
        mean_entropy_over: Literal["selected", "batch"] = "batch",
        output: Literal["before", "after"] = "before",
        novelty: Novelty | None = None,
        logits: LogitsAccessor | None = None,
        classifier: str | None = None,
        seed: int = 0,
        engine: EngineName = "eager",
        precision: Precision | None = None,
        source_precision: Literal["bf16"] | None = None,
        channels_last: bool = False,
        process_group: RankGroup = None,
    ) -> None:
        super().__init__()
        self._turn = new_turn()
        expect_choices(average_over=average_over, mean_entropy_over=mean_entropy_over, output=output)
        expect_choices(engine=engine, precision=precision, source_precision=source_precision)
        parts = {"statistics": statistics, "source_statistics": source_statistics, "loss": loss, "select": select}
        expect_axes(accumulate, scope=scope, regularizer=regularizer, **parts)
        if mean_entropy is None:
            mean_entropy = 0.0 if select is None else select.mean_entropy
        self.scope = scope
        self.mean_entropy = float(mean_entropy)
        self.accumulate = accumulate
        self.average_over = average_over
        self.mean_entropy_over = mean_entropy_over
        self.output = output
        self.seed = int(seed)
        self.engine = engine
        self.precision = precision
        self.channels_last = channels_last
        self.distributed = Distributed(process_group)
        self._novelty = novelty or Step.novelty
        self._make_optimizer = optimizer
        with torch.inference_mode(False):
            self.statistics = copy.deepcopy(statistics)
            self.source_statistics = copy.deepcopy(source_statistics)
            self.loss = copy.deepcopy(loss)
            self.select = copy.deepcopy(select)
            self.regularizer = copy.deepcopy(regularizer)
            shared: dict[str, Any] = {"logits": logits, "classifier": classifier, "distributed": self.distributed}
            adapting, frozen, self._names = make_adapting_and_frozen(model, scope, channels_last=channels_last)
            self._wanted_gradients = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
            followed = self.source_statistics or self.statistics
            self.network = Network(adapting, self.statistics, precision=precision, **shared)
            self.source = Network(frozen, followed, precision=source_precision or precision, frozen=True, **shared)
            if self._names and (loss is None or optimizer is None):
                raise ConfigurationError(f"Expected a `loss` and an `optimizer`, since {scope} lets parameters move.")
            self._find_parameters()
            self._engine = engine_for(self)
            self._begin()

    # --- the loop ---------------------------------------------------------------------------------------------------

    @in_turn
    def forward(self, images: Tensor) -> Tensor:
        """Predict a batch and learn from it; returns the logits, without a graph."""
        # The caller's inference mode would forbid learning; its tensors cannot be part of a graph, their copies can.
        with (
            self.distributed.collective(self.device),
            torch.inference_mode(False),
            torch.set_grad_enabled(bool(self._names)),
            tf32_mode(self.precision),
        ):
            self._expect_ready(images)
            present(self, images)
            images = images.clone() if images.is_inference() else images.detach()
            if self.channels_last and images.ndim == 4:
                images = images.contiguous(memory_format=torch.channels_last)
            if not all(parameter.requires_grad for parameter in self._movable):
                self.network.model.requires_grad_(False)
                for parameter in self._movable:
                    parameter.requires_grad_(True)
            answer, self._last = self._engine.run(self, images)
            self._introduced = True
            return answer

    def _look(
        self, images: Tensor, generator: torch.Generator | None = None, beside: torch.cuda.Stream | None = None
    ) -> Step:
        """Let the adapting network see a batch."""
        return Step(
            images,
            network=self.network,
            source=self.source,
            parameters=self._movable,
            source_parameters=self._starting,
            index=self._index,
            seed=self.seed,
            alike=self._alike,
            needs_features=any(part.needs_features for part in self._parts),
            generator=generator,
            beside=beside,
        )

    def _expect_ready(self, images: object) -> None:
        if not isinstance(images, Tensor) or not torch.is_floating_point(images):
            kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
            raise InputError(
                f"Expected `images` to be a floating-point tensor, but got {kind}. "
                "Convert integer images with `images.float() / 255`."
            )
        if images.ndim < 2 or images.shape[0] == 0:
            raise InputError(f"Expected a batch of at least one image, but got shape {tuple(images.shape)}.")
        if images.device != self.device:
            raise InputError(f"Expected `images` on {self.device}, where the model is, but got {images.device}.")
        missing = [part for part in self._parts if not part.prepared]
        if missing:
            raise NotPreparedError(
                f"Expected `adapter.prepare(source)` with batches of (images, labels) before the first batch, "
                f"since {' and '.join(map(repr, missing))} needs source data."
            )

    # --- its life ---------------------------------------------------------------------------------------------------

    def prepare(self, source: SourceBatches, *, missing_only: bool = False, progress: Progress | None = None) -> Self:
        """Let the parts learn from labelled source data, before the first batch; returns the adapter.

        Ranks all call it and work side by side, each as if alone; what the first of them found is what all go on with.

        Args:
            source: Batches of (images, labels), such as a DataLoader or a list. Passed over several times.
            missing_only: Leave parts as they are that were prepared before, such as statistics taken over from another
                adapter of the same model with `statistics=other.statistics`.
            progress: Called with the name of the stage and the number of images done in it.
        """
        self._engine.settle(self)
        if self._index > 0:
            raise CallOrderError("`prepare` comes before the first batch: call `reset()` first.")
        anew = partial(
            PrepareContext, source, network=self.network, moving=self.moving, seed=self.seed, progress=progress
        )
        wanted = [part for part in self._parts if not (missing_only and part.prepared)]
        before = {module: dict(module._buffers) for part in self._parts for module in part.modules()}
        self._engine.drop()
        with (
            self.distributed.collective(self.device),
            torch.inference_mode(False),
            torch.enable_grad(),
            tf32_mode(self.precision),
        ):
            try:
                with self.distributed.local():
                    for part in wanted:
                        part.prepare(anew())  # each draws from the seed, whatever the others drew
                agree_on(self, list(before))
            except BaseException:
                for module, buffers in before.items():
                    module._buffers.update(buffers)
                raise
            finally:
                self.network.discard()
                restore_buffers(self.network.model, self.source.model)
        return self

    @in_turn
    def reset(self) -> Self:
        """Go back to exactly the starting point: weights, optimizer, every part's memory. `prepare` stays done."""
        with torch.inference_mode(False), torch.no_grad():
            for now, start in zip(self._movable, self._starting, strict=True):
                now.copy_(start)
            restore_buffers(self.network.model, self.source.model)
            self._begin()
        return self

    def _begin(self) -> None:
        self._engine.drop()
        self._index = 0
        self._introduced = False
        self._last = None
        self.network.begin()
        self.source.begin()
        for part in self._parts:
            part.begin(self.network, self._movable)
        self._begin_steps()

    def _begin_steps(self, state: dict[str, Any] | None = None) -> None:
        """Make the optimizer anew, where a state is given with that state."""
        if self._names:
            assert self._make_optimizer is not None  # the constructor saw to it
            stepper = Stepper(self._movable, self._make_optimizer, self.accumulate, self.distributed)
            self._engine.equip(stepper.optimizer)
            if state is not None:
                stepper.load_state_dict(state)
            self._stepper = stepper

    @in_turn
    def unwrap(self) -> nn.Module:
        """The adapted model as an ordinary module, independent of the adapter.

        It carries the running statistics of its training: a rule such as `statistics.Batch()` belongs to the adapter,
        so the module's predictions in evaluation mode are not the adapter's.
        """
        plain = self.network.plain()
        for name, parameter in plain.named_parameters():
            parameter.requires_grad_(self._wanted_gradients[name])
        return plain

    # --- its state --------------------------------------------------------------------------------------------------

    @property
    def last(self) -> Record:
        """What happened to the last batch."""
        if self._last is None:
            raise CallOrderError("Expected a batch before asking what happened to it.")
        return self._last

    @property
    def moving(self) -> dict[str, nn.Parameter]:
        """The parameters that move, by their names in the model."""
        return dict(zip(self._names, self._movable, strict=True))

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer at work, for those who schedule its learning rate; `reset`, `load` and `to` make a new one."""
        if not self._names:
            raise CallOrderError("Nothing moves, so there is no optimizer.")
        return self._stepper.optimizer

    @property
    def prepared(self) -> bool:
        """Whether every part has had the source data it needs; if not, `prepare` comes before the first batch."""
        return all(part.prepared for part in self._parts)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.network.model.parameters()).device

    @in_turn
    def state_dict(self, /, **within: object) -> dict[str, Tensor]:  # type: ignore[override]  # flat and complete
        """Everything that has changed since the start, as copies: what `load_state_dict` needs to continue exactly."""
        if within:
            raise StateError("An adapter's state is no part of another module's: `save` and `load` the adapter itself.")
        self._engine.settle(self)
        return snapshot.capture(self)

    @in_turn
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:  # type: ignore[override]
        """Continue from a `state_dict` of the same method on the same source model; refuse any other."""
        snapshot.restore(self, state)
        self._introduced = False

    def save(self, path: str | Path) -> None:
        """Write the state as a safetensors file, all or nothing; ranks all call it, one writes, the others wait."""
        self.distributed.rank_zero(lambda: snapshot.write(self.state_dict(), Path(path)), self.device)

    def load(self, path: str | Path) -> Self:
        """Continue from a file that `save` wrote; returns the adapter."""
        self.load_state_dict(snapshot.read(Path(path), self.device))
        return self

    def __repr__(self) -> str:
        return sentence.shown(self)

    def train(self, mode: bool = True) -> Self:
        """Change nothing: whether an adapter learns, and how its layers normalize, is not a matter of mode."""
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Change nothing: the scope decides what moves."""
        return self

    @in_turn
    @torch.inference_mode(mode=False)
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._engine.settle(self)
        self._engine.drop()
        steps = self._stepper.state_dict() if self._names else None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._find_parameters()
        self._begin_steps(steps)
        return self

    def __getstate__(self) -> dict[str, Any]:
        # A copy finds its own way of running: recordings and compiled code speak of this adapter's tensors.
        self._engine.settle(self)
        self.network.cut_graphs()
        return self.__dict__ | {"_engine": None, "_turn": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._engine, self._turn = engine_for(self), new_turn()

    def _find_parameters(self) -> None:
        self._movable = tuple(self.network.model.get_parameter(name) for name in self._names)
        self._starting = tuple(self.source.model.get_parameter(name) for name in self._names)

    @property
    def _alike(self) -> bool:
        """Whether the adapting network is still the frozen one."""
        return self.source_statistics is None and not (self._names and self._stepper.taken)

    @property
    def _parts(self) -> list[Component]:
        parts = (self.statistics, self.source_statistics, self.loss, self.select, self.regularizer)
        return [part for part in parts if part is not None]
