"""Every engine against the eager one: the same answers, the same records, the same state."""

import copy
from functools import partial

import pytest
import torch
from torch import is_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import driftproof as dp
from cases import adapter_for, batches, same_state, source_data, state_of
from driftproof import kernels
from driftproof.adapter.engines import Compiled, Fixed, Fused, Graph, fusion, graph
from driftproof.adapter.engines import compiled as compiled_engine
from driftproof.adapter.engines.compiled import compiled_lesson
from driftproof.adapter.engines.shapes import MOST_SHAPES
from driftproof.adapter.engines.static import finite_groups
from driftproof.adapter.flat import Flat, Joined, Scattered, joined
from driftproof.network import normalization
from networks import NORM_NETWORKS, WideResNet, build, randomize
from fault_injection import FIXED_CASES, NotTooBright, assert_same, faulty_stream, make, run, traced


def assert_engines_agree(build_adapter, stream):
    eager, fixed = build_adapter(engine=None), build_adapter(engine=Fixed())
    assert_same(run(eager, stream), run(fixed, stream))
    assert same_state(state_of(eager), state_of(fixed))
    assert len(fixed._engine._steps) == 2, "both shapes ran as static steps"


# --- the static step --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FIXED_CASES)
def test_a_static_step_equals_the_eager_one_bit_by_bit(case):
    assert_engines_agree(partial(make, case), faulty_stream())


@pytest.mark.parametrize("case", ["ttn", "tent", "eata+crowd", "swr"])
def test_pixels_are_just_more_samples(case):
    assert_engines_agree(partial(make, case, "segmentation"), faulty_stream())


@pytest.mark.parametrize(
    "settings",
    [
        {"output": "after"},
        {"statistics": dp.statistics.Blend(0.5, momentum=0.3)},
        {"statistics": dp.statistics.Batch(), "source_statistics": dp.statistics.Blend(0.5, momentum=0.3)},
        {"optimizer": partial(torch.optim.SGD, momentum=0.9, dampening=0.1)},
        {"optimizer": torch.optim.RMSprop, "output": "after"},
        {"novelty": lambda step: -step.confidence_change},
        {"average_over": "batch", "mean_entropy_over": "selected", "mean_entropy": 0.3},
        {"accumulate": 3},
        {"accumulate": 2, "statistics": dp.statistics.Blend(0.7, momentum=0.5), "output": "after"},
        {"channels_last": True},
        {"precision": "bf16"},
    ],
    ids=lambda settings: "-".join(settings),
)
@pytest.mark.parametrize("case", ["tent+crowd", "eata"])
def test_every_setting_holds_in_a_static_step(case, settings):
    assert_engines_agree(partial(make, case, **settings), faulty_stream())


class Forgetful(dp.regularizers.Regularizer):
    """Moves parameters itself after each step, at random."""

    def on_step(self, step):
        with torch.no_grad():
            for moved, start in zip(step.parameters, step.source_parameters, strict=True):
                draw = torch.rand(moved.shape, generator=step.generator, device=moved.device)
                moved.copy_(torch.where(draw < 0.3, start, moved))


def composed(engine, **choices):
    defaults = {
        "scope": dp.scopes.norm_affine(),
        "statistics": dp.statistics.Batch(),
        "loss": dp.losses.Entropy(),
        "select": NotTooBright(),
        "optimizer": partial(torch.optim.Adam, lr=0.05),
    }
    adapter = dp.Adapter(build("wide_resnet"), **(defaults | choices))
    adapter._engine = engine or adapter._engine
    return adapter


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_a_part_does_after_a_step_is_undone_with_the_step(accumulate):
    assert_engines_agree(partial(composed, regularizer=Forgetful(), accumulate=accumulate), faulty_stream())


class ByHand(torch.optim.Optimizer):
    """Puts new tensors in the place of old ones, as optimizers written by hand do."""

    def __init__(self, parameters, lr=0.05):
        super().__init__(parameters, {"lr": lr})

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["square"] = 0.9 * state.get("square", torch.ones_like(parameter)) + parameter.grad**2
                parameter.data = parameter.data - group["lr"] * parameter.grad / state["square"].sqrt()


