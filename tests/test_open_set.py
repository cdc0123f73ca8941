"""Methods that repel unknown samples: two groups of scores, UniEnt, PAF-KIP; against loops written out by hand."""

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture
from torch import nn

import driftproof as dp
from cases import batches, shifted
from driftproof.components import batch_seed
from driftproof.methods.by_name import accepted_options, build_method, parse_method
from driftproof.selection import Split
from driftproof.two_groups import fit_mixture, fit_otsu
from networks import CLASSES, build

STEPS = 20
SGD = partial(torch.optim.SGD, momentum=0.9)  # Adam would scale rounding up where a gradient is nearly zero


@pytest.fixture
def model():
    return build("wide_resnet").double()


def double_stream(count=STEPS, size=24):
    return [images.double() for images in batches(count, size=size)]


# --- two groups -------------------------------------------------------------------------------------------------------


def random_scores(rng, count=200):
    """Two groups of unequal size and spread, from hardly to well separated."""
    first = int(count * rng.uniform(0.1, 0.9))
    spread, gap = rng.uniform(0.5, 2.0, 2), rng.uniform(2.0, 6.0)
    return np.concatenate([rng.normal(0.0, spread[0], first), rng.normal(gap, spread[1], count - first)])


def test_mixture_agrees_with_scikit_learn():
    rng, agreed = np.random.default_rng(0), []
    for _ in range(60):
        scores = random_scores(rng)
        column = ((scores - scores.min()) / np.ptp(scores))[:, None]
        theirs = GaussianMixture(2, random_state=0).fit(column)
        expected = theirs.predict_proba(column)[:, theirs.means_[:, 0].argmin()]
        found = fit_mixture(torch.from_numpy(scores)).first_probability(torch.from_numpy(scores)).numpy()
        agreed.append(np.mean((found > 0.5) == (expected > 0.5)))
    assert np.mean(agreed) >= 0.99
    assert np.mean(np.array(agreed) >= 0.99) >= 0.9


def test_cut_is_the_best_two_means_split():
    rng = np.random.default_rng(1)
    for _ in range(20):
        scores = random_scores(rng, count=60)
        first = fit_otsu(torch.from_numpy(scores)).is_below_cut(torch.from_numpy(scores)).numpy()
        inertia = sum(((side - side.mean()) ** 2).sum() for side in (scores[first], scores[~first]))
        assert inertia <= KMeans(2, n_init=3, random_state=0).fit(scores[:, None]).inertia_ * (1 + 1e-9)
        variances = [scores[scores <= cut].var() + scores[scores > cut].var() for cut in np.sort(scores)[:-1]]
        first = fit_otsu(torch.from_numpy(scores), by_size=False).is_below_cut(torch.from_numpy(scores)).numpy()
        assert scores[first].var() + scores[~first].var() == pytest.approx(min(variances))


@pytest.mark.parametrize("fit", [fit_mixture, fit_otsu])
def test_degenerate_scores_are_split_sensibly(fit):
    def first_group(*scores):
        groups, scores = fit(torch.tensor(scores)), torch.tensor(scores)
        assert all(tensor.isfinite().all() for tensor in groups)
        assert torch.equal(groups.first_probability(scores) > 0.5, groups.is_below_cut(scores))
        return groups.is_below_cut(scores).tolist()

    assert first_group(0.7) == [True]
    assert first_group(0.7, 0.7, 0.7) == [True, True, True]
    assert first_group(3.0, 1.0) == [False, True]
    tight = [0.2, 0.2001, 0.1999, 0.9, 0.9002]
    assert first_group(*tight) == [True, True, True, False, False]


def test_scores_of_weight_zero_change_nothing():
    scores = torch.from_numpy(random_scores(np.random.default_rng(2)))
    padded = torch.cat([torch.full((30,), 99.0), scores, torch.full((5,), -99.0)])
    weights = ((padded > -50) & (padded < 50)).double()
    for fit in (fit_mixture, fit_otsu):
        for one, other in zip(fit(scores), fit(padded, weights), strict=True):
            torch.testing.assert_close(one, other)


