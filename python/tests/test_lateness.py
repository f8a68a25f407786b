"""Lateness statistics, and weights of large all-reduces."""

import time
from typing import Any

import numpy as np
import pytest

import ringfold

CALLS = 5
LARGE = 1 << 20


def come_late(comm: ringfold.Communicator) -> Any:
    comm.barrier()
    comm.reset_stats()
    for _ in range(CALLS):
        if comm.rank == 1:
            time.sleep(0.05)
        comm.all_reduce(np.ones(2, np.float32))
    stats = comm.stats()
    assert sum(stats.peers[1].histogram) == stats.peers[1].last
    comm.barrier()
    return stats.calls, stats.arrived_last, stats.peers[1].last, stats.peers[1].most


def test_whoever_comes_late_is_known(jobs: Any) -> None:
    (calls, arrived_last, _, _), _ = late, prompt = jobs(come_late, 2).results()[::-1]
    assert calls == CALLS and prompt[0] == CALLS
    # On a busy machine, the other rank may be later than the sleep, but not always.
    assert arrived_last > 0 and prompt[2] > 0 and prompt[3] > 0.01, (late, prompt)


def own_unequal_parts(comm: ringfold.Communicator) -> Any:
    for weights in ([3, 0, 1], None, [1, 1, 1]):
        comm.set_weights(weights)
        assert comm.weights == weights
        total = comm.all_reduce(np.full(LARGE, comm.rank + 1, np.float32))
        assert (total == 6).all()
    with pytest.raises(ringfold.InvalidArgumentError):
        comm.set_weights([1, 1])
    measured = comm.rebalance()
    assert comm.weights == measured
    assert (comm.all_reduce(np.full(LARGE, 2, np.float32)) == 6).all()
    return measured


def test_sums_are_exact_whoever_owns_how_much(jobs: Any) -> None:
    first, *others = jobs(own_unequal_parts, 3, init={"transport": "tcp"}).results()
    assert others == [first, first]
