"""What torch's NCCL backend promises beside the results of collectives, on the test device: sparse
tensors, streams, groups and their ends.
"""

from typing import Any

import pytest
import softtorch
import torch
import torch.distributed as dist

from ringfold.errors import InvalidArgument

DEVICE = "soft"
WAYS = {"lane": {}, "level0": {softtorch.LEVEL_0: "1"}}


@pytest.fixture(params=WAYS)
def way(request: Any, soft: dict[str, str]) -> dict[str, str]:
    """The variables of each way of serving an accelerator."""
    return soft | WAYS[request.param]


def sparse_tensors(device: str) -> dict[str, Any]:
    """Other places on each rank; one twice, and on rank 1 none."""
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
    """By name: pairs of the device's sum and the host's; and a sum that is joined elsewhere."""
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
        with pytest.raises(InvalidArgument, match="only sum"):
            dist.all_reduce(there["of rows"], refused)
    # Made in one stream, joined by another, and by a future's callback.
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
    """On the device as on the host: the same places and bits. There is no other operation."""
    job = ranks(sums_sparse_tensors, 2, "ringfold", variables=way)
    for found, joined, expected in job.results():
        for name, pairs in found.items():
            assert all(torch.equal(*pair) for pair in pairs), name
        assert all(torch.equal(each, expected) for each in joined)
