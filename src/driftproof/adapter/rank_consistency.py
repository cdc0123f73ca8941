"""Checks that all ranks of a data-parallel adapter hold the same method, weights and state."""

import hashlib
import json

from torch import Tensor

from driftproof.adapter.method import Method
from driftproof.adapter.snapshot import checksum, get_state
from driftproof.adapter.state import State
from driftproof.distributed import RankInfo

__all__ = ["announce_batch", "broadcast_buffers"]


def announce_batch(method: Method, state: State, images: Tensor, *, ranks_checked: bool) -> None:
    """Tell the other ranks which batch comes next, and before the first one what this rank holds."""
    if state.distributed.size > 1:
        info = RankInfo() if ranks_checked else _fingerprint(method, state)
        kind = _digest([list(images.shape[1:]), str(images.dtype)])
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
    meta = json.loads(bytes(saved.pop("meta").tolist()))
    choices = [meta.pop("method"), meta.pop("seed"), state.network.precision, state.source.precision]
    weights = meta.pop("source")
    tensors = {name: [list(tensor.shape), checksum(tensor)] for name, tensor in saved.items()}
    return RankInfo(method=_digest(choices), weights=_digest(weights), state=_digest([meta, tensors]))


def _digest(content: object) -> int:
    """A positive 63-bit number that hardly any other content shares."""
    text = json.dumps(content, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
