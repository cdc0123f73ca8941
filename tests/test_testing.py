"""Every component that the package ships passes its own check, and broken ones are caught."""

import importlib
import inspect

import pytest
import torch

import driftproof as dp
from cases import batches, shifted
from driftproof import testing
from driftproof.after import After, PullToSource, ResetEvery, ResetWhen, StochasticRestore
from driftproof.components import Component
from driftproof.detectors import Detector
from driftproof.errors import ComponentError, ConfigurationError, ModelError
from driftproof.gradients import Clipped, Gradient, Plain, SharpnessAware
from driftproof.losses import GCE, Conjugate, Consistency, Entropy, FollowTeacher, Loss, SelfWeightedEntropy
from driftproof.memories import CSTU, HUS, RBM, ImageBank, LatestImages, Memory
from driftproof.outputs import (
    AfterUpdate,
    BeforeUpdate,
    Ensemble,
    MeanProbability,
    MultiScale,
    Output,
    RandomViews,
    Teacher,
    TeacherEnsemble,
)
from driftproof.regularizers import Fisher, NearestPrototypes, Regularizer, ShiftAgnosticPenalty
from driftproof.selection import IgnorePadding, SampleWeights, Selection
from driftproof.statistics import TTN, Auto, Batch, Blend, Running, Source, Statistics
from driftproof.testing import check_component
from networks import GroupNormNet

MODULES = (
    "after",
    "detectors",
    "gradients",
    "losses",
    "memories",
    "outputs",
    "regularizers",
    "selection",
    "statistics",
)
BASES = (After, Detector, Gradient, ImageBank, Loss, Memory, Output, Regularizer, Selection, Statistics)
FISHER = Fisher(samples=4, batch_size=4)
VIEWS = {"views": RandomViews(2, augment=shifted), "scales": MultiScale((0.5, 1.0))}

SHIPPED = [
    PullToSource(),
    ResetEvery(2),
    ResetWhen(threshold=1.5),
    StochasticRestore(0.1),
    dp.detectors.Sentinel(lr=0.1, threshold=0.9, pull=0.01, min_separation=2.75, images_per_step=12),
    Clipped(0.1, SharpnessAware()),
    Plain(),
    SharpnessAware(),
    Conjugate(1.0),
    Consistency(symmetric=True),
    Entropy(),
    GCE(),
    dp.losses.ViewEntropy(2, augment=shifted),
    LatestImages(12),
    dp.outputs.AdjustedTemplates(2),
    dp.outputs.LogMean(("network", "mirror", "source", "source_mirror", "teacher", "detector")),
    FollowTeacher(),
    SelfWeightedEntropy(),
    CSTU(6, update_every=8, augment=shifted),
    HUS(6, confidence=0.25, update_every=8),
    RBM(6, entropy_share=1.0),
    AfterUpdate(),
    dp.outputs.AveragedViews(2, augment=shifted),
    BeforeUpdate(),
    dp.outputs.ConfidenceEnsemble(),
    Ensemble(),
    dp.outputs.Episodic(),
    dp.outputs.LaplacianAdjusted(iterations=5),
    MeanProbability(2, augment=shifted),
    Teacher(),
    TeacherEnsemble(**VIEWS),
    FISHER,
    FISHER + ShiftAgnosticPenalty(samples=4, batch_size=4, augment=shifted),
    NearestPrototypes(epochs=1, dimensions=4, batch_size=4, augment=shifted),
    ShiftAgnosticPenalty(samples=4, batch_size=4, augment=shifted),
    dp.ConfidenceAbove(0.3, network="source"),
    dp.ConfidenceDifference(),
    dp.EntropyBelow(1.55) & dp.NonRedundant(0.99),
    dp.EntropyBelow(1.55),
    dp.EntropyWeight(),
    dp.NonRedundant(0.99),
    IgnorePadding(),
    Batch(of=dp.ConfidenceAbove(0.25, network="source")),
    Blend(0.5, momentum=0.1, start="source"),
    Auto(),
    Running(0.2),
    Source(),
    TTN(momentum=0.1, prior_batches=1, epochs=1, batch_size=4, augment=shifted),
    dp.after.AdaptiveReset(start=0.95),
    dp.after.MomentumFilter(),
    dp.losses.COME(),
    dp.losses.SoftLikelihoodRatio(),
    dp.losses.SoftLikelihoodRatio() + dp.losses.COME(),
    dp.losses.ViewConsistency(dp.augment.photometric),
    dp.outputs.PriorCorrected(),
    dp.regularizers.MovingAnchor(),
    dp.selection.CertainAndDiverse(),
    dp.selection.EntropyFilters(1.55),
    dp.selection.LabelProbabilityDrop(-1.0, augment=shifted),
    dp.selection.Known(),
    dp.statistics.WindowedBlend(0.3, window=12),
    dp.selection.Split("entropy", window=10, min_separation=0.0),
    dp.selection.Split("entropy", soft=True, window=10, min_separation=0.0),
    dp.selection.Split("entropy", "otsu", window=12),
]