class Steep(dp.losses.Entropy):
    """Entropy, but of bright batches so steep that the square of its gradient is infinite."""

    def per_sample(self, step):
        return super().per_sample(step) * torch.where(step.images.mean() > 5, 1e25, 1.0)


@pytest.mark.parametrize("choices", [{}, {"accumulate": 2}, {"select": None, "loss": Steep()}], ids=str)
def test_optimizers_may_put_tensors_elsewhere_in_memory(choices):
    eager, fixed = (composed(engine, optimizer=ByHand, **choices) for engine in (None, Fixed()))
    stream = faulty_stream()
    stream[8] = stream[9]  # an eager step moves parameters for good, and what was recorded is dropped
    stream[7] = stream[11] = stream[10]
    assert_same(run(eager, stream[:14]), run(fixed, stream[:14]))
    assert same_state(state_of(eager), state_of(fixed))
    assert len(fixed._engine._steps) == 1


def test_models_that_keep_buffers_of_their_own():
    class Counting(WideResNet):
        def __init__(self):
            super().__init__()
            self.register_buffer("replaced", torch.zeros(()))
            self.register_buffer("written", torch.zeros(()))

        def forward(self, x):
            self.replaced = self.replaced + x.detach().mean().nan_to_num(5, 5)
            self.written += 1
            return super().forward(x)

    def counting(engine):
        torch.manual_seed(1)
        adapter = dp.tent(randomize(Counting()), select=dp.ConfidenceDifference() & NotTooBright(), lr=0.1)
        adapter._engine = engine or adapter._engine
        return adapter

    assert_engines_agree(counting, faulty_stream())


class Checkpointed(WideResNet):
    """Keeps no activation of its blocks, and computes them again on the way back."""

    def forward(self, x):
        blocks = checkpoint(self.blocks, self.stem(x), use_reentrant=False)
        return self.fc(torch.relu(self.norm(blocks)).mean(dim=(2, 3)))


@pytest.mark.parametrize("rule", [dp.statistics.Batch(), dp.statistics.Blend(0.5, momentum=0.3)], ids=repr)
def test_models_that_compute_activations_again_keep_their_own_statistics(rule):
    torch.manual_seed(1)
    model = randomize(WideResNet())
    recomputing = Checkpointed()
    recomputing.load_state_dict(model.state_dict())

    def checkpointed(engine, source=recomputing):
        adapter = dp.ent(source, statistics=rule, select=dp.ConfidenceDifference(), lr=0.01)
        adapter._engine = engine or adapter._engine
        return adapter

    assert_engines_agree(checkpointed, faulty_stream())
    adapter, plain = checkpointed(None), checkpointed(None, model)
    for images in faulty_stream():
        torch.testing.assert_close(adapter(images), plain(images), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(adapter.unwrap().blocks[0].bn1.running_mean, model.blocks[0].bn1.running_mean)
    assert same_state(dict(adapter.reset().unwrap().state_dict()), dict(model.state_dict()))


_FETCHING = {"tolist", "item", "__bool__", "__int__", "__float__", "__index__", "equal", "nonzero", "numpy"}
_SENDING = {"tensor", "as_tensor", "from_numpy", "new_tensor"}


class Asked(TorchFunctionMode):
    """Notes every call that fetches a number from the device or sends one there."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in _FETCHING | _SENDING:
            self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Fetched(TorchDispatchMode):
    """Notes every operation that fetches a number."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.equal):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", FIXED_CASES)
def test_nothing_is_fetched_during_a_static_step(case):
    options = {} if case in ("source", "bn_adapt", "ttn") else {"optimizer": torch.optim.SGD}
    adapter, stream = make(case, engine=Fixed(), **options), batches(5)
    run(adapter, stream[:3])
    if case.startswith("swr"):
        adapter._engine.settle(adapter)  # what seeds the random numbers is the one thing that is asked for
    with Asked() as asked, Fetched() as fetched:
        adapter(stream[3])
    assert not asked.found + fetched.found
    with Asked() as asked:
        assert adapter.last.skipped is None
    assert asked.found == ["tolist"]


