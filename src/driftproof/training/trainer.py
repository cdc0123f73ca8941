"""Training of classifiers, resumable after any epoch."""

import copy
import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from driftproof.errors import ConfigurationError, DivergenceError, InputError, ModelError, StateError
from driftproof.files import atomic_write, check_regular_file
from driftproof.models.checkpoint_limits import check_pickles
from driftproof.training.augmix import augmix, check_uint8_images
from driftproof.training.crops import crop_and_flip, resized_crop_and_flip
from driftproof.training.loss import augmix_loss
from driftproof.training.recipes import Recipe

__all__ = ["EpochRecord", "Trainer"]

_FORMAT = 1


@dataclass(frozen=True)
class EpochRecord:
    """Results of one epoch.

    Attributes:
        epoch: Counted from 1.
        loss: Mean training loss.
        accuracy: Training accuracy: share of the training images classified correctly during the epoch.
        evaluation: Result of `evaluate`; None without it.
        seconds: Duration of the epoch, including evaluation.
    """

    epoch: int
    loss: float
    accuracy: float
    evaluation: float | None
    seconds: float


class Trainer:
    """Trains a classifier in place.

    The training set stays on the device as uint8 and is augmented there. The random numbers of a batch depend only on
    the seed, the epoch and the batch, so on a CPU a resumed run is bit-identical to an uninterrupted one. After an
    error or an interrupt the model is restored to the end of the last complete epoch.

    Args:
        model: Takes images in [0, 1], (N, C, H, W), and returns logits, (N, classes).
        images: uint8 images, (N, C, H, W).
        labels: One class per image.
        recipe: Hyper-parameters.
        seed: Random seed.
        device: Training device; None for the device of the model.
        begun_from: Identifier of the initial weights, such as the checksum of a file. A checkpoint of a run with other
            initial weights is refused.

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
            raise ModelError("Expected a model with trainable parameters, but all are frozen or there are none.")
        check_uint8_images(images)
        self.device = torch.device(device) if device is not None else parameters[0].device
        self.model = model.to(self.device)
        self.recipe = recipe
        self.seed = seed
        self.begun_from = begun_from
        self.history: list[EpochRecord] = []
        self._images = images.to(self.device)
        self._labels = self._validate_labels(labels, images).to(self.device)
        self._check_classes()
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
        """Train until `until_epoch` epochs are complete, and return the records of all of them.

        Args:
            until_epoch: Number of epochs to reach; None for all epochs of the recipe. The learning rate follows the
                recipe in both cases.
            checkpoint: File to write after every epoch. Training resumes from it if it has more epochs.
            checkpoint_every: Minimum seconds between two checkpoints; the last epoch is always written.
            progress: Called after every epoch.
            evaluate: Scores the model, in evaluation mode, after every epoch; larger is better.
            save: Called with the model after every epoch with a new best score, or after every epoch without
                `evaluate`.
        """
        content = self._read_checkpoint(checkpoint) if checkpoint is not None and checkpoint.exists() else None
        newer = content if content is not None and len(content["history"]) > len(self.history) else None
        last = self._check_epoch(until_epoch, len(newer["history"]) if newer else len(self.history))
        if newer:
            self._resume(newer, checkpoint)
        devices = [] if self.device.type == "cpu" else [self.device]
        with torch.random.fork_rng(devices, device_type=self.device.type):
            written = time.monotonic()
            while len(self.history) < last:
                self._run_epoch(evaluate, save)
                due = len(self.history) == last or time.monotonic() - written >= checkpoint_every
                if checkpoint is not None and due:
                    _write(self._describe_run() | self._state(), checkpoint)
                    written = time.monotonic()
                if progress is not None:
                    progress(self.history[-1])
        self.model.eval()
        return list(self.history)

    def _run_epoch(
        self,
        evaluate: Callable[[nn.Module], float] | None,
        save: Callable[[nn.Module, EpochRecord], None] | None,
    ) -> None:
        before, started = copy.deepcopy(self._state()), time.perf_counter()
        try:
            loss, accuracy = self._train_epoch()
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

    def _train_epoch(self) -> tuple[float, float]:
        self.model.train()
        epoch, count = len(self.history), len(self._images)
        order = torch.randperm(count, generator=_make_generator(self.seed, epoch, "order")).to(self.device)
        batches = self._split_batches(order)
        # Read once at the end: reading the loss after every batch would synchronize the device.
        losses = torch.zeros(len(batches), device=self.device)
        correct = torch.zeros(2, dtype=torch.int64, device=self.device)
        for index, members in enumerate(batches):
            for group in self._optimizer.param_groups:
                group["lr"] = self.recipe.lr_at(epoch, index, len(batches))
            torch.manual_seed(_derive_seed(self.seed, epoch, index, "model"))
            losses[index], counts = self._step(members, _make_generator(self.seed, epoch, index, "views"))
            correct += counts
        self._check_finite(losses)
        sizes = torch.tensor([len(members) for members in batches], device=self.device)
        num_correct, num_counted = correct.tolist()
        return float((losses * sizes).sum() / sizes.sum()), num_correct / max(num_counted, 1)

    def _split_batches(self, order: Tensor) -> list[Tensor]:
        return list(torch.split(order, self.recipe.batch_size))

    def _step(self, members: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Train on one batch; return its loss, and the numbers of correct and of all clean images."""
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
        self._update(loss)
        correct = logits.argmax(dim=1) == labels
        return loss.detach(), torch.stack([correct, torch.ones_like(correct)]).sum(dim=1)

    def _update(self, loss: Tensor) -> None:
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def _is_best(self, record: EpochRecord) -> bool:
        if record.evaluation is None:
            return True
        previous = [past.evaluation for past in self.history if past.evaluation is not None]
        return not math.isnan(record.evaluation) and not any(score >= record.evaluation for score in previous)

    def _validate_labels(self, labels: Tensor, images: Tensor) -> Tensor:
        if len(images) == 0:
            raise InputError("Expected at least one image to train on, but got none.")
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise InputError(f"Expected labels to be integers, but got {str(labels.dtype).removeprefix('torch.')}.")
        if labels.shape != images.shape[:1]:
            raise InputError(f"Expected {len(images)} labels, one per image, but got the shape {tuple(labels.shape)}.")
        return labels.long()

    def _check_classes(self) -> None:
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

    def _check_epoch(self, until_epoch: int | None, done: int) -> int:
        last = self.recipe.epochs if until_epoch is None else until_epoch
        if not done <= last <= self.recipe.epochs:
            raise ConfigurationError(
                f"Expected `until_epoch` in {done}..{self.recipe.epochs}, from the completed epochs to those of the "
                f"recipe, but got {last}."
            )
        return last

    def _check_finite(self, losses: Tensor) -> None:
        non_finite = (~losses.isfinite()).nonzero().flatten().tolist()
        tensors = [tensor for tensor in self.model.state_dict().values() if tensor.is_floating_point()]
        if non_finite or not all(bool(tensor.isfinite().all()) for tensor in tensors):
            where = f"the loss of batch {non_finite[0] + 1}" if non_finite else "a parameter"
            raise DivergenceError(
                f"Expected training to stay finite, but {where} in epoch {len(self.history) + 1} is not. Model and "
                f"checkpoint are as after epoch {len(self.history)}. Lower `lr`, or check the images."
            )

    def _describe_run(self) -> dict[str, Any]:
        positions = torch.arange(1, len(self._labels) + 1, device=self.device)
        sums = self._labels.reshape(len(self._labels), -1).sum(dim=1)
        images = [*self._images.shape, int(self._images.sum()), int((sums * positions).sum())]
        run = {"seed": self.seed, "begun_from": self.begun_from, "images": images}
        return {"format": _FORMAT, "recipe": asdict(self.recipe), "run": run}

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "history": [asdict(record) for record in self.history],
        }

    def _resume(self, state: Mapping[str, Any], checkpoint: Path | None) -> None:
        before = copy.deepcopy(self._state())
        try:
            self._restore(state)
        except Exception as error:  # what a damaged file holds may be of any type
            self._restore(before)
            raise StateError(f"Expected {checkpoint} to fit this training, but it does not: {error}.") from error

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.history = [EpochRecord(**record) for record in state["history"]]

    def _read_checkpoint(self, path: Path) -> dict[str, Any]:
        """Return the content of a checkpoint after checking that it belongs to this run."""
        own = self._describe_run()
        try:
            check_regular_file(path)
            check_pickles(path)
            content = torch.load(path, map_location=self.device, weights_only=True)
        except Exception as error:  # a damaged file may raise anything
            raise StateError(f"Expected {path} to be a training checkpoint, but reading it failed: {error}.") from error
        kinds = {"model": dict, "optimizer": dict, "history": list, "recipe": dict, "run": dict}
        if (
            not isinstance(content, dict)
            or content.keys() != own.keys() | self._state().keys()
            or not all(isinstance(content[name], kind) for name, kind in kinds.items())
        ):
            raise StateError(f"Expected {path} to be a training checkpoint, but it is something else.")
        if content["format"] != _FORMAT:
            raise StateError(f"Expected a checkpoint of format {_FORMAT}, but got format {content['format']}.")
        _check_equal("recipe", content["recipe"], own["recipe"])
        _check_equal("run", content["run"], own["run"])
        _check_equal("architecture", _shapes(content["model"]), _shapes(self.model.state_dict()))
        return content


def _derive_seed(*key: int | str) -> int:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _make_generator(*key: int | str) -> Generator:
    return Generator().manual_seed(_derive_seed(*key))


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: f"{tuple(tensor.shape)} of {tensor.dtype}" for name, tensor in tensors.items()}


def _check_equal(kind: str, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    different = [
        f"`{name}` was {saved.get(name, 'absent')} and is {own.get(name, 'absent')} here"
        for name in {**saved, **own}
        if saved.get(name) != own.get(name)
    ]
    if different:
        more = " and more" if len(different) > 3 else ""
        raise StateError(
            f"The checkpoint is of another {kind}: {'; '.join(different[:3])}{more}. "
            "Use the original settings, or write to another file."
        )


def _write(content: dict[str, Any], path: Path) -> None:
    with atomic_write(path) as unfinished:
        torch.save(content, unfinished)
