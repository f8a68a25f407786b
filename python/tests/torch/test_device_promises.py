"""Guarantees of torch's NCCL backend beyond the results of collectives, on the test device.

Sparse tensors, streams, groups and their ends.
"""

import datetime
import time
from typing import Any

import pytest
import softtorch
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from ringfold.errors import AbortedError, ClosedError, InvalidArgumentError

DEVICE = "soft"
COUNT = 300_001
"""Number of elements in several slices."""
LET_GO_S = 0.05
"""Time for which a stream is held if nothing else releases it."""
SLOW_S = 0.3
"""Duration of a callback that others wait for."""

# Names before torch 2.13.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

WAYS = {"lane": {}, "level0": {softtorch.LEVEL_0: "1"}}


@pytest.fixture(params=WAYS)
def way(request: Any, soft: dict[str, str]) -> dict[str, str]:
    """The variables of each way to serve an accelerator."""
    return soft | WAYS[request.param]


def sparse_tensors(device: str) -> dict[str, Any]:
    """Return sparse tensors: ranks have different places, one place twice, or rank 1 has none."""
    rank = dist.get_rank()
    places = torch.tensor([[rank, 3, 3]])
    values = torch.tensor([1.0, 2, 4]) + rank
    rows = torch.arange(6.0).reshape(3, 2) * (rank + 1)
    none = torch.empty(1, 0, dtype=torch.long), torch.empty(0)
    given = {
        "of numbers": (places, values, (5,)),
        "of rows": (places, rows, (5, 2)),
        "nothing on a rank": (*none, (5,)) if rank == 1 else (places, values, (5,)),
        "nothing": (*none, (5,)),
        "of integers": (places, values.long(), (7,)),
    }
    return {
        name: torch.sparse_coo_tensor(where.to(device), what.to(device), shape)
        for name, (where, what, shape) in given.items()
    }


def sums_sparse_tensors() -> Any:
    """Return the device's sums paired with the host's, by name; and a sum joined elsewhere."""
    found = {}
    here, there = sparse_tensors("cpu"), sparse_tensors(DEVICE)
    for number, name in enumerate(here):
        dist.all_reduce(here[name])
        work = dist.all_reduce(there[name], async_op=number % 2 == 1)
        if work is not None:
            work.wait()
        assert there[name].is_coalesced()
        found[name] = [
            (one.cpu(), other)
            for one, other in zip(
                (there[name].indices(), there[name].values()),
                (here[name].indices(), here[name].values()),
                strict=True,
            )
        ]
    for refused in (dist.ReduceOp.MAX, dist.ReduceOp.AVG):
        with pytest.raises(InvalidArgumentError, match="only sum"):
            dist.all_reduce(there["of rows"], refused)
    # Made in one stream, and joined by another stream and by a future's callback.
    side, other = torch.Stream(DEVICE), torch.Stream(DEVICE)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        tensor = sparse_tensors(DEVICE)["of numbers"]
        work = dist.all_reduce(tensor, async_op=True)
    with other:
        work.wait()
        joined = [(tensor.values() * 1).cpu()]
        copied = work.get_future().then(lambda done: done.value()[0].values() * 1)
        joined.append(copied.wait().cpu())
    assert work.is_completed() and work.result()[0] is tensor
    return found, joined, here["of numbers"].values()


def test_sparse_tensors_are_summed(ranks: Any, way: Any) -> None:
    """Device and host have the same places and bits. Other operations are refused."""
    job = ranks(sums_sparse_tensors, 2, "ringfold", variables=way)
    for found, joined, expected in job.results():
        for name, pairs in found.items():
            assert all(torch.equal(*pair) for pair in pairs), name
        assert all(torch.equal(each, expected) for each in joined)


def filled(value: float, count: int = COUNT) -> Any:
    return torch.full((count,), value, device=DEVICE, dtype=torch.float32)


def uses_side_streams() -> Any:
    main = torch.accelerator.current_stream()
    sides = [torch.Stream(DEVICE) for _ in range(2)]
    value = dist.get_rank() + 1.0
    found: dict[str, Any] = {}
    # Async calls, from two streams in turn, each joined by the other stream.
    given = []
    for number in range(4):
        with sides[number % 2]:
            tensor = filled(value * 10**number)
            given.append((tensor, dist.all_reduce(tensor, async_op=True)))
    for number, (tensor, work) in enumerate(given):
        with sides[1 - number % 2]:
            work.wait()
            found[f"call {number}"] = (tensor * 2).cpu(), 6 * 10**number
    # A sync call waits only for its own stream.
    with sides[0]:
        waited = filled(value)
        dist.all_reduce(waited)
        doubled = waited * 2
    main.wait_stream(sides[0])
    found["waited"] = doubled.cpu(), 6
    # A callback makes a call on the first call's result.
    def again(done: Any) -> Any:
        (tensor,) = done.value()
        dist.all_reduce(tensor)
        return tensor * 2

    with sides[1]:
        twice = dist.all_reduce(filled(value), async_op=True).get_future().then(again)
    found["a call in a callback"] = twice.wait().cpu(), 12
    return found


