"""What an adapter holds: reading it, saving it, moving it and copying it."""

import copy
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from driftproof.adapter import snapshot
from driftproof.adapter.describe import format_repr
from driftproof.adapter.engines import EagerEngine, make_engine
from driftproof.adapter.method import EngineName, Method
from driftproof.adapter.state import State
from driftproof.adapter.unwrap import RecentBatch
from driftproof.adapter.watch import Watch
from driftproof.alarm import Alarm
from driftproof.distributed import Distributed
from driftproof.errors import CallOrderError, StateError
from driftproof.locking import ForkSafeLock, synchronized
from driftproof.network import Network
from driftproof.record import Record
from driftproof.selection import Selection
from driftproof.state_file import read_state, write_state
from driftproof.statistics import Statistics

__all__ = ["StateHolder"]

_ALARM = "alarm."
"""How the names of what an alarm remembers begin in a state file."""


class StateHolder(nn.Module):
    """The part of an adapter that does not adapt."""

    def __init__(self, method: Method, state: State, *, engine: EngineName, channels_last: bool) -> None:
        super().__init__()
        self.method = method
        self.state = state
        self.engine = engine
        self.channels_last = channels_last
        self._lock = ForkSafeLock()
        self._watch = Watch(method, state)
        self._engine = self._make_engine()
        self._recent: deque[RecentBatch] = deque()
        self._forget_stream()

    def _forget_stream(self, *, is_loaded: bool = False) -> None:
        """Drop what is no part of the state; the next batch is the first, perhaps of a loaded state."""
        self._recent.clear()
        self._last: Record | None = None
        self._stream = object()
        self._ranks_checked = False
        self._is_first_after_load = is_loaded

    # --- what it holds ------------------------------------------------------------------------------------------------

    @property
    def last(self) -> Record:
        """What happened to the last batch."""
        if self._last is None:
            raise CallOrderError("Expected a batch before its record is read.")
        return self._last

    @property
    def network(self) -> Network:
        """The adapting network θ_a."""
        return self.state.network

    @property
    def source(self) -> Network:
        """The frozen network θ_o."""
        return self.state.source

    @property
    def statistics(self) -> Statistics:
        """The statistics of the adapting network."""
        return self.method.statistics

    @property
    def select(self) -> Selection | None:
        """The selection; None learns from all samples."""
        return self.method.select

    @property
    def seed(self) -> int:
        """Seed of all random numbers."""
        return self.state.seed

    @property
    def distributed(self) -> Distributed:
        """The ranks that share each batch."""
        return self.state.distributed

    @property
    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that train, by their names in the model."""
        return dict(zip(self.state.names, self.state.trainable, strict=True))

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer at work; `reset`, `load` and `to` make a new one."""
        if self.state.optimizer is None:
            raise CallOrderError("Nothing trains, so there is no optimizer.")
        return self.state.optimizer

    @property
    def prepared(self) -> bool:
        """Whether every component has the source data it needs; if not, `prepare` comes before the first batch."""
        return all(component.prepared for component in self.method.components.values())

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.state.device

    # --- its state ----------------------------------------------------------------------------------------------------

    @synchronized
    def state_dict(self, /, **kwargs: object) -> dict[str, Tensor]:  # type: ignore[override]  # flat and complete
        """Everything that has changed since the start, as copies: what `load_state_dict` needs to continue exactly."""
        if kwargs:
            raise StateError("An adapter's state is no part of another module's: `save` and `load` the adapter itself.")
        return snapshot.get_state(self.method, self.state)

    @synchronized
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:  # type: ignore[override]
        """Continue from a `state_dict` of the same method on the same source model; any other is refused whole."""
        self._engine.invalidate()
        snapshot.set_state(self.method, self.state, state)
        self._watch.forget_snapshots()
        self._forget_stream(is_loaded=True)

    def save(self, path: str | Path, *, alarm: Alarm | None = None) -> None:
        """Write the state to a safetensors file with a checksum, atomically; all ranks call it, rank zero writes.

        Args:
            path: The file.
            alarm: An alarm whose memory of the stream is written with it.
        """
        remembered = {} if alarm is None else {f"{_ALARM}{name}": tensor for name, tensor in alarm.state_dict().items()}
        self.distributed.rank_zero(lambda: write_state(self.state_dict() | remembered, Path(path)), self.device)

    def load(self, path: str | Path, *, alarm: Alarm | None = None) -> Self:
        """Continue from a file that `save` wrote; returns the adapter.

        The file is checked whole first: one that is damaged or belongs to another method, model or alarm raises
        `StateError`, and adapter and alarm stay as they are.

        Args:
            path: The file.
            alarm: An alarm that continues as well, if the file holds what one remembers.
        """
        model_bytes = sum(parameter.nbytes for parameter in self.source.model.parameters())
        # Scores are in double precision, which not every device has.
        saved = read_state(Path(path), torch.device("cpu"), model_bytes=model_bytes)
        remembered = {name.removeprefix(_ALARM): saved.pop(name) for name in list(saved) if name.startswith(_ALARM)}
        own = {name: tensor.to(self.device) for name, tensor in saved.items()}
        if alarm is None or not remembered:
            self.load_state_dict(own)
            return self
        before = alarm.state_dict()
        alarm.load_state_dict(remembered)
        try:
            self.load_state_dict(own)
        except BaseException:
            alarm.load_state_dict(before)
            raise
        return self

    def __repr__(self) -> str:
        return format_repr(self.method, self.state, engine=self.engine, channels_last=self.channels_last)

    def train(self, mode: bool = True) -> Self:
        """Change nothing: what an adapter learns, and how its layers normalize, does not depend on the mode."""
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Change nothing: the scope decides what trains."""
        return self

    @synchronized
    @torch.inference_mode(mode=False)
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._engine.invalidate()
        self._recent.clear()
        with self.state.moving():
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    # --- copies -------------------------------------------------------------------------------------------------------

    @synchronized
    def __getstate__(self) -> dict[str, Any]:
        # A copy, since it is read after the lock is released. It makes its own engine: graphs and compiled code refer
        # to this adapter's tensors. Images are no state; a record that needs them is read before anything is copied,
        # since the score may remember it.
        if self._last is not None:
            self._last.novelty  # noqa: B018
        self.network.detach_all()
        left_out = ("_engine", "_lock", "_recent")
        return copy.deepcopy({name: value for name, value in vars(self).items() if name not in left_out})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._lock = ForkSafeLock()
        self._recent = deque()
        self.state.drop_storage()
        self._engine = self._make_engine()

    def _make_engine(self) -> EagerEngine:
        return make_engine(self.engine, self.method, self.state, channels_last=self.channels_last)
