"""The sentinel: a second adapting copy that learns what is unknown, and a learner that asks it."""

import copy
import importlib
import inspect
import json
import math
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import driftproof as dp
from cases import batches, same_but_bookkeeping, same_state, state_of
from driftproof.adapter.engines import StaticEngine
from driftproof.components import Detection, run_beside
from driftproof.corruptions import CORRUPTIONS, HELD_OUT
from driftproof.detectors import Detector, Sentinel
from driftproof.leaderboard import SENTINEL_SUITES
from driftproof.methods.by_name import build_method
from driftproof.outputs import LogMean
from driftproof.selection import Known
from networks import CLASSES, build

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
sentinel_streams = importlib.import_module("sentinel_streams")
sentinel_choose_learner = importlib.import_module("sentinel_choose_learner")
SEARCH = Path(__file__).parents[1] / "results" / "sentinel"


@pytest.fixture
def model():
    return build("wide_resnet").double()


def double_stream(count=5, size=12):
    return [images.double() for images in batches(count, size=size)]


def entropies(logits):
    return torch.distributions.Categorical(logits=logits).entropy()


def affine_of(network):
    return [p for m in network.modules() if isinstance(m, nn.BatchNorm2d) for p in (m.weight, m.bias)]


def sentinel_for(model, detector=None, **options):
    detector = detector or Sentinel(lr=0.1, threshold=0.75, momentum=0.9, images_per_step=1)
    select = Known() & dp.ConfidenceDifference()
    own = {"convolutions": 0.0, "eps": 1e-8, "statistics": dp.statistics.Batch(), "accumulate": 1, "guard": ()}
    return dp.sentinel(model, lr=0.05, pull=1e-3, detector=detector, **{**own, "select": select, **options})


