"""Data-parallel adaptation: collectives over the ranks of a process group."""

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

__all__ = ["Distributed", "RankGroup", "RankInfo", "has_other_leaves"]

RankGroup: TypeAlias = "Literal['all'] | ProcessGroup | None"


class RankInfo(NamedTuple):
    """What a rank sends in the handshake: its batch size, and digests that must agree on all ranks.

    Attributes:
        rows: Number of images on this rank; may differ between ranks.
        images: Digest of the shape and dtype of one image.
        method: Digest of the configuration.
        weights: Digest of the source weights.
        state: Digest of the adapted state.
    """

    rows: int = 0
    images: int = 0
    method: int = 0
    weights: int = 0
    state: int = 0


_DIGESTS = {"images": "image shape and dtype", "method": "method", "weights": "source weights", "state": "state"}


class Distributed:
    """Collectives for an adapter whose batches are split over the ranks of a process group.

    Every rank holds its own rows of the batch and the same parameters. Quantities of the whole batch are computed from
    sums over the ranks, so all ranks compute the same objective and take the same step. In a single process every
    method is the identity and communicates nothing.

    Wrap code that uses collectives in `collective()`. Its first collective is a handshake: if any rank failed before
    it, or the ranks do not agree, every rank raises `DistributedError` and remains usable. If a rank fails after the
    handshake, the others wait until the process group times out; from then on this object is broken.

    Args:
        group: A process group, "all" for the default group, or None for a single process.

    Attributes:
        rank: Rank of this process in the group.
        size: Number of ranks; 1 inside `local()`.

    Examples:
        >>> single = Distributed()
        >>> single.size, single.mean(torch.tensor([1.0, 2.0]))
        (1, tensor(1.5000))
    """

    def __init__(self, group: RankGroup = None) -> None:
        self._group = _resolve_group(group)
        self.size = 1 if self._group is None else dist.get_world_size(self._group)
        self.rank = 0 if self._group is None else dist.get_rank(self._group)
        self._recalled: Literal["copies", "own rows"] | None = None
        self._broken: str | None = None
        self._stage: Literal["before handshake", "open", "rejected"] = "before handshake"
        self._device = torch.device("cpu")
        self._info = RankInfo()
        self._rows_per_rank: list[int] = []

    @property
    def copies(self) -> int:
        """How often each sample counts in sums over the ranks: once, unless all of them hold the same memory."""
        return self.size if self._recalled == "copies" else 1

    # --- contexts ---------------------------------------------------------------------------------------------------

    @contextmanager
    def collective(self, device: torch.device) -> Iterator[None]:
        """Enter a section that all ranks run; tensors are exchanged on `device`."""
        if self.size == 1:
            yield
            return
        if self._broken is not None:
            raise DistributedError(
                f"Distributed communication failed earlier: {self._broken}. The local state is unchanged and can be "
                "saved. Create a new process group and adapter, and load the saved state."
            )
        self._stage, self._device, self._info = "before handshake", device, RankInfo()
        try:
            yield
            self._handshake()
        except BaseException as error:
            self._abort(error)
            raise

    @contextmanager
    def local(self) -> Iterator[None]:
        """Enter a section in which this rank works as a single process."""
        size, self.size = self.size, 1
        try:
            yield
        finally:
            self.size = size

    @contextmanager
    def recalling(self, *, is_copied: bool) -> Iterator[None]:
        """Enter a section whose rows are those of a memory: as many on every rank, the same ones if `is_copied`."""
        earlier, self._recalled = self._recalled, "copies" if is_copied else "own rows"
        try:
            yield
        finally:
            self._recalled = earlier

    def set_info(self, info: RankInfo) -> None:
        """Set what this rank sends in the next handshake."""
        self._info = info

    def rank_zero(self, action: Callable[[], None], device: torch.device) -> None:
        """Run `action` on rank 0 while the others wait; on every rank if communication is broken."""
        if self.size == 1 or self._broken is not None:
            action()
            return
        with self.collective(device):
            if self.rank == 0:
                action()

    # --- collectives ------------------------------------------------------------------------------------------------

    def sum(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the sum of each tensor over the ranks; differentiable on every rank."""
        if self.size == 1:
            return tensors
        self._handshake()
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        summed: Tensor = _AllReduceSum.apply(flat, self._all_reduce)  # type: ignore[no-untyped-call]
        pieces = torch.split(summed, [tensor.numel() for tensor in tensors])
        return tuple(piece.view(like.shape).to(like.dtype) for piece, like in zip(pieces, tensors, strict=True))

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of per-sample values over the samples of all ranks."""
        if self.size == 1:
            return values.mean()
        return self.sum(values.sum())[0] / self.global_count(values.numel())

    def max(self, tensor: Tensor) -> Tensor:
        """Return the elementwise maximum over the ranks, without gradient."""
        return tensor if self.size == 1 else self.all_gather(tensor).amax(dim=0)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Stack the tensors of all ranks in rank order, without gradient."""
        self._handshake()
        return self._gather(tensor.detach())

    def all_true(self, flag: Tensor) -> Tensor:
        """Return, elementwise, whether a boolean tensor is true on every rank."""
        return flag if self.size == 1 else self.all_gather(flag.to(torch.uint8)).bool().all(dim=0)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Return rank 0's value of a tensor."""
        if self.size == 1:
            return tensor
        self._handshake()
        copy = tensor.detach().clone().contiguous()
        self._run_collective(lambda: dist.broadcast(copy, self._global_rank(0), group=self._group))
        return copy

    def global_count(self, local_count: int) -> int:
        """Return the number of samples on all ranks, given the number on this one.

        Every image has the same number of samples (pixels), so the count scales with the batch size. Divide it by
        `copies` for the number of different samples.
        """
        if self.size == 1:
            return local_count
        if self._recalled is not None:
            return local_count * self.size
        self._handshake()
        return local_count * sum(self._rows_per_rank) // self._rows_per_rank[self.rank]

    def map_global_batch(self, rows: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a function to the global batch and return this rank's rows of the result.

        The rows of other ranks are zero. Random augmentations thus draw for each image what one process would draw.
        """
        if self.size == 1 or self._recalled == "copies":
            return function(rows)
        batch, own = self._place_rows(rows)
        return function(batch)[own]

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Return the rows of the global batch, in rank order, without gradient; ranks may hold different numbers."""
        if self.size == 1:
            return rows.detach()
        if self._recalled == "copies":
            return self.broadcast(rows)
        return self._all_reduce(self._place_rows(rows.detach())[0])

    def gradients(
        self, objective: Tensor, parameters: Sequence[Tensor], *, has_others: bool = True
    ) -> tuple[Tensor, ...]:
        """Return the gradients of an objective of the global batch, each laid out like its parameter.

        Args:
            objective: The same on every rank.
            parameters: Leaves of its graph.
            has_others: Whether the graph may have other leaves, which get no gradient. To tell them takes host time.
        """
        # Every rank holds the same objective and the backward of `sum` is a sum again, so each takes 1/size of it.
        share = objective if self.size == 1 else objective / self.size
        # Into `grad` and out of it: `torch.autograd.grad` takes several times as long over many parameters on the host.
        _clear_gradients(parameters)
        try:
            share.backward(inputs=parameters if has_others else None)  # type: ignore[no-untyped-call]
            found = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        finally:
            _clear_gradients(parameters)
        return self.sum(*found)

    # --- implementation ---------------------------------------------------------------------------------------------

    def _place_rows(self, rows: Tensor) -> tuple[Tensor, slice]:
        """A global batch with the rows of this rank in their place and zeros elsewhere, and that place."""
        self._handshake()
        counts = self._rows_per_rank if self._recalled is None else [len(rows)] * self.size
        start = sum(counts[: self.rank])
        own = slice(start, start + len(rows))
        batch = rows.new_zeros(sum(counts), *rows.shape[1:])
        batch[own] = rows
        return batch, own

    def __deepcopy__(self, memo: dict[int, Any]) -> "Distributed":
        return Distributed() if self._group is None else self  # process groups cannot be copied; share it

    def _handshake(self) -> None:
        """Exchange `RankInfo` once per `collective()` and check that the ranks agree."""
        if self._stage == "before handshake":
            replies = self._exchange_info(ready=True)
            self._stage = "rejected"
            _check_replies(replies)
            self._stage = "open"
            self._rows_per_rank = [info.rows for _, info in replies]

    def _abort(self, error: BaseException) -> None:
        """Keep collectives matched after an error: tell the other ranks, or mark communication broken."""
        if self._broken is None and self._stage == "before handshake" and isinstance(error, Exception):
            try:
                self._exchange_info(ready=False)
            except DistributedError:
                return
        elif self._broken is None and self._stage != "rejected":
            self._broken = f"rank {self.rank} raised {type(error).__name__} between two collectives"

    def _exchange_info(self, *, ready: bool) -> list[tuple[bool, RankInfo]]:
        own = torch.tensor([int(ready), *self._info], device=self._device)
        return [(bool(row[0]), RankInfo(*row[1:])) for row in self._gather(own).tolist()]

    def _gather(self, tensor: Tensor) -> Tensor:
        pieces = [torch.empty_like(tensor) for _ in range(self.size)]
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
                f"Distributed communication failed on rank {self.rank}: {self._broken}. The local state is unchanged. "
                "Look for the first error among the ranks."
            ) from error

    def _global_rank(self, rank: int) -> int:
        return dist.get_global_rank(self._group, rank) if self._group is not None else rank


class _AllReduceSum(torch.autograd.Function):
    """All-reduce (sum) in the forward and in the backward pass."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, all_reduce: Callable[[Tensor], Tensor]) -> Tensor:  # noqa: ANN401  # as torch
        ctx.all_reduce = all_reduce
        return all_reduce(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return ctx.all_reduce(gradient), None


def has_other_leaves(loss: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Whether the graph of a loss ends in other leaves than parameters, such as a module that the model borrows."""
    known = {id(parameter) for parameter in parameters}
    seen: set[Any] = {None}
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            if node.name().endswith("AccumulateGrad") and id(node.variable) not in known:
                return True
            waiting += [before for before, _ in node.next_functions]
    return False


def _clear_gradients(parameters: Sequence[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _resolve_group(group: RankGroup) -> "ProcessGroup | None":
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
        got = "a group without it" if isinstance(group, dist.ProcessGroup) else repr(group)
        raise ConfigurationError(
            f'Expected `process_group` to be None, "all" or a process group that contains this process, but got {got}.'
        )
    return group


def _check_replies(replies: list[tuple[bool, RankInfo]]) -> None:
    """Raise if a rank failed before the handshake, or if the ranks do not agree."""
    failed = [rank for rank, (ready, _) in enumerate(replies) if not ready]
    if failed:
        raise DistributedError(
            f"{_format_ranks(failed)} failed before the first collective. See the error there. Nothing was changed."
        )
    for field, description in _DIGESTS.items():
        digests = [getattr(info, field) for _, info in replies]
        different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if different:
            raise DistributedError(
                f"Expected the same {description} on every rank, but {_format_ranks(different).lower()} and rank 0 "
                "differ. Nothing was changed."
            )


def _format_ranks(ranks: list[int]) -> str:
    return f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