class Tape(TorchDispatchMode):
    """A recording as a device makes it: operations and the memory they use, without the program around them."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        memory = {tensor.untyped_storage().data_ptr() for tensor in tree_leaves((args, kwargs)) if is_tensor(tensor)}
        fresh = [
            is_tensor(tensor) and tensor.untyped_storage().data_ptr() not in memory for tensor in tree_leaves(outputs)
        ]
        self.operations.append((func, args, kwargs, tree_leaves(outputs), fresh))
        return outputs

    def replay(self):
        with torch.no_grad():
            for func, args, kwargs, outputs, fresh in self.operations:
                again = tree_leaves(func(*args, **kwargs))
                for old, new, is_fresh in zip(outputs, again, fresh, strict=True):
                    if is_fresh:
                        old.copy_(new)


class Taped(Fixed):
    """Plays the part of `Graph` on any device."""

    def __init__(self):
        super().__init__()
        self.tapes = {}

    def _execute(self, step, adapter):
        if step.draws is None:
            return super()._execute(step, adapter)
        step.reseed()
        if step not in self.tapes:
            with Tape() as tape:
                result = step.run(adapter)
            self.tapes[step] = tape, result
        else:
            tape, result = self.tapes[step]
            tape.replay()
        return result


@pytest.mark.parametrize("case", FIXED_CASES)
def test_a_recording_needs_nothing_of_the_program_around_it(case):
    learns = case not in ("source", "bn_adapt", "ttn")
    options = {"optimizer": partial(torch.optim.SGD, momentum=0.9)} if learns else {}
    stream, taped = [*faulty_stream(), *faulty_stream(seed=1)], make(case, engine=Taped(), **options)
    assert_same(run(make(case, **options), stream), run(taped, stream))
    assert len(taped._engine.tapes) == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"accumulate": 3, "output": "after"},
        {"statistics": dp.statistics.Blend(0.5, momentum=0.3), "regularizer": Forgetful()},
        {"source_statistics": dp.statistics.Blend(0.5, momentum=0.3), "select": dp.ConfidenceDifference()},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_recordings_hold_under_every_setting(settings):
    build_adapter = partial(composed, **settings, optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9))
    stream, taped = [*faulty_stream(), *faulty_stream(seed=1)], build_adapter(Taped())
    assert_same(run(build_adapter(None), stream), run(taped, stream))
    assert len(taped._engine.tapes) == 2


def test_the_default_view_sends_nothing_to_the_device():
    """Numbers that come from the host cannot be part of a recording."""
    images, generator = batches(1)[0], torch.Generator()
    with Asked() as asked, Fetched() as fetched:
        dp.augment.photometric(images, generator)
    assert not asked.found + fetched.found


def test_a_static_step_draws_the_numbers_of_its_batch_even_after_a_bad_one():
    def drawn(engine, stream):
        adapter = composed(engine, regularizer=Forgetful())
        run(adapter, stream)
        return state_of(adapter)

    stream = batches(8)
    with_bad = [*stream[:5], stream[5] * torch.nan, *stream[5:]]
    expected = drawn(None, stream)
    assert same_state(expected, drawn(Fixed(), stream))
    assert same_state(expected, drawn(Fixed(), with_bad))


# --- its life ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["ttn", "tent+crowd", "eata", "swr"])
def test_states_travel_between_engines_in_mid_stream(case, tmp_path):
    stream = faulty_stream()
    expected = run(make(case), stream)
    for first, second in ((None, Fixed()), (Fixed(), None), (Fixed(), Fixed())):
        adapter = make(case, engine=first)
        begun = run(adapter, stream[:13])
        adapter.save(tmp_path / "state")
        other = make(case, engine=second, prepared=False).load(tmp_path / "state")
        ended = run(other, stream[13:])
        assert_same(expected, (begun[0] + ended[0], begun[1] + ended[1]))


def test_accumulated_gradients_travel_too(tmp_path):
    stream = batches(9)
    build_adapter = partial(make, "tent+crowd", accumulate=4)
    expected = run(build_adapter(), stream)
    adapter = build_adapter(engine=Fixed())
    begun = run(adapter, stream[:6])
    adapter.save(tmp_path / "state")
    assert adapter._stepper.waiting == 2
    ended = run(build_adapter().load(tmp_path / "state"), stream[6:])
    assert_same(expected, (begun[0] + ended[0], begun[1] + ended[1]))


@pytest.mark.parametrize("case", ["bn_adapt", "ttn", "tent", "eata+crowd", "swr+crowd"])
def test_replay_after_reset_is_bit_equal_and_loading_goes_on_in_place(case):
    adapter, stream = make(case, engine=Fixed()), faulty_stream()
    first = run(adapter, stream)
    assert_same(first, run(adapter.reset(), stream))
    state = adapter.state_dict()
    again = run(adapter, stream[:4])
    adapter.load_state_dict(state)
    assert_same(again, run(adapter, stream[:4]))


def test_a_refused_state_leaves_the_recorded_steps_at_work():
    adapter, stream = make("tent", engine=Fixed()), batches(8)
    expected = run(make("tent"), stream)
    begun = run(adapter, stream[:4])
    with pytest.raises(dp.errors.StateError):
        adapter.load_state_dict(make("eata").state_dict())
    ended = run(adapter, stream[4:])
    assert_same(expected, (begun[0] + ended[0], begun[1] + ended[1]))


def test_moves_with_to_in_mid_stream():
    def moved(engine):
        adapter = make("eata", engine=engine)
        begun = run(adapter, batches(5))
        adapter.to(torch.float64)
        ended = run(adapter, [images.double() for images in batches(6, seed=1)])
        return begun[0] + ended[0], begun[1] + ended[1]

    assert_same(moved(None), moved(Fixed()))


def test_a_copy_of_a_running_adapter_goes_its_own_way():
    adapter, stream = make("swr+crowd", engine=Fixed()), batches(8)
    run(adapter, stream[:5])
    twin = copy.deepcopy(adapter)
    twin._engine = Fixed()
    assert_same(run(adapter, stream[5:]), run(twin, stream[5:]))
    before = state_of(adapter)
    twin(stream[0])
    assert same_state(before, state_of(adapter))


def test_everything_a_static_step_touches_stays_where_it_is():
    adapter, stream = make("eata", engine=Fixed(), statistics=dp.statistics.Blend(0.5, momentum=0.3)), batches(10)

    def addresses():
        held = [*adapter.parameters(), *adapter.buffers()]
        states = adapter.optimizer.state.values()
        return [tensor.data_ptr() for tensor in (*held, *(value for state in states for value in state.values()))]

    run(adapter, stream[:3])
    before = addresses()
    run(adapter, [*stream[3:6], stream[6][:3], *stream[7:9]])  # an eager step in between replaces buffers
    assert addresses() == before
    (step,) = adapter._engine._steps.values()
    adapter.load_state_dict(adapter.state_dict())
    assert not adapter._engine._steps, "what was recorded is dropped when its tensors are replaced"
    run(adapter, stream[:3])
    assert step not in adapter._engine._steps.values()


def test_a_parameter_given_other_memory_is_noticed():
    def moved(engine):
        adapter, stream = make("tent", engine=engine), batches(10)
        begun = run(adapter, stream[:5])
        for parameter in adapter.network.model.parameters():
            parameter.data = parameter.data.clone()
        ended = run(adapter, stream[5:])
        return begun[0] + ended[0], begun[1] + ended[1]

    assert_same(moved(None), moved(Fixed()))


def test_a_scheduled_learning_rate_is_heeded():
    def scheduled(engine):
        adapter, outputs = make("tent+crowd", engine=engine), []
        for index, images in enumerate(batches(12)):
            adapter.optimizer.param_groups[0]["lr"] = 0.1 if index < 5 else 0.01
            outputs.append(adapter(images))
        return torch.stack(outputs)

    assert torch.equal(scheduled(None), scheduled(Fixed()))


def test_only_a_few_shapes_are_prepared_for():
    adapter, reference = make("tent", engine=Fixed()), make("tent")
    stream = [images for size in range(2, 9) for images in batches(3, size=size, seed=size)]
    assert_same(run(reference, stream), run(adapter, stream))
    assert len(adapter._engine._steps) == MOST_SHAPES
    for size in range(100):
        adapter._engine._shapes.meet((size,))
    assert len(adapter._engine._shapes._met) <= 64


def test_answers_and_records_are_the_callers_own():
    adapter, stream = make("tent+crowd", engine=Fixed()), batches(6)
    run(adapter, stream[:3])
    answer, record = adapter(stream[3]), adapter.last
    kept = answer.clone(), record.selected.clone(), record.novelty.clone(), record.objective.clone()
    adapter(stream[4] * torch.nan), adapter(stream[5])
    now = answer, record.selected, record.novelty, record.objective
    assert all(torch.equal(one, other) for one, other in zip(kept, now, strict=True))
    assert record.skipped is None
    assert record.stepped


# --- what goes wrong --------------------------------------------------------------------------------------------------


class Growing(dp.regularizers.Regularizer):
    """Remembers something larger after every batch."""

    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.zeros(1))

    def on_batch(self, step):
        self.memory = torch.cat([self.memory, self.memory[:1]])


class FailsLater(torch.optim.SGD):
    def step(self, closure=None):
        super().step()
        self.count = getattr(self, "count", 0) + 1
        if self.count > 2:
            raise RuntimeError("no luck")


@pytest.mark.parametrize(
    ("choices", "error"),
    [
        ({"regularizer": Growing()}, dp.errors.EngineError),
        ({"optimizer": partial(FailsLater, lr=0.1)}, RuntimeError),
    ],
)
def test_a_static_step_that_fails_leaves_the_state_intact(choices, error):
    adapter, stream = composed(Fixed(), **choices), batches(4)
    with pytest.raises(error):  # noqa: PT012  # at the first or the second static step
        for images in stream:
            before = state_of(adapter)
            adapter(images)
    assert same_state(before, state_of(adapter))
    assert all(parameter.grad is None for parameter in adapter.parameters())


def test_the_graph_engine_needs_a_device_that_has_graphs(monkeypatch):
    model = build("wide_resnet")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(dp.errors.ConfigurationError, match=r'there is none. Choose `engine="eager"`'):
        dp.tent(model, engine="graph")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    adapter = dp.tent(model, engine="graph")
    before = state_of(adapter)
    with pytest.raises(dp.errors.ConfigurationError, match="it is on cpu"):
        adapter(batches(1)[0])
    assert same_state(before, state_of(adapter))


def test_a_method_without_a_fixed_step_says_why():
    with pytest.raises(dp.errors.ConfigurationError, match="with Consistency, since its teacher looks at more views"):
        adapter_for("cotta", build("wide_resnet"), engine="graph")
    assert (dp.regularizers.Fisher() + Growing()).dynamic_reason is None


@pytest.mark.parametrize(("keyword", "value"), [("engine", "fast"), ("precision", "fp8")])
def test_unknown_names_are_refused(keyword, value):
    with pytest.raises(dp.errors.ConfigurationError, match=f"Expected `{keyword}` to be one of .*, but got '{value}'"):
        dp.tent(build("wide_resnet"), **{keyword: value})


def test_an_optimizer_that_counts_on_the_host_is_refused():
    adapter = composed(None, optimizer=partial(torch.optim.Adagrad, lr=0.1))
    adapter(batches(1)[0])
    for state in adapter.optimizer.state.values():
        state["step"] = int(state["step"])
    with pytest.raises(dp.errors.ConfigurationError, match="Adagrad keeps `step` on the host"):
        graph._refuse_host_state(adapter)


def test_errors_while_recording_are_named():
    def failing(error):
        try:
            try:
                raise error
            finally:
                raise RuntimeError("the recording was invalidated")
        except RuntimeError as last:
            return graph._explained(last)

    assert "ran out of memory while the step was recorded" in str(failing(torch.OutOfMemoryError("2 GiB")))
    assert "could not be recorded: not permitted" in str(failing(RuntimeError("not permitted")))


def test_the_way_an_optimizer_computes_stays_the_engines(monkeypatch):
    """States carry hyper-parameters from engine to engine, but not where the counters live."""
    adapter = make("tent", select=None)
    run(adapter, batches(3))
    state = adapter.state_dict()
    monkeypatch.setattr(graph, "can_record", lambda device: True)
    recorded = make("tent", engine=Graph(), select=None)
    recorded.load_state_dict(state)
    (group,) = recorded.optimizer.param_groups
    assert group["capturable"]
    assert group["lr"] == adapter.optimizer.param_groups[0]["lr"]
    monkeypatch.undo()
    plain = make("tent", select=None)
    plain.load_state_dict(recorded.state_dict())
    assert_same(run(adapter, batches(3, seed=1)), run(plain, batches(3, seed=1)))


def test_tensors_are_moved_together_unless_they_share_memory():
    kernel = torch.rand(2, 3, 2, 2).to(memory_format=torch.channels_last)
    tensors = [torch.rand(3, 2), kernel, torch.rand(()), torch.arange(5), torch.zeros(0)]
    values, strides = [tensor.clone() for tensor in tensors], [tensor.stride() for tensor in tensors]
    everything = joined(tensors, [torch.rand(3), tensors[0]])
    assert isinstance(everything, Joined)
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.is_floating_point()}) == 1
    assert [tensor.stride() for tensor in tensors] == strides
    assert all(torch.equal(one, other) for one, other in zip(tensors, values, strict=True))
    assert isinstance(joined(tensors, []), Joined), "again"
    whole = torch.rand(10)
    assert type(joined([whole[:6], whole[4:]], [])) is Scattered
    assert type(joined([whole[:4]], [whole[2:3]])) is Scattered
    assert type(joined([whole[::2]], [])) is Scattered
    assert isinstance(joined([whole[:4], whole[8:]], [whole[4:6], whole[5:8]]), Joined)


@pytest.mark.parametrize("kind", [Joined, Scattered])
def test_a_choice_for_all_tensors_is_one_for_each(kind):
    tensors = [torch.rand(3, 2), torch.arange(5), torch.rand(())]
    values = [tensor.clone() for tensor in tensors]
    everything = kind(tensors)
    before = everything.copied()
    for tensor in tensors:
        tensor.add_(1)
    everything.choose(torch.tensor(True), before)
    assert all(torch.equal(tensor, value + 1) for tensor, value in zip(tensors, values, strict=True))
    assert max(float(vector.max()) for vector in everything.fractional()) >= 1
    everything.choose(torch.tensor(False), before)
    assert all(torch.equal(tensor, value) for tensor, value in zip(tensors, values, strict=True))
    tensors[0].zero_()
    everything.restore(before)
    assert torch.equal(tensors[0], values[0])


def test_a_static_step_decides_about_all_parameters_at_once():
    adapter = make("ent+crowd", engine=Fixed(), channels_last=True)
    run(adapter, batches(4))
    assert isinstance(adapter._engine._storage.live, Joined)
    plain = adapter.unwrap()
    assert len({p.untyped_storage().data_ptr() for p in plain.parameters()}) == len(list(plain.parameters()))
    run(adapter.reset(), batches(4))
    assert isinstance(adapter._engine._storage.live, Joined)


def test_many_tensors_as_few_vectors():
    tensors = [torch.rand(2, 3), torch.arange(4), torch.rand((), dtype=torch.float64), torch.rand(5)]
    before = [tensor.clone() for tensor in tensors]
    flat = Flat.of(tensors)
    for tensor in tensors:
        tensor.zero_()
    Flat.of(tensors).where(torch.tensor(True), flat).pour(tensors)
    assert all(not tensor.any() for tensor in tensors)
    flat.pour(tensors)
    assert all(torch.equal(one, other) for one, other in zip(before, tensors, strict=True))
    assert sorted(len(vector) for vector in flat.fractional()) == sorted(
        sum(tensor.numel() for tensor in tensors if tensor.dtype == kind)
        for kind in {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    )


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_bad_number_shows_in_its_group_alone(value):
    bad = torch.ones(3, 4)
    bad[1, 2] = value
    large, wide = torch.tensor([-3e38]), torch.ones(2, dtype=torch.float64)
    flags = finite_groups([large, wide], [torch.ones(2), bad], [], [large])
    assert [bool(flag) for flag in flags] == [True, False, True, True]


# --- compiled ---------------------------------------------------------------------------------------------------------


def compiled(case, network="wide_resnet", **settings):
    return make(case, network, Compiled(records=False, backend="aot_eager"), **settings)


@traced
@pytest.mark.parametrize("case", ["ttn", "tent+crowd", "swr", "cotta"])
def test_compiled_networks_answer_alike(case):
    torch._dynamo.reset()
    stream = faulty_stream()[:13]
    assert_same(run(make(case), stream), run(compiled(case), stream))
    assert torch._dynamo.utils.counters["graph_break"] == {}


@pytest.fixture
def our_kernels(monkeypatch):
    """Batch norms of the batch's statistics as on a CUDA device; yields the images that they normalized."""
    seen = []

    def batch_norm(x, weight, bias, eps):
        seen.append(x)
        return kernels.ops.batch_norm(x, weight, bias, eps, None, 0, False)[0]

    monkeypatch.setattr(normalization, "is_supported", lambda x: x.dtype in kernels.DTYPES)
    monkeypatch.setattr(normalization, "batch_norm", batch_norm)
    return seen


