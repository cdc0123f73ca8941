"""Saved states: what they hold, which are refused, and that a refused one changes nothing."""

import copy
import functools
import itertools
import json
import operator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import driftproof as dp
from cases import adapter_for, batches, same_state, source_data, state_of, tensors_of
from networks import NORM_NETWORKS, GroupNormNet, WideResNet, build, randomize


@pytest.fixture
def model():
    return build("wide_resnet")


def compose(model, **choices):
    defaults = {
        "scope": dp.scopes.norm_affine(),
        "statistics": dp.statistics.Batch(),
        "loss": dp.losses.Entropy(),
        "optimizer": partial(torch.optim.Adam, lr=1e-2),
    }
    return dp.Adapter(model, **(defaults | choices))


def make_adapted(model, **options):
    adapter = dp.tent(model, **({"lr": 1e-2} | options))
    adapter(batches(1)[0])
    return adapter


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda model: dp.tent(model, select=dp.ConfidenceDifference()), "select was None and is ConfidenceDifference"),
        (lambda model: dp.gce(model), r"loss was Entropy\(\) and is GCE\(q=0.8\)"),
        (lambda model: dp.ent(model), r"scope was norm_affine\(\) and is everything\(\)"),
        (lambda model: dp.tent(model, optimizer=torch.optim.SGD), "optimizer was Adam and is SGD"),
        (lambda model: dp.tent(model, accumulate=4), "optimizer was Adam and is Adam, every 4 batches"),
        (
            lambda model: dp.tent(model, statistics=dp.statistics.Source()),
            r"statistics was Batch\(\) and is Source\(\)",
        ),
        (
            lambda model: dp.tent(GroupNormNet()),
            r"another architecture: it has stem.weight.*unknown here.*it lacks conv1",
        ),
        (
            lambda model: dp.tent(WideResNet(width=6)),
            r"`stem.weight` was \(4, 3, 3, 3\) of float32 and is \(6, 3, 3, 3\)",
        ),
        (lambda model: dp.tent(model.double()), "of float32 and is .* of float64"),
        (lambda model: dp.tent(randomize(WideResNet())), "other source weights: the values of `stem.weight` differ"),
    ],
)
def test_state_of_another_method_or_model_raises_with_the_difference(model, tmp_path, other, message):
    make_adapted(model).save(tmp_path / "state")
    adapter = other(model)
    before = state_of(adapter)
    with pytest.raises(dp.errors.StateError, match=message):
        adapter.load(tmp_path / "state")
    assert same_state(before, state_of(adapter))


def make_grouped_adam(parameters, lr):
    """Adam with as many groups as `make_grouped_adam.count`."""
    parameters, count = list(parameters), make_grouped_adam.count
    return torch.optim.Adam([{"params": parameters[number::count]} for number in range(count)], lr=lr)


@pytest.mark.parametrize("count", [1, 3])
def test_state_with_other_parameter_groups_raises(model, monkeypatch, count):
    monkeypatch.setattr(make_grouped_adam, "count", 2, raising=False)
    state = make_adapted(model, optimizer=make_grouped_adam).state_dict()
    monkeypatch.setattr(make_grouped_adam, "count", count)
    adapter = make_adapted(model, optimizer=make_grouped_adam)
    before = state_of(adapter)
    with pytest.raises(dp.errors.StateError, match=r"optimizer does not fit.*parameter groups"):
        adapter.load_state_dict(state)
    assert same_state(before, state_of(adapter))


def make_chosen(parameters, lr):
    """The optimizer that `make_chosen.kind` makes."""
    return make_chosen.kind(parameters, lr=lr)


def test_state_of_another_optimizer_from_the_same_function_raises(model, monkeypatch):
    monkeypatch.setattr(make_chosen, "kind", torch.optim.RMSprop, raising=False)
    state = make_adapted(model, optimizer=make_chosen).state_dict()
    monkeypatch.setattr(make_chosen, "kind", torch.optim.Adam)
    adapter = make_adapted(model, optimizer=make_chosen)
    before = state_of(adapter)
    with pytest.raises(dp.errors.StateError, match=r"optimizer does not fit, parameter 0 keeps step, square_avg"):
        adapter.load_state_dict(state)
    assert same_state(before, state_of(adapter))


