"""Triton kernels for the end of a step, whose small operations would take longer to launch than to run.

Each is one program. `driftproof.adapter.train_step` and `driftproof.health_monitor` say what is computed, in PyTorch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from driftproof.kernels.launch import Launcher

__all__ = ["blend_averages", "conclude"]

_TILE = 4096


_POINTERS = ["largest", "loss", "logits", "has_signal", "any_good", "paused", "selected", "flags", "learned"]


@triton.jit(do_not_specialize_on_alignment=_POINTERS)
def _conclude(
    largest, loss, logits, has_signal, any_good, paused, selected, flags, learned, values, samples,
    TILE: tl.constexpr,
):  # fmt: skip
    infinity = float("inf")
    not_finite = 0
    for start in range(0, values, TILE):
        places = start + tl.arange(0, TILE)
        tile = tl.load(logits + places, mask=places < values, other=0.0).to(tl.float32)
        not_finite += tl.sum(tl.where(tl.abs(tile) < infinity, 0, 1))
    logits_ok = tl.where(not_finite == 0, 1, 0)
    loss_ok = (tl.abs(tl.load(loss).to(tl.float32)) < infinity).to(tl.int32)
    finite = loss_ok * (tl.load(largest).to(tl.float32) < infinity).to(tl.int32)
    signal = (tl.load(has_signal) != 0).to(tl.int32)
    held_back = (tl.load(paused) != 0).to(tl.int32)
    allowed = finite * (1 - held_back)
    tl.store(flags, finite != 0)
    tl.store(flags + 1, signal != 0)
    tl.store(flags + 2, allowed * signal != 0)
    tl.store(flags + 3, tl.load(any_good) != 0)
    tl.store(flags + 4, logits_ok != 0)
    tl.store(flags + 5, loss_ok != 0)
    tl.store(flags + 6, held_back != 0)
    tl.store(flags + 7, allowed != 0)
    for start in range(0, samples, TILE):
        rows = start + tl.arange(0, TILE)
        chosen = tl.load(selected + rows, mask=rows < samples, other=0) != 0
        tl.store(learned + rows, chosen & (allowed != 0), mask=rows < samples)


@triton.jit
def _sum_rows(data, samples, classes, ROWS: tl.constexpr, CLASSES: tl.constexpr):
    columns = tl.arange(0, CLASSES)
    total = tl.zeros([ROWS, CLASSES], tl.float32)
    for start in range(0, samples, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows[:, None] < samples) & (columns[None, :] < classes)
        total += tl.load(data + rows[:, None] * classes + columns[None, :], mask=mask, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def _sum_mask(data, samples, TILE: tl.constexpr):
    total = tl.zeros([TILE], tl.float32)
    for start in range(0, samples, TILE):
        rows = start + tl.arange(0, TILE)
        total += tl.where(tl.load(data + rows, mask=rows < samples, other=0) != 0, 1.0, 0.0)
    return tl.sum(total, 0)


@triton.jit
def _count_changed(logits, classes_before, samples, classes, ROWS: tl.constexpr, CLASSES: tl.constexpr):
    columns = tl.arange(0, CLASSES)
    total = tl.zeros([ROWS], tl.float32)
    for start in range(0, samples, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows[:, None] < samples) & (columns[None, :] < classes)
        tile = tl.load(logits + rows[:, None] * classes + columns[None, :], mask=mask, other=float("-inf"))
        before = tl.load(classes_before + rows, mask=rows < samples, other=0)
        changed = (tl.argmax(tile, 1).to(tl.int64) != before) & (rows < samples)
        total += tl.where(changed, 1.0, 0.0)
    return tl.sum(total, 0)


@triton.jit
def _lerp(start, end, weight):
    # As torch.lerp: exact at both ends.
    return tl.where(weight < 0.5, start + weight * (end - start), end - (end - start) * (1.0 - weight))


@triton.jit(do_not_specialize_on_alignment=["averages", "p", "selected", "source_p", "answer", "source_classes", "out"])
def _blend_averages(
    averages, p, selected, source_p, answer, source_classes, out, samples, classes, count, weight,
    TILE: tl.constexpr, ROWS: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, CLASSES)
    inside = columns < classes
    mean = _sum_rows(p, samples, classes, ROWS, CLASSES) / count
    before = tl.load(averages + columns, mask=inside, other=0.0)
    tl.store(out + columns, _lerp(before, mean, weight), mask=inside)
    kept = _sum_mask(selected, samples, TILE) / count
    tl.store(out + classes, _lerp(tl.load(averages + classes), kept, weight))
    second = classes + 1
    before = tl.load(averages + second + columns, mask=inside, other=0.0)
    share = tl.load(averages + second + classes)
    if source_p is not None:
        before = _lerp(before, _sum_rows(source_p, samples, classes, ROWS, CLASSES) / count, weight)
        changed = _count_changed(answer, source_classes, samples, classes, ROWS, CLASSES)
        share = _lerp(share, changed / count, weight)
    tl.store(out + second + columns, before, mask=inside)
    tl.store(out + second + classes, share)
    tl.store(out + 2 * second, tl.load(averages + 2 * second))
    tl.store(out + 2 * second + 1, tl.load(averages + 2 * second + 1))


_launch_conclude, _launch_blend_averages = Launcher(_conclude), Launcher(_blend_averages)


def conclude(
    largest: Tensor,
    loss: Tensor,
    logits: Tensor,
    has_signal: Tensor,
    any_good: Tensor,
    paused: Tensor,
    selected: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return eight flags of a step, and the samples that were learned from.

    Args:
        largest: The largest absolute value that the step wrote; 0-d, as all but `logits` and `selected`.
        loss: The loss.
        logits: The logits, contiguous.
        has_signal: Whether there was anything to learn.
        any_good: Whether any image was good.
        paused: Whether learning is held back.
        selected: The selected samples.

    Returns:
        The flags in the order of `LazyOutcome`, then whether the step is finite and not held back; and the samples.
    """
    flags, learned = torch.empty(8, dtype=torch.bool, device=logits.device), torch.empty_like(selected)
    given = (largest, loss, logits, has_signal, any_good, paused, selected)
    _launch_conclude(logits.device, *given, flags, learned, logits.numel(), selected.numel(), _TILE)
    return flags, learned


def blend_averages(
    averages: Tensor,
    p: Tensor,
    selected: Tensor,
    source_p: Tensor | None = None,
    answer: Tensor | None = None,
    source_classes: Tensor | None = None,
    *,
    weight: float,
) -> Tensor:
    """Return what health is judged by after a batch: see `HealthMonitor.averages`.

    Args:
        averages: The same before it.
        p: The predictions, (N, C).
        selected: The samples that were learned from, (N,).
        source_p: The frozen network's predictions; None if it did not run, as the next two.
        answer: The logits whose classes are compared with the frozen network's, (N, C).
        source_classes: The classes that it predicts, (N,).
        weight: The weight of the batch.
    """
    out, (samples, classes) = torch.empty_like(averages), p.shape
    block = triton.next_power_of_2(classes)
    _launch_blend_averages(
        p.device, averages, p, selected, source_p, answer, source_classes, out,
        samples, classes, float(samples), weight, 1024, max(1, _TILE // block), block,
    )  # fmt: skip
    return out
