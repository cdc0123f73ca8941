"""The networks are the public ones, and their weights come from files safely or not at all."""

import copy
import itertools
import os

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

import driftproof as dp
from driftproof.models import (
    MODELS,
    ResNet50,
    ResNeXt29,
    WideResNet,
    build,
    load_checkpoint,
    read_checkpoint,
    restore,
    save_checkpoint,
)
from driftproof.norms import batch_norms


@pytest.mark.parametrize(
    ("depth", "width", "classes", "parameters", "norms", "affine"),
    [(40, 2, 10, 2_243_546, 37, 5_408), (40, 2, 100, 2_255_156, 37, 5_408), (28, 10, 10, 36_479_194, 25, 17_952)],
)
def test_wide_resnet_has_the_published_size(depth, width, classes, parameters, norms, affine):
    with torch.device("meta"):
        model = WideResNet(depth, width, classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert sum(1 for _ in batch_norms(model)) == norms
    moving = dp.scopes.norm_affine().parameters(model)
    assert sum(parameter.numel() for parameter in moving.values()) == affine


def test_wide_resnet_has_the_public_names():
    names = set(WideResNet(16, 1).state_dict())
    assert {"conv1.weight", "block1.layer.0.bn1.running_mean", "block2.layer.0.convShortcut.weight"} <= names
    assert {"block3.layer.1.conv2.weight", "bn1.bias", "fc.bias"} <= names
    assert not any("mean" in name and "running" not in name for name in names), "normalization is not a weight"


def test_wide_resnet_normalizes_its_input():
    plain, shifted = WideResNet(10, 1, mean=0.0, std=1.0).eval(), WideResNet(10, 1).eval()
    shifted.load_state_dict(plain.state_dict())
    images = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(shifted(images), plain((images - 0.5) / 0.5))


def test_wide_resnet_of_a_depth_that_does_not_exist():
    with pytest.raises(dp.errors.ConfigurationError, match="6n"):
        WideResNet(depth=18)


def test_images_are_normalized_per_channel():
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 1.0, 2.0])
    plain = WideResNet(10, 1, mean=0.0, std=1.0).eval()
    shifted = WideResNet(10, 1, mean=mean.tolist(), std=std.tolist()).eval()
    shifted.load_state_dict(plain.state_dict())
    images = torch.rand(2, 3, 16, 16)
    by_hand = torch.stack([(images[:, c] - mean[c]) / std[c] for c in range(3)], dim=1)
    torch.testing.assert_close(shifted(images), plain(by_hand))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mean": (0.5, 0.5)}, "`mean` to be one number or three, but got 2"),
        ({"std": 0}, "`std` to be above 0, but got 0"),
        ({"std": (0.5, -1.0, 0.5)}, "`std` to be above 0"),
        ({"classes": 0}, "`classes` to be at least 1, but got 0"),
    ],
)
def test_settings_no_classifier_can_have(wrong, message):
    with pytest.raises(dp.errors.ConfigurationError, match=message):
        WideResNet(10, 1, **wrong)


