"""Every engine against the eager one: the same answers, records and state."""

import copy
import gc
import warnings
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import is_tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import driftproof as dp
from cases import (
    CASES,
    DRAWING_METHODS,
    adapter_for,
    batches,
    same_but_bookkeeping,
    same_state,
    shifted,
    source_data,
    state_of,
    tensors_of,
)
from driftproof import kernels
from driftproof.adapter import engines, networks
from driftproof.adapter import storage as storage_module
from driftproof.adapter.engines import (
    AutoEngine,
    CompiledEngine,
    CudaGraphEngine,
    EagerEngine,
    FusedCudaGraphEngine,
    StaticEngine,
    cuda_graph,
)
from driftproof.adapter.engines import compiled as compiled_module
from driftproof.adapter.engines.compiled import compile_objective
from driftproof.adapter.engines.static import MAX_SHAPES
from driftproof.kernels import fusion
from driftproof.optimizers import _INITIAL, FusedAdam, build_optimizer, load_optimizer_state
from driftproof.statistics import batch as batch_statistics
from driftproof.tensor_list import TensorList, are_finite
from fault_injection import (
    CAPTURABLE_CASES,
    WITHOUT_LEARNING,
    RejectBright,
    assert_same,
    faulty_stream,
    join,
    make_adapter,
    run,
    use_engine,
    uses_dynamo,
)
from networks import NORM_NETWORKS, WideResNet, build, randomize


class Tape(TorchDispatchMode):
    """Records operations and the memory they use, as a CUDA graph does, without the Python code around them."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        memory = {tensor.untyped_storage().data_ptr() for tensor in tree_leaves((args, kwargs)) if is_tensor(tensor)}
        is_new = [
            is_tensor(tensor) and tensor.untyped_storage().data_ptr() not in memory for tensor in tree_leaves(outputs)
        ]
        self.operations.append((func, args, kwargs, tree_leaves(outputs), is_new))
        return outputs

    def replay(self):
        with torch.no_grad():
            for func, args, kwargs, outputs, is_new in self.operations:
                for old, new, copied in zip(outputs, tree_leaves(func(*args, **kwargs)), is_new, strict=True):
                    if copied:
                        old.copy_(new)


class TapedEngine(StaticEngine):
    """Stands in for `CudaGraphEngine` on a CPU: the third batch of a shape is recorded, later ones are replayed."""

    def __init__(self, method, state):
        super().__init__(method, state)
        self.tapes = {}

    def _execute(self, step):
        if step.uses_rng is None:
            return super()._execute(step)
        if step not in self.tapes:
            with Tape() as tape:
                result = step.run(self.method, self.state)
            self.tapes[step] = tape, result
        else:
            tape, result = self.tapes[step]
            tape.replay()
        return result.clone()


ENGINES = [EagerEngine, StaticEngine, TapedEngine]


def compose_adapter(engine=None, **choices):
    """A small method of our own, run by an engine; any choice can be replaced."""
    defaults = {
        "scope": dp.scopes.norm_affine(),
        "statistics": dp.statistics.Batch(),
        "loss": dp.losses.Entropy(),
        "select": RejectBright(),
        "optimizer": partial(torch.optim.Adam, lr=0.05),
    }
    return use_engine(dp.Adapter(build("wide_resnet"), **(defaults | choices)), engine)


def assert_engines_agree(build_adapter, stream, engine=StaticEngine):
    """Check that results and state are bit-equal to the eager engine's, and how many shapes have a static step."""
    eager, other = build_adapter(engine=EagerEngine), build_adapter(engine=engine)
    assert_same(run(eager, stream), run(other, stream))
    assert same_state(state_of(eager), state_of(other))
    assert len(other._engine._steps) == 2
    assert engine is not TapedEngine or len(other._engine.tapes) == 2


# --- static steps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["tent+crowd", "eata", "swr+crowd"])
def test_static_step_equals_eager_step(case):
    """With Adam; `test_recorded_step_needs_no_python` has all cases."""
    assert_engines_agree(partial(make_adapter, case), faulty_stream())


@pytest.mark.parametrize("case", ["ttn", "eata+crowd", "swr"])
def test_static_step_equals_eager_step_in_segmentation(case):
    assert_engines_agree(partial(make_adapter, case, "segmentation"), faulty_stream())


@pytest.mark.parametrize("norm", ["batch_norm_1d", "batch_norm_3d", "tied"])
def test_static_step_equals_eager_step_on_other_networks(norm):
    construct, shape = NORM_NETWORKS[norm]
    torch.manual_seed(3)
    model, results = randomize(construct(), shape), []
    for engine in (EagerEngine, StaticEngine):
        adapter = adapter_for("eata+crowd", model, prepared=False).prepare(source_data(shape=shape))
        results.append(run(use_engine(adapter, engine), batches(5, shape=shape)))
    assert_same(*results)


class RandomRestore(dp.regularizers.Regularizer):
    """Writes to the parameters after each step, at random."""

    def on_step(self, step):
        with torch.no_grad():
            for now, start in zip(step.parameters, step.source_parameters, strict=True):
                draw = torch.rand(now.shape, generator=step.generator, device=now.device)
                now.copy_(torch.where(draw < 0.3, start, now))


MOVING_BLEND = dp.statistics.Blend(0.5, momentum=0.3)
# Choices that do not touch each other share a run, which costs as much as one choice alone.
SETTINGS = {
    "output after, moving statistics": {"output": "after", "statistics": MOVING_BLEND},
    "moving source statistics": {"source_statistics": MOVING_BLEND, "select": dp.ConfidenceDifference()},
    "averages, novelty, clipped": {
        "average_over": "batch", "mean_entropy_over": "selected", "mean_entropy": 0.3,
        "novelty": lambda step: -step.confidence_change, "gradient": dp.gradients.Clipped(0.1),
    },
    "accumulate": {"accumulate": 2, "output": "after", "statistics": MOVING_BLEND},
    "random restore": {"regularizer": RandomRestore()},
    "random restore, accumulate": {"regularizer": RandomRestore(), "accumulate": 2},
    "sharpness-aware, memory": {"gradient": dp.gradients.SharpnessAware(0.05), "memory": dp.memories.LatestImages(8)},
    "teacher, restore": {
        "teacher": dp.EMA(0.9), "output": "teacher", "loss": dp.losses.Consistency(),
        "after": [dp.after.PullToSource(0.1), dp.after.StochasticRestore(0.2)],
    },
    "views, sharpness-aware": {"gradient": dp.gradients.SharpnessAware(0.05), "view": shifted, "teacher": dp.EMA(0.9)},
    "reset every": {"after": dp.after.ResetEvery(3)},
    "reset when": {"after": dp.after.ResetWhen(threshold=0.9), "teacher": dp.EMA(0.9)},
    "schedule": {"lr_schedule": lambda steps: 1.0 / (1.0 + steps)},
}  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_choice_holds_in_recorded_steps(settings):
    """The optimizer is one whose step on a CPU can be recorded; a learning rate in a tensor cannot be."""
    optimizer = partial(torch.optim.SGD, lr=0.5, momentum=0.9)
    engine = StaticEngine if "lr_schedule" in settings else TapedEngine
    assert_engines_agree(partial(compose_adapter, optimizer=optimizer, **settings), faulty_stream(), engine)


