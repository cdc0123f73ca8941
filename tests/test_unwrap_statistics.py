"""`unwrap(statistics=...)`: the plain module predicts as the adapter does, and can be exported."""

import copy
import pickle

import pytest
import torch
from torch import nn

import driftproof as dp
from cases import batches, same_state, state_of
from networks import build

METHODS = {
    "adapt": dp.adapt,
    "tent": dp.tent,
    "tent+crowd": lambda model, **more: dp.tent(model, select=dp.ConfidenceDifference(), **more),
    "bn_adapt": dp.bn_adapt,
    "norm_ema": dp.norm_ema,
    "blend": lambda model: dp.tent(model, statistics=dp.statistics.Blend(0.5)),
    "online blend": lambda model: dp.tent(model, statistics=dp.statistics.Blend(0.7, momentum=0.1)),
}


@pytest.fixture
def model():
    return build("wide_resnet")


def norms_of(model):
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.BatchNorm2d)}


# --- what is baked in -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_plain_module_answers_the_last_batch_as_the_network_would(model, name):
    """One batch of 128 or more is all that "stream" looks at, so both networks normalize it alike."""
    adapter = METHODS[name](model)
    first, last = batches(2, size=128)
    adapter(first)
    adapter(last)
    plain = adapter.unwrap(statistics="stream")
    can_learn = adapter.statistics.can_learn()
    network = adapter.source if can_learn is not None and not can_learn else adapter.network
    with torch.no_grad():
        expected = network(last)
    network.rollback()
    torch.testing.assert_close(plain(last), expected, atol=2e-4, rtol=2e-4)


def test_statistics_are_averaged_over_the_last_batches(model):
    """The first layer's are those of all images together, which a loop over the same images finds."""
    adapter = dp.bn_adapt(model)
    stream = [1 + images for images in batches(20, size=16)]
    for images in stream:
        adapter(images)
    plain = adapter.unwrap(statistics="stream")
    seen = []
    name, layer = next(iter(norms_of(model).items()))
    layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    with torch.no_grad():
        model(torch.cat(stream[-8:]))  # 8 × 16 = 128 images
    inputs = seen[0].double()
    torch.testing.assert_close(norms_of(plain)[name].running_mean.double(), inputs.mean((0, 2, 3)))
    torch.testing.assert_close(
        norms_of(plain)[name].running_var.double(), inputs.var((0, 2, 3), correction=0), rtol=1e-4, atol=1e-6
    )


def test_given_images_take_the_place_of_the_last_batches(model):
    adapter = dp.tent(model)
    stream = batches(3, size=16)
    adapter(stream[0])
    other = torch.cat(stream[1:]) + 2
    for given in (other, [other], iter([other])):
        plain = adapter.unwrap(statistics=given)
        with torch.no_grad():
            torch.testing.assert_close(plain(other), adapter.network(other), atol=2e-4, rtol=2e-4)


def test_source_statistics_stay_those_of_training(model):
    adapter = dp.source(model)
    adapter(batches(1)[0])
    assert same_state(dict(adapter.unwrap(statistics="stream").state_dict()), dict(model.state_dict()))


def test_statistics_of_training_are_the_default(model):
    adapter = dp.tent(model)
    adapter(batches(1)[0])
    for plain in (adapter.unwrap(), adapter.unwrap(statistics="training")):
        ours, theirs = norms_of(plain), norms_of(model)
        assert all(torch.equal(ours[name].running_mean, theirs[name].running_mean) for name in ours)


