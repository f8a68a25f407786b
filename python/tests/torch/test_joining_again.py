"""Groups whose store has entries of earlier groups, or of ranks killed while they joined."""

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringfold.torch
from ringfold.torch import RingfoldProcessGroup

LONG, SHORT = timedelta(seconds=60), timedelta(seconds=0.5)


def store_at(folder: str, name: str = "store") -> Any:
    return dist.FileStore(f"{folder}/{name}", 3)


def join(store: Any, rank: int, timeout: timedelta = LONG) -> Any:
    return RingfoldProcessGroup(dist.PrefixStore("group", store), rank, 3, timeout)


def total(group: Any) -> float:
    tensor = torch.full((3,), 1.0 + group.rank())
    group.allreduce([tensor]).wait()
    found = float(tensor[0])
    group.shutdown()
    return found


def forked(call: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            call()
        finally:
            os._exit(1)
    return child


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def has_begun(store: Any) -> bool:
    """Return whether a rank has written to the store of the group."""
    # A FileStore counts the keys that it has read, and reads more when asked for a key.
    store.check(["a key that is never set"])
    return bool(store.num_keys())


def lose_a_follower(folder: str) -> float:
    """Kill and restart rank 2 while rank 0 waits for rank 1, which comes afterwards."""
    rank, said = int(os.environ["RANK"]), store_at(folder, "said")
    store = store_at(folder)
    if rank == 2:
        child = forked(lambda: join(store, 2))
        said.wait(["given up"], LONG)
        kill(child)
        said.set("killed", "")
    elif rank == 0:
        with pytest.raises(RuntimeError):
            join(store, 0, SHORT)
        said.set("given up", "")
    said.wait(["killed"], LONG)
    return total(join(store, rank))


def lose_the_leader(folder: str) -> float:
    """Kill and restart rank 0 while rank 1 waits; rank 2 comes afterwards."""
    rank, said = int(os.environ["RANK"]), store_at(folder, "said")
    store = store_at(folder)
    if rank == 0:
        child = forked(lambda: join(store, 0))
        while not has_begun(store):
            time.sleep(0.005)
        kill(child)
        said.set("killed", "")
    elif rank == 2:
        said.wait(["killed"], LONG)
    return total(join(store, rank))


@pytest.mark.parametrize("lose", [lose_a_follower, lose_the_leader])
def test_a_rank_that_is_killed_while_it_joins_is_started_again(
    ranks: Any, tmp_path: Any, lose: Callable[[str], float]
) -> None:
    assert ranks(lose, 3, None, folder=str(tmp_path)).results() == [6.0] * 3


def join_by_turns(folder: str) -> list[float]:
    """Make groups with one name in sequence, with other sizes in between."""
    rank, store = int(os.environ["RANK"]), store_at(folder)
    found = []
    for _ in range(3):
        found.append(total(join(store, rank)))
        if rank < 2:
            pair = RingfoldProcessGroup(dist.PrefixStore("group", store), rank, 2, LONG)
            found.append(total(pair))
    return found


def test_groups_of_one_name_follow_each_other(ranks: Any, tmp_path: Any) -> None:
    first, second, third = ranks(join_by_turns, 3, None, folder=str(tmp_path)).results()
    assert first == second == [6.0, 3.0] * 3 and third == [6.0] * 3


def miss_the_second_barrier(folder: str) -> Any:
    """Run a barrier of a second group, which must find nothing of the first group's."""
    rank, store = int(os.environ["RANK"]), store_at(folder)
    group = join(store, rank)
    ringfold.torch.monitored_barrier(group)
    group.shutdown()
    group = join(store, rank)
    if rank == 0:
        with pytest.raises(ringfold.torch.MonitoredBarrierError) as caught:
            ringfold.torch.monitored_barrier(group, timeout=0.2, wait_all_ranks=True)
    total(group)
    return caught.value.missing if rank == 0 else None


def test_a_barrier_through_the_store_is_of_its_group(ranks: Any, tmp_path: Any) -> None:
    outcome = ranks(miss_the_second_barrier, 3, None, folder=str(tmp_path))
    assert outcome.results() == [[1, 2], None, None]


def test_an_attempt_that_lists_another_process_is_not_joined() -> None:
    """Rank 0's attempt lists a process that was killed and restarted since."""
    store = dist.HashStore()
    entries = dist.PrefixStore("3", dist.PrefixStore("group", store))
    entries.set("first", "attempt")
    numbers = ",".join(["killed"] * 3)
    dist.PrefixStore("attempt", entries).set("meet", f"unix:@ringfold-none group {numbers} secret")
    with pytest.raises(ringfold.BootstrapError, match="earlier attempt"):
        join(store, 1, SHORT)
