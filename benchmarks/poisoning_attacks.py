"""Images that an attacker mixes into the stream of an adapting model.

Attackers see nothing of the stream and have labeled images of their own. Some also have the source network. What they
make is any image with values in 0..1: nobody looks at it. References:

- statistics: the distribution-invading attack of Wu et al., "Uncovering Adversarial Risks of Test-Time Adaptation",
  2023.
- sure and wrong, unsure: the balanced low-entropy and the high-entropy attack of Su et al., "On the Adversarial Risk of
  Test Time Adaptation: An Investigation into Realistic Test-Time Data Poisoning", 2024, made once, against the source.
- gradient: images whose own gradient of the entropy, the step that TENT takes, raises the loss of others the most.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftproof.norms import batch_norms

__all__ = ["ATTACKS", "TARGET", "VICTIM", "Attack", "Attacker"]

VICTIM, TARGET = 1, 9
"""A targeted attack wants automobiles to be taken for trucks."""

_STEPS, _STEP_SIZE = 20, 0.05


@dataclass(frozen=True)
class Attacker:
    """What an attacker has.

    Attributes:
        model: The source network.
        images: Labeled images of the attacker's own, in 0..1.
        labels: Their classes.
        size: Images in a batch of the stream.
    """

    model: nn.Module
    images: Tensor
    labels: Tensor
    size: int

    def draw(self, count: int, seed: int, label: int | None = None) -> tuple[Tensor, Tensor]:
        """Draw own images, of one class if it is given."""
        generator = torch.Generator().manual_seed(seed)
        among = torch.arange(len(self.labels)) if label is None else (self.labels.cpu() == label).nonzero().flatten()
        chosen = among[torch.randint(len(among), (count,), generator=generator)].to(self.images.device)
        return self.images[chosen], self.labels[chosen]

    def surrogate(self) -> nn.Module:
        """A copy of the source network that normalizes with the statistics of each batch, as TENT does."""
        model = copy.deepcopy(self.model).eval().requires_grad_(False)
        for _, layer in batch_norms(model):
            layer.train()
            layer.momentum = 0.0
        return model


Craft = Callable[[Attacker, int, int], Tensor]


@dataclass(frozen=True)
class Attack:
    """One way to make images.

    Attributes:
        craft: Makes so many images for one batch, from a seed.
        is_targeted: Whether one class is to be taken for another; else the error is to rise.
        needs_network: Whether the attacker has the source network.
        whole_batches: Whether whole batches are the attacker's, one in so many; else a share of each batch.
    """

    craft: Craft
    is_targeted: bool = False
    needs_network: bool = True
    whole_batches: bool = False


def ascend(start: Tensor, objective: Callable[[Tensor], Tensor]) -> Tensor:
    """Move images within 0..1 by the sign of the gradient, so that the objective rises."""
    images = start.clone()
    for _ in range(_STEPS):
        images.requires_grad_(True)
        (slope,) = torch.autograd.grad(objective(images), images)
        images = (images.detach() + _STEP_SIZE * slope.sign()).clamp(0.0, 1.0)
    return images


def goal(logits: Tensor, labels: Tensor, *, targeted: bool) -> Tensor:
    """What the attacker wants to be large, of images that are not the attacker's."""
    wanted = torch.full_like(labels, TARGET) if targeted else labels
    loss = F.cross_entropy(logits, wanted)
    return -loss if targeted else loss


def entropy(logits: Tensor) -> Tensor:
    """The entropy of each prediction."""
    entropies: Tensor = torch.special.entr(logits.softmax(dim=1)).sum(dim=1)
    return entropies


# --- without the network ----------------------------------------------------------------------------------------------


