"""A small model, its training, and the hooks by name, for the tests of communication hooks."""

from typing import Any

import torch
import torch.distributed as dist
from ringfold.torch import hooks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

FEATURES = 12
CLASSES = 4
# Small enough that the network below has several buckets, which change when DDP rebuilds them.
BUCKET_CAP_MB = 0.002


class Crossed(nn.Module):  # type: ignore[misc]
    """Model that uses layers in another order than registered, so DDP's rebuilt buckets differ."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(24, CLASSES)
        self.first = nn.Linear(FEATURES, 32)
        self.scale = nn.Parameter(torch.ones(24))
        self.second = nn.Linear(32, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(x))))
        result: torch.Tensor = self.last(hidden * self.scale)
        return result


def model(**options: Any) -> DistributedDataParallel:
    """Return a model with the same weights on all ranks and in all runs."""
    torch.manual_seed(1)
    return DistributedDataParallel(Crossed(), bucket_cap_mb=BUCKET_CAP_MB, **options)


def batch(step: int, rank: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one rank's samples for a step."""
    generator = torch.Generator().manual_seed(
        1000 * step + (dist.get_rank() if rank is None else rank)
    )
    x = torch.randn(16, FEATURES, generator=generator)
    return x, (x[:, :CLASSES] + x[:, CLASSES : 2 * CLASSES]).argmax(dim=1)


def loss_of(network: nn.Module, step: int, rank: int | None = None) -> torch.Tensor:
    x, labels = batch(step, rank)
    return nn.functional.cross_entropy(network(x), labels)


def flat(tensors: Any) -> torch.Tensor:
    """Return all elements as one 64-bit vector."""
    return torch.cat([tensor.detach().to(torch.float64).reshape(-1) for tensor in tensors])


def weights(network: nn.Module) -> list[float]:
    values: list[float] = flat(network.parameters()).tolist()
    return values


class Watched:
    """Hook that records the parameters in each bucket of each step."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        self.__name__ = self.__qualname__ = "watched"
        self.steps: list[list[tuple[int, ...]]] = []

    def __call__(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self.steps.append([])
        self.steps[-1].append(tuple(id(parameter) for parameter in bucket.parameters()))
        return self.hook(state, bucket)

    def saw_a_rebuild(self) -> bool:
        """Return whether the buckets changed after the first step, and are several.

        Before, DDP has only one bucket.
        """
        first, *others = self.steps
        return len(others[0]) > 1 and all(other == others[0] != first for other in others)


# For each hook: a function that returns the state and hook to register on a model. The learning
# rule of the delayed hook has tests of its own.
HOOKS: dict[str, Any] = {
    "none": lambda ddp: (None, allreduce_hook),
    "fp16": lambda ddp: (None, hooks.fp16_hook),
    "bf16": lambda ddp: (None, hooks.bf16_hook),
    "fp16 of torch's": lambda ddp: (None, hooks.fp16_wrapper(allreduce_hook)),
    "bf16 of top-k": lambda ddp: (
        hooks.TopKState(ddp, density=0.1),
        hooks.bf16_wrapper(hooks.topk_hook),
    ),
    "variance": lambda ddp: (hooks.VarianceState(ddp, alpha=1.0), hooks.variance_hook),
    "variance in powers": lambda ddp: (
        hooks.VarianceState(ddp, alpha=1.0, wire="powers"),
        hooks.variance_hook,
    ),
    "variance over a threshold": lambda ddp: (
        hooks.VarianceState(ddp, alpha=1.0, threshold=0.01),
        hooks.variance_hook,
    ),
    "top-k": lambda ddp: (hooks.TopKState(ddp, density=0.1), hooks.topk_hook),
    "top-k of everything": lambda ddp: (hooks.TopKState(ddp, density=1.0), hooks.topk_hook),
    "delayed": lambda ddp: (hooks.DelayedState(ddp), hooks.delayed_hook),
    "bf16 with a state": lambda ddp: (hooks.CompressState(), hooks.bf16_hook),
    "delayed bf16": lambda ddp: (
        hooks.DelayedState(ddp, hooks.bf16_hook, hooks.CompressState(ddp.process_group)),
        hooks.delayed_hook,
    ),
    "delayed variance": lambda ddp: (
        hooks.DelayedState(ddp, hooks.variance_hook, hooks.VarianceState(ddp, alpha=1.0)),
        hooks.delayed_hook,
    ),
}


def train(hook: str, steps: int, **options: Any) -> Any:
    """Train, and return the weights and the final loss over all ranks' samples."""
    ddp = model(**options)
    state, function = HOOKS[hook](ddp)
    ddp.register_comm_hook(state, function)
    optimizer: Any = torch.optim.SGD(ddp.parameters(), lr=0.2, momentum=0.5)
    if isinstance(state, hooks.DelayedState):
        optimizer = hooks.DelayedOptimizer(optimizer, state)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(ddp, step % 4).backward()
        optimizer.step()
    if isinstance(state, hooks.DelayedState):
        assert optimizer.flush()
    with torch.no_grad():
        losses = [
            float(loss_of(ddp.module, step, rank))
            for step in range(4)
            for rank in range(dist.get_world_size())
        ]
    return weights(ddp), sum(losses) / len(losses)
