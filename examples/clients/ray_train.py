"""Train with Ray Train; prints the loss before and after.

    python examples/clients/ray_train.py
    python examples/clients/ray_train.py --backend gloo

Ray starts the ranks; the package ringfold must be installed on their hosts.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, INPUTS, BATCH, EPOCHS = 512, 8, 32, 4


def train(options: dict[str, Any]) -> None:
    """Train a linear model on every rank; it learns a known map."""
    torch.manual_seed(0)
    inputs = torch.randn(SAMPLES, INPUTS)
    data = TensorDataset(inputs, inputs @ torch.randn(INPUTS, 1))
    loader = ray.train.torch.prepare_data_loader(DataLoader(data, batch_size=BATCH))
    model = ray.train.torch.prepare_model(torch.nn.Linear(INPUTS, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(options["epochs"]):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            losses.append(float(mean) / dist.get_world_size())
    summary = f"{dist.get_backend()}, {dist.get_world_size()} ranks"
    if dist.get_rank() == 0:
        # Ray only keeps the metrics of reports with a checkpoint.
        Path(options["summary"]).write_text(
            f"{summary}: loss {losses[0]:.4f} to {losses[-1]:.4f}"
        )
    ray.train.report({"loss": losses[-1]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="ringfold")
    options = parser.parse_args()

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            train,
            train_loop_config={"epochs": EPOCHS, "summary": f"{folder}/summary"},
            torch_config=TorchConfig(backend=options.backend),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=folder),
        )
        trainer.fit()
        print(Path(folder, "summary").read_text())
    ray.shutdown()


if __name__ == "__main__":
    main()