PER_IMAGE = (
    *(dp.losses.ViewEntropy, dp.outputs.AdjustedTemplates, dp.outputs.AveragedViews),
    *(dp.outputs.LaplacianAdjusted, NearestPrototypes),
)
"""What refuses a network with a prediction for each pixel."""


def test_list_of_shipped_components_is_complete():
    modules = [importlib.import_module(f"driftproof.{name}") for name in MODULES]
    public = [getattr(module, name) for module in modules for name in module.__all__]
    classes = {thing for thing in public if inspect.isclass(thing) and issubclass(thing, Component)}
    assert classes - set(BASES) == {type(component) for component in SHIPPED}


def test_every_module_with_components_is_listed():
    homes = {name for name in dp.__all__ if inspect.ismodule(getattr(dp, name))}
    own = {name for name in homes if any(base.__module__.split(".")[1] == name for base in BASES)}
    assert own == set(MODULES)


@pytest.mark.parametrize("component", SHIPPED, ids=lambda component: type(component).__name__)
def test_shipped_component_passes(component, monkeypatch):
    """With rank-4 logits, where it takes them: rank-2 logits it meets in the contracts of the methods."""
    per_image, per_pixel = testing._small_networks()
    network = per_image if isinstance(component, PER_IMAGE) else per_pixel
    monkeypatch.setattr(testing, "_small_networks", lambda: [network])
    check_component(component)


@pytest.mark.slow
@pytest.mark.parametrize("component", SHIPPED, ids=lambda component: type(component).__name__)
def test_shipped_component_passes_with_either_rank(component):
    check_component(component)


def test_own_model_and_images_are_used():
    seen = []

    class Recording(Entropy):
        def per_sample(self, step):
            seen.append((type(step.network.model), step.images.shape))
            return super().per_sample(step)

    images = batches(1, size=3)[0]
    check_component(Recording(), model=GroupNormNet(), images=images)
    assert set(seen) == {(GroupNormNet, images.shape)}


def test_check_leaves_the_component_and_the_random_numbers_alone():
    component, before = dp.NonRedundant(0.99), torch.get_rng_state()
    check_component(component)
    assert component.average is None
    assert torch.equal(torch.get_rng_state(), before)


# --- broken components ------------------------------------------------------------------------------------------------


class WrongShape(Loss):
    def per_sample(self, step):
        return super_entropy(step).unsqueeze(1)


class WrongShapeOfPixels(Loss):
    def per_sample(self, step):
        return super_entropy(step).flatten(1).mean(1) if step.logits.ndim > 2 else super_entropy(step)


def super_entropy(step):
    return Entropy().per_sample(step)


class NoTensor(Loss):
    def per_sample(self, step):
        return 1.0


class Detached(Loss):
    def per_sample(self, step):
        return super_entropy(step).detach()


class NotFinite(Loss):
    def per_sample(self, step):
        return super_entropy(step) + torch.inf


class Negative(Selection):
    def weights(self, step):
        return -torch.ones_like(step.weights)


class NegativeRepel(Selection):
    def weights(self, step):
        return SampleWeights(torch.ones_like(step.weights), -torch.ones_like(step.weights))


class Integers(Selection):
    def weights(self, step):
        return torch.ones_like(step.weights, dtype=torch.int64)


class WrongMask(Selection):
    def weights(self, step):
        return torch.ones_like(step.weights)

    def valid_mask(self, step):
        return torch.ones(1, dtype=torch.bool)


class NotReduced(Regularizer):
    def penalty(self, step):
        return torch.zeros(2)


class NumberPenalty(Regularizer):
    def penalty(self, step):
        return 0.0


class TooFew(Gradient):
    def compute(self, evaluate, parameters):
        return evaluate()[1:]


class Flattened(Gradient):
    def compute(self, evaluate, parameters):
        return tuple(gradient.flatten() for gradient in evaluate())


class Growing(Memory):
    def __init__(self):
        super().__init__()
        self.register_buffer("bank", None)

    def reset_state(self, network, parameters):
        self.bank = None

    def update(self, step):
        self.bank = step.images if self.bank is None else torch.cat([self.bank, step.images])

    def images(self):
        return self.bank


class OneColumn(Output):
    def predict(self, step):
        return step.logits[:, :1]


class NotFiniteParameters(After):
    def after_step(self, step, state):
        step.parameters[0].fill_(torch.nan)


