"""Train a small language model with Hugging Face's Trainer; prints the loss before and after.

    torchrun --nproc-per-node 2 examples/clients/trainer_train.py
    torchrun --nproc-per-node 2 examples/clients/trainer_train.py --backend gloo

The model is built from a configuration, and learns to count upwards from a random number: nothing
is downloaded.
"""

import argparse
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from ringfold.torch import support_accelerate

VOCABULARY, LENGTH, SAMPLES = 32, 16, 256


def sequences() -> list[dict[str, Any]]:
    """Return sequences of consecutive numbers, each from a random start."""
    begins = torch.randint(0, VOCABULARY, (SAMPLES,), generator=torch.Generator().manual_seed(0))
    rows = (begins[:, None] + torch.arange(LENGTH)) % VOCABULARY
    return [{"input_ids": row, "labels": row} for row in rows]


def small_model() -> Any:
    """Return a GPT-2 with one layer."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=LENGTH,
            n_embd=32,
            n_layer=1,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="ringfold")
    options = parser.parse_args()

    support_accelerate()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            ddp_backend=options.backend,
            per_device_train_batch_size=16,
            num_train_epochs=6,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=0,
        )
        trainer = Trainer(model=small_model(), args=arguments, train_dataset=sequences())
        trainer.train()
        losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
        if trainer.is_world_process_zero():
            print(
                f"{dist.get_backend()}, {dist.get_world_size()} ranks: "
                f"loss {float(losses[0]):.4f} to {float(losses[-1]):.4f}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
