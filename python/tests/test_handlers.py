"""Calls of other threads, and threads that cannot start."""

import os
import resource
import signal
import threading
from typing import Any

import numpy as np
import pytest

import ringfold


def in_another_thread(comm: ringfold.Communicator) -> Any:
    comm.barrier()
    if comm.rank == 1:
        comm.recv(np.empty(1), 0)
        return None
    ended = []
    begun = comm.stats().calls

    def receive() -> None:
        try:
            comm.recv(np.empty(1), 1)
        except ringfold.RingfoldError as error:
            ended.append(type(error).__name__)

    thread = threading.Thread(target=receive)
    thread.start()
    while not comm.standing(1)[0].call:  # type: ignore[union-attr]
        pass
    # Neither call waits for the receive, whose deadline is far away.
    calls = comm.stats().calls - begun
    comm.reset_stats()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(KeyboardInterrupt):
        comm.close()
    thread.join()
    return calls, ended


def test_another_thread_neither_waits_for_a_call_nor_goes_deaf(jobs: Any) -> None:
    job = jobs(in_another_thread, 2, {"timeout": 300})
    (calls, ended) = job.result(0)
    assert calls == 0 and ended == ["AbortedError"]


def leave_a_daemon(comm: ringfold.Communicator) -> Any:
    comm.barrier()
    if comm.rank == 0:
        threading.Thread(target=lambda: comm.recv(np.empty(1), 1), daemon=True).start()
        while not comm.standing(1)[0].call:  # type: ignore[union-attr]
            pass
        raise SystemExit(3)
    try:
        comm.barrier()
    except ringfold.AbortedError as error:
        return error.reason
    return None


def test_a_daemon_thread_in_a_call_does_not_hold_up_the_end_of_the_interpreter(jobs: Any) -> None:
    job = jobs(leave_a_daemon, 2, {"timeout": 300})
    assert "the interpreter ends" in job.result(1)
    assert job.status(0) == 3


def start_without_threads(comm: ringfold.Communicator) -> Any:
    count = 1 << 20
    x = np.full(count, 1.0 + comm.rank, "float32")
    refused = None
    if comm.rank == 0:
        given = np.full(count, 40.0, "float32")
        is_root = os.getuid() == 0
        if is_root:
            # No limit applies to root; the original limit can be restored.
            os.setresuid(65534, 65534, 0)
        soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
        try:
            comm.all_reduce(given, out=given, async_=True)
        except ringfold.RingfoldSystemError as error:
            refused = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
            if is_root:
                os.setresuid(0, 0, 0)
        given.fill(-5.0)
    else:
        given = x
    comm.all_reduce(x, out=x)
    comm.barrier()
    return refused, float(x.min()), float(x.max()), float(given.min())


def test_a_call_that_could_not_be_started_is_not_carried_out_later(jobs: Any) -> None:
    zero, one = jobs(start_without_threads, 2).results()
    assert zero[0] is not None and "cannot start the thread" in zero[0]
    assert zero[1:] == (3.0, 3.0, -5.0)
    assert one[1:3] == (3.0, 3.0)
