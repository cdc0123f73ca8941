"""Novelty scores by name: against slow references, of the right network, without a pass too many."""

import copy

import numpy
import pytest
import scipy.spatial.distance
import scipy.special
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import nn

import driftproof as dp
from cases import batches, same_but_bookkeeping, same_state, state_of
from driftproof import scores
from driftproof.record import Record
from networks import SegmentationNet, build, randomize

REFERENCES = {
    "msp": lambda z: 1 - scipy.special.softmax(z).max(),
    "energy": lambda z: -scipy.special.logsumexp(z),
    "max_logit": lambda z: -z.max(),
    "entropy": lambda z: scipy.stats.entropy(scipy.special.softmax(z)),
    "local_entropy": lambda z: scipy.stats.entropy(scipy.special.softmax(z)),  # of a whole image
}


@pytest.fixture
def model():
    return build("wide_resnet")


def crowd(model, **options):
    return dp.tent(model, lr=0.05, select=dp.ConfidenceDifference(), **{"guard": (), **options})


def predict(model, images):
    """Logits, features and classifier rows of a network that uses batch statistics, without driftproof."""
    model = copy.deepcopy(model).train()
    features = []
    model.fc.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    with torch.no_grad():
        logits = model(images)
    return logits.double().numpy(), features[0].numpy(), model.fc.weight.detach().numpy()


def slow_score(name, model, images):
    logits, features, rows = predict(model, images)
    if name == "cosine":
        found = [min(scipy.spatial.distance.cosine(one, row) for row in rows) for one in features]
    else:
        found = [REFERENCES[name](z) for z in logits]
    return torch.tensor(found, dtype=torch.float32)


