"""The processes that adapt one model together, and what they tell each other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from driftproof.errors import CallOrderError, ConfigurationError, DistributedError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Distributed", "RankGroup", "RankInfo"]

RankGroup: TypeAlias = "Literal['all'] | ProcessGroup | None"


class RankInfo(NamedTuple):
    """What a rank says of itself before anything else is exchanged.

    All but the first are digests; zero says nothing.

    Attributes:
        rows: How many images it brings.
        images: The shape and type of one of them.
        method: What it does with them.
        weights: The source model.
        state: What it has learned so far.
    """

    rows: int = 0
    images: int = 0
    method: int = 0
    weights: int = 0
    state: int = 0


_IN_WORDS = RankInfo._fields[1:], ("shape and type of images", "method", "source weights", "state")


class Distributed:
    """The ranks among which the batches of an adapter are shared out.

    Every rank holds its rows of the batch, and the same parameters. What concerns the whole batch is computed from sums
    over the ranks, so every rank comes to the same objective and takes the same step. Alone, all of this is the
    identity and nothing is exchanged.

    A passage that exchanges anything stands in `collective`. The first exchange in it is a card from every rank: one that
    could not come so far says so, and all of them raise an error and can go on. A rank that fails later leaves the
    others waiting until the process group gives up; from then on the ranks are lost to each other.

    Args:
        group: "all" is the default process group; None is this process alone.

    Attributes:
        rank: The number of this process among the ranks.

    Examples:
        >>> alone = Distributed()
        >>> alone.size, alone.mean(torch.tensor([1.0, 2.0]))
        (1, tensor(1.5000))
    """

    def __init__(self, group: RankGroup = None) -> None:
        self._group = _joined(group)
        self._size = 1 if self._group is None else dist.get_world_size(self._group)
        self.rank = 0 if self._group is None else dist.get_rank(self._group)
        self._is_local = False
        self._broken: str | None = None
        self._stage: Literal["silent", "speaking", "refused"] = "silent"
        self._device = torch.device("cpu")
        self._card = RankInfo()
        self._counts: list[int] = []

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return 1 if self._is_local else self._size

    # --- passages ---------------------------------------------------------------------------------------------------

    @contextmanager
    def collective(self, device: torch.device) -> Iterator[None]:
        """A passage that every rank goes through; `device` is where what they exchange lies."""
        if self.size == 1:
            yield
            return
        if self._broken is not None:
            raise DistributedError(
                f"The ranks have lost each other: {self._broken}. This rank is as it was before that, and `save` still "
                "works. Make a new process group, and an adapter that goes on from the saved state."
            )
        self._stage, self._device, self._card = "silent", device, RankInfo()
        try:
            yield
            self._handshake()
        except BaseException as error:
            self._abort(error)
            raise

    @contextmanager
    def local(self) -> Iterator[None]:
        """A passage in which every rank works as if alone."""
        self._is_local = True
        try:
            yield
        finally:
            self._is_local = False

    def set_info(self, card: RankInfo) -> None:
        """Say who this rank is, once the others ask."""
        self._card = card

    def rank_zero(self, action: Callable[[], None], device: torch.device) -> None:
        """Have the first rank act, and the others wait for it; where they are lost, each acts by itself."""
        if self.size == 1 or self._broken is not None:
            action()
            return
        with self.collective(device):
            if self.rank == 0:
                action()

    # --- what is exchanged ------------------------------------------------------------------------------------------

    def sum(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The sum of each tensor over the ranks; gradients flow back to every rank's own."""
        if self.size == 1:
            return tensors
        self._handshake()
        together = torch.cat([tensor.reshape(-1) for tensor in tensors])
        summed: Tensor = _Sum.apply(together, self)  # type: ignore[no-untyped-call]
        pieces = torch.split(summed, [tensor.numel() for tensor in tensors])
        return tuple(piece.view(like.shape).to(like.dtype) for piece, like in zip(pieces, tensors, strict=True))

    def mean(self, values: Tensor) -> Tensor:
        """The mean of one number per sample, over the samples of all ranks."""
        if self.size == 1:
            return values.mean()
        return self.sum(values.sum())[0] / self.global_count(values.numel())

    def all_gather(self, tensor: Tensor) -> Tensor:
        """The tensor of every rank, stacked in their order; no gradient flows back."""
        self._handshake()
        return self._gather(tensor.detach())

    def all_true(self, flag: Tensor) -> Tensor:
        """Whether a boolean tensor holds on every rank."""
        return flag if self.size == 1 else self.all_gather(flag.to(torch.uint8)).bool().all(dim=0)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """What the first rank has in place of this tensor."""
        if self.size == 1:
            return tensor
        self._handshake()
        copy = tensor.detach().clone().contiguous()
        self._run_collective(lambda: dist.broadcast(copy, self._global(0), group=self._group))
        return copy

    def global_count(self, own: int) -> int:
        """How many samples all ranks have, where this one has `own`: every image holds as many."""
        if self.size == 1:
            return own
        self._handshake()
        return own * sum(self._counts) // self._counts[self.rank]

    def map_global_batch(self, rows: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """This rank's rows of what a function makes of the whole batch; the rows of others are blank to it."""
        if self.size == 1:
            return function(rows)
        self._handshake()
        start = sum(self._counts[: self.rank])
        whole = rows.new_zeros(sum(self._counts), *rows.shape[1:])
        whole[start : start + len(rows)] = rows
        return function(whole)[start : start + len(rows)]

    def gradients(self, objective: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The gradients of an objective to which all ranks came together."""
        # Each differentiates its share; where samples meet in a sum, the shares of all come back to each.
        share = objective if self.size == 1 else objective / self.size
        return self.sum(*torch.autograd.grad(share, parameters, materialize_grads=True))

    # --- how --------------------------------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> "Distributed":
        return self if self._size > 1 else Distributed()  # a process group cannot be copied, and need not be

    def _handshake(self) -> None:
        if self._stage == "silent":
            cards = self._exchange_cards(willing=True)
            self._stage = "refused"
            _refuse(cards)
            self._stage = "speaking"
            self._counts = [card.rows for _, card in cards]

    def _abort(self, error: BaseException) -> None:
        """See to it that no later exchange meets one that this rank has left."""
        if self._broken is None and self._stage == "silent" and isinstance(error, Exception):
            try:
                self._exchange_cards(willing=False)
            except DistributedError:
                return
        elif self._broken is None and self._stage != "refused":
            self._broken = f"rank {self.rank} failed between two exchanges with {type(error).__name__}"

    def _exchange_cards(self, *, willing: bool) -> list[tuple[bool, RankInfo]]:
        own = torch.tensor([int(willing), *self._card], device=self._device)
        return [(bool(row[0]), RankInfo(*row[1:])) for row in self._gather(own).tolist()]

    def _gather(self, tensor: Tensor) -> Tensor:
        pieces = [torch.empty_like(tensor) for _ in range(self._size)]
        self._run_collective(lambda: dist.all_gather(pieces, tensor.contiguous(), group=self._group))
        return torch.stack(pieces)

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        copy = tensor.detach().clone()
        self._run_collective(lambda: dist.all_reduce(copy, group=self._group))
        return copy

    def _run_collective(self, operation: Callable[[], object]) -> None:
        try:
            operation()
        except RuntimeError as error:
            self._broken = str(error).partition("\n")[0]
            raise DistributedError(
                f"Rank {self.rank} has lost the others: {self._broken}. Nothing was learned from this batch. Look for "
                "the first error among the ranks."
            ) from error

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self._group, rank) if self._group is not None else rank


class _Sum(torch.autograd.Function):
    """Adds up over the ranks, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, distributed: Distributed) -> Tensor:  # noqa: ANN401  # torch types it so
        ctx.distributed = distributed
        return distributed._all_reduce(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return ctx.distributed._all_reduce(gradient), None


def _joined(group: RankGroup) -> "ProcessGroup | None":
    if group is None:
        return None
    if not dist.is_available() or not dist.is_initialized():
        raise CallOrderError(
            "Expected `torch.distributed.init_process_group()` before an adapter with `process_group`. "
            "Start the script with `torchrun`."
        )
    if group == "all":
        return dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
        kind = "another's group" if isinstance(group, dist.ProcessGroup) else repr(group)
        raise ConfigurationError(
            f'Expected `process_group` to be None, "all" or a process group that this process is in, but got {kind}.'
        )
    return group


def _refuse(cards: list[tuple[bool, RankInfo]]) -> None:
    """Refuse to go on where a rank could not come so far, or is not like the others."""
    absent = [rank for rank, (willing, _) in enumerate(cards) if not willing]
    if absent:
        raise DistributedError(f"{_named(absent)} could not take part; the error there says why. Nothing was changed.")
    for field, words in zip(*_IN_WORDS, strict=True):
        said = [getattr(card, field) for _, card in cards]
        different = [rank for rank, digest in enumerate(said) if digest != said[0]]
        if different:
            raise DistributedError(
                f"Expected the same {words} on every rank, but {_named(different).lower()} and rank 0 differ. "
                "Nothing was changed."
            )


def _named(ranks: list[int]) -> str:
    return f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
