"""Train with DeepSpeed's ZeRO on CPUs; prints the loss before and after.

    DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 examples/clients/deepspeed_train.py --stage 3
    DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 examples/clients/deepspeed_train.py \
        --backend gloo

torch's own optimizer is used, because DeepSpeed compiles its own when they are first used.
"""

import argparse
import os
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

INPUTS, HIDDEN, BATCH, STEPS = 8, 64, 32, 64


def network() -> Any:
    """Return a network with one hidden layer, the same on every rank."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="ringfold")
    parser.add_argument("--stage", type=int, default=1, help="stage of ZeRO: 0 to 3")
    options = parser.parse_args()

    deepspeed.init_distributed(dist_backend=options.backend, verbose=False)
    model = network()
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "zero_optimization": {"stage": options.stage},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        },
    )
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, INPUTS, generator=generator)
        loss = torch.nn.functional.mse_loss(engine(inputs), inputs.sum(1, keepdim=True))
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(float(mean) / dist.get_world_size())
    if os.environ["RANK"] == "0":
        print(
            f"{dist.get_backend()}, {dist.get_world_size()} ranks, ZeRO-{options.stage}: "
            f"loss {losses[0]:.4f} to {losses[-1]:.4f}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