@pytest.mark.parametrize(("mirror", "layers"), [(True, 1.0), (False, 1.0), (True, 0.5), (True, 0.0)])
def test_sentinel_by_hand(model, mirror, layers):
    limit, alpha, momentum, pull = 0.75 * math.log(CLASSES), 1.7, 0.9, 0.05
    network, average, original = (copy.deepcopy(model).train() for _ in range(3))
    norms = len(affine_of(network)) // 2
    last = slice(-2 * max(1, math.ceil(layers * norms)), None)
    optimizer = torch.optim.Adam(affine_of(network)[last], lr=0.1)
    detector = Sentinel(
        lr=0.1, repel=alpha, threshold=0.75, momentum=momentum, pull=pull, mirror=mirror, layers=layers,
        images_per_step=1,
    )  # fmt: skip
    adapter = sentinel_for(model, detector)
    groups = []
    for images in double_stream():
        logits = network(images.flip(-1) if mirror else images)
        with torch.no_grad():
            theirs = entropies(average(images))
        own, sure, unknown = entropies(logits), [], []
        for i in range(len(images)):
            if own[i] < limit:
                sure.append(math.exp(min(max(limit - float(theirs[i]), -10), 10)) * own[i])
            elif theirs[i] >= limit:
                unknown.append(i)
        groups.append((len(sure), len(unknown)))
        loss = sum(sure) / max(len(sure), 1) - alpha * own[unknown].sum() / max(len(unknown), 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for ours, start in zip(affine_of(network)[last], affine_of(original)[last], strict=True):
                ours.lerp_(start, pull)
            for slow, fast in zip(affine_of(average), affine_of(network), strict=True):
                slow.copy_(momentum * slow + (1 - momentum) * fast)
        adapter(images)
        torch.testing.assert_close(adapter.last.novelty, -logits.detach().logsumexp(1), rtol=0, atol=1e-9)
        known = torch.tensor([i not in unknown for i in range(len(images))])
        assert not (adapter.last.selected & ~known).any()
    sure, unknown = (sum(group) for group in zip(*groups, strict=True))
    assert sure > 0 < unknown
    assert sure + unknown < 5 * 12, "some samples must have taken no part"


class AskingItself(Sentinel):
    """Runs the moving average even where it is the frozen network."""

    def __init__(self, **choices):
        super().__init__(**choices)
        self.needs_source = False


@pytest.mark.parametrize(
    ("network", "novelty"), [("wide_resnet", "cosine"), ("wide_resnet", "detector"), ("segmentation", "detector")]
)
def test_average_that_stands_still_is_the_frozen_network(network, novelty):
    """At momentum 1 the pass of the frozen network serves, once for all that read it."""
    choices = {"lr": 0.1, "threshold": 0.75, "momentum": 1.0, "images_per_step": 1}
    options = {"novelty": novelty, "members": "network+mirror+source"}  # a mirror image would be a pass of its own
    adapters = [sentinel_for(build(network).double(), make(**choices), **options) for make in (Sentinel, AskingItself)]
    passes = []
    adapters[0].source.register_forward_hook(lambda *_: passes.append(1))
    for number, images in enumerate(double_stream(4), start=1):
        ours, theirs = (adapter(images) for adapter in adapters)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
        torch.testing.assert_close(adapters[0].last.novelty, adapters[1].last.novelty, rtol=0, atol=1e-9)
        assert len(passes) == number
    affine = [adapter.method.detector.affine for adapter in adapters]
    assert not torch.equal(affine[0], adapters[0].method.detector.average)
    torch.testing.assert_close(*affine, rtol=0, atol=1e-9)


def test_learner_trains_norms_and_the_first_convolutions(model):
    adapter = dp.sentinel(model, guard=(), accumulate=1, lr=0.1)
    start = {name: parameter.clone() for name, parameter in adapter.state.network.model.named_parameters()}
    for images in double_stream(3):
        adapter(images)
    moved = {
        name
        for name, parameter in adapter.state.network.model.named_parameters()
        if not torch.equal(parameter, start[name])
    }
    norms = {f"{name}.{kind}" for name, _ in dp.norms.batch_norms(model) for kind in ("weight", "bias")}
    convolutions = [f"{name}.weight" for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)]
    assert moved == norms | set(convolutions[: len(convolutions) // 3])


def test_large_epsilon_makes_small_steps_of_small_gradients(model):
    """With Adam's usual ε the first step moves every weight by the learning rate."""
    sizes = {}
    for eps in (1e-8, 1e3):
        adapter = dp.sentinel(model, guard=(), accumulate=1, lr=0.01, eps=eps, pull=0.0)
        start = [parameter.detach().clone() for parameter in adapter.state.trainable]
        adapter(double_stream(1)[0])
        sizes[eps] = max(
            float((now.detach() - then).abs().max()) for now, then in zip(adapter.state.trainable, start, strict=True)
        )
    assert sizes[1e-8] == pytest.approx(0.01, rel=1e-2)
    assert 0 < sizes[1e3] < 1e-4


@pytest.mark.parametrize("eps", [-1e-8, math.inf, math.nan])
def test_wrong_epsilon_is_refused(model, eps):
    with pytest.raises(dp.errors.ConfigurationError, match="`eps` to be at least 0"):
        dp.sentinel(model, eps=eps)


def test_sentinel_shares_every_parameter_with_the_frozen_network(model):
    adapter = sentinel_for(model)
    for images in double_stream(2):
        adapter(images)
    ours = dict(adapter.state.detector.model.named_parameters())
    assert all(ours[name] is parameter for name, parameter in adapter.source.model.named_parameters())
    given = dict(model.named_parameters())
    assert all(torch.equal(parameter, given[name]) for name, parameter in ours.items())


def test_learner_is_bit_equal_whatever_the_sentinel_learns_if_it_does_not_ask(model):
    options = {"select": dp.ConfidenceDifference(), "output": "before", "novelty": "energy"}
    adapters = [sentinel_for(model, Sentinel(lr=lr, images_per_step=1), **options) for lr in (0.0, 0.3)]
    for images in double_stream():
        first, second = (adapter(images) for adapter in adapters)
        assert torch.equal(first, second)


def test_answer_changes_nothing_of_what_is_learned(model):
    """Rounds of which only the state matters can be run without the passes that the answer alone needs."""
    whole, short = dp.sentinel(model), dp.sentinel(model, members="network")
    for images in double_stream():
        whole(images), short(images)
    ours, theirs = whole.state_dict(), short.state_dict()
    assert ours.keys() == theirs.keys()
    learned = [name for name in ours if name != "meta" and not name.startswith("health.")]  # health is of the answer
    assert all(torch.equal(ours[name], theirs[name]) for name in learned)


def test_sentinel_widens_the_gap_between_sure_and_unsure_samples():
    images = batches(1, size=64)[0]
    adapter = sentinel_for(build("wide_resnet"), Sentinel(lr=1e-2, threshold=0.75, images_per_step=1, mirror=False))
    start = dp.bn_adapt(adapter.source.model)(images)
    unsure = entropies(start) > 0.75 * math.log(CLASSES)
    assert 8 < unsure.sum() < 56
    gaps = []
    for _ in range(40):
        adapter(images)
        gaps.append(float(adapter.last.novelty[unsure].mean() - adapter.last.novelty[~unsure].mean()))
    assert gaps[-1] > gaps[20] > gaps[0]


def all_repelled():
    return Sentinel(lr=0.1, threshold=0.0, images_per_step=1)


def all_attracted():
    return Sentinel(lr=0.1, threshold=1.0, images_per_step=1)


@pytest.mark.parametrize("network", ["wide_resnet", "segmentation"])
@pytest.mark.parametrize("make", [all_repelled, all_attracted])
def test_extreme_batches_stay_finite(network, make):
    adapter = sentinel_for(build(network), make())
    for images in [*batches(6, size=16), *batches(3, size=1), torch.full((8, 3, 8, 8), 0.5)]:
        assert adapter(images).isfinite().all()
        assert adapter.last.novelty.isfinite().all()
    assert all(tensor.isfinite().all() for tensor in adapter.method.detector.buffers())


def test_all_unknown_batch_still_teaches_the_sentinel(model):
    adapter = sentinel_for(model, all_repelled(), mean_entropy=0.0)
    images = double_stream(1)[0]
    before = [parameter.detach().clone() for parameter in adapter.state.trainable], state_of(adapter)
    adapter(images)
    assert adapter.last.kept == 0
    assert all(torch.equal(now, then) for now, then in zip(adapter.state.trainable, before[0], strict=True))
    assert not torch.equal(adapter.state_dict()["detector.affine"], before[1]["detector.affine"])


def test_all_known_batch_selects_what_the_confidence_difference_selects(model):
    trusting = sentinel_for(model, all_attracted(), novelty="energy", output="before")
    plain = dp.tent(
        model,
        lr=0.05,
        select=dp.ConfidenceDifference(),
        after=dp.after.PullToSource(1e-3),
        guard=(),
        mean_entropy=trusting.method.mean_entropy,
    )
    for images in double_stream():
        torch.testing.assert_close(trusting(images), plain(images), rtol=0, atol=1e-9)
        assert torch.equal(trusting.last.selected, plain.last.selected)


@pytest.mark.parametrize("engine", ["eager", "static"])
def test_nan_batch_leaves_sentinel_unchanged(engine):
    adapter = sentinel_for(build("wide_resnet"))
    run = adapter if engine == "eager" else StaticEngine(adapter.method, adapter.state).run
    stream = batches(4)
    for images in stream:
        run(images)
    before = state_of(adapter)
    run(stream[0] * math.nan)
    assert same_but_bookkeeping(state_of(adapter), before)


def test_quarantined_images_do_not_teach_the_sentinel():
    stream = batches(4)
    adapters = [sentinel_for(build("wide_resnet")) for _ in range(2)]
    for adapter in adapters:
        adapter(stream[0])
    broken = stream[1].clone()
    broken[3] = math.inf
    stand_in = stream[1].clone()
    stand_in[3] = stand_in[0]
    good = torch.tensor([True, True, True, False, True, True])
    adapters[0](broken)
    with torch.no_grad():
        detector, state = adapters[1].method.detector, adapters[1].state
        detector.detect(stand_in, state.detector, good).learn()
    assert torch.equal(adapters[0].method.detector.affine, detector.affine)


def test_small_batches_wait_for_each_other(model):
    """Two batches of six make the same step as one of twelve whose loss is the mean of theirs."""
    adapter = sentinel_for(model, Sentinel(lr=0.1, images_per_step=12, mirror=False))
    first, second = double_stream(2, size=6)
    start = adapter.method.detector.affine.clone()
    adapter(first)
    assert torch.equal(adapter.method.detector.affine, start)
    waiting = adapter.method.detector.waiting.clone()
    assert waiting.any()
    adapter(second)
    moved = adapter.method.detector
    assert not torch.equal(moved.affine, start)
    assert not moved.waiting.any()
    assert moved.num_waiting == 0
    # The first step of Adam is the learning rate in the direction of the gradient's sign.
    step = (start - moved.affine) / 0.1
    torch.testing.assert_close(step[step.abs() > 0.5].abs(), torch.ones_like(step[step.abs() > 0.5]), rtol=0, atol=1e-4)


def test_pixels_do_not_count_as_images():
    """Those of one frame are alike: gradients wait for as many frames as they would for images."""
    adapter = sentinel_for(build("segmentation"), Sentinel(lr=0.1, images_per_step=4))
    start = adapter.method.detector.affine.clone()
    first, second = batches(2, size=2)
    adapter(first)
    assert torch.equal(adapter.method.detector.affine, start)
    adapter(second)
    assert not torch.equal(adapter.method.detector.affine, start)


def test_sentinel_is_not_trusted_while_its_scores_form_one_group(model):
    images = double_stream(1, size=64)[0]
    trusting, doubting = (
        sentinel_for(model, Sentinel(threshold=0.75, images_per_step=1, min_separation=value)) for value in (0.0, 1e6)
    )
    trusting(images)
    doubting(images)
    assert trusting.last.kept < 1
    assert doubting.last.kept == 1


def test_pixels_are_judged_as_they_are():
    """The sentinel does not mirror scenes, from the first batch on, and in running statistics they count once."""
    images = batches(3)
    rule = dp.statistics.WindowedBlend(0.4, 1_000)
    adapters = [
        sentinel_for(build("segmentation"), Sentinel(lr=0.1, mirror=mirror, images_per_step=1), statistics=rule)
        for mirror in (True, False)
    ]
    for batch in images:
        ours, theirs = (adapter(batch) for adapter in adapters)
        assert torch.equal(ours, theirs)
        assert adapters[0].last.novelty.shape == (len(batch), *ours.shape[2:])
        assert torch.equal(adapters[0].last.novelty, adapters[1].last.novelty)
    assert same_state(*({k: v for k, v in state_of(one).items() if k != "meta"} for one in adapters))


def test_mean_of_log_probabilities_by_hand(model):
    images = double_stream(1)[0]
    adapter = sentinel_for(model, output=LogMean(("network", "mirror", "detector", "source")))
    plain, mirrored = (dp.bn_adapt(model)(view).log_softmax(1) for view in (images, images.flip(-1)))
    torch.testing.assert_close(adapter(images), (2 * plain + 2 * mirrored) / 4, rtol=0, atol=1e-9)


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_moved_mirror_images_by_hand(model, shift):
    images = double_stream(1)[0]
    adapter = sentinel_for(model, output=LogMean(("network", "mirror", "source", "source_mirror"), shift))
    views = [images]
    for step in (shift, -shift):
        rows, columns = ((torch.arange(side) - step).clamp(0, side - 1) for side in images.shape[-2:])
        views.append(images.flip(-1)[:, :, rows][..., columns])
    plain, right, left = (dp.bn_adapt(model)(view).log_softmax(1) for view in views)
    torch.testing.assert_close(adapter(images), (2 * plain + right + left) / 4, rtol=0, atol=1e-9)


def test_scenes_are_mirrored_but_not_moved():
    images = torch.rand(2, 3, 12, 12, dtype=torch.double)
    still, moved = (dp.sentinel(build("segmentation").double(), shift=shift) for shift in (0, 1))
    for _ in range(3):
        assert torch.equal(still(images), moved(images))


def test_learner_weights_sure_samples_more(model):
    """By exp(τ − h), where the confidence did not fall."""
    images = double_stream(1)[0]
    adapter = dp.sentinel(model)
    step = adapter.state.make_step(images)
    expected = torch.exp(0.4 * math.log(CLASSES) - entropies(step.logits.detach()))
    torch.testing.assert_close(adapter.method.select.weights(step), expected, rtol=1e-9, atol=0)


class AllButFirst(Detector):
    """Takes the first sample for unknown."""

    def detect(self, images, network, good):
        with torch.no_grad():
            logits = network(images)
        known = torch.arange(len(images), device=images.device) > 0
        return Detection(known, (~known).to(logits.dtype), logits)


def test_detector_of_ones_own(model):
    dp.testing.check_component(AllButFirst(), model=build("wide_resnet"), images=batches(1)[0])
    adapter = sentinel_for(model, AllButFirst(), select=Known(), novelty="detector")
    for images in double_stream(3):
        adapter(images)
        assert adapter.last.selected.tolist() == [False] + [True] * 11
        assert adapter.last.novelty.tolist() == [1.0] + [0.0] * 11


def test_mistakes_are_explained(model):
    with pytest.raises(dp.errors.ConfigurationError, match="detector"):
        dp.tent(model, select=Known())(double_stream(1)[0])
    with pytest.raises(dp.errors.ConfigurationError, match="memory"):
        sentinel_for(model, memory=dp.memories.LatestImages(8))
    for wrong in ({"lr": -1.0}, {"threshold": 2.0}, {"momentum": math.nan}, {"repel": math.inf}):
        with pytest.raises(dp.errors.ConfigurationError, match=next(iter(wrong))):
            Sentinel(**wrong)
    with pytest.raises(dp.errors.ConfigurationError, match="member"):
        LogMean(("network", "neighbor"))
    with pytest.raises(dp.errors.ConfigurationError, match="shift"):
        LogMean(shift=-1)


@pytest.mark.parametrize("size", [1, 4, 16])
def test_small_batches_enter_running_statistics(size):
    """Of one layer by hand: they move by the share of the window that the batch fills.

    What is kept has the variance between batches too, which is none where a batch fills the window.
    """
    layer, alpha, window = nn.BatchNorm2d(3), 0.4, 8
    nn.init.uniform_(layer.running_mean)
    nn.init.uniform_(layer.running_var, 0.5, 2.0)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(3 * 64, CLASSES))
    rule = dp.statistics.WindowedBlend(alpha, window)
    adapter = dp.Adapter(model, scope=dp.scopes.nothing(), statistics=rule)
    share = min(1.0, size / window)
    mean, variance = layer.running_mean.clone(), layer.running_var.clone()
    for images in batches(4, size=size):
        between = share * (1 - share) * (images.mean((0, 2, 3)) - mean) ** 2
        mean = (1 - share) * mean + share * images.mean((0, 2, 3))
        variance = (1 - share) * variance + share * images.var((0, 2, 3), correction=0)
        offset = mean - layer.running_mean
        used = layer.running_mean + alpha * offset
        spread = alpha * variance + (1 - alpha) * layer.running_var + alpha * (1 - alpha) * offset**2
        normalized = (images - used.view(1, 3, 1, 1)) / (spread.view(1, 3, 1, 1) + layer.eps).sqrt()
        torch.testing.assert_close(adapter(images), model[2](normalized.flatten(1)), rtol=1e-4, atol=1e-5)
        variance = variance + between


# --- shares that change with depth ------------------------------------------------------------------------------------


def predict_by_hand(model, shares, images):
    """The logits of a model whose batch norms mix in these shares of the batch, one after another."""
    model = copy.deepcopy(model).eval()
    layers = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]

    def mix(alpha):
        def normalize(layer, inputs, _):
            (x,) = inputs
            mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
            offset = mean - layer.running_mean
            used = alpha * variance + (1 - alpha) * layer.running_var + alpha * (1 - alpha) * offset**2
            values = (x - (layer.running_mean + alpha * offset).view(1, -1, 1, 1)) / (
                used.view(1, -1, 1, 1) + layer.eps
            ) ** 0.5
            return values * layer.weight.view(1, -1, 1, 1) + layer.bias.view(1, -1, 1, 1)

        return normalize

    for layer, alpha in zip(layers, torch.linspace(*shares, len(layers), dtype=torch.double).tolist(), strict=True):
        layer.register_forward_hook(mix(alpha))
    with torch.no_grad():
        return model(images)