def test_batch_norms_run_our_kernels_with_the_statistics_of_the_batch_alone(our_kernels):
    adapters = {case: make(case) for case in ("tent", "bn_adapt", "source", "ttn")}
    layers = sum(isinstance(layer, torch.nn.BatchNorm2d) for layer in adapters["tent"].network.modules())
    counts = {}
    our_kernels.clear()  # shares are prepared with them
    for case, adapter in adapters.items():
        adapter(batches(1)[0])
        counts[case] = len(our_kernels)
        our_kernels.clear()
    assert counts == {"tent": layers, "bn_adapt": layers, "source": 0, "ttn": 0}
    adapters["tent"].unwrap()(batches(1)[0])
    assert not our_kernels


def a_layer(**settings):
    torch.manual_seed(1)
    layer = torch.nn.BatchNorm2d(3, **settings)
    return torch.nn.Sequential(layer, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 5))


@pytest.mark.parametrize("missing", ["weight", "bias"])
def test_batch_norms_without_a_weight_or_a_bias_run_as_they_are(missing, our_kernels):
    model = a_layer()
    model[0].register_parameter(missing, None)
    assert torch.equal(dp.bn_adapt(model)(batches(1)[0]), model.train()(batches(1)[0]))
    assert not our_kernels


def test_a_channel_of_one_value_is_refused_as_torch_refuses_it(our_kernels):
    adapter = dp.bn_adapt(a_layer(track_running_stats=False))
    with pytest.raises(dp.errors.ForwardError, match="more than 1 value per channel"):
        adapter(torch.rand(1, 3, 1, 1))
    adapter(torch.rand(1, 3, 2, 1))
    assert len(our_kernels) == 1


