"""DeepLabV3+: published size and names, loading public weights and backbones, single images."""

import itertools
import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import driftproof as dp
from driftproof.models import (
    DeepLabV3Plus,
    ResNet50,
    build_from_checkpoint,
    build_model,
    load_backbone,
    load_checkpoint,
    save_checkpoint,
)
from driftproof.norms import batch_norms


def norm_names(path):
    return {f"{path}.{leaf}" for leaf in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}


def layer_names(path, first=0):
    return {f"{path}.{first}.weight"} | norm_names(f"{path}.{first + 1}")


def small_model(**settings):
    torch.manual_seed(0)
    return build_model("deeplabv3plus_small", **{"classes": 4} | settings).eval()


def constant_model(make):
    """Build a network whose tensors are constant, each with another value; random initialization is slow."""
    with torch.device("meta"):
        model = make()
    model.to_empty(device="cpu")
    for value, tensor in enumerate(model.state_dict().values(), start=1):
        tensor.fill_(value)
    return model


def public_state_dict(model, **extra):
    """State dict as in public files, with the weights of the auxiliary head."""
    head = {"dsn.0.weight": torch.rand(8, 4, 3, 3), "dsn.4.bias": torch.rand(4)}
    return {f"module.{name}": value for name, value in {**model.state_dict(), **head, **extra}.items()}


def test_resnet50_variant_has_the_published_size():
    with torch.device("meta"):
        model = build_model("deeplabv3plus_resnet50")
    assert sum(parameter.numel() for parameter in model.parameters()) == 40_351_667
    assert sum(1 for _ in batch_norms(model)) == 62
    affine_parameters = dp.scopes.norm_affine().parameters(model)
    assert sum(parameter.numel() for parameter in affine_parameters.values()) == 57_312


def test_parameter_names_match_public_checkpoints():
    names = layer_names("layer0") | layer_names("aspp.img_conv") | layer_names("bot_fine") | layer_names("bot_aspp")
    names |= layer_names("final1") | layer_names("final1", first=3) | {"final2.0.weight", "final2.0.bias"}
    for branch in range(4):
        names |= layer_names(f"aspp.features.{branch}")
    for layer, blocks in enumerate([3, 4, 6, 3], start=1):
        names |= layer_names(f"layer{layer}.0.downsample")
        for block, part in itertools.product(range(blocks), (1, 2, 3)):
            names |= {f"layer{layer}.{block}.conv{part}.weight"} | norm_names(f"layer{layer}.{block}.bn{part}")
    with torch.device("meta"):
        assert set(DeepLabV3Plus().state_dict()) == names


