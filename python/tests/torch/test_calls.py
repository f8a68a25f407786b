"""Calls of torch.distributed that the random programs do not make."""

import threading
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GatherOptions


def gather_into_one() -> Any:
    x = torch.full((2, 3), float(dist.get_rank()))
    flat = torch.zeros(4, 3)
    opts = GatherOptions()
    opts.rootRank = 1
    # torch 2.15's `gather_single` calls this method.
    group: Any = dist.distributed_c10d._get_default_group()
    group.gather_single(flat if dist.get_rank() == 1 else x.new_empty(0), x, opts).wait()
    return flat


def test_parts_are_gathered_into_one_tensor(ranks: Any) -> None:
    found = ranks(gather_into_one, 2, "ringfold").results()
    assert found[1].tolist() == [[0.0] * 3] * 2 + [[1.0] * 3] * 2 and not found[0].any()


def exchange_with_all() -> Any:
    """Exchange a batch of messages with all ranks, this one included; then with this rank only."""
    rank, count = dist.get_rank(), dist.get_world_size()
    received = [torch.zeros(2, 3)[:, ::2] for _ in range(count)]
    operations = []
    for other in range(count):
        given = torch.full((2, 2), 10.0 * rank + other)
        operations.append(dist.P2POp(dist.isend, given, other))
        operations.append(dist.P2POp(dist.irecv, received[other], other))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    group = dist.distributed_c10d._get_default_group()
    anybody = [torch.zeros(1), torch.zeros(1)]
    for tag in (1, 2):
        group.send([torch.full((1,), 1.0 + tag)], rank, tag).wait()
    for tensor, tag in zip(anybody, (2, 1), strict=True):
        work = group.recv_anysource([tensor], tag)
        work.wait()
        assert work._source_rank() == rank
    return [tensor.tolist() for tensor in received], [tensor.item() for tensor in anybody]


def test_ranks_send_to_themselves(ranks: Any) -> None:
    for rank, (received, anybody) in enumerate(ranks(exchange_with_all, 2, "ringfold").results()):
        assert received == [[[10.0 * other + rank] * 2] * 2 for other in range(2)]
        assert anybody == [3.0, 2.0]


ROUNDS = 40


def use_groups_from_threads() -> Any:
    """Use a group in each thread, and the world's group in the main thread."""
    rank, count = dist.get_rank(), dist.get_world_size()
    members = [list(range(count)), [0, 1], [1, 2], [0, 2], list(range(count))]
    groups = [dist.new_group(ranks) for ranks in members]
    wrong: list[str] = []

    def work(name: str, group: Any, ranks: list[int]) -> None:
        try:
            for round_ in range(ROUNDS):
                size = (1, 300, 20000)[round_ % 3]
                tensor = torch.full((size,), float(rank + round_))
                dist.all_reduce(tensor, group=group)
                expected = float(sum(other + round_ for other in ranks))
                if not bool((tensor == expected).all()):
                    wrong.append(f"{name}, round {round_}: {tensor[0]} instead of {expected}")
        except Exception as error:
            wrong.append(f"{name}: {error!r}")

    pairs = list(zip(groups, members, strict=True))
    mine = [
        (f"group {index}", group, ranks)
        for index, (group, ranks) in enumerate(pairs)
        if rank in ranks
    ]
    threads = [threading.Thread(target=work, args=what) for what in mine]
    for thread in threads:
        thread.start()
    work("world", dist.group.WORLD, list(range(count)))
    for thread in threads:
        thread.join()
    return wrong


def test_groups_are_used_from_several_threads_at_once(ranks: Any, backend: str) -> None:
    assert ranks(use_groups_from_threads, 3, backend).results() == [[]] * 3


def sums_of_lists() -> list[float]:
    """Sum two tensors in one call: with a handle on rank 0, and without on the others."""
    rank = dist.get_rank()
    tensors = [torch.full((50_000,), float(rank)), torch.full((70_000,), 2.0)]
    work = dist.all_reduce_coalesced(tensors, async_op=rank == 0)
    if work is not None:
        work.wait()
    return [float(tensor.mean()) for tensor in tensors]


def test_a_call_of_several_requests_is_the_same_with_a_handle_and_without(ranks: Any) -> None:
    assert ranks(sums_of_lists, 2, "ringfold").results() == [[1.0, 4.0]] * 2
