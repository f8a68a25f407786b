"""Training whose weights are the same bits on 8, 4, 2 and 1 ranks.

    RINGFOLD_REPRODUCIBLE=1 ringfold run --ranks 4 -- python examples/reproducible_ddp.py

Each step has eight micro-batches, which the ranks share in rank order. A rank combines the
gradients of its own by `ringfold.fold`, and all ranks combine theirs by a reproducible all-reduce:
together the same tree of additions, however many ranks there are. Prints a digest of the weights.
"""

import hashlib
import os

# The bits of a gradient may depend on the number of threads that compute it.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ringfold
import ringfold.torch

MICRO_BATCHES = 8
SAMPLES = 16
STEPS = 20


def micro_batches(step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the step's inputs and targets: the same on every rank, whatever their number."""
    random = torch.Generator().manual_seed(step)
    inputs = torch.randn(MICRO_BATCHES, SAMPLES, 32, generator=random)
    return [(each, each.sum(dim=1, keepdim=True).sin()) for each in inputs]


def main() -> None:
    """Train, and print the digest of the weights on rank 0."""
    dist.init_process_group("ringfold")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if MICRO_BATCHES % ranks:
        raise SystemExit(f"{MICRO_BATCHES} micro-batches cannot be shared by {ranks} ranks")
    each = MICRO_BATCHES // ranks
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        leaves = []
        for inputs, targets in micro_batches(step)[rank * each : (rank + 1) * each]:
            # The gradients are combined below, not by DistributedDataParallel.
            with model.no_sync():
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(inputs), targets).backward()
            leaves.append([parameter.grad for parameter in model.parameters()])
        for parameter, *gradients in zip(model.parameters(), *leaves, strict=True):
            gradient = ringfold.fold(gradients)
            dist.all_reduce(gradient)
            parameter.grad = gradient / MICRO_BATCHES
        optimizer.step()
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    if rank == 0:
        print(hashlib.sha256(weights).hexdigest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