class Counting(Loss):
    """The base of losses that count batches, in ways of which all but this one are broken."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def reset_state(self, network, parameters):
        self.count = torch.zeros_like(self.count)

    def per_sample(self, step):
        return super_entropy(step) * (1 + self.count)

    def on_batch(self, step):
        self.count = self.count + 1


class WrittenInto(Counting):
    def on_batch(self, step):
        self.count += 1


class WrittenIntoUnseen(Counting):
    def on_batch(self, step):
        self.count.data.add_(1)


class NotReset(Counting):
    def reset_state(self, network, parameters):
        pass


class InAnAttribute(Counting):
    """A tensor that is no buffer: it changes with a bad batch, and is not saved."""

    def __init__(self):
        super().__init__()
        del self.count
        self.count = torch.zeros(())


class InAnAttributeWithCare(InAnAttribute):
    """As above, but unchanged by bad batches: only a saved state tells."""

    dynamic_reason = "it looks at the images"

    def on_batch(self, step):
        if step.images.isfinite().all():
            self.count = self.count + 1


class NotSeeded(Loss):
    def per_sample(self, step):
        return super_entropy(step) * torch.rand_like(step.weights)


class Unsaved(Loss):
    """What it prepares is no buffer."""

    scale = None

    @property
    def prepared(self):
        return self.scale is not None

    def prepare(self, context):
        self.scale = torch.ones(())

    def per_sample(self, step):
        return super_entropy(step) * self.scale


class RegisteredLate(Counting):
    def __init__(self):
        Loss.__init__(self)

    def reset_state(self, network, parameters):
        if hasattr(self, "count"):
            del self.count

    def per_sample(self, step):
        return super_entropy(step)

    def on_batch(self, step):
        self.register_buffer("count", torch.ones(()))


class CachedByAddress(Loss):
    """A cache that mistakes another batch at the same address for the one before."""

    def __init__(self):
        super().__init__()
        self.cached = (0, None)

    def per_sample(self, step):
        if self.cached[0] != step.images.data_ptr():
            self.cached = (step.images.data_ptr(), step.images.mean())
        return super_entropy(step) * self.cached[1]

    def __repr__(self):
        return "CachedByAddress()"


class Branching(Loss):
    def per_sample(self, step):
        return super_entropy(step) * (2.0 if step.logits.max() > 0 else 1.0)


class Indexing(Selection):
    def weights(self, step):
        weights = torch.ones_like(step.weights)
        return weights * weights[weights > 0].mean()


class Unstable(Entropy):
    def __repr__(self):
        return f"Unstable({id(self)})"


class Renamed(Entropy):
    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = scale

    def on_batch(self, step):
        self.scale = self.scale / 2


class Refusing(Entropy):
    def per_sample(self, step):
        raise ModelError("Expected another model.")


BROKEN = {
    WrongShape: r"per_sample to return shape \(8,\), but got \(8, 1\)",
    WrongShapeOfPixels: r"per_sample to return shape \(8, 8, 8\), but got \(8,\)",
    NoTensor: "per_sample to return a tensor, but got float",
    Detached: "per_sample to return a loss with a graph",
    NotFinite: "per_sample to return finite numbers",
    Negative: "weights to return weights of at least 0",
    NegativeRepel: "weights to return weights of at least 0",
    Integers: "weights to return floats on cpu, but got torch.int64",
    WrongMask: r"valid_mask to return shape \(8,\), but got \(1,\)",
    NotReduced: r"penalty to return shape \(\), but got \(2,\)",
    NumberPenalty: "penalty to return a tensor, but got float",
    TooFew: "compute to return 6 tensors, but got 5",
    Flattened: r"compute to return shape \(8, 3, 3, 3\)",
    Growing: r"images to return shape \(8, 3, 8, 8\), but got \(16, 3, 8, 8\)",
    OneColumn: r"predict to return shape \(8, 5\), but got \(8, 1\)",
    NotFiniteParameters: "finite numbers from finite images, but got NaN or Inf in the gradient or the updated",
    WrittenInto: "replace its buffer `count`, but it wrote into it",
    WrittenIntoUnseen: "ignore a batch of NaN, but its state changed. Keep all state in buffers",
    NotReset: r"do the same after `reset\(\)`, but results differ. Keep all state in buffers",
    InAnAttribute: "ignore a batch of NaN, but later results differ. Keep all state in buffers",
    InAnAttributeWithCare: "continue from a saved state, but results differ. Keep all state in buffers",
    NotSeeded: r"after `reset\(\)`.* draw from `step.generator`",
    Unsaved: "continue from a saved state, but: Expected `adapter.prepare",
    RegisteredLate: "Keep all state in buffers of `__init__`",
    # Which batches are at the same address changes: the cached one may be the one with NaN.
    CachedByAddress: "a static step with CachedByAddress to equal the eager one|CachedByAddress.* (results differ|NaN)",
    Branching: "per_sample to stay on the device, but it uses aten._local_scalar_dense.*`torch.where`",
    Indexing: "weights to stay on the device, but it uses aten.index.*`dynamic_reason`",
    Unstable: "a copy of Unstable to have the same `repr`",
    Renamed: r"keep its `repr`, but it became Renamed\(scale=0.0625\)",
    Refusing: "work with the model, but Expected another model",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_broken_component_is_caught(broken):
    with pytest.raises(ComponentError, match=BROKEN[broken]) as caught:
        check_component(broken())
    assert broken.__name__ in str(caught.value)


def test_careful_counterparts_pass():
    check_component(Counting())

    class Declared(Branching):
        dynamic_reason = "it branches on the logits"

    check_component(Declared())


@pytest.mark.parametrize("thing", [Entropy, torch.nn.ReLU(), None])
def test_what_is_no_component_is_refused(thing):
    with pytest.raises(ConfigurationError, match="instance of a component"):
        check_component(thing)
