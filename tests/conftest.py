import hypothesis
import pytest
import torch

torch.set_num_threads(1)  # the test runner already uses every core
hypothesis.settings.register_profile("driftproof", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("driftproof")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
