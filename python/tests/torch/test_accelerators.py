"""Tensors of an accelerator (the test device): results as in host memory, torch's stream order."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import softtorch
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from test_training import STEPS, add_gradients, momentum, network, take_steps, weights
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from ringfold.torch import level0

LARGE = (1 << 19) + 3
"""Number of elements that are sent in several pieces."""
LET_GO_S = 0.05
"""Time for which a stream is held if nothing else releases it."""

WAYS = {"lane": {}, "level0": {softtorch.LEVEL_0: "1"}}


@pytest.fixture(params=WAYS)
def way(request: Any, soft: dict[str, str]) -> dict[str, str]:
    """The variables of each way to serve an accelerator."""
    return soft | WAYS[request.param]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    """Return numbers that differ between ranks."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    return torch.randint(-50, 50, shape, generator=generator).to(dtype)


Place = Callable[[Any], Any]
"""Function that copies a tensor to the tested device."""


def reductions(place: Place) -> Any:
    """Return tensors after calls that reduce, by name."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sums = {}
    for count in (0, 1, LARGE):
        sums[f"sum of {count}"] = tensor = place(numbers(count))
        dist.all_reduce(tensor)
    sums["strided"] = strided = place(numbers(8, 6)).t()
    dist.all_reduce(strided, dist.ReduceOp.MAX)
    sums["large and strided"] = place(numbers(2, LARGE)).t()
    dist.all_reduce(sums["large and strided"])
    sums["truncated"] = place(numbers(99, dtype=torch.int64))
    dist.all_reduce(sums["truncated"], dist.ReduceOp.AVG)
    sums["half"] = place(numbers(99, dtype=torch.bfloat16))
    dist.all_reduce(sums["half"], dist.ReduceOp.AVG)
    sums["complex"] = place(torch.complex(numbers(9), numbers(9)))
    dist.all_reduce(sums["complex"])
    sums["of the root"] = place(numbers(77))
    dist.reduce(sums["of the root"], 1)
    sums["scattered"] = place(torch.zeros(5))
    dist.reduce_scatter_tensor(sums["scattered"], place(numbers(5 * size)))
    parts = list(place(numbers(size * (size + 1) // 2)).split(list(range(1, size + 1))))
    sums["scattered unevenly"] = place(torch.zeros(rank + 1))
    dist.reduce_scatter(sums["scattered unevenly"], parts)
    return sums


def moves(place: Place) -> Any:
    """Return tensors after calls that move data, by name."""
    rank, size = dist.get_rank(), dist.get_world_size()
    moved: dict[str, Any] = {}
    moved["broadcast"] = place(numbers(LARGE))
    dist.broadcast(moved["broadcast"], 1)
    moved["gathered"] = place(torch.zeros(size * 6))
    dist.all_gather_into_tensor(moved["gathered"], place(numbers(6)))
    several = [place(torch.zeros(3, 2)) for _ in range(size)]
    dist.all_gather(several, place(numbers(2, 3)).t())
    moved["gathered in a list"] = torch.cat(several)
    at_root = [place(torch.zeros(4)) for _ in range(size)] if rank == 0 else None
    dist.gather(place(numbers(4)), at_root, 0)
    moved["gathered at the root"] = torch.cat(at_root) if at_root else place(torch.zeros(0))
    given = [place(numbers(4) + index) for index in range(size)] if rank == 0 else None
    moved["scattered"] = place(torch.zeros(4))
    dist.scatter(moved["scattered"], given, 0)
    moved["exchanged"] = place(torch.zeros(2 * size))
    dist.all_to_all_single(moved["exchanged"], place(numbers(2 * size)))
    received = [place(torch.zeros(3)) for _ in range(size)]
    dist.all_to_all(received, [place(numbers(3) * index) for index in range(size)])
    moved["exchanged in lists"] = torch.cat(received)
    moved["message"] = place(torch.zeros(5))
    works = [
        dist.isend(place(numbers(5)), (rank + 1) % size),
        dist.irecv(moved["message"], (rank - 1) % size),
    ]
    for work in works:
        work.wait()
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    moved["objects"] = torch.tensor([each["rank"] for each in objects])
    return moved


def compares(function: str) -> Any:
    """Return the results on the device that differ from the host's, and the number of results."""
    calls = {"reductions": reductions, "moves": moves}[function]
    there = calls(lambda tensor: tensor.to("soft"))
    here = calls(lambda tensor: tensor.clone())
    return [name for name in here if not torch.equal(there[name].cpu(), here[name])], len(here)


