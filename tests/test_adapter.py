"""The adapter: accumulation, options, models that fail, models with odd habits, preparation and printing."""

import copy
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn

import driftproof as dp
from cases import adapter_for, batches, same_but_bookkeeping, same_state, shifted, source_data, state_of
from networks import CLASSES, DataclassNet, DictNet, GroupNormNet, TupleNet, WideResNet, build, randomize


@pytest.fixture
def model():
    return build("wide_resnet")


def compose(model, **choices):
    defaults = {
        "scope": dp.scopes.norm_affine(),
        "statistics": dp.statistics.Batch(),
        "loss": dp.losses.Entropy(),
        "optimizer": partial(torch.optim.SGD, lr=0.1),
    }
    return dp.Adapter(model, **(defaults | choices))


# --- accumulation -----------------------------------------------------------------------------------------------------


def test_accumulation_takes_one_step_with_the_mean_gradient(model):
    adapter = compose(model, accumulate=3)
    student = copy.deepcopy(model).train()
    affine = [p for m in student.modules() if isinstance(m, nn.BatchNorm2d) for p in (m.weight, m.bias)]
    gradients = []
    for index, images in enumerate(batches(6)):
        logits = student(images)
        loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        gradients.append(torch.autograd.grad(loss, affine))
        adapter(images)
        assert adapter.last.stepped == (index % 3 == 2)
        if len(gradients) == 3:
            with torch.no_grad():
                for parameter, *each in zip(affine, *gradients, strict=True):
                    parameter.sub_(0.1 * sum(each) / 3)
            gradients = []
            for parameter, now in zip(affine, adapter.trainable_parameters.values(), strict=True):
                torch.testing.assert_close(now, parameter, rtol=1e-4, atol=1e-6)


def test_accumulation_survives_saving_and_bad_batches(model, tmp_path):
    stream = batches(6)
    make = partial(compose, model, accumulate=3, guard=())  # guards count skipped batches too
    expected = state_of(run_stream(make(), stream))
    adapter = make()
    adapter(stream[0])
    adapter(stream[1] * float("nan"))
    assert adapter.last.skipped
    adapter(stream[1]), adapter.save(tmp_path / "half")
    other = make().load(tmp_path / "half")
    run_stream(other, stream[2:])
    assert same_state(expected, state_of(other))


def run_stream(adapter, stream):
    for images in stream:
        adapter(images)
    return adapter


# --- options ----------------------------------------------------------------------------------------------------------


class Half(dp.selection.Selection):
    def weights(self, step):
        weights = torch.zeros_like(step.weights)
        weights[::2] = 1
        return weights


def test_average_over_batch_divides_by_its_size(model):
    images = batches(1)[0]
    over_selected = compose(model, select=Half(), mean_entropy=0.0)
    over_batch = compose(model, select=Half(), mean_entropy=0.0, average_over="batch")
    over_selected(images), over_batch(images)
    assert over_batch.last.loss == pytest.approx(over_selected.last.loss / 2)


def test_mean_entropy_over_selected_averages_selected_samples(model):
    images = batches(1)[0]
    with torch.no_grad():
        p = copy.deepcopy(model).train()(images).softmax(1)
    sample = float(-(p * p.log()).sum(1)[::2].mean())
    for over, mean in (("batch", p.mean(0)), ("selected", p[::2].mean(0))):
        adapter = compose(model, select=Half(), mean_entropy=0.7, mean_entropy_over=over)
        adapter(images)
        assert adapter.last.loss == pytest.approx(sample + 0.7 * float((mean * mean.log()).sum()), rel=1e-4)


@pytest.mark.parametrize("bias", [0.0, 2.0])
def test_mean_entropy_over_auto_takes_the_whole_batch_where_predictions_concentrate(model, bias):
    images, losses = batches(1)[0], {}
    options = {"scope": dp.scopes.everything(), "optimizer": partial(torch.optim.SGD, lr=1e-9), "mean_entropy": 0.7}
    for over in ("auto", "batch", "selected"):
        adapter = compose(model, select=Half(), mean_entropy_over=over, **options)
        adapter(images)
        with torch.no_grad():
            list(adapter.network.model.parameters())[-1][0] += bias  # the classifier's: it prefers the first class
        adapter(images)
        losses[over] = adapter.last.loss
    assert losses["batch"] != pytest.approx(losses["selected"], rel=1e-3)
    assert losses["auto"] == pytest.approx(losses["batch" if bias else "selected"], rel=1e-5)