def noise(attacker: Attacker, count: int, seed: int) -> Tensor:
    """Every value at random."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, *attacker.images.shape[1:], generator=generator).to(attacker.images.device)


def blocks(attacker: Attacker, count: int, seed: int) -> Tensor:
    """Black and white blocks of 4 × 4 pixels, far from any photo in contrast."""
    generator = torch.Generator().manual_seed(seed)
    channels, height, width = attacker.images.shape[1:]
    coarse = torch.randint(2, (count, channels, height // 4, width // 4), generator=generator).float()
    return F.interpolate(coarse, scale_factor=4, mode="nearest").to(attacker.images.device)


def one_class(attacker: Attacker, count: int, seed: int) -> Tensor:
    """Ordinary images of the class that others are to be taken for."""
    return attacker.draw(count, seed, TARGET)[0]


# --- with the network -------------------------------------------------------------------------------------------------


def unsure(attacker: Attacker, count: int, seed: int) -> Tensor:
    """Images of which the network is as unsure as possible."""
    images, _ = attacker.draw(count, seed)
    model, (others, _) = attacker.surrogate(), attacker.draw(max(attacker.size - count, 2), seed + 1)
    return ascend(images, lambda made: entropy(model(torch.cat([made, others]))[:count]).sum())


def sure_and_wrong(attacker: Attacker, count: int, seed: int, *, targeted: bool = False) -> Tensor:
    """Images that the network is sure of, and wrong: of the victim as the target, or of any class as another."""
    images, labels = attacker.draw(count, seed, VICTIM if targeted else None)
    classes = int(attacker.labels.max()) + 1
    shift = torch.randint(1, classes, (count,), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    wrong = torch.full_like(labels, TARGET) if targeted else (labels + shift) % classes
    model, (others, _) = attacker.surrogate(), attacker.draw(max(attacker.size - count, 2), seed + 1)
    return ascend(images, lambda made: -F.cross_entropy(model(torch.cat([made, others]))[:count], wrong))


def statistics(attacker: Attacker, count: int, seed: int, *, targeted: bool = False) -> Tensor:
    """Images whose share in the batch's statistics changes the predictions of the others."""
    images, _ = attacker.draw(count, seed)
    others, labels = attacker.draw(attacker.size - count, seed + 1)
    model, judged = attacker.surrogate(), labels == VICTIM if targeted else torch.ones_like(labels, dtype=torch.bool)

    def influence(made: Tensor) -> Tensor:
        logits = model(torch.cat([made, others]))[count:]
        return goal(logits[judged], labels[judged], targeted=targeted)

    return ascend(images, influence)


def gradient(attacker: Attacker, count: int, seed: int, *, targeted: bool = False) -> Tensor:
    """Images on which a step of entropy minimization hurts the predictions of others the most, to first order."""
    images, _ = attacker.draw(count, seed)
    others, labels = attacker.draw(attacker.size - count, seed + 1)
    model = attacker.surrogate()
    affine = [p for _, layer in batch_norms(model) for p in (layer.weight, layer.bias) if p is not None]
    for parameter in affine:
        parameter.requires_grad_(True)
    judged = labels == VICTIM if targeted else torch.ones_like(labels, dtype=torch.bool)
    wanted = torch.autograd.grad(goal(model(others)[judged], labels[judged], targeted=targeted), affine)

    def influence(made: Tensor) -> Tensor:
        loss = entropy(model(torch.cat([made, others]))[:count]).mean()
        slopes = torch.autograd.grad(loss, affine, create_graph=True)
        return -torch.stack([(one * other).sum() for one, other in zip(slopes, wanted, strict=True)]).sum()

    return ascend(images, influence)


def targeted(craft: Callable[..., Tensor]) -> Craft:
    """The targeted form of an attack."""
    return lambda attacker, count, seed: craft(attacker, count, seed, targeted=True)


ATTACKS: dict[str, Attack] = {
    "noise": Attack(noise, needs_network=False),
    "blocks": Attack(blocks, needs_network=False),
    "unsure": Attack(unsure),
    "sure and wrong": Attack(sure_and_wrong),
    "statistics": Attack(statistics),
    "gradient": Attack(gradient),
    "one class": Attack(one_class, is_targeted=True, needs_network=False),
    "sure and wrong, targeted": Attack(targeted(sure_and_wrong), is_targeted=True),
    "statistics, targeted": Attack(targeted(statistics), is_targeted=True),
    "gradient, targeted": Attack(targeted(gradient), is_targeted=True),
    "noise, whole batches": Attack(noise, needs_network=False, whole_batches=True),
    "one class, whole batches": Attack(one_class, is_targeted=True, needs_network=False, whole_batches=True),
    "sure and wrong, whole batches": Attack(sure_and_wrong, whole_batches=True),
}
