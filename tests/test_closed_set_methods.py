"""SAR, RDumb, COME, ROID and their relatives against slow loops and against each other."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import driftproof as dp
from cases import batches, same_state, shifted
from driftproof.methods.by_name import build_method
from networks import build

SGD = torch.optim.SGD


@pytest.fixture
def model():
    """In double precision, so that two ways to compute the same step agree closely."""
    return build("wide_resnet").double()


def make_stream(count=20, size=12):
    """Later images are brighter, so that all thresholds are crossed at some time."""
    return [images.double() * (1 + 0.1 * number) for number, images in enumerate(batches(count, size))]


class Reference:
    """A student as reference implementations set it up: training mode, so batch statistics, and a copy to return to."""

    def __init__(self, model, make_optimizer):
        self.student = copy.deepcopy(model).train()
        norms = [module for module in self.student.modules() if isinstance(module, nn.BatchNorm2d)]
        self.parameters = [parameter for norm in norms for parameter in (norm.weight, norm.bias)]
        self.start = [parameter.detach().clone() for parameter in self.parameters]
        self.make_optimizer = make_optimizer
        self.optimizer = make_optimizer(self.parameters)

    def take_step(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @torch.no_grad()
    def pull(self, rate, anchor=None):
        for now, start in zip(self.parameters, self.start if anchor is None else anchor, strict=True):
            now.copy_((1 - rate) * now + rate * start)

    @torch.no_grad()
    def reset(self):
        self.pull(1.0)
        self.optimizer = self.make_optimizer(self.parameters)


def entropy(logits):
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def assert_same_run(adapter, step, stream):
    for images in stream:
        torch.testing.assert_close(adapter(images), step(images).detach(), rtol=0, atol=1e-9)


def run(adapter, stream):
    return [adapter(images) for images in stream]


def assert_bit_equal(first, second):
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


# --- SAR --------------------------------------------------------------------------------------------------------------


def test_sar_by_hand(model):
    limit, rho, reset_below = 1.35, 0.05, 0.9
    reference = Reference(model, lambda parameters: torch.optim.Adam(parameters, lr=2e-2))
    average, resets, kept = None, [], []

    def step(images):
        nonlocal average
        logits = reference.student(images)
        first = [i for i in range(len(images)) if entropy(logits)[i] < limit]
        gradients = torch.autograd.grad(entropy(logits[first]).mean(), reference.parameters)
        norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
        saved = [parameter.detach().clone() for parameter in reference.parameters]
        with torch.no_grad():
            for parameter, gradient in zip(reference.parameters, gradients, strict=True):
                parameter += rho * gradient / (norm + 1e-12)
        perturbed = entropy(reference.student(images))
        second = [i for i in first if perturbed[i] < limit]
        kept.append((len(first), len(second)))
        loss = perturbed[second].mean()
        gradients = torch.autograd.grad(loss, reference.parameters)
        with torch.no_grad():
            for parameter, value, gradient in zip(reference.parameters, saved, gradients, strict=True):
                parameter.copy_(value)
                parameter.grad = gradient
        reference.optimizer.step()
        value = loss.item()
        average = value if average is None else 0.9 * average + 0.1 * value
        if average < reset_below:
            resets.append(len(kept))
            reference.reset()
            average = None
        return logits

    adapter = dp.sar(model, lr=2e-2, entropy_threshold=limit, rho=rho, reset_below=reset_below)
    assert_same_run(adapter, step, make_stream())
    assert resets, "a reset must have come"
    assert len(kept) not in resets
    assert any(first > second for first, second in kept)
    assert any(first < 12 for first, _ in kept)


def test_sar_without_its_parts_is_tent_with_its_optimizer(model):
    open_wide = {"entropy_threshold": math.inf, "rho": 0.0, "reset_below": 0.0}
    stream = make_stream(4)
    sgd = {"lr": 1e-2, "optimizer": lambda parameters, lr: SGD(parameters, lr=lr, momentum=0.9)}
    assert_bit_equal(run(dp.sar(model, **open_wide, **sgd), stream), run(dp.tent(model, **sgd), stream))


def test_sharpness_aware_gradient_leaves_parameters_bit_equal(model):
    adapter = dp.sar(model, lr=0.0, optimizer=SGD, entropy_threshold=math.inf)
    run(adapter, make_stream(2))
    assert adapter.last.stepped
    state = adapter.state
    assert_bit_equal(state.trainable, state.source_parameters)


def test_reset_when_collapsed_scales_with_classes_and_leaves_no_momentum(model):
    adapter = dp.sar(model, lr=1e-2, entropy_threshold=math.inf, reset_below=math.inf)
    run(adapter, make_stream(3))
    fresh = dp.sar(model)
    moments = [value for state in adapter.state.optimizer.state.values() for value in state.values()]
    assert moments
    assert not any(value.any() for value in moments)
    assert_bit_equal(adapter.state.trainable, fresh.state.trainable)


# --- RDumb and resets -------------------------------------------------------------------------------------------------


def test_rdumb_starts_anew_after_every_period(model):
    stream = make_stream(4)
    settings = {"lr": 3e-2, "entropy_threshold": 1.4, "redundancy": 0.7}
    adapter = dp.rdumb(model, reset_every=4, **settings)
    first, second = ([(adapter(images), adapter.last.kept) for images in stream] for _ in range(2))
    assert adapter.method.after[0].count == 0, "every batch must have taken a step"
    for (one, kept), (other, kept_again) in zip(first, second, strict=True):
        assert torch.equal(one, other)
        assert kept == kept_again
    other = dp.eata(model, fisher=0.0, **settings)
    run(other, stream)
    other._watch.reset_weights(1.0)
    assert torch.equal(other(stream[0]), first[0][0])
    assert other.last.kept < first[0][1], "otherwise the average was not tested"


def test_reset_when_collapsed_ignores_batches_without_a_selected_sample(model):
    class EveryOther(dp.selection.Selection):
        def weights(self, step):
            return step.weights * (step.index % 2 == 0)

    adapter = dp.sar(model, select=EveryOther(), mean_entropy=0.5)
    average = adapter.method.after[0]
    values = []
    for images in make_stream(3):
        adapter(images)
        values.append(float(average.average))
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize("name", ["tent", "eata", "sar", "roid", "rdumb+crowd", "come+crowd", "gce"])
def test_resets_combine_with_every_method_by_name(model, name):
    images = make_stream(1)[0]
    options = {"after": "reset every 100"} | ({"fisher": 0.0} if name == "eata" else {})
    adapter = build_method(name, model, options)
    assert repr(adapter.method.after[-1]) == "ResetEvery(steps=100)"
    assert adapter(images).isfinite().all()


# --- COME -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e4, -1e4])
def test_come_is_finite_and_its_gradient_orthogonal_to_the_logits(scale):
    z = (scale * torch.rand(6, 5, generator=torch.Generator().manual_seed(0))).requires_grad_()
    loss = dp.losses.come(z)
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    assert loss.isfinite().all()
    assert gradient.isfinite().all()
    cosine = F.cosine_similarity(gradient, z, dim=1)
    torch.testing.assert_close(cosine, torch.zeros_like(cosine), rtol=0, atol=1e-5)


def test_come_by_hand():
    z = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    evidence = z.exp()
    opinion = torch.cat([evidence, torch.full((4, 1), 5.0, dtype=z.dtype)], dim=1) / (evidence.sum(1, True) + 5) + 1e-7
    torch.testing.assert_close(dp.losses.come(z), -(opinion * opinion.log()).sum(1))
    assert dp.losses.come(torch.zeros(1, 5)).isfinite().all()


@pytest.mark.parametrize("name", ["tent", "sar", "rdumb", "come+certain"])
def test_come_is_the_loss_of_any_method_by_name(model, name):
    adapter = build_method(name, model, {} if name.startswith("come") else {"loss": "come"})
    assert isinstance(adapter.method.loss, dp.losses.COME)
    assert adapter(make_stream(1)[0]).isfinite().all()


# --- ROID -------------------------------------------------------------------------------------------------------------


def roid_loss(reference, images, average, seed):
    """ROID's loss by loops, its logits, and the next average."""
    logits = reference.student(images)
    p = logits.softmax(1)
    with torch.no_grad():
        diverse = [1 - float(F.cosine_similarity(average, p[i], dim=0)) for i in range(len(p))]
        certain = [-float(entropy(logits)[i]) for i in range(len(p))]
        diverse = [(a - min(diverse)) / (max(diverse) - min(diverse)) for a in diverse]
        certain = [(b - min(certain)) / (max(certain) - min(certain)) for b in certain]
        kept = [i for i in range(len(p)) if diverse[i] >= sum(diverse) / len(diverse)]
        weights = [math.exp(3 * diverse[i] * certain[i]) for i in kept]
    view = shifted(images, torch.Generator().manual_seed(seed))[kept]
    other = reference.student(view)
    total = 0
    for place, i in enumerate(kept):
        q = p[i].clamp(max=0.99)
        ratio = -(q * (q / (1 - q) + 1e-5).log()).sum()
        one, two = logits[i].log_softmax(0), other[place].log_softmax(0)
        total = total + weights[place] * (ratio - 0.5 * (one.exp() * two).sum() - 0.5 * (two.exp() * one).sum())
    return total / len(images), logits, 0.9 * average + 0.1 * p.mean(0).detach(), len(kept)