@traced
@pytest.mark.parametrize("case", ["tent", "tent+crowd", "eata+crowd", "swr"])
def test_fused_networks_round_as_eager_ones_do(case, our_kernels, monkeypatch):
    torch._dynamo.reset()
    fused = []
    monkeypatch.setattr(fusion, "fuse", lambda *given, fuse=fusion.fuse: fused.append(fuse(*given)))
    stream = faulty_stream()
    engine = Compiled(records=False, backend=fusion.fuse_only_backend)
    assert_same(run(make(case), stream), run(make(case, engine=engine), stream))
    assert set(fused) == {5}, "every batch norm of the network"


def test_steps_are_recorded_unfused_where_no_kernel_can_be_compiled(monkeypatch):
    monkeypatch.setattr(compiled_engine, "expect_recordable", lambda device: None)
    monkeypatch.setattr(compiled_engine, "can_compile", lambda device: False)
    engine = Fused()
    engine._graph = Fixed()
    stream = faulty_stream()
    assert_same(run(make("tent+crowd"), stream), run(make("tent+crowd", engine=engine), stream))
    assert engine._graph._steps
    assert not engine._forms


class Rectifying(torch.nn.BatchNorm2d):
    """A batch norm with its activation built in, as libraries of models have them."""

    def forward(self, x):
        return torch.relu(super().forward(x))


