"""Programs that start far more calls than they wait for, as gloo permits."""

from typing import Any

import torch
import torch.distributed as dist

MANY = 4300
"""More than the number of collectives that an engine keeps ready to run."""


def sums_of_an_early_rank() -> int:
    """Return the number of calls with a wrong result; rank 0 starts all calls before rank 1."""
    rank, count = dist.get_rank(), dist.get_world_size()
    started = torch.ones(1)
    if rank > 0:
        dist.recv(started, 0)
    values = [torch.full((3,), float(call + 10_000 * rank)) for call in range(MANY)]
    works = [dist.all_reduce(value, async_op=True) for value in values]
    if rank == 0:
        for peer in range(1, count):
            dist.send(started, peer)
    later = [torch.full((3,), float(call)) for call in range(100)]
    works += [dist.all_reduce(value, async_op=True) for value in later]
    for work in works:
        work.wait()
    due = [call * count + 10_000 * sum(range(count)) for call in range(MANY)]
    due += [call * count for call in range(100)]
    return sum(
        not bool((value == right).all()) for value, right in zip(values + later, due, strict=True)
    )


def test_a_rank_may_be_any_number_of_calls_ahead(ranks: Any) -> None:
    assert ranks(sums_of_an_early_rank, 3, "ringfold").results() == [0, 0, 0]


def messages_before_their_sends() -> int:
    """Return the number of wrong messages; both ranks start all receives first."""
    peer = 1 - dist.get_rank()
    received = [torch.zeros(2) for _ in range(MANY)]
    works = [dist.irecv(into, peer, tag=tag) for tag, into in enumerate(received)]
    sent = [torch.full((2,), float(tag)) for tag in range(MANY)]
    works += [dist.isend(each, peer, tag=tag) for tag, each in enumerate(sent)]
    for work in works:
        assert work is not None
        work.wait()
    return sum(not bool((each == tag).all()) for tag, each in enumerate(received))


def test_any_number_of_receives_may_wait_for_their_sends(ranks: Any) -> None:
    assert ranks(messages_before_their_sends, 2, "ringfold").results() == [0, 0]


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