@pytest.mark.parametrize("prior", [None, "probabilities", "logits"])
def test_roid_by_hand(model, prior):
    reference = Reference(model, lambda parameters: torch.optim.Adam(parameters, lr=1e-2))
    average, kept, index = torch.full((5,), 0.2, dtype=torch.float64), [], 0

    def step(images):
        nonlocal average, index
        loss, logits, average, number = roid_loss(reference, images, average, seed=index)
        index += 1
        kept.append(number)
        reference.take_step(loss)
        reference.pull(0.01)
        share = logits.softmax(1).mean(0)
        smooth = max(1 / len(images), 1 / 5) / share.max()
        share = (share + smooth) / (1 + smooth * 5)
        if prior == "logits":
            return logits * share
        return logits if prior is None else (logits.softmax(1) * share).log()

    adapter = dp.roid(model, lr=1e-2, augment=shifted, prior=prior)
    assert_same_run(adapter, step, make_stream(20 if prior is None else 3))
    assert 1 < min(kept) <= max(kept) < 12


def test_roid_without_its_parts_is_tent(model):
    bare = {"consistency": False, "pull": 0.0, "loss": dp.losses.Entropy(), "average_over": "selected"}

    class Everything(dp.selection.Selection):
        def weights(self, step):
            return torch.ones_like(step.weights)

    stream = make_stream(4)
    adapter = dp.roid(model, lr=1e-2, select=Everything(), **bare)
    assert_bit_equal(run(adapter, stream), run(dp.tent(model, lr=1e-2), stream))


