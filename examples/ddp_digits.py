"""Data-parallel training in PyTorch on handwritten digits; prints accuracy and speed.

    torchrun --nproc-per-node 2 examples/ddp_digits.py --backend ringfold
    torchrun --nproc-per-node 2 examples/ddp_digits.py --backend gloo
    torchrun --nproc-per-node 2 --max-restarts 3 examples/ddp_digits.py --checkpoint /tmp/digits.pt

Every rank processes its part of each global batch, and DistributedDataParallel averages the
gradients over ringfold or gloo. If torch has GPUs, ranks use them in turn, and several ranks may
share one. Otherwise, or with `--device cpu`, ranks use the CPU.
With `--checkpoint`, rank 0 saves weights and optimizer after each epoch, and a run that finds such
a file resumes from it. If a rank dies, the others raise at once, torchrun restarts all ranks, and
at most one epoch is lost.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

TEST_SAMPLES = 360
PIXELS, CLASSES = 64, 10
MOMENTUM = 0.9


def load_samples() -> tuple[Any, Any]:
    """Return the digits, shuffled so that the order does not depend on the writer.

    Pixels range from 0 to 1; labels are integers.
    """
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pixels = torch.tensor(digits.data[order] / 16, dtype=torch.float32)
    return pixels, torch.tensor(digits.target[order])


def device_of_rank(wanted: str) -> torch.device:
    """Return the device of this rank: `wanted` is a device type, or `auto`."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cpu":
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0")) % max(torch.accelerator.device_count(), 1)
    torch.accelerator.set_device_index(index)
    return torch.device(wanted, index)


class Training:
    """A network, its optimizer, and the progress of training."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options = options
        self.device = device
        torch.manual_seed(options.seed)
        hidden = options.hidden
        layers = [
            torch.nn.Linear(PIXELS, hidden),
            torch.nn.ReLU(),
            torch.nn.Linear(hidden, CLASSES),
        ]
        self.network = torch.nn.Sequential(*layers).to(device)
        self.model = DistributedDataParallel(self.network)
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=options.learning_rate, momentum=MOMENTUM
        )
        self.epoch = 0
        self.steps_s: list[float] = []

    def run(self) -> None:
        """Train all epochs, starting at the checkpoint if there is one."""
        samples, labels = load_samples()
        samples, labels = samples[TEST_SAMPLES:], labels[TEST_SAMPLES:]
        self.resume()
        while self.epoch < self.options.epochs:
            # The seed is the same on every rank and after a restart, so all ranks draw the same
            # global batches.
            order = torch.randperm(
                len(samples), generator=torch.Generator().manual_seed(self.epoch)
            )
            for batch in order.split(self.options.batch):
                mine = batch.tensor_split(dist.get_world_size())[dist.get_rank()]
                begin = time.perf_counter()
                inputs, targets = samples[mine].to(self.device), labels[mine].to(self.device)
                self.step(inputs, targets, len(batch))
                self.steps_s.append(time.perf_counter() - begin)
            self.epoch += 1
            self.save()

    def step(self, samples: Any, labels: Any, batch: int) -> None:
        self.optimizer.zero_grad()
        losses = torch.nn.functional.cross_entropy(self.model(samples), labels, reduction="sum")
        # DDP averages over the ranks. With this weight, the result is the batch's average, however
        # the batch was divided.
        (losses * dist.get_world_size() / batch).backward()
        self.optimizer.step()
        if self.device.type != "cpu":
            # Only needed to time a step; training itself needs no such wait.
            torch.accelerator.synchronize()

    def save(self) -> None:
        """Write a checkpoint atomically."""
        if self.options.checkpoint and dist.get_rank() == 0:
            state = {
                "network": self.network.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "epoch": self.epoch,
            }
            written = self.options.checkpoint.with_suffix(".new")
            torch.save(state, written)
            written.replace(self.options.checkpoint)

    def resume(self) -> None:
        """Load rank 0's checkpoint if there is one."""
        found: list[Any] = [None]
        if self.options.checkpoint and dist.get_rank() == 0 and self.options.checkpoint.exists():
            found = [torch.load(self.options.checkpoint, map_location="cpu")]
        # Broadcast from rank 0, because other hosts may not see its files.
        dist.broadcast_object_list(found, 0)
        if found[0] is not None:
            self.network.load_state_dict(found[0]["network"])
            self.optimizer.load_state_dict(found[0]["optimizer"])
            self.epoch = found[0]["epoch"]
            say(f"resumed after epoch {self.epoch}")

    def accuracy(self) -> float:
        """Return the fraction of test samples that are recognised."""
        samples, labels = load_samples()
        with torch.no_grad():
            found = self.network(samples[:TEST_SAMPLES].to(self.device)).cpu().argmax(1)
        return float((found == labels[:TEST_SAMPLES]).float().mean())

    def weights_are_equal(self) -> bool:
        """Return whether all ranks have the same bits."""
        mine = torch.cat([parameter.detach().flatten() for parameter in self.network.parameters()])
        first = mine.clone()
        dist.broadcast(first, 0)
        equal = torch.tensor([int(torch.equal(mine.cpu(), first.cpu()))], device=self.device)
        dist.all_reduce(equal, dist.ReduceOp.MIN)
        return bool(equal.item())


def say(text: str) -> None:
    """Print on rank 0 only."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--backend",
        default="ringfold",
        help="ringfold, gloo or another torch backend (default %(default)s)",
    )
    add("--device", default="auto", help="auto, cpu, cuda or another (default %(default)s)")
    add("--epochs", type=int, default=20, help="(default %(default)s)")
    add("--batch", type=int, default=128, help="samples in a global batch (default %(default)s)")
    add("--hidden", type=int, default=96, help="width of the hidden layer (default %(default)s)")
    add("--learning-rate", type=float, default=0.1, help="(default %(default)s)")
    add("--seed", type=int, default=1, help="seed of the weights (default %(default)s)")
    add(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="file to write after each epoch, and to resume from",
    )
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    # Ranks share the cores; torchrun sets this variable, other launchers do not.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    device = device_of_rank(options.device)
    dist.init_process_group(options.backend)
    training = Training(options, device)
    begin = time.perf_counter()
    training.run()
    total_s = time.perf_counter() - begin
    if not training.weights_are_equal():
        raise SystemExit(f"rank {dist.get_rank()}: the weights of the ranks differ")
    step_ms = 1e3 * float(np.median(training.steps_s)) if training.steps_s else 0.0
    say(
        f"{dist.get_backend()}, {dist.get_world_size()} ranks, {options.epochs} epochs: accuracy "
        f"{training.accuracy():.4f}, "
        f"{step_ms:.3f} ms a step (median of {len(training.steps_s)}), {total_s:.2f} s on "
        f"{device.type}; the same weights on every rank"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