@pytest.mark.parametrize("function", ["reductions", "moves"])
@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.deep)])
def test_calls_give_what_those_of_host_memory_do(
    ranks: Any, way: Any, function: str, count: int
) -> None:
    """Same bits for all collectives, messages, lists, strides, types, uneven and empty sizes."""
    outcome = ranks(compares, count, "ringfold", variables=way, function=function)
    for wrong, number in outcome.results():
        assert wrong == [] and number > 8


def results_stream() -> Any:
    """Return the stream that stores results."""
    side: Any = dist.distributed_c10d._get_default_group()._side
    if side.lane is None:
        return level0.sides(torch.device("soft", 0)).up
    return side.results([])


def orders() -> Any:
    main, side = torch.accelerator.current_stream(), torch.Stream("soft")
    found = {}
    # The input is late: only its stream orders the call after it.
    late = torch.zeros(LARGE, device="soft")
    with softtorch.held(main, LET_GO_S):
        late.add_(1)
        work = dist.all_reduce(late, async_op=True)
    work.wait()
    found["a late input"] = late.cpu()
    # The result is late: exactly the streams that wait come after it.
    tensor = torch.ones(LARGE, device="soft")
    side.wait_stream(main)
    with softtorch.held(results_stream()):
        work = dist.all_reduce(tensor, async_op=True)
        other = torch.Stream("soft")
        other.wait_stream(main)
        with other:
            found["no join"] = tensor.cpu()
        work.wait()
        with side:
            work.wait()
            beside = tensor * 3
        doubled = tensor * 2
        found["done"] = (main.query(), side.query(), work.is_completed())
    found["a late result"] = doubled.cpu()
    main.wait_stream(side)
    found["a result beside"] = beside.cpu()
    found["done later"] = work.is_completed()
    return found


def test_streams_order_what_calls_read_and_write(ranks: Any, way: Any) -> None:
    """Inputs and results may be late: streams that wait see results, other streams the old data."""
    for found in ranks(orders, 2, "ringfold", variables=way).results():
        assert (found["a late input"] == 2).all()
        assert found["done"] == (False, False, False)
        assert (found["no join"] == 1).all(), "the missing join"
        assert (found["a late result"] == 4).all()
        assert (found["a result beside"] == 6).all()
        assert found["done later"]


def promises() -> Any:
    tensor = torch.ones(LARGE, device="soft")
    future = dist.all_reduce(tensor, async_op=True).get_future()
    half = future.then(lambda done: done.value()[0] / 2)
    found = half.wait().cpu()
    # The result arrives without a wait.
    left = torch.ones(LARGE, device="soft")
    torch.accelerator.synchronize()
    arrived = threading.Event()
    dist.all_reduce(left, async_op=True).get_future().then(lambda _: arrived.set())
    assert arrived.wait(60)
    torch.accelerator.synchronize()
    return found, left.cpu()


def test_futures_are_of_the_result(ranks: Any, way: Any) -> None:
    """Callbacks run after the result is available."""
    for halves, left in ranks(promises, 2, "ringfold", variables=way).results():
        assert (halves == 1).all() and (left == 2).all()


def replicated(device: str, hook: Any = None, state: Any = None, **options: Any) -> Any:
    model = DistributedDataParallel(network(device), **options)
    if hook is not None:
        model.register_comm_hook(state() if state else None, hook)
    take_steps(model, momentum(model))
    return weights(model)


def accumulated(device: str) -> Any:
    model = DistributedDataParallel(network(device))
    optimizer = momentum(model)
    for step in range(0, STEPS, 2):
        optimizer.zero_grad()
        with model.no_sync():
            add_gradients(model, step)
        add_gradients(model, step + 1)
        optimizer.step()
    return weights(model)


def uneven(device: str) -> Any:
    """Train with fewer batches on rank 0 than on any other rank."""
    model = DistributedDataParallel(network(device))
    with model.join():
        take_steps(model, momentum(model), 2 + dist.get_rank())
    return weights(model)


