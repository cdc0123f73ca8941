"""Checks that all ranks of a data-parallel adapter hold the same method, weights and state."""

from torch import Tensor

from driftproof.adapter.method import Method
from driftproof.adapter.snapshot import checksum, digest, get_state, read_meta
from driftproof.adapter.state import State
from driftproof.distributed import RankInfo

__all__ = ["announce_batch", "broadcast_buffers"]


def announce_batch(method: Method, state: State, images: Tensor, *, ranks_checked: bool) -> None:
    """Tell the other ranks which batch comes next, and before the first one what this rank holds."""
    info = RankInfo() if ranks_checked else _fingerprint(method, state)
    kind = digest([list(images.shape[1:]), str(images.dtype)])
    state.distributed.set_info(info._replace(rows=len(images), images=kind))


def broadcast_buffers(method: Method, state: State) -> None:
    """Replace the components' buffers by those of rank zero."""
    if state.distributed.size > 1:
        state.distributed.set_info(_fingerprint(method, state)._replace(state=0))
        for module in state.components.modules():
            known = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}
            module._buffers.update({name: state.distributed.broadcast(buffer) for name, buffer in known.items()})


def _fingerprint(method: Method, state: State) -> RankInfo:
    """Digests of the method, the source weights and the state."""
    saved = get_state(method, state)
    meta = read_meta(saved)
    choices = [meta.pop("method"), meta.pop("seed"), state.network.precision, state.source.precision]
    weights = meta.pop("source")
    tensors = {name: checksum(tensor) for name, tensor in saved.items() if name != "meta"}
    return RankInfo(method=digest(choices), weights=digest(weights), state=digest([meta, tensors]))