@traced
def test_batch_norms_of_somebodys_own_round_alike_as_well(our_kernels):
    def build_adapter(engine=None):
        torch.manual_seed(1)
        layers = (torch.nn.Conv2d(3, 8, 3), Rectifying(8), torch.nn.Conv2d(8, 8, 3), torch.nn.BatchNorm2d(8))
        model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5))
        adapter = dp.tent(model, lr=0.1)
        adapter._engine = engine or adapter._engine
        return adapter

    torch._dynamo.reset()
    engine = Compiled(records=False, backend=fusion.fuse_only_backend)
    assert_same(run(build_adapter(), batches(8)), run(build_adapter(engine), batches(8)))
    assert {images.shape[-1] for images in our_kernels} == {4}, "the one that is torch's own"


@traced
def test_compiled_networks_are_not_compiled_anew_for_every_batch():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    adapter, stream = compiled("swr+crowd"), batches(8)
    run(adapter, stream)
    plain = adapter.unwrap()
    run(adapter.reset(), stream)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2, "one for each network"
    assert adapter.network.through is None
    assert not any(module._forward_pre_hooks or "forward" in vars(module) for module in plain.modules())
    assert same_state(state_of(adapter), state_of(run_through(make("swr+crowd"), stream)))


def run_through(adapter, stream):
    run(adapter, stream)
    return adapter


