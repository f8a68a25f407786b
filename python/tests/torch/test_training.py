"""Data-parallel training takes the same steps as one process, and as over gloo."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

# Divisible by 1, 2, 3 and 4 ranks, so that the mean of the ranks' means is the batch's.
BATCH = 24
STEPS = 4
WARM_UP = 2
LEARNING_RATE = 0.05


def network(device: str = "cpu") -> Any:
    """Return the same network on every rank; no number of ranks divides its layers."""
    torch.manual_seed(7)
    layers = [
        torch.nn.Linear(9, 33),
        torch.nn.ReLU(),
        torch.nn.Linear(33, 17),
        torch.nn.Tanh(),
        torch.nn.Linear(17, 5),
    ]
    return torch.nn.Sequential(*layers).to(device)


def batch(step: int) -> Any:
    """Return this rank's part of a global batch: inputs and labels."""
    generator = torch.Generator().manual_seed(step)
    inputs, labels = (
        torch.randn(BATCH, 9, generator=generator),
        torch.randint(5, (BATCH,), generator=generator),
    )
    return inputs.chunk(dist.get_world_size())[dist.get_rank()], labels.chunk(
        dist.get_world_size()
    )[dist.get_rank()]


def add_gradients(model: Any, step: int) -> None:
    device = next(model.parameters()).device
    inputs, labels = (each.to(device) for each in batch(step))
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()


def take_steps(model: Any, optimizer: Any, steps: int = STEPS) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        add_gradients(model, step)
        optimizer.step()


def weights(model: Any) -> Any:
    """Return all parameters in one vector on the host."""
    whole = (
        each.full_tensor() if isinstance(each, DTensor) else each for each in model.parameters()
    )
    return torch.cat([each.detach().flatten().cpu() for each in whole])


def momentum(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=0.9)


def train_alone() -> Any:
    model = network()
    take_steps(model, momentum(model))
    return weights(model)


def train(ways: list[str]) -> Any:
    """Return the trained weights of each way."""
    trained = {}
    for way in ways:
        model = DistributedDataParallel(network(), **WAYS[way])
        take_steps(model, momentum(model))
        trained[way] = weights(model)
    return trained


def check(together: list[Any], references: list[Any]) -> None:
    """Check that all ranks have the same bits, equal to the references except for rounding."""
    for found in together:
        assert torch.equal(found, together[0])
    for reference in references:
        torch.testing.assert_close(together[0], reference, rtol=1e-4, atol=1e-6)


WAYS: dict[str, dict[str, Any]] = {
    "one bucket": {},
    # In megabytes: every bucket has one or two parameters.
    "many buckets": {"bucket_cap_mb": 0.0005},
    "views": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
}


@pytest.mark.parametrize("count", [2, 3])
def test_ddp_takes_the_steps_of_one_process(ranks: Any, backend: str, count: int) -> None:
    alone = ranks(train_alone, 1, "gloo").results()
    by_gloo = ranks(train, count, "gloo", ways=list(WAYS)).results()[:1]
    together = ranks(train, count, backend, ways=list(WAYS)).results()
    for way in WAYS:
        print(way)
        check([found[way] for found in together], alone + [found[way] for found in by_gloo])


def train_without_synchronising() -> Any:
    """Accumulate gradients over two batches, and communicate only in the second."""
    model = DistributedDataParallel(network())
    optimizer = momentum(model)
    for step in range(0, STEPS, 2):
        optimizer.zero_grad()
        with model.no_sync():
            add_gradients(model, step)
        add_gradients(model, step + 1)
        optimizer.step()
    return weights(model)


def test_gradients_are_accumulated_without_communication(ranks: Any, backend: str) -> None:
    references = ranks(train_without_synchronising, 1, "gloo").results()
    check(ranks(train_without_synchronising, 2, backend).results(), references)


def train_compiled() -> Any:
    model = torch.compile(DistributedDataParallel(network()), backend="aot_eager")
    take_steps(model, momentum(model))
    return weights(model)


def test_a_compiled_ddp_model_takes_the_same_steps(ranks: Any, backend: str) -> None:
    check(ranks(train_compiled, 2, backend).results(), ranks(train_alone, 1, "gloo").results())


def train_sharded(half: bool) -> Any:
    model = network()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    types = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if half else {}
    policy = MixedPrecisionPolicy(**types)
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    take_steps(model, momentum(model))
    return weights(model)


@pytest.mark.parametrize("count", [2, 3])
def test_fsdp_takes_the_steps_of_one_process(ranks: Any, backend: str, count: int) -> None:
    references = ranks(train_alone, 1, "gloo").results()
    check(ranks(train_sharded, count, backend, half=False).results(), references)


def test_fsdp_in_half_precision_is_that_of_gloo(ranks: Any, backend: str) -> None:
    together = ranks(train_sharded, 2, backend, half=True).results()
    check(together, ranks(train_sharded, 2, "gloo", half=True).results()[:1])
    torch.testing.assert_close(
        together[0], ranks(train_alone, 1, "gloo").result(0), rtol=0.1, atol=0.02
    )