def test_mean_entropy_defaults_to_the_value_of_the_selection(model):
    crowd = dp.ConfidenceDifference()
    assert dp.tent(model).method.mean_entropy == 0.0
    assert dp.tent(model, select=crowd).method.mean_entropy == 0.5
    assert dp.tent(model, select=crowd, mean_entropy=0.2).method.mean_entropy == 0.2
    assert dp.tent(model, select=dp.EntropyBelow()).method.mean_entropy == 0.0
    assert dp.swr(model).method.mean_entropy == 0.5
    assert dp.eata(model, select=crowd).method.mean_entropy == 0.5


def test_output_after_equals_prediction_of_the_updated_network(model):
    before, after = compose(model), compose(model, output="after")
    first, second = batches(2)
    before(first)
    answer = after(first)
    with torch.no_grad():
        torch.testing.assert_close(answer, before.network(first))
    assert not answer.requires_grad
    assert torch.equal(state_of(before)["model.norm.weight"], state_of(after)["model.norm.weight"])
    after(second * float("nan"))
    assert after.last.skipped


def test_novelty_is_positive_zero_where_confidence_did_not_fall(model):
    adapter = dp.tent(model, select=dp.ConfidenceDifference(), novelty="confidence_difference")
    logits = adapter(batches(1)[0])
    for novelty in (adapter.last.novelty, dp.scores.confidence_difference(logits, logits)):
        assert not novelty.any()
        assert not novelty.signbit().any(), "printed as 0, not as −0"


def test_novelty_can_be_any_function_of_the_step(model):
    adapter = dp.tent(model, novelty=lambda step: -step.confidence_change)
    for images in batches(3):
        adapter(images)
    assert adapter.last.novelty.abs().max() > 0, "plain TENT, scored against the frozen model"


@pytest.mark.parametrize(
    "choices",
    [
        {"accumulate": 0},
        {"average_over": "everything"},
        {"mean_entropy_over": "nothing"},
        {"output": "during"},
        {"loss": None},
        {"optimizer": None},
    ],
)
def test_invalid_option_raises(model, choices):
    with pytest.raises(dp.errors.ConfigurationError, match="Expected"):
        compose(model, **choices)


def test_one_component_serves_two_adapters(model):
    select = dp.EntropyBelow(2.0) & dp.NonRedundant(0.99)
    first, second = compose(model, select=select), compose(model, select=select)
    first(batches(1)[0])
    averages = [list(each.components)[1].average for each in (first.select, second.select, select)]
    assert averages[0] is not None
    assert averages[1] is averages[2] is None


def test_frozen_and_adapting_network_share_parameters_that_do_not_train(model):
    adapter = dp.tent(model)
    ours = {parameter.data_ptr() for parameter in adapter.network.parameters()}
    theirs = {parameter.data_ptr() for parameter in adapter.source.parameters()}
    assert len(theirs - ours) == len(adapter.trainable_parameters)
    assert not {p.data_ptr() for p in adapter.trainable_parameters.values()} & theirs


# --- bad models and bad steps -----------------------------------------------------------------------------------------


class NanOnBright(WideResNet):
    """Returns NaN when its input is bright."""

    def forward(self, x):
        logits = super().forward(x)
        return logits * torch.where(x.mean() > 5, torch.nan, 1.0)


@pytest.mark.parametrize("case", ["bn_adapt", "tent", "tent+crowd", "eata", "swr+crowd", "cotta"])
def test_nan_logits_are_skipped_and_leave_the_state_unchanged(case):
    adapter = adapter_for(case, randomize(NanOnBright()))
    first, second = batches(2)
    adapter(first)
    before = state_of(adapter)
    adapter(first + 5.2)  # brighter, but no image is far outside the stream
    assert adapter.last.skipped == "NaN or Inf in the model's logits"
    assert adapter.last.kept == 0
    assert not adapter.last.quarantined.any()
    assert same_but_bookkeeping(before, state_of(adapter))
    assert adapter(second).isfinite().all()
    assert adapter.last.skipped is None


