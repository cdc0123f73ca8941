"""Streams in which everything happens, and what comes of them."""

import pytest
import torch

import driftproof as dp
from cases import CASES, adapter_for, batches
from networks import build

FIXED_CASES = tuple(case for case in CASES if not case.startswith("cotta"))

# Torch warns itself while it traces an autograd function.
traced = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


class NotTooBright(dp.selection.Selection):
    """Leaves out every image brighter than any real one."""

    def weights(self, step):
        bright = step.images.flatten(1).mean(1) > 5
        return torch.ones_like(step.weights) * ~bright.view(-1, *[1] * (step.weights.ndim - 1))


def with_rejection(case):
    """A selection under which a batch can be left out whole, besides the case's own."""
    name, _, crowd = case.partition("+")
    if crowd:
        return dp.ConfidenceDifference() & NotTooBright()
    if name == "eata":
        return dp.EntropyBelow(1.6) & dp.NonRedundant(0.999) & dp.EntropyWeight(1.5) & NotTooBright()
    return NotTooBright()


def faulty_stream(count=22, seed=0):
    """A stream with a NaN, a batch to be rejected whole, and smaller batches, once and again."""
    stream = batches(count, seed=seed)
    stream[6][0, 0, 0, 0] = torch.nan
    stream[10] = stream[10] + 10
    for index in (8, 14, 17, 18):
        stream[index] = stream[index][:3]
    stream[19][1] = torch.inf
    return stream


def make(case, network="wide_resnet", engine=None, **settings):
    if case.partition("+")[0] not in ("source", "bn_adapt", "ttn"):
        settings.setdefault("select", with_rejection(case))
    adapter = adapter_for(case, build(network), segmentation=network == "segmentation", **settings)
    adapter._engine = engine or adapter._engine
    return adapter


def run(adapter, stream):
    """Answers, and the records read only when the stream is over."""
    answers, records = zip(*((adapter(images), adapter.last) for images in stream), strict=True)
    return answers, [(record.selected, record.novelty, repr(record)) for record in records]


def assert_same(first, second):
    for one, other in zip(first[0], second[0], strict=True):
        assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))
    for (selected, novelty, shown), (also_selected, also_novelty, also_shown) in zip(first[1], second[1], strict=True):
        assert torch.equal(selected, also_selected)
        assert torch.equal(novelty.nan_to_num(7), also_novelty.nan_to_num(7))
        assert shown == also_shown