@pytest.mark.parametrize("detector_share", [None, 0.4, (0.6, 0.2)])
def test_growing_shares_by_hand(model, detector_share):
    """In the learner and the frozen network, and in the sentinel unless it has its own."""
    share, images = (0.1, 0.5), double_stream(1, size=128)[0]
    adapter = dp.sentinel(model, share=share, detector_share=detector_share, guard=(), shift=0)
    views = [predict_by_hand(model, share, view).log_softmax(1) for view in (images, images.flip(-1))]
    torch.testing.assert_close(adapter(images), sum(views) / 2, rtol=0, atol=1e-9)
    own = {None: share, 0.4: (0.4, 0.4)}.get(detector_share, detector_share)
    energy = -predict_by_hand(model, own, images.flip(-1)).logsumexp(1)
    torch.testing.assert_close(adapter.last.novelty, energy, rtol=0, atol=1e-9)


@pytest.mark.parametrize("layers", [1, 2, 5, 40])
def test_growing_shares_are_those_of_the_search(layers):
    rule = dp.statistics.WindowedBlend((0.1, 0.5))
    dp.network.Network(nn.Sequential(*(nn.BatchNorm2d(3) for _ in range(layers))), rule)
    assert [rule.alpha_for(index) for index in range(layers)] == sentinel_streams.PerLayer(0.1, 0.5, layers).shares


