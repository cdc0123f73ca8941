"""Everything an adapter remembers, enumerated once."""

import copy
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from driftproof.adapter.method import Method
from driftproof.adapter.networks import restore_model
from driftproof.adapter.slots import Slot, fixed_shapes, iter_slots
from driftproof.adapter.storage import Storage
from driftproof.augment import Augment
from driftproof.components import Component, Detection, Step
from driftproof.detectors import SourcePass, detect_beside
from driftproof.distributed import has_other_leaves
from driftproof.errors import ConfigurationError
from driftproof.health_monitor import HealthMonitor
from driftproof.memories import Memory
from driftproof.network import Network
from driftproof.optimizers import (
    FusedAdam,
    build_optimizer,
    has_known_start,
    initial_values,
    load_optimizer_state,
)
from driftproof.quarantine import Quarantine
from driftproof.tensor_list import where_each

__all__ = ["COUNTERS", "State"]

COUNTERS = ("index", "num_steps", "accumulated_batches", "paused")
_REQUIRES_GRAD = operator.attrgetter("requires_grad")
_Detected: TypeAlias = tuple[Detection | None, SourcePass | None, Tensor | None, Callable[[], None] | None]
_NOTHING: _Detected = (None, None, None, None)


class State(nn.Module):
    """The networks, the components' tensors, the optimizer and the counters of one adapter.

    `slots` is the one enumeration of what an adapter remembers: undoing a step, saving, loading and comparing ranks
    rest on it. Tensors keep their addresses from step to step, so that a captured step stays valid; whatever
    a component puts in the place of a buffer is copied into it.

    Args:
        method: The choices; their components become part of the state.
        networks: The networks by name, see `build_networks`.
        names: The names of the trainable parameters in the model.
        capturable: Whether the optimizer must be capturable in a CUDA graph.
        seed: Seed of all random numbers.

    Attributes:
        network: The adapting network θ_a.
        source: The frozen network θ_o.
        teacher: A moving average of the adapting network; None without `teacher=`.
        detector: The network of the method's detector; None without `detector=`.
        index: How many finite batches were seen, as a 0-d tensor on the device; so are the other counters.
        num_steps: How many optimizer steps were taken since the start or the last reset.
        accumulated_batches: How many batches wait for their step.
        paused: Whether a guard holds learning back, likewise.
        guard_counters: What guards keep on the host, by name.
        health: What health is judged by.
        quarantine: Keeps single bad images out of a batch.
        nan: What images without an answer get, as a 0-d tensor.
        reset_condition: Whether this step reset any weights, as a 0-d tensor; None if nothing asked for that.
    """

    index: Tensor
    num_steps: Tensor
    accumulated_batches: Tensor
    paused: Tensor
    nan: Tensor
    optimizer: torch.optim.Optimizer | None
    teacher: Network | None
    detector: Network | None
    fused_adam: FusedAdam | None
    _has_other_leaves: bool | None

    def __init__(
        self, method: Method, networks: dict[str, Network], names: tuple[str, ...], *, capturable: bool, seed: int
    ) -> None:
        super().__init__()
        self._method = method
        self._same_rule = method.source_statistics is None and method.statistics.of is None
        self.names = names
        self.seed = seed
        self.capturable = capturable
        self.guard_counters: dict[str, int] = {}
        self.health = HealthMonitor()
        self.quarantine = Quarantine()
        own = {"health": self.health, "quarantine": self.quarantine}
        self.components = nn.ModuleDict(method.components | own)
        self.networks = networks
        self.network, self.source = networks["network"], networks["source"]
        self.teacher, self.detector = networks.get("teacher"), networks.get("detector")
        self.distributed = self.network.distributed
        self._detected: _Detected = _NOTHING
        device = next(self.network.model.parameters()).device
        self.components.to(device)  # they register buffers without knowing the model
        for name in COUNTERS:
            dtype = torch.bool if name == "paused" else torch.int64
            self.register_buffer(name, torch.zeros((), dtype=dtype, device=device))
        self.register_buffer("nan", torch.full((), math.nan, device=device), persistent=False)
        self._needs_features = any(one.needs_features for one in self._components)
        self._needs_source_features = any(one.needs_source_features for one in self._components)
        self.after_names = [name for name in self.components if name.startswith("after_")]
        self.reset_condition: Tensor | None = None
        self._return_condition: Tensor | None = None
        self._storage: Storage | None = None
        self._find_parameters()
        self.reset()
        resetting = [one for one in method.after if one.resets]
        if resetting and self.optimizer is not None and not has_known_start(self.optimizer):
            raise ConfigurationError(
                f"Expected an optimizer of torch.optim without dampening, since {resetting[0]!r} resets it, "
                f"but got {type(self.optimizer).__name__}."
            )
        self.fixed_shapes = fixed_shapes(self.networks, self.components)

    # --- what there is ------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.index.device

    @property
    def _components(self) -> Iterable[Component]:
        return self.components.values()  # type: ignore[return-value]

    @property
    def moving_networks(self) -> dict[str, Network]:
        """The networks whose weights move, by the prefix of their names in a saved state."""
        return {"model": self.network} | ({} if self.teacher is None else {"teacher": self.teacher})

    def slots(self) -> Iterator[Slot]:
        """Every place where a tensor is kept that may change, each with its name."""
        return iter_slots(self.names, self.networks, self.components, self._accumulated)

    # --- the step's view ----------------------------------------------------------------------------------------------

    def make_step(
        self,
        images: Tensor,
        generator: torch.Generator | Step | None = None,
        student_view: Augment | None = None,
        side_stream: torch.cuda.Stream | None = None,
    ) -> Step:
        """Run the adapting network on a batch; the arguments are those of `Step`."""
        statistics = self._method.statistics
        detection, source_pass, source_view, wait = self._detected
        return Step(
            images,
            network=self.network,
            source=self.source,
            parameters=self.trainable,
            source_parameters=self.source_parameters,
            index=self.index,
            seed=self.seed,
            num_steps=self.num_steps if self.names and self._same_rule else None,
            always_at_source=self._same_rule and not self.names,
            teacher=self.teacher,
            needs_features=self._needs_features,
            needs_source_features=self._needs_source_features,
            sample_mask=None if statistics.of is None else statistics.sample_mask,
            view=self._method.view,
            student_view=student_view,
            detection=detection,
            source_pass=source_pass,
            source_view=source_view,
            wait=wait,
            generator=generator,
            side_stream=side_stream,
        )

    def detect(self, images: Tensor, good: Tensor, side_stream: torch.cuda.Stream | None = None) -> None:
        """Have the detector judge a batch, for all steps that are made of it."""
        detector = self._method.detector
        if detector is None or self.detector is None:
            return
        run_source = partial(self._run_source, images) if detector.needs_source else None
        stream = side_stream if self.distributed.size == 1 else None
        output = self._method.output
        view = None if output is None else output.source_view()
        run_view = None if view is None else partial(view, self.source, images)
        self._detected = detect_beside(detector, images, self.detector, good, run_source, stream, run_view)

    def _run_source(self, images: Tensor) -> SourcePass:
        return self.source.try_features(images) if self._needs_source_features else (self.source(images), None)

    def recalling(self, memory: Memory | None) -> AbstractContextManager[None]:
        """A context in which rows of the memory are exchanged between ranks, not those of the batch."""
        return nullcontext() if memory is None else self.distributed.recalling(is_copied=memory.is_copied)

    @contextmanager
    def learning(self, memory: Memory) -> Iterator[None]:
        """A context whose passes over a memory are learned from."""
        with ExitStack() as stack:
            stack.enter_context(self.recalling(memory))
            for network in self.networks.values():
                stack.enter_context(network.learning(memory.mask()))
            yield

    @property
    def accumulated_grads(self) -> list[Tensor]:
        """The sums of gradients that wait for their step; empty without accumulation."""
        return list(self._accumulated.values())

    # --- storage ------------------------------------------------------------------------------------------------------

    @property
    def storage(self) -> Storage:
        """The tensors of all slots and of the optimizer, for backing up and undoing a step."""
        if self._storage is None or self._storage.is_stale:
            parameters = [tensor for network in self.networks.values() for tensor in network.parameters()]
            self._storage = Storage(list(self.slots()), self.optimizer, parameters, self.device)
            is_copied = self._storage.copied_optimizer is not None  # then an undone step replaces its tensors
            self.fused_adam = FusedAdam.find(None if is_copied else self.optimizer, self.trainable)
        return self._storage

    def drop_storage(self) -> None:
        """Look up all tensors anew before the next step: some were replaced."""
        self._storage = None

    def addresses(self) -> tuple[int, ...]:
        """Where the networks' parameters are, which a captured step has built in."""
        self.storage.values.reattach()
        return tuple([address for network in self.networks.values() for address in network.addresses()])

    # --- what a step does ---------------------------------------------------------------------------------------------

    def gradients(self, loss: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the trainable parameters."""
        if self._has_other_leaves is None:
            self._has_other_leaves = has_other_leaves(loss, self.trainable)
        others = self._has_other_leaves or any(map(_REQUIRES_GRAD, self._component_parameters))
        return self.distributed.gradients(loss, self.trainable, has_others=others)

    def move_teacher(self, momentum: float) -> None:
        """Move the teacher a little towards the adapting network."""
        assert self.teacher is not None  # the method has one
        models = (self.teacher.model, self.network.model)
        ours, theirs = (tuple(one for one in model.parameters() if one.is_floating_point()) for model in models)
        torch._foreach_lerp_(ours, theirs, 1.0 - momentum)

    def update_counters(
        self, finite: Tensor, good: Tensor, stepped: Tensor, gradients: tuple[Tensor, ...] | None
    ) -> None:
        """Count a batch and its step, and keep gradients that wait for one.

        Args:
            finite: See `Verdict`.
            good: Likewise.
            stepped: Likewise.
            gradients: The sum of all that wait, with the batch's own; None where a good batch is always enough.
        """
        self.index.add_(finite)
        if not self.names:
            return
        self.num_steps.add_(stepped)
        if self._return_condition is not None:
            self.num_steps.mul_(~(self._return_condition & stepped))
        if self._accumulated:
            self.accumulated_batches.copy_((self.accumulated_batches + good) * ~stepped)
            if gradients is None:  # in place, on tensors in any layout; a sum that was kept is finite
                torch._foreach_mul_(self.accumulated_grads, (~stepped).to(self.accumulated_grads[0].dtype))
                return
            waiting = where_each(good, gradients, self.accumulated_grads)
            torch._foreach_copy_(self.accumulated_grads, where_each(stepped, 0.0, waiting))

    def finish_step(self, *, failed: bool = False) -> None:
        """Drop what is still held of a step."""
        if self.reset_condition is not None:
            self.reset_condition = self._return_condition = None
        self._detected = _NOTHING
        for network in self.networks.values():
            network.rollback()
        if failed:  # a pass that broke off does not show which modules cache tensors
            self.network.detach_all()
        else:
            self.network.detach_cached()

    # --- reset --------------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Return to exactly the starting point; what `prepare` found stays."""
        with torch.inference_mode(False), torch.no_grad():
            for network in self.moving_networks.values():
                restore_model(network.model, self.source.model)
            for name in COUNTERS:
                getattr(self, name).zero_()
            for network in self.networks.values():
                network.reset_statistics()
            for component in self._components:
                component.reset_state(self.network, self.trainable)
        self.guard_counters.clear()
        self.rebuild_optimizer()

    def reset_where(self, condition: Tensor, share: Tensor | float = 1.0) -> None:
        """Return weights, optimizer and teacher to their start where a 0-d boolean tensor holds.

        Args:
            condition: Whether to reset.
            share: How many of the trainable tensors return, the last ones in the order of the network; the first
                ones keep their values.
        """
        assert self.optimizer is not None  # something learns
        with torch.no_grad():
            kept = (1.0 - share) * len(self.names)
            returns = {name: condition & (number >= kept) for number, name in enumerate(self.names)}
            start = dict(self.source.model.named_parameters(remove_duplicate=False))
            changes: list[tuple[Tensor, Tensor, Tensor]] = [
                (now, start[name], returns[name]) for name, now in zip(self.names, self.trainable, strict=True)
            ]
            if self.teacher is not None:
                teacher = self.teacher.model.named_parameters()
                changes += [(now, start[name], returns.get(name, condition)) for name, now in teacher]
            changes += [(now, first, condition) for now, first in initial_values(self.optimizer)]
            for now, first, returned in changes:
                now.copy_(torch.where(returned, first, now))
            # The counter and the components follow once it is known whether the step is kept.
            whole = condition & (kept <= 0)
            self.reset_condition = _either(self.reset_condition, condition)
            self._return_condition = _either(self._return_condition, whole)

    # --- parameters and optimizer -------------------------------------------------------------------------------------

    def _find_parameters(self) -> None:
        """Look up the trainable parameters, after the networks have moved."""
        self.trainable = tuple(self.network.model.get_parameter(name) for name in self.names)
        self.source_parameters = tuple(self.source.model.get_parameter(name) for name in self.names)
        self._component_parameters = tuple(self.components.parameters())
        self._has_other_leaves = None  # known once a step has made a graph
        self.require_gradients()

    def require_gradients(self) -> None:
        """Have exactly the trainable parameters require gradients, whatever the caller has set."""
        if not all(map(_REQUIRES_GRAD, self.trainable)):
            self.network.model.requires_grad_(False)
            for parameter in self.trainable:
                parameter.requires_grad_(True)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """A new optimizer of the method, for the trainable parameters."""
        assert self._method.optimizer is not None  # Method checks it
        scheduled = self._method.lr_schedule is not None
        return build_optimizer(self._method.optimizer, self.trainable, capturable=self.capturable, scheduled=scheduled)

    def rebuild_optimizer(self) -> None:
        """Make a new optimizer, and new sums for accumulated gradients."""
        self.optimizer = None
        self._accumulated: dict[str, Tensor] = {}
        self._storage = None
        if self.names:
            with torch.inference_mode(False):
                self.optimizer = self.make_optimizer()
            if self._method.accumulate != 1:
                sums = (torch.zeros_like(parameter, requires_grad=False) for parameter in self.trainable)
                self._accumulated = {str(number): total for number, total in enumerate(sums)}

    @contextmanager
    def moving(self) -> Iterator[None]:
        """A context in which all tensors move to another device or dtype; the optimizer's state goes along."""
        saved = None if self.optimizer is None else copy.deepcopy(self.optimizer.state_dict())
        sums = self._accumulated
        yield
        self._find_parameters()
        self.rebuild_optimizer()
        if self.optimizer is not None and saved is not None:
            load_optimizer_state(self.optimizer, saved)
            self._accumulated = {
                key: total.to(one) for (key, total), one in zip(sums.items(), self.trainable, strict=False)
            }


def _either(earlier: Tensor | None, condition: Tensor) -> Tensor:
    return condition if earlier is None else earlier | condition
