"""Errors when another rank dies, makes another call or is late, for every kind of call in torch."""

import datetime
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

import ringfold


def failure(call: Any) -> Any:
    """Return the error that `call` raises, and the seconds until then."""
    begin = time.monotonic()
    with pytest.raises(Exception) as caught:
        call()
    return caught.value, time.monotonic() - begin


def backward(count: int) -> None:
    """Make a step of DDP; the first step connects the ranks."""
    model = DistributedDataParallel(torch.nn.Linear(count, 3))
    for step in range(2):
        if step == 1:
            stand_by()
        model(torch.ones(2, count)).sum().backward()


def stand_by() -> None:
    """Wait for all ranks, and then kill rank 1."""
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


WAYS: dict[str, Any] = {
    "sync": lambda x: dist.all_reduce(x),
    "async": lambda x: dist.all_reduce(x, async_op=True).wait(),
    "future": lambda x: dist.all_reduce(x, async_op=True).get_future().wait(),
    "functional": lambda x: functional.wait_tensor(
        functional.all_reduce(x, "sum", dist.group.WORLD)
    ),
    "gather": lambda x: dist.all_gather(
        [torch.empty_like(x) for _ in range(dist.get_world_size())], x
    ),
    "receive": lambda x: dist.recv(x, 1),
    "barrier": lambda x: dist.barrier(),
}


def lose_a_rank(way: str, count: int) -> Any:
    if way == "ddp":
        error, _ = failure(lambda: backward(count))
    else:
        stand_by()
        error, _ = failure(lambda: WAYS[way](torch.ones(count)))
    again, _ = failure(lambda: dist.all_reduce(torch.ones(1)))
    return error, again


LARGE = 1 << 20
KILLS = [(way, 1) for way in WAYS] + [("sync", LARGE), ("receive", LARGE)]
DEEP_KILLS = [(way, LARGE) for way in WAYS if (way, LARGE) not in KILLS]


@pytest.mark.parametrize(
    ("way", "count"),
    [*KILLS, *(pytest.param(*kill, marks=pytest.mark.deep) for kill in DEEP_KILLS)],
)
def test_survivors_of_a_killed_rank_are_told_its_number(ranks: Any, way: str, count: int) -> None:
    outcome = ranks(lose_a_rank, 3, "ringfold", way=way, count=count)
    assert outcome.statuses[1] == -signal.SIGKILL
    for error, again in outcome.results(but=[1]):
        if way == "future":
            # A future's error crosses torch's C++ as a RuntimeError with the text.
            assert isinstance(error, RuntimeError) and "PeerFailedError: rank 1 " in str(error)
        else:
            assert isinstance(error, ringfold.PeerFailedError), repr(error)
            assert error.rank == 1
        assert isinstance(again, ringfold.PeerFailedError) and again.rank == 1


@pytest.mark.parametrize("count", [4, 1 << 18])
def test_ddp_raises_and_does_not_crash_when_a_rank_is_killed(ranks: Any, count: int) -> None:
    for error, again in ranks(lose_a_rank, 3, "ringfold", way="ddp", count=count).results(but=[1]):
        # torch turns a future's exception into a RuntimeError with the text.
        assert isinstance(error, RuntimeError)
        is_ours = isinstance(error, ringfold.PeerFailedError)
        assert "PeerFailedError" in str(error) or is_ours, repr(error)
        assert "rank 1" in str(error)
        assert isinstance(again, ringfold.PeerFailedError) and again.rank == 1


def lose_a_rank_of_a_group() -> Any:
    """Fail in a group of ranks 1 and 2; rank 0 is only in the world's."""
    group = dist.new_group([1, 2])
    stand_by()
    error = (
        failure(lambda: dist.all_reduce(torch.ones(4), group=group))[0]
        if dist.get_rank() == 2
        else None
    )
    # All survivors call, because a rank that leaves while it is needed would also fail.
    return failure(lambda: dist.all_reduce(torch.ones(4)))[0], error