@traced
@pytest.mark.parametrize("case", ["ent", "tent+crowd", "eata+crowd", "conjugate+crowd", "swr+crowd"])
def test_compiled_lessons_are_the_same_lessons(case):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    stream = faulty_stream()
    assert_same(run(make(case), stream), run(make(case, engine=Fixed(compiled_lesson("aot_eager"))), stream))
    assert torch._dynamo.utils.counters["graph_break"] == {}
    expected = 0 if case == "swr+crowd" else 1  # with prototypes it looks at another view
    assert bool(torch._dynamo.utils.counters["stats"]["unique_graphs"]) == expected


@traced
def test_a_network_that_cannot_be_traced_is_a_named_error_of_the_graph_engine(monkeypatch):
    def broken(*_):
        raise RuntimeError("some fault of a tracer")

    torch._dynamo.reset()
    monkeypatch.setattr(compiled_engine, "expect_recordable", lambda device: None)
    monkeypatch.setattr(compiled_engine, "can_compile", lambda device: True)
    monkeypatch.setattr(fusion, "fuse", broken)
    adapter = make("tent+crowd", engine=Fused())
    run(adapter, batches(2))
    before = state_of(adapter)
    with pytest.raises(dp.errors.EngineError, match=r"some fault of a tracer.*channels_last=False") as raised:
        adapter(batches(1)[0])
    assert "compiler" not in str(raised.value)
    assert same_state(before, state_of(adapter))


