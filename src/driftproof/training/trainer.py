"""Training that can be stopped after any epoch and continued as if it had not been."""

import copy
import hashlib
import math
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from driftproof.errors import ConfigurationError, DivergenceError, InputError, ModelError, StateError
from driftproof.files import atomic_write
from driftproof.training.augmix import augmix, bilinear, expect_bytes
from driftproof.training.loss import augmix_loss
from driftproof.training.recipes import Recipe

__all__ = ["EpochRecord", "Trainer", "crop_and_flip", "resized_crop_and_flip"]

_FORMAT = 1


@dataclass(frozen=True)
class EpochRecord:
    """What came of one epoch.

    Attributes:
        epoch: Counted from 1.
        loss: Mean training loss.
        accuracy: Share of the training images that were classified rightly while being learned from.
        evaluation: What `evaluate` returned; None without it.
        seconds: Time the epoch took, evaluation included.
    """

    epoch: int
    loss: float
    accuracy: float
    evaluation: float | None
    seconds: float


class Trainer:
    """Trains a model, in place, by a recipe.

    The training set stays on the device as bytes, and is augmented there. The random numbers of a batch depend on the
    seed, the epoch and the batch alone, so on a CPU a continued run is bit-identical to an uninterrupted one. After an
    error or an interrupt the model is what it was after the last complete epoch.

    Args:
        model: Takes images in [0, 1], (N, C, H, W), and returns logits, (N, classes).
        images: Bytes of shape (N, C, H, W).
        labels: One class per image.
        recipe: How to train.
        seed: Seed of every random choice.
        device: Where to train; where the model is, unless given.
        begun_from: What the model's weights were before, such as the checksum of a file; a checkpoint that was begun
            from anything else is refused.

    Examples:
        >>> from dataclasses import replace
        >>> from driftproof.training.recipes import CIFAR_RESNET50
        >>> images, labels = torch.randint(256, (8, 3, 8, 8), dtype=torch.uint8), torch.arange(8) % 2
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
        >>> history = Trainer(model, images, labels, replace(CIFAR_RESNET50, epochs=2)).run()
        >>> [record.epoch for record in history]
        [1, 2]
    """

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        recipe: Recipe,
        *,
        seed: int = 0,
        device: torch.device | str | None = None,
        begun_from: str | None = None,
    ) -> None:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not parameters:
            raise ModelError("Expected a model with parameters to train, but every one is frozen, or there is none.")
        expect_bytes(images)
        self.device = torch.device(device) if device is not None else parameters[0].device
        self.model = model.to(self.device)
        self.recipe = recipe
        self.seed = seed
        self.begun_from = begun_from
        self.history: list[EpochRecord] = []
        self._images = images.to(self.device)
        self._labels = self._expected_labels(labels, images).to(self.device)
        self._expect_classes()
        self._optimizer = torch.optim.SGD(
            parameters,
            lr=recipe.lr,
            momentum=recipe.momentum,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
        )

    def run(
        self,
        until_epoch: int | None = None,
        *,
        checkpoint: Path | None = None,
        checkpoint_every: float = 0.0,
        progress: Callable[[EpochRecord], None] | None = None,
        evaluate: Callable[[nn.Module], float] | None = None,
        save: Callable[[nn.Module, EpochRecord], None] | None = None,
    ) -> list[EpochRecord]:
        """Train until `until_epoch` epochs are complete, and return the record of every one of them.

        Args:
            until_epoch: Epochs to have done in the end; all of the recipe's, unless given. The learning rate follows
                the recipe either way.
            checkpoint: Written after every epoch; where it exists already and is further on, it is continued from.
            checkpoint_every: Seconds that have to pass before it is written again; the last epoch always is.
            progress: Called after every epoch.
            evaluate: Rates the model after every epoch, larger is better; it gets it in evaluation mode.
            save: Keeps the best model: called after every epoch that `evaluate` rates higher than all before it, and
                without `evaluate` after every epoch.
        """
        content = self._read(checkpoint) if checkpoint is not None and checkpoint.exists() else None
        further = content if content is not None and len(content["history"]) > len(self.history) else None
        last = self._expect_epoch(until_epoch, len(further["history"]) if further else len(self.history))
        if further:
            self._restore(further)
        devices = [] if self.device.type == "cpu" else [self.device]
        with torch.random.fork_rng(devices, device_type=self.device.type):
            written = time.monotonic()
            while len(self.history) < last:
                self._advance(evaluate, save)
                due = len(self.history) == last or time.monotonic() - written >= checkpoint_every
                if checkpoint is not None and due:
                    _write(self._described() | self._state(), checkpoint)
                    written = time.monotonic()
                if progress is not None:
                    progress(self.history[-1])
        self.model.eval()
        return list(self.history)

    def _advance(
        self,
        evaluate: Callable[[nn.Module], float] | None,
        save: Callable[[nn.Module, EpochRecord], None] | None,
    ) -> None:
        before, started = copy.deepcopy(self._state()), time.perf_counter()
        try:
            loss, accuracy = self._epoch()
            self.model.eval()
            with torch.no_grad():
                evaluation = float(evaluate(self.model)) if evaluate is not None else None
            seconds = time.perf_counter() - started
            record = EpochRecord(len(self.history) + 1, loss, accuracy, evaluation, seconds)
            if save is not None and self._is_best(record):
                save(self.model, record)
        except BaseException:
            self._restore(before)
            raise
        self.history.append(record)

    def _epoch(self) -> tuple[float, float]:
        self.model.train()
        epoch, count = len(self.history), len(self._images)
        order = torch.randperm(count, generator=_generator(self.seed, epoch, "order")).to(self.device)
        batches = self._batches(order)
        # Read once at the end: a look at the loss after every batch would make the device wait.
        losses = torch.zeros(len(batches), device=self.device)
        correct = torch.zeros(2, dtype=torch.int64, device=self.device)
        for index, members in enumerate(batches):
            for group in self._optimizer.param_groups:
                group["lr"] = self.recipe.lr_at(epoch, index, len(batches))
            torch.manual_seed(_number(self.seed, epoch, index, "model"))
            losses[index], counts = self._step(members, _generator(self.seed, epoch, index, "views"))
            correct += counts
        self._expect_finite(losses)
        sizes = torch.tensor([len(members) for members in batches], device=self.device)
        right, counted = correct.tolist()
        return float((losses * sizes).sum() / sizes.sum()), right / max(counted, 1)

    def _batches(self, order: Tensor) -> list[Tensor]:
        return list(torch.split(order, self.recipe.batch_size))

    def _step(self, members: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Learn from one batch; its loss, and how many it classified rightly, without AugMix, of how many."""
        recipe, labels = self.recipe, self._labels[members]
        if recipe.augmentation == "resized crop":
            images = resized_crop_and_flip(self._images[members], generator)
        else:
            images = crop_and_flip(self._images[members], generator, padding=recipe.crop_padding)
        clean = images / 255.0
        if recipe.augmentation == "augmix":
            views = augmix(images.repeat(2, 1, 1, 1), generator)
            logits, logits_1, logits_2 = self.model(torch.cat([clean, views])).chunk(3)
            loss = augmix_loss(logits, logits_1, logits_2, labels, weight=recipe.jsd_weight)
        else:
            logits = self.model(clean)
            loss = F.cross_entropy(logits, labels)
        self._learn(loss)
        right = logits.argmax(dim=1) == labels
        return loss.detach(), torch.stack([right, torch.ones_like(right)]).sum(dim=1)

    def _learn(self, loss: Tensor) -> None:
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def _is_best(self, record: EpochRecord) -> bool:
        if record.evaluation is None:
            return True
        earlier = [past.evaluation for past in self.history if past.evaluation is not None]
        return not math.isnan(record.evaluation) and not any(past >= record.evaluation for past in earlier)

    def _expected_labels(self, labels: Tensor, images: Tensor) -> Tensor:
        return _expect_labels(labels, images)

    def _expect_classes(self) -> None:
        self.model.eval()
        with torch.no_grad():
            logits = self.model(self._images[:1] / 255.0)
        if logits.ndim != 2:
            raise ModelError(f"Expected logits of shape (N, classes), but the model returns {tuple(logits.shape)}.")
        low, high, classes = int(self._labels.min()), int(self._labels.max()), logits.shape[1]
        if low < 0 or high >= classes:
            raise InputError(
                f"Expected labels in 0..{classes - 1}, since the model has {classes} classes, but got {low}..{high}."
            )

    def _expect_epoch(self, until_epoch: int | None, done: int) -> int:
        last = self.recipe.epochs if until_epoch is None else until_epoch
        if not done <= last <= self.recipe.epochs:
            raise ConfigurationError(
                f"Expected `until_epoch` in {done}..{self.recipe.epochs}, from the epochs already done to those of "
                f"the recipe, but got {last}."
            )
        return last

    def _expect_finite(self, losses: Tensor) -> None:
        broken = (~losses.isfinite()).nonzero().flatten().tolist()
        tensors = [tensor for tensor in self.model.state_dict().values() if tensor.is_floating_point()]
        if broken or not all(bool(tensor.isfinite().all()) for tensor in tensors):
            where = f"the loss of batch {broken[0] + 1}" if broken else "a parameter"
            raise DivergenceError(
                f"Expected training to stay finite, but {where} in epoch {len(self.history) + 1} is not. The model is "
                f"as after epoch {len(self.history)}, and so is its checkpoint; lower `lr`, or look at the images."
            )

    def _described(self) -> dict[str, Any]:
        places = torch.arange(1, len(self._labels) + 1, device=self.device)
        sums = self._labels.reshape(len(self._labels), -1).sum(dim=1)
        images = [*self._images.shape, int(self._images.sum()), int((sums * places).sum())]
        run = {"seed": self.seed, "begun_from": self.begun_from, "images": images}
        return {"format": _FORMAT, "recipe": asdict(self.recipe), "run": run}

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "history": [asdict(record) for record in self.history],
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.history = [EpochRecord(**record) for record in state["history"]]

    def _read(self, path: Path) -> dict[str, Any]:
        """The content of a checkpoint, if it is this trainer's."""
        own = self._described()
        try:
            content = torch.load(path, map_location=self.device, weights_only=True)
        except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
            raise StateError(f"Expected {path} to be a training checkpoint, but reading it failed: {error}.") from error
        if not isinstance(content, dict) or content.keys() != own.keys() | self._state().keys():
            raise StateError(f"Expected {path} to be a training checkpoint, but it is something else.")
        if content["format"] != _FORMAT:
            raise StateError(f"Expected a checkpoint of format {_FORMAT}, but got format {content['format']}.")
        _refuse_other("recipe", content["recipe"], own["recipe"])
        _refuse_other("run", content["run"], own["run"])
        _refuse_other("architecture", _shapes(content["model"]), _shapes(self.model.state_dict()))
        return content


def crop_and_flip(images: Tensor, generator: Generator, *, padding: int = 4) -> Tensor:
    """Shift every image by up to `padding` pixels, black coming in, and mirror every other one.

    Examples:
        >>> images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
        >>> crop_and_flip(images, torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3, 8, 8])
    """
    count, channels, height, width = images.shape
    places = torch.randint(2 * padding + 1, (2, count, 1), generator=generator, device=generator.device)
    rows = places[0] + torch.arange(height, device=generator.device)
    columns = _mirrored(places[1] + torch.arange(width, device=generator.device), generator)
    rows, columns = rows.to(images.device).view(count, 1, -1, 1), columns.to(images.device).view(count, 1, 1, -1)
    image = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    return F.pad(images, (padding,) * 4)[image, channel, rows, columns]


def resized_crop_and_flip(images: Tensor, generator: Generator) -> Tensor:
    """Enlarge a random part of every image, 8 to 100 % of its area, to the full size, and mirror every other one.

    Examples:
        >>> images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
        >>> resized_crop_and_flip(images, torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3, 8, 8])
    """
    height, width = images.shape[2:]
    top, left, part_height, part_width = random_parts(len(images), height, width, generator)
    rows = _stretched(top, part_height, height)
    columns = _mirrored(_stretched(left, part_width, width), generator)
    values = bilinear(images, rows.to(images.device).unsqueeze(2), columns.to(images.device).unsqueeze(1))
    return (values + 0.5).to(torch.uint8)


def random_parts(count: int, height: int, width: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height and width of `count` parts, each (count, 1).

    The share of the area is drawn from U[0.08, 1], the logarithm of width over height from U[log 3/4, log 4/3]. The
    first of ten draws that fits is taken; where none does, as much as the ratio allows.
    """

    def draw(columns: int) -> Tensor:
        return torch.rand(count, columns, generator=generator, device=generator.device, dtype=torch.float64)

    area = height * width * (0.08 + 0.92 * draw(10))
    ratio = torch.exp(math.log(4 / 3) * (2.0 * draw(10) - 1.0))
    heights, widths = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    first, any_fits = fits.int().argmax(dim=1, keepdim=True), fits.any(dim=1, keepdim=True)
    part_height = torch.where(any_fits, heights.gather(1, first), min(height, max(1, round(width * 4 / 3))))
    part_width = torch.where(any_fits, widths.gather(1, first), min(width, max(1, round(height * 4 / 3))))
    top, left = (draw(1) * (height - part_height + 1)).floor(), (draw(1) * (width - part_width + 1)).floor()
    return top, left, part_height, part_width


def _stretched(start: Tensor, length: Tensor, side: int) -> Tensor:
    """Where `side` pixels lie, (N, side), that cover `length` from `start` on without looking beyond."""
    centres = torch.arange(side, device=start.device, dtype=torch.float64) + 0.5
    return start + torch.minimum((centres * length / side - 0.5).clamp(min=0.0), length - 1)


def _mirrored(columns: Tensor, generator: Generator) -> Tensor:
    flips = torch.rand(len(columns), 1, generator=generator, device=generator.device) < 0.5
    return torch.where(flips, columns.flip(1), columns)


def _number(*place: int | str) -> int:
    digest = hashlib.blake2b(repr(place).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _generator(*place: int | str) -> Generator:
    return Generator().manual_seed(_number(*place))


def _expect_labels(labels: Tensor, images: Tensor) -> Tensor:
    if len(images) == 0:
        raise InputError("Expected at least one image to train on, but got none.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"Expected labels to be integers, but got {str(labels.dtype).removeprefix('torch.')}.")
    if labels.shape != images.shape[:1]:
        raise InputError(f"Expected {len(images)} labels, one per image, but got the shape {tuple(labels.shape)}.")
    return labels.long()


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: f"{tuple(tensor.shape)} of {tensor.dtype}" for name, tensor in tensors.items()}


def _refuse_other(what: str, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    different = [
        f"`{name}` was {saved.get(name, 'absent')} and is {own.get(name, 'absent')} here"
        for name in {**saved, **own}
        if saved.get(name) != own.get(name)
    ]
    if different:
        more = " and more" if len(different) > 3 else ""
        raise StateError(
            f"The checkpoint is of another {what}: {'; '.join(different[:3])}{more}. "
            "Train as it was begun, or write to another file."
        )


def _write(content: dict[str, Any], path: Path) -> None:
    with atomic_write(path) as unfinished:
        torch.save(content, unfinished)