def test_layers_without_running_statistics_get_some():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(), nn.Linear(144, 5)
    )
    adapter, images = dp.tent(model), batches(1, size=16)[0]
    adapter(images)
    plain = adapter.unwrap(statistics="stream")
    with torch.no_grad():
        torch.testing.assert_close(plain(images), adapter.network(images), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(plain(images[:1]), plain(images)[:1], atol=1e-5, rtol=1e-4)


def test_quarantined_images_are_left_out(model):
    adapter, other = dp.tent(model), dp.tent(model)
    (images,) = batches(1, size=17)
    damaged = images.clone()
    damaged[3] = torch.nan
    adapter(damaged)
    other(images)
    kept = torch.cat([images[:3], images[4:]])
    plain, expected = adapter.unwrap(statistics="stream"), adapter.unwrap(statistics=kept)
    assert all(tensor.isfinite().all() for tensor in plain.state_dict().values())
    assert same_state(dict(plain.state_dict()), dict(expected.state_dict()))


def test_statistics_of_selected_samples_are_taken_from_them():
    model = build("wide_resnet")
    rule = dp.statistics.Batch(of=dp.EntropyBelow(1.2, network="source"))
    adapter, images = dp.tent(model, statistics=rule), batches(1, size=24)[0]
    adapter(images)
    chosen = rule.sample_mask(adapter.state.make_step(images))
    adapter.state.finish_step()
    plain = adapter.unwrap(statistics="stream")
    first = next(iter(norms_of(plain)))
    expected = dp.bn_adapt(model).unwrap(statistics=images[chosen])
    torch.testing.assert_close(norms_of(plain)[first].running_mean, norms_of(expected)[first].running_mean)


# --- what stays as it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_unwrapping_changes_nothing_in_the_adapter(model, name):
    adapter, other = METHODS[name](model), METHODS[name](model)
    stream = batches(4, size=16)
    for images in stream[:2]:
        adapter(images)
        other(images)
    before = state_of(adapter)
    plain = adapter.unwrap(statistics="stream")
    assert same_state(before, state_of(adapter))
    for images in stream[2:]:
        assert torch.equal(adapter(images), other(images))
    shared = {tensor.data_ptr() for tensor in adapter.network.model.state_dict().values()}
    assert not shared & {tensor.data_ptr() for tensor in plain.state_dict().values()}
    assert [type(module) for module in plain.modules()] == [type(module) for module in model.modules()]
    assert not any(module._forward_pre_hooks or "forward" in vars(module) for module in plain.modules())


def test_images_are_no_part_of_copies_and_forgotten_by_reset(model):
    adapter = dp.tent(model)
    (images,) = batches(1)
    adapter(images)
    for other in (copy.deepcopy(adapter), pickle.loads(pickle.dumps(adapter)), adapter.reset(), dp.tent(model)):
        with pytest.raises(dp.errors.CallOrderError, match="Expected a batch before `unwrap`"):
            other.unwrap(statistics="stream")
    adapter(images)
    with pytest.raises(dp.errors.CallOrderError, match="or pass images"):
        adapter.double().unwrap(statistics="stream")


@pytest.mark.parametrize(("size", "kept"), [(1, 128), (16, 8), (100, 2), (128, 1), (300, 1)])
def test_so_many_batches_are_kept_as_make_128_images(model, size, kept):
    adapter = dp.source(model)
    for _ in range(130 if size == 1 else 10):
        adapter(torch.zeros(size, 3, 8, 8))
    assert len(adapter._recent) == kept


def test_fewer_large_images_are_kept():
    adapter = dp.Adapter(nn.Conv2d(3, 2, 1), scope=dp.scopes.nothing(), statistics=dp.statistics.Source())
    images = torch.zeros(1, 3, 1 << 10, 1 << 10)
    for _ in range(12):
        adapter(images)
    assert len(adapter._recent) == 8


def test_fallen_back_adapter_unwraps_the_frozen_network(model):
    adapter = dp.tent(model, lr=0.3, guard=dp.guards.FallBack())
    (images,) = batches(1, size=16)
    adapter(images)
    adapter.state.guard_counters |= {"falls_back_until": 10**9, "of_training": 0}
    plain = adapter.unwrap(statistics="stream")
    with torch.no_grad():
        torch.testing.assert_close(plain(images), adapter.source(images), atol=2e-4, rtol=2e-4)
    adapter.state.guard_counters["of_training"] = 1
    assert same_state(dict(adapter.unwrap(statistics="stream").state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("wrong", [[], [torch.zeros(0, 3, 8, 8)], [(1, 2)], torch.zeros(4, 3, 8, 8).byte(), [None]])
def test_statistics_that_are_no_images_raise(model, wrong):
    with pytest.raises(dp.errors.InputError, match="`statistics`"):
        dp.tent(model).unwrap(statistics=wrong)


def test_unknown_name_raises(model):
    with pytest.raises(dp.errors.DriftproofError, match="`statistics`"):
        dp.tent(model).unwrap(statistics="batch")


# --- real images ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adapt", pytest.param("tent", marks=pytest.mark.slow), "tent+crowd"])
def test_plain_module_is_as_right_as_the_adapter_was_on_the_last_domain(trained, name):
    """Digits that are too dark, six times over: the source network loses two thirds of them."""
    model, images, labels = trained
    shifted = 0.3 * images
    adapter, right = METHODS[name](model), []
    for round in range(6):
        for chosen in torch.randperm(len(images), generator=torch.Generator().manual_seed(round)).split(64):
            right.append((adapter(shifted[chosen]).argmax(1) == labels[chosen]).float())
    rounds = torch.cat(right).view(6, -1).mean(1)
    plain = adapter.unwrap(statistics="stream")
    with torch.no_grad():
        accuracy = (plain(shifted).argmax(1) == labels).float().mean()
        before = (model(shifted).argmax(1) == labels).float().mean()
        kept = (adapter.unwrap()(shifted).argmax(1) == labels).float().mean()
    assert rounds[-1] > before + 0.4, "adapting helped"
    assert accuracy > rounds[-1] - 0.01
    assert kept < accuracy - 0.4, "with training's statistics"


# --- export -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unwrapped(trained):
    model, images, _ = trained
    adapter = dp.tent(model)
    adapter(0.3 * images[:128])
    return adapter.unwrap(statistics="stream"), images[:7]


def test_exported_program_answers_as_the_plain_module(unwrapped, tmp_path):
    plain, images = unwrapped
    batch = {0: torch.export.Dim("batch")}
    torch.export.save(torch.export.export(plain, (images[:3],), dynamic_shapes=(batch,)), tmp_path / "plain.pt2")
    program = torch.export.load(tmp_path / "plain.pt2").module()
    with torch.no_grad():
        torch.testing.assert_close(program(images), plain(images))


@pytest.mark.filterwarnings("ignore")  # of the exporter's own
def test_onnx_file_answers_as_the_plain_module(unwrapped, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    plain, images = unwrapped
    path, batch = tmp_path / "plain.onnx", {0: torch.export.Dim("batch")}
    torch.onnx.export(plain, (images[:3],), path, dynamo=True, dynamic_shapes=(batch,), verbose=False)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (answers,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(answers), plain(images), atol=1e-4, rtol=1e-4)
