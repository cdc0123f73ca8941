"""Networks equal the public ones; weights load safely and completely, or not at all."""

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
    build_from_checkpoint,
    build_model,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from driftproof.norms import batch_norms


def test_wide_resnet_parameter_names_match_public_checkpoints():
    names = set(WideResNet(16, 1).state_dict())
    assert {"conv1.weight", "block1.layer.0.bn1.running_mean", "block2.layer.0.convShortcut.weight"} <= names
    assert {"block3.layer.1.conv2.weight", "bn1.bias", "fc.bias"} <= names
    assert not any("mean" in name and "running" not in name for name in names), "normalization is in the state dict"


def test_wide_resnet_normalizes_its_input():
    plain, normalizing = WideResNet(10, 1, mean=0.0, std=1.0).eval(), WideResNet(10, 1).eval()
    normalizing.load_state_dict(plain.state_dict())
    images = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(normalizing(images), plain((images - 0.5) / 0.5))


def test_wide_resnet_rejects_invalid_depth():
    with pytest.raises(dp.errors.ConfigurationError, match="6n"):
        WideResNet(depth=18)


def test_images_are_normalized_per_channel():
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 1.0, 2.0])
    plain = WideResNet(10, 1, mean=0.0, std=1.0).eval()
    normalizing = WideResNet(10, 1, mean=mean.tolist(), std=std.tolist()).eval()
    normalizing.load_state_dict(plain.state_dict())
    images = torch.rand(2, 3, 16, 16)
    expected = torch.stack([(images[:, c] - mean[c]) / std[c] for c in range(3)], dim=1)
    torch.testing.assert_close(normalizing(images), plain(expected))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mean": (0.5, 0.5)}, "`mean` to be one number or three, but got 2"),
        ({"std": 0}, "`std` to be above 0, but got 0"),
        ({"std": (0.5, -1.0, 0.5)}, "`std` to be above 0"),
        ({"classes": 0}, "`classes` to be at least 1, but got 0"),
    ],
)
def test_invalid_classifier_settings_raise_configuration_error(wrong, message):
    with pytest.raises(dp.errors.ConfigurationError, match=message):
        WideResNet(10, 1, **wrong)