def test_calls_are_made_in_any_stream(ranks: Any, way: Any) -> None:
    """Calls read what their own stream wrote, and each stream that waits sees the result."""
    for found in ranks(uses_side_streams, 2, "ringfold", variables=way).results():
        for name, (tensor, value) in found.items():
            assert (tensor == value).all(), name


def frees_what_another_stream_uses() -> Any:
    main, side = torch.accelerator.current_stream(), torch.Stream(DEVICE)
    count = dist.get_world_size()
    dist.all_reduce(filled(1))
    output = torch.zeros(count * COUNT, device=DEVICE)
    given = filled(dist.get_rank() + 1.0)
    side.wait_stream(main)
    main.synchronize()
    with softtorch.held(side):
        with side:
            work = all_gather_single(output, given, async_op=True)
        del given
        # These would reuse the memory if it were free, and write to it at once.
        taken = [filled(7) for _ in range(4)]
        main.synchronize()
    work.wait()
    del taken
    return output.cpu().view(count, COUNT)


def test_tensors_of_one_stream_are_freed_while_another_sends_them(ranks: Any, soft: Any) -> None:
    """Memory is not reused before the device has read it, and its own stream continues."""
    job = ranks(frees_what_another_stream_uses, 2, "ringfold", variables=soft)
    for output in job.results():
        assert (output[0] == 1).all() and (output[1] == 2).all()


