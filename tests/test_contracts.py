"""What every method promises, on every kind of network; `cases.PAIRS` says which pairs are tested, and why."""

import dataclasses
import functools
import gc
import zlib

import pytest
import torch

import driftproof as dp
from cases import (
    CASES,
    GRADIENT_METHODS,
    IMAGE_METHODS,
    KINDS,
    PAIRS,
    SLOW_PAIRS,
    adapter_for,
    batches,
    rotate_kinds,
    same_but_bookkeeping,
    same_state,
    source_data,
    split_pairs,
    state_of,
)
from driftproof.adapter.engines import EagerEngine, StaticEngine
from networks import CONTRACT_NETWORKS, NORM_NETWORKS, build, is_segmentation, randomize

STREAM = batches(3)
WITHOUT_LEARNING_TOO = (
    "test_modes_set_by_the_caller_change_nothing",
    "test_user_model_is_unchanged_and_shares_no_storage",
    "test_unwrap_after_reset_equals_source_model",
    "test_bad_input_raises_or_is_skipped_and_leaves_the_state_unchanged",
    "test_save_and_load_midway_continues_bit_equal",
    "test_inference_mode_changes_nothing",
)
"""What `adapt` promises on a few small batches too, from which it holds back learning."""
FOR_EVERY_CASE = (
    "test_batch_of_one_keeps_everything_finite_and_the_shapes_of_the_state",
    "test_save_and_load_midway_continues_bit_equal",
)
"""What depends on every tensor that a method keeps; of the others, each case meets every second one."""
GRADIENT_PAIRS = [pair for pair in PAIRS if pair[0] in GRADIENT_METHODS]


def as_parameters(pairs, *, marks=()):
    return [pytest.param(pair, id="-".join(pair), marks=marks) for pair in pairs]