@pytest.mark.parametrize(
    "settings",
    [
        {"channels_last": True},
        {"precision": "bf16"},
        {"optimizer": torch.optim.RMSprop, "output": "after"},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_layout_precision_and_optimizer_hold_in_static_steps(settings):
    assert_engines_agree(partial(make_adapter, "eata+crowd", **settings), faulty_stream())


# Their steps are those of another case, with another loss per sample, scope, number or combination of components.
SAME_STEPS = ("source", "ent", "ent+crowd", "gce", "gce+crowd", "conjugate", "conjugate+crowd", "tent", "come", "cmf")
SAME_STEPS += ("rdumb", "eata", "eata+crowd", "swr", "tent+unient", "stamp", "rotta", "ttn", "bn_adapt", "ttaug")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case in SAME_STEPS else ()) for case in CAPTURABLE_CASES]
)
def test_recorded_step_needs_no_python(case):
    options = {} if case in WITHOUT_LEARNING else {"optimizer": partial(torch.optim.SGD, momentum=0.9)}
    assert_engines_agree(partial(make_adapter, case, **options), faulty_stream(), TapedEngine)


class ReplacingOptimizer(torch.optim.Optimizer):
    """Replaces tensors by new ones, as optimizers written by hand do."""

    def __init__(self, parameters, lr=0.05):
        super().__init__(parameters, {"lr": lr})

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["square"] = 0.9 * state.get("square", torch.ones_like(parameter)) + parameter.grad**2
                parameter.data = parameter.data - group["lr"] * parameter.grad / state["square"].sqrt()


class SteepEntropy(dp.losses.Entropy):
    """Entropy, but of bright batches so steep that the square of its gradient is infinite."""

    def per_sample(self, step):
        return super().per_sample(step) * torch.where(step.images.mean() > 5, 1e25, 1.0)


@pytest.mark.parametrize(
    "choices",
    [
        {"optimizer": ReplacingOptimizer},
        {"optimizer": ReplacingOptimizer, "accumulate": 2},
        {"optimizer": ReplacingOptimizer, "select": None, "loss": SteepEntropy()},
        {"optimizer": partial(torch.optim.SGD, lr=0.05, momentum=0.9, dampening=0.1)},
    ],
    ids=["replacing", "accumulate", "steep", "dampening"],
)
def test_optimizer_may_replace_or_create_tensors(choices):
    assert_engines_agree(partial(compose_adapter, **choices), [*faulty_stream(), *batches(7, seed=2)])