def test_one_gaussian_rarely_passes_the_guard():
    for count in (16, 64, 200):
        torch.manual_seed(count)
        separations = torch.stack([fit_mixture(torch.randn(count)).separation for _ in range(60)])
        passing = (separations >= 2.0 + 48 / count).double().mean()
        assert passing <= 0.15


# --- UniEnt -----------------------------------------------------------------------------------------------------------


def entropy(logits):
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def slow_split(scores, min_separation):
    """Probabilities of being known, and whether there are two groups, from loops over numbers."""
    low, high = min(scores), max(scores)
    unit = [(score - low) / (high - low) for score in scores]
    best = None
    for place in range(1, len(unit)):
        sides = sorted(unit)[:place], sorted(unit)[place:]
        inside = sum(sum((x - sum(side) / len(side)) ** 2 for x in side) for side in sides)
        if best is None or inside < best[0]:
            best = inside, (sides[0][-1] + sides[1][0]) / 2
    resp = [(1.0, 0.0) if x <= best[1] else (0.0, 1.0) for x in unit]

    def maximize(resp):
        groups = []
        for j in range(2):
            n = sum(r[j] for r in resp) + 1e-6
            m = sum(r[j] * x for r, x in zip(resp, unit, strict=True)) / n
            v = sum(r[j] * (x - m) ** 2 for r, x in zip(resp, unit, strict=True)) / n + 1e-6
            groups.append((n, m, v))
        total = groups[0][0] + groups[1][0]
        return [(n / total, m, v) for n, m, v in groups]

    def expect(groups):
        resp, likelihood = [], 0.0
        for x in unit:
            density = [p / math.sqrt(v) * math.exp(-((x - m) ** 2) / (2 * v)) for p, m, v in groups]
            resp.append(tuple(d / sum(density) for d in density))
            likelihood += math.log(sum(density)) / len(unit)
        return resp, likelihood

    groups, before = maximize(resp), -math.inf
    for _ in range(16):
        resp, likelihood = expect(groups)
        groups = maximize(resp)
        if abs(likelihood - before) < 1e-3:
            break
        before = likelihood
    known = 0 if groups[0][1] <= groups[1][1] else 1
    separation = abs(groups[0][1] - groups[1][1]) / math.sqrt((groups[0][2] + groups[1][2]) / 2)
    if separation < min_separation + 48 / len(unit):
        return [float(x <= best[1]) for x in unit], False
    return [r[known] for r in expect(groups)[0]], True


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("base", ["tent", "eata"])
def test_unient_by_hand(model, base, soft):
    alpha_1, alpha_2, limit, similarity, least = 0.3, 0.7, 1.3, 0.95, 1.0
    student, original = copy.deepcopy(model).train(), copy.deepcopy(model).train()
    rows, original.fc = model.fc.weight.detach(), nn.Identity()
    affine = [p for m in student.modules() if isinstance(m, nn.BatchNorm2d) for p in (m.weight, m.bias)]
    optimizer = torch.optim.SGD(affine, lr=2e-2, momentum=0.9)
    average, splits, counts = None, [], []

    def step(images):
        nonlocal average
        logits = student(images)
        with torch.no_grad():
            features = original(images)
        scores = [1 - max(float(torch.cosine_similarity(f, w, dim=0)) for w in rows) for f in features]
        known, are_two = slow_split(scores, least)
        known = known if soft else [float(p >= 0.5) for p in known]
        splits.append(are_two)
        h, p = entropy(logits), logits.detach().softmax(1)
        attract, repel = [], []
        for i, weight in enumerate(known):
            if weight < 1 and are_two:
                repel.append((1 - weight) * h[i])
            if weight == 0:
                continue
            if base == "eata":
                if h[i] >= limit or (
                    average is not None and abs(torch.cosine_similarity(average, p[i], 0)) >= similarity
                ):
                    continue
                weight = weight * math.exp(limit - float(h[i].detach()))
            attract.append((i, weight * h[i]))
        per_batch = soft and base == "tent"
        loss = sum(term for _, term in attract) / (len(images) if per_batch else max(len(attract), 1))
        loss = loss - alpha_2 * sum(repel) / (len(images) if per_batch else max(len(repel), 1))
        mean = logits.softmax(1).mean(0)
        loss = loss + alpha_1 * (mean * mean.log()).sum()
        counts.append((len(attract), len(repel)))
        if attract:
            now = p[[i for i, _ in attract]].mean(0)
            average = now if average is None else 0.9 * average + 0.1 * now
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return logits.detach()

    split = Split(soft=soft, repel=alpha_2, min_separation=least)
    filters = {"entropy_threshold": limit, "redundancy": similarity, "fisher": 0.0} if base == "eata" else {}
    adapter = getattr(dp, base)(model, lr=2e-2, optimizer=SGD, select=split, mean_entropy=alpha_1, **filters)
    for images in double_stream():
        torch.testing.assert_close(adapter(images), step(images), rtol=0, atol=1e-9)
        assert adapter.last.kept == pytest.approx(counts[-1][0] / len(images))
    assert 3 < sum(splits) < STEPS - 3, "the guard must have fired sometimes"
    assert base == "tent" or min(attract for attract, _ in counts) < max(attract for attract, _ in counts)


