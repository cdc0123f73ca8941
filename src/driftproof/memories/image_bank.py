"""The base class of memories that choose images one by one, by their predicted classes."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from driftproof.augment import Augment, check_keeps_pixels, check_unit_range
from driftproof.components import Step
from driftproof.errors import ConfigurationError, InputError
from driftproof.memories.base import Memory, expand_to_samples
from driftproof.network import Network
from driftproof.predictions import entropy, log_probabilities

__all__ = ["Candidates", "ImageBank", "mean_class", "mean_over_pixels"]


class Candidates(NamedTuple):
    """The places of a bank and the images of a batch, in the order of their arrival.

    Attributes:
        classes: The predicted class of each.
        entropies: The entropy of its prediction in nats.
        arrived: How many images had come before it.
        held: Whether it is in the bank so far: empty places and the batch are not.
        admitted: Whether each image of the batch may enter.
    """

    classes: Tensor
    entropies: Tensor
    arrived: Tensor
    held: Tensor
    admitted: Tensor

    @property
    def present(self) -> Tensor:
        """Whether each is in the bank so far, or may enter it."""
        return torch.cat([self.held[: len(self.held) - len(self.admitted)], self.admitted])

    @property
    def same_class(self) -> Tensor:
        """Whether two candidates have the same class, as a square matrix of booleans."""
        return self.classes.unsqueeze(1) == self.classes


class ImageBank(Memory):
    """A bank of images with their predicted classes; a subclass says which of them to `choose`.

    The prediction of an image is what the adapter returns for it; for label maps it is the mean over pixels. Ranks that
    share a batch hold the same bank.

    One step is taken per batch, once `update_every` images have come since the last: with batches of that many images
    or fewer as often as published. A larger batch enters whole before its step, where published code takes several.
    Every batch costs a pass over the whole bank, due or not, because a step has fixed shapes.

    Args:
        capacity: How many images to hold.
        update_every: Images from one step to the next.
        augment: See `Memory`.
    """

    is_copied = True
    bank: Tensor | None
    classes: Tensor
    entropies: Tensor
    arrived: Tensor
    held: Tensor
    num_images: Tensor
    since_update: Tensor

    def __init__(self, capacity: int = 64, *, update_every: int = 64, augment: Augment | None = None) -> None:
        super().__init__()
        for name, value in (("capacity", capacity), ("update_every", update_every)):
            if value < 1:
                raise ConfigurationError(f"Expected `{name}` to be at least 1, but got {value}.")
        self.capacity = capacity
        self.update_every = update_every
        self.augment = augment
        self.register_buffer("bank", None)
        self.register_buffer("entropies", torch.zeros(capacity))
        self.register_buffer("held", torch.zeros(capacity, dtype=torch.bool))
        for name, shape in (("classes", capacity), ("arrived", capacity), ("num_images", ()), ("since_update", ())):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.int64))
        self.register_buffer("due", torch.zeros((), dtype=torch.bool))

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget all images."""
        self.bank = None
        for name in ("classes", "entropies", "arrived", "held", "num_images", "since_update", "due"):
            setattr(self, name, torch.zeros_like(getattr(self, name)))

    def choose(self, candidates: Candidates, step: Step) -> Tensor:
        """Which candidates the bank holds after the batch, as a boolean mask with at most `capacity` of them."""
        raise NotImplementedError

    def admit(self, step: Step) -> Tensor:
        """Which images of the batch may enter, boolean, (N,)."""
        return torch.ones_like(step.images.flatten(1)[:, 0], dtype=torch.bool)

    def classify(self, step: Step) -> Tensor:
        """The class of each image of the batch, (N,)."""
        return mean_class(step.output)

    def update(self, step: Step) -> None:
        """Take in the batch, image by image."""
        if self.bank is None and self.augment is not None:
            check_unit_range(step.images, self.augment)
            check_keeps_pixels(self.augment, step.logits)
        gather = step.distributed.gather_rows
        images = gather(step.images)
        count = len(images)
        if self.bank is None:
            self.bank = images[torch.arange(self.capacity, device=images.device) % count]
        elif self.bank.shape[1:] != images.shape[1:]:
            raise InputError(
                f"Expected images of shape {tuple(self.bank.shape[1:])}, as in the memory, but got "
                f"{tuple(images.shape[1:])}. A memory holds images of one size."
            )
        arrived = self.num_images + torch.arange(count, device=images.device)
        candidates = Candidates(
            torch.cat([self.classes, gather(self.classify(step))]),
            torch.cat([self.entropies, gather(_mean_entropy(step)).to(self.entropies.dtype)]),
            torch.cat([self.arrived, arrived]),
            torch.cat([self.held, torch.zeros_like(arrived, dtype=torch.bool)]),
            gather(self.admit(step).to(torch.uint8)).bool(),
        )
        held = self.choose(candidates, step)
        kept = (~held).to(torch.uint8).argsort(stable=True)[: self.capacity]  # oldest first, then empty places
        self.bank, self.held = torch.cat([self.bank, images])[kept], held[kept]
        self.classes, self.entropies = candidates.classes[kept], candidates.entropies[kept]
        self.arrived, self.num_images = candidates.arrived[kept], self.num_images + count
        waiting = self.since_update + count
        self.due, self.since_update = waiting >= self.update_every, waiting % self.update_every

    def images(self) -> Tensor:
        """The bank, oldest image first; empty places hold any images."""
        assert self.bank is not None  # update() comes first
        return self.bank

    def mask(self) -> Tensor:
        """Which places hold an image."""
        return self.held

    def weights(self, step: Step) -> Tensor:
        """One for every image, if a step is due; else zero."""
        return expand_to_samples(self.held & self.due, step)


def mean_class(logits: Tensor) -> Tensor:
    """The predicted class of each image, (N,)."""
    return (logits if logits.ndim == 2 else log_probabilities(logits).exp().flatten(2).mean(dim=2)).argmax(dim=1)


def _mean_entropy(step: Step) -> Tensor:
    return mean_over_pixels(entropy(log_probabilities(step.output)))


def mean_over_pixels(values: Tensor) -> Tensor:
    """One number per image, from one per sample."""
    return values.flatten(1).mean(dim=1) if values.ndim > 1 else values