def rows_of_search(name, errors, areas, layers=1.0):
    places = [(images, kind) for images in ("cifar10", "cifar100") for kind in ("closed", "open")]
    for (images, kind), error in zip(places, errors, strict=True):
        row = {"set": images, "stream": kind, "rounds": 2, "choice": {"name": name, "lr": 0.1}}
        yield {"kind": "learner", "errors": {"lyfk": [99.0, error], "fk": [1.0, 1.0]}, **row}
        yield {"kind": "learner", "errors": {"lyfk": [1.0]}, **row, "rounds": 1}
    for images, area in zip(("cifar10", "cifar100"), areas, strict=False):
        row = {"set": images, "stream": "open", "rounds": 2, "choice": {"name": name, "layers": layers}}
        yield {"kind": "sentinel", "auroc_energy": [1.0, area], **row}


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ((7.9, 9.0, 30.0, 32.0), "grown"),
        ((7.7, 9.19, 30.04, 32.0), "grown"),
        ((7.7, 9.21, 30.0, 32.0), "default"),  # worse on an open stream
        ((7.7, 9.0, 30.06, 32.0), "default"),  # worse on a closed one
        ((7.96, 9.0, 30.0, 32.0), "default"),  # too little better
    ],
)
def test_learner_is_chosen_by_errors(errors, expected):
    grown = [*rows_of_search("grown", errors, ())]
    default = [*rows_of_search("default", (8.1, 9.0, 30.0, 32.0), ())]
    assert sentinel_choose_learner.choose_learner([*default, *grown]) == {"name": expected, "lr": 0.1}
    assert sentinel_choose_learner.choose_learner(grown) == {}


