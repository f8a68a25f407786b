"""ringfold works the same under all process-wide settings of torch.

Calls depend only on their arguments.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, ReduceScatterOptions
from torch.nn.parallel import DistributedDataParallel

import ringfold.torch

HOST = torch.device("cpu")
# DistributedDataParallel's buckets are registered by an agreement, after some calls.
STEPS = 20


def host(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=HOST)


def empty(count: int) -> Any:
    return [torch.zeros(3, dtype=torch.float32, device=HOST) for _ in range(count)]


def functions() -> list[Any]:
    """Make calls of torch.distributed that copy, or that exchange sizes before the data."""
    rank, count = dist.get_rank(), dist.get_world_size()
    mine = host(rank, rank + 1, rank + 2)
    lists = {name: empty(count) for name in ("all_gather", "gather", "all_to_all")}
    dist.all_gather(lists["all_gather"], mine)
    dist.gather(mine, lists["gather"] if rank == 0 else None, 0)
    dist.all_to_all(lists["all_to_all"], [mine.clone() for _ in range(count)])
    (scattered,) = empty(1)
    dist.reduce_scatter(scattered, [mine.clone() for _ in range(count)])
    column = torch.stack([mine, mine], dim=1)
    dist.all_reduce(column[:, 0])
    bytes_of_all = [torch.zeros(2, dtype=torch.uint8, device=HOST) for _ in range(count)]
    dist.all_gather(bytes_of_all, torch.full((2,), rank, dtype=torch.uint8, device=HOST))
    objects: list[Any] = [None] * count
    dist.all_gather_object(objects, {"rank": rank})
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[rank]], device=HOST), host(1.0), (count,), device=HOST
    )
    dist.all_reduce(sparse)
    return [lists, scattered, column, bytes_of_all, objects, sparse.to_dense()]


def methods() -> list[Any]:
    """Make calls through the process group's own methods: `torch.distributed` suspends modes."""
    rank, count = dist.get_rank(), dist.get_world_size()
    group = dist.distributed_c10d._get_default_group()
    mine = host(rank, rank + 1, rank + 2)
    gathered, (scattered,) = empty(count), empty(1)
    group.allgather([gathered], [mine], AllgatherOptions()).wait()
    group.reduce_scatter(
        [scattered], [[mine.clone() for _ in range(count)]], ReduceScatterOptions()
    ).wait()
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[rank]], device=HOST), host(1.0), (count,), device=HOST
    )
    group.allreduce([sparse]).wait()
    bytes_of_all = [torch.zeros(2, dtype=torch.uint8, device=HOST) for _ in range(count)]
    group.allgather([bytes_of_all], [torch.full((2,), rank, dtype=torch.uint8, device=HOST)]).wait()
    return [gathered, scattered, sparse.to_dense(), bytes_of_all]


def training() -> list[Any]:
    """Use registered buckets, packs, and registered memory."""
    rank = dist.get_rank()
    with torch.inference_mode(False), torch.enable_grad():
        weights = torch.zeros(400, 400, dtype=torch.float32, device=HOST)
        layer = torch.nn.Linear(400, 400, device=HOST, dtype=torch.float32)
        layer.load_state_dict({"weight": weights, "bias": weights[0]})
        wrapped = DistributedDataParallel(layer)
        for _ in range(STEPS):
            torch.autograd.backward(wrapped(weights[:2] + rank + 1).sum())
        small = torch.nn.Linear(3, 2, device=HOST, dtype=torch.float32)
        average = ringfold.torch.make_allreduce_cb("mean")
        average.attach(small)
        for _ in range(3):
            small.zero_grad()
            torch.autograd.backward(small(host(rank, rank, rank)[None]).sum())
            average.wait()
    registered = [
        ringfold.torch.empty(length, dtype=torch.float32).fill_(rank) for length in (0, 8)
    ]
    dist.all_reduce(registered[1])
    return [layer.weight.grad, small.weight.grad, registered]


@contextmanager
def while_set(set_to: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    set_to(value)
    try:
        yield
    finally:
        set_to(before)


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "default device": lambda: while_set(torch.set_default_device, "meta", None),
    "device context": lambda: torch.device("meta"),
    "float64": lambda: while_set(torch.set_default_dtype, torch.float64, torch.float32),
    "float16": lambda: while_set(torch.set_default_dtype, torch.float16, torch.float32),
    "tensor type": lambda: while_set(
        torch.set_default_tensor_type, torch.DoubleTensor, torch.FloatTensor
    ),
    "deterministic": lambda: while_set(torch.use_deterministic_algorithms, True, False),
    "inference": torch.inference_mode,
    "without gradients": torch.no_grad,
    "anomalies": torch.autograd.detect_anomaly,
}
"""Context manager that applies each setting."""


def call_under_settings() -> list[str]:
    """Return the settings and calls whose results differ from those without any setting."""
    calls = (functions, methods, training)
    expected = [call() for call in calls]
    differences = []
    for name, (call, right) in itertools.product(SETTINGS, zip(calls, expected, strict=True)):
        with SETTINGS[name]():
            found = call()
        if not same(found, right):
            differences.append(f"{name}, {call.__name__}: {found}, not {right}")
    return differences


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        kinds = [(each.dtype, each.device) for each in (one, other)]
        return kinds[0] == kinds[1] and bool(torch.equal(one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return all(itertools.starmap(same, zip(one, other, strict=True)))
    return bool(one == other)


@pytest.mark.parametrize(
    "variables", [{}, {"RINGFOLD_SECRET": "of the tests", "RINGFOLD_TRANSPORT": "tcp"}]
)
def test_calls_are_the_same_under_all_settings_of_torch(
    ranks: Any, variables: dict[str, str]
) -> None:
    found = ranks(call_under_settings, 2, "ringfold", variables=variables).results()
    assert found == [[], []]