def test_optimizer_that_replaces_tensors_steps_as_in_a_plain_loop():
    adapter, student = compose_adapter(optimizer=ReplacingOptimizer, select=None), build("wide_resnet").train()
    affine = [p for m in student.modules() if isinstance(m, nn.BatchNorm2d) for p in (m.weight, m.bias)]
    optimizer, (first, *others) = ReplacingOptimizer(affine), batches(4)
    for images in (first, first * torch.nan, *others):
        answer = adapter(images)
        if images.isnan().any():
            continue
        logits = student(images)
        torch.testing.assert_close(answer, logits)
        optimizer.zero_grad()
        (-(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()).backward()
        optimizer.step()


def test_buffers_that_the_model_writes_agree():
    class CountingNet(WideResNet):
        def __init__(self):
            super().__init__()
            self.register_buffer("replaced", torch.zeros(()))
            self.register_buffer("written", torch.zeros(()))

        def forward(self, x):
            self.replaced = self.replaced + x.detach().mean().nan_to_num(5, 5)
            self.written += 1
            return super().forward(x)

    torch.manual_seed(1)
    model = randomize(CountingNet())

    def build_adapter(engine):
        return use_engine(dp.tent(model, select=dp.ConfidenceDifference() & RejectBright(), lr=0.1), engine)

    assert_engines_agree(build_adapter, faulty_stream())


class CheckpointedNet(WideResNet):
    """Saves no activations of its blocks and computes them again in the backward pass."""

    def forward(self, x):
        blocks = checkpoint(self.blocks, self.stem(x), use_reentrant=False)
        return self.fc(torch.relu(self.norm(blocks)).mean(dim=(2, 3)))


@pytest.mark.parametrize("rule", [dp.statistics.Batch(), MOVING_BLEND], ids=repr)
def test_activation_checkpointing_keeps_statistics(rule):
    torch.manual_seed(1)
    model = randomize(WideResNet())
    recomputing = CheckpointedNet()
    recomputing.load_state_dict(model.state_dict())

    def build_adapter(engine, source=recomputing):
        adapter = dp.ent(source, statistics=rule, select=dp.ConfidenceDifference(), lr=0.01)
        return use_engine(adapter, engine)

    assert_engines_agree(build_adapter, faulty_stream())
    adapter, plain = build_adapter(EagerEngine), build_adapter(EagerEngine, model)
    assert_same(run(plain, faulty_stream()), run(adapter, faulty_stream()))
    assert torch.equal(adapter.unwrap().blocks[0].bn1.running_mean, model.blocks[0].bn1.running_mean)
    assert same_state(dict(adapter.reset().unwrap().state_dict()), dict(model.state_dict()))


# --- no host synchronization ------------------------------------------------------------------------------------------

_FETCHING = {"tolist", "item", "__bool__", "__int__", "__float__", "__index__", "equal", "nonzero", "numpy"}
_SENDING = {"tensor", "as_tensor", "from_numpy", "new_tensor"}


class FunctionCalls(TorchFunctionMode):
    """Notes every call that copies a number from the device to the host or back."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        sends_number = func.__name__ == "__setitem__" and not isinstance(args[2], torch.Tensor)
        if func.__name__ in _FETCHING | _SENDING or sends_number:
            self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


class DispatchedCalls(TorchDispatchMode):
    """Notes every operation that copies a number to the host."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.equal):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def find_synchronizations(call):
    """The names of all calls and operations in `call` that make the host wait."""
    with FunctionCalls() as calls, DispatchedCalls() as operations:
        call()
    return calls.found + operations.found


READS_INDEX = ["__int__", "aten._local_scalar_dense.default"]


@pytest.mark.parametrize(
    ("case", "engine"),
    [
        *((case, EagerEngine) for case in CAPTURABLE_CASES),
        *((case, StaticEngine) for case in ("ttn", "tent+crowd", "eata", "swr")),
    ],
)
def test_step_does_not_synchronize(case, engine):
    options = {} if case in WITHOUT_LEARNING else {"optimizer": torch.optim.SGD}
    adapter, stream = make_adapter(case, engine=engine, **options), batches(4)
    run(adapter, stream[: 1 if engine is EagerEngine else 3])
    expected = READS_INDEX if case.startswith(DRAWING_METHODS) else []  # random numbers follow the index
    assert find_synchronizations(lambda: adapter(stream[3])) == expected
    with FunctionCalls() as calls:
        assert adapter.last.skipped is None
    assert calls.found == ["tolist"]


def test_swr_without_prototypes_does_not_synchronize():
    adapter, stream = make_adapter("swr", engine=EagerEngine, prototypes=False, optimizer=torch.optim.SGD), batches(4)
    run(adapter, stream[:3])
    assert find_synchronizations(lambda: adapter(stream[3])) == []


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_no_choice_synchronizes(settings):
    adapter = compose_adapter(EagerEngine, optimizer=partial(torch.optim.SGD, lr=0.5, momentum=0.9), **settings)
    stream = batches(4)
    run(adapter, stream[:3])
    found = find_synchronizations(lambda: adapter(stream[3]))
    draws = isinstance(settings.get("regularizer"), RandomRestore) or isinstance(settings.get("after"), list)
    draws = draws or "view" in settings
    if "lr_schedule" in settings:
        found = [name for name in found if "item" not in name and "scalar" not in name]  # SGD's own, on a CPU
    assert found == (READS_INDEX if draws else [])


def test_default_view_sends_nothing_to_device():
    images, generator = batches(1)[0], torch.Generator()
    assert find_synchronizations(lambda: dp.augment.photometric(images, generator)) == []


def test_random_numbers_follow_good_batches():
    def adapt(engine, stream):
        adapter = compose_adapter(engine, regularizer=RandomRestore())
        run(adapter, stream)
        return state_of(adapter)

    stream = batches(8)
    with_nan = [*stream[:5], stream[5] * torch.nan, *stream[5:]]
    expected = adapt(EagerEngine, stream)
    assert same_state(expected, adapt(StaticEngine, stream))
    assert same_but_bookkeeping(expected, adapt(StaticEngine, with_nan))


# --- teacher, index and schedule --------------------------------------------------------------------------------------


class AgreeWithTeacher(dp.losses.Loss):
    """A user's loss that reads the shared teacher."""

    def per_sample(self, step):
        target = step.teacher_logits.softmax(1)
        return -(target * step.log_probabilities).sum(1)


class OwnTeacher(dp.losses.Loss):
    """A user's loss with a teacher of its own, which it moves after each step."""

    def reset_state(self, network, parameters):
        self.model = network.clone().requires_grad_(False)

    def per_sample(self, step):
        with torch.no_grad():
            target = self.model(step.images).softmax(1)
        return -(target * step.log_probabilities).sum(1) + torch.where(step.images.mean() > 5, torch.nan, 0.0)

    def on_step(self, step):
        with torch.no_grad():
            for own, now in zip(self.model.model.parameters(), step.network.model.parameters(), strict=True):
                own.lerp_(now, 0.1)


def teacher_of(adapter):
    teacher = adapter.state.teacher or adapter.method.loss.model
    return {name: tensor.clone() for name, tensor in teacher.model.state_dict().items()}


@pytest.mark.parametrize(
    "choices",
    [
        {"teacher": dp.EMA(0.9), "loss": AgreeWithTeacher(), "output": "teacher"},
        {"loss": OwnTeacher()},
    ],
    ids=["shared", "own"],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_nan_batch_leaves_teacher_unchanged(choices, engine):
    """NaN in the images, and in the loss of finite images."""
    choices = choices | {"select": None, "optimizer": partial(torch.optim.SGD, lr=0.5), "guard": ()}
    adapter, clean = compose_adapter(engine, **choices), compose_adapter(engine, **choices)
    stream = batches(6)
    run(adapter, stream[:4])
    before = teacher_of(adapter)
    assert not same_state(before, dict(adapter.source.model.state_dict())), "the teacher moves"
    faults = [stream[0] * torch.nan, *([stream[0] + 5.2] if "teacher" not in choices else [])]
    for images in faults:
        adapter(images)
        assert adapter.last.skipped.startswith("NaN")
        assert same_state(before, teacher_of(adapter))
    run(adapter, stream[4:])
    run(clean, stream)
    assert same_but_bookkeeping(state_of(clean), state_of(adapter))


class IndexLog(dp.selection.Selection):
    """Keeps the last six values of `step.index`, and weights samples by a schedule over it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("indices", torch.full((6,), -1))

    def weights(self, step):
        return torch.ones_like(step.weights) * 0.5**step.index

    def on_batch(self, step):
        self.indices = torch.cat([self.indices[1:], step.index.view(1)])


@pytest.mark.parametrize("engine", ENGINES)
def test_index_counts_good_batches(engine):
    adapter = compose_adapter(engine, select=IndexLog(), optimizer=partial(torch.optim.SGD, lr=0.5))
    stream = batches(6)
    stream.insert(4, stream[0] * torch.nan)
    losses = [adapter.step(images).record.loss for images in stream]
    assert adapter.select.indices.tolist() == [0, 1, 2, 3, 4, 5]
    plain = compose_adapter(EagerEngine, select=None, optimizer=partial(torch.optim.SGD, lr=0.0))
    at_start = [plain.step(images).record.loss for images in stream[:2]]
    assert losses[:1] == at_start[:1]
    assert losses[6] < 0.1 * losses[0], "the schedule goes on"


@pytest.mark.parametrize("engine", [EagerEngine, StaticEngine])
@pytest.mark.parametrize(
    ("optimizer", "tolerance"),
    [(partial(torch.optim.SGD, momentum=0.9), 0.0), (torch.optim.Adam, 1e-6)],
    ids=["SGD", "Adam"],
)
def test_lr_schedule_equals_learning_rate_set_by_hand(optimizer, tolerance, engine):
    """Powers of two, so that a learning rate in a tensor rounds as one in a number does."""
    scheduled = compose_adapter(
        engine, optimizer=partial(optimizer, lr=0.25), lr_schedule=lambda steps: 0.5 ** (steps // 2)
    )
    by_hand = compose_adapter(engine, optimizer=partial(optimizer, lr=0.25))
    steps = 0
    for images in faulty_stream():
        by_hand.optimizer.param_groups[0]["lr"] = 0.25 * 0.5 ** (steps // 2)
        by_hand(images)
        steps += by_hand.last.stepped
        scheduled(images)
    assert steps == 9
    for name, parameter in scheduled.trainable_parameters.items():
        expected = by_hand.trainable_parameters[name]
        torch.testing.assert_close(parameter, expected, rtol=tolerance, atol=tolerance)
        start = scheduled.source.model.get_parameter(name)
        assert not torch.equal(parameter, start)


def test_learning_rate_set_by_hand_holds_in_static_steps():
    def adapt(engine):
        adapter, outputs = make_adapter("tent+crowd", engine=engine), []
        for index, images in enumerate(batches(8)):
            adapter.optimizer.param_groups[0]["lr"] = 0.1 if index < 4 else 0.01
            outputs.append(adapter(images))
        return torch.stack(outputs)

    assert torch.equal(adapt(EagerEngine), adapt(StaticEngine))


# --- optimizers -------------------------------------------------------------------------------------------------------

_OPTIMIZER_OPTIONS = {
    torch.optim.SGD: [{}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "weight_decay": 0.1}],
    torch.optim.Adam: [{}, {"weight_decay": 0.1, "amsgrad": True}],
    torch.optim.AdamW: [{}, {"weight_decay": 0.0}],
    torch.optim.RMSprop: [{}, {"momentum": 0.9, "centered": True, "weight_decay": 0.1}],
    torch.optim.NAdam: [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    torch.optim.Rprop: [{}],
    torch.optim.Adagrad: [{}, {"weight_decay": 0.1, "initial_accumulator_value": 0.3}],
}


def optimizer_cases():
    for kind in _INITIAL:
        for options in _OPTIMIZER_OPTIONS.get(kind, [{}, {"weight_decay": 0.1}]):
            yield pytest.param(kind, options, id=f"{kind.__name__}-{'-'.join(options)}")


@pytest.mark.parametrize(("kind", "options"), list(optimizer_cases()))
def test_optimizer_state_exists_from_the_start_and_equals_lazy_state(kind, options):
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((3, 2), (4,))]
    ours, theirs = ([torch.nn.Parameter(value.clone()) for value in start] for _ in range(2))
    make = partial(kind, lr=0.05, **options)
    built, lazy = build_optimizer(make, tuple(ours), capturable=True, scheduled=False), make(theirs)
    assert all(torch.equal(one, value) and one.grad is None for one, value in zip(ours, start, strict=True))
    keys = {parameter: set(built.state[parameter]) for parameter in ours}
    for _ in range(4):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        built.step()
        lazy.step()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
        state, expected = (
            built.state[one],
            {key: value for key, value in lazy.state[other].items() if value is not None},
        )
        assert {key for key, value in state.items() if value is not None} == expected.keys()
        assert keys[one] >= expected.keys(), "the state exists before the first step"
        for key, value in expected.items():
            torch.testing.assert_close(state[key], value, rtol=0, atol=0)


def test_loaded_optimizer_state_keeps_implementation_flags():
    """A state carries hyper-parameters from engine to engine, but not how the step is computed."""
    parameters = [torch.nn.Parameter(torch.ones(2))]
    saved = torch.optim.Adam(parameters, lr=0.3, foreach=True)
    parameters[0].grad = torch.ones(2)
    saved.step()
    loaded = torch.optim.Adam(parameters, lr=0.1, fused=True)
    load_optimizer_state(loaded, saved.state_dict())
    (group,) = loaded.param_groups
    assert (group["lr"], group["foreach"], group["fused"]) == (0.3, None, True)
    assert loaded.state[parameters[0]]["step"] == 1


# --- lifecycle --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["ttn", "eata", "swr"])
def test_state_moves_between_engines_mid_stream(case, tmp_path):
    stream = faulty_stream()
    expected = run(make_adapter(case), stream)
    for first, second in ((EagerEngine, StaticEngine), (StaticEngine, EagerEngine)):
        adapter = make_adapter(case, engine=first)
        begun = run(adapter, stream[:8])
        adapter.save(tmp_path / "state")
        other = make_adapter(case, engine=second, prepared=False).load(tmp_path / "state")
        assert_same(expected, join(begun, run(other, stream[8:])))


def test_accumulated_gradients_move_between_engines(tmp_path):
    stream = batches(9)
    build_adapter = partial(make_adapter, "tent+crowd", accumulate=4)
    expected = run(build_adapter(), stream)
    adapter = build_adapter(engine=StaticEngine)
    begun = run(adapter, stream[:6])
    adapter.save(tmp_path / "state")
    assert adapter.state.accumulated_batches == 2
    assert_same(expected, join(begun, run(build_adapter().load(tmp_path / "state"), stream[6:])))


@pytest.mark.parametrize("case", ["ttn", "eata+crowd"])
def test_run_after_reset_and_load_is_bit_equal(case):
    adapter, stream = make_adapter(case, engine=StaticEngine), faulty_stream()
    first = run(adapter, stream)
    assert_same(first, run(adapter.reset(), stream))
    state = adapter.state_dict()
    again = run(adapter, stream[:4])
    adapter.load_state_dict(state)
    assert_same(again, run(adapter, stream[:4]))


def test_rejected_state_changes_nothing():
    adapter, stream = make_adapter("tent", engine=StaticEngine), batches(8)
    expected = run(make_adapter("tent"), stream)
    begun = run(adapter, stream[:4])
    with pytest.raises(dp.errors.StateError):
        adapter.load_state_dict(make_adapter("eata").state_dict())
    assert_same(expected, join(begun, run(adapter, stream[4:])))


def test_adapter_moves_to_another_dtype_mid_stream():
    def adapt(engine):
        adapter = make_adapter("eata", engine=engine)
        begun = run(adapter, batches(4))
        adapter.to(torch.float64)
        return join(begun, run(adapter, [images.double() for images in batches(4, seed=1)]))

    assert_same(adapt(EagerEngine), adapt(StaticEngine))


def test_copy_of_a_running_adapter_is_independent():
    adapter, stream = make_adapter("swr+crowd", engine=StaticEngine), batches(8)
    run(adapter, stream[:5])
    twin = use_engine(copy.deepcopy(adapter), StaticEngine)
    assert_same(run(adapter, stream[5:]), run(twin, stream[5:]))
    before = state_of(adapter)
    twin(stream[0])
    assert same_state(before, state_of(adapter))


def test_tensors_keep_their_addresses():
    adapter, stream = make_adapter("eata", engine=StaticEngine, statistics=MOVING_BLEND), batches(10)

    def addresses():
        return [tensor.data_ptr() for tensor in (*adapter.parameters(), *adapter.buffers(), *tensors_of(adapter))]

    run(adapter, stream[:3])
    before = addresses()
    run(adapter, [*stream[3:6], stream[6][:3], *stream[7:9]])  # with an eager step in between
    assert addresses() == before
    (step,) = adapter._engine._steps.values()
    adapter.load_state_dict(adapter.state_dict())
    assert len(adapter._engine._steps) == 0, "loading replaces tensors"
    run(adapter, stream[:3])
    assert step not in adapter._engine._steps.values()


def test_replaced_parameter_memory_is_noticed():
    """A recorded step would go on with the memory that it was recorded with."""

    def adapt(engine):
        adapter, stream = make_adapter("tent", engine=engine, optimizer=torch.optim.SGD), batches(8)
        begun = run(adapter, stream[:4])
        for parameter in adapter.network.model.parameters():
            parameter.data = 0.9 * parameter.data
        return join(begun, run(adapter, stream[4:]))

    expected = adapt(EagerEngine)
    for engine in (StaticEngine, TapedEngine):
        assert_same(expected, adapt(engine))


def test_component_buffers_are_on_the_device_of_the_model(monkeypatch):
    """A buffer left on the host would make every step wait for it. The meta device stands in for a GPU."""
    monkeypatch.setattr(networks, "blocking_problems", lambda model: [])
    choices = {"after": [dp.after.ResetEvery(2), dp.after.ResetWhen()], "regularizer": GrowingBuffer()}
    adapter = dp.Adapter(
        build("wide_resnet").to("meta"),
        scope=dp.scopes.norm_affine(),
        statistics=dp.statistics.Batch(),
        loss=dp.losses.Entropy(),
        select=IndexLog(),
        optimizer=partial(torch.optim.Adam, lr=0.05),
        **choices,
    )
    assert {buffer.device.type for buffer in adapter.state.buffers()} == {"meta"}
    assert len(list(adapter.state.components.buffers())) == 4


def test_at_most_max_shapes_have_static_steps():
    adapter, reference = make_adapter("tent", engine=StaticEngine), make_adapter("tent")
    stream = [images for size in range(2, 9) for images in batches(3, size=size, seed=size)]
    assert_same(run(reference, stream), run(adapter, stream))
    assert len(adapter._engine._steps) == MAX_SHAPES
    for size in range(100):
        adapter._engine._shapes.record((size,))
    assert len(adapter._engine._shapes._counts) <= 64


def test_steps_are_eager_until_the_first_good_batch():
    """Buffers that a component creates in its first step cannot come into being in a captured one."""
    adapter, stream = make_adapter("eata", engine=StaticEngine, statistics=MOVING_BLEND), batches(3)
    run(adapter, [images * torch.nan for images in stream])
    assert len(adapter._engine._steps) == 0
    run(adapter, stream)
    assert len(adapter._engine._steps) == 1


def test_answers_and_records_are_not_overwritten():
    settings = {"engine": TapedEngine, "optimizer": torch.optim.SGD}
    adapter, stream = make_adapter("tent+crowd", **settings), batches(6)
    run(adapter, stream[:3])
    answer, record = adapter.step(stream[3])
    before = answer.clone(), record.selected.clone(), record.novelty.clone(), record.objective.clone()
    adapter(stream[5]), adapter(stream[4] * torch.nan)
    after = answer, record.selected, record.novelty, record.objective
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert record.skipped is None
    assert record.stepped


# --- failures ---------------------------------------------------------------------------------------------------------


class GrowingBuffer(dp.regularizers.Regularizer):
    """Keeps a larger tensor after every batch."""

    def __init__(self):
        super().__init__()
        self.register_buffer("history", torch.zeros(1))

    def on_batch(self, step):
        self.history = torch.cat([self.history, self.history[:1]])


class FailingOptimizer(torch.optim.SGD):
    """Fails in its third step, after it has written to the parameters."""

    def step(self, closure=None):
        super().step()
        self.count = getattr(self, "count", 0) + 1
        if self.count > 2:
            raise RuntimeError("no luck")


@pytest.mark.parametrize("engine", [EagerEngine, StaticEngine])
def test_failing_step_leaves_state_unchanged(engine):
    adapter, stream = compose_adapter(engine, optimizer=partial(FailingOptimizer, lr=0.1)), batches(3)
    run(adapter, stream[:2])
    before = state_of(adapter)
    with pytest.raises(RuntimeError, match="no luck"):
        adapter(stream[2])
    assert same_state(before, state_of(adapter))
    assert all(parameter.grad is None for parameter in adapter.parameters())


def test_growing_buffer_runs_uncaptured_and_is_named_while_capturing(monkeypatch):
    adapter = compose_adapter(StaticEngine, regularizer=GrowingBuffer())
    assert_same(run(compose_adapter(EagerEngine, regularizer=GrowingBuffer()), batches(5)), run(adapter, batches(5)))
    assert len(adapter.method.regularizer.history) == 6
    monkeypatch.setattr(storage_module, "_is_capturing", lambda device: True)
    with pytest.raises(dp.errors.EngineError, match=r"`regularizer\.history` to keep its shape.*engine=\"eager\""):
        adapter(batches(1)[0])
    assert len(adapter.method.regularizer.history) == 6


@pytest.fixture
def failing_capture(monkeypatch):
    """A device whose captures fail; yields the warm-ups and captures that were tried."""
    tried = []

    def capture(engine, run, generator=None):
        tried.append("capture")
        raise cuda_graph._to_engine_error(RuntimeError("operation not permitted when stream is capturing"))

    def warm_up(engine, step):
        tried.append("warm-up")
        return StaticEngine._execute(engine, step)

    for module in (cuda_graph, engines.auto):
        monkeypatch.setattr(module, "supports_cuda_graphs", lambda device: True)
    monkeypatch.setattr(CudaGraphEngine, "_capture", capture)
    monkeypatch.setattr(CudaGraphEngine, "_warm_up", warm_up)
    return tried


def test_failing_capture_falls_back_to_eager_with_one_warning(failing_capture):
    stream = faulty_stream()
    expected = run(make_adapter("tent", engine=EagerEngine, guard=()), stream)
    adapter = make_adapter("tent", guard=())
    assert isinstance(adapter._engine, AutoEngine)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual = run(adapter, stream)
    (warning,) = caught
    assert warning.category is RuntimeWarning
    assert "could not be captured: operation not permitted" in str(warning.message)
    assert 'engine="eager"' in str(warning.message)
    assert_same(expected, actual)
    assert failing_capture == ["warm-up", "capture"], "not tried again"


def test_failing_capture_raises_under_engine_graph(failing_capture, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    adapter, stream = make_adapter("tent", **{"engine": CudaGraphEngine}), batches(3)
    run(adapter, stream[:2])
    before = state_of(adapter)
    with pytest.raises(dp.errors.EngineError, match="could not be captured: operation not permitted"):
        adapter(stream[2])
    assert same_state(before, state_of(adapter))


def test_graph_engine_needs_a_cuda_device(monkeypatch):
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


def test_dynamic_method_is_refused_with_its_reason():
    message = "TeacherEnsemble is data-dependent: its teacher looks at more views only when"
    with pytest.raises(dp.errors.ConfigurationError, match=message):
        adapter_for("cotta", build("wide_resnet"), engine="graph")
    assert (dp.regularizers.Fisher() + GrowingBuffer()).dynamic_reason is None


@pytest.mark.parametrize(("keyword", "value"), [("engine", "fast"), ("precision", "fp8")])
def test_unknown_engine_and_precision_are_refused(keyword, value):
    with pytest.raises(dp.errors.ConfigurationError, match=f"Expected `{keyword}` to be one of .*, but got '{value}'"):
        dp.tent(build("wide_resnet"), **{keyword: value})


def test_optimizer_that_does_not_step_in_place_is_refused():
    cuda_graph._reject_copied_optimizer(compose_adapter(optimizer=partial(torch.optim.Adagrad, lr=0.1)).state)
    for make, name in ((partial(torch.optim.SGD, momentum=0.9, dampening=0.1), "SGD"), (ReplacingOptimizer, "Replac")):
        with pytest.raises(dp.errors.EngineError, match=f"such as Adam or SGD without dampening, but got {name}"):
            cuda_graph._reject_copied_optimizer(compose_adapter(optimizer=make).state)


def test_capture_errors_are_named():
    def fail_with(error):
        try:
            try:
                raise error
            finally:
                raise RuntimeError("the capture was invalidated")
        except RuntimeError as last:
            return cuda_graph._to_engine_error(last)

    assert "ran out of memory while the step was captured" in str(fail_with(torch.OutOfMemoryError("2 GiB")))
    assert "could not be captured: not permitted" in str(fail_with(RuntimeError("not permitted")))
    named = dp.errors.EngineError("one of ours")
    assert fail_with(named) is named


# --- lists of tensors -------------------------------------------------------------------------------------------------


def share_storage(tensors):
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1


def test_tensors_become_contiguous_unless_they_share_memory():
    kernel = torch.rand(2, 3, 2, 2).to(memory_format=torch.channels_last)
    tensors = [torch.rand(3, 2), kernel, torch.rand(()), torch.arange(5), torch.zeros(0)]
    values, strides = [tensor.clone() for tensor in tensors], [tensor.stride() for tensor in tensors]
    for others in ([torch.rand(3), tensors[0]], []):  # a second time as well
        assert len(TensorList(tensors, others).vectors) == 2, "one for each dtype"
        assert share_storage(tensor for tensor in tensors if tensor.is_floating_point())
        assert [tensor.stride() for tensor in tensors] == strides
        assert all(torch.equal(one, other) for one, other in zip(tensors, values, strict=True))
    whole = torch.rand(10)
    for parts, others in (
        ([whole[:6], whole[4:]], []),
        ([whole[:4], torch.rand(2)], [whole[2:3]]),
        ([whole[::2], torch.rand(2)], []),
    ):
        addresses = [part.data_ptr() for part in parts]
        assert len(TensorList(parts, others).vectors) == len(parts)
        assert [part.data_ptr() for part in parts] == addresses
    assert len(TensorList([whole[:4], whole[8:]], [whole[4:6], whole[5:8]]).vectors) == 1


@pytest.mark.parametrize("overlap", [False, True])
def test_keep_where_decides_for_all_tensors(overlap):
    tensors = [torch.rand(3, 2), torch.arange(5), torch.rand(())]
    tensors += [tensors[1][2:]] if overlap else []
    values = [tensor.clone() for tensor in tensors]
    everything = TensorList(tensors)
    assert len(everything.vectors) == (4 if overlap else 2)
    before = everything.clone()
    for tensor in tensors:
        tensor.fill_(7)
    everything.keep_where(torch.tensor(True), before)
    assert all(bool((tensor == 7).all()) for tensor in (*tensors, *everything.tensors))
    everything.keep_where(torch.tensor(False), before)
    assert all(torch.equal(tensor, value) for tensor, value in zip(tensors, values, strict=True))
    tensors[0].data = torch.zeros(3, 2)
    everything.restore(before)
    assert torch.equal(tensors[0], values[0])
    assert tensors[0].data_ptr() == everything._addresses[0]


def test_trainable_parameters_are_contiguous_and_unwrapped_ones_are_not():
    adapter = make_adapter("ent+crowd", channels_last=True)
    for _ in range(2):
        run(adapter.reset(), batches(2))
        assert share_storage(adapter.trainable_parameters.values())
    plain = adapter.unwrap()
    assert len({p.untyped_storage().data_ptr() for p in plain.parameters()}) == len(list(plain.parameters()))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_are_finite_finds_one_bad_value_in_its_group(value):
    bad = torch.ones(3, 4)
    bad[1, 2] = value
    large, double = torch.tensor([-3e38]), torch.ones(2, dtype=torch.float64)
    flags = are_finite([large, double], [torch.ones(2), bad], [], [large])
    assert [bool(flag) for flag in flags] == [True, False, True, True]


# --- compiled networks ------------------------------------------------------------------------------------------------

aot_engine = partial(CompiledEngine, backend="aot_eager")
fusing_engine = partial(CompiledEngine, backend=fusion.fuse_only_backend)


def one_compiled_shape():
    """A faulty stream in which only one of two shapes comes often enough to be compiled for."""
    return faulty_stream()[:8]


@pytest.fixture
def dynamo():
    """torch.compile without anything compiled before; yields its counters."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch._dynamo.utils.counters


@uses_dynamo
@pytest.mark.parametrize(
    "case",
    ["ttn", "cotta", *(pytest.param(case, marks=pytest.mark.slow) for case in CASES if case not in ("ttn", "cotta"))],
)
def test_compiled_networks_agree(case, dynamo):
    stream = one_compiled_shape()
    assert_same(run(make_adapter(case), stream), run(make_adapter(case, engine=aot_engine), stream))
    assert dynamo["graph_break"] == {}
    assert dynamo["stats"]["unique_graphs"] > 0


@pytest.fixture
def kernel_inputs(monkeypatch):
    """Have batch norms run our kernels as on a CUDA device; yields the tensors that they normalized."""
    inputs = []

    def batch_norm(x, weight, bias, eps):
        inputs.append(x)
        return kernels.ops.batch_norm(x, weight, bias, eps, None, 0, False)[0]

    monkeypatch.setattr(batch_statistics, "is_supported", lambda x: x.ndim == 4 and x.dtype in kernels.DTYPES)
    monkeypatch.setattr(batch_statistics, "batch_norm", batch_norm)
    return inputs


def test_batch_norms_run_our_kernels_with_batch_statistics_only(kernel_inputs):
    adapters = {case: make_adapter(case) for case in ("tent", "bn_adapt", "source", "ttn")}
    layers = sum(isinstance(layer, torch.nn.BatchNorm2d) for layer in adapters["tent"].network.modules())
    counts = {}
    for case, adapter in adapters.items():
        kernel_inputs.clear()
        adapter(batches(1)[0])
        counts[case] = len(kernel_inputs)
    assert counts == {"tent": layers, "bn_adapt": layers, "source": 0, "ttn": 0}
    kernel_inputs.clear()
    adapters["tent"].unwrap()(batches(1)[0])
    assert not kernel_inputs


def one_norm_model(**settings):
    torch.manual_seed(1)
    layer = torch.nn.BatchNorm2d(3, **settings)
    return torch.nn.Sequential(layer, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 5))


@pytest.mark.parametrize("missing", ["weight", "bias"])
def test_batch_norm_without_weight_or_bias_runs_pytorch(missing, kernel_inputs):
    model = one_norm_model()
    model[0].register_parameter(missing, None)
    assert torch.equal(dp.bn_adapt(model)(batches(1)[0]), model.train()(batches(1)[0]))
    assert not kernel_inputs


def test_single_value_per_channel_raises_as_in_pytorch(kernel_inputs):
    adapter = dp.bn_adapt(one_norm_model(track_running_stats=False))
    with pytest.raises(dp.errors.ForwardError, match="more than 1 value per channel"):
        adapter(torch.rand(1, 3, 1, 1))
    adapter(torch.rand(1, 3, 2, 1))
    assert len(kernel_inputs) == 1


@uses_dynamo
@pytest.mark.parametrize("case", ["eata+crowd", "swr"])
def test_fused_networks_agree(case, kernel_inputs, monkeypatch, dynamo):
    fused = []
    monkeypatch.setattr(fusion, "fuse", lambda *given, fuse=fusion.fuse: fused.append(fuse(*given)))
    stream = one_compiled_shape()
    assert_same(run(make_adapter(case), stream), run(make_adapter(case, engine=fusing_engine), stream))
    assert set(fused) == {5}, "every batch norm of the network"


def test_steps_are_captured_unfused_where_kernels_do_not_compile(monkeypatch):
    monkeypatch.setattr(compiled_module, "require_cuda", lambda device: None)
    monkeypatch.setattr(compiled_module, "can_compile", lambda device: False)
    adapter, stream = make_adapter("tent+crowd", engine=FusedCudaGraphEngine), faulty_stream()
    adapter._engine._graph = StaticEngine(adapter.method, adapter.state)
    assert_same(run(make_adapter("tent+crowd"), stream), run(adapter, stream))
    assert len(adapter._engine._graph._steps) == 2
    assert not adapter._engine._forwards


class ActivatedNorm(torch.nn.BatchNorm2d):
    """A batch norm with its activation built in, as model libraries have it."""

    def forward(self, x):
        return torch.relu(super().forward(x))


@uses_dynamo
def test_batch_norm_subclasses_are_not_fused(kernel_inputs, dynamo):
    torch.manual_seed(1)
    layers = (torch.nn.Conv2d(3, 8, 3), ActivatedNorm(8), torch.nn.Conv2d(8, 8, 3), torch.nn.BatchNorm2d(8))
    model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5))
    first, second = (use_engine(dp.tent(model, lr=0.1), engine) for engine in (None, fusing_engine))
    assert_same(run(first, batches(5)), run(second, batches(5)))
    assert {images.shape[-1] for images in kernel_inputs} == {4}, "only PyTorch's own class"