@pytest.mark.parametrize(
    ("areas", "expected"),
    [((97.8, 96.7), 0.5), ((98.4, 96.1), 0.5), ((97.8, 96.5), 1.0), ((98.0,), 1.0)],  # the last: not on both sets
)
def test_sentinel_learns_the_fewest_layers_that_do(areas, expected):
    errors = (8.0, 9.0, 30.0, 32.0)
    fewer = [*rows_of_search("late", errors, areas, 0.5), *rows_of_search("later", errors, (97.0, 96.0), 0.2)]
    default = [*rows_of_search("default", errors, (98.0, 97.0))]
    assert sentinel_choose_learner.choose_layers([*fewer, *default]) == expected
    assert sentinel_choose_learner.choose_layers(fewer) == 1.0


def test_defaults_are_those_of_the_search():
    rows = [
        json.loads(line)
        for number in range(14, 19)
        for line in (SEARCH / f"research-{number}.jsonl").read_text().splitlines()
    ]
    found = sentinel_choose_learner.choose_learner(rows)
    defaults = {name: each.default for name, each in inspect.signature(dp.sentinel).parameters.items()}
    assert {"lr": found["lr"], "eps": found["eps"], "pull": found["pull"]} == {
        name: defaults[name] for name in ("lr", "eps", "pull")
    }
    assert sentinel_streams.CONVOLUTIONS[found["scope"]] == defaults["convolutions"]
    assert tuple(found["alpha"]) == defaults["share"]
    assert sentinel_choose_learner.choose_layers(rows) == defaults["detector_layers"]