def pytest_generate_tests(metafunc):
    """Give each contract its pairs, as `cases.split_pairs` says."""
    has_own = any("pair" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "pair" in metafunc.fixturenames and not has_own:
        name = metafunc.function.__name__
        chosen, others = split_pairs(zlib.crc32(name.encode()), every_case=name in FOR_EVERY_CASE)
        if name in WITHOUT_LEARNING_TOO:
            chosen = [*chosen, ("adapt", "wide_resnet")]
        slow = as_parameters((*others, *SLOW_PAIRS), marks=pytest.mark.slow)
        metafunc.parametrize("pair", as_parameters(chosen) + slow, indirect=True)


@pytest.fixture
def pair(request):
    return request.param


@pytest.fixture
def case(pair):
    return pair[0]


@pytest.fixture
def network(pair):
    return pair[1]


@pytest.fixture
def model(network):
    return build(network)


@pytest.fixture
def make(case, network, model):
    def make(**settings):
        return adapter_for(case, model, segmentation=is_segmentation(network), **settings)

    return make


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """An undisturbed run over the stream, made once for each pair; tests that go on from it call `reset` first."""

    model: torch.nn.Module
    model_before: dict[str, torch.Tensor]
    adapter: dp.Adapter
    addresses_before: list[int]
    source_before: dict[str, torch.Tensor]
    source_outputs: tuple[torch.Tensor, ...]
    outputs: list[torch.Tensor]


@functools.cache
def run_undisturbed(case, network):
    model = build(network).train()
    model_before = copy_tensors(model)
    adapter = adapter_for(case, model, segmentation=is_segmentation(network))
    addresses, source_before = (
        [tensor.data_ptr() for tensor in adapter.source.parameters()],
        copy_tensors(adapter.source),
    )
    source_outputs = []
    with adapter.source.register_forward_hook(lambda _, __, output: source_outputs.append(output)):
        outputs = run(adapter, STREAM)
    return FinishedRun(model, model_before, adapter, addresses, source_before, tuple(source_outputs), outputs)


def copy_tensors(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.fixture
def finished(pair):
    return run_undisturbed(*pair)


@pytest.fixture
def expected(finished):
    return finished.outputs


def run(adapter, stream):
    return [adapter(images) for images in stream]


def assert_bit_equal(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_design_covers_every_case_and_every_kind_on_every_network():
    assert {case for case, network in PAIRS if network == "wide_resnet"} == set(CASES)
    assert {case for cases in KINDS.values() for case in cases} | set(IMAGE_METHODS) == set(CASES)
    for network in CONTRACT_NETWORKS:
        kinds = {kind for kind, cases in KINDS.items() for case in cases if (case, network) in PAIRS}
        assert {kind.partition(",")[0] for kind in kinds} == {kind.partition(",")[0] for kind in KINDS}
        assert {kind.partition(",")[2] for kind in kinds} == {kind.partition(",")[2] for kind in KINDS}
    for contract in range(4):
        chosen, others = split_pairs(contract, every_case=contract > 1)
        assert {network for _, network in chosen} == set(CONTRACT_NETWORKS)
        assert all({case for case, _ in chosen} & set(cases) for cases in KINDS.values())
        assert sorted((*chosen, *others)) == sorted(PAIRS)
    assert {*split_pairs(0)[0], *split_pairs(1)[0]} == set(PAIRS)
    assert set(split_pairs(0, every_case=True)[0]) >= {(case, "wide_resnet") for case in CASES}


def test_modes_set_by_the_caller_change_nothing(finished):
    adapter = finished.adapter.reset()
    outputs = []
    for images in STREAM:
        adapter.train().eval().requires_grad_(False)
        adapter.network.model.train()
        adapter.source.model.train()
        for parameter in adapter.network.model.parameters():
            parameter.requires_grad_(False)
        outputs.append(adapter(images))
        adapter.requires_grad_(True)
        adapter.network.model.requires_grad_(True)
    assert_bit_equal(finished.outputs, outputs)


def test_user_model_is_unchanged_and_shares_no_storage(finished):
    model, adapter = finished.model, finished.adapter
    assert model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert same_state(finished.model_before, model.state_dict())
    theirs = {tensor.data_ptr() for tensor in model.state_dict().values()}
    ours = {tensor.data_ptr() for tensor in (*adapter.parameters(), *adapter.buffers())}
    assert not theirs & ours


def test_unwrap_after_reset_equals_source_model(finished, model):
    adapter = finished.adapter
    plain = adapter.reset().unwrap()
    assert type(plain) is type(model)
    assert same_state(dict(plain.state_dict()), dict(model.state_dict()))
    for (_, module), (_, original) in zip(plain.named_modules(), model.named_modules(), strict=True):
        assert len(module._forward_pre_hooks) == len(original._forward_pre_hooks)
    with torch.no_grad():
        assert torch.equal(plain.eval()(STREAM[0]), model.eval()(STREAM[0]))
    run(adapter, STREAM[:1])
    assert same_state(dict(plain.state_dict()), dict(model.state_dict())), "the unwrapped model is independent"


BAD_INPUT = {
    "empty": (lambda images: images[:0], dp.errors.InputError),
    "integers": (lambda images: (images * 255).to(torch.uint8), dp.errors.InputError),
    "no tensor": (lambda images: images.tolist(), dp.errors.InputError),
    "a single number": (lambda images: images.sum(), dp.errors.InputError),
    "other device": (lambda images: images.to("meta"), dp.errors.InputError),
    "wrong channels": (lambda images: images[:, :2], dp.errors.ForwardError),
    "wrong rank": (lambda images: images.flatten(1), dp.errors.ForwardError),
    "other precision": (lambda images: images.double(), dp.errors.ForwardError),
}


def test_bad_input_raises_or_is_skipped_and_leaves_the_state_unchanged(finished, expected):
    first, second, third = STREAM
    adapter = finished.adapter.reset()
    assert torch.equal(adapter(first), expected[0])
    before = state_of(adapter)
    for damage, error in BAD_INPUT.values():
        with pytest.raises(error):
            adapter(damage(first))
    assert same_state(before, state_of(adapter))
    assert torch.equal(adapter(second), expected[1])
    for value in (float("nan"), float("inf")):
        before = state_of(adapter)
        damaged = second.clone()
        damaged[:, 0, 0, 0] = value
        assert adapter(damaged).isnan().all()
        assert adapter.last.skipped.startswith("NaN or Inf in the images")
        assert adapter.last.quarantined.all()
        assert same_but_bookkeeping(before, state_of(adapter))
    assert torch.equal(adapter(third), expected[2])


def test_bad_image_is_answered_with_nan_and_the_others_as_with_a_good_one_in_its_place(finished, case):
    if case == "memo":
        pytest.skip("it answers after it has learned from the good images alone")
    first, second, third = STREAM
    damaged, replaced = second.clone(), second.clone()
    damaged[2, 0, 3, 3] = float("nan")
    replaced[2] = second[0]
    adapter = finished.adapter.reset()
    adapter(first)
    expected = adapter(replaced)
    adapter.reset()
    adapter(first)
    answer = adapter(damaged)
    others = torch.arange(len(second)) != 2
    assert torch.equal(answer[others], expected[others])
    assert answer[2].isnan().all()
    assert adapter.last.quarantined.tolist() == (~others).tolist()
    assert not adapter.last.selected[2].any()
    assert adapter.last.novelty[2].isnan().all()
    assert adapter.last.novelty[others].isfinite().all()
    assert adapter.last.skipped in (None, "nothing was selected")
    assert adapter(third).isfinite().all()


def test_batch_of_one_keeps_everything_finite_and_the_shapes_of_the_state(finished):
    adapter = finished.adapter.reset()
    for images in batches(3, size=1):
        assert adapter(images).isfinite().all()
        assert adapter.last.skipped in (None, "nothing was selected")
    shapes = adapter.state.fixed_shapes
    now = {slot.name: tuple(slot.tensor.shape) for slot in adapter.state.slots() if slot.tensor is not None}
    assert all(now[name] == shape for name, shape in shapes.items() if name in now)
    assert all(tensor.isfinite().all() for tensor in adapter.network.model.parameters())


class RejectAll(dp.selection.Selection):
    def weights(self, step):
        return torch.zeros_like(step.weights)


@pytest.mark.parametrize(
    ("pair", "mean_entropy"),
    [
        pytest.param(pair, value, id=f"{'-'.join(pair)}-{value}", marks=() if place % 2 else pytest.mark.slow)
        for number, pair in enumerate(GRADIENT_PAIRS)
        for place, value in enumerate((0.0, 0.5), start=number)
    ],
    indirect=["pair"],
)
def test_rejecting_every_sample_steps_only_with_a_mean_entropy_term(make, model, mean_entropy):
    adapter = make(select=RejectAll(), mean_entropy=mean_entropy)
    for images in batches(3):
        assert adapter(images).isfinite().all()
        assert adapter.last.kept == (adapter.method.memory is not None)  # a memory is offered the whole batch
        assert adapter.last.stepped == (mean_entropy > 0)
        assert adapter.last.skipped == ("nothing was selected" if mean_entropy == 0 else None)
    assert all(tensor.isfinite().all() for tensor in adapter.network.model.parameters())
    moved = any(
        not torch.equal(now, start)
        for now, start in zip(adapter.network.model.parameters(), model.parameters(), strict=True)
    )
    assert moved == (mean_entropy > 0)


def test_predictions_and_records_have_the_shape_of_the_model_output(finished, model, network):
    adapter = finished.adapter
    with torch.no_grad():
        shape = model.eval()(STREAM[0]).shape
    assert all(output.shape == shape for output in finished.outputs)
    adapter.reset()(STREAM[0])
    samples = (shape[0], *shape[2:])
    assert adapter.last.selected.shape == samples
    assert adapter.last.novelty.shape == samples
    assert adapter.last.seen == adapter.last.selected.numel()
    assert len(samples) == (3 if is_segmentation(network) else 1)


def test_to_moves_the_whole_adapter(make, expected):
    adapter = make()
    outputs = run(adapter, STREAM[:2])
    adapter.to("cpu")
    assert_bit_equal(expected[:2], outputs)
    adapter.to(torch.float64)
    assert all(tensor.dtype == torch.float64 for tensor in adapter.parameters())
    for images, reference in zip(STREAM[2:], expected[2:], strict=True):
        output = adapter(images.double())
        assert output.dtype == torch.float64
        torch.testing.assert_close(output.float(), reference, rtol=1e-2, atol=1e-2)
    adapter.reset()
    assert adapter(STREAM[0].double()).dtype == torch.float64


def test_save_and_load_midway_continues_bit_equal(finished, make, expected, tmp_path):
    adapter = finished.adapter.reset()
    assert_bit_equal(expected[:2], run(adapter, STREAM[:2]))
    adapter.save(tmp_path / "state.safetensors")
    state = adapter.state_dict()
    assert_bit_equal(expected[2:], run(adapter, STREAM[2:]))
    other = make(prepared=False).load(tmp_path / "state.safetensors")
    assert same_state(state, state_of(other))
    assert_bit_equal(expected[2:], run(other, STREAM[2:]))
    other.load_state_dict(state)
    assert same_state(state, state_of(other))
    assert_bit_equal(expected[2:], run(other, STREAM[2:]))
    assert_bit_equal(expected[:2], run(other.reset(), STREAM[:2]))


def test_inference_mode_changes_nothing(make, expected):
    with torch.inference_mode():
        adapter = make()
        outputs = run(adapter, [images.clone() for images in STREAM])
    assert_bit_equal(expected, outputs)
    with torch.no_grad():
        assert_bit_equal(expected[:1], run(adapter.reset(), STREAM[:1]))


def test_frozen_network_never_changes_and_holds_no_graph(finished, case):
    source, outputs = finished.adapter.source, finished.source_outputs
    runs = "+" in case or case in ("cotta", "asr", "paf_kip", "sentinel", "stamp")
    passes = 2 if case == "sentinel" else int(runs)  # on mirror images as well
    assert len(outputs) == passes * len(STREAM), "it runs only where it is needed"
    assert all(not output.requires_grad and output.grad_fn is None for output in outputs)
    assert [tensor.data_ptr() for tensor in source.parameters()] == finished.addresses_before
    assert same_state(finished.source_before, source.state_dict())


# --- every kind of normalization --------------------------------------------------------------------------------------

# Each kind of layer meets every statistics rule, since only those read the layer itself, and one case of each kind of
# method, by turns of every second kind.
NORM_PAIRS = [
    pytest.param(norm, case, id=f"{norm}-{case}")
    for number, norm in enumerate(NORM_NETWORKS)
    for case in dict.fromkeys((*KINDS["predicts only"], *rotate_kinds(number)[number % 2 :: 2]))
]


@pytest.mark.parametrize(("norm", "case"), NORM_PAIRS)
def test_every_kind_of_normalization_learns_and_replays(norm, case):
    construct, shape = NORM_NETWORKS[norm]
    model = randomize(construct(), shape)
    adapter = adapter_for(case, model, prepared=False).prepare(source_data(shape=shape))
    stream = batches(3, shape=shape)
    outputs = run(adapter, stream)
    assert all(output.isfinite().all() for output in outputs)
    assert_bit_equal(outputs, run(adapter.reset(), stream))
    if case.partition("+")[0] in GRADIENT_METHODS:
        state = adapter.state
        moved = zip(state.trainable, state.source_parameters, strict=True)
        assert any(not torch.equal(now, start) for now, start in moved), "something must have been learned"


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def freeze_garbage():
    """Hide all objects that exist already from the garbage collector, which then finds new ones quickly."""
    gc.collect()
    gc.freeze()


def count_live_tensors():
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    return len(tensors), sum(tensor.numel() for tensor in tensors)


def assert_no_growth(adapter, images, steps, warm_up=7):
    for _ in range(warm_up):  # not ten: a record that guards have looked at holds a tensor less
        adapter(images)
    before = count_live_tensors()
    for _ in range(steps):
        adapter(images)
    assert count_live_tensors() == before


# What a step holds on to depends on the engine and on the network's layers. Over the networks, every kind of method.
@pytest.mark.parametrize("engine", [EagerEngine, StaticEngine])
@pytest.mark.parametrize(
    ("case", "network"),
    [
        ("ttn", "wide_resnet"),
        ("cotta+crowd", "wide_resnet"),
        ("eata+crowd", "group_norm"),
        ("swr", "attention"),
        ("tent+crowd", "segmentation"),
    ],
)
@pytest.mark.usefixtures("freeze_garbage")
def test_memory_does_not_grow(case, network, engine):
    adapter = adapter_for(case, build(network), segmentation=is_segmentation(network))
    adapter._engine = engine(adapter.method, adapter.state)
    assert_no_growth(adapter, batches(1, size=2)[0], steps=8)


@pytest.mark.parametrize(
    ("case", "steps"),
    [("tent+crowd", 150), *(pytest.param(case, 1000, marks=pytest.mark.slow) for case in CASES)],
)
@pytest.mark.usefixtures("freeze_garbage")
def test_memory_does_not_grow_over_many_steps(case, steps):
    construct, shape = NORM_NETWORKS["batch_norm_1d"]
    adapter = adapter_for(case, randomize(construct(), shape), prepared=False).prepare(source_data(shape=shape))
    assert_no_growth(adapter, batches(1, shape=shape)[0], steps=steps)


@pytest.mark.slow
@pytest.mark.usefixtures("freeze_garbage")
def test_memory_of_adapt_does_not_grow_once_its_snapshots_are_full():
    construct, shape = NORM_NETWORKS["batch_norm_1d"]
    adapter = adapter_for("adapt", randomize(construct(), shape), prepared=False)
    assert_no_growth(
        adapter, batches(1, shape=shape)[0], steps=1000, warm_up=307
    )  # a guard keeps four, each 50 batches