@pytest.mark.parametrize(
    ("name", "classes", "parameters", "norms", "affine"),
    [
        ("resnet50", 1000, 25_557_032, 53, 53_120),
        ("resnet50", 200, 23_917_832, 53, 53_120),
        ("resnet50_cifar", 10, 23_520_842, 53, 53_120),
        ("resnext29", 100, 6_900_132, 31, 25_216),
        ("wrn40_2", 10, 2_243_546, 37, 5_408),
        ("wrn40_2", 100, 2_255_156, 37, 5_408),
        ("wrn28_10", 10, 36_479_194, 25, 17_952),
    ],
)
def test_networks_have_the_published_size(name, classes, parameters, norms, affine):
    with torch.device("meta"):
        model = build_model(name, classes=classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert sum(1 for _ in batch_norms(model)) == norms
    affine_parameters = dp.scopes.norm_affine().parameters(model)
    assert sum(parameter.numel() for parameter in affine_parameters.values()) == affine


def norm_names(path):
    return {f"{path}.{leaf}" for leaf in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}


def test_resnet50_parameter_names_match_torchvision():
    names = {"conv1.weight", "fc.weight", "fc.bias"} | norm_names("bn1")
    for layer, blocks in enumerate([3, 4, 6, 3], start=1):
        names |= {f"layer{layer}.0.downsample.0.weight"} | norm_names(f"layer{layer}.0.downsample.1")
        for block, part in itertools.product(range(blocks), (1, 2, 3)):
            names |= {f"layer{layer}.{block}.conv{part}.weight"} | norm_names(f"layer{layer}.{block}.bn{part}")
    with torch.device("meta"):
        assert set(ResNet50().state_dict()) == set(ResNet50(stem="cifar").state_dict()) == names


def test_resnext29_parameter_names_match_public_checkpoints():
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


def conv_by_unfold(x, weight, stride, padding, groups=1):
    """Convolution as a matrix product over windows, per group."""
    images, size = len(x), weight.shape[-1]
    side = (x.shape[-1] + 2 * padding - size) // stride + 1
    results = []
    for part, kernels in zip(x.chunk(groups, dim=1), weight.chunk(groups), strict=True):
        windows = F.unfold(part, size, padding=padding, stride=stride)
        results.append((kernels.flatten(1) @ windows).view(images, len(kernels), side, side))
    return torch.cat(results, dim=1)


def batch_norm(x, state, path):
    mean, var, weight, bias = (
        state[f"{path}.{leaf}"].view(-1, 1, 1) for leaf in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (var + 1e-5).sqrt() * weight + bias


def reference_bottleneck(x, state, path, convs, norms, stride, groups=1):
    y = batch_norm(conv_by_unfold(x, state[f"{path}.{convs[0]}.weight"], 1, 0), state, f"{path}.{norms[0]}").relu()
    y = conv_by_unfold(y, state[f"{path}.{convs[1]}.weight"], stride, 1, groups)
    y = batch_norm(y, state, f"{path}.{norms[1]}").relu()
    y = batch_norm(conv_by_unfold(y, state[f"{path}.{convs[2]}.weight"], 1, 0), state, f"{path}.{norms[2]}")
    if f"{path}.downsample.0.weight" in state:
        x = batch_norm(
            conv_by_unfold(x, state[f"{path}.downsample.0.weight"], stride, 0), state, f"{path}.downsample.1"
        )
    return (x + y).relu()


def randomize_batch_norms(model):
    """Randomize statistics and affine parameters, so that each one affects the output."""
    for _, module in batch_norms(model):
        with torch.no_grad():
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            module.weight.uniform_(0.5, 1.5)
            module.bias.normal_(0, 0.1)
    return model.eval().double()


@torch.no_grad()
def test_resnet50_equals_reference_forward(monkeypatch):
    monkeypatch.setattr(ResNet50, "_initialize_convolutions", lambda self: None)  # slow; any weights will do
    model = randomize_batch_norms(ResNet50(7))
    state, images = model.state_dict(), torch.rand(1, 3, 40, 40, dtype=torch.double)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    x = conv_by_unfold((images - mean) / std, state["conv1.weight"], 2, 3)
    x = F.max_pool2d(batch_norm(x, state, "bn1").relu(), 3, 2, 1)
    convs, norms = ("conv1", "conv2", "conv3"), ("bn1", "bn2", "bn3")
    for layer, blocks in enumerate([3, 4, 6, 3], start=1):
        for block in range(blocks):
            stride = 2 if layer > 1 and block == 0 else 1
            x = reference_bottleneck(x, state, f"layer{layer}.{block}", convs, norms, stride)
    expected = x.mean(dim=(2, 3)) @ state["fc.weight"].T + state["fc.bias"]
    torch.testing.assert_close(model(images), expected)


@torch.no_grad()
def test_wide_resnet_equals_reference_forward():
    torch.manual_seed(0)
    model = randomize_batch_norms(WideResNet(16, 2, 5))
    state, images = model.state_dict(), torch.rand(2, 3, 8, 8, dtype=torch.double)
    x = conv_by_unfold((images - 0.5) / 0.5, state["conv1.weight"], 1, 1)
    for group, block in itertools.product((1, 2, 3), (0, 1)):
        path, stride = f"block{group}.layer.{block}", 2 if group > 1 and block == 0 else 1
        activated = batch_norm(x, state, f"{path}.bn1").relu()
        y = conv_by_unfold(activated, state[f"{path}.conv1.weight"], stride, 1)
        y = conv_by_unfold(batch_norm(y, state, f"{path}.bn2").relu(), state[f"{path}.conv2.weight"], 1, 1)
        shortcut = state.get(f"{path}.convShortcut.weight")
        assert (shortcut is None) == (block > 0)
        x = y + (x if shortcut is None else conv_by_unfold(activated, shortcut, stride, 0))
    expected = batch_norm(x, state, "bn1").relu().mean(dim=(2, 3)) @ state["fc.weight"].T + state["fc.bias"]
    torch.testing.assert_close(model(images), expected)


@torch.no_grad()
def test_resnext29_equals_reference_forward():
    model = randomize_batch_norms(ResNeXt29(5))
    state, images = model.state_dict(), torch.rand(1, 3, 8, 8, dtype=torch.double)
    x = batch_norm(conv_by_unfold((images - 0.5) / 0.5, state["conv_1_3x3.weight"], 1, 1), state, "bn_1").relu()
    convs, norms = ("conv_reduce", "conv_conv", "conv_expand"), ("bn_reduce", "bn", "bn_expand")
    for stage, block in itertools.product((1, 2, 3), (0, 1, 2)):
        stride = 2 if stage > 1 and block == 0 else 1
        x = reference_bottleneck(x, state, f"stage_{stage}.{block}", convs, norms, stride, groups=4)
    expected = x.mean(dim=(2, 3)) @ state["classifier.weight"].T + state["classifier.bias"]
    torch.testing.assert_close(model(images), expected)


def test_cifar_stem_keeps_the_resolution():
    with torch.device("meta"):
        cifar, imagenet = ResNet50(10, stem="cifar"), ResNet50(10)
        images = torch.rand(1, 3, 32, 32)
        assert cifar.maxpool(cifar.conv1(images)).shape == (1, 64, 32, 32)
        assert imagenet.maxpool(imagenet.conv1(images)).shape == (1, 64, 8, 8)
        assert cifar.eval()(images).shape == (1, 10)


def test_invalid_network_variants_raise_configuration_error():
    with pytest.raises(dp.errors.ConfigurationError, match="`stem` to be 'imagenet' or 'cifar', but got 'mnist'"):
        ResNet50(stem="mnist")
    with pytest.raises(dp.errors.ConfigurationError, match="at least 1, but got 0 and 32"):
        ResNeXt29(cardinality=0)


@pytest.mark.parametrize("name", MODELS)
def test_every_registered_model_builds(name):
    info = MODELS[name]
    with torch.device("meta"):
        model = build_model(name)
    assert model.classes == info.classes
    assert info.input_size > 0
    assert info.name == name
    assert info.source
    assert info.license


def test_models_use_the_normalization_of_the_public_weights():
    assert (MODELS["wrn28_10"].mean, MODELS["wrn28_10"].std) == (0.0, 1.0)
    default, override = build_model("wrn10_1"), build_model("wrn10_1", mean=0.25)
    assert (float(default.mean), float(default.std)) == (0.5, 0.5)
    assert (float(override.mean), float(override.std)) == (0.25, 0.5)


@pytest.mark.parametrize(("name", "nearest"), [("wrn40-2", "wrn40_2"), ("resnet_50", "resnet50"), ("?", "wrn10_1")])
def test_unknown_model_name_suggests_the_nearest(name, nearest):
    with pytest.raises(dp.errors.ConfigurationError, match=f"(Did you mean|Choose from) .*{nearest}"):
        build_model(name)


def tiny_model(**settings):
    return build_model("wrn10_1", **{"classes": 4} | settings)


def has_same_weights(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def add_prefix(prefix, state):
    return {prefix + name: value for name, value in state.items()}


def augmix_layout(state):
    return {"epoch": 99, "model": "wrn", "state_dict": add_prefix("module.", state), "best_acc": 0.95, "optimizer": {}}


LAYOUTS = {
    "bare": lambda state: state,
    "ours": lambda state: {"state_dict": state, "meta": {"arch": "wrn10_1"}},
    "augmix": augmix_layout,
    "model": lambda state: {"model": state, "epoch": 3},
    "ema": lambda state: {
        "state_dict": {name: value + 1 for name, value in state.items()},
        "state_dict_ema": state,
    },
    "compiled and parallel": lambda state: add_prefix("module._orig_mod.", state),
    "nested model": lambda state: add_prefix("model.backbone.", state),
    "robustbench": lambda state: {"mu": torch.full((1, 3, 1, 1), 0.5), "sigma": torch.full((1, 3, 1, 1), 0.5)} | state,
    "wrapped robustbench": lambda state: (
        {"normalize.mean": torch.full((3,), 0.5), "normalize.std": torch.full((1,), 0.5)} | add_prefix("model.", state)
    ),
    "without num_batches_tracked": lambda state: {
        name: value for name, value in state.items() if not name.endswith("num_batches_tracked")
    },
}


@pytest.mark.parametrize(
    ("layout", "zipped"), [*((layout, True) for layout in LAYOUTS), ("bare", False), ("augmix", False)]
)
def test_torch_files_in_every_layout_load(layout, zipped, tmp_path):
    source, model = tiny_model(), tiny_model()
    contents = LAYOUTS[layout](source.state_dict())
    torch.save(contents, tmp_path / "weights.pt", _use_new_zipfile_serialization=zipped)
    assert not has_same_weights(source, model)
    assert load_checkpoint(model, tmp_path / "weights.pt") is model
    assert has_same_weights(source, model)


def test_read_checkpoint_returns_metadata(tmp_path):
    state = tiny_model().state_dict()
    torch.save(augmix_layout(state), tmp_path / "augmix")
    assert read_checkpoint(tmp_path / "augmix").meta == {"epoch": 99, "model": "wrn", "best_acc": 0.95}
    torch.save({"state_dict": state, "meta": {"classes": ["a", "b"]}, "epoch": 3}, tmp_path / "ours")
    assert read_checkpoint(tmp_path / "ours").meta == {"classes": ["a", "b"]}
    safetensors.torch.save_file(state, tmp_path / "plain", metadata={"format": "pt"})
    assert read_checkpoint(tmp_path / "plain").meta == {"format": "pt"}
    safetensors.torch.save_file(state, tmp_path / "bare")
    assert read_checkpoint(tmp_path / "bare").meta == {}


def test_safetensors_files_load(tmp_path):
    source, model = tiny_model(), tiny_model()
    safetensors.torch.save_file(add_prefix("module.", source.state_dict()), tmp_path / "weights")
    assert has_same_weights(source, load_checkpoint(model, str(tmp_path / "weights")))


def test_prefix_that_belongs_to_the_model_is_kept(tmp_path):
    source, model = torch.nn.Sequential(), torch.nn.Sequential()
    source.add_module("model", torch.nn.Linear(2, 3))
    model.add_module("model", torch.nn.Linear(2, 3))
    torch.save(source.state_dict(), tmp_path / "own")
    assert has_same_weights(source, load_checkpoint(model, tmp_path / "own"))
    torch.save(add_prefix("model.", source.state_dict()), tmp_path / "doubled")
    assert has_same_weights(source, load_checkpoint(model, tmp_path / "doubled"))


@pytest.mark.parametrize(("stored", "own"), [(torch.float16, torch.float32), (torch.float32, torch.float64)])
def test_values_are_cast_to_the_model_dtype(stored, own, tmp_path):
    source = tiny_model().to(stored)
    torch.save(source.state_dict(), tmp_path / "weights")
    model = load_checkpoint(tiny_model().to(own), tmp_path / "weights")
    assert {parameter.dtype for parameter in model.parameters()} == {own}
    assert has_same_weights(model, source.to(own))


class PickleExploit:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickle_with_code_is_rejected_without_running_it(zipped, tmp_path):
    contents = {"state_dict": PickleExploit(tmp_path / "created")}
    torch.save(contents, tmp_path / "weights.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(dp.errors.InputError, match=rf"asks for `{os.name}\.mkdir`.*nothing was run.*safetensors"):
        read_checkpoint(tmp_path / "weights.pt")
    assert not (tmp_path / "created").exists()
    torch.load(tmp_path / "weights.pt", weights_only=False)
    assert (tmp_path / "created").exists(), "the exploit does not work, so the test proves nothing"


def test_pickled_module_is_rejected_by_name(tmp_path):
    torch.save(tiny_model(), tmp_path / "model.pt")
    with pytest.raises(dp.errors.InputError, match=r"asks for `driftproof\.models\.wide_resnet\.WideResNet`"):
        load_checkpoint(tiny_model(), tmp_path / "model.pt")


def test_truncated_file_raises_input_error(tmp_path):
    model = tiny_model()
    torch.save(model.state_dict(), tmp_path / "zipped")
    torch.save(model.state_dict(), tmp_path / "flat", _use_new_zipfile_serialization=False)
    save_checkpoint(tmp_path / "safe", model, {})
    before = copy.deepcopy(model)
    for path in list(tmp_path.iterdir()):
        content = path.read_bytes()
        for length in (0, 5, 9, 100, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:length])
            with pytest.raises(dp.errors.InputError, match="damaged, incomplete or something else"):
                load_checkpoint(model, path)
    assert has_same_weights(before, model)


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
def test_file_without_weights_raises_input_error(contents, message, tmp_path):
    path = tmp_path / "weights"
    if isinstance(contents, bytes):
        path.write_bytes(contents)
    else:
        torch.save(contents, path)
    with pytest.raises(dp.errors.InputError, match=message):
        read_checkpoint(path)


@pytest.mark.parametrize("metadata", ["{", "[1]"])
def test_invalid_metadata_raises_input_error(metadata, tmp_path):
    safetensors.torch.save_file({"x": torch.ones(1)}, tmp_path / "weights", metadata={"meta": metadata})
    with pytest.raises(dp.errors.InputError, match="damaged"):
        read_checkpoint(tmp_path / "weights")


def test_missing_file_raises_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_checkpoint(tmp_path / "nowhere")


def change_state(state, **changes):
    return {name: value for name, value in (state | changes).items() if value is not None}


MISMATCHES = {
    "missing": (
        lambda state: change_state(state, **{"fc.bias": None, "bn1.weight": None}),
        r"it lacks bn1\.weight, fc\.bias\.",
    ),
    "many missing": (
        lambda state: {name: value for name, value in state.items() if not name.startswith("block1.")},
        r"it lacks (block1[\w.]+, ){2}block1[\w.]+ and 7 more\.",
    ),
    "unexpected": (lambda state: state | {"head.weight": torch.ones(1)}, r"it has head\.weight, which the model lacks"),
    "both": (
        lambda state: change_state(state, **{"fc.bias": None}) | {"linear.bias": torch.zeros(4)},
        r"it lacks fc\.bias; it has linear\.bias, which",
    ),
    "partly prefixed": (
        lambda state: add_prefix("module.", state) | {"epoch": torch.tensor(1)},
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
        r"fc\.bias should be floating point",
    ),
    "not a number": (lambda state: state | {"fc.bias": torch.full((4,), torch.nan)}, r"finite, but those of fc\.bias"),
    "too large for its type": (
        lambda state: state | {"bn1.running_var": torch.full((64,), 1e6).half()},
        r"finite, but those of bn1\.running_var",
    ),
    "other normalization": (
        lambda state: state | {"mu": torch.tensor([0.5, 0.4, 0.5]).view(1, 3, 1, 1), "sigma": torch.full((3,), 0.5)},
        r"mean \[0\.5, 0\.4\d*, 0\.5\], but this one has mean 0\.5\. Build it with mean=\[0\.5",
    ),
    "normalization of two channels": (lambda state: state | {"mu": torch.ones(2)}, "it has mu, which the model lacks"),
    "other normalization as a formula": (
        lambda state: {"state_dict": state, "meta": {"normalize": "(x - 0.5)/0.25"}},
        r"std 0\.25, but this one has std 0\.5",
    ),
}


@pytest.mark.parametrize("mismatch", MISMATCHES)
def test_mismatched_weights_raise_and_leave_the_model_unchanged(mismatch, tmp_path):
    change, message = MISMATCHES[mismatch]
    model = tiny_model()
    before = copy.deepcopy(model)
    torch.save(change(tiny_model().state_dict()), tmp_path / "weights")
    with pytest.raises(dp.errors.InputError, match=message):
        load_checkpoint(model, tmp_path / "weights")
    assert has_same_weights(before, model)


def test_model_without_normalization_rejects_normalization_entries(tmp_path):
    torch.save({"weight": torch.ones(1, 1), "bias": torch.ones(1), "mu": torch.ones(1)}, tmp_path / "weights")
    with pytest.raises(dp.errors.InputError, match="it has mu, which the model lacks"):
        load_checkpoint(torch.nn.Linear(1, 1), tmp_path / "weights")


@pytest.mark.parametrize("settings", [{}, {"mean": 0.0, "std": 1.0}, {"mean": (0.485, 0.456, 0.406), "std": (1, 2, 3)}])
def test_saved_model_is_rebuilt_from_its_file(settings, tmp_path):
    model = randomize_batch_norms(tiny_model(**settings)).float()
    state = torch.get_rng_state()
    save_checkpoint(tmp_path / "weights", model, {"arch": "wrn10_1", "note": "für später"})
    rebuilt = build_from_checkpoint(tmp_path / "weights")
    assert torch.equal(state, torch.get_rng_state()), "the global RNG changed"
    assert has_same_weights(model, rebuilt)
    assert torch.equal(model.mean, rebuilt.mean)
    assert torch.equal(model.std, rebuilt.std)
    assert not rebuilt.training
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(model(images), rebuilt(images))
    meta = read_checkpoint(tmp_path / "weights").meta
    written = {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}
    assert meta == {"arch": "wrn10_1", "note": "für später", "classes": 4, "mean": 0.5, "std": 0.5} | written
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"classes": 4, "normalize": "(x-0.25)/0.5"},
        {"classes": 4, "normalise": "(x-0.25)/0.5"},
        {"classes": ["a", "b", "c", "d"], "normalize": {"mean": [0.25, 0.25, 0.25], "std": 0.5}},
        {"classes": 4, "mean": 0.25, "std": (0.5, 0.5, 0.5)},
    ],
)
def test_third_party_file_is_rebuilt_and_saved_again(metadata, tmp_path):
    source = tiny_model(mean=0.25)
    half = {name: value.half() if value.is_floating_point() else value for name, value in source.state_dict().items()}
    torch.save({"state_dict": half, "meta": {"arch": "wrn10_1"} | metadata}, tmp_path / "theirs.pt")
    model = build_from_checkpoint(tmp_path / "theirs.pt")
    assert has_same_weights(model, source.half().float())
    assert set(model.mean.flatten().tolist()) == {0.25}
    save_checkpoint(tmp_path / "ours", model, read_checkpoint(tmp_path / "theirs.pt").meta)
    assert has_same_weights(build_from_checkpoint(tmp_path / "ours"), model)
    assert read_checkpoint(tmp_path / "ours").meta["classes"] == metadata["classes"]


