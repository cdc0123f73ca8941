"""What every method promises, on every kind of network."""

import gc

import pytest
import torch

import driftproof as dp
from cases import CASES, GRADIENT_METHODS, adapter_for, batches, same_state, source_data, state_of
from networks import CONTRACT_NETWORKS, NORM_NETWORKS, build, randomize


@pytest.fixture(params=CONTRACT_NETWORKS)
def network(request):
    return request.param


@pytest.fixture(params=CASES)
def case(request):
    return request.param


@pytest.fixture
def model(network):
    return build(network)


@pytest.fixture
def segmentation(network):
    return network == "segmentation"


@pytest.fixture
def make(case, model, segmentation):
    def make(**settings):
        return adapter_for(case, model, segmentation=segmentation, **settings)

    return make


def run(adapter, stream):
    return [adapter(images) for images in stream]


def assert_bit_equal(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_1_replay_after_reset_is_bit_equal(make):
    adapter, stream = make(), batches()
    first = run(adapter, stream)
    assert_bit_equal(first, run(adapter.reset(), stream))


def test_2_the_callers_modes_change_nothing(make):
    stream = batches()
    undisturbed = run(make(), stream)
    adapter = make()
    outputs = []
    for images in stream:
        adapter.train().eval().requires_grad_(False)
        adapter.network.model.train()
        adapter.source.model.train()
        for parameter in adapter.network.model.parameters():
            parameter.requires_grad_(False)
        outputs.append(adapter(images))
        adapter.requires_grad_(True)
        adapter.network.model.requires_grad_(True)
    assert_bit_equal(undisturbed, outputs)


def test_3_the_users_model_is_untouched_and_shares_no_storage(make, model):
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapter = make()
    run(adapter, batches())
    assert model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    theirs = {tensor.data_ptr() for tensor in model.state_dict().values()}
    ours = {tensor.data_ptr() for tensor in (*adapter.parameters(), *adapter.buffers())}
    assert not theirs & ours


def test_4_unwrap_after_reset_equals_the_source_model(make, model):
    adapter = make()
    run(adapter, batches())
    plain = adapter.reset().unwrap()
    assert type(plain) is type(model)
    assert same_state(dict(plain.state_dict()), dict(model.state_dict()))
    for (_, module), (_, original) in zip(plain.named_modules(), model.named_modules(), strict=True):
        assert len(module._forward_pre_hooks) == len(original._forward_pre_hooks)
    images = batches(1)[0]
    with torch.no_grad():
        assert torch.equal(plain.eval()(images), model.eval()(images))
    run(adapter, batches())
    assert same_state(dict(plain.state_dict()), dict(model.state_dict())), "the unwrapped model is on its own"


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


def test_5_bad_input_is_named_and_leaves_the_state_intact(make):
    first, second, third = batches(3)
    twin = make()
    expected = [twin(first), twin(second), twin(third)]
    adapter = make()
    assert torch.equal(adapter(first), expected[0])
    before = state_of(adapter)
    for spoil, error in BAD_INPUT.values():
        with pytest.raises(error):
            adapter(spoil(first))
        assert same_state(before, state_of(adapter))
    assert torch.equal(adapter(second), expected[1])
    for value in (float("nan"), float("inf")):
        before = state_of(adapter)
        spoilt = second.clone()
        spoilt[0, 0, 0, 0] = value
        adapter(spoilt)
        assert adapter.last.skipped == "NaN or Inf in the images"
        assert same_state(before, state_of(adapter))
    assert torch.equal(adapter(third), expected[2])


def test_5_a_batch_of_one_is_defined(make):
    adapter = make()
    for images in batches(3, size=1):
        assert adapter(images).isfinite().all()
        assert adapter.last.skipped in (None, "nothing was selected")
    assert all(tensor.isfinite().all() for tensor in adapter.network.model.parameters())


class RejectAll(dp.selection.Selection):
    def weights(self, step):
        return torch.zeros_like(step.weights)


@pytest.mark.parametrize("mean_entropy", [0.0, 0.5])
@pytest.mark.parametrize("case", GRADIENT_METHODS)
def test_5_everything_rejected(make, model, mean_entropy):
    adapter = make(select=RejectAll(), mean_entropy=mean_entropy)
    for images in batches(3):
        assert adapter(images).isfinite().all()
        assert adapter.last.kept == 0
        assert adapter.last.stepped == (mean_entropy > 0)
        assert adapter.last.skipped == ("nothing was selected" if mean_entropy == 0 else None)
    assert all(tensor.isfinite().all() for tensor in adapter.network.model.parameters())
    moved = any(
        not torch.equal(now, start)
        for now, start in zip(adapter.network.model.parameters(), model.parameters(), strict=True)
    )
    assert moved == (mean_entropy > 0)


def test_6_predictions_and_records_have_the_models_shape(make, model, segmentation):
    adapter, images = make(), batches(1)[0]
    with torch.no_grad():
        expected = model.eval()(images).shape
    assert adapter(images).shape == expected
    samples = (expected[0], *expected[2:])
    assert adapter.last.selected.shape == samples
    assert adapter.last.novelty.shape == samples
    assert adapter.last.seen == adapter.last.selected.numel()
    assert len(samples) == (3 if segmentation else 1)


def test_7_moves_with_to(make):
    stream = batches()
    expected = run(make(), stream)
    adapter = make()
    outputs = run(adapter, stream[:2])
    adapter.to("cpu")
    assert_bit_equal(expected[:2], outputs)
    adapter.to(torch.float64)
    assert all(tensor.dtype == torch.float64 for tensor in adapter.parameters())
    for images, reference in zip(stream[2:], expected[2:], strict=True):
        wide = adapter(images.double())
        assert wide.dtype == torch.float64
        torch.testing.assert_close(wide.float(), reference, rtol=1e-2, atol=1e-2)
    adapter.reset()
    assert adapter(stream[0].double()).dtype == torch.float64


@pytest.mark.parametrize("way", ["file", "dict"])
def test_8_save_and_load_mid_stream_continues_bit_identically(make, tmp_path, way):
    stream = batches(5)
    adapter = make()
    run(adapter, stream[:2])
    if way == "file":
        adapter.save(tmp_path / "state.safetensors")
    state = adapter.state_dict()
    expected = run(adapter, stream[2:])
    other = make(prepared=False)
    if way == "file":
        other.load(tmp_path / "state.safetensors")
    else:
        other.load_state_dict(state)
    assert same_state(state, state_of(other))
    assert_bit_equal(expected, run(other, stream[2:]))
    assert_bit_equal(run(adapter.reset(), stream), run(other.reset(), stream))


def test_10_works_under_inference_mode(make):
    stream = batches()
    expected = run(make(), stream)
    with torch.inference_mode():
        inside = [images.clone() for images in stream]
        adapter = make()
        outputs = run(adapter, inside)
    assert_bit_equal(expected, outputs)
    with torch.no_grad():
        assert_bit_equal(expected, run(adapter.reset(), stream))


@pytest.mark.parametrize("norm", NORM_NETWORKS)
def test_11_every_kind_of_normalization(case, norm):
    construct, shape = NORM_NETWORKS[norm]
    model = randomize(construct(), shape)
    adapter = adapter_for(case, model, prepared=False).prepare(source_data(shape=shape))
    stream = batches(3, shape=shape)
    outputs = run(adapter, stream)
    assert all(output.isfinite().all() for output in outputs)
    assert_bit_equal(outputs, run(adapter.reset(), stream))
    if case.partition("+")[0] in GRADIENT_METHODS:
        trainable_parameters = adapter.trainable_parameters.values()
        assert any(not torch.equal(now, start) for now, start in zip(trainable_parameters, adapter.state.source_parameters, strict=True)), (
            "something must have been learned"
        )


def live_tensors():
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    return len(tensors), sum(tensor.numel() for tensor in tensors)


def assert_no_growth(adapter, images, steps):
    for _ in range(10):
        adapter(images)
    before = live_tensors()
    for _ in range(steps):
        adapter(images)
    assert live_tensors() == before


@pytest.mark.parametrize("steps", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_12_memory_does_not_grow(make, steps):
    assert_no_growth(make(), batches(1, size=2)[0], steps)


@pytest.mark.parametrize("case", ["tent+crowd", "swr+crowd", "cotta"])
def test_12_memory_does_not_grow_over_a_thousand_steps(case):
    construct, shape = NORM_NETWORKS["batch_norm_1d"]
    adapter = adapter_for(case, randomize(construct(), shape), prepared=False).prepare(source_data(shape=shape))
    assert_no_growth(adapter, batches(1, shape=shape)[0], steps=1000)


def test_the_frozen_network_never_changes_and_holds_no_graph(make, case):
    adapter = make()
    addresses = [tensor.data_ptr() for tensor in adapter.source.parameters()]
    before = {name: tensor.clone() for name, tensor in adapter.source.model.state_dict().items()}
    answers = []
    adapter.source.register_forward_hook(lambda _, __, output: answers.append(output))
    run(adapter, batches())
    assert len(answers) == (4 if "+crowd" in case or case == "cotta" else 0), "it runs only where it is needed"
    assert all(not answer.requires_grad and answer.grad_fn is None for answer in answers)
    assert [tensor.data_ptr() for tensor in adapter.source.parameters()] == addresses
    assert all(torch.equal(before[name], tensor) for name, tensor in adapter.source.model.state_dict().items())