@pytest.mark.parametrize("number", [1, 2, 5])
def test_loss_is_the_mean_over_selected_samples(number):
    class TheFirst(dp.selection.Selection):
        def weights(self, step):
            return (torch.arange(len(step.weights)) < number).to(step.weights.dtype)

    logits, record = dp.tent(build("wide_resnet"), select=TheFirst()).step(batches(1)[0])
    assert record.loss == pytest.approx(float(dp.scores.entropy(logits)[:number].mean()), rel=1e-5)


def test_gradients_that_the_caller_left_are_ignored():
    adapters = [dp.tent(build("wide_resnet"), lr=1e-2) for _ in range(2)]
    for images in batches(3):
        for parameter in adapters[0].trainable_parameters.values():
            parameter.grad = torch.ones_like(parameter)
        assert torch.equal(*(adapter(images) for adapter in adapters))
    assert same_state(*map(state_of, adapters))
    assert all(parameter.grad is None for parameter in adapters[0].parameters())


@pytest.mark.parametrize("make", [partial(torch.optim.SGD, momentum=0.9), torch.optim.Adam, torch.optim.RMSprop])
def test_infinite_learning_rate_is_undone(model, make):
    adapter = dp.tent(model, lr=1e-3, optimizer=make)
    first, second = batches(2)
    for explode_first in (True, False):
        adapter.reset()
        if not explode_first:
            adapter(first)
        before = state_of(adapter)
        adapter.optimizer.param_groups[0]["lr"] = float("inf")
        adapter(first)
        assert adapter.last.skipped == "NaN or Inf in the gradient or the updated parameters"
        assert not adapter.last.stepped
        adapter.optimizer.param_groups[0]["lr"] = 1e-3
        assert same_but_bookkeeping(before, state_of(adapter))
        adapter(second)
        assert adapter.last.stepped


class InfiniteBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.inf


class InfiniteGradient(WideResNet):
    """Finite predictions, infinite gradients."""

    def forward(self, x):
        return InfiniteBackward.apply(super().forward(x))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_infinite_gradient_is_skipped(accumulate):
    adapter = dp.tent(randomize(InfiniteGradient()), accumulate=accumulate)
    before = state_of(adapter)
    for images in batches(3):
        assert adapter(images).isfinite().all()
        assert adapter.last.skipped == "NaN or Inf in the gradient or the updated parameters"
    assert same_but_bookkeeping(before, state_of(adapter))


class Failing(torch.optim.SGD):
    def step(self, closure=None):
        super().step()
        raise RuntimeError("no luck")


def test_failing_optimizer_leaves_the_state_unchanged(model):
    adapter = dp.tent(model, optimizer=Failing)
    before = state_of(adapter)
    with pytest.raises(RuntimeError, match="no luck"):
        adapter(batches(1)[0])
    assert same_state(before, state_of(adapter))
    assert all(parameter.grad is None for parameter in adapter.parameters())


def test_scope_without_influence_on_the_output_raises(model):
    model.unused = nn.BatchNorm2d(4)
    adapter = compose(model, scope=dp.scopes.named("unused.*"))
    with pytest.raises(dp.errors.ModelError, match=r"named\('unused.\*'\).*influence"):
        adapter(batches(1)[0])
    assert compose(model)(batches(1)[0]).isfinite().all(), "one unused layer among others is allowed"


@pytest.mark.parametrize(
    ("construct", "logits"),
    [(DictNet, "out"), (TupleNet, 1), (DataclassNet, "logits"), (DataclassNet, lambda output: output.logits)],
)
def test_logits_are_read_from_any_output(construct, logits):
    adapter = dp.tent(randomize_inside(construct), logits=logits, select=dp.ConfidenceDifference())
    assert adapter(batches(1)[0]).shape == (6, CLASSES)
    assert adapter.last.kept == 1.0


def randomize_inside(construct):
    plain = randomize(WideResNet())
    model = construct()
    model.load_state_dict(plain.state_dict())
    return model


