"""What the examples share: shifted images, a stream, and a report of what adapting did."""

import importlib
import warnings
from collections.abc import Callable
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import driftproof as dp

__all__ = ["adapt_and_report", "fit", "import_torchvision", "make_images", "make_scenes"]

CLASSES = 4
_operators: list[torch.library.Library] = []  # an operator is defined while its library lives


def import_torchvision() -> ModuleType:
    """Import torchvision, also where its compiled operators were built for another torch."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
    _operators.append(torch.library.Library("torchvision", "FRAGMENT"))  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        signature = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        _operators[-1].define(signature)  # type: ignore[no-untyped-call]
    return importlib.import_module("torchvision")


def make_images(count: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images of bars in four directions, with noise, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    waves = torch.stack([rows, columns, rows + columns, rows - columns]).float()
    phase = 6.3 * torch.rand(count, 1, 1, generator=generator)
    bars = 0.5 + 0.25 * torch.sin(0.8 * waves[labels] + phase)
    images = bars.unsqueeze(1) + 0.1 * torch.randn(count, 3, size, size, generator=generator)
    return images.clamp(0, 1), labels


def make_scenes(count: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return scenes of four quadrants, each with bars in another direction, and their label maps."""
    images, labels = make_images(4 * count, size // 2, seed)

    def join(parts: Tensor) -> Tensor:
        corners = parts.view(count, 4, *parts.shape[1:])
        upper, lower = (torch.cat([corners[:, i], corners[:, i + 1]], dim=-1) for i in (0, 2))
        return torch.cat([upper, lower], dim=-2)

    return join(images), join(labels.view(-1, 1, 1).expand(-1, size // 2, size // 2))


def shift(images: Tensor) -> Tensor:
    """Return the images as a camera with little contrast would see them."""
    return 0.6 * images


def fit(model: nn.Module, logits: Callable[[Tensor], Tensor], data: tuple[Tensor, Tensor], steps: int = 60) -> None:
    """Train a model for some seconds, from random weights."""
    images, labels = data
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(steps):
        chosen = torch.randint(len(images), (32,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(logits(images[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.eval()


def adapt_and_report(
    model: nn.Module,
    logits: Callable[[Tensor], Tensor],
    data: tuple[Tensor, Tensor],
    *,
    key: str | None = None,
    size: int = 64,
    rounds: int = 4,
) -> dp.Adapter:
    """Check a model, adapt it to shifted images, and print accuracies before, meanwhile and after unwrapping.

    Args:
        model: The trained model.
        logits: Calls it and returns its logits.
        data: Images and labels.
        key: Where the logits are in the model's output, for the adapter.
        size: Images per batch.
        rounds: Passes over the images.
    """
    images, labels = shift(data[0]), data[1]
    print(f"model          {type(model).__module__.split('.')[0]} {type(model).__name__}")
    with torch.no_grad():
        print(f"source         {100 * score(logits(data[0]), labels):.1f} % as trained")
        print(f"               {100 * score(logits(images), labels):.1f} % on shifted images")
    for problem in dp.check(model, images[:size], logits=key):
        print(f"check          {problem.message}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a network trained for seconds may look as if it collapsed
        for name, adapter in {
            "dp.adapt": dp.adapt(model, logits=key),
            "tent+crowd": dp.tent(model, select=dp.ConfidenceDifference(), logits=key),
        }.items():
            for _ in range(rounds):
                right = [
                    score(adapter(images[i : i + size]), labels[i : i + size]) for i in range(0, len(images), size)
                ]
            record = adapter.last
            print(f"{name:<14} {100 * sum(right) / len(right):.1f} %, kept {record.kept:.2f}, {record.health.state}")
    plain = adapter.unwrap(statistics="stream")
    assert type(plain) is type(model)
    with torch.no_grad():
        output = plain(images)
    answers = output if key is None else output[key] if isinstance(output, dict) else getattr(output, key)
    print(f"unwrapped      {100 * score(answers, labels):.1f} %, a plain {type(plain).__name__}")
    return adapter


def score(logits: Tensor, labels: Tensor) -> float:
    """Return the share of right predictions, of images or pixels."""
    return float((logits.argmax(dim=1) == labels).float().mean())