class History(dp.regularizers.Regularizer):
    """Keeps the mean of every batch."""

    def __init__(self):
        super().__init__()
        self.register_buffer("means", torch.zeros(0))

    def on_batch(self, step):
        self.means = torch.cat([self.means, step.images.mean().view(1)])


def test_buffer_that_has_grown_is_loaded(model):
    adapter, other = (compose(model, regularizer=History()) for _ in range(2))
    for images in batches(3):
        adapter(images)
    other.load_state_dict(adapter.state_dict())
    assert len(other.method.regularizer.means) == 3
    assert torch.equal(adapter(batches(1)[0]), other(batches(1)[0]))
    assert same_state(state_of(adapter), state_of(other))


class Sized(dp.losses.Entropy):
    """Holds a parameter whose shape no argument tells."""

    size = 2

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(self.size), requires_grad=False)


def test_state_with_a_parameter_that_does_not_fit_raises(model, monkeypatch):
    state = compose(model, loss=Sized()).state_dict()
    monkeypatch.setattr(Sized, "size", 3)
    adapter = compose(model, loss=Sized())
    before = state_of(adapter)
    with pytest.raises(dp.errors.StateError, match=r"`loss.scale` was \(2,\) of float32 and is \(3,\) of float32"):
        adapter.load_state_dict(state)
    assert same_state(before, state_of(adapter))