@pytest.mark.parametrize(
    ("name", "classes", "parameters", "norms", "affine"),
    [
        ("resnet50", 1000, 25_557_032, 53, 53_120),
        ("resnet50", 200, 23_917_832, 53, 53_120),
        ("resnet50_cifar", 10, 23_520_842, 53, 53_120),
        ("resnext29", 100, 6_900_132, 31, 25_216),
        ("wrn40_2", 100, 2_255_156, 37, 5_408),
        ("wrn28_10", 10, 36_479_194, 25, 17_952),
    ],
)
def test_networks_of_the_catalogue_have_the_published_size(name, classes, parameters, norms, affine):
    with torch.device("meta"):
        model = build(name, classes=classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert sum(1 for _ in batch_norms(model)) == norms
    moving = dp.scopes.norm_affine().parameters(model)
    assert sum(parameter.numel() for parameter in moving.values()) == affine


def norm_names(path):
    return {f"{path}.{leaf}" for leaf in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}


def test_resnet50_has_torchvisions_names():
    names = {"conv1.weight", "fc.weight", "fc.bias"} | norm_names("bn1")
    for layer, blocks in enumerate([3, 4, 6, 3], start=1):
        names |= {f"layer{layer}.0.downsample.0.weight"} | norm_names(f"layer{layer}.0.downsample.1")
        for block, part in itertools.product(range(blocks), (1, 2, 3)):
            names |= {f"layer{layer}.{block}.conv{part}.weight"} | norm_names(f"layer{layer}.{block}.bn{part}")
    with torch.device("meta"):
        assert set(ResNet50().state_dict()) == set(ResNet50(stem="cifar").state_dict()) == names


def test_resnext29_has_the_public_names():
    names = {"conv_1_3x3.weight", "classifier.weight", "classifier.bias"} | norm_names("bn_1")
    for stage in (1, 2, 3):
        names |= {f"stage_{stage}.0.downsample.0.weight"} | norm_names(f"stage_{stage}.0.downsample.1")
        for block in (0, 1, 2):
            path = f"stage_{stage}.{block}"
            names |= {f"{path}.conv_reduce.weight", f"{path}.conv_conv.weight", f"{path}.conv_expand.weight"}
            names |= norm_names(f"{path}.bn_reduce") | norm_names(f"{path}.bn") | norm_names(f"{path}.bn_expand")
    with torch.device("meta"):
        model = ResNeXt29()
    assert set(model.state_dict()) == names
    assert model.stage_2[0].conv_conv.weight.shape == (256, 64, 3, 3), "4 groups of 64 channels"


def windows_convolved(x, weight, stride, padding, groups=1):
    """Convolution as a matrix product over windows, group by group."""
    images, size = len(x), weight.shape[-1]
    side = (x.shape[-1] + 2 * padding - size) // stride + 1
    results = []
    for part, kernels in zip(x.chunk(groups, dim=1), weight.chunk(groups), strict=True):
        windows = F.unfold(part, size, padding=padding, stride=stride)
        results.append((kernels.flatten(1) @ windows).view(images, len(kernels), side, side))
    return torch.cat(results, dim=1)


def normed(x, state, path):
    mean, var, weight, bias = (
        state[f"{path}.{leaf}"].view(-1, 1, 1) for leaf in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (var + 1e-5).sqrt() * weight + bias


def bottleneck_by_hand(x, state, path, convs, norms, stride, groups=1):
    y = normed(windows_convolved(x, state[f"{path}.{convs[0]}.weight"], 1, 0), state, f"{path}.{norms[0]}").relu()
    y = windows_convolved(y, state[f"{path}.{convs[1]}.weight"], stride, 1, groups)
    y = normed(y, state, f"{path}.{norms[1]}").relu()
    y = normed(windows_convolved(y, state[f"{path}.{convs[2]}.weight"], 1, 0), state, f"{path}.{norms[2]}")
    if f"{path}.downsample.0.weight" in state:
        x = normed(windows_convolved(x, state[f"{path}.downsample.0.weight"], stride, 0), state, f"{path}.downsample.1")
    return (x + y).relu()


def with_own_statistics(model):
    """Statistics and affine parameters unlike the fresh ones, so that each of them shows."""
    for _, module in batch_norms(model):
        with torch.no_grad():
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            module.weight.uniform_(0.5, 1.5)
            module.bias.normal_(0, 0.1)
    return model.eval().double()


@pytest.fixture(scope="module")
def small_resnet():
    torch.manual_seed(0)
    return with_own_statistics(ResNet50(7))


@torch.no_grad()
def test_resnet50_is_what_its_weights_say(small_resnet):
    state, images = small_resnet.state_dict(), torch.rand(1, 3, 40, 40, dtype=torch.double)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    x = windows_convolved((images - mean) / std, state["conv1.weight"], 2, 3)
    x = F.max_pool2d(normed(x, state, "bn1").relu(), 3, 2, 1)
    convs, norms = ("conv1", "conv2", "conv3"), ("bn1", "bn2", "bn3")
    for layer, blocks in enumerate([3, 4, 6, 3], start=1):
        for block in range(blocks):
            stride = 2 if layer > 1 and block == 0 else 1
            x = bottleneck_by_hand(x, state, f"layer{layer}.{block}", convs, norms, stride)
    expected = x.mean(dim=(2, 3)) @ state["fc.weight"].T + state["fc.bias"]
    torch.testing.assert_close(small_resnet(images), expected)


@torch.no_grad()
def test_wide_resnet_is_what_its_weights_say():
    torch.manual_seed(0)
    model = with_own_statistics(WideResNet(16, 2, 5))
    state, images = model.state_dict(), torch.rand(2, 3, 8, 8, dtype=torch.double)
    x = windows_convolved((images - 0.5) / 0.5, state["conv1.weight"], 1, 1)
    for group, block in itertools.product((1, 2, 3), (0, 1)):
        path, stride = f"block{group}.layer.{block}", 2 if group > 1 and block == 0 else 1
        active = normed(x, state, f"{path}.bn1").relu()
        y = windows_convolved(active, state[f"{path}.conv1.weight"], stride, 1)
        y = windows_convolved(normed(y, state, f"{path}.bn2").relu(), state[f"{path}.conv2.weight"], 1, 1)
        shortcut = state.get(f"{path}.convShortcut.weight")
        assert (shortcut is None) == (block > 0)
        x = y + (x if shortcut is None else windows_convolved(active, shortcut, stride, 0))
    expected = normed(x, state, "bn1").relu().mean(dim=(2, 3)) @ state["fc.weight"].T + state["fc.bias"]
    torch.testing.assert_close(model(images), expected)


@torch.no_grad()
def test_resnext29_is_what_its_weights_say():
    model = with_own_statistics(ResNeXt29(5))
    state, images = model.state_dict(), torch.rand(1, 3, 8, 8, dtype=torch.double)
    x = normed(windows_convolved((images - 0.5) / 0.5, state["conv_1_3x3.weight"], 1, 1), state, "bn_1").relu()
    convs, norms = ("conv_reduce", "conv_conv", "conv_expand"), ("bn_reduce", "bn", "bn_expand")
    for stage, block in itertools.product((1, 2, 3), (0, 1, 2)):
        stride = 2 if stage > 1 and block == 0 else 1
        x = bottleneck_by_hand(x, state, f"stage_{stage}.{block}", convs, norms, stride, groups=4)
    expected = x.mean(dim=(2, 3)) @ state["classifier.weight"].T + state["classifier.bias"]
    torch.testing.assert_close(model(images), expected)


def test_the_cifar_stem_keeps_the_size():
    with torch.device("meta"):
        small, large = ResNet50(10, stem="cifar").eval(), ResNet50(10).eval()
        images = torch.rand(1, 3, 32, 32)
        assert small.maxpool(small.conv1(images)).shape == (1, 64, 32, 32)
        assert large.maxpool(large.conv1(images)).shape == (1, 64, 8, 8)
        assert small(images).shape == large(images).shape == (1, 10)


def test_variants_that_do_not_exist():
    with pytest.raises(dp.errors.ConfigurationError, match="`stem` to be 'imagenet' or 'cifar', but got 'mnist'"):
        ResNet50(stem="mnist")
    with pytest.raises(dp.errors.ConfigurationError, match="at least 1, but got 0 and 32"):
        ResNeXt29(cardinality=0)


@pytest.mark.parametrize("name", MODELS)
def test_every_entry_of_the_catalogue_builds(name):
    entry = MODELS[name]
    with torch.device("meta"):
        model = build(name)
        assert model(torch.rand(2, 3, entry.input_size, entry.input_size)).shape[:2] == (2, entry.classes)
        assert build(name, classes=3).classes == 3
    assert entry.name == name
    assert entry.source
    assert entry.licence


def test_the_catalogue_knows_the_normalization_of_the_public_weights():
    assert (MODELS["wrn28_10"].mean, MODELS["wrn28_10"].std) == (0.0, 1.0)
    usual, override = build("wrn10_1"), build("wrn10_1", mean=0.25)
    assert (float(usual.mean), float(usual.std)) == (0.5, 0.5)
    assert (float(override.mean), float(override.std)) == (0.25, 0.5)


@pytest.mark.parametrize(("name", "nearest"), [("wrn40-2", "wrn40_2"), ("resnet_50", "resnet50"), ("?", "wrn10_1")])
def test_an_unknown_name_is_answered_with_the_nearest(name, nearest):
    with pytest.raises(dp.errors.ConfigurationError, match=f"(Did you mean|There is) .*{nearest}"):
        build(name)


def tiny(**settings):
    return build("wrn10_1", **{"classes": 4} | settings)


def same_weights(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def with_prefix(prefix, state):
    return {prefix + name: value for name, value in state.items()}


def augmix(state):
    return {"epoch": 99, "model": "wrn", "state_dict": with_prefix("module.", state), "best_acc": 0.95, "optimizer": {}}


ARRANGEMENTS = {
    "bare": lambda state: state,
    "ours": lambda state: {"state_dict": state, "meta": {"arch": "wrn10_1"}},
    "augmix": augmix,
    "model": lambda state: {"model": state, "epoch": 3},
    "averaged": lambda state: {
        "state_dict": {name: value + 1 for name, value in state.items()},
        "state_dict_ema": state,
    },
    "compiled and parallel": lambda state: with_prefix("module._orig_mod.", state),
    "inside a model": lambda state: with_prefix("model.backbone.", state),
    "robustbench": lambda state: {"mu": torch.full((1, 3, 1, 1), 0.5), "sigma": torch.full((1, 3, 1, 1), 0.5)} | state,
    "robustbench, wrapped": lambda state: (
        {"normalize.mean": torch.full((3,), 0.5), "normalize.std": torch.full((1,), 0.5)} | with_prefix("model.", state)
    ),
    "before batches were counted": lambda state: {
        name: value for name, value in state.items() if not name.endswith("num_batches_tracked")
    },
}


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("zipped", [True, False])
def test_torch_files_in_every_arrangement_load(arrangement, zipped, tmp_path):
    source, model = tiny(), tiny()
    contents = ARRANGEMENTS[arrangement](source.state_dict())
    torch.save(contents, tmp_path / "weights.pt", _use_new_zipfile_serialization=zipped)
    assert not same_weights(source, model)
    assert load_checkpoint(model, tmp_path / "weights.pt") is model
    assert same_weights(source, model)


def test_what_a_file_says_besides_weights_is_kept(tmp_path):
    state = tiny().state_dict()
    torch.save(augmix(state), tmp_path / "augmix")
    assert read_checkpoint(tmp_path / "augmix").meta == {"epoch": 99, "model": "wrn", "best_acc": 0.95}
    torch.save({"state_dict": state, "meta": {"classes": ["a", "b"]}, "epoch": 3}, tmp_path / "ours")
    assert read_checkpoint(tmp_path / "ours").meta == {"classes": ["a", "b"]}
    safetensors.torch.save_file(state, tmp_path / "plain", metadata={"format": "pt"})
    assert read_checkpoint(tmp_path / "plain").meta == {"format": "pt"}
    safetensors.torch.save_file(state, tmp_path / "silent")
    assert read_checkpoint(tmp_path / "silent").meta == {}


def test_safetensors_files_load(tmp_path):
    source, model = tiny(), tiny()
    safetensors.torch.save_file(with_prefix("module.", source.state_dict()), tmp_path / "weights")
    assert same_weights(source, load_checkpoint(model, str(tmp_path / "weights")))


def test_a_prefix_of_the_models_own_stays(tmp_path):
    source, model = torch.nn.Sequential(), torch.nn.Sequential()
    source.add_module("model", torch.nn.Linear(2, 3))
    model.add_module("model", torch.nn.Linear(2, 3))
    torch.save(source.state_dict(), tmp_path / "own")
    assert same_weights(source, load_checkpoint(model, tmp_path / "own"))
    torch.save(with_prefix("model.", source.state_dict()), tmp_path / "doubled")
    assert same_weights(source, load_checkpoint(model, tmp_path / "doubled"))


@pytest.mark.parametrize(("stored", "own"), [(torch.float16, torch.float32), (torch.float32, torch.float64)])
def test_values_are_cast_to_the_models_type(stored, own, tmp_path):
    source = tiny().to(stored)
    torch.save(source.state_dict(), tmp_path / "weights")
    model = load_checkpoint(tiny().to(own), tmp_path / "weights")
    assert {parameter.dtype for parameter in model.parameters()} == {own}
    assert same_weights(model, source.to(own))


class Malice:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(zipped, tmp_path):
    contents = {"state_dict": Malice(tmp_path / "mischief")}
    torch.save(contents, tmp_path / "weights.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(dp.errors.InputError, match=rf"asks for `{os.name}\.mkdir`.*nothing was run.*safetensors"):
        read_checkpoint(tmp_path / "weights.pt")
    assert not (tmp_path / "mischief").exists()
    torch.load(tmp_path / "weights.pt", weights_only=False)
    assert (tmp_path / "mischief").exists(), "the file was harmless, so the test showed nothing"


def test_a_whole_pickled_model_is_refused_by_name(tmp_path):
    torch.save(tiny(), tmp_path / "model.pt")
    with pytest.raises(dp.errors.InputError, match=r"asks for `driftproof\.models\.wide_resnet\.WideResNet`"):
        load_checkpoint(tiny(), tmp_path / "model.pt")


def test_a_truncated_file_is_refused(tmp_path):
    model = tiny()
    torch.save(model.state_dict(), tmp_path / "zipped")
    torch.save(model.state_dict(), tmp_path / "flat", _use_new_zipfile_serialization=False)
    save_checkpoint(tmp_path / "safe", model, {})
    before = copy.deepcopy(model)
    for path in list(tmp_path.iterdir()):
        whole = path.read_bytes()
        for length in (0, 5, 9, 100, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            with pytest.raises(dp.errors.InputError, match="damaged, incomplete or something else"):
                load_checkpoint(model, path)
    assert same_weights(before, model)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"<!DOCTYPE html><title>Quota exceeded", "it is a web page: the download failed"),
        (b"\n <html>", "it is a web page"),
        (b"weights, honestly", "damaged, incomplete or something else"),
        ([torch.ones(2)], "to hold a state dict, but it holds a list"),
        ({}, "state_dict_ema, state_dict, model, but it holds nothing"),
        ({"epoch": 1, "net": {}, "optimizer": {}, "seed": 1}, "it holds epoch, net, optimizer and 1 more"),
        ({"state_dict": {"conv1.weight": 3}}, "it holds state_dict"),
    ],
)
def test_files_without_weights_are_refused(contents, message, tmp_path):
    path = tmp_path / "weights"
    if isinstance(contents, bytes):
        path.write_bytes(contents)
    else:
        torch.save(contents, path)
    with pytest.raises(dp.errors.InputError, match=message):
        read_checkpoint(path)


@pytest.mark.parametrize("said", ["{", "[1]"])
def test_a_description_that_is_none_is_refused(said, tmp_path):
    safetensors.torch.save_file({"x": torch.ones(1)}, tmp_path / "weights", metadata={"meta": said})
    with pytest.raises(dp.errors.InputError, match="damaged"):
        read_checkpoint(tmp_path / "weights")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_checkpoint(tmp_path / "nowhere")


def spoilt(state, **changes):
    return {name: value for name, value in (state | changes).items() if value is not None}


MISFITS = {
    "missing": (
        lambda state: spoilt(state, **{"fc.bias": None, "bn1.weight": None}),
        r"it lacks bn1\.weight, fc\.bias\.",
    ),
    "many missing": (
        lambda state: {name: value for name, value in state.items() if not name.startswith("block1.")},
        r"it lacks (block1[\w.]+, ){2}block1[\w.]+ and 7 more\.",
    ),
    "unknown": (lambda state: state | {"head.weight": torch.ones(1)}, r"it has head\.weight, unknown to the model"),
    "both": (
        lambda state: spoilt(state, **{"fc.bias": None}) | {"linear.bias": torch.zeros(4)},
        r"it lacks fc\.bias; it has linear\.bias, unknown",
    ),
    "partly prefixed": (
        lambda state: with_prefix("module.", state) | {"epoch": torch.tensor(1)},
        r"it lacks conv1\.weight, .*it has module\.conv1\.weight",
    ),
    "shape": (
        lambda state: state | {"conv1.weight": torch.ones(16, 1, 3, 3)},
        r"the shapes differ: conv1\.weight is \(16, 1, 3, 3\), not \(16, 3, 3, 3\)\.",
    ),
    "narrower": (
        lambda state: WideResNet(10, 2, 4).state_dict(),
        r"the shapes differ: .* and \d+ more\.",
    ),
    "classes": (
        lambda state: state | {"fc.weight": torch.ones(100, 64), "fc.bias": torch.ones(100)},
        r"it has 100 classes and the model 4: build the model with classes=100",
    ),
    "head of another width": (
        lambda state: state | {"fc.weight": torch.ones(4, 32)},
        r"fc\.weight is \(4, 32\), not \(4, 64\)\.",
    ),
    "head without a shape": (
        lambda state: state | {"fc.bias": torch.tensor(1.0)},
        r"fc\.bias is \(\), not \(4,\)\.",
    ),
    "integers": (
        lambda state: state | {"fc.bias": torch.ones(4, dtype=torch.int8)},
        r"fc\.bias should be of floating point",
    ),
    "not a number": (lambda state: state | {"fc.bias": torch.full((4,), torch.nan)}, r"finite, but those of fc\.bias"),
    "too large for its type": (
        lambda state: state | {"bn1.running_var": torch.full((64,), 1e6).half()},
        r"finite, but those of bn1\.running_var",
    ),
    "other normalization": (
        lambda state: state | {"mu": torch.tensor([0.5, 0.4, 0.5]).view(1, 3, 1, 1), "sigma": torch.full((3,), 0.5)},
        r"with mean \[0\.5, 0\.4\d*, 0\.5\], but this one has mean 0\.5\. Build it with mean=\[0\.5",
    ),
    "normalization of two channels": (lambda state: state | {"mu": torch.ones(2)}, "it has mu, unknown"),
    "other normalization in words": (
        lambda state: {"state_dict": state, "meta": {"normalize": "(x - 0.5)/0.25"}},
        r"with std 0\.25, but this one has std 0\.5",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_weights_that_do_not_fit_are_refused_and_change_nothing(misfit, tmp_path):
    spoil, message = MISFITS[misfit]
    model = tiny()
    before = copy.deepcopy(model)
    torch.save(spoil(tiny().state_dict()), tmp_path / "weights")
    with pytest.raises(dp.errors.InputError, match=message):
        load_checkpoint(model, tmp_path / "weights")
    assert same_weights(before, model)


def test_a_model_that_does_not_normalize_takes_no_normalization(tmp_path):
    torch.save({"weight": torch.ones(1, 1), "bias": torch.ones(1), "mu": torch.ones(1)}, tmp_path / "weights")
    with pytest.raises(dp.errors.InputError, match="it has mu, unknown"):
        load_checkpoint(torch.nn.Linear(1, 1), tmp_path / "weights")


@pytest.mark.parametrize("settings", [{}, {"mean": 0.0, "std": 1.0}, {"mean": (0.485, 0.456, 0.406), "std": (1, 2, 3)}])
def test_a_saved_model_is_restored_from_its_file_alone(settings, tmp_path):
    model = with_own_statistics(tiny(**settings)).float()
    state = torch.get_rng_state()
    save_checkpoint(tmp_path / "weights", model, {"arch": "wrn10_1", "note": "für später"})
    again = restore(tmp_path / "weights")
    assert torch.equal(state, torch.get_rng_state()), "random numbers of the caller were used up"
    assert same_weights(model, again)
    assert torch.equal(model.mean, again.mean)
    assert torch.equal(model.std, again.std)
    assert not again.training
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(model(images), again(images))
    meta = read_checkpoint(tmp_path / "weights").meta
    written = {word: list(value) if isinstance(value, tuple) else value for word, value in settings.items()}
    assert meta == {"arch": "wrn10_1", "note": "für später", "classes": 4, "mean": 0.5, "std": 0.5} | written
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


@pytest.mark.parametrize(
    "said",
    [
        {"classes": 4, "normalize": "(x-0.25)/0.5"},
        {"classes": ["a", "b", "c", "d"], "normalize": {"mean": [0.25, 0.25, 0.25], "std": 0.5}},
        {"classes": 4, "mean": 0.25, "std": (0.5, 0.5, 0.5)},
    ],
)
def test_files_by_others_are_restored_and_saved_again(said, tmp_path):
    source = tiny(mean=0.25)
    half = {name: value.half() if value.is_floating_point() else value for name, value in source.state_dict().items()}
    torch.save({"state_dict": half, "meta": {"arch": "wrn10_1"} | said}, tmp_path / "theirs.pt")
    model = restore(tmp_path / "theirs.pt")
    assert same_weights(model, source.half().float())
    assert set(model.mean.flatten().tolist()) == {0.25}
    save_checkpoint(tmp_path / "ours", model, read_checkpoint(tmp_path / "theirs.pt").meta)
    assert same_weights(restore(tmp_path / "ours"), model)
    assert read_checkpoint(tmp_path / "ours").meta["classes"] == said["classes"]


@pytest.mark.parametrize(
    ("meta", "error", "message"),
    [
        ({"classes": 4}, dp.errors.InputError, "to say which architecture it belongs to"),
        ({"arch": "wrn10_1"}, dp.errors.InputError, "to say how images are normalized"),
        ({"arch": "wrn10_1", "normalize": "as usual"}, dp.errors.InputError, "to say how images are normalized"),
        ({"arch": "wrn10_1", "mean": "0.5", "std": 1}, dp.errors.InputError, "to say how images are normalized"),
        ({"arch": "wrn", "mean": 0, "std": 1}, dp.errors.ConfigurationError, "but got 'wrn'. Did you mean .*wrn10_1"),
        ({"arch": "wrn10_1", "mean": 0, "std": 1}, dp.errors.InputError, "it has 4 classes and the model 10"),
        ({"arch": "wrn16_1", "classes": 4, "mean": 0, "std": 1}, dp.errors.InputError, "it lacks block1.layer.1"),
    ],
)
def test_a_file_that_does_not_describe_its_network_is_not_restored(meta, error, message, tmp_path):
    torch.save({"state_dict": tiny().state_dict(), "meta": meta}, tmp_path / "weights")
    with pytest.raises(error, match=message):
        restore(tmp_path / "weights")


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"arch": "wrn16_1"}, r"seen as a wrn16_1, it lacks block1\.layer\.1"),
        ({"arch": "wrn10_1", "classes": ["a", "b"]}, r"fc\.weight is \(4, 64\), not \(2, 64\)"),
        ({"normalize": "(x-0.5)/0.25"}, "to give the model's std, 0.5, but got .*0.25"),
        ({"when": object()}, "what JSON can express"),
        ({"loss": float("nan")}, "what JSON can express"),
    ],
)
def test_a_description_that_is_wrong_is_not_saved(meta, message, tmp_path):
    with pytest.raises(dp.errors.ConfigurationError, match=message):
        save_checkpoint(tmp_path / "weights", tiny(), meta)
    assert not list(tmp_path.iterdir())


