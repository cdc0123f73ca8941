"""Models of timm and torchvision adapt, reset and unwrap like any other. Where a package is missing, its tests skip."""

import copy

import pytest
import torch

import driftproof as dp
from driftproof.errors import ModelError

SIZES = {
    "test_resnet": 64,
    "test_efficientnet_gn": 64,
    "test_convnext": 64,
    "test_vit": 160,
    "edgenext_xx_small": 64,
}
"""Models of timm and the size of their images. Among them they have batch, group and layer norms."""


@pytest.fixture(scope="module", params=[*SIZES, "resnet18", "lraspp_mobilenet_v3_large"])
def case(request):
    """A third-party model, its images and the options its adapter needs."""
    torch.manual_seed(0)
    name = request.param
    if name in SIZES:
        model, options = request.getfixturevalue("timm").create_model(name, num_classes=10), {}
    elif name == "resnet18":
        model, options = request.getfixturevalue("torchvision").models.resnet18(num_classes=10), {}
    else:
        segmentation = request.getfixturevalue("torchvision").models.segmentation
        model = getattr(segmentation, name)(weights=None, weights_backbone=None, num_classes=5)
        options = {"logits": "out"}
    size = SIZES.get(name, 32)
    return model.eval(), torch.rand(2, 4, 3, size, size), options


@pytest.fixture(scope="module")
def adapted(case):
    """An adapter after two batches, its answers, and the weights of the given model before."""
    model, batches, options = case
    before = copy.deepcopy(model.state_dict())
    adapter = dp.tent(model, lr=1e-2, select=dp.ConfidenceDifference(), **options)
    return adapter, [adapter(images) for images in batches], before


def test_adapts_and_leaves_the_given_model_unchanged(case, adapted):
    (model, batches, options), (adapter, logits, before) = case, adapted
    expected = model(batches[0])
    assert logits[0].shape == (expected[options["logits"]] if options else expected).shape
    assert all(torch.isfinite(each).all() for each in logits)
    assert adapter.last.skipped is None
    assert any(not torch.equal(value, before[name]) for name, value in adapter.unwrap().named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_unwrap_returns_a_plain_module(case, adapted):
    model, plain = case[0], adapted[0].unwrap()
    assert [type(module) for module in plain.modules()] == [type(module) for module in model.modules()]
    assert plain.state_dict().keys() == model.state_dict().keys()
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    for ours, theirs in zip(plain.modules(), model.modules(), strict=True):
        assert all(len(getattr(ours, name)) == len(getattr(theirs, name)) for name in hooks)
        assert "forward" not in vars(ours) or "forward" in vars(theirs)


def test_reset_replays_bit_equal(case, adapted):
    (_, batches, _), (adapter, first, _) = case, adapted
    adapter.reset()
    again = [adapter(images) for images in batches]
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert not torch.equal(adapter(batches[0]), first[0])


def test_model_without_normalization_is_refused(timm):
    model = timm.create_model("test_nfnet", num_classes=10).eval()
    with pytest.raises(ModelError, match="NormFreeNet"):
        dp.tent(model, select=dp.ConfidenceDifference())(torch.rand(4, 3, 64, 64))