def test_equal_shares_are_bit_equal_to_the_number(model):
    adapters = [
        dp.sentinel(model, share=share, detector_share=own) for share, own in ((0.3, 0.2), ((0.3, 0.3), (0.2, 0.2)))
    ]
    for images in double_stream():
        ours, theirs = (adapter(images) for adapter in adapters)
        assert torch.equal(ours, theirs)
        assert torch.equal(adapters[0].last.novelty, adapters[1].last.novelty)
    states = [{name: value for name, value in state_of(one).items() if name != "meta"} for one in adapters]
    assert same_state(*states)


def test_growing_shares_are_reset_saved_and_loaded(model, tmp_path):
    make, stream = (lambda: dp.sentinel(model, share=(0.1, 0.5))), double_stream(4)
    adapter = make()
    answers = [adapter(images) for images in stream]
    adapter.reset()
    assert all(torch.equal(adapter(images), answer) for images, answer in zip(stream[:2], answers[:2], strict=True))
    adapter.save(tmp_path / "state.safetensors")
    resumed = make()
    resumed.load(tmp_path / "state.safetensors")
    assert all(torch.equal(resumed(images), answer) for images, answer in zip(stream[2:], answers[2:], strict=True))


class Operations(TorchDispatchMode):
    """Logs every operation with its shapes."""

    def __init__(self):
        super().__init__()
        self.log = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.log.append((str(function), [x.shape for x in args if isinstance(x, torch.Tensor)]))
        return function(*args, **(kwargs or {}))


def test_growing_shares_change_no_operation_of_a_static_step(model):
    logs = []
    for share in (0.3, (0.1, 0.5)):
        adapter = dp.sentinel(model, share=share)
        engine, stream = StaticEngine(adapter.method, adapter.state), double_stream(3)
        for images in stream[:2]:
            engine.run(images)
        with Operations() as operations:
            engine.run(stream[2])
        logs.append(operations.log)
    assert logs[0] == logs[1]
    assert len(logs[0]) > 100


