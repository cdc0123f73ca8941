"""Streams with faulty batches, and the comparison of two runs over them."""

from itertools import chain

import pytest
import torch

import driftproof as dp
from cases import CASES, adapter_for, batches
from networks import build

WITHOUT_LEARNING = ("source", "bn_adapt", "ttn", "norm_ema", "lame", "t3a", "ttaug")
CAPTURABLE_CASES = tuple(case for case in CASES if not case.startswith("cotta"))

# Torch itself warns when it traces an autograd function.
uses_dynamo = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


class RejectBright(dp.selection.Selection):
    """Rejects every image that is brighter than any real one."""

    def weights(self, step):
        bright = step.images.flatten(1).mean(1) > 5
        return torch.ones_like(step.weights) * ~bright.view(-1, *[1] * (step.weights.ndim - 1))


def selection_with_rejection(case):
    """The case's own selection, and one that can reject a whole batch."""
    name, _, selection = case.partition("+")
    if selection.startswith("unient"):
        soft = selection == "unient_plus"
        return dp.selection.Split("entropy", soft=soft, window=10, min_separation=0.0) & RejectBright()
    if selection:
        return dp.ConfidenceDifference() & RejectBright()
    if name == "eata":
        return dp.EntropyBelow(1.6) & dp.NonRedundant(0.999) & dp.EntropyWeight(1.5) & RejectBright()
    return RejectBright()


def faulty_stream(seed=0):
    """Eleven batches: of two sizes, each at least four times; with one NaN, all Inf, and one that is rejected whole.

    The first batch of a size runs eagerly, the second as a static step, the third is captured and the fourth replayed.
    """
    stream = batches(11, seed=seed)
    stream[3][0, 0, 0, 0] = torch.nan
    stream[5] = stream[5] + 5.2  # not far enough outside to be quarantined
    stream[9][:, 1] = torch.inf
    for index in (4, 6, 8, 10):
        stream[index] = stream[index][:3]
    return stream


def make_adapter(case, network="wide_resnet", engine=None, **settings):
    """An adapter for a case, run by an engine that `engine(method, state)` makes; None is the default one."""
    if case.partition("+")[0] not in WITHOUT_LEARNING:
        settings.setdefault("select", selection_with_rejection(case))
    adapter = adapter_for(case, build(network), segmentation=network == "segmentation", **settings)
    return use_engine(adapter, engine)


def use_engine(adapter, engine):
    """Have an adapter run by another engine; None leaves its own."""
    if engine is not None:
        adapter._engine = engine(adapter.method, adapter.state)
    return adapter


def run(adapter, stream):
    """Adapt to a stream; returns the answers, and the records as read after the last batch."""
    answers, records = zip(*(adapter.step(images) for images in stream), strict=True)
    return answers, [(record.selected, record.novelty, repr(record)) for record in records]


def join(*runs):
    """The results of consecutive runs as those of one."""
    answers, records = zip(*runs, strict=True)
    return tuple(chain(*answers)), list(chain(*records))


def assert_same(first, second):
    """Check that two runs gave bit-equal answers and records."""
    for one, other in zip(first[0], second[0], strict=True):
        assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))
    for (selected, novelty, text), (other_selected, other_novelty, other_text) in zip(first[1], second[1], strict=True):
        assert torch.equal(selected, other_selected)
        assert torch.equal(novelty.nan_to_num(7), other_novelty.nan_to_num(7))
        assert text == other_text
