"""Adapt one network in several processes at once, and see that they learn what one would.

    torchrun --nproc-per-node 2 examples/data_parallel.py [--batches 20] [--batch 90] [--lr 1e-3]

A small network learns the handwritten digits that ship with scikit-learn, then meets noisy ones. Every rank is given
its rows of each batch. On machines with several GPUs the ranks speak NCCL, elsewhere gloo.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import driftproof as dp
from driftproof.models import WideResNet


def digits() -> tuple[Tensor, Tensor]:
    """All digits as 16×16 color images in [0, 1], in a fixed random order, with their labels."""
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    images = F.interpolate(images, size=16, mode="bilinear", align_corners=False).expand(-1, 3, -1, -1)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order].contiguous(), torch.tensor(bunch.target)[order]


def trained(images: Tensor, labels: Tensor, epochs: int = 5) -> nn.Module:
    """A small wide residual network that knows the clean digits."""
    torch.manual_seed(0)
    model = WideResNet(depth=10, width=1, classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for chosen in torch.split(torch.randperm(len(images)), 50):
            optimizer.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model.eval()


def same_everywhere(model: nn.Module) -> nn.Module:
    """Give every rank the weights of the first: adapters that differ refuse to work together."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    return model


def main() -> None:
    """Train, adapt together and alone, print both errors."""
    parser = argparse.ArgumentParser(description="Adapt one network in several processes at once.")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--batch", type=int, default=90)
    parser.add_argument("--lr", type=float, default=1e-3)
    arguments = parser.parse_args()
    if not dist.is_torchelastic_launched():
        parser.error("start it with torchrun: torchrun --nproc-per-node 2 examples/data_parallel.py")
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    images, labels = digits()
    half = len(images) // 2
    model = same_everywhere(trained(images[:half], labels[:half]).to(device))
    together = dp.tent(model, lr=arguments.lr, select=dp.ConfidenceDifference(), process_group="all")
    alone = dp.tent(model, lr=arguments.lr, select=dp.ConfidenceDifference())

    generator = torch.Generator().manual_seed(1)
    wrong = torch.zeros(2, device=device)
    for _ in range(arguments.batches):
        chosen = half + torch.randint(half, (arguments.batch,), generator=generator)
        noisy = (images[chosen] + 0.4 * torch.randn(arguments.batch, 3, 16, 16, generator=generator)).clamp(0, 1)
        batch, truth = noisy.to(device), labels[chosen].to(device)
        rows = slice(rank * arguments.batch // ranks, (rank + 1) * arguments.batch // ranks)
        wrong[0] += (together(batch[rows]).argmax(1) != truth[rows]).sum()
        wrong[1] += (alone(batch)[rows].argmax(1) != truth[rows]).sum()
    dist.all_reduce(wrong)
    if rank == 0:
        apart = max(
            float((one - other).detach().abs().max())
            for one, other in zip(together.moving.values(), alone.moving.values(), strict=True)
        )
        errors = (100 * wrong / (arguments.batches * arguments.batch)).tolist()
        print(f"error of {ranks} ranks {errors[0]:.2f} %, of one process {errors[1]:.2f} %")
        print(f"their parameters differ by at most {apart:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