def test_damaged_file_raises_and_leaves_the_adapter_unchanged(model, tmp_path):
    adapter = make_adapted(model)
    path = tmp_path / "state"
    adapter.save(path)
    whole = path.read_bytes()
    before = state_of(adapter)
    for damage in (b"", whole[:7], whole[: len(whole) // 2], whole[:-1], b"<html>" + whole):
        path.write_bytes(damage)
        with pytest.raises(dp.errors.StateError, match=r"damaged|description"):
            adapter.load(path)
        assert same_state(before, state_of(adapter))
    with pytest.raises(FileNotFoundError):
        adapter.load(tmp_path / "nowhere")
    with pytest.raises(dp.errors.StateError, match="it is a folder"):
        adapter.load(tmp_path)
    path.write_bytes(whole)
    adapter.load(path)


def test_state_dict_of_a_module_that_holds_an_adapter_raises(model):
    holder = torch.nn.ModuleDict({"adapter": make_adapted(model)})
    with pytest.raises(dp.errors.StateError, match="`save` and `load` the adapter itself"):
        holder.state_dict()


def test_failed_save_leaves_the_old_file_and_no_temporary_file(model, tmp_path, monkeypatch):
    adapter = make_adapted(model)
    path = tmp_path / "state"
    adapter.save(path)
    old = path.read_bytes()

    def run_out_of_space(unfinished, content):
        with unfinished.open("wb") as file:
            file.write(content[:9])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", run_out_of_space)
    adapter(batches(1)[0])
    with pytest.raises(OSError, match="No space"):
        adapter.save(path)
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


def test_state_of_another_format_or_with_other_tensors_raises(model):
    adapter = make_adapted(model)
    state = adapter.state_dict()
    with pytest.raises(dp.errors.StateError, match="description is missing"):
        adapter.load_state_dict({name: tensor for name, tensor in state.items() if name != "meta"})
    text = bytes(state["meta"].tolist()).replace(b'"format": 4', b'"format": 9')
    with pytest.raises(dp.errors.StateError, match="format 9"):
        adapter.load_state_dict(state | {"meta": torch.tensor(list(text), dtype=torch.uint8)})
    before = state_of(adapter)
    for damaged in (b"{", b"\xff", b"[]", b"{}"):
        with pytest.raises(dp.errors.StateError, match="description"):
            adapter.load_state_dict(state | {"meta": torch.tensor(list(damaged), dtype=torch.uint8)})
    extra = state | {"model.stranger": torch.zeros(1)}
    with pytest.raises(dp.errors.StateError, match=r"it has model\.stranger, unknown here"):
        adapter.load_state_dict(extra)
    del state["model.norm.weight"]
    with pytest.raises(dp.errors.StateError, match=r"it lacks model.norm.weight"):
        adapter.load_state_dict(state)
    assert same_state(before, state_of(adapter))


def test_state_with_a_tensor_of_another_shape_raises(model):
    adapter = make_adapted(model)
    before = state_of(adapter)
    with pytest.raises(
        dp.errors.StateError, match=r"`model.norm.weight` was \(3,\) of float32 and is \(8,\) of float32"
    ):
        adapter.load_state_dict(adapter.state_dict() | {"model.norm.weight": torch.zeros(3)})
    assert same_state(before, state_of(adapter))


def test_description_of_a_user_function_has_no_memory_address(model):
    class Brighter:
        def __call__(self, images, generator):
            return 1.1 * images

    def make():
        views = dp.outputs.RandomViews(2, augment=partial(Brighter()))
        return adapter_for("cotta", model, views=views)

    adapter, other = make(), make()
    adapter(batches(1)[0])
    other.load_state_dict(adapter.state_dict())
    assert same_state(state_of(adapter), state_of(other))
    assert " at 0x" not in repr(adapter)


def test_state_holds_only_trainable_parameters_of_the_model(model):
    adapter = make_adapted(model)
    names = [name for name in adapter.state_dict() if name.startswith("model.")]
    assert set(names) == {f"model.{name}" for name in adapter.trainable_parameters}


def test_state_is_a_copy(model):
    adapter = make_adapted(model)
    state = adapter.state_dict()
    before = {name: tensor.clone() for name, tensor in state.items()}
    adapter(batches(1)[0])
    assert same_state(before, state)


def test_tensors_of_every_dtype_are_saved_and_checked(tmp_path):
    class Mixed(GroupNormNet):
        def __init__(self):
            super().__init__()
            self.phase = torch.nn.Parameter(torch.randn(2, dtype=torch.complex128))
            self.register_buffer("table", torch.randn(3, dtype=torch.complex64))
            self.register_buffer("mask", torch.tensor([True, False]))
            self.register_buffer("narrow", torch.ones(2, dtype=torch.float16))

    model = Mixed()
    adapter = make_adapted(model)
    adapter.save(tmp_path / "state")
    assert same_state(state_of(dp.tent(model).load(tmp_path / "state")), state_of(adapter))
    with torch.no_grad():
        model.phase.imag[0] += 1
    with pytest.raises(dp.errors.StateError, match="the values of `phase` differ"):
        dp.tent(model).load(tmp_path / "state")


def test_counters_are_saved_and_reset(model):
    def count(adapter):
        return [int(getattr(adapter.state, name)) for name in ("index", "num_steps", "accumulated_batches", "paused")]

    adapter, other = (dp.tent(model, accumulate=2, guard=()) for _ in range(2))
    for images in batches(5):
        adapter(images)
    adapter.state.paused.fill_(True)
    other.load_state_dict(adapter.state_dict())
    assert count(adapter) == count(other) == [5, 2, 1, 1]
    assert count(other.reset()) == [0, 0, 0, 0]


def test_learning_rate_is_saved(model, tmp_path):
    adapter = make_adapted(model)
    adapter.optimizer.param_groups[0]["lr"] = 0.123
    adapter.save(tmp_path / "state")
    other = dp.tent(model).load(tmp_path / "state")
    assert other.optimizer.param_groups[0]["lr"] == 0.123
    assert other.optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_optimizer_groups_with_tensors_are_saved_and_other_objects_raise(model, tmp_path):
    adapter = make_adapted(model)
    adapter.optimizer.param_groups[0]["note"] = torch.tensor(3.0)
    adapter.save(tmp_path / "state")
    assert dp.tent(model).load(tmp_path / "state").optimizer.param_groups[0]["note"] == 3.0
    adapter.optimizer.param_groups[0]["note"] = object()
    with pytest.raises(dp.errors.StateError, match="optimizer keeps a object"):
        adapter.save(tmp_path / "state")


def test_numpy_numbers_are_numbers(model, tmp_path):
    adapter = make_adapted(model, seed=np.int64(3), mean_entropy=np.float32(0.5))
    adapter.save(tmp_path / "state")
    assert same_state(state_of(dp.tent(model, mean_entropy=0.5).load(tmp_path / "state")), state_of(adapter))
    make_adapted(model, mean_entropy=0).load_state_dict(make_adapted(model).state_dict())
    cotta = adapter_for("cotta", model, seed=np.int64(3), threshold=1.0)
    assert torch.equal(cotta(batches(1)[0]), adapter_for("cotta", model, seed=3, threshold=1.0)(batches(1)[0]))


def test_prepared_values_are_saved(model, tmp_path):
    adapter = adapter_for("eata", model)
    adapter.save(tmp_path / "fresh")
    other = adapter_for("eata", model, prepared=False).load(tmp_path / "fresh")
    assert torch.equal(other.method.regularizer.importance, adapter.method.regularizer.importance)
    images = batches(1)[0]
    assert torch.equal(adapter(images), other(images))


# --- which methods are the same ---------------------------------------------------------------------------------------


SGD = torch.optim.SGD


@pytest.mark.parametrize(
    ("name", "first", "same", "other"),
    [
        ("lr_schedule", lambda n: 1 / (1 + n), lambda n: 1 / (1 + n), lambda n: 1 / (2 + n)),
        ("optimizer", lambda p: SGD(p, lr=1), lambda p: SGD(p, lr=1), lambda p: SGD(p, lr=1, momentum=0.9)),
        ("after", lambda step: step.loss, lambda step: step.loss, lambda step: step.logits.mean()),
    ],
    ids=["lr_schedule", "optimizer", "after"],
)
def test_two_lambdas_are_different_methods(model, name, first, same, other):
    def make(function):
        return compose(model, **{name: dp.after.ResetWhen(function) if name == "after" else function})

    state = make(first).state_dict()
    make(same).load_state_dict(state)
    adapter = make(other)
    before = state_of(adapter)
    with pytest.raises(dp.errors.StateError, match=rf"{name} was .*<lambda>.* and is .*<lambda>"):
        adapter.load_state_dict(state)
    assert same_state(before, state_of(adapter))


def test_closures_over_different_values_are_different_methods(model):
    def make(factor):
        return compose(model, lr_schedule=lambda steps: factor + 0 * steps)

    make(2.0).load_state_dict(make(2.0).state_dict())
    with pytest.raises(dp.errors.StateError, match="lr_schedule"):
        make(2.0).load_state_dict(make(3.0).state_dict())


class RenamingItsArgument(dp.losses.Loss):
    """Stores its argument under another name, as user code does."""

    def __init__(self, temperature=1.0):
        super().__init__()
        self._t = temperature

    def per_sample(self, step):
        return -(step.log_probabilities / self._t).amax(dim=1)


def test_component_that_stores_its_argument_under_another_name_prints_saves_and_loads(model, tmp_path):
    def make(temperature):
        return compose(model, loss=RenamingItsArgument(temperature))

    adapter = make(2.0)
    adapter(batches(1)[0])
    assert "RenamingItsArgument(temperature=2.0)" in repr(adapter)
    adapter.save(tmp_path / "state")
    assert same_state(state_of(make(2.0).load(tmp_path / "state")), state_of(adapter))
    with pytest.raises(dp.errors.StateError, match=r"loss was RenamingItsArgument\(temperature=2.0\)"):
        make(3.0).load(tmp_path / "state")


# --- damaged states ---------------------------------------------------------------------------------------------------

OTHER_VALUES = (None, True, -1, 10**30, "text", [["x", 1]])
# Tables of like entries: of these, one entry is damaged.
LIKE_ENTRIES = (("source",), ("tensors",), ("optimizer", "dict", 0, 1, "dict"))


def make_stateful_adapter():
    """An adapter with teacher, buffers, memory, running statistics, optimizer state and accumulated gradients."""
    torch.manual_seed(0)
    construct, shape = NORM_NETWORKS["batch_norm_1d"]
    adapter = dp.Adapter(
        randomize(construct(), shape),
        scope=dp.scopes.everything(),
        statistics=dp.statistics.Blend(0.5, momentum=0.3),
        loss=dp.losses.Entropy(),
        select=dp.EntropyBelow(5.0) & dp.NonRedundant(2.0),
        regularizer=dp.regularizers.Fisher(weight=1.0),
        optimizer=partial(torch.optim.Adam, lr=1e-2),
        accumulate=2,
        memory=dp.memories.LatestImages(8),
        teacher=dp.EMA(0.9),
        after=[dp.after.ResetEvery(5), dp.after.ResetWhen()],
    )
    return adapter.prepare(source_data(shape=shape))


def damage_tensors(state):
    """Yield copies of a state in which one tensor is missing, renamed, or of another shape or dtype."""
    for name, tensor in state.items():
        others = {other: value for other, value in state.items() if other != name}
        yield f"{name} missing", others
        yield f"{name} renamed", others | {f"{name}x": tensor}
        shapes = [tensor.reshape(-1)[:0], torch.cat([tensor.reshape(-1)] * 2)]
        kinds = (torch.float64, torch.int64, torch.bool, torch.complex64)
        dtypes = [tensor.to(dtype) for dtype in kinds if dtype != tensor.dtype]
        for other in (*shapes, *dtypes, "text"):
            described = f"{tuple(other.shape)} of {other.dtype}" if isinstance(other, torch.Tensor) else repr(other)
            yield f"{name} is {described}", others | {name: other}


def damage_meta(state):
    """Yield copies of a state in which one node of the JSON description is missing or another value."""
    meta = json.loads(bytes(state["meta"].tolist()))
    for path in iter_paths(meta):
        for value in (*OTHER_VALUES, "missing key"):
            changed = copy.deepcopy(meta)
            node = functools.reduce(operator.getitem, path[:-1], changed)
            if value == "missing key":
                del node[path[-1]]
            elif node[path[-1]] == value and type(node[path[-1]]) is type(value):
                continue
            else:
                node[path[-1]] = value
            yield f"meta{path} is {value!r}", state | {"meta": encode_meta(changed)}


def iter_paths(node, path=()):
    """The path to every node below a JSON value."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, item in itertools.islice(items, 1 if path in LIKE_ENTRIES else None):
        yield (*path, key)
        yield from iter_paths(item, (*path, key))


def copy_tensors(adapter):
    """Copy all tensors of an adapter; much cheaper than its state_dict."""
    return {number: tensor.clone() for number, tensor in enumerate(tensors_of(adapter))}


def encode_meta(meta):
    return torch.tensor(list(json.dumps(meta).encode()), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("damage", "every"),
    [
        (damage_tensors, 2),
        (damage_meta, 3),
        *(pytest.param(damage, 1, marks=pytest.mark.slow) for damage in (damage_tensors, damage_meta)),
    ],
)
def test_damaged_state_is_loaded_whole_or_refused_whole(damage, every):
    stream = batches(4, shape=(6,))
    adapter = make_stateful_adapter()
    for images in stream[:3]:
        adapter(images)
    good = adapter.state_dict()
    assert {name.partition(".")[0] for name in good} >= {"model", "teacher", "select", "memory", "optimizer", "after_0"}
    adapter(stream[3])
    before, tensors_before, refused, count = state_of(adapter), copy_tensors(adapter), 0, 0
    for label, damaged in itertools.islice(damage(good), 0, None, every):
        count += 1
        try:
            adapter.load_state_dict(damaged)
        except dp.errors.StateError:
            refused += 1
            assert same_state(tensors_before, copy_tensors(adapter)), label
            continue
        loaded, expected = ({**state, "meta": good["meta"]} for state in (state_of(adapter), damaged))
        assert same_state(loaded, expected), label
        assert "Adapter of" in repr(adapter)
        adapter(stream[3])
        adapter.load_state_dict(before)
    assert same_state(before, state_of(adapter)), "also what is no tensor is unchanged"
    assert count > 300 / every
    assert refused > count / 2