def test_groups_tell_the_dead_by_their_own_ranks(ranks: Any) -> None:
    outcome = ranks(lose_a_rank_of_a_group, 3, "ringfold")
    (first, _), (second, group) = outcome.results(but=[1])
    for world in (first, second):
        assert isinstance(world, ringfold.PeerFailedError) and world.rank == 1
    assert isinstance(group, ringfold.PeerFailedError) and group.rank == 0


def come_late(way: str, folder: str, later_s: float | None = None) -> Any:
    """Keep rank 1 away until rank 0 has timed out. `later_s` replaces the timeout of the group,
    within which its ranks join.
    """
    given_up = Path(folder) / "given up"
    dist.barrier()
    if later_s:
        world: Any = dist.group.WORLD
        world.set_timeout(datetime.timedelta(seconds=later_s))
    if dist.get_rank() == 1:
        while not given_up.exists():
            time.sleep(0.005)
        return None
    error, seconds = failure(lambda: WAYS[way](torch.ones(10)))
    given_up.touch()
    return error, seconds


TIMEOUT_S = 0.6


@pytest.mark.parametrize("way", WAYS)
def test_a_call_ends_after_the_groups_timeout(ranks: Any, way: str, tmp_path: Path) -> None:
    request = {"way": way, "folder": str(tmp_path), "later_s": TIMEOUT_S}
    error, seconds = ranks(come_late, 2, "ringfold", **request).result(0)
    if way == "future":
        assert isinstance(error, RuntimeError) and "RingfoldTimeoutError" in str(error)
    else:
        assert isinstance(error, ringfold.RingfoldTimeoutError), repr(error)
        assert isinstance(error, TimeoutError)
    assert seconds >= TIMEOUT_S - 0.01
    assert "the timeout of 600 ms" in str(error)


def test_the_timeout_of_init_is_that_of_calls(ranks: Any, tmp_path: Path) -> None:
    outcome = ranks(come_late, 2, "ringfold", timeout_s=4, way="sync", folder=str(tmp_path))
    error, _ = outcome.result(0)
    assert isinstance(error, ringfold.RingfoldTimeoutError)
    assert "the timeout of 4000 ms" in str(error)


def wait_briefly() -> Any:
    """Let a wait time out, which leaves the call in progress."""
    if dist.get_rank() == 1:
        dist.recv(torch.empty(1), 0)
        x = torch.ones(4)
        dist.all_reduce(x)
        return x.tolist()
    x = torch.ones(4)
    work = dist.all_reduce(x, async_op=True)
    error, _ = failure(lambda: work.wait(datetime.timedelta(milliseconds=50)))
    under_way = work.is_completed()
    dist.send(torch.ones(1), 1)
    work.wait()
    return type(error).__name__, isinstance(error, TimeoutError), under_way, x.tolist()


def test_a_wait_that_was_too_short_can_be_repeated(ranks: Any) -> None:
    first, second = ranks(wait_briefly, 2, "ringfold").results()
    assert first[1:] == (True, False, [2.0] * 4) and second == [2.0] * 4


def leave_in_a_handler(way: str) -> Any:
    process = torch.tensor(os.getpid())
    dist.broadcast(process, 1)
    x = torch.ones(10)
    if dist.get_rank() == 0:
        communicator = dist.group.WORLD.communicator
        # Waits until rank 1 reports the call that it waits in.
        while (standing := communicator.standing(1)[1]) is None or not standing[2]:
            pass
        os.kill(int(process), signal.SIGTERM)
        # Waits until rank 1 has left, without having met this rank in a call.
        while communicator.standing(1)[1] is not None:
            pass
        return type(failure(dist.barrier)[0])
    left = []
    # The signal that a machine sends before it is preempted.
    signal.signal(signal.SIGTERM, lambda *_: left.append(dist.destroy_process_group()))
    error, _ = failure(lambda: WAYS[way](x))
    return type(error), left


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_group_is_destroyed_in_the_handler_of_a_signal(ranks: Any, way: str) -> None:
    # The deadline is beyond the test's own limit: nothing here waits for it.
    zero, one = ranks(leave_in_a_handler, 2, "ringfold", 600.0, way=way).results()
    assert one == (ringfold.ClosedError, [None])
    assert issubclass(zero, ringfold.RingfoldError)
