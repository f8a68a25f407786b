"""Models divided among ranks: by columns and rows of layers, by stages, and by shards."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

WIDTH, HIDDEN, BATCH, PARTS = 8, 16, 8, 4
PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def network() -> Any:
    """Return the same network on every rank."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, WIDTH)
    )


def batch() -> Any:
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(2))


def gradients(model: Any) -> list[Any]:
    """Return whole gradients, even if they are sharded."""
    found = [parameter.grad for parameter in model.parameters()]
    return [each.full_tensor() if isinstance(each, DTensor) else each for each in found]


def step_alone() -> tuple[float, list[Any]]:
    """Return the loss and gradients of one process."""
    model, inputs = network(), batch()
    loss = (model(inputs) - inputs).square().mean()
    loss.backward()
    return float(loss.detach()), gradients(model)


def step_in_parts(shards: int) -> Any:
    """Do the same with divided layers, sharded over `shards` replicas that see the same data."""
    tensors = dist.get_world_size() // shards
    mesh = init_device_mesh("cpu", (shards, tensors), mesh_dim_names=("data", "tensor"))
    model, inputs = network(), batch()
    parallelize_module(model, mesh["tensor"], PLAN)
    if shards > 1:
        fully_shard(model, mesh=mesh["data"])
    loss = (model(inputs) - inputs).square().mean()
    loss.backward()
    return float(loss.detach()), gradients(model)


@pytest.mark.parametrize(("count", "shards"), [(2, 1), (4, 2)])
def test_divided_layers_have_the_gradients_of_whole_ones(
    ranks: Any, backend: str, count: int, shards: int
) -> None:
    expected_loss, expected = step_alone()
    for loss, found in ranks(step_in_parts, count, backend, shards=shards).results():
        assert loss == pytest.approx(expected_loss, rel=1e-5)
        torch.testing.assert_close(found, expected)


def step_in_stages(schedule: str) -> Any:
    """Return the losses of all parts of a batch, and this stage's gradients."""
    rank, whole, inputs = dist.get_rank(), network(), batch()
    layers = whole[:2] if rank == 0 else whole[2:]
    stage = PipelineStage(layers, rank, 2, torch.device("cpu"))
    kinds = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}

    def loss(found: Any, wanted: Any) -> Any:
        return (found - wanted).square().mean()

    run = kinds[schedule](stage, PARTS, loss_fn=loss)
    losses: list[Any] = []
    if rank == 0:
        run.step(inputs)
    else:
        run.step(target=inputs, losses=losses)
    return [float(each) for each in losses], gradients(layers)


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_a_pipeline_has_the_gradients_of_one_process(
    ranks: Any, backend: str, schedule: str
) -> None:
    expected_loss, expected = step_alone()
    (_, first), (losses, second) = ranks(
        step_in_stages, 2, backend, schedule=schedule
    ).results()
    assert sum(losses) / PARTS == pytest.approx(expected_loss, rel=1e-5)
    torch.testing.assert_close(first + second, expected)