class Familiar(dp.scores.NoveltyScore):
    """The same score for every sample."""

    def forward(self, step):
        return torch.zeros_like(step.weights)


@pytest.mark.parametrize("soft", [False, True])
def test_unient_without_unknown_samples_is_tent(soft):
    model = build("wide_resnet")
    split = Split(Familiar(), soft=soft, min_separation=0.0 if not soft else None)
    unient, tent = dp.tent(model, lr=1e-2, select=split, mean_entropy=0.0), dp.tent(model, lr=1e-2)
    for images in batches(4):
        assert torch.equal(unient(images), tent(images))


def test_queue_holds_the_latest_scores_and_nothing_repels_until_it_is_full(model):
    split = Split("energy", window=20, min_separation=0.0)
    adapter, scores = dp.tent(model, lr=1e-2, select=split), []
    for number, images in enumerate(double_stream(5, size=8)):
        step = adapter.state.make_step(images)
        weights = adapter.select.weights(step)
        pool = torch.tensor([*scores, *dp.scores.energy(step.source_logits).tolist()], dtype=torch.float64)[-20:]
        expected = fit_mixture(pool).first_probability(pool)[-8:] >= 0.5
        if number >= 2:
            assert torch.equal(weights.attract, expected.double())
            assert torch.equal(weights.repel, 0.5 * (1 - weights.attract))
        else:
            assert not weights.repel.any()
        adapter(images)
        scores = pool.tolist()
        recent, count = adapter.select.recent, int(adapter.select.count)
        assert (len(recent), count) == (20, min(20, 8 * (number + 1)))
        assert recent[-count:].tolist() == pytest.approx(scores)


def test_names_hold_several_selections():
    model = build("wide_resnet")
    both = build_method("tent+crowd+unient", model, {"margin": -0.1, "repel": 0.2, "window": 64})
    assert repr(both.select).startswith("ConfidenceDifference(margin=-0.1, on='softmax') & Split(")
    assert (both.method.average_over, both.method.mean_entropy) == ("selected", 0.5)
    assert build_method("tent+unient_plus", model, {}).method.average_over == "batch"
    assert build_method("tent+unient_plus", model, {"average_over": "selected"}).method.average_over == "selected"
    assert [type(one).__name__ for one in build_method("eata+unient", model, {}).select.components] == [
        *("EntropyBelow", "NonRedundant", "EntropyWeight", "Split")
    ]
    assert {"margin", "repel", "lr"} <= set(accepted_options("tent+crowd+unient"))
    for name in ("tent+crowd+nothing", "source+unient", "tent+unient+unient"):
        with pytest.raises(dp.errors.ConfigurationError, match=r"Expected .*, but got"):
            parse_method(name)


