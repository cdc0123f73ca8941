"""Mistaken keywords, learning rates and batches raise our errors, which say what to do."""

import inspect
from functools import partial

import pytest
import torch

import driftproof as dp
from driftproof import losses, scopes, statistics
from driftproof.errors import ConfigurationError, InputError
from driftproof.methods.by_name import METHODS
from networks import WideResNet

STILL = ("source", "bn_adapt", "ttn", "norm_ema", "lame", "t3a", "ttaug")
LEARNING = [name for name in METHODS if name not in STILL]


@pytest.fixture(scope="module")
def model():
    return WideResNet()


@pytest.mark.parametrize("name", LEARNING)
def test_near_miss_keywords_are_named(model, name):
    for wrong, right in {
        "learning_rate": "lr",
        "optim": "optimizer",
        "selection": "select",
        "stats": "statistics",
    }.items():
        with pytest.raises(ConfigurationError, match=f"keyword of {name}, but got '{wrong}'. Did you mean .*{right}"):
            METHODS[name](model, **{wrong: 1})
    with pytest.raises(ConfigurationError, match="positional"):
        METHODS[name](model, 1e-3)


@pytest.mark.parametrize("name", STILL)
def test_methods_without_steps_refuse_a_learning_rate(model, name):
    with pytest.raises(ConfigurationError, match=f"keyword of {name}, but got 'lr'"):
        METHODS[name](model, lr=1e-3)
    with pytest.raises(ConfigurationError, match="Did you mean channels_last"):
        METHODS[name](model, channel_last=True)


def test_adapter_names_keywords_too(model):
    build = partial(dp.Adapter, model, scope=scopes.norm_affine(), statistics=statistics.Batch(), loss=losses.Entropy())
    with pytest.raises(ConfigurationError, match=r"`optimizer=functools\.partial\(torch\.optim\.Adam, lr=1e-3\)`"):
        build(lr=1e-3)
    with pytest.raises(ConfigurationError, match="Did you mean regularizer"):
        build(regulariser=None)
    with pytest.raises(ConfigurationError, match="missing a required argument: 'scope'"):
        dp.Adapter(model)


@pytest.mark.parametrize("name", LEARNING)
def test_optimizer_may_choose_its_own_learning_rate(model, name):
    bound = partial(torch.optim.SGD, lr=0.25)
    for make in (lambda parameters: torch.optim.SGD(parameters, lr=0.25), bound, partial(bound, momentum=0.9)):
        assert METHODS[name](model, optimizer=make).optimizer.param_groups[0]["lr"] == 0.25
    assert METHODS[name](model, optimizer=lambda p, lr: torch.optim.SGD(p, lr), lr=0.5).optimizer.defaults["lr"] == 0.5
    with pytest.raises(ConfigurationError, match=r"torch\.optim\.Optimizer from parameters, but it returned NoneType"):
        METHODS[name](model, optimizer=lambda parameters: None)
    with pytest.raises(ConfigurationError, match="Expected `optimizer` to be a function"):
        METHODS[name](model, optimizer="adam")


@pytest.mark.parametrize("name", LEARNING)
@pytest.mark.parametrize("lr", ["1e-3", -1e-3, float("nan"), float("inf"), None, True])
def test_learning_rates_that_are_no_rates_are_refused(model, name, lr):
    if lr is None and inspect.signature(METHODS[name]).parameters["lr"].default is None:
        pytest.skip("None is the rate for the number of classes")
    with pytest.raises(ConfigurationError, match="Expected `lr` to be a number of at least 0, but got"):
        METHODS[name](model, lr=lr)


def test_batches_of_another_form_are_named(model):
    adapter, images = dp.source(model), torch.rand(2, 3, 8, 8)
    labels = torch.zeros(2).long()
    mistakes = {
        r"a tuple of 2, as of images and labels. Pass the images alone": (images, labels),
        r"a list of 2, as of images and labels": [images, labels],
        r"a dict with the keys pixels, label. Pass the images alone, such as `batch\[\"pixels\"\]`": {
            "pixels": images,
            "label": labels,
        },
        r"a numpy array. Convert it with `torch.from_numpy": images.numpy(),
        r"torch.uint8. Convert integer images with `images.float\(\) / 255`": (images * 255).byte(),
        r"a list of 2. Stack images to one tensor": list(images),
        r"a str\.": "image.png",
    }
    for message, batch in mistakes.items():
        with pytest.raises(InputError, match=message):
            adapter(batch)
