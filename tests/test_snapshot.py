"""Saved states: refused when they belong elsewhere, whole or not there at all."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import driftproof as dp
from cases import adapter_for, batches, same_state, state_of
from networks import GroupNormNet, WideResNet, build, randomize


@pytest.fixture
def model():
    return build("wide_resnet")


def adapted(model, **options):
    adapter = dp.tent(model, **({"lr": 1e-2} | options))
    adapter(batches(1)[0])
    return adapter


@pytest.mark.parametrize(
    ("other", "complaint"),
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
def test_a_state_from_elsewhere_is_refused_with_the_difference(model, tmp_path, other, complaint):
    adapted(model).save(tmp_path / "state")
    adapter = other(model)
    before = state_of(adapter)
    with pytest.raises(dp.errors.StateError, match=complaint):
        adapter.load(tmp_path / "state")
    assert same_state(before, state_of(adapter))


def test_a_state_whose_optimizer_does_not_fit_is_refused(model):
    def in_two_groups(parameters, lr):
        first, *others = parameters
        return torch.optim.Adam([{"params": [first]}, {"params": others}], lr=lr)

    state = adapted(model, optimizer=in_two_groups).state_dict()
    adapter = adapted(model)
    before = state_of(adapter)
    with pytest.raises(dp.errors.StateError, match=r"optimizer does not fit.*parameter groups"):
        adapter.load_state_dict(state)
    assert same_state(before, state_of(adapter))


def test_a_damaged_file_is_refused_and_the_adapter_goes_on(model, tmp_path):
    adapter = adapted(model)
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


def test_a_module_that_holds_an_adapter_is_told_to_save_it_apart(model):
    holder = torch.nn.ModuleDict({"adapter": adapted(model)})
    with pytest.raises(dp.errors.StateError, match="`save` and `load` the adapter itself"):
        holder.state_dict()


def test_a_failed_save_leaves_the_old_file_and_no_litter(model, tmp_path, monkeypatch):
    adapter = adapted(model)
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


def test_a_state_of_another_format_or_kind_is_refused(model):
    adapter = adapted(model)
    state = adapter.state_dict()
    with pytest.raises(dp.errors.StateError, match="description is missing"):
        adapter.load_state_dict({name: tensor for name, tensor in state.items() if name != "meta"})
    text = bytes(state["meta"].tolist()).replace(b'"format": 1', b'"format": 9')
    with pytest.raises(dp.errors.StateError, match="format 9"):
        adapter.load_state_dict(state | {"meta": torch.tensor(list(text), dtype=torch.uint8)})
    before = state_of(adapter)
    for spoilt in (b"{", b"\xff", b"[]", b"{}"):
        with pytest.raises(dp.errors.StateError, match="description"):
            adapter.load_state_dict(state | {"meta": torch.tensor(list(spoilt), dtype=torch.uint8)})
    extra = state | {"model.stranger": torch.zeros(1)}
    with pytest.raises(dp.errors.StateError, match=r"it has model\.stranger, unknown here"):
        adapter.load_state_dict(extra)
    del state["model.norm.weight"]
    with pytest.raises(dp.errors.StateError, match=r"it lacks model.norm.weight"):
        adapter.load_state_dict(state)
    assert same_state(before, state_of(adapter))


def test_a_state_with_a_tensor_of_the_wrong_shape_is_refused(model):
    adapter = adapted(model)
    before = state_of(adapter)
    with pytest.raises(dp.errors.StateError, match=r"model.norm.weight to be of shape \(8,\), but got \(3,\)"):
        adapter.load_state_dict(adapter.state_dict() | {"model.norm.weight": torch.zeros(3)})
    assert same_state(before, state_of(adapter))


def test_a_method_with_a_function_of_the_users_is_the_same_in_another_process(model):
    class Brighter:
        def __call__(self, images, generator):
            return 1.1 * images

    def made_anew():
        views = dp.outputs.RandomViews(2, augment=partial(Brighter()))
        return adapter_for("cotta", model, views=views)

    adapter, other = made_anew(), made_anew()
    adapter(batches(1)[0])
    other.load_state_dict(adapter.state_dict())
    assert same_state(state_of(adapter), state_of(other))
    assert " at 0x" not in repr(adapter)


def test_a_state_is_small(model, tmp_path):
    adapter = dp.tent(model)
    adapter(batches(1)[0])
    names = [name for name in adapter.state_dict() if name.startswith("model.")]
    assert set(names) == {f"model.{name}" for name in adapter.trainable_parameters}


def test_a_state_is_a_copy(model):
    adapter = adapted(model)
    state = adapter.state_dict()
    before = {name: tensor.clone() for name, tensor in state.items()}
    adapter(batches(1)[0])
    assert same_state(before, state)


def test_numbers_of_every_kind_travel(tmp_path):
    class Mixed(GroupNormNet):
        def __init__(self):
            super().__init__()
            self.phase = torch.nn.Parameter(torch.randn(2, dtype=torch.complex128))
            self.register_buffer("table", torch.randn(3, dtype=torch.complex64))
            self.register_buffer("mask", torch.tensor([True, False]))
            self.register_buffer("narrow", torch.ones(2, dtype=torch.float16))

    model = Mixed()
    adapter = adapted(model)
    adapter.save(tmp_path / "state")
    assert same_state(state_of(dp.tent(model).load(tmp_path / "state")), state_of(adapter))
    with torch.no_grad():
        model.phase.imag[0] += 1
    with pytest.raises(dp.errors.StateError, match="the values of `phase` differ"):
        dp.tent(model).load(tmp_path / "state")


def test_the_learning_rate_travels_with_the_state(model, tmp_path):
    adapter = adapted(model)
    adapter.optimizer.param_groups[0]["lr"] = 0.123
    adapter.save(tmp_path / "state")
    other = dp.tent(model).load(tmp_path / "state")
    assert other.optimizer.param_groups[0]["lr"] == 0.123
    assert other.optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_optimizers_with_tensors_and_odd_values_in_their_groups(model, tmp_path):
    adapter = adapted(model)
    adapter.optimizer.param_groups[0]["note"] = torch.tensor(3.0)
    adapter.save(tmp_path / "state")
    assert dp.tent(model).load(tmp_path / "state").optimizer.param_groups[0]["note"] == 3.0
    adapter.optimizer.param_groups[0]["note"] = object()
    with pytest.raises(dp.errors.StateError, match="optimizer keeps a object"):
        adapter.save(tmp_path / "state")


def test_numbers_of_numpys_are_numbers(model, tmp_path):
    adapter = adapted(model, seed=np.int64(3), mean_entropy=np.float32(0.5))
    adapter.save(tmp_path / "state")
    assert same_state(state_of(dp.tent(model, mean_entropy=0.5).load(tmp_path / "state")), state_of(adapter))
    adapted(model, mean_entropy=0).load_state_dict(adapted(model).state_dict())
    cotta = adapter_for("cotta", model, seed=np.int64(3), threshold=1.0)
    assert torch.equal(cotta(batches(1)[0]), adapter_for("cotta", model, seed=3, threshold=1.0)(batches(1)[0]))


def test_the_prepared_state_travels(model, tmp_path):
    adapter = adapter_for("eata", model)
    adapter.save(tmp_path / "fresh")
    other = adapter_for("eata", model, prepared=False).load(tmp_path / "fresh")
    assert torch.equal(other.method.regularizer.importance, adapter.method.regularizer.importance)
    images = batches(1)[0]
    assert torch.equal(adapter(images), other(images))