@uses_dynamo
def test_captures_find_no_gradient_node_of_an_earlier_step(dynamo):
    """Such a node belongs to another stream; `torch.compile` keeps those of statistics that no kernel computes."""
    adapter = use_engine(dp.tent(build("wide_resnet"), lr=0.1, statistics=dp.statistics.Blend(0.5)), fusing_engine)
    parameters = adapter.state.trainable

    def nodes():
        return [get_gradient_edge(parameter).node for parameter in parameters]

    with collector_off():
        run(adapter, batches(3))
        for node in nodes():
            node.metadata["earlier"] = True
        del node
        assert any("earlier" in node.metadata for node in nodes()), "the test shows something"
        cuda_graph.free_earlier_graphs(parameters)
        assert not any("earlier" in node.metadata for node in nodes())


@pytest.mark.parametrize(("held", "garbage", "collections"), [(False, 5, 1), (True, 0, 1), (True, 5, 1000)])
def test_a_capture_collects_again_only_for_gradient_nodes(monkeypatch, held, garbage, collections):
    """Other threads may leave garbage for ever."""
    calls = []
    monkeypatch.setattr(cuda_graph.gc, "collect", lambda: calls.append(1) or garbage)
    parameter = nn.Parameter(torch.zeros(2))
    loss = parameter.sum() if held else None
    cuda_graph.free_earlier_graphs([parameter])
    del loss
    assert len(calls) == collections