@pytest.mark.parametrize("on", ["probabilities", "logits"])
def test_prior_correction_of_balanced_classes_keeps_the_order(on):
    class Balanced(nn.Module):
        def forward(self, images):
            return torch.stack([images.flatten(1)[:, 0].roll(k) for k in range(5)], dim=1)

    model = Balanced()
    model.scale = nn.Parameter(torch.ones(()))
    images = torch.tensor([3.0, -1.0, 0.5, -2.0, 1.0]).view(5, 1, 1, 1).expand(5, 3, 2, 2)
    output, none, source = dp.outputs.PriorCorrected(on), dp.scopes.nothing(), dp.statistics.Source()
    adapter = dp.Adapter(model, scope=none, statistics=source, output=output)
    torch.testing.assert_close(adapter(images).argsort(1), model(images).argsort(1))


def test_equal_images_have_equal_weights(model):
    images = make_stream(1)[0][:1].expand(6, -1, -1, -1)
    for batch in (images, images[:1]):
        adapter = dp.roid(model, augment=shifted)
        assert adapter(batch).isfinite().all()
        assert adapter.last.kept == 1.0
        assert adapter.last.stepped


# --- CMF --------------------------------------------------------------------------------------------------------------


def test_cmf_without_noise_is_roid(model):
    stream = make_stream(4)
    outputs = run(dp.cmf(model, lr=1e-2, noise=0.0, augment=shifted), stream)
    assert_bit_equal(outputs, run(dp.roid(model, lr=1e-2, augment=shifted), stream))


