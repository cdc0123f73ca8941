"""Backing up, keeping and undoing the tensors that a step changes."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from driftproof.adapter.slots import Slot
from driftproof.errors import ComponentError, EngineError
from driftproof.optimizers import OptimizerBackup, iter_tensors, steps_in_place
from driftproof.tensor_list import TensorList, where_each

__all__ = ["Backup", "Storage"]


class Storage:
    """The tensors of a state, sorted by how a step changes them.

    Tensors keep their addresses from step to step, so that a captured step stays valid: what is put in the place of a
    tensor is copied into it.

    Args:
        slots: Every place where a tensor is kept.
        optimizer: The optimizer; None where nothing learns.
        others: Tensors that may share memory with those of the slots.
        device: Where the model is.

    Attributes:
        is_stale: Whether tensors have come or gone, so that the slots must be looked up anew.
        values: The tensors that are written in place.
        buffers: The slots whose tensors are replaced.
        copied_optimizer: The optimizer, if it must be copied to be undone, since its steps do not only write in place.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        optimizer: torch.optim.Optimizer | None,
        others: Iterable[Tensor],
        device: torch.device,
    ) -> None:
        self.is_stale = False
        self.device = device
        self.buffers = [slot for slot in slots if slot.group != "parameter"]
        in_place = optimizer is None or steps_in_place(optimizer, device)
        self.copied_optimizer = None if in_place else optimizer
        values = [tensor for slot in slots if slot.group == "parameter" and (tensor := slot.tensor) is not None]
        num_parameters = len(unique := {id(tensor): tensor for tensor in values})
        if optimizer is not None and in_place:
            unique |= {id(tensor): tensor for tensor in iter_tensors(optimizer)}
        # To look at each tensor of the optimizer takes a noticeable part of a step.
        self.values = TensorList(list(unique.values()), others, fixed=len(unique) - num_parameters)


class Backup:
    """A copy of everything a step may change, so that it can be undone, or kept in part."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._values = storage.values.clone()
        self._buffers = [_Held(slot) for slot in storage.buffers]
        optimizer = storage.copied_optimizer
        self._optimizer = None if optimizer is None else OptimizerBackup(optimizer)

    def restore(self) -> None:
        """Undo everything, after an error."""
        capturing = _is_capturing(self._storage.device)
        for held in self._buffers:
            if capturing or held.slot.group == "buffer":
                held.put(held.original)
        if self._optimizer is not None:
            self._optimizer.restore()
        if not capturing:  # then no kernel has run, and every value is still what it was
            self._storage.values.restore(self._values)

    def for_record(self, tensor: Tensor | None) -> Tensor | None:
        """What a record may keep of a buffer: the tensor itself if `commit` copies it to its place, else a copy."""
        if tensor is None or any(held.slot.tensor is tensor and held.is_copied for held in self._buffers):
            return tensor
        return tensor.clone()

    def commit(self) -> None:
        """Copy buffers that were kept to where they have always been; the last thing a step does."""
        kept = [(held, held.slot.tensor, held.original) for held in self._buffers if held.is_copied]
        originals = [original for _, _, original in kept if original is not None]
        if originals:
            torch._foreach_copy_(originals, [now for _, now, _ in kept if now is not None])
        for held, _, original in kept:
            held.put(original)

    def changed_values(self) -> list[Tensor]:
        """The floating-point values that a step changes, in few vectors."""
        values, optimizer, device = self._storage.values, self._storage.copied_optimizer, self._storage.device
        tensors = values.vectors
        if optimizer is not None:
            values.reattach()  # it may have given parameters other memory
            tensors = tensors + [tensor for tensor in iter_tensors(optimizer) if tensor.device == device]
        return [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]

    def keep_values_where(self, stepped: Tensor) -> None:
        """Undo what was written in place, and what the optimizer did, unless a 0-d condition holds."""
        if self._optimizer is not None and not bool(stepped):  # the host has to know
            self._optimizer.restore()
        self._storage.values.keep_where(stepped, self._values)

    def keep_buffers(self, conditions: Mapping[str, Tensor | None], otherwise: Tensor | None = None) -> None:
        """Keep buffers that were replaced where a 0-d condition holds; those of the model's own stay in any case.

        Args:
            conditions: The condition for the buffers of each of these choices; None keeps them whatever happens.
            otherwise: The condition for all other choices; None leaves theirs for later.
        """
        replaced: dict[Tensor, list[tuple[_Held, Tensor, Tensor]]] = defaultdict(list)
        for held in self._buffers:
            slot, old = held.slot, held.tensor
            condition = conditions.get(slot.owner, otherwise)
            new = slot.table.get(slot.key)
            if condition is None:
                if slot.owner in conditions:
                    held.put(new)
            elif new is not old:
                if slot.group == "buffer" and new is not None and old is not None and new.shape == old.shape:
                    kept = (new.detach() if new.requires_grad else new).to(old.dtype)
                    replaced[condition].append((held, kept, old))
                else:
                    self._keep_buffer(held, condition)
            elif slot.group == "buffer" and old is not None and old._version != held.version:
                raise ComponentError(
                    f"Expected `{slot.owner}` to replace its buffer `{slot.key}`, but it wrote into it, which "
                    f"cannot be undone. Assign a new tensor: `self.{slot.key} = ...`."
                )
        # A component's own tensors stay as they were until `commit`, so that a later error can undo this.
        for condition, changes in replaced.items():
            chosen = where_each(condition, [new for _, new, _ in changes], [old for _, _, old in changes])
            for (held, _, _), tensor in zip(changes, chosen, strict=True):
                held.put(tensor)

    def _keep_buffer(self, held: "_Held", condition: Tensor) -> None:
        new, old, is_model = held.slot.tensor, held.tensor, held.slot.group == "model"
        if is_model and new is not None and old is not None and new.shape == old.shape:
            held.put(old.copy_(new.detach()))
            return
        if _is_capturing(self._storage.device):
            raise EngineError(
                f"Expected `{held.slot.name}` to keep its shape from batch to batch, since the step is captured. "
                'Use `engine="eager"`.'
            )
        # A buffer that came into being, or changed its shape: the host has to know whether it stays.
        if is_model or bool(condition):
            self._storage.is_stale = True
            held.put(None if new is None else new.detach().clone())
        else:
            held.put(old)


class _Held:
    """A slot, the tensor that it held before the step, and the one that was last put there."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.original = slot.tensor
        self.put(self.original)

    def put(self, tensor: Tensor | None) -> None:
        """Put a tensor into the slot."""
        self.slot.table[self.slot.key] = tensor
        self.tensor = tensor
        self.version = 0 if tensor is None else tensor._version

    @property
    def is_copied(self) -> bool:
        """Whether another tensor is there now, whose values belong into the one that was there before the step."""
        now, original = self.slot.tensor, self.original
        return now is not original and now is not None and original is not None and now.shape == original.shape


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
