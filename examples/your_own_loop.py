"""Adapt a small network to shifted digits while strangers walk in: the README's loop on real images.

    python examples/your_own_loop.py [--rounds 10] [--lr 1e-3] [--seed 0]

The handwritten digits that ship with scikit-learn: 0 to 5 are trained on, 6 to 9 are the unknown ones. The stream
repeats five changes of appearance, half of every batch being unknown digits, and nothing is reset. Errors count known
digits only.
"""

import argparse
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import driftproof as dp
from driftproof.models import WideResNet

KNOWN = 6
BATCH = 50

Change = Callable[[Tensor, torch.Generator], Tensor]


def blurred(images: Tensor, _: torch.Generator) -> Tensor:
    """Out of focus."""
    return F.avg_pool2d(F.pad(images, (2, 2, 2, 2), mode="replicate"), 5, stride=1)


def pixelated(images: Tensor, _: torch.Generator) -> Tensor:
    """A quarter of the resolution."""
    return F.interpolate(F.avg_pool2d(images, 4), scale_factor=4)


def noisy(images: Tensor, generator: torch.Generator) -> Tensor:
    """Sensor noise."""
    return (images + 0.3 * torch.randn(images.shape, generator=generator)).clamp(0, 1)


def pale(images: Tensor, _: torch.Generator) -> Tensor:
    """Low contrast."""
    return 0.5 + 0.25 * (images - 0.5)


def foggy(images: Tensor, generator: torch.Generator) -> Tensor:
    """A bright veil of uneven thickness."""
    veil = torch.rand(len(images), 1, 3, 3, generator=generator)
    veil = F.interpolate(veil, size=images.shape[2:], mode="bilinear", align_corners=True)
    return (0.4 * images + 0.6 * veil).clamp(0, 1)


CHANGES: dict[str, Change] = {
    "blurred": blurred,
    "pixelated": pixelated,
    "noisy": noisy,
    "pale": pale,
    "foggy": foggy,
}


def digits() -> tuple[Tensor, Tensor]:
    """All digits as 16×16 colour images in [0, 1], in a fixed random order, with their labels."""
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    images = F.interpolate(images, size=16, mode="bilinear", align_corners=False).expand(-1, 3, -1, -1)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order].contiguous(), torch.tensor(bunch.target)[order]


def trained(images: Tensor, labels: Tensor, seed: int, epochs: int = 15) -> nn.Module:
    """A small wide residual network that knows the clean digits."""
    torch.manual_seed(seed)
    model = WideResNet(depth=10, width=1, classes=KNOWN)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        for chosen in torch.split(torch.randperm(len(images)), BATCH):
            optimiser.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        schedule.step()
    return model.eval()


def stream(known: tuple[Tensor, Tensor], unknown: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """One round: every change in turn, each batch half known and half unknown digits."""
    generator = torch.Generator().manual_seed(seed)
    images, labels = known
    for change in CHANGES.values():
        pairs = zip(torch.split(images, BATCH), torch.split(labels, BATCH), torch.split(unknown, BATCH), strict=False)
        for some, their_labels, strangers in pairs:
            yield change(torch.cat([some, strangers]), generator), their_labels


def error(adapter: dp.Adapter, round_of_batches: Iterator[tuple[Tensor, Tensor]]) -> float:
    """Percent of known digits the adapter gets wrong while it adapts."""
    wrong = seen = 0
    for images, labels in round_of_batches:
        logits = adapter(images)[: len(labels)]
        wrong += int((logits.argmax(1) != labels).sum())
        seen += len(labels)
    return 100 * wrong / seen


def main() -> None:
    """Train, adapt for some rounds, print the error of every round."""
    parser = argparse.ArgumentParser(description="Adapt to shifted digits with unknown ones among them.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    images, labels = digits()
    known = labels < KNOWN
    half = int(known.sum()) // 2
    train, test = (images[known][:half], labels[known][:half]), (images[known][half:], labels[known][half:])
    unknown = images[~known]
    started = time.perf_counter()
    model = trained(*train, seed=arguments.seed)
    with torch.no_grad():
        clean = 100 * float((model(test[0]).argmax(1) != test[1]).float().mean())
    print(f"trained on {half} digits in {time.perf_counter() - started:.0f} s, clean error {clean:.1f} %")
    adapters = {
        "source": dp.source(model),
        "bn_adapt": dp.bn_adapt(model),
        "tent": dp.tent(model, lr=arguments.lr),
        "tent+crowd": dp.tent(model, lr=arguments.lr, select=dp.ConfidenceDifference()),
    }
    print(f"\nerror in %, {len(CHANGES)} changes of appearance a round, half of each batch unknown\n")
    print("round " + "".join(f"{name:>12}" for name in adapters))
    for index in range(arguments.rounds):
        row = [error(adapter, stream(test, unknown, seed=index)) for adapter in adapters.values()]
        print(f"{index + 1:>5} " + "".join(f"{value:12.1f}" for value in row), flush=True)
    print(f"\n{time.perf_counter() - started:.0f} s in all; after the last batch:\n{adapters['tent+crowd'].last}")


if __name__ == "__main__":
    main()
