"""Methods against loops written out by hand, and equivalences between methods."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import driftproof as dp
from cases import adapter_for, batches, same_but_bookkeeping, shifted, source_data, state_of
from driftproof.norms import batch_norms
from networks import CONTRACT_NETWORKS, WideResNet, build, randomize

SELECTIVE = ("ent", "tent", "eata", "swr", "gce", "conjugate")
_OTHERS = [network for network in CONTRACT_NETWORKS if network != "wide_resnet"]
SELECTIVE_PAIRS = [
    *((name, "wide_resnet") for name in SELECTIVE),
    *((name, _OTHERS[number % len(_OTHERS)]) for number, name in enumerate(SELECTIVE)),
]


@pytest.fixture
def model():
    """In double precision, so that two ways to compute the same step agree closely."""
    return build("wide_resnet").double()


def to_double(stream):
    return [images.double() for images in stream]


def double_source():
    return [(images.double(), labels) for images, labels in source_data()]


def reference_student(model, every_parameter=False):
    """A model set up as reference implementations do it: training mode, so batch statistics."""
    student = copy.deepcopy(model).train()
    affine = [p for m in student.modules() if isinstance(m, nn.BatchNorm2d) for p in (m.weight, m.bias)]
    return student, list(student.parameters()) if every_parameter else affine


def entropy(logits):
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def assert_same_run(adapter, reference, stream, rtol=1e-6, atol=1e-8):
    for images in stream:
        torch.testing.assert_close(adapter(images), reference(images).detach(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("every_parameter", [False, True])
def test_tent_and_ent_by_hand(model, every_parameter):
    student, parameters = reference_student(model, every_parameter)
    optimizer = torch.optim.Adam(parameters, lr=1e-2)

    def step(images):
        logits = student(images)
        optimizer.zero_grad()
        entropy(logits).mean().backward()
        optimizer.step()
        return logits

    adapter = (dp.ent if every_parameter else dp.tent)(model, lr=1e-2)
    assert_same_run(adapter, step, to_double(batches(6)))


@pytest.mark.parametrize("on", ["softmax", "logits"])
@pytest.mark.parametrize("every_parameter", [False, True])
def test_confidence_difference_by_hand(model, every_parameter, on):
    student, parameters = reference_student(model, every_parameter)
    original = copy.deepcopy(model).train()
    optimizer = torch.optim.Adam(parameters, lr=3e-2)
    shares = []

    def step(images):
        with torch.no_grad():
            reference = original(images)
        logits = student(images)
        before, after = (
            (reference, logits.detach()) if on == "logits" else (reference.softmax(1), logits.detach().softmax(1))
        )
        selected = []
        for i in range(len(images)):
            label = int(reference[i].argmax())
            if after[i, label] >= before[i, label]:
                selected.append(i)
        shares.append(len(selected) / len(images))
        mean = logits.softmax(1).mean(0)
        loss = 0.5 * (mean * mean.log()).sum()
        if selected:
            loss = loss + entropy(logits[selected]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return logits

    adapter = (dp.ent if every_parameter else dp.tent)(model, lr=3e-2, select=dp.ConfidenceDifference(on=on))
    kept = []
    for images in to_double(batches(6, size=16)):
        torch.testing.assert_close(step(images).detach(), adapter(images))
        kept.append(adapter.last.kept)
    assert kept == pytest.approx(shares)
    assert kept[0] == 1.0
    assert min(kept) < 1.0, "otherwise nothing was tested"


def test_eata_by_hand(model):
    limit, similarity = 1.2, 0.9
    student, parameters = reference_student(model)
    source = double_source()
    adapter = dp.eata(
        model, lr=3e-2, entropy_threshold=limit, redundancy=similarity, fisher=5.0, fisher_batch_size=8
    ).prepare(source)

    start = [parameter.detach().clone() for parameter in parameters]
    importance = [torch.zeros_like(parameter) for parameter in parameters]
    for images, _ in source:
        logits = student(images)
        gradients = torch.autograd.grad(F.cross_entropy(logits, logits.argmax(1)), parameters)
        importance = [total + gradient**2 / len(source) for total, gradient in zip(importance, gradients, strict=True)]
    optimizer = torch.optim.Adam(parameters, lr=3e-2)
    average, shares = None, []

    def step(images):
        nonlocal average
        logits = student(images)
        entropies = entropy(logits)
        kept = [i for i in range(len(images)) if entropies[i] < limit]
        if average is not None:
            p = logits.detach().softmax(1)
            kept = [i for i in kept if abs(F.cosine_similarity(average, p[i], dim=0)) < similarity]
        shares.append(len(kept) / len(images))
        if not kept:
            return logits
        weights = torch.exp(limit - entropies[kept].detach())
        loss = (weights * entropies[kept]).mean()
        penalty = sum((f * (p - s) ** 2).sum() for f, p, s in zip(importance, parameters, start, strict=True))
        mean = logits[kept].detach().softmax(1).mean(0)
        average = mean if average is None else 0.9 * average + 0.1 * mean
        optimizer.zero_grad()
        (loss + 5.0 * penalty).backward()
        optimizer.step()
        return logits

    kept = []
    for images in to_double(batches(8, size=12)):
        torch.testing.assert_close(step(images).detach(), adapter(images))
        kept.append(adapter.last.kept)
    assert kept == pytest.approx(shares)
    assert 0 < min(shares) < max(shares) < 1, "both filters must have had something to do"


@pytest.mark.parametrize("anchor", ["previous", "source"])
def test_swr_without_prototypes_by_hand(model, anchor):
    source = double_source()
    adapter = dp.swr(model, lr=1e-2, strength=3.0, anchor=anchor, prototypes=False, augment=shifted).prepare(source)
    weights = adapter.method.regularizer.tensor_weights.tolist()
    student, parameters = reference_student(model, every_parameter=True)
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    anchors = [parameter.detach().clone() for parameter in parameters]

    def step(images):
        nonlocal anchors
        logits = student(images)
        mean = logits.softmax(1).mean(0)
        loss = entropy(logits).mean() + 0.5 * (mean * mean.log()).sum()
        for weight, parameter, held in zip(weights, parameters, anchors, strict=True):
            loss = loss + 3.0 * weight * ((parameter - held) ** 2).sum()
        before = [parameter.detach().clone() for parameter in parameters]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if anchor == "previous":
            anchors = before
        return logits

    assert_same_run(adapter, step, to_double(batches(5)))


@pytest.mark.parametrize("symmetric", [False, True])
def test_cotta_by_hand(model, symmetric):
    student, parameters = reference_student(model, every_parameter=True)
    teacher, anchor = copy.deepcopy(student), copy.deepcopy(student)
    stream = to_double(batches(7))
    with torch.no_grad():
        confidences = [float(anchor(images).softmax(1).amax(1).mean()) for images in stream]
    threshold = sorted(confidences)[3]  # some batches will be above it, some below
    views = dp.outputs.RandomViews(3, augment=lambda images, _: images.flip(-1) * 0.9)
    settings = {"threshold": threshold, "restore": 0.0, "momentum": 0.8, "views": views, "symmetric": symmetric}
    # SGD: while teacher and student agree, the gradient is rounding noise, which Adam would scale up.
    adapter = dp.cotta(model, lr=0.1, optimizer=torch.optim.SGD, **settings)
    optimizer = torch.optim.SGD(parameters, lr=0.1)

    def step(images):
        with torch.no_grad():
            plain, augmented = teacher(images), teacher(images.flip(-1) * 0.9)
            unsure = anchor(images).softmax(1).amax(1).mean() < threshold
        output = augmented if unsure else plain
        logits = student(images)
        loss = -(output.softmax(1) * logits.log_softmax(1)).sum(1)
        if symmetric:
            loss = 0.5 * (loss - (logits.softmax(1) * output.log_softmax(1)).sum(1))
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.copy_(0.8 * slow + 0.2 * fast)
        return output

    assert_same_run(adapter, step, stream)
    assert any(not torch.equal(now, model.get_parameter(name)) for name, now in adapter.trainable_parameters.items())


def test_cotta_computes_views_only_where_the_source_is_unsure(model):
    seen = []

    def counted(images, generator):
        seen.append(len(images))
        return images

    for threshold, expected in ((0.0, 0), (1.0, 32)):
        seen.clear()
        adapter = dp.cotta(model, threshold=threshold, views=dp.outputs.RandomViews(augment=counted))
        adapter(batches(1)[0].double())
        assert len(seen) == expected


def test_nan_batch_leaves_cotta_unchanged():
    good, bad = batches(3), batches(1, seed=9)[0]
    bad[:, 0, 0, 0] = torch.nan
    online = dp.statistics.Blend(0.5, momentum=0.3)
    clean, interrupted = (adapter_for("cotta", build("wide_resnet"), statistics=online) for _ in range(2))
    for images in good:
        clean(images)
    for images in (good[0], bad, *good[1:]):
        interrupted(images)
    assert same_but_bookkeeping(state_of(interrupted), state_of(clean))


def test_cotta_per_pixel_by_hand():
    model = build("segmentation")
    scales = dp.outputs.MultiScale((1.0, 0.5))
    adapter = dp.cotta(model, threshold=0.55, lr=0.0, restore=0.0, scales=scales)
    images = batches(1)[0]
    network = copy.deepcopy(model).train()
    with torch.no_grad():
        plain = network(images).softmax(1)
        total = torch.zeros_like(plain)
        for size in (8, 4):
            resized = F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
            for flip in (False, True):
                out = network(resized.flip(-1) if flip else resized)
                out = out.flip(-1) if flip else out
                total += F.interpolate(out, size=(8, 8), mode="bilinear", align_corners=False).softmax(1)
    predicted = adapter(images).argmax(1)
    confident_pixels = 0
    for n in range(len(images)):
        for h in range(8):
            for w in range(8):
                confident = float(plain[n, :, h, w].max()) > 0.55
                confident_pixels += confident
                source = plain if confident else total
                assert predicted[n, h, w] == source[n, :, h, w].argmax()
    assert 0 < confident_pixels < predicted.numel()
    own = network(images).detach().log_softmax(1)
    expected = -own.gather(1, predicted.unsqueeze(1)).mean()
    assert adapter.last.loss == pytest.approx(float(expected), rel=1e-4)


def test_cotta_threshold_from_source(model):
    source = double_source()
    adapter = dp.cotta(model, threshold=None)
    with pytest.raises(dp.errors.NotPreparedError, match="TeacherEnsemble"):
        adapter(batches(1)[0].double())
    adapter.prepare(source)
    with torch.no_grad():
        tops = torch.cat([model.eval()(images).softmax(1).amax(1) for images, _ in source])
    expected = torch.quantile(tops, 0.05, interpolation="lower") - 0.05
    assert float(adapter.method.output.source_threshold) == pytest.approx(float(expected), abs=2e-5)


# --- equivalences between methods -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "network"), SELECTIVE_PAIRS)
def test_first_batch_selects_everything_and_the_second_does_not(name, network):
    segmentation = network == "segmentation"
    select = dp.ConfidenceDifference()
    choices = {"select": select, "novelty": "confidence_difference", "lr": 1e-2}
    adapter = adapter_for(f"{name}+crowd", build(network), segmentation=segmentation, **choices)
    first, second = batches(2, size=16)
    adapter(first)
    assert adapter.last.kept == 1.0
    assert (adapter.last.novelty == 0).all()
    adapter(second)
    assert 0 < adapter.last.kept < 1.0
    assert torch.equal(adapter.last.selected, adapter.last.novelty <= 0)


@pytest.mark.parametrize(("name", "network"), SELECTIVE_PAIRS)
def test_zero_learning_rate_selects_everything_always(name, network):
    adapter = adapter_for(f"{name}+crowd", build(network), segmentation=network == "segmentation", lr=0.0)
    for images in batches(4):
        adapter(images)
        assert adapter.last.kept == 1.0


class Everything(dp.ConfidenceDifference):
    """Selects everything, while the frozen network still runs."""

    def weights(self, step):
        return torch.ones_like(super().weights(step))


@pytest.mark.parametrize("network", CONTRACT_NETWORKS)
def test_selecting_everything_without_mean_entropy_is_tent(network):
    model = build(network)
    forced = dp.tent(model, lr=1e-2, select=Everything(), mean_entropy=0.0)
    assert_same_run(forced, dp.tent(model, lr=1e-2), batches(6), rtol=0, atol=0)


@pytest.mark.parametrize("network", CONTRACT_NETWORKS)
def test_conjugate_without_epsilon_is_tent(network):
    model = build(network)
    assert_same_run(dp.conjugate(model, lr=1e-2), dp.tent(model, lr=1e-2), batches(6), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("network", CONTRACT_NETWORKS)
def test_eata_with_open_filters_is_tent(network):
    model = build(network)
    unfiltered = dp.eata(model, lr=1e-2, entropy_threshold=float("inf"), redundancy=2.0, fisher=0.0, reweight=False)
    assert_same_run(unfiltered, dp.tent(model, lr=1e-2), batches(6), rtol=0, atol=0)


@pytest.mark.parametrize("network", ["wide_resnet", "segmentation"])
def test_ttn_with_share_one_or_zero_is_batch_or_source(network):
    model = build(network).double()
    for share, other in ((1.0, dp.bn_adapt(model)), (0.0, dp.source(model))):
        adapter = dp.ttn(model)
        for index, alpha in enumerate(batch_norms(model)):
            setattr(adapter.statistics, f"alpha_{index}", torch.full_like(alpha[1].weight.detach(), share))
        assert_same_run(adapter, other, to_double(batches(3)))


def test_cotta_with_restore_one_keeps_the_source_weights():
    model = build("wide_resnet")
    adapter = dp.cotta(model, lr=1e-2, restore=1.0, threshold=0.0)
    for images in batches(4):
        adapter(images)
        for name, parameter in adapter.trainable_parameters.items():
            assert torch.equal(parameter, model.get_parameter(name))


def test_cotta_with_momentum_one_predicts_as_the_source():
    model = build("wide_resnet")
    adapter = dp.cotta(model, lr=1e-2, momentum=1.0, threshold=0.0)
    assert_same_run(adapter, dp.bn_adapt(model), batches(4), rtol=0, atol=0)
    for name, parameter in adapter.state.teacher.model.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name))
    assert any(not torch.equal(now, model.get_parameter(name)) for name, now in adapter.trainable_parameters.items())


class RejectAll(dp.ConfidenceDifference):
    def weights(self, step):
        return torch.zeros_like(super().weights(step))


@pytest.mark.parametrize("name", SELECTIVE)
def test_empty_selection_gives_no_nan(name):
    adapter = adapter_for(name, randomize(WideResNet()), select=RejectAll())
    for images in batches(4):
        assert adapter(images).isfinite().all()
        assert adapter.last.stepped
    assert all(parameter.isfinite().all() for parameter in adapter.network.parameters())


@pytest.mark.parametrize("name", ["tent", "ent", "gce", "conjugate"])
def test_zero_learning_rate_is_bn_adapt(name):
    model = build("wide_resnet")
    assert_same_run(adapter_for(name, model, lr=0.0), dp.bn_adapt(model), batches(3), rtol=0, atol=0)
