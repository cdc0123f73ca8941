"""Single bad images: they are kept out of everything, and the others are answered as if they had not come."""

import math
import statistics
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import driftproof as dp
from cases import batches, same_state, state_of
from driftproof.adapter.engines import EagerEngine, StaticEngine
from driftproof.distributed import Distributed
from driftproof.quarantine import Quarantine, replace_bad
from fault_injection import run, use_engine
from networks import build

BAD = 5
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def damage_pixel(value, images):
    images = images.clone()
    images[BAD, 0, 0, 0] = value
    return images


def scale_image(images):
    images = images.clone()
    images[BAD] *= 255
    return images


DAMAGES = {
    "NaN pixel": partial(damage_pixel, torch.nan),
    "Inf pixel": partial(damage_pixel, -torch.inf),
    "large pixel": partial(damage_pixel, 1e8),
    "largest pixel": partial(damage_pixel, 3e38),
    "0 to 255": scale_image,
}


def with_stand_in(images):
    images = images.clone()
    images[BAD] = images[0]
    return images


class WithoutBad(dp.selection.Selection):
    """Rejects the image that is bad in another run."""

    def weights(self, step):
        return step.weights * (torch.arange(len(step.weights)) != BAD)


def compose(model, **choices):
    defaults = {
        "scope": dp.scopes.norm_affine(),
        "statistics": dp.statistics.Blend(0.5, momentum=0.1),
        "loss": dp.losses.Entropy(),
        "optimizer": partial(torch.optim.Adam, lr=1e-2),
        "teacher": dp.EMA(0.9),
    }
    return dp.Adapter(model, **(defaults | choices))