def makes_calls_of_all_kinds() -> Any:
    """Return pairs of tensors that must be equal, by name."""
    rank, group = dist.get_rank(), dist.group.WORLD
    device = torch.device(DEVICE, 0)
    own, both = filled(rank + 1.0, 10), torch.tensor([1.0, 2.0])
    found: dict[str, Any] = {}
    part, summed = filled(-1, 5), own.clone()
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        reduce_scatter_single(part, own)
    manager.wait()
    found["coalesced"] = part.cpu(), torch.full((5,), 3.0)
    received = [filled(-1, 10) for _ in range(2)]
    messages = [dist.P2POp(dist.isend, own * (tag + 1), 1 - rank, tag=tag) for tag in range(2)]
    messages += [
        dist.P2POp(dist.irecv, each, 1 - rank, tag=tag) for tag, each in enumerate(received)
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    found["messages"] = torch.cat(received).cpu(), both[1 - rank] * both.repeat_interleave(10)
    objects: list[Any] = [{"weight": torch.ones(10)}] if rank == 0 else [None]
    dist.broadcast_object_list(objects, 0, device=device)
    found["an object"] = objects[0]["weight"], torch.ones(10)
    gathered: Any = [None, None] if rank == 1 else None
    dist.gather_object(rank + 1.0, gathered, 1)
    found["objects at a root"] = torch.tensor(gathered or [1.0, 2.0]), both
    scattered: list[Any] = [None]
    dist.scatter_object_list(scattered, [1.0, 2.0] if rank == 0 else None, 0)
    found["objects from a root"] = torch.tensor(scattered), both[rank : rank + 1]
    not_joined = dist.all_reduce(summed, async_op=True)
    dist.barrier(device_ids=[0])
    # The barrier waited for the stream, but not for the call, which nothing has joined yet.
    dist.barrier(async_op=True).wait()
    group.monitored_barrier(datetime.timedelta(seconds=20))
    # Synchronizing would not suffice: the test device waits for torch's streams, not for the
    # lane's.
    not_joined.wait()
    found["before barriers"] = summed.cpu(), torch.full((10,), 3.0)
    compiled = torch.compile(functional_sum, backend="eager", fullgraph=True)
    found["compiled"] = compiled(own).cpu(), torch.full((5,), 15.0)
    return found


def functional_sum(own: Any) -> Any:
    """Return 15 in each element if the ranks pass 1 and 2."""
    group = dist.group.WORLD
    total = functional.all_reduce(own, "sum", group) * 2 + 1
    parts = functional.reduce_scatter_tensor(total, "sum", 0, group) + 1
    return functional.all_gather_tensor(parts, 0, group)[:5]


def test_calls_of_all_kinds_are_made_on_a_device(ranks: Any, way: Any) -> None:
    """Coalesced calls, batches of messages, objects, barriers, and compiled programs all work."""
    for found in ranks(makes_calls_of_all_kinds, 2, "ringfold", variables=way).results():
        for name, (one, other) in found.items():
            assert torch.equal(one, other), name


def makes_groups() -> Any:
    rank = dist.get_rank()
    world: Any = dist.distributed_c10d._get_default_group()
    found: dict[str, Any] = {}

    def total(group: Any) -> Any:
        tensor = filled(10.0**rank, 100)
        dist.all_reduce(tensor, group=group)
        return tensor.cpu().unique().tolist()

    found["world"] = total(None)
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("row", "column"))
    found["row"] = total(mesh["row"].get_group())
    found["column"] = total(mesh["column"].get_group())
    pairs = [dist.new_group([first, first + 1]) for first in (0, 2)]
    found["pair"] = total(pairs[rank // 2])
    part = world.split_group([3, 0], datetime.timedelta(seconds=20), None, "ends", "two of four")
    assert (part is None) == (rank in (1, 2))
    if part is not None:
        tensor = filled(10.0**rank, 100)
        part.allreduce([tensor]).wait()
        found["split"] = part.rank(), tensor.cpu().unique().tolist()
    whole = torch.arange(35.0).reshape(7, 5)
    tensors = []
    for begin in ([Shard(0), Replicate()], [Shard(1), Shard(0)], [Replicate(), Shard(1)]):
        for end in ([Replicate(), Shard(0)], [Shard(0), Shard(1)]):
            there = distribute_tensor(whole.to(DEVICE), mesh, begin)
            tensors.append(there.redistribute(placements=end).full_tensor().cpu())
    local = DTensor.from_local(whole.to(DEVICE), mesh, [Partial(), Replicate()])
    scattered = local.redistribute(placements=[Shard(0), Replicate()]).full_tensor().cpu() / 2
    found["sharded"] = all(torch.equal(each, whole) for each in [*tensors, scattered])
    return found


def test_groups_and_meshes_of_a_device(ranks: Any, way: Any) -> None:
    """Each group has its own ranks; tensors are sharded over two dimensions, and resharded."""
    results = ranks(makes_groups, 4, "ringfold", variables=way).results()
    for rank, found in enumerate(results):
        assert found["world"] == [1111]
        assert found["row"] == [101 * 10 ** (rank % 2)]
        assert found["column"] == [11 * 10 ** (rank // 2 * 2)]
        assert found["pair"] == [11 * 10 ** (rank // 2 * 2)]
        assert found["sharded"]
    assert [found.get("split") for found in results] == [(1, [1001]), None, None, (0, [1001])]


def ends_groups() -> Any:
    """End groups while calls are in progress."""
    main = torch.accelerator.current_stream()
    rank = dist.get_rank()
    found: dict[str, Any] = {}
    # Calls that are enqueued when a group is destroyed still complete.
    group = dist.new_group()
    dist.all_reduce(filled(1), group=group)
    left = [filled(rank + 1.0) for _ in range(3)]
    if rank == 1:
        dist.barrier()
    with softtorch.held(main, LET_GO_S):
        for each in left:
            each.mul_(2)
        works = [dist.all_reduce(each, group=group, async_op=True) for each in left]
        if rank == 0:
            # No call is complete yet, and the first call's callback delays those of the others.
            works[0].get_future().then(lambda _: time.sleep(SLOW_S))
            dist.barrier()
        dist.destroy_process_group(group)
    torch.accelerator.synchronize()
    found["destroyed"] = torch.cat(left).cpu()
    for work in works:
        work.wait()
    # A group that is shut down refuses calls.
    group = dist.new_group()
    shut: Any = group
    dist.all_reduce(filled(1), group=group)
    dist.barrier(group=group)
    shut.shutdown()
    shut.shutdown()
    with pytest.raises(ClosedError):
        dist.all_reduce(filled(1), group=group)
    # One rank aborts a group: calls in progress end, streams continue, and all other calls are
    # refused.
    group = dist.new_group()
    dist.all_reduce(filled(1), group=group)
    dist.barrier(group=group)
    ended: Any = group
    tensor = filled(1)
    with pytest.raises(AbortedError):
        if rank == 1:
            work = dist.all_reduce(tensor, group=group, async_op=True)
            ended.abort()
            work.wait()
        while True:
            dist.all_reduce(tensor, group=group)
            tensor.cpu()
    torch.accelerator.synchronize()
    # Other groups are not affected.
    last = filled(rank + 1.0)
    dist.all_reduce(last)
    found["last"] = last.cpu()
    return found


def test_groups_end_while_calls_are_under_way(ranks: Any, way: Any) -> None:
    """No stream and no rank waits forever for a group that is destroyed, shut down or aborted."""
    for found in ranks(ends_groups, 2, "ringfold", variables=way).results():
        assert (found["destroyed"] == 6).all()
        assert (found["last"] == 3).all()