def sharded(device: str, is_accumulated: bool = False, **options: Any) -> Any:
    model = network(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    whole = fully_shard(model, mesh=mesh, **options)
    optimizer = momentum(model)
    for step in range(STEPS):
        is_last = not is_accumulated or step % 2 == 1
        whole.set_requires_gradient_sync(is_last)
        add_gradients(model, step)
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


def low_rank() -> Any:
    return powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2, min_compression_rate=0.5)


HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
MANY = 0.0005
"""Bucket size in megabytes; a bucket holds one or two parameters."""

TRAININGS: dict[str, Callable[[str], Any]] = {
    "one bucket": replicated,
    "many buckets": partial(replicated, bucket_cap_mb=MANY),
    "views": partial(replicated, bucket_cap_mb=MANY, gradient_as_bucket_view=True),
    "unused": partial(replicated, find_unused_parameters=True),
    "static": partial(replicated, static_graph=True),
    "compressed": partial(
        replicated, hook=default_hooks.fp16_compress_hook, bucket_cap_mb=MANY
    ),
    "low rank": partial(replicated, hook=powerSGD_hook.powerSGD_hook, state=low_rank),
    "accumulated": accumulated,
    "uneven": uneven,
    "sharded": partial(sharded, reshard_after_forward=True),
    "sharded, kept": partial(sharded, reshard_after_forward=False),
    "sharded, accumulated": partial(sharded, is_accumulated=True, mp_policy=HALF),
}


def trainings() -> Any:
    """Return the weights from the device and from host memory, by name."""
    return {
        name: [train(device) for device in ("soft", "cpu")] for name, train in TRAININGS.items()
    }


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.deep)])
def test_training_takes_the_steps_of_the_host(ranks: Any, way: Any, count: int) -> None:
    """DistributedDataParallel and FSDP2 have the same bits as in host memory on the same ranks."""
    together = ranks(trainings, count, "ringfold", variables=way).results()
    for found in together:
        for name, (there, here) in found.items():
            assert torch.equal(there, here), name
            assert torch.equal(there, together[0][name][0]), name


def shards() -> Any:
    size = dist.get_world_size()
    group = dist.group.WORLD
    mesh = init_device_mesh("soft", (size,))
    left, right = torch.arange(24.0).reshape(4, 6), torch.arange(18.0).reshape(6, 3)
    product = distribute_tensor(left.to("soft"), mesh, [Shard(1)]) @ distribute_tensor(
        right.to("soft"), mesh, [Shard(0)]
    )
    assert isinstance(product, DTensor)
    whole = product.redistribute(mesh, [Replicate()]).to_local()
    tensor = numbers(2 * size).to("soft")
    sums = functional.all_reduce(tensor, "sum", group)
    parts = functional.reduce_scatter_tensor(tensor, "sum", 0, group)
    again = functional.all_gather_tensor(parts, 0, group)
    return whole.cpu(), left @ right, (sums * 1).cpu(), (again * 1).cpu()


def test_sharded_tensors_and_functional_collectives(ranks: Any, way: Any) -> None:
    """DTensor's collectives, and torch's that return a new tensor, work on the device."""
    for found, product, sums, again in ranks(shards, 2, "ringfold", variables=way).results():
        assert torch.equal(found, product)
        assert torch.equal(sums, again)


def loses_a_rank() -> Any:
    tensor = torch.ones(LARGE, device="soft")
    dist.all_reduce(tensor)
    # Waits until both ranks have made the call; a late rank would find the other one gone.
    torch.accelerator.synchronize()
    if dist.get_rank() == 1:
        raise ValueError("the loss is infinite")
    # One of these calls is the first to see the failure, and raises.
    works = []
    with pytest.raises(RuntimeError) as caught:
        works.append(dist.all_reduce(tensor, async_op=True))
        works[0].wait()
        torch.accelerator.synchronize()
        dist.all_reduce(tensor)
    # No stream waits forever.
    torch.accelerator.synchronize()
    # The first failed part raises; the other parts end, too.
    while not all(work.is_completed() for work in works):
        time.sleep(0.001)
    return str(caught.value)


def test_a_lost_rank_is_named_and_streams_go_on(ranks: Any, way: Any) -> None:
    """The call raises, and the device soon becomes idle."""
    outcome = ranks(loses_a_rank, 2, "ringfold", variables=way)
    assert "rank 1" in outcome.result(0)
    assert "infinite" in str(outcome.error(1))