@pytest.mark.parametrize(
    ("construct", "logits", "message"),
    [
        (DictNet, None, r"returned a dict with the keys \['aux', 'out'\].*logits="),
        (DictNet, "output", r"`logits='output'` finds nothing.*aux"),
        (TupleNet, None, "returned a tuple of 2"),
        (TupleNet, 5, "finds nothing"),
        (DataclassNet, None, "returned a Output"),
        (DataclassNet, "scores", "finds nothing"),
        (WideResNet, lambda output: output.argmax(1), r"shape \(N, C\)"),
    ],
)
def test_unreadable_output_raises_with_what_was_returned(construct, logits, message):
    adapter = dp.tent(construct(), logits=logits)
    with pytest.raises(dp.errors.ModelError, match=message):
        adapter(batches(1)[0])


def test_features_need_a_classifier_that_runs(model):
    model.unused = nn.Linear(2, 2)
    with pytest.raises(dp.errors.ModelError, match=r"`unused`.*classifier"):
        dp.swr(model, augment=shifted).prepare(source_data())
    with pytest.raises(dp.errors.ModelError, match="`classifier` to name a layer"):
        dp.swr(model, augment=shifted, classifier="head").prepare(source_data())
    task = dp.regularizers.NearestPrototypes(epochs=0, augment=shifted)
    adapter = dp.swr(model, augment=shifted, classifier="fc", prototypes=task).prepare(source_data())
    assert adapter(batches(1)[0]).isfinite().all()


# --- precisions, scopes and models with odd habits --------------------------------------------------------------------