@pytest.mark.parametrize("name", ["share", "detector_share"])
@pytest.mark.parametrize(
    "wrong", [-0.1, 1.1, math.nan, "0.3", True, (0.1, 1.5), (0.1,), (0.1, 0.2, 0.3), (), ("0.1", 0.5), {0.1, 0.5}]
)
def test_wrong_shares_are_refused(model, name, wrong):
    with pytest.raises(dp.errors.ConfigurationError, match=f"^Expected `{name}` to be in 0..1, or a pair .*, but got "):
        dp.sentinel(model, **{name: wrong})


# --- suites -----------------------------------------------------------------------------------------------------------


def test_search_sees_only_held_out_corruptions():
    specs = {
        name: {spec for table in make().tables for entry in table.entries for spec in entry.specs}
        for name, make in SENTINEL_SUITES.items()
    }
    assert {spec.domains for spec in specs["sentinel_search"]} == {HELD_OUT}
    assert {spec.domains for name in ("sentinel", "sentinel_streams") for spec in specs[name]} == {CORRUPTIONS}
    proof = specs["sentinel"] | specs["sentinel_streams"]
    (setting,) = {spec.options for spec in proof if spec.method == "sentinel"}
    assert dict(setting) == {"novelty": "own"}, "one setting everywhere"


def test_every_variant_of_the_search_can_be_built_and_differs(model):
    table = SENTINEL_SUITES["sentinel_search"]().tables[0]
    methods = {}
    for entry in table.entries:
        (spec,) = entry.specs
        if spec.method == "sentinel":
            options = {name: value for name, value in spec.options if name != "novelty"}
            adapter = build_method("sentinel", model, {**options, "guard": ()})
            methods[entry.row] = str(sorted(adapter.method.describe().items()))
    defaults = dp.sentinel(model, guard=()).method.describe()
    assert methods["sentinel"] == str(sorted(defaults.items()))
    assert len(set(methods.values())) == len(methods)


# --- many small buffers -----------------------------------------------------------------------------------------------


class Counters(dp.after.After):
    """Buffers of several shapes and types, all replaced in every step."""

    def __init__(self):
        super().__init__()
        shapes = [(), (3,), (2, 5), (200, 100)]
        for number, shape in enumerate(shapes):
            self.register_buffer(f"real_{number}", torch.zeros(shape))
            self.register_buffer(f"whole_{number}", torch.zeros(shape, dtype=torch.int64))

    def after_step(self, step, state):
        for name, buffer in list(self.named_buffers()):
            setattr(self, name, buffer + 1)


def test_buffers_that_are_kept_together_are_all_kept_or_all_undone():
    """As if each had its own condition, whatever its size and type."""
    adapter = dp.tent(build("wide_resnet"), after=Counters(), guard=())
    stream = batches(3)
    counters = adapter.method.after[-1]
    homes = {name: buffer.data_ptr() for name, buffer in counters.named_buffers()}
    for images, expected in ((stream[0], 1), (stream[1] * math.nan, 1), (stream[1], 2), (stream[2], 3)):
        adapter(images)
        for name, buffer in counters.named_buffers():
            assert torch.equal(buffer, torch.full_like(buffer, expected)), name
            assert buffer.data_ptr() == homes[name], f"{name} has moved, and a captured step would miss it"


@pytest.mark.parametrize("types", [(torch.float64,), (torch.float32, torch.float64)])
def test_gradients_that_wait_are_summed_whatever_their_types(types):
    """A step every third batch, of the mean of three gradients: SGD by hand."""
    torch.manual_seed(0)
    layers = [nn.LayerNorm(4, dtype=kind) for kind in types]
    model = CastingLayers(layers)
    adapter = dp.tent(model, lr=0.1, accumulate=3, optimizer=torch.optim.SGD, mean_entropy=0.0, guard=())
    start = [parameter.detach().clone() for layer in layers for parameter in layer.parameters()]
    stream = [torch.randn(6, 4, dtype=torch.float64) for _ in range(3)]
    total = [torch.zeros_like(parameter) for parameter in start]
    for images in stream:
        loss = torch.distributions.Categorical(logits=model(images)).entropy().mean()
        gradients = torch.autograd.grad(loss, [p for layer in layers for p in layer.parameters()])
        total = [sum_ + gradient for sum_, gradient in zip(total, gradients, strict=True)]
        adapter(images)
    ours = list(adapter.state.trainable)
    for parameter, first, gradient in zip(ours, start, total, strict=True):
        torch.testing.assert_close(parameter.detach(), first - 0.1 * gradient / 3, rtol=1e-5, atol=1e-7)
    assert all(not waiting.any() for waiting in adapter.state.accumulated_grads)