@pytest.mark.parametrize("name", ["deeplabv3plus_resnet50", "deeplabv3plus_resnet18", "deeplabv3plus_small"])
def test_logits_have_the_image_size_and_output_stride_is_16(name):
    size = (33, 47)
    with torch.device("meta"):
        model, images = build_model(name, classes=5), torch.rand(2, 3, *size)
        coarse = model.layer4(model.layer3(model.layer2(model.layer1(model.layer0(images)))))
        assert model(images).shape == (2, 5, *size)
    assert coarse.shape[2:] == tuple(-(-side // 16) for side in size)


def reference_forward(model, images):
    """The published forward pass, step by step, with the layers of the network."""
    images = (images - model.mean) / model.std
    x = F.max_pool2d(F.relu(model.layer0[1](model.layer0[0](images))), 3, 2, 1)
    fine = model.layer1(x)
    x = model.layer4(model.layer3(model.layer2(fine)))
    pooled = model.aspp.img_conv(F.adaptive_avg_pool2d(x, 1))
    resize = {"mode": "bilinear", "align_corners": True}
    branches = [F.interpolate(pooled, size=x.shape[2:], **resize)]
    branches += [branch(x) for branch in model.aspp.features]
    coarse = F.interpolate(model.bot_aspp(torch.cat(branches, 1)), size=fine.shape[2:], **resize)
    decoded = model.final1(torch.cat([model.bot_fine(fine), coarse], 1))
    return F.interpolate(model.final2(decoded), size=images.shape[2:], **resize)


def test_forward_equals_the_published_architecture():
    model, images = small_model(), torch.rand(2, 3, 40, 56)
    with torch.no_grad():
        torch.testing.assert_close(model(images), reference_forward(model, images))
    rates = [branch[0].dilation[0] for branch in model.aspp.features]
    assert rates == [1, 6, 12, 18]
    with torch.device("meta"):
        last = DeepLabV3Plus().layer4
    assert all(block.conv2.dilation == (2, 2) and block.conv2.stride == (1, 1) for block in last)


def test_invalid_variants_raise_configuration_error():
    with pytest.raises(dp.errors.ConfigurationError, match="`depth` to be 18 or 50 and `width` a multiple of 4"):
        DeepLabV3Plus(depth=34)
    with pytest.raises(dp.errors.ConfigurationError, match="multiple of 4, but got 18 and 10"):
        DeepLabV3Plus(depth=18, width=10)


def test_loading_a_public_file_drops_the_auxiliary_head_with_a_warning(tmp_path, caplog):
    model, other = small_model(), small_model(classes=4)
    scores = {"mean_iu": np.nanmean([0.3, 0.4]), "seen": np.int64(3), "half": np.float16(0.5), "done": np.bool_(True)}
    torch.save({"epoch": 3, "state_dict": public_state_dict(model)} | scores, tmp_path / "public.pth")
    torch.nn.init.zeros_(other.final2[0].weight)
    with caplog.at_level(logging.WARNING):
        load_checkpoint(other, tmp_path / "public.pth")
    assert torch.equal(other.final2[0].weight, model.final2[0].weight)
    assert "dsn.0.weight" in caplog.text
    torch.save(public_state_dict(model, strange=torch.zeros(1)), tmp_path / "strange.pth")
    with pytest.raises(dp.errors.InputError, match="it has strange, which the model lacks"):
        load_checkpoint(other, tmp_path / "strange.pth")


def test_saved_network_is_rebuilt_from_its_file(tmp_path):
    model, images = small_model(), torch.rand(1, 3, 24, 24)
    save_checkpoint(tmp_path / "w.safetensors", model, {"arch": "deeplabv3plus_small", "classes": list("abcd")})
    with torch.no_grad():
        assert torch.equal(build_from_checkpoint(tmp_path / "w.safetensors")(images), model(images))


def test_load_backbone_copies_classifier_weights_and_reports_the_rest(tmp_path):
    classifier = constant_model(lambda: ResNet50(7))
    torch.save({"state_dict": {f"module.{k}": v for k, v in classifier.state_dict().items()}}, tmp_path / "c.pt")
    model = constant_model(lambda: DeepLabV3Plus(4))
    initial = model.final2[0].weight.clone()
    report = load_backbone(model, tmp_path / "c.pt")
    assert report.unexpected == ("fc.weight", "fc.bias")
    assert {name.partition(".")[0] for name in report.missing} == {"aspp", "bot_fine", "bot_aspp", "final1", "final2"}
    assert {*report.loaded, *report.missing} == set(model.state_dict())
    assert torch.equal(model.layer0[0].weight, classifier.conv1.weight)
    assert torch.equal(model.layer0[1].running_mean, classifier.bn1.running_mean)
    assert torch.equal(model.layer4[2].conv3.weight, classifier.layer4[2].conv3.weight)
    assert torch.equal(model.final2[0].weight, initial)
    assert "fc.weight, fc.bias" in str(report)


def test_mismatched_or_non_finite_backbone_raises_and_changes_nothing(tmp_path):
    model = small_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.save({"odd.weight": torch.rand(3)}, tmp_path / "odd.pt")
    with pytest.raises(dp.errors.InputError, match="but none do"):
        load_backbone(model, tmp_path / "odd.pt")
    torch.save(
        constant_model(lambda: ResNet50(7)).half().state_dict(), tmp_path / "deep.pt"
    )  # only its batch norm counters match
    with pytest.raises(dp.errors.InputError, match="but none do"):
        load_backbone(model, tmp_path / "deep.pt")
    non_finite = {"conv1.weight": torch.full_like(model.layer0[0].weight, torch.nan)}
    torch.save(non_finite, tmp_path / "nan.pt")
    with pytest.raises(dp.errors.InputError, match=r"finite, but those of layer0\.0\.weight"):
        load_backbone(model, tmp_path / "nan.pt")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_single_image_raises_in_training_and_uses_source_statistics_when_adapting():
    model, image = small_model(), torch.rand(1, 3, 32, 32)
    with pytest.raises(dp.errors.InputError, match="at least two images in training mode"):
        model.train()(image)
    model.eval()
    norm = model.aspp.img_conv[1]
    with torch.no_grad():
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    seen = []
    adapter = dp.bn_adapt(model)
    pooled = adapter.network.model.aspp.img_conv
    pooled[0].register_forward_hook(lambda _, __, output: seen.append(output.detach()))
    pooled[1].register_forward_hook(lambda _, __, output: seen.append(output.detach()))
    adapter(image)
    into, out = seen
    by_hand = (into - norm.running_mean.view(-1, 1, 1)) / (norm.running_var + norm.eps).sqrt().view(-1, 1, 1)
    torch.testing.assert_close(out, by_hand * norm.weight.view(-1, 1, 1) + norm.bias.view(-1, 1, 1))
    assert adapter.last.skipped is None