def test_cmf_by_hand(model):
    reference = Reference(model, lambda parameters: torch.optim.Adam(parameters, lr=1e-2))
    average, hidden, variance, index = torch.full((5,), 0.2, dtype=torch.float64), reference.start, 0.0, 0
    noise, gains = 0.06, []

    def step(images):
        nonlocal average, hidden, variance, index
        loss, logits, average, _ = roid_loss(reference, images, average, seed=index)
        index += 1
        reference.take_step(loss)
        hidden = [0.99 * h + 0.01 * start for h, start in zip(hidden, reference.start, strict=True)]
        variance = 0.99**2 * variance + noise
        gain = max(0.89, (1 - noise) / (variance + 1 - noise))
        gains.append(gain)
        variance = gain * variance
        pairs = zip(hidden, reference.parameters, strict=True)
        hidden = [gain * h + (1 - gain) * parameter.detach() for h, parameter in pairs]
        reference.pull(0.01, hidden)
        return logits

    adapter = dp.cmf(model, lr=1e-2, noise=noise, augment=shifted)
    assert_same_run(adapter, step, make_stream(6))
    assert 0.89 in gains
    assert max(gains) > 0.89
    component = adapter.reset().method.after[0]
    assert component.variance == 0
    assert torch.equal(component.hidden, torch.cat([start.flatten() for start in adapter.state.source_parameters]))


# --- DeYO -------------------------------------------------------------------------------------------------------------


