"""Train with Lightning; prints the loss before and after.

    python examples/clients/lightning_train.py
    python examples/clients/lightning_train.py --backend gloo

Lightning starts the second rank itself. Under torchrun, it uses the ranks that torchrun started.
"""

import argparse
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, INPUTS, BATCH, EPOCHS = 512, 8, 32, 4


class Regression(lightning.LightningModule):
    """A linear model that learns a known map."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(INPUTS, 1)
        self.losses: list[float] = []

    def training_step(self, batch: Any, index: int) -> Any:
        """Return the loss of a batch. Metrics are averaged over the ranks, even integers."""
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("loss", loss, sync_dist=True, on_step=False, on_epoch=True)
        self.log("seen", len(inputs), sync_dist=True, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self) -> None:
        """Keep the epoch's mean loss over all ranks."""
        self.losses.append(float(self.trainer.callback_metrics["loss"]))

    def configure_optimizers(self) -> Any:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="ringfold")
    options = parser.parse_args()

    lightning.seed_everything(0, verbose=False)
    inputs = torch.randn(SAMPLES, INPUTS)
    data = TensorDataset(inputs, inputs @ torch.randn(INPUTS, 1))
    model = Regression()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=options.backend),
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=BATCH))
    if trainer.is_global_zero:
        print(
            f"{dist.get_backend()}, {trainer.world_size} ranks: "
            f"loss {model.losses[0]:.4f} to {model.losses[-1]:.4f}"
        )


if __name__ == "__main__":
    main()