@traced
def test_a_compiler_that_fails_is_a_named_error():
    def broken(graph_module, inputs):
        raise RuntimeError("no working C++ compiler found")

    torch._dynamo.reset()
    adapter = make("tent+crowd", engine=Compiled(records=False, backend=broken))
    run(adapter, batches(2))
    before = state_of(adapter)
    with pytest.raises(
        dp.errors.EngineError,
        match=r'torch.compile failed: .*no working C\+\+ compiler found.*needs a C\+\+ compiler.*engine="eager"',
    ):
        adapter(batches(1)[0])
    assert same_state(before, state_of(adapter))


@traced
@pytest.mark.slow
def test_inductor_agrees_to_rounding():
    torch._dynamo.reset()
    stream = [images.double() for images in batches(6)]
    answers = []
    for engine in ("eager", "compile"):
        adapter = dp.tent(build("wide_resnet").double(), lr=0.1, select=dp.ConfidenceDifference(), engine=engine)
        answers.append(torch.stack(run(adapter, stream)[0]))
    torch.testing.assert_close(*answers, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", ["batch_norm_1d", "batch_norm_3d", "tied"])
def test_static_steps_on_other_kinds_of_networks(norm):
    construct, shape = NORM_NETWORKS[norm]
    torch.manual_seed(3)
    model = randomize(construct(), shape)
    outputs = []
    for engine in (None, Fixed()):
        adapter = adapter_for("eata+crowd", model, prepared=False).prepare(source_data(shape=shape))
        adapter._engine = engine or adapter._engine
        outputs.append(run(adapter, batches(6, shape=shape)))
    assert_same(*outputs)