@contextmanager
def collector_off():
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@uses_dynamo
def test_networks_are_compiled_once(dynamo):
    adapter, stream = make_adapter("swr+crowd", engine=aot_engine), batches(5)
    run(adapter, stream)
    plain = adapter.unwrap()
    run(adapter.reset(), stream)
    assert dynamo["stats"]["unique_graphs"] == 2, "one for each network"
    assert adapter.network.compiled_forward is None
    assert not any(module._forward_pre_hooks or "forward" in vars(module) for module in plain.modules())
    expected = make_adapter("swr+crowd")
    run(expected, stream)
    assert same_state(state_of(adapter), state_of(expected))


@uses_dynamo
@pytest.mark.parametrize("case", [pytest.param("conjugate", marks=pytest.mark.slow), "eata+crowd", "swr+crowd"])
def test_compiled_objectives_agree(case, dynamo):
    engine, stream = partial(StaticEngine, objective=compile_objective("aot_eager")), one_compiled_shape()
    assert_same(run(make_adapter(case), stream), run(make_adapter(case, engine=engine), stream))
    assert dynamo["graph_break"] == {}
    draws_random_numbers = case == "swr+crowd"
    assert bool(dynamo["stats"]["unique_graphs"]) != draws_random_numbers


@uses_dynamo
def test_failing_trace_is_an_engine_error(monkeypatch, dynamo):
    def fail(*_):
        raise RuntimeError("some fault of a tracer")

    monkeypatch.setattr(compiled_module, "require_cuda", lambda device: None)
    monkeypatch.setattr(compiled_module, "can_compile", lambda device: True)
    monkeypatch.setattr(fusion, "fuse", fail)
    adapter = make_adapter("tent+crowd", engine=FusedCudaGraphEngine)
    run(adapter, batches(2))
    before = state_of(adapter)
    with pytest.raises(dp.errors.EngineError, match=r"some fault of a tracer.*channels_last=False") as raised:
        adapter(batches(1)[0])
    assert "compiler" not in str(raised.value)
    assert same_state(before, state_of(adapter))