def test_split_refuses_what_makes_no_sense():
    for wrong in (
        {"rule": "median"},
        {"rule": "otsu", "soft": True},
        {"repel": -1.0},
        {"window": 1},
        {"score": "size"},
    ):
        with pytest.raises(dp.errors.ConfigurationError):
            Split(**wrong)
    with pytest.raises(dp.errors.ModelError):
        dp.tent(build("segmentation"), select=Split())(batches(1)[0])


# --- PAF-KIP ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attract", ["network", "both"])
def test_paf_kip_by_hand(model, attract):
    limit, alpha, momentum = 1.2, 1.7, 0.9
    student, teacher, original = (copy.deepcopy(model).train() for _ in range(3))
    affine = [p for m in student.modules() if isinstance(m, nn.BatchNorm2d) for p in (m.weight, m.bias)]
    optimizer = torch.optim.SGD(affine, lr=0.1, momentum=0.9)
    groups = []

    def step(index, images):
        generator = torch.Generator().manual_seed(batch_seed(0, index))
        views = [shifted(images, generator) for _ in range(3)]
        logits = student(views[0])
        with torch.no_grad():
            second, averaged, frozen = student(views[2]), teacher(views[1]), original(images)
        h, own, others = entropy(logits), entropy(second), entropy(averaged)
        sure, unknown = [], []
        for i in range(len(images)):
            if own[i] < limit and (attract == "network" or others[i] < limit):
                sure.append(math.exp(min(max(limit - float(others[i]), -10), 10)) * h[i])
            if own[i] >= limit and others[i] >= limit:
                unknown.append(h[i])
        groups.append((len(sure), len(unknown)))
        loss = sum(sure) / max(len(sure), 1) - alpha * sum(unknown) / max(len(unknown), 1)
        answer = torch.zeros_like(frozen)
        three = [logits.detach(), averaged, frozen]
        for i in range(len(images)):
            top = [float(z[i].softmax(0).max()) for z in three]
            for q, z in zip(top, three, strict=True):
                answer[i] += (1 / 3 + 0.1 * (q - sum(top) / 3)) * z[i]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.copy_(momentum * slow + (1 - momentum) * fast)
        return answer, -logits.detach().logsumexp(1)

    adapter = dp.paf_kip(
        model,
        lr=0.1,
        optimizer=SGD,
        entropy_threshold=limit,
        repel=alpha,
        attract=attract,
        momentum=momentum,
        view=shifted,
    )
    for index, images in enumerate(double_stream(size=12)):
        answer, novelty = step(index, images)
        torch.testing.assert_close(adapter(images), answer, rtol=0, atol=1e-9)
        torch.testing.assert_close(adapter.last.novelty, novelty, rtol=0, atol=1e-9)
        assert adapter.last.kept == pytest.approx(groups[-1][0] / len(images))
    sure, unknown = (sum(group) for group in zip(*groups, strict=True))
    assert sure > 0 < unknown
    assert sure + unknown < 12 * STEPS, "some samples must have taken no part"


def test_paf_kip_with_everything_switched_off_is_tent():
    model = build("wide_resnet")
    off = {"repel": 0.0, "entropy_threshold": math.inf, "reweight": False, "view": None, "output": "before"}
    adapter, tent = dp.paf_kip(model, lr=1e-2, momentum=1.0, **off), dp.tent(model, lr=1e-2)
    for images in batches(4):
        assert torch.equal(adapter(images), tent(images))
    source = dict(model.named_parameters())
    assert all(torch.equal(p, source[name]) for name, p in adapter.state.teacher.model.named_parameters())


