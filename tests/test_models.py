"""The networks are the public ones."""

import pytest
import torch

import driftproof as dp
from driftproof.models import WideResNet


@pytest.mark.parametrize(
    ("depth", "width", "classes", "parameters", "norms", "affine"),
    [(40, 2, 10, 2_243_546, 37, 5_408), (40, 2, 100, 2_255_156, 37, 5_408), (28, 10, 10, 36_479_194, 25, 17_952)],
)
def test_wide_resnet_has_the_published_size(depth, width, classes, parameters, norms, affine):
    with torch.device("meta"):
        model = WideResNet(depth, width, classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert sum(1 for _ in dp.norms.batch_norms(model)) == norms
    moving = dp.scopes.norm_affine().parameters(model)
    assert sum(parameter.numel() for parameter in moving.values()) == affine


def test_wide_resnet_has_the_public_names():
    names = set(WideResNet(16, 1).state_dict())
    assert {"conv1.weight", "block1.layer.0.bn1.running_mean", "block2.layer.0.convShortcut.weight"} <= names
    assert {"block3.layer.1.conv2.weight", "bn1.bias", "fc.bias"} <= names
    assert not any("mean" in name and "running" not in name for name in names), "normalisation is not a weight"


def test_wide_resnet_normalises_its_input():
    plain, shifted = WideResNet(10, 1, mean=0.0, std=1.0).eval(), WideResNet(10, 1).eval()
    shifted.load_state_dict(plain.state_dict())
    images = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(shifted(images), plain((images - 0.5) / 0.5))


def test_wide_resnet_of_a_depth_that_does_not_exist():
    with pytest.raises(dp.errors.ConfigurationError, match="6n"):
        WideResNet(depth=18)
