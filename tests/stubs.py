"""Hand-made steps, to test a component in isolation."""

import torch

from driftproof.components import Step
from driftproof.network import Network


class ConstantModel(torch.nn.Module):
    """A model that ignores its input and returns fixed logits."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, images):
        return self.logits[: len(images)]


def step_with(logits, source_logits=None, parameters=(), starts=(), **more):
    """Make a step whose networks return the given logits."""
    network = Network(ConstantModel(logits))
    source = Network(ConstantModel(logits if source_logits is None else source_logits))
    images = more.pop("images", torch.rand(len(logits), 3, 4, 4))
    return Step(
        images, network=network, source=source, parameters=tuple(parameters), source_parameters=tuple(starts), **more
    )
