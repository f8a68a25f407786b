"""Calls whose handles nothing waits for: results still arrive, as with gloo."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist


class Started:
    """Asynchronous calls whose results are copied or divided at their end.

    The handles are dropped, or added to `kept`.
    """

    def __init__(self, kept: list[Any] | None = None) -> None:
        rank, count = dist.get_rank(), dist.get_world_size()
        self.lists = [torch.zeros(5) for _ in range(count)]
        self.strided = torch.ones(2, 6)[:, ::2]
        self.mean = torch.full((3,), 1 + 4 * rank)
        self.uneven = [torch.zeros(1 + other) for other in range(count)]
        given = [torch.full((1 + rank,), 10.0 * rank + to) for to in range(count)]
        works = [
            dist.all_gather(self.lists, torch.full((5,), rank + 1.0), async_op=True),
            dist.all_reduce(self.strided, async_op=True),
            dist.all_reduce(self.mean, dist.ReduceOp.AVG, async_op=True),
            dist.all_to_all(self.uneven, given, async_op=True),
        ]
        if kept is not None:
            kept += works

    def results(self) -> Any:
        return (
            [each[0].item() for each in self.lists],
            self.strided.tolist(),
            self.mean.tolist(),
            [each.tolist() for each in self.uneven],
        )

    @staticmethod
    def expected(rank: int) -> Any:
        return ([1.0, 2.0], [[2.0] * 3] * 2, [3] * 3, [[0.0 + rank], [10.0 + rank] * 2])


def wait_for_nothing(started: Started) -> None:
    """Wait until the results arrive, without waiting for a handle."""
    deadline = time.monotonic() + 60
    while started.results() != Started.expected(dist.get_rank()):
        assert time.monotonic() < deadline, started.results()
        time.sleep(0.001)


LATER: dict[str, Callable[[Started], object]] = {
    "barrier": lambda _: dist.barrier(),
    "barrier that is waited for": lambda _: dist.barrier(async_op=True).wait(),
    "another call": lambda _: dist.all_reduce(torch.ones(2)),
    "nothing": wait_for_nothing,
}


def drop(later: str, keeps: bool) -> Any:
    found = []
    for _ in range(5):
        kept: list[Any] = []
        started = Started(kept if keeps else None)
        LATER[later](started)
        found.append(started.results())
        for work in kept:
            work.wait()
        found.append(started.results())
    # The tensors are dropped with the handles.
    for _ in range(20):
        Started()
    dist.barrier()
    return found


@pytest.mark.parametrize("keeps", [False, True], ids=["dropped", "kept"])
@pytest.mark.parametrize("later", LATER)
def test_results_arrive_without_a_wait(ranks: Any, later: str, keeps: bool) -> None:
    for rank, found in enumerate(ranks(drop, 2, "ringfold", later=later, keeps=keeps).results()):
        assert found == [Started.expected(rank)] * 10


def drop_within(mode: str) -> Any:
    """Start calls in modes of torch that other threads do not have."""
    with torch.inference_mode() if mode == "inference" else torch.no_grad():
        started = Started()
        wait_for_nothing(started)
    return started.results()


@pytest.mark.parametrize("mode", ["inference", "no_grad"])
def test_results_arrive_in_modes_of_a_thread(ranks: Any, mode: str) -> None:
    for rank, found in enumerate(ranks(drop_within, 2, "ringfold", mode=mode).results()):
        assert found == Started.expected(rank)


def fail_to_deliver() -> Any:
    """Make a call whose result does not fit its memory, which torch detects at the call's end."""
    overlapping = torch.zeros(1).expand(4)
    work = dist.all_reduce(overlapping, async_op=True)
    errors = []
    for _ in range(2):
        with pytest.raises(RuntimeError) as error:
            work.wait()
        errors.append(str(error.value))
    assert work.is_completed() and not work.is_success() and str(work.exception()) == errors[0]
    for _ in range(3):
        dist.all_reduce(overlapping, async_op=True)
        dist.barrier()
    total = torch.ones(3)
    dist.all_reduce(total)
    return errors, total.tolist()


def test_a_result_that_cannot_be_delivered_fails_its_own_call_alone(ranks: Any) -> None:
    for errors, total in ranks(fail_to_deliver, 2, "ringfold").results():
        assert errors[0] == errors[1] and "single memory location" in errors[0], errors
        assert total == [2.0] * 3