def test_saving_replaces_a_file_in_one_act(tmp_path, monkeypatch):
    first, second = tiny(), tiny()
    save_checkpoint(tmp_path / "weights", first, {})

    def no_space(descriptor):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match="no space"):
            save_checkpoint(tmp_path / "weights", second, {})
    assert same_weights(load_checkpoint(tiny(), tmp_path / "weights"), first)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]
    save_checkpoint(tmp_path / "weights", second, {})
    assert same_weights(load_checkpoint(tiny(), tmp_path / "weights"), second)


def test_models_from_elsewhere_are_saved_too(tmp_path):
    tied = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    save_checkpoint(tmp_path / "weights", tied, {"arch": "my own"})
    other = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    assert same_weights(load_checkpoint(other, tmp_path / "weights"), tied)
    assert read_checkpoint(tmp_path / "weights").meta == {"arch": "my own"}


def test_weights_can_be_loaded_with_another_head(tmp_path):
    trained, other = build("wrn10_1", classes=10), build("wrn10_1", classes=6)
    save_checkpoint(tmp_path / "weights", trained, {"arch": "wrn10_1"})
    head = other.fc.weight.clone()
    with pytest.raises(dp.errors.InputError, match="classes=10"):
        load_checkpoint(other, tmp_path / "weights")
    load_checkpoint(other, tmp_path / "weights", new_head=True)
    assert torch.equal(other.conv1.weight, trained.conv1.weight)
    assert torch.equal(other.fc.weight, head)