@pytest.mark.parametrize("channels_last", [False, True])
def test_batch_that_is_enough_clears_the_gradients_that_wait(channels_last):
    """Small batches wait for 64 images; a batch of 64 takes a step with all of them, unless it is bad."""
    adapter = dp.sentinel(build("wide_resnet"), channels_last=channels_last, guard=())
    small, large = torch.rand(16, 3, 8, 8), torch.rand(64, 3, 8, 8)
    adapter(small)
    waiting = [each.clone() for each in adapter.state.accumulated_grads]
    assert any(each.ndim == 4 and each.any() for each in waiting)
    adapter(torch.full_like(large, torch.nan))
    assert all(map(torch.equal, adapter.state.accumulated_grads, waiting))
    assert int(adapter.state.num_steps) == 0
    adapter(large)
    assert int(adapter.state.num_steps) == 1
    assert int(adapter.state.accumulated_batches) == 0
    assert not any(each.any() for each in adapter.state.accumulated_grads)


class CastingLayers(nn.Module):
    """Layers of several types after each other, then classes."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.classifier = nn.Linear(4, 3, dtype=torch.float64)

    def forward(self, images):
        for layer in self.layers:
            images = layer(images.to(layer.weight.dtype))
        return self.classifier(images.double())


# --- side stream ------------------------------------------------------------------------------------------------------


class PretendStream:
    """Logs what a CUDA stream would be asked to do, for a machine without one."""

    device = torch.device("cpu")

    def __init__(self, name, log):
        self.name, self.log = name, log

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def side_stream(monkeypatch):
    """A stream whose work is done at once; the log says in which order what was asked for."""
    log = []
    current = [PretendStream("main", log)]

    class Using:
        def __init__(self, stream):
            self.stream = stream

        def __enter__(self):
            current.append(self.stream)

        def __exit__(self, *_):
            current.pop()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", Using)
    side = PretendStream("side", log)
    side.current = current
    return side


@pytest.mark.parametrize("other", ["detector", "source_mirror"])
@pytest.mark.parametrize("momentum", [1.0, 0.9])
def test_passes_on_a_side_stream_are_waited_for(model, side_stream, momentum, other):
    """Same results, the passes without gradients beside the others, and nothing reads or changes too early."""
    detector = {"lr": 0.1, "threshold": 0.75, "momentum": momentum, "images_per_step": 1}
    plain, beside = (
        sentinel_for(model, Sentinel(**detector), output=LogMean(("network", "mirror", "source", other)))
        for _ in range(2)
    )
    engine, log = StaticEngine(beside.method, beside.state), side_stream.log
    for name, network in (("frozen", beside.state.source), ("sentinel", beside.state.detector)):
        network.register_forward_hook(lambda *_, name=name: log.append(f"{name} on {side_stream.current[-1].name}"))
    beside.state.network.register_forward_hook(
        lambda _, __, logits: log.append(
            f"{'learner' if logits.requires_grad else 'mirror'} on {side_stream.current[-1].name}"
        )
    )
    beside.state.optimizer.register_step_pre_hook(lambda *_: log.append("step"))
    take_step = beside.method.detector._step

    def learn(*arguments):
        log.append(f"sentinel learns on {side_stream.current[-1].name}")
        take_step(*arguments)

    vars(beside.method.detector)["_step"] = learn
    for images in double_stream():
        for static in engine._steps.values():
            static.side_stream = side_stream
        log.clear()
        torch.testing.assert_close(engine.run(images).logits, plain(images), rtol=0, atol=1e-12)
    begins, ends = ["side waits for main"], ["main waits for side"]
    learns = [*begins, "sentinel learns on side"]
    early, late = [], []  # the frozen network's pass over mirror images: as soon as nothing waits for the side stream
    if other == "source_mirror":
        early, late = ([*begins, "frozen on side"], []) if momentum == 1 else ([], ["frozen on side"])
    if momentum == 1:
        start = [*begins, "frozen on side", "sentinel on main", *ends, *(early or ends), *learns, "learner on main"]
    else:
        start = ["sentinel on main", "sentinel on main", *learns, *begins, "frozen on side", "learner on main", *ends]
    assert log == [*start, *begins, "mirror on side", *late, *ends, *ends, "step"]


def test_what_runs_beside_keeps_what_it_reads(side_stream):
    """Memory that is given back before the wait could be overwritten while it is read."""
    read = weakref.WeakSet()

    def start():
        images = torch.ones(3)
        read.add(images)
        return run_beside(side_stream, lambda: images + 1)

    result, wait = start()
    assert len(read) == 1
    wait()
    del wait
    assert len(read) == 0
    assert torch.equal(result, torch.full((3,), 2.0))