def shuffle_by_hand(image, order, patches=4):
    """One image with its patches in another order, patch by patch."""
    height, width = (side // patches for side in image.shape[1:])
    view = torch.empty_like(image)
    for place, patch in enumerate(order):
        (row, column), (from_row, from_column) = divmod(place, patches), divmod(int(patch), patches)
        rows, columns = slice(from_row * height, None), slice(from_column * width, None)
        piece = image[:, rows, columns][:, :height, :width]
        view[:, row * height : (row + 1) * height, column * width : (column + 1) * width] = piece
    return view


def test_deyo_by_hand(model):
    limit, offset, threshold = 1.3, 0.7, 0.02
    reference = Reference(model, lambda parameters: torch.optim.Adam(parameters, lr=1e-2))
    index, kept = 0, []

    def step(images):
        nonlocal index
        logits = reference.student(images)
        entropies = entropy(logits)
        certain = [i for i in range(len(images)) if entropies[i] < limit]
        orders = torch.rand(len(images), 16, generator=torch.Generator().manual_seed(index)).argsort(dim=1)
        index += 1
        with torch.no_grad():
            view = torch.stack([shuffle_by_hand(images[i], orders[i]) for i in certain])
            shuffled = reference.student(view).softmax(1)
        total, number = 0, 0
        for place, i in enumerate(certain):
            p = logits[i].detach().softmax(0)
            drop = p.max() - shuffled[place, p.argmax()]
            if drop > threshold:
                weight = torch.exp(offset - entropies[i].detach()) + torch.exp(drop)
                total, number = total + weight * entropies[i], number + 1
        kept.append((len(certain), number))
        if number:
            reference.take_step(total / number)
        else:
            index -= 1  # random numbers follow the batches that were learned from
        return logits

    settings = {"entropy_threshold": limit, "weight_threshold": offset, "drop": threshold}
    adapter = dp.deyo(model, lr=1e-2, **settings)
    assert_same_run(adapter, step, make_stream())
    assert any(0 < number < certain < 12 for certain, number in kept)
    tent = build_method("tent+deyo", model, {"lr": 1e-2, **settings})
    stream = make_stream(3)
    assert_bit_equal(run(adapter.reset(), stream), run(tent, stream))


def test_shuffled_patches_of_odd_sizes_keep_the_shape():
    images = torch.rand(2, 3, 10, 7)
    view = dp.augment.shuffle_patches(images, torch.Generator().manual_seed(0))
    assert view.shape == images.shape
    assert not torch.equal(view, images)


# --- ASR --------------------------------------------------------------------------------------------------------------


def test_asr_by_hand(model):
    """With a threshold that predictions fall below now and then, on TENT in place of ETA."""
    reference = Reference(model, lambda parameters: SGD(parameters, lr=0.1, momentum=0.9))
    source = copy.deepcopy(model).train()
    fraction, sharpness, weight = 0.93, 5.0, 50.0
    start = math.log(fraction * 5)
    average, shares, flips = start, [], []
    importance = anchor = None
    gradients, parameters = [], []

    def step(images):
        nonlocal average, importance, anchor
        logits = reference.student(images)
        flip = float((logits.argmax(1) != source(images).argmax(1)).double().mean())
        flips.append(flip)
        now = torch.cat([parameter.flatten() for parameter in reference.parameters])
        loss = entropy(logits).mean()
        pieces = torch.autograd.grad(loss, reference.parameters, retain_graph=True)
        gradients.append(torch.cat([piece.flatten() for piece in pieces]) ** 2)
        parameters.append(now.detach())
        if anchor is not None:
            loss = loss + weight * flip**2 * (importance * (now - anchor) ** 2).sum()
        reference.take_step(loss)
        concentration = float(entropy(logits.detach().mean(0, keepdim=True)))
        if concentration >= average:
            m = 1 - 0.15 + 0.15 * flip
            average = m * average + (1 - m) * concentration
            return logits
        means = [sum(terms) / len(terms) for terms in (gradients, parameters)]
        known = [importance, anchor]
        importance, anchor = (
            new if old is None else 0.9 * old + 0.1 * new for old, new in zip(known, means, strict=True)
        )
        gradients.clear()
        parameters.clear()
        share = min(1.0, 0.5 + sharpness * (average - concentration))
        shares.append(share)
        before = [parameter.detach().clone() for parameter in reference.parameters]
        reference.reset()
        with torch.no_grad():
            for number, parameter in enumerate(reference.parameters):
                if number < (1 - share) * len(before):
                    parameter.copy_(before[number])
        average = start
        return logits

    adapter = dp.Adapter(
        model,
        scope=dp.scopes.norm_affine(),
        statistics=dp.statistics.Batch(),
        loss=dp.losses.Entropy(),
        regularizer=dp.regularizers.MovingAnchor(weight),
        after=dp.after.AdaptiveReset(start=fraction, sharpness=sharpness),
        optimizer=lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    )
    stream = make_stream(14)
    for images in stream:
        torch.testing.assert_close(adapter(images), step(images).detach(), rtol=0, atol=1e-6)
        assert float(adapter.method.after[0].average) == pytest.approx(average, abs=1e-5)
    assert len(shares) > 1
    assert all(0.5 <= share <= 1 for share in shares)
    assert min(shares) < 1
    assert len(shares) < 14
    adapter.reset()
    assert_bit_equal(adapter.state.trainable, adapter.state.source_parameters)
    assert same_state(dict(adapter.unwrap().state_dict()), dict(model.state_dict()))


def test_asr_never_resets_while_predictions_stay_spread(model):
    after = dp.after.AdaptiveReset(start=1e-9)
    adapter, plain = dp.tent(model, lr=1e-2, after=after), dp.tent(model, lr=1e-2)
    assert_bit_equal(run(adapter, make_stream(4)), run(plain, make_stream(4)))


# --- views ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("component", [dp.losses.ViewConsistency(), dp.selection.LabelProbabilityDrop(-1.0)])
def test_default_views_can_be_captured(component):
    dp.testing.check_component(component)


def test_view_that_moves_pixels_is_refused_for_label_maps():
    model, images = build("segmentation"), batches(1)[0]
    for method in (dp.roid, dp.cmf, dp.deyo):
        with pytest.raises(dp.errors.ModelError, match="photometric"):
            method(model)(images)
        assert method(model, augment=dp.augment.photometric)(images).isfinite().all()
