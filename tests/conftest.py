import pytest
import torch

torch.set_num_threads(1)  # the test runner already uses every core


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