@pytest.mark.parametrize(
    ("meta", "error", "message"),
    [
        ({"classes": 4}, dp.errors.InputError, "to give the architecture"),
        ({"arch": "wrn10_1"}, dp.errors.InputError, "to give the input normalization"),
        ({"arch": "wrn10_1", "normalize": "as usual"}, dp.errors.InputError, "to give the input normalization"),
        ({"arch": "wrn10_1", "mean": "0.5", "std": 1}, dp.errors.InputError, "to give the input normalization"),
        ({"arch": "wrn", "mean": 0, "std": 1}, dp.errors.ConfigurationError, "but got 'wrn'. Did you mean .*wrn10_1"),
        ({"arch": "wrn10_1", "mean": 0, "std": 1}, dp.errors.InputError, "it has 4 classes and the model 10"),
        ({"arch": "wrn16_1", "classes": 4, "mean": 0, "std": 1}, dp.errors.InputError, "it lacks block1.layer.1"),
    ],
)
def test_incomplete_or_wrong_metadata_raises_on_build(meta, error, message, tmp_path):
    torch.save({"state_dict": tiny_model().state_dict(), "meta": meta}, tmp_path / "weights")
    with pytest.raises(error, match=message):
        build_from_checkpoint(tmp_path / "weights")


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"arch": "wrn16_1"}, r"compared with a wrn16_1, it lacks block1\.layer\.1"),
        ({"arch": "wrn10_1", "classes": ["a", "b"]}, r"fc\.weight is \(4, 64\), not \(2, 64\)"),
        ({"normalize": "(x-0.5)/0.25"}, "to give the model's std, 0.5, but got .*0.25"),
        ({"when": object()}, "JSON-serializable"),
        ({"loss": float("nan")}, "JSON-serializable"),
    ],
)
def test_wrong_metadata_is_not_saved(meta, message, tmp_path):
    with pytest.raises(dp.errors.ConfigurationError, match=message):
        save_checkpoint(tmp_path / "weights", tiny_model(), meta)
    assert not list(tmp_path.iterdir())


