"""Train with Hugging Face Accelerate; prints the loss before and after.

    torchrun --nproc-per-node 2 examples/clients/accelerate_train.py
    torchrun --nproc-per-node 2 examples/clients/accelerate_train.py --backend gloo

A linear model learns a known map from generated data.
"""

import argparse
from datetime import timedelta

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch.utils.data import DataLoader, TensorDataset

from ringfold.torch import support_accelerate

SAMPLES, INPUTS, BATCH, EPOCHS = 512, 8, 32, 4


def samples() -> TensorDataset:
    """Return the same data on every rank; Accelerate distributes them."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, INPUTS, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(INPUTS, 1, generator=generator))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="ringfold")
    options = parser.parse_args()

    support_accelerate()
    group = InitProcessGroupKwargs(backend=options.backend, timeout=timedelta(seconds=60))
    accelerator = Accelerator(cpu=True, kwargs_handlers=[group])
    torch.manual_seed(0)
    model = torch.nn.Linear(INPUTS, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(samples(), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    losses = []
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
    accelerator.print(
        f"{dist.get_backend()}, {accelerator.num_processes} ranks: "
        f"loss {losses[0]:.4f} to {losses[-1]:.4f}"
    )
    accelerator.end_training()


if __name__ == "__main__":
    main()