def train_with_adam() -> Any:
    model = network()
    take_steps(model, torch.optim.Adam(model.parameters(), LEARNING_RATE))
    return weights(model)


def train_with_sharded_adam(overlapping: bool) -> Any:
    model = DistributedDataParallel(network(), gradient_as_bucket_view=overlapping)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(),
        optimizer_class=torch.optim.Adam,
        lr=LEARNING_RATE,
        parameters_as_bucket_view=overlapping,
    )
    take_steps(model, optimizer)
    optimizer.consolidate_state_dict(to=0)
    states = len(optimizer.state_dict()["state"]) if dist.get_rank() == 0 else None
    return weights(model), states


@pytest.mark.parametrize("overlapping", [False, True])
def test_zero_takes_the_steps_of_one_process(ranks: Any, backend: str, overlapping: bool) -> None:
    together = ranks(train_with_sharded_adam, 3, backend, overlapping=overlapping).results()
    check([found for found, _ in together], ranks(train_with_adam, 1, "gloo").results())
    # Each of the six parameters has a state, gathered from the rank that keeps it.
    assert [states for _, states in together] == [6, None, None]


def train_with_steps_during_backward() -> Any:
    """Train with ZeroRedundancyOptimizer in the hook, which torch refuses for gloo."""
    model = DistributedDataParallel(network(), bucket_cap_mb=0.0005)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=LEARNING_RATE, momentum=0.9
    )
    model.register_comm_hook(None, hook_with_zero_step(allreduce_hook, model, optimizer))
    # The hook takes no step before the buckets are final.
    for _ in range(WARM_UP):
        optimizer.zero_grad()
        add_gradients(model, 0)
        optimizer.step()
    take_steps(model, optimizer)
    return weights(model)


def test_steps_during_backward_are_those_of_one_process(ranks: Any) -> None:
    together = ranks(train_with_steps_during_backward, 3, "ringfold").results()
    check(together, ranks(train_alone, 1, "gloo").results())


def train_unevenly() -> Any:
    """Train with fewer batches on rank 0 than on any other rank."""
    model = DistributedDataParallel(network())
    optimizer = momentum(model)
    steps = 0
    with model.join():
        for step in range(2 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            add_gradients(model, step)
            optimizer.step()
            steps += 1
    return weights(model), steps


def test_ranks_may_have_batches_unevenly(ranks: Any, backend: str) -> None:
    together = ranks(train_unevenly, 3, backend).results()
    assert [steps for _, steps in together] == [2, 4, 6]
    found = [found for found, _ in together]
    # Only the last rank took every step itself; in the end all have its weights.
    check(found, [ranks(train_unevenly, 3, "gloo").result(2)[0]])


def differentiate() -> Any:
    """Return the result and gradient of each differentiable collective, for a weighted sum."""
    rank, count = dist.get_rank(), dist.get_world_size()
    calls: dict[str, Callable[[Any], Any]] = {
        "all_reduce": lambda x: differentiable.all_reduce(x),
        "all_gather": lambda x: torch.cat(differentiable.all_gather(x)),
        "broadcast": lambda x: differentiable.broadcast(x, 0),
        "reduce_scatter": lambda x: differentiable.reduce_scatter(
            torch.empty(2), list(x.chunk(count))
        ),
        "all_to_all": lambda x: torch.cat(
            differentiable.all_to_all(list(torch.empty(count, 2)), list(x.chunk(count)))
        ),
        "all_to_all_single": lambda x: differentiable.all_to_all_single(torch.empty(2 * count), x),
    }
    found = {}
    for name, call in calls.items():
        x = torch.arange(2.0 * count, requires_grad=True)
        result = call(x * (rank + 1))
        # Weighted by the rank, so that a gradient identifies its rank.
        (result * (rank + 1)).sum().backward()
        found[name] = (result.detach().tolist(), x.grad.tolist())
    return found


def test_collectives_are_differentiated(ranks: Any, backend: str) -> None:
    first, second = ranks(differentiate, 2, backend).results()
    # x is 0 1 2 3 on rank 0, and 0 2 4 6 after its factor on rank 1; weights are 1 and 2.
    assert first["all_reduce"] == ([0, 3, 6, 9], [3] * 4) and second["all_reduce"] == (
        [0, 3, 6, 9],
        [6] * 4,
    )
    assert (
        first["all_gather"] == ([0, 1, 2, 3, 0, 2, 4, 6], [3] * 4)
        and second["all_gather"][1] == [6] * 4
    )
    assert first["broadcast"] == ([0, 1, 2, 3], [3] * 4) and second["broadcast"] == (
        [0, 1, 2, 3],
        [0] * 4,
    )
    assert first["reduce_scatter"] == ([0, 3], [1, 1, 2, 2]) and second["reduce_scatter"] == (
        [6, 9],
        [2, 2, 4, 4],
    )
    for name in ("all_to_all", "all_to_all_single"):
        assert first[name] == ([0, 1, 0, 2], [1, 1, 2, 2]) and second[name] == (
            [2, 3, 4, 6],
            [2, 2, 4, 4],
        )
