"""Progress of all ranks, queried while calls are stuck."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfold
from ringfold import Standing

Standings = list[Standing | None]
WATCHDOG_S = 120.0


def ask_until(comm: ringfold.Communicator, is_told: Callable[[Standings], bool]) -> Standings:
    """Repeat the query until the answer satisfies `is_told`."""
    deadline = time.monotonic() + WATCHDOG_S
    while not is_told(standings := comm.standing(0.2)):
        assert time.monotonic() < deadline, standings
    return standings


def wait_for_rank_2(comm: ringfold.Communicator, folder: str) -> Any:
    go_on = Path(folder, "go on")
    comm.barrier()
    if comm.rank == 2:
        # First busy with other work, then stopped, then in the call.
        while not go_on.exists():
            time.sleep(0.005)
        print("freezes", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    result = np.ones(5)
    call = threading.Thread(target=lambda: comm.all_reduce(result, out=result))
    call.start()
    told = None
    if comm.rank == 0:
        late = ask_until(
            comm, lambda all_: all(rank is not None and rank.call for rank in all_[:2])
        )
        go_on.touch()
        frozen = ask_until(comm, lambda all_: all_[2] is None)
        print("seen", flush=True)
        told = late, frozen
    call.join()
    comm.barrier()
    done = comm.standing(5)
    comm.barrier()
    return result.tolist(), told, done


def test_who_is_late_and_who_is_frozen_is_told_while_a_call_is_stuck(
    jobs: Any, tmp_path: Path
) -> None:
    job = jobs(wait_for_rank_2, 3, folder=str(tmp_path))
    job.wait_for(0, "seen")
    job.signal(2, signal.SIGCONT)
    results = job.results()
    # The queries did not make any call fail.
    assert [result for result, _, _ in results] == [[3.0] * 5] * 3
    (_, (late, frozen), _), *_ = results
    for rank in (0, 1):
        assert late[rank].begun == late[rank].finished + 1 == late[2].begun + 1
        assert "all_reduce of 5 float64 sum" in late[rank].call, late[rank]
        assert frozen[rank].begun == late[rank].begun
    assert late[2].finished == late[2].begun and late[2].call == ""
    assert frozen[2] is None
    for _, _, done in results:
        assert all(rank is not None and rank.finished >= late[0].begun for rank in done), done


def leave_and_ask(comm: ringfold.Communicator) -> Any:
    part = comm.split(0, key=-comm.rank)
    assert part is not None
    if comm.rank == 0:
        part.close()
        with pytest.raises(ringfold.ClosedError):
            part.standing(1)
    comm.barrier()
    left = None if comm.rank == 0 else [rank is None for rank in part.standing(5)]
    comm.barrier()
    return left


def test_who_has_left_is_left_out(jobs: Any) -> None:
    # Rank 0 of the job is the last rank of the part.
    assert jobs(leave_and_ask, 3).results() == [None, [False, False, True], [False, False, True]]


def die_and_ask(comm: ringfold.Communicator) -> Any:
    comm.barrier()
    if comm.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(ringfold.PeerFailedError):
        comm.barrier()
    return [rank is not None for rank in comm.standing(5)]


def test_without_rank_0_a_rank_knows_of_itself_alone(jobs: Any) -> None:
    job = jobs(die_and_ask, 3)
    assert [job.result(rank) for rank in (1, 2)] == [[False, True, False], [False, False, True]]


def test_a_job_of_one_knows_how_far_it_is() -> None:
    with ringfold.init() as comm:
        (before,) = comm.standing()
        comm.all_reduce(np.ones(3))
        (after,) = comm.standing()
        assert before is not None and after == Standing(before.finished + 1, before.begun + 1, "")
        with pytest.raises(ringfold.InvalidArgumentError):
            comm.standing(-1)
