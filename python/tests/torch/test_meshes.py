"""Code on top of groups: meshes, DTensors, functional collectives, compilation, checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor


def numbers(*shape: int) -> Any:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def use_mesh() -> Any:
    """Return this rank's position in a mesh, and the sums over its rows and columns."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    found = []
    for name in ("row", "column"):
        tensor = torch.tensor([10.0 ** dist.get_rank()])
        dist.all_reduce(tensor, group=mesh[name].get_group())
        found.append(tensor.item())
    return mesh.get_coordinate(), found, dist.get_backend(mesh.get_group("row"))


def test_a_mesh_of_two_dimensions_has_a_group_for_each_row_and_column(
    ranks: Any, backend: str
) -> None:
    # The groups of the first dimension are ranks 0, 2 and ranks 1, 3.
    first, second = [101.0, 11.0], [1010.0, 11.0]
    third, fourth = [101.0, 1100.0], [1010.0, 1100.0]
    expected = [([0, 0], first), ([0, 1], second), ([1, 0], third), ([1, 1], fourth)]
    found = [
        (list(where), sums, name) for where, sums, name in ranks(use_mesh, 4, backend).results()
    ]
    assert found == [(where, sums, backend) for where, sums in expected]


def multiply_shards() -> Any:
    """Multiply sharded matrices, and convert between all placements."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    left, right = numbers(7, 5), numbers(5, 6)
    product = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    ways = {}
    for begin in (Shard(0), Shard(1), Replicate()):
        for end in (Shard(0), Shard(1), Replicate()):
            moved = distribute_tensor(left, mesh, [begin]).redistribute(placements=[end])
            ways[f"{begin} to {end}"] = (moved.placements[0] == end, moved.full_tensor())
    parts = DTensor.from_local(left * (dist.get_rank() + 1), mesh, [Partial()])
    scattered = parts.redistribute(placements=[Shard(0)]).full_tensor()
    return product.full_tensor(), ways, parts.full_tensor(), scattered


@pytest.mark.parametrize("count", [2, 3])
def test_sharded_tensors_compute_what_whole_ones_do(ranks: Any, backend: str, count: int) -> None:
    left, right = numbers(7, 5), numbers(5, 6)
    for product, ways, total, scattered in ranks(multiply_shards, count, backend).results():
        torch.testing.assert_close(product, left @ right)
        for way, (arrived, whole) in ways.items():
            assert arrived and torch.equal(whole, left), way
        factor = sum(range(1, count + 1))
        assert torch.equal(total, left * factor) and torch.equal(scattered, left * factor)


def shard_twice() -> Any:
    mesh = init_device_mesh("cpu", (2, 2))
    whole = numbers(5, 6)
    tensor = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    turned = tensor.redistribute(placements=[Shard(1), Replicate()])
    return tensor.to_local(), turned.to_local(), (tensor + tensor).full_tensor()


def test_a_tensor_is_sharded_over_two_dimensions(ranks: Any, backend: str) -> None:
    whole = numbers(5, 6)
    for rank, (block, columns, double) in enumerate(ranks(shard_twice, 4, backend).results()):
        assert torch.equal(block, whole.chunk(2, 0)[rank // 2].chunk(2, 1)[rank % 2])
        assert torch.equal(columns, whole.chunk(2, 1)[rank // 2])
        assert torch.equal(double, 2 * whole)


def exchange(x: Any) -> Any:
    """Make every functional collective, on a tensor with as many rows as there are ranks."""
    group, count = dist.group.WORLD, dist.get_world_size()
    rows = [1] * count
    several = functional.all_reduce_coalesced([x, x[0]], "sum", group)
    return [
        functional.all_reduce(x, "sum", group),
        functional.all_reduce(x, "max", group),
        functional.all_gather_tensor(x, 0, group),
        functional.reduce_scatter_tensor(x, "sum", 0, group),
        functional.all_to_all_single(x, rows, rows, group),
        functional.broadcast(x, 1, group),
        *several,
        *functional.all_gather_into_tensor_coalesced([x, x[0]], group),
        *functional.reduce_scatter_tensor_coalesced([x, x + 1], "sum", [0, 0], group),
    ]


def exchange_now_and_compiled(compiled: bool) -> Any:
    call = torch.compile(exchange, backend="aot_eager", fullgraph=True) if compiled else exchange
    x = numbers(dist.get_world_size(), 3) + 100 * dist.get_rank()
    return [
        functional.wait_tensor(part) if isinstance(part, torch.Tensor) else part for part in call(x)
    ]


@pytest.mark.parametrize("compiled", [False, True])
def test_functional_collectives_give_what_the_others_do(
    ranks: Any, backend: str, compiled: bool
) -> None:
    count = 3
    xs = [numbers(count, 3) + 100 * rank for rank in range(count)]
    total = torch.stack(xs).sum(0)
    for rank, found in enumerate(
        ranks(exchange_now_and_compiled, count, backend, compiled=compiled).results()
    ):
        expected = [
            total,
            xs[-1],
            torch.cat(xs),
            total[rank : rank + 1],
            torch.stack([x[rank] for x in xs]),
            xs[1],
            total,
            total[0],
            torch.cat(xs),
            torch.cat([x[0] for x in xs]),
            total[rank : rank + 1],
            total[rank : rank + 1] + count,
        ]
        assert len(found) == len(expected)
        for index, (part, reference) in enumerate(zip(found, expected, strict=True)):
            assert torch.equal(part, reference), f"call {index}: {part} instead of {reference}"


def state(filled: bool) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plain, whole = numbers(4, 3), numbers(7, 5) + 0.5
    if not filled:
        plain, whole = torch.zeros_like(plain), torch.zeros_like(whole)
    return {
        "plain": plain,
        "sharded": distribute_tensor(whole, mesh, [Shard(0)]),
        "step": 12 if filled else 0,
    }


def save(folder: str) -> None:
    checkpoint.save(state(filled=True), checkpoint_id=folder)


def load(folder: str) -> Any:
    found = state(filled=False)
    checkpoint.load(found, checkpoint_id=folder)
    return found["plain"], found["sharded"].full_tensor(), found["step"]


def test_a_checkpoint_is_read_by_another_number_of_ranks(
    ranks: Any, backend: str, tmp_path: Path
) -> None:
    ranks(save, 2, backend, folder=str(tmp_path / "checkpoint")).results()
    for plain, whole, step in ranks(
        load, 3, backend, folder=str(tmp_path / "checkpoint")
    ).results():
        assert (
            torch.equal(plain, numbers(4, 3))
            and torch.equal(whole, numbers(7, 5) + 0.5)
            and step == 12
        )
