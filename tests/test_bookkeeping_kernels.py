"""The kernels for the small operations around a step, against PyTorch."""

import itertools
import math

import pytest
import torch

import driftproof as dp
from cases import batches
from driftproof import health_monitor, quarantine
from driftproof.adapter import verdict
from driftproof.memories import insertion
from fault_injection import faulty_stream
from networks import build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def on_device(*values):
    return [torch.tensor(value, device="cuda") for value in values]


def test_conclusion_equals_a_slow_reference():
    from driftproof.kernels.triton_conclusion import conclude

    numbers, truths = (1.0, -math.inf, math.nan), (False, True)
    for largest, loss, damaged, signal, any_good, paused in itertools.product(numbers, numbers, *[truths] * 4):
        logits, selected = torch.randn(13, 7, device="cuda"), torch.rand(13, device="cuda") > 0.5
        logits[3, 2] = math.nan if damaged else 1.0
        flags, learned = conclude(
            *on_device(abs(largest), loss), logits, *on_device(signal, any_good, paused), selected
        )
        finite = math.isfinite(loss) and math.isfinite(largest)
        allowed = finite and not paused
        expected = [finite, signal, allowed and signal, any_good, not damaged, math.isfinite(loss), paused, allowed]
        assert flags.tolist() == expected
        assert torch.equal(learned, selected & allowed)


@pytest.mark.parametrize("compares", [False, True])
@pytest.mark.parametrize("shape", [(1, 2), (13, 7), (200, 10), (2100, 3), (64, 1000)])
def test_averages_equal_those_of_pytorch(shape, compares):
    from driftproof.kernels.triton_conclusion import blend_averages

    (samples, classes), weight = shape, min(1.0, max(0.05, shape[0] / 2000))
    averages = torch.rand(2 * (classes + 1) + 2, device="cuda")
    averages[-2:] = math.nan
    given = [torch.rand(shape, device="cuda").softmax(1), torch.rand(samples, device="cuda") > 0.5]
    parts = list(given)
    if compares:
        answer, source_classes = torch.randn(shape, device="cuda"), torch.randint(classes, (samples,), device="cuda")
        source_p = torch.rand(shape, device="cuda").softmax(1)
        given += [source_p, answer, source_classes]
        parts += [source_p, answer.argmax(1) != source_classes]
    now = torch.cat([part.double().mean(0).reshape(-1) for part in parts]).float()
    expected = averages.clone()
    expected[: len(now)].lerp_(now, weight)
    for _ in range(2):  # the second launch is of a kernel compiled before
        torch.testing.assert_close(blend_averages(averages, *given, weight=weight), expected, equal_nan=True)


@pytest.mark.parametrize("select", [None, dp.ConfidenceDifference(margin=-0.1)])
def test_steps_with_and_without_the_kernels_agree(select, monkeypatch):
    stream = [images.cuda() for images in [*faulty_stream(), *batches(6, size=16)]]
    adapters = [dp.tent(build("wide_resnet").cuda(), select=select, lr=1e-3, engine="eager") for _ in range(2)]
    for images in stream:
        actual = adapters[0].step(images)
        with monkeypatch.context() as without:
            for module in (health_monitor, quarantine, verdict):
                without.setattr(module, "runs_triton", lambda _: False)
            expected = adapters[1].step(images)
        assert actual.record.skipped == expected.record.skipped
        assert actual.record.stepped == expected.record.stepped
        assert torch.equal(actual.record.selected, expected.record.selected)
        assert torch.equal(actual.record.quarantined, expected.record.quarantined)
        for ours, theirs in ((actual.logits, expected.logits), (actual.record.averages, expected.record.averages)):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("rule", ["by class", "with a quota", "by score"])
@pytest.mark.parametrize(("capacity", "count", "classes"), [(64, 200, 10), (64, 200, 100), (5, 1, 3), (3, 17, 1)])
def test_bank_holds_the_same_images_with_and_without_the_kernel(capacity, count, classes, rule, monkeypatch):
    torch.manual_seed(capacity + count)
    for share in (0.0, 0.3, 1.0):
        size = capacity + count
        of_class = torch.randint(0, classes, (size,), device="cuda")
        present = torch.rand(size, device="cuda") < share
        options = {"capacity": capacity}
        if rule != "by score":
            options["same_class"] = of_class.unsqueeze(1) == of_class
        if rule == "with a quota":
            options["quota"] = math.ceil(capacity / classes)
        scores = torch.rand(count, size, device="cuda")
        found = insertion.insert_one_by_one(present, scores, **options)
        with monkeypatch.context() as patched:
            patched.setattr(insertion, "_can_fuse", lambda keys: False)
            expected = insertion.insert_one_by_one(present, scores, **options)
        assert torch.equal(found, expected)
        assert int(found.sum()) <= capacity
