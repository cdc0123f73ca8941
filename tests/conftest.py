import gc
import importlib
import os
import signal
from unittest import mock

import hypothesis
import pytest
import torch

from driftproof.data import digits
from networks import train_digits_network

torch.set_num_threads(1)  # the test runner already uses every core
gc.disable()  # until all tests are collected: what is imported stays
hypothesis.settings.register_profile("driftproof", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.load_profile("driftproof")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def pytest_collection_finish(session):
    """Keep the collected tests out of every later garbage collection, of which there are thousands."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def signals():
    """Heed the signals that a shell has background commands ignore: some tests send them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def no_fsync():
    """Skip fsync, which only matters at a power loss."""
    with mock.patch.object(os, "fsync"):
        yield


@pytest.fixture(scope="session")
def torchvision():
    """torchvision; where its operators were built for another torch, the two that its import needs are declared."""
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError:
        pytest.skip("torchvision is not installed")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
    for name in ("nms", "qnms"):
        _torchvision_operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return importlib.import_module("torchvision")


_torchvision_operators = torch.library.Library("torchvision", "FRAGMENT")  # an operator is defined while this lives


@pytest.fixture(scope="session")
def timm(torchvision):
    return pytest.importorskip("timm")


@pytest.fixture(scope="session")
def trained():
    """A network trained on digits, and the test images with their labels."""
    train, test = digits(train=True), digits()
    network = train_digits_network(train.batch(range(len(train))).float() / 255, train.labels)
    return network, test.batch(range(len(test))).float() / 255, test.labels
