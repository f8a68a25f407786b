"""Groups that are not made by `new_group`: splits, and groups that a program makes itself."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions

from ringfold.errors import InvalidArgumentError, RingfoldError
from ringfold.torch import RingfoldProcessGroup


def total(group: Any, value: float) -> float:
    tensor = torch.full((3,), value)
    group.allreduce([tensor], AllreduceOptions()).wait()
    return float(tensor[0])


def split() -> Any:
    world = dist.distributed_c10d._get_default_group()
    rank = dist.get_rank()
    if rank == 2:
        return None
    part = world.split_group([1, 0], timedelta(seconds=20), None, "half", "two of three")
    part.get_group_store().set(str(part.rank()), "here")
    assert part.get_group_store().get(str(1 - part.rank())) == b"here"
    return part.rank(), part.size(), part.group_name, part.group_desc, total(part, rank + 1.0)


def test_a_split_group_has_its_own_ranks_and_sums(ranks: Any) -> None:
    first, second, other = ranks(split, 3, "ringfold").results()
    assert first == (1, 2, "half", "two of three", 3.0)
    assert second == (0, 2, "half", "two of three", 3.0)
    assert other is None


def use_the_filler() -> str:
    """Call the stub for a backend, which must raise instead of doing nothing."""
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    tensor = torch.ones(1)
    try:
        backend.allreduce([tensor], AllreduceOptions()).wait()
    except RuntimeError:
        return "refused"
    return "done" if tensor.item() == 2 else "pretended"


def test_what_is_asked_for_a_device_does_its_work_or_refuses(ranks: Any) -> None:
    assert set(ranks(use_the_filler, 2, "ringfold").results()) <= {"refused", "done"}


def call_in_simple_forms() -> list[float]:
    """Pass a tensor in place of a list, with and without options."""
    world = dist.distributed_c10d._get_default_group()
    options = AllreduceOptions()
    options.asyncOp = False
    found = []
    for shape in ((), (1, 2), (3,)):
        tensor = torch.ones(shape)
        world.allreduce(tensor, options).wait()
        world.allreduce(tensor, dist.ReduceOp.MAX).wait()
        found.append(float(tensor.sum()))
    return found


def test_a_tensor_may_stand_where_its_list_does(ranks: Any) -> None:
    assert ranks(call_in_simple_forms, 2, "ringfold").results() == [[2.0, 4.0, 6.0]] * 2


def count_calls() -> Any:
    world = dist.distributed_c10d._get_default_group()
    before = world._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    dist.broadcast(torch.ones(1), 0)
    return world._get_sequence_number_for_group() - before


def test_a_group_tells_how_many_collectives_it_has_called(ranks: Any) -> None:
    assert ranks(count_calls, 2, "ringfold").results() == [2, 2]


def manage(folder: str) -> list[Any]:
    """Make groups in the program from torch's store; the second one replaces the first."""
    rank = int(os.environ["RANK"])
    store = dist.FileStore(f"{folder}/own", 3)
    timeout = timedelta(seconds=60)
    group = RingfoldProcessGroup(dist.PrefixStore("first", store), rank, 3, timeout)
    found: list[Any] = [group.getBackendName(), total(group, rank + 1.0)]
    store.set(f"done{rank}", "")
    if rank == 2:
        # Waits until the others have their sums, which an abort could overtake.
        store.wait(["done0", "done1"], timeout)
        group.abort()
        return found
    try:
        total(group, 0.0)
    except RingfoldError:
        found.append("failed")
    group.abort()
    group = RingfoldProcessGroup(dist.PrefixStore("second", store), rank, 2, timeout)
    found.append(total(group, rank + 1.0))
    group.shutdown()
    return found


def test_a_program_may_make_groups_itself_and_replace_those_that_fail(
    ranks: Any, tmp_path: Path
) -> None:
    *survivors, other = ranks(manage, 3, None, folder=str(tmp_path)).results()
    assert survivors == [["ringfold", 6.0, "failed", 3.0]] * 2
    assert other == ["ringfold", 6.0]


def test_a_group_that_cannot_be_made_is_refused_at_once() -> None:
    """The refusal does not wait for ranks that do not exist."""
    store = dist.HashStore()
    second = timedelta(seconds=1)
    cases: list[tuple[tuple[Any, int, int, Any], str]] = [
        ((None, 0, 2, second), "needs a torch store, not None"),
        ((store, 7, 2, second), "rank 7 is out of range for 2 ranks"),
        ((store, -1, 2, second), "rank -1 is out of range for 2 ranks"),
        ((store, 0, 2, timedelta(0)), "a positive `datetime.timedelta`"),
        ((store, 0, 2, 5.0), "a positive `datetime.timedelta`, not 5.0"),
    ]
    for arguments, problem in cases:
        with pytest.raises(InvalidArgumentError, match=problem):
            RingfoldProcessGroup(*arguments)