def test_saving_is_atomic(tmp_path, monkeypatch):
    first, second = tiny_model(), tiny_model()
    save_checkpoint(tmp_path / "weights", first, {})

    def no_space(descriptor):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match="no space"):
            save_checkpoint(tmp_path / "weights", second, {})
    assert has_same_weights(load_checkpoint(tiny_model(), tmp_path / "weights"), first)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]
    save_checkpoint(tmp_path / "weights", second, {})
    assert has_same_weights(load_checkpoint(tiny_model(), tmp_path / "weights"), second)


def test_third_party_model_with_tied_weights_is_saved(tmp_path):
    tied = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    save_checkpoint(tmp_path / "weights", tied, {"arch": "my own"})
    other = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    assert has_same_weights(load_checkpoint(other, tmp_path / "weights"), tied)
    assert read_checkpoint(tmp_path / "weights").meta == {"arch": "my own"}


def test_new_head_keeps_the_last_layer(tmp_path):
    trained, other = build_model("wrn10_1", classes=10), build_model("wrn10_1", classes=6)
    save_checkpoint(tmp_path / "weights", trained, {"arch": "wrn10_1"})
    head = other.fc.weight.clone()
    with pytest.raises(dp.errors.InputError, match="classes=10"):
        load_checkpoint(other, tmp_path / "weights")
    load_checkpoint(other, tmp_path / "weights", new_head=True)
    assert torch.equal(other.conv1.weight, trained.conv1.weight)
    assert torch.equal(other.fc.weight, head)
