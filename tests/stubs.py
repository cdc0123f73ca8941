"""Steps made by hand, to test a part by itself."""

import torch

from driftproof.components import Step
from driftproof.network import Network


class Fixed(torch.nn.Module):
    """A model that ignores its input and returns what it was given."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, images):
        return self.logits[: len(images)]


def step_with(logits, source_logits=None, parameters=(), starts=(), **more):
    """A step whose networks answer with the given logits."""
    network = Network(Fixed(logits))
    source = Network(Fixed(logits if source_logits is None else source_logits))
    images = more.pop("images", torch.rand(len(logits), 3, 4, 4))
    return Step(
        images, network=network, source=source, parameters=tuple(parameters), source_parameters=tuple(starts), **more
    )
