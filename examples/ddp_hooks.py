"""DDP on handwritten digits with each of ringfold's communication hooks: accuracy, and data sent.

    torchrun --nproc-per-node 2 examples/ddp_hooks.py --backend gloo
    torchrun --nproc-per-node 2 examples/ddp_hooks.py --backend ringfold --hooks none,variance

Accuracy and loss are on held-out samples, averaged over the seeds. "sent" is the size of a rank's
lists or 16-bit buffers, relative to the gradients' own bytes; "elements" is the fraction of
gradient elements that they contain.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ringfold.torch import hooks

TEST_SAMPLES = 360
# A fifth of DDP's default for the first bucket, so that there are several.
BUCKET_CAP_MB = 0.2


class Choice(NamedTuple):
    """A hook to register, and the bytes it sends per byte of gradient if known beforehand."""

    state: Any
    hook: Any
    sent: float | None = None


CHOICES: dict[str, Callable[[DistributedDataParallel], Choice]] = {
    "none": lambda model: Choice(None, allreduce_hook, 1.0),
    "fp16": lambda model: Choice(None, hooks.fp16_hook, 0.5),
    "bf16": lambda model: Choice(None, hooks.bf16_hook, 0.5),
    "delayed": lambda model: Choice(hooks.DelayedState(model), hooks.delayed_hook, 1.0),
    "variance-1": lambda model: Choice(hooks.VarianceState(model, alpha=1.0), hooks.variance_hook),
    "variance-1.5": lambda model: Choice(
        hooks.VarianceState(model, alpha=1.5), hooks.variance_hook
    ),
    "variance-2": lambda model: Choice(hooks.VarianceState(model, alpha=2.0), hooks.variance_hook),
    "powers-1.5": lambda model: Choice(
        hooks.VarianceState(model, alpha=1.5, wire="powers"), hooks.variance_hook
    ),
    "threshold-1.5": lambda model: Choice(
        hooks.VarianceState(model, alpha=1.5, threshold=0.01), hooks.variance_hook
    ),
    "topk-10%": lambda model: Choice(hooks.TopKState(model, density=0.1), hooks.topk_hook),
    "topk-2%": lambda model: Choice(hooks.TopKState(model, density=0.02), hooks.topk_hook),
}


class Result(NamedTuple):
    """Result of one training."""

    accuracy: float
    loss: float
    sent: float
    elements: float


def train(name: str, epochs: int, batch: int, seed: int) -> Result:
    """Train a network of two hidden layers with a hook; ranks divide each global batch."""
    samples, labels = load_samples()
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    model = DistributedDataParallel(network, bucket_cap_mb=BUCKET_CAP_MB)
    choice = CHOICES[name](model)
    model.register_comm_hook(choice.state, choice.hook)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if isinstance(choice.state, hooks.DelayedState):
        optimizer = hooks.DelayedOptimizer(optimizer, choice.state)
    for _ in range(epochs):
        order = TEST_SAMPLES + torch.randperm(len(samples) - TEST_SAMPLES)
        for start in range(0, len(order) - batch + 1, batch):
            mine = order[start : start + batch].tensor_split(dist.get_world_size())[dist.get_rank()]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(samples[mine]), labels[mine]).backward()
            optimizer.step()
    if isinstance(choice.state, hooks.DelayedState):
        optimizer.flush()
    check_weights_are_equal(network)
    with torch.no_grad():
        scores = network(samples[:TEST_SAMPLES])
        accuracy = float((scores.argmax(dim=1) == labels[:TEST_SAMPLES]).double().mean())
        loss = float(nn.functional.cross_entropy(scores, labels[:TEST_SAMPLES]))
    if choice.sent is not None:
        return Result(accuracy, loss, choice.sent, 1.0)
    traffic = choice.state.traffic
    return Result(accuracy, loss, traffic.bytes_sent / traffic.bytes_dense, traffic.density)


def load_samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the digits, shuffled so that the order does not depend on the writer.

    Pixels range from 0 to 1; labels are integers.
    """
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(digits.data / 16, dtype=torch.float32)[order], torch.tensor(digits.target)[
        order
    ]


def check_weights_are_equal(network: nn.Module) -> None:
    """Exit if a bit of any weight differs between ranks."""
    weights = torch.cat([parameter.detach().view(-1) for parameter in network.parameters()])
    everyone = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, weights)
    if not all(torch.equal(everyone[0], other) for other in everyone):
        raise SystemExit("the ranks' weights differ")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--hooks", default=",".join(CHOICES), help="some of: " + ", ".join(CHOICES))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="samples in a global batch")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    if dist.get_rank() == 0:
        print(
            f"{dist.get_world_size()} ranks, {options.epochs} epochs, {options.seeds} seeds, "
            f"{dist.get_backend()}"
        )
        print(f"{'hook':14} {'accuracy':>9} {'loss':>7} {'sent':>8} {'elements':>9}")
    for name in options.hooks.split(","):
        results = [
            train(name, options.epochs, options.batch, seed) for seed in range(options.seeds)
        ]
        accuracy, loss, sent, elements = (
            sum(values) / options.seeds for values in zip(*results, strict=True)
        )
        if dist.get_rank() == 0:
            print(f"{name:14} {accuracy:9.4f} {loss:7.3f} {sent:8.2%} {elements:9.2%}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