@pytest.mark.parametrize("case", ["source", "bn_adapt", "ttn", "tent+crowd", "eata", "swr+crowd", "cotta"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_of_other_precisions_adapt(case, dtype):
    model = build("wide_resnet").to(dtype)
    adapter = adapter_for(case, model, prepared=False)
    adapter.prepare([(images.to(dtype), labels) for images, labels in source_data()])
    for images in batches(3):
        output = adapter(images.to(dtype))
        assert output.dtype == dtype
        assert output.isfinite().all()
        assert adapter.last.skipped in (None, "nothing was selected")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_first_batch_selects_everything_in_any_precision(dtype):
    adapter = dp.tent(build("wide_resnet").to(dtype), select=dp.ConfidenceDifference())
    adapter(batches(1)[0].to(dtype))
    assert adapter.last.kept == 1.0


def test_autocast_of_the_caller_applies_to_both_networks(model):
    adapter = dp.tent(model, lr=1e-2, select=dp.ConfidenceDifference())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for index, images in enumerate(batches(3)):
            logits = adapter(images)
            assert logits.isfinite().all()
            assert adapter.last.stepped
            assert (adapter.last.kept == 1.0) or index > 0
    assert all(parameter.dtype == torch.float32 for parameter in adapter.parameters())


def test_autocast_around_the_stream_equals_autocast_around_each_batch(model):
    stream, separate = batches(4), []
    adapter = dp.ent(model, lr=1e-2, select=dp.ConfidenceDifference())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole = [adapter(images) for images in stream]
    adapter.reset()
    for images in stream:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            separate.append(adapter(images))
    assert all(torch.equal(one, other) for one, other in zip(whole, separate, strict=True))


def test_failing_novelty_leaves_the_state_unchanged(model):
    adapter = dp.tent(model, novelty=lambda step: step.nothing_of_the_kind)
    before = state_of(adapter)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        adapter(batches(1)[0])
    assert same_state(before, state_of(adapter))


def test_scope_overrides_requires_grad_of_the_model(model):
    stream = batches(3)
    expected = [dp.tent(model, lr=1e-2)(images) for images in stream[:1]]
    model.requires_grad_(False)
    adapter = dp.tent(model, lr=1e-2)
    assert torch.equal(adapter(stream[0]), expected[0])
    assert adapter.last.stepped
    plain = adapter.unwrap()
    assert not any(parameter.requires_grad for parameter in plain.parameters()), "as the user had it"
    held = compose(model, scope=dp.scopes.norm_affine().without("blocks.0.*"))
    run_stream(held, stream)
    assert not any(name.startswith("blocks.0.") for name in held.trainable_parameters)
    assert torch.equal(held.unwrap().blocks[0].bn1.weight, model.blocks[0].bn1.weight)
    assert not torch.equal(held.unwrap().norm.weight, model.norm.weight)


def test_dropout_stays_off():
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.Dropout(0.9), nn.Linear(16, 5)
    ).train()
    images = batches(1)[0]
    adapter = dp.bn_adapt(model)
    assert torch.equal(adapter(images), adapter(images))


def test_model_without_normalization_raises_for_tent_and_adapts_with_ent():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    with pytest.raises(dp.errors.ModelError, match=r"norm_affine\(\) to select parameters of Sequential.*check"):
        dp.tent(model)
    adapter = dp.ent(model, lr=1e-2, select=dp.ConfidenceDifference())
    run_stream(adapter, batches(3))
    assert adapter.last.stepped
    tent = dp.tent(model, scope=dp.scopes.named("1.weight"))
    run_stream(tent, batches(2))
    assert list(tent.trainable_parameters) == ["1.weight"]


class WritingBuffers(GroupNormNet):
    """Counts its passes and keeps a buffer of the size of the last images."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("grid", None, persistent=False)

    def forward(self, x):
        self.seen += 1
        self.grid = torch.zeros(x.shape[2:])
        if not hasattr(self, "made"):
            self.register_buffer("made", torch.ones(1))
            self.layer_made = nn.Identity()
        return super().forward(x) / (1 + 0.1 * self.seen)


@pytest.mark.parametrize("case", ["tent", "tent+crowd", "cotta"])
def test_buffers_written_by_the_model_are_reset_saved_and_loaded(case, tmp_path):
    model, stream = WritingBuffers(), [*batches(3), *batches(3, shape=(3, 12, 10))]
    adapter = adapter_for(case, model)
    first = [adapter(images) for images in stream]
    assert adapter.network.model.seen == 6
    assert adapter.source.model.seen == 0
    adapter.reset()
    assert adapter.network.model.seen == 0
    assert set(dict(adapter.network.model.named_buffers())) == {"seen"}
    again = [adapter(images) for images in stream[:3]]
    adapter.save(tmp_path / "state")
    for other in (adapter_for(case, model), run_stream(adapter_for(case, model), stream)):
        other.load(tmp_path / "state")
        assert other.network.model.seen == 3
        assert other.network.model.grid.shape == (8, 8)
        rest = [other(images) for images in stream[3:]]
        assert all(torch.equal(one, two) for one, two in zip(first, again + rest, strict=True))
    other.load_state_dict(adapter_for(case, model).state_dict())
    assert set(dict(other.network.model.named_buffers())) == {"seen"}


def test_model_whose_train_returns_none_adapts():
    class Silent(WideResNet):
        def train(self, mode=True):
            super().train(mode)

    assert run_stream(dp.tent(Silent(), select=dp.ConfidenceDifference()), batches(2)).last.stepped


@pytest.mark.parametrize("rule", [dp.statistics.Batch(), dp.statistics.Blend(0.5)], ids=repr)
def test_layers_called_with_keyword_input_give_the_same_outputs(model, rule):
    class ByName(WideResNet):
        def forward(self, x):
            x = self.norm(input=self.blocks(self.stem(input=x)))
            return self.fc(input=x.relu().mean(dim=(2, 3)))

    by_name = ByName()
    by_name.load_state_dict(model.state_dict())
    adapter, other = (adapter_for("swr", each, statistics=rule) for each in (model, by_name))
    assert all(torch.equal(adapter(images), other(images)) for images in batches(3))


@pytest.mark.parametrize("case", ["tent+crowd", "swr+crowd", "cotta"])
def test_model_that_writes_into_its_input_gives_the_same_outputs(case):
    class Functional(WideResNet):
        def forward(self, x):
            return super().forward((x - 0.5) / 0.25)

    class InPlace(WideResNet):
        def forward(self, x):
            return super().forward(x.sub_(0.5).div_(0.25))

    model, writing = randomize(Functional()), InPlace()
    writing.load_state_dict(model.state_dict())
    adapter, other = adapter_for(case, model, output="after"), adapter_for(case, writing, output="after")
    for images in batches(4):
        given = images.clone()
        assert torch.equal(adapter(images), other(given))
        assert torch.equal(adapter.last.novelty, other.last.novelty)
        assert torch.equal(given, images)


class CachingActivations(WideResNet):
    """Caches activations, as models do that expose their attention maps."""

    def forward(self, x):
        self.seen = self.stem(x)
        self.kept = {"maps": [self.blocks(self.seen)]}
        return self.fc(self.norm(self.kept["maps"][0]).relu().mean(dim=(2, 3)))


@pytest.mark.parametrize("case", ["ent", "cotta"])
def test_model_that_caches_activations_can_be_copied_after_a_step(case):
    adapter = adapter_for(case, randomize(CachingActivations()))
    first, second = batches(2)
    adapter(first)
    plain = adapter.unwrap()
    assert torch.equal(plain.seen, adapter.network.model.seen)
    for parameter, moved in zip(plain.parameters(), adapter.network.model.parameters(), strict=True):
        assert torch.equal(parameter, moved)
    twin = copy.deepcopy(adapter)
    expected = adapter(second)
    assert torch.equal(twin(second), expected)
    assert torch.equal(run_stream(adapter.reset(), [first])(second), expected)


def test_save_load_unwrap_and_reset_work_in_inference_mode(model, tmp_path):
    stream = batches(3)
    adapter = run_stream(dp.ent(model, lr=1e-2), stream[:1])
    with torch.inference_mode():
        adapter.save(tmp_path / "state")
        other = dp.ent(model, lr=1e-2).load(tmp_path / "state")
        plain = adapter.unwrap()
        assert torch.equal(other(stream[1]), adapter(stream[1]))
        other.double()(stream[2].double())
        other.reset()(stream[2].double())
    assert other(stream[1].double()).isfinite().all()
    plain(stream[2]).sum().backward()
    assert other.last.stepped


@pytest.mark.parametrize("segmentation", [False, True])
def test_single_logit_raises_with_a_fix(segmentation):
    head = [] if segmentation else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1), *head)
    with pytest.raises(dp.errors.ModelError, match="two classes or more"):
        dp.tent(model)(batches(1)[0])

    def add_zero_logit(z):
        return torch.cat([torch.zeros_like(z), z], dim=1)

    adapter = run_stream(dp.tent(model, logits=add_zero_logit), batches(2))
    assert adapter.last.stepped
    assert adapter.last.loss > 0


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.32, 1), (1 / 3, 2), (0.5, 3), (1.0, 6)])
def test_norm_affine_takes_the_first_share_of_the_convolutions(model, share, count):
    scope = dp.scopes.norm_affine(convolutions=share)
    convolutions = [layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == 6
    plain = dp.scopes.norm_affine().parameters(model).values()
    expected = {id(parameter) for parameter in [*plain, *convolutions[:count]]}
    assert {id(parameter) for parameter in scope.parameters(model).values()} == expected


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_share_of_convolutions_is_checked(share):
    with pytest.raises(dp.errors.ConfigurationError, match=r"`convolutions` to be in 0\.\.1"):
        dp.scopes.norm_affine(convolutions=share)


def test_scope_matches_any_name_of_a_tied_parameter():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    assert list(dp.scopes.everything().without("2.*").parameters(model)) == ["0.bias", "1.weight", "1.bias"]
    assert list(dp.scopes.everything().without("0.*").parameters(model)) == ["1.weight", "1.bias", "2.bias"]
    assert list(dp.scopes.named("2.*").parameters(model)) == ["0.weight", "2.bias"]


@pytest.mark.parametrize("scope", [dp.scopes.everything().without("layer4.*"), dp.scopes.named("0.*", "layer4.*")])
def test_scope_pattern_without_match_raises(scope):
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    with pytest.raises(
        dp.errors.ModelError, match=r"'layer4\.\*' to match parameters of Sequential.* 0\.weight, 0\.bias"
    ):
        scope.parameters(model)


def test_empty_parameter_is_allowed():
    class Placed(WideResNet):
        def __init__(self):
            super().__init__()
            self.placeholder = nn.Parameter(torch.empty(0))

    adapter = run_stream(dp.ent(Placed()), batches(2))
    assert adapter.last.stepped
    adapter(batches(1)[0] * float("nan"))
    assert adapter.last.skipped.startswith("NaN or Inf in the images")


def test_channels_last_and_other_image_sizes_adapt(model):
    adapter = dp.tent(model, select=dp.ConfidenceDifference())
    adapter(batches(1)[0].contiguous(memory_format=torch.channels_last))
    adapter(batches(1, shape=(3, 12, 10))[0])
    assert adapter.last.stepped


def test_deepcopy_is_independent_and_bit_equal(model):
    adapter = adapter_for("cotta+crowd", model)
    first, second, third = batches(3)
    adapter(first)
    twin = copy.deepcopy(adapter)
    assert torch.equal(adapter(second), twin(second))
    before = state_of(adapter)
    twin(third)
    assert same_state(before, state_of(adapter))


def test_threads_share_an_adapter(model):
    adapter = dp.tent(model, lr=1e-2, select=dp.ConfidenceDifference())
    stream = batches(15)

    def serve(first):
        return [adapter(images).isfinite().all() and len(adapter.state_dict()) for images in stream[first::3]]

    often = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(3) as threads:
            assert all(all(answers) for answers in threads.map(serve, range(3)))
    finally:
        sys.setswitchinterval(often)
    assert adapter.optimizer.state[adapter.trainable_parameters["norm.weight"]]["step"] == 15
    assert torch.equal(adapter.unwrap().norm.running_mean, model.norm.running_mean)


# --- preparation ------------------------------------------------------------------------------------------------------


def test_missing_preparation_raises(model):
    for adapter in (dp.eata(model), dp.swr(model), dp.ttn(model)):
        with pytest.raises(dp.errors.NotPreparedError, match=r"prepare\(source\)"):
            adapter(batches(1)[0])
    assert dp.eata(model, fisher=0.0)(batches(1)[0]).isfinite().all(), "nothing to prepare"


def test_preparation_does_not_depend_on_the_batches_of_the_loader(model):
    source = source_data()
    images, labels = (torch.cat(side) for side in zip(*source, strict=True))
    one_by_one = [(images[i : i + 1], labels[i : i + 1]) for i in range(len(images))]
    importance = [
        dp.eata(model, fisher_batch_size=6).prepare(data).method.regularizer.importance
        for data in (source, [(images, labels)], one_by_one)
    ]
    for other in importance[1:]:
        assert torch.equal(importance[0], other)


def test_progress_is_reported(model):
    seen = []
    dp.eata(model, fisher_batch_size=6, fisher_samples=10).prepare(
        source_data(), progress=lambda stage, done: seen.append((stage, done))
    )
    assert seen == [("Fisher", 6), ("Fisher", 10)]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "empty"),
        (iter([]), "iterator"),
        ([torch.rand(4, 3, 8, 8)], r"yield \(images, labels\)"),
        ([(torch.rand(4, 3, 8, 8), torch.zeros(3, dtype=torch.long))], "one integer label"),
        ([(torch.rand(4, 3, 8, 8), torch.zeros(4))], "one integer label"),
        ([(torch.full((4, 3, 8, 8), torch.nan), torch.zeros(4, dtype=torch.long))], "NaN or Inf in some"),
    ],
)
def test_invalid_source_data_raises(model, source, message):
    adapter = dp.eata(model)
    with pytest.raises(dp.errors.InputError, match=message):
        adapter.prepare(source)
    with pytest.raises(dp.errors.NotPreparedError):
        adapter(batches(1)[0])


@pytest.mark.parametrize("method", ["ttn", "swr"])
@pytest.mark.parametrize(
    ("network", "labels", "message"),
    [
        ("wide_resnet", torch.full((4,), CLASSES), rf"0\.\.{CLASSES - 1}.*but got {CLASSES}"),
        ("wide_resnet", torch.tensor([0, -1, 0, 0]), "but got -1"),
        ("wide_resnet", torch.zeros(4, CLASSES, dtype=torch.long), r"\(4,\).*but got \(4, 5\)"),
        ("segmentation", torch.zeros(4, 4, 4, dtype=torch.long), r"\(4, 8, 8\).*but got \(4, 4, 4\)"),
        ("segmentation", torch.full((4, 8, 8), 254), "255 where .*, but got 254"),
    ],
)
def test_labels_of_other_shape_or_range_raise(method, network, labels, message):
    adapter = adapter_for(method, build(network), segmentation=network == "segmentation", prepared=False)
    with pytest.raises(dp.errors.InputError, match=message):
        adapter.prepare([(torch.rand(4, 3, 8, 8), labels)])


def test_failing_preparation_changes_nothing(model):
    adapter = dp.swr(model, augment=shifted)

    class Breaking(list):
        def __iter__(self):
            yield from source_data()
            if self:
                raise OSError("disk gone")
            self.append(1)

    with pytest.raises(OSError, match="disk gone"):
        adapter.prepare(Breaking())
    assert all(component._buffers.get("tensor_weights") is None for component in adapter.method.regularizer.components)


def test_prepare_comes_before_the_first_batch(model):
    adapter = dp.tent(model)
    adapter(batches(1)[0])
    with pytest.raises(dp.errors.CallOrderError, match=r"reset\(\)"):
        adapter.prepare(source_data())
    adapter.reset().prepare(source_data())


def test_ignored_pixels_change_the_preparation():
    model = build("segmentation")
    source = source_data(segmentation=True)
    ignored = [(images, labels.clone()) for images, labels in source]
    for _, labels in ignored:
        labels[:, :4] = 255
    adapter = dp.swr(model, prototypes=False, augment=shifted)
    weights = adapter.prepare(source).method.regularizer.tensor_weights
    assert not torch.equal(weights, adapter.prepare(ignored).method.regularizer.tensor_weights)


# --- what is printed --------------------------------------------------------------------------------------------------


def test_last_before_the_first_batch_raises(model):
    adapter = dp.tent(model)
    with pytest.raises(dp.errors.CallOrderError, match="batch"):
        _ = adapter.last
    adapter(batches(1)[0])
    adapter.reset()
    with pytest.raises(dp.errors.CallOrderError):
        _ = adapter.last


def test_repr_shows_choices_and_optimizer(model):
    shown = repr(dp.tent(model, select=dp.ConfidenceDifference(), accumulate=2))
    for text in (
        "WideResNet: 56 of ",
        "norm_affine()",
        "Batch()",
        "Entropy()",
        "ConfidenceDifference(margin=0.0",
        "Adam(lr=0.001), every 2 batches",
    ):
        assert text in shown
    assert "SGD(lr=0.1, momentum=0.9)" in repr(compose(model, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9)))
    with pytest.raises(dp.errors.CallOrderError, match="no optimizer"):
        _ = dp.source(model).optimizer
    shown = repr(dp.source(model))
    assert "nothing()" in shown
    assert "optimizer" not in shown


def test_repr_of_records(model):
    adapter = dp.tent(model)
    adapter(batches(1)[0])
    assert repr(adapter.last).startswith("Record(seen=6, kept=1.000, loss=")
    assert repr(adapter.last).endswith("stepped, healthy)")
    adapter(batches(1)[0] * torch.nan)
    assert "NaN or Inf in the images" in repr(adapter.last)
    source = dp.source(model)
    source(batches(1)[0])
    assert source.last.loss is None
    assert "loss=none, no step" in repr(source.last)


class BorrowedHead(nn.Module):
    """Ends in a layer that it does not own, which requires gradients."""

    def __init__(self, head):
        super().__init__()
        self.norm, self._head = nn.BatchNorm2d(3), (head,)

    def __deepcopy__(self, memo):
        copied = BorrowedHead(self._head[0])
        copied.load_state_dict(self.state_dict())
        return copied

    def forward(self, x):
        return self._head[0](self.norm(x).mean(dim=(2, 3)))


def test_only_trainable_parameters_get_gradients():
    """Also of a graph with other leaves, where they must be told apart."""
    head = nn.Linear(3, 4)
    for adapter in (dp.tent(BorrowedHead(head)), dp.tent(build("wide_resnet"))):
        before = [one.clone() for one in adapter.state.trainable]
        for images in batches(2):
            adapter(images)
        assert not all(map(torch.equal, before, adapter.state.trainable)), "it learned"
        leaves = [*head.parameters(), *adapter.network.parameters(), *adapter.source.parameters()]
        assert all(leaf.grad is None for leaf in leaves)
    assert all(leaf.requires_grad for leaf in head.parameters())
