"""What an adapter says of itself to the other ranks."""

import hashlib
import json
from typing import TYPE_CHECKING

from torch import Tensor, nn

from driftproof.adapter.snapshot import bit_sum, capture
from driftproof.distributed import RankInfo

if TYPE_CHECKING:
    from driftproof.adapter.adapter import Adapter

__all__ = ["agree_on", "present"]


def present(adapter: "Adapter", images: Tensor) -> None:
    """Tell the other ranks what batch comes next, and the first time who is speaking."""
    if adapter.distributed.size > 1:
        card = RankInfo() if adapter._introduced else _introduction(adapter)
        kind = _digest([list(images.shape[1:]), str(images.dtype)])
        adapter.distributed.set_info(card._replace(rows=len(images), images=kind))


def agree_on(adapter: "Adapter", modules: list[nn.Module]) -> None:
    """Have the buffers of modules be those of the first rank."""
    if adapter.distributed.size > 1:
        adapter.distributed.set_info(_introduction(adapter)._replace(state=0))
        for module in modules:
            known = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}
            module._buffers.update({name: adapter.distributed.broadcast(buffer) for name, buffer in known.items()})
        adapter._introduced = False


def _introduction(adapter: "Adapter") -> RankInfo:
    """Method, source weights and state: what has to be the same on every rank before the first batch."""
    state = capture(adapter)
    meta = json.loads(bytes(state.pop("meta").tolist()))
    method = [meta.pop("method"), meta.pop("seed"), adapter.output, adapter.precision, adapter.source.precision]
    weights = meta.pop("source")
    tensors = {name: [list(tensor.shape), bit_sum(tensor)] for name, tensor in state.items()}
    return RankInfo(method=_digest(method), weights=_digest(weights), state=_digest([meta, tensors]))


def _digest(content: object) -> int:
    """A positive number of 63 bits that hardly any other content shares."""
    text = json.dumps(content, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