@uses_dynamo
def test_failing_compiler_is_an_engine_error(dynamo):
    def fail(graph_module, inputs):
        raise RuntimeError("no working C++ compiler found")

    adapter = make_adapter("tent+crowd", engine=partial(CompiledEngine, backend=fail))
    run(adapter, batches(2))
    before = state_of(adapter)
    with pytest.raises(
        dp.errors.EngineError,
        match=r'torch.compile failed: .*no working C\+\+ compiler found.*needs a C\+\+ compiler.*engine="eager"',
    ):
        adapter(batches(1)[0])
    assert same_state(before, state_of(adapter))


@uses_dynamo
@pytest.mark.slow
def test_inductor_agrees_to_rounding(dynamo):
    stream = [images.double() for images in batches(6)]
    answers = []
    for engine in ("eager", "compile"):
        adapter = dp.tent(build("wide_resnet").double(), lr=0.1, select=dp.ConfidenceDifference(), engine=engine)
        answers.append(torch.stack(run(adapter, stream)[0]))
    torch.testing.assert_close(*answers, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1, "eps": 1e-3}, {"maximize": True, "betas": (0.5, 0.9)}])
def test_fused_adam_steps_as_torchs_own(settings):
    starts = [torch.randn(shape) for shape in ((3, 4), (5,), (2, 2, 2))]
    ours, theirs = ([nn.Parameter(start.clone()) for start in starts] for _ in range(2))
    optimizers = [torch.optim.Adam(parameters, lr=0.1, fused=True, **settings) for parameters in (ours, theirs)]
    assert FusedAdam.find(optimizers[0], ours) is None, "no state yet"
    for number in range(4):
        gradients = [torch.randn_like(start) for start in starts]
        for parameters, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
            if parameters is ours and number > 0:
                with torch.no_grad():
                    assert FusedAdam.find(optimizer, ours).step(gradients)
                continue
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
        assert all(map(torch.equal, ours, theirs))
    states = (filter(is_tensor, tree_leaves(optimizer.state_dict())) for optimizer in optimizers)
    assert all(map(torch.equal, *states))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("Adam", {"fused": False}), ("Adam", {"fused": True, "amsgrad": True}), ("AdamW", {"fused": True})],
)
def test_other_adams_step_themselves(kind, settings):
    parameter = nn.Parameter(torch.ones(3))
    optimizer = getattr(torch.optim, kind)([parameter], **settings)
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert FusedAdam.find(optimizer, [parameter]) is None


@pytest.mark.parametrize("touch", ["hook", "wrapped"])
def test_adam_that_somebody_has_changed_steps_itself(touch):
    calls, adapter = [], dp.tent(build("wide_resnet"), optimizer=partial(torch.optim.Adam, lr=1e-3, fused=True))
    first, second = batches(2)
    adapter(first)
    assert adapter.state.fused_adam is not None
    optimizer = adapter.state.optimizer
    if touch == "hook":
        optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    else:
        own = optimizer.step
        optimizer.step = lambda: (calls.append(1), own())[1]
    adapter(second)
    assert calls
    assert adapter.last.stepped
