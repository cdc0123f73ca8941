"""Adapt one model in several processes, and compare the result with a single process.

    torchrun --nproc-per-node 2 examples/data_parallel.py [--batches 20] [--batch 90] [--lr 1e-3]

A small network is trained on the handwritten digits of scikit-learn and adapted to noisy ones. Every rank gets its rows
of each batch. The backend is NCCL if every rank has a GPU, else gloo.
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


def load_images() -> tuple[Tensor, Tensor]:
    """Return all digits as 16×16 color images in [0, 1] and their labels, in a fixed random order."""
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    images = F.interpolate(images, size=16, mode="bilinear", align_corners=False).expand(-1, 3, -1, -1)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order].contiguous(), torch.tensor(bunch.target)[order]


def train(images: Tensor, labels: Tensor, epochs: int = 5) -> nn.Module:
    """Train a small wide residual network on clean digits."""
    torch.manual_seed(0)
    model = WideResNet(depth=10, width=1, classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for chosen in torch.split(torch.randperm(len(images)), 50):
            optimizer.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model.eval()


def broadcast_weights(model: nn.Module) -> nn.Module:
    """Copy the weights of rank 0 to every rank; adapters require equal source weights."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    return model


def main() -> None:
    """Train, adapt with all ranks and with one process, and print both errors."""
    parser = argparse.ArgumentParser(description="Adapt one model in several processes.")
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
    rank, world_size = dist.get_rank(), dist.get_world_size()

    images, labels = load_images()
    half = len(images) // 2
    model = broadcast_weights(train(images[:half], labels[:half]).to(device))
    distributed = dp.tent(model, lr=arguments.lr, select=dp.ConfidenceDifference(), process_group="all")
    single = dp.tent(model, lr=arguments.lr, select=dp.ConfidenceDifference())

    generator = torch.Generator().manual_seed(1)
    wrong = torch.zeros(2, device=device)
    for _ in range(arguments.batches):
        chosen = half + torch.randint(half, (arguments.batch,), generator=generator)
        noisy = (images[chosen] + 0.4 * torch.randn(arguments.batch, 3, 16, 16, generator=generator)).clamp(0, 1)
        batch, truth = noisy.to(device), labels[chosen].to(device)
        rows = slice(rank * arguments.batch // world_size, (rank + 1) * arguments.batch // world_size)
        wrong[0] += (distributed(batch[rows]).argmax(1) != truth[rows]).sum()
        wrong[1] += (single(batch)[rows].argmax(1) != truth[rows]).sum()
    dist.all_reduce(wrong)
    if rank == 0:
        difference = max(
            float((one - other).detach().abs().max())
            for one, other in zip(distributed.state.trainable, single.state.trainable, strict=True)
        )
        errors = (100 * wrong / (arguments.batches * arguments.batch)).tolist()
        print(f"error with {world_size} ranks: {errors[0]:.2f} %, with one process: {errors[1]:.2f} %")
        print(f"largest difference of parameters: {difference:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