def test_ensemble_of_equal_networks_answers_as_each_of_them():
    model, images = build("segmentation"), batches(1)[0]
    adapter = dp.paf_kip(model, lr=1e-2, view=None)
    torch.testing.assert_close(adapter(images), dp.bn_adapt(model)(images))


class Counting(nn.Module):
    passes = 0

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        Counting.passes += 1
        return self.model(images)


@pytest.mark.parametrize(("options", "expected"), [({}, 4), ({"view": None}, 3)])
def test_paf_kip_runs_as_few_networks_as_it_can(options, expected):
    adapter = dp.paf_kip(Counting(build("wide_resnet")), guard=(), **options)
    before = Counting.passes
    adapter(batches(1)[0])
    assert Counting.passes - before == expected


def test_views_that_move_pixels_are_refused_for_label_maps():
    images = batches(1)[0]
    with pytest.raises(dp.errors.ModelError, match="moves no pixels"):
        dp.paf_kip(build("segmentation"))(images)
    assert dp.paf_kip(build("segmentation"), view=shifted)(images).isfinite().all()


@pytest.mark.parametrize("per_image", [False, True])
def test_crops_are_shifted_and_flipped_images_padded_with_black(per_image):
    images = torch.rand(6, 3, 8, 8)
    seen = set()
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        view, padded = dp.augment.crop_and_flip(images, generator, per_image=per_image), torch.zeros(6, 3, 10, 10)
        padded[..., 1:9, 1:9] = images
        draws = []
        for image, whole in zip(view, padded, strict=True):
            places = [
                (top, left, flip)
                for top in range(3)
                for left in range(3)
                for flip in (False, True)
                if torch.equal(image.flip(-1) if flip else image, whole[:, top : top + 8, left : left + 8])
            ]
            assert len(places) == 1
            draws += places
        seen |= set(draws)
        assert per_image or len(set(draws)) == 1
    assert {flip for *_, flip in seen} == {False, True}
    assert {top for top, *_ in seen} == {left for _, left, _ in seen} == {0, 1, 2}


# --- everything unknown, everything known, one image ------------------------------------------------------------------

REPELLING = {
    "unient": lambda model, **more: dp.tent(model, select=Split(min_separation=0.0), **more),
    "unient_plus": lambda model, **more: dp.tent(model, select=Split(soft=True, min_separation=0.0), **more),
    "paf_kip": lambda model, **more: dp.paf_kip(model, **more),
    "all unknown": lambda model, **more: dp.paf_kip(model, entropy_threshold=0.0, **more),
    "all known": lambda model, **more: dp.paf_kip(model, entropy_threshold=math.inf, **more),
}


@pytest.mark.parametrize("name", REPELLING)
def test_repelling_methods_stay_finite_and_guards_judge_them(name):
    guard = (dp.guards.FallBack(), dp.guards.RollBack())
    adapter = REPELLING[name](build("wide_resnet"), lr=0.1, guard=guard)
    stream = [*batches(15, size=16), *batches(5, size=1), torch.full((8, 3, 8, 8), 0.5)]
    for images in stream:
        assert adapter(images).isfinite().all()
        assert adapter.last.novelty.isfinite().all()
    assert adapter.last.health.state in ("healthy", "drifting", "collapsed")
    assert math.isfinite(adapter.last.health.disagreement)
    assert all(parameter.isfinite().all() for parameter in adapter.network.parameters())


def test_repelling_raises_the_entropy_up_to_that_of_a_guess():
    adapter = dp.paf_kip(build("wide_resnet"), lr=3e-2, entropy_threshold=0.0, output="before", view=None, guard=())
    (images,) = batches(1, size=32)
    before = entropy(adapter(images)).mean()
    for _ in range(60):
        answer = adapter(images)
    assert before < 0.8 * math.log(CLASSES) < 0.95 * math.log(CLASSES) < entropy(answer).mean()