@pytest.mark.parametrize(
    ("damage", "engine"),
    [
        pytest.param(DAMAGES[name], engine, id=f"{name}-{engine.__name__}")
        for number, name in enumerate(DAMAGES)
        for engine in (EagerEngine, StaticEngine)[: 2 if number == 0 else 1]
    ],
)
def test_run_with_a_bad_image_equals_a_run_that_rejects_a_good_one_in_its_place(damage, engine):
    """Answers, novelty, weights, optimizer, teacher, running statistics and health, to the last bit."""
    model, good = build("wide_resnet"), torch.arange(64) != BAD
    bad = use_engine(compose(model), engine)
    other = use_engine(compose(model, select=WithoutBad()), engine)
    for images in batches(4, size=64):
        answer, expected = bad(damage(images)), other(with_stand_in(images))
        assert torch.equal(answer[good], expected[good])
        assert answer[BAD].isnan().all()
        novelty, expected = bad.last.novelty, other.last.novelty
        assert torch.equal(novelty[good], expected[good])
        assert novelty[BAD].isnan()
        assert bad.last.quarantined.tolist() == (~good).tolist()
        assert torch.equal(bad.last.selected, good)
        assert bad.last.stepped
    unlike = ("quarantine.", "meta")  # the scale is of one image less
    ours, theirs = (
        {name: tensor for name, tensor in state_of(one).items() if not name.startswith(unlike)} for one in (bad, other)
    )
    assert any("statistics" in name for name in ours)
    assert any(name.startswith("optimizer.") for name in ours)
    assert any(name.startswith("teacher.") for name in ours)
    assert same_state(ours, theirs)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_bad_image_does_not_enter_a_memory(damage):
    memory = dp.memories.LatestImages(64)
    bad, other = (compose(build("wide_resnet"), memory=memory) for _ in range(2))
    for images in batches(3, size=64):
        answer, expected = bad(damage(images)), other(with_stand_in(images))
        assert torch.equal(answer.nan_to_num(), expected.where(answer.isfinite(), 0))
    assert torch.equal(bad.method.memory.bank, with_stand_in(images))
    for ours, theirs in zip(bad.state.trainable, other.state.trainable, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("value", [torch.nan, 1e8])
def test_pixels_of_a_bad_image_are_not_learned_from(value):
    adapter = dp.tent(build("segmentation"), select=dp.ConfidenceDifference(margin=-1.0))
    answer = adapter(damage_pixel(value, batches(1, size=8)[0]))
    good = torch.arange(8) != BAD
    assert answer[good].isfinite().all()
    assert answer[BAD].isnan().all()
    assert torch.equal(adapter.last.selected, good.view(8, 1, 1).expand(8, 8, 8))
    assert torch.equal(adapter.last.novelty.isnan(), adapter.last.selected.logical_not())


@pytest.mark.parametrize("case", ["learns", "predicts only"])
@pytest.mark.parametrize("factor", [torch.nan, 255.0, 1e8, 3e38])
def test_bad_batch_of_one_is_skipped_whole(case, factor):
    """Running statistics and a mean-entropy term over the batch would both take it in."""
    nothing = {"loss": None, "optimizer": None, "teacher": None, "scope": dp.scopes.nothing()}
    choices = {"mean_entropy": 0.5} if case == "learns" else nothing
    adapter, other = (compose(build("wide_resnet"), **choices) for _ in range(2))
    stream = batches(4, size=1)
    run(adapter, stream[:3]), run(other, stream[:3])
    before = state_of(adapter)
    assert adapter(stream[3] * factor).isnan().all()
    assert adapter.last.quarantined.all()
    assert adapter.last.skipped == "NaN or Inf in the images, or values far outside the stream"
    assert not adapter.last.stepped
    after = state_of(adapter)
    changed = {name for name in before if not torch.equal(before[name].nan_to_num(), after[name].nan_to_num())}
    assert changed <= {"meta", "quarantine.log_scale"}
    assert torch.equal(adapter(stream[3]), other(stream[3]))
    assert adapter.last.skipped is None


@pytest.mark.parametrize(("size", "patience"), [(1, 10), (4, 10), (8, 0), (64, 0)])
def test_lasting_change_of_scale_is_accepted(size, patience):
    """At once in batches of eight or more, after some batches in smaller ones."""
    adapter = dp.tent(build("wide_resnet"))
    run(adapter, batches(3, size=size))
    for number, images in enumerate(batches(patience + 3, size=size, seed=1)):
        answer = adapter(255 * images)
        assert answer.isfinite().all() or number < patience
    assert not adapter.last.quarantined.any()
    assert adapter.last.stepped


def test_black_images_do_not_make_later_ones_outliers():
    adapter, (image, *_) = dp.bn_adapt(build("wide_resnet")), batches(1, size=1)
    black = torch.zeros_like(image)
    for _ in range(3):
        assert adapter(black).isfinite().all(), "a stream may start black"
    run(adapter, [image] * 2)
    for _ in range(150):
        adapter(black)
        assert not adapter.last.quarantined.any()
    assert adapter(image).isfinite().all()
    assert not adapter.last.quarantined.any()


def test_fall_back_answers_for_good_images_alone(trained):
    class Always(dp.guards.Guard):
        def act(self, health, control):
            control.fall_back(10)

    model, digits, _ = trained
    adapter, frozen = dp.tent(model, lr=0.1, guard=Always()), dp.bn_adapt(model)
    good = torch.arange(64) != BAD
    for number, images in enumerate(digits[:512].split(64)):
        answer, expected = adapter(damage_pixel(torch.nan, images)), frozen(with_stand_in(images))
        assert answer[BAD].isnan().all()
        assert torch.equal(answer[good], expected[good]) or number < 5
    assert adapter.last.actions == ("fell back",)


def test_quarantined_images_do_not_count_as_disagreement():
    adapter = dp.tent(build("wide_resnet"), lr=0.0)
    for images in batches(6, size=16):
        images[::2] = torch.nan
        adapter(images)
    assert adapter.last.health.disagreement == 0


def test_quarantine_survives_saving_and_reset():
    model, stream = build("wide_resnet"), batches(6, size=1)
    stream[4] = stream[4] * 5  # not far enough outside
    adapter = dp.tent(model)
    expected = run(adapter, stream)[0]
    run(adapter.reset(), stream[:3])
    saved = adapter.state_dict()
    other = dp.tent(model)
    other.load_state_dict(saved)
    for images, reference in zip(stream[3:], expected[3:], strict=True):
        assert torch.equal(other(images), reference)
    assert float(other.state.quarantine.log_scale) == pytest.approx(run_log_scale(stream))
    assert adapter.reset().state.quarantine.log_scale is None


def run_log_scale(stream):
    """The scale after a stream of single images, by hand."""
    log_scale = math.log(stream[0].abs().max())
    for images in stream[1:]:
        log_scale += 0.1 * (math.log(images.abs().max()) - log_scale)
    return log_scale


# --- against a slow reference -----------------------------------------------------------------------------------------


def judge_slowly(largest, log_scale):
    """Which images are good, and the next scale."""
    is_valid = [math.isfinite(one) and one > 0 for one in largest]
    logs = [math.log(one) for one, valid in zip(largest, is_valid, strict=True) if valid]
    if log_scale is None:
        log_scale = statistics.median_low(logs) if logs else 0.0
    finite = [math.isfinite(one) for one in largest]
    good = [is_finite and one <= 10 * math.exp(log_scale) for one, is_finite in zip(largest, finite, strict=True)]
    if len(largest) >= 8 and 2 * sum(good) < sum(finite):
        good = finite
    moves = [max(-math.log(600), min(math.log(600), one - log_scale)) for one in logs]
    return good, log_scale + 0.1 * sum(moves) / len(largest)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
@given(
    largest=st.lists(
        st.sampled_from([0.0, 0.4, 1.0, 7.0, 30.0, 255.0, 1e8, math.inf, math.nan]), min_size=1, max_size=12
    ),
    log_scale=st.sampled_from([None, -0.5, 0.0, 4.7]),
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=4),
)
def test_judgement_and_replacement_equal_a_slow_reference(device, largest, log_scale, shape):
    images = -torch.tensor(largest, device=device).view(-1, *[1] * len(shape)).expand(-1, *shape).clone()
    quarantine = Quarantine()
    quarantine.log_scale = None if log_scale is None else torch.tensor(log_scale, device=device)
    judged = quarantine.judge(images)
    good = judged.good
    quarantine.update(judged, Distributed())
    expected, next_log_scale = judge_slowly(largest, log_scale)
    assert good.tolist() == expected
    assert judged.bad.tolist() == [not one for one in expected]
    assert bool(judged.any_good) == any(expected)
    assert float(quarantine.log_scale) == pytest.approx(next_log_scale, rel=1e-5, abs=1e-6)
    replaced = replace_bad(images, good)
    assert replaced.shape == images.shape
    if any(expected):
        first = images[expected.index(True)]
        for one, original, is_good in zip(replaced, images, expected, strict=True):
            assert torch.equal(one, original if is_good else first)
    else:
        assert not replaced.isfinite().any()


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [1, 7, 200, 4096])
def test_kernels_agree_with_pytorch(size, layout, dtype):
    images = torch.rand(size, 3, 9, 7, dtype=dtype).to(memory_format=layout)
    images[size // 3 :: 5] *= 255
    images[size // 2 :: 11, 1, 2, 3] = torch.nan
    answers = {}
    for device in ("cpu", "cuda"):
        quarantine = Quarantine()
        quarantine.log_scale = torch.tensor(0.1, device=device)
        judged = quarantine.judge(images.to(device))
        assert (judged.log_scale is not None) == (device == "cuda"), "the kernels run"
        quarantine.update(judged, Distributed())
        replaced = replace_bad(images.to(device), judged.good).cpu()
        assert replaced.is_contiguous(memory_format=layout)
        scores = (judged.good.tolist(), judged.bad.tolist(), bool(judged.any_good))
        answers[device] = scores, replaced.where(replaced.isfinite(), 7), float(quarantine.log_scale)
    ours, theirs = answers.values()
    assert ours[0] == theirs[0]
    assert torch.equal(ours[1], theirs[1])
    assert ours[2] == pytest.approx(theirs[2], rel=1e-5)