@given(
    height=st.integers(1, 7), width=st.integers(1, 7), side=st.sampled_from([0.0, 1 / 6, 0.5, 1.0]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_local_entropy_is_that_of_the_mean_in_a_square(height, width, side, seed):
    logits = 5 * torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(seed))
    reach = round(side * min(height, width) / 2)
    probabilities = scipy.special.softmax(logits.double().numpy(), axis=1)
    expected = numpy.empty((2, height, width))
    for image, row, column in numpy.ndindex(expected.shape):
        rows, columns = (slice(max(0, place - reach), place + reach + 1) for place in (row, column))
        expected[image, row, column] = scipy.stats.entropy(probabilities[image, :, rows, columns].mean(axis=(1, 2)))
    found = scores.local_entropy(logits, side=side)
    torch.testing.assert_close(found, torch.from_numpy(expected).float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", [-0.1, 1.1, float("nan")])
def test_side_of_local_entropy_is_checked(side):
    with pytest.raises(dp.errors.ConfigurationError, match=r"`side` to be in 0\.\.1"):
        scores.local_entropy(torch.zeros(1, 2, 4, 4), side=side)


def test_local_entropy_is_a_score_of_scenes_by_name():
    adapter = dp.tent(build("segmentation"), novelty="answer_local_entropy", guard=())
    (images,) = batches(1)
    answer = adapter(images)
    torch.testing.assert_close(adapter.last.novelty, scores.local_entropy(answer.detach()), rtol=1e-4, atol=1e-5)
    assert adapter.last.novelty.shape == answer[:, 0].shape


@pytest.mark.parametrize("make", [crowd, dp.tent, dp.bn_adapt])
@pytest.mark.parametrize("name", [*REFERENCES, "cosine"])
def test_named_score_is_that_of_its_network(make, name, model):
    frozen, adapted = make(model, novelty=name), make(model, novelty=f"adapted_{name}")
    stream = batches(3)
    for images in stream[:-1]:
        frozen(images)
        adapted(images)
    moved = adapted.unwrap()
    frozen(stream[-1])
    adapted(stream[-1])
    torch.testing.assert_close(frozen.last.novelty, slow_score(name, model, stream[-1]), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(adapted.last.novelty, slow_score(name, moved, stream[-1]), rtol=1e-3, atol=1e-5)
    assert torch.equal(frozen.last.novelty, adapted.last.novelty) == (make is dp.bn_adapt)


@pytest.mark.parametrize("name", REFERENCES)
def test_score_of_the_answer_is_that_of_what_is_returned(name, model):
    adapter = dp.paf_kip(model, novelty=f"answer_{name}", view=None)
    for images in batches(3):
        answer = adapter(images).double().numpy()
        expected = torch.tensor([REFERENCES[name](z) for z in answer], dtype=torch.float32)
        torch.testing.assert_close(adapter.last.novelty, expected, rtol=1e-3, atol=1e-5)


def test_confidence_difference_is_positive_exactly_where_selection_rejects(model):
    adapter = crowd(model, novelty="confidence_difference")
    for images in batches(6):
        adapter(images)
    assert 0 < adapter.last.kept < 1
    assert torch.equal(adapter.last.novelty > 0, ~adapter.last.selected)


def test_score_changes_nothing_that_is_learned(model):
    expected, *others = (crowd(model, novelty=name) for name in ("confidence_difference", "energy", "adapted_cosine"))
    for images in batches(3):
        logits = expected(images)
        assert all(torch.equal(other(images), logits) for other in others)
    assert all(same_state(state_of(other), state_of(expected)) for other in others)


@pytest.mark.parametrize("name", ["energy", "cosine"])
def test_frozen_score_of_a_method_that_learns_nothing_takes_no_second_pass(name, model, monkeypatch):
    adapter = dp.bn_adapt(model, novelty=name)
    monkeypatch.setattr(adapter.source, "forward", lambda images: pytest.fail("the frozen network ran"))
    adapter(batches(1)[0])
    assert adapter.last.novelty.isfinite().all()


def run(adapter, images):
    for batch in images:
        adapter(batch)
    return adapter.last.novelty


def eata_crowd(model, **options):
    return dp.eata(model, fisher=False, select=dp.ConfidenceDifference(), **options)


def resetting_tent(model, **options):
    return dp.tent(model, after=dp.after.AdaptiveReset(), **options)  # compares with the frozen network after the step


METHODS = [crowd, dp.tent, dp.eata, eata_crowd, resetting_tent, dp.adapt]


@pytest.mark.parametrize("make", METHODS, ids=lambda make: make.__name__)
def test_default_is_the_frozen_networks_centered_entropy_of_cosines(make, model):
    """However much the method learns, its score is that of a method that learns nothing."""
    if make is dp.adapt:
        expected = make(model, novelty="centered_cosine_entropy")
    else:
        expected = dp.bn_adapt(model, novelty="centered_cosine_entropy")
    options = {} if make in (crowd, dp.adapt) else {"guard": ()}
    options |= {"fisher": False} if make is dp.eata else {}
    stream = batches(6)
    found = novelties(make(model, **options), stream)
    torch.testing.assert_close(found, novelties(expected, stream), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [dp.bn_adapt, dp.tent])
def test_default_costs_no_pass_unless_it_is_read(make, model, monkeypatch):
    adapter = make(model, guard=())
    forward, passes = adapter.source.forward, []
    monkeypatch.setattr(adapter.source, "forward", lambda images: (passes.append(len(images)), forward(images))[1])
    for images in batches(3):
        adapter(images)
    assert not passes
    record = adapter.last
    novelty = record.novelty
    assert passes == ([] if make is dp.bn_adapt else [len(images)]), "of the batch that was read"
    assert record.novelty is novelty, "the second reading is free"


@pytest.mark.parametrize("make", [crowd, dp.tent])
def test_deferred_novelty_is_nan_where_an_image_was_quarantined_and_is_copied_as_a_tensor(make, model):
    adapter = make(model, guard=())
    images = batches(1)[0].clone()
    images[1, 0, 0, 0] = torch.nan
    record = copy.deepcopy(adapter.step(images).record)
    assert type(record) is Record
    assert isinstance(vars(record)["novelty"], torch.Tensor)
    assert (
        record.novelty.isnan().tolist() == record.quarantined.tolist() == [index == 1 for index in range(len(images))]
    )


@pytest.mark.parametrize("make", [crowd, dp.tent])
def test_record_that_is_read_later_has_the_novelty_of_its_own_batch(make, model):
    adapter, (first, second) = make(model, guard=()), batches(2)
    record = adapter.step(first).record
    adapter(second)
    expected = make(model, guard=(), novelty="centered_cosine_entropy").step(first).record.novelty
    torch.testing.assert_close(record.novelty, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(make(model, guard=()).predict(first).record.novelty, expected, rtol=1e-5, atol=1e-6)


def test_center_of_a_method_that_learns_alone_is_that_of_the_batches_that_were_read(model):
    stream = batches(4)
    adapter, expected = dp.tent(model, guard=()), dp.bn_adapt(model)
    for number, images in enumerate(stream):
        record = adapter.step(images).record
        if number != 1:
            torch.testing.assert_close(record.novelty, expected.step(images).record.novelty, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("forget", ["predict", "reset", "load"])
def test_center_remembers_steps_of_the_present_stream_only(forget, model, tmp_path):
    adapter, (first, second) = dp.tent(model, guard=()), batches(2)
    adapter.save(tmp_path / "state.safetensors")
    if forget == "predict":
        record = adapter.predict(first).record
    else:
        record = adapter.step(first).record
        adapter.reset() if forget == "reset" else adapter.load(tmp_path / "state.safetensors")
    before = state_of(adapter)
    assert record.novelty.isfinite().all()
    assert same_state(state_of(adapter), before)
    adapter.step(second)
    assert torch.equal(adapter.last.novelty, run(dp.tent(model, guard=()), [second]))


def test_copy_of_an_adapter_has_its_center(model):
    adapter, stream = dp.tent(model, guard=()), batches(3)
    run(adapter, stream[:1])
    adapter(stream[1])  # not read
    copied = copy.deepcopy(adapter)
    assert same_state(state_of(copied), state_of(adapter))
    assert torch.equal(run(copied, stream[2:]), run(adapter, stream[2:]))


@pytest.mark.parametrize("bad", [torch.nan, 1e30])
def test_center_forgets_a_batch_without_numbers(bad, model):
    adapter, stream = dp.tent(model, guard=()), batches(3)
    run(adapter, [stream[0]])
    before = adapter.method.novelty.center.sums.clone()
    run(adapter, [stream[1] * bad])
    assert torch.equal(adapter.method.novelty.center.sums, before)
    assert run(adapter, [stream[2]]).isfinite().all()


def test_record_read_in_inference_mode_has_a_novelty_that_gradients_may_flow_through(model):
    adapter = crowd(model, guard=())
    record = adapter.step(batches(1)[0]).record
    with torch.inference_mode():
        novelty = record.novelty
    (novelty * torch.ones(len(novelty), requires_grad=True)).sum().backward()


class Gated(nn.Module):
    """A convolutional classifier; its only linear layer weighs channels."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.gate = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 8)
        self.head = nn.Conv2d(8, 5, 1)

    def forward(self, images):
        features = self.norm(self.conv(images)).mean(dim=(2, 3), keepdim=True)
        return self.head(features * self.gate(features.flatten(1)).sigmoid()[..., None, None]).flatten(1)


@pytest.mark.parametrize(("network", "name"), [(Gated, "entropy"), (SegmentationNet, "energy")])
def test_default_without_a_linear_classifier_is_a_score_of_logits(network, name):
    network, stream = randomize(network()), list(torch.rand(3, 4, 3, 16, 16))
    assert torch.equal(run(crowd(network), stream), run(crowd(network, novelty=name), stream))


@given(st.integers(0, 2**31), st.sampled_from([0.1, 1.0, 50.0]))
def test_scores_are_within_their_bounds(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    logits, source_logits = (scale * torch.randn(8, 6, generator=generator) for _ in range(2))
    values = {name: getattr(scores, name)(logits) for name in REFERENCES}
    values["cosine"] = scores.cosine(logits, source_logits)
    values["confidence_difference"] = scores.confidence_difference(logits, source_logits)
    for name, value in values.items():
        low, high = scores.make_novelty(name).bounds
        assert (value >= low - 1e-6).all()
        assert (value <= high + 1e-6).all()


def test_pixels_have_scores_of_logits_and_no_cosine():
    network, frames = randomize(SegmentationNet()), torch.rand(2, 3, 16, 16)
    adapter = crowd(network, novelty="entropy")
    logits = adapter(frames)
    torch.testing.assert_close(adapter.last.novelty, scores.entropy(logits), msg="before the first step, both agree")
    with pytest.raises(dp.errors.ModelError, match="classifier"):
        crowd(network, novelty="cosine")(frames)


def test_classifier_that_is_not_linear_is_refused():
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 5, 1), nn.Flatten()
    )
    with pytest.raises(dp.errors.ModelError, match='such as `novelty="energy"`'):
        crowd(network, classifier="3", novelty="cosine")(batches(1)[0])


@pytest.mark.parametrize("name", ["enrgy", "frozen_msp", ""])
def test_unknown_score_is_refused(name, model):
    with pytest.raises(dp.errors.ConfigurationError, match="Expected a known novelty"):
        dp.tent(model, novelty=name)


def test_unknown_network_is_refused():
    with pytest.raises(dp.errors.ConfigurationError, match="Expected a known network"):
        scores.Cosine(of="source")


def slow_centered(features, rows, strength=1.0):
    """The centered score of every batch, one image and one class at a time."""
    rows = rows / numpy.linalg.norm(rows, axis=1, keepdims=True)
    remembered = min(50, 5000 / len(rows))
    sums, counts, found = numpy.zeros(rows.shape), numpy.zeros(len(rows)), []
    for batch in features:
        units = [one / numpy.linalg.norm(one) for one in batch]
        center = numpy.mean([total / (n + 0.04 * remembered) for total, n in zip(sums, counts, strict=True)], axis=0)
        for unit in units:
            share = scipy.special.softmax([7 * row @ (unit - center) for row in rows])
            for c in range(len(rows)):
                sums[c], counts[c] = sums[c] + share[c] * unit, counts[c] + share[c]
        for c in range(len(rows)):
            if counts[c] > remembered:
                sums[c], counts[c] = sums[c] * remembered / counts[c], remembered
        center = strength * numpy.mean(
            [total / (n + 0.04 * remembered) for total, n in zip(sums, counts, strict=True)], axis=0
        )
        found.append([scipy.stats.entropy(scipy.special.softmax(7 * rows @ (unit - center))) for unit in units])
    return torch.tensor(numpy.array(found), dtype=torch.float32)


def source_features(model, images):
    features, model = [], copy.deepcopy(model).eval()
    model.fc.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].double().numpy()))
    with torch.no_grad():
        for batch in images:
            model(batch)
    return features


def novelties(adapter, images):
    return torch.stack([adapter.step(batch).record.novelty for batch in images])


@pytest.mark.parametrize(
    "make",
    [
        lambda model: dp.source(model, novelty="centered_cosine_entropy"),
        dp.source,
        lambda model: dp.tent(
            model, statistics=dp.statistics.Source(), select=dp.ConfidenceDifference(), lr=0.0, guard=()
        ),
    ],
    ids=["by name", "source", "default of a method that learns"],
)
def test_centered_score_by_hand(make, model):
    stream = batches(40, size=12)  # long enough for classes to fade
    expected = slow_centered(source_features(model, stream), model.fc.weight.detach().double().numpy())
    torch.testing.assert_close(novelties(make(model), stream), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", ["mixed", "sorted by class"])
def test_centering_finds_unknown_images_where_a_shift_favors_a_class(order):
    """All features move towards one class's row; without centering that class takes most images."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(10, 32, generator=generator), dim=1)
    labels = torch.arange(10).repeat_interleave(100)
    labels = labels[torch.randperm(1000, generator=generator)] if order == "mixed" else labels
    known = rows[labels] + 0.15 * torch.randn(1000, 32, generator=generator)
    unknown = 0.25 * torch.randn(1000, 32, generator=generator)
    images = torch.stack([known, unknown], dim=1) + 1.5 * rows[3]  # a known image, an unknown one, and so on
    classifier = nn.Sequential(nn.Identity(), nn.Linear(32, 10))
    with torch.no_grad():
        classifier[1].weight.copy_(rows)
    areas = []
    for name in ("cosine_entropy", "centered_cosine_entropy"):
        found = novelties(dp.source(classifier, novelty=name), images.flatten(end_dim=1).split(50))
        areas.append(roc_auc_score([0, 1] * 900, found.flatten()[200:]))
    assert areas[1] > 0.9 > 0.85 > areas[0]


def test_bad_batch_leaves_the_center_unchanged(model):
    adapter, stream = dp.source(model), batches(3)
    adapter(stream[0])
    before = state_of(adapter)
    adapter(stream[1] * torch.nan)
    assert same_but_bookkeeping(before, state_of(adapter))
    adapter(stream[2])
    assert not same_but_bookkeeping(before, state_of(adapter))
    adapter.reset()
    assert torch.equal(novelties(adapter, stream), novelties(dp.source(model), stream))


def test_predict_scores_as_a_step_would_and_remembers_nothing(model):
    adapter, stream = dp.source(model), batches(3)
    adapter(stream[0])
    before = state_of(adapter)
    predicted = adapter.predict(stream[1]).record.novelty
    assert same_state(before, state_of(adapter))
    adapter.predict(stream[2])
    assert torch.equal(adapter.step(stream[1]).record.novelty, predicted)


def test_single_images_are_not_all_novel_at_the_start(model):
    """The center of few images is near zero, else it would be the image itself."""
    image = batches(1)[0][:1]
    centered, plain = (novelties(dp.source(model, novelty=n), [image]) for n in (None, "cosine_entropy"))
    torch.testing.assert_close(centered, plain, rtol=0.1, atol=0)
