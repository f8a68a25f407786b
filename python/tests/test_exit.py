"""The end of a process: running callbacks, forks in callbacks, children of `multiprocessing`.

docs/reference/contexts.md has the guarantees.
"""

import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ringfold

WATCHDOG_S = 120.0
REASON = "the loss is infinite" if sys.version_info < (3, 13) else "rank 0 failed: it left"
"""Expected text; since Python 3.13, `multiprocessing` does not report a child's exception."""
LATE_S = 1.2
"""Longer than the exit waits for a call in a daemon thread."""

KEPT: list[Any] = []
"""Communicators and executors that stay open until the exit."""


def start_alone(comm: ringfold.Communicator, then: Any) -> None:
    """Start a call of rank 0 in a new communicator; `then` runs when rank 1 has joined the call."""
    part = comm.split(0)
    assert part is not None
    KEPT.append(part)
    if comm.rank == 0:
        part.all_reduce(np.ones(3), async_=True).when_done(then)
        comm.send(np.zeros(1), 1)
    else:
        comm.recv(np.zeros(1), 0)
        part.all_reduce(np.ones(3))


def call_last() -> None:
    threading.main_thread().join()
    time.sleep(LATE_S)
    print(KEPT[0].all_reduce(np.full(1, 1.0))[0], flush=True)


def end_before_a_callback(comm: ringfold.Communicator) -> Any:
    start_alone(comm, call_last)
    return None if comm.rank == 0 else KEPT[0].all_reduce(np.full(1, 2.0))[0]


def test_the_exit_waits_for_a_callback_that_makes_calls(jobs: Any) -> None:
    job = jobs(end_before_a_callback, 2)
    assert job.results() == [None, 3.0]
    assert job.log(0).split() == ["3.0"]


def wait_for_ever() -> None:
    threading.main_thread().join()
    print("waiting", flush=True)
    threading.Event().wait()


def end_before_the_end_of_time(comm: ringfold.Communicator) -> None:
    start_alone(comm, wait_for_ever)


def test_ctrl_c_ends_the_wait_for_a_callback(jobs: Any) -> None:
    job = jobs(end_before_the_end_of_time, 2)
    job.wait_for(0, "waiting")
    deadline = time.monotonic() + WATCHDOG_S
    # The first signal may arrive before the wait.
    while job.processes[0].poll() is None and time.monotonic() < deadline:
        job.signal(0, signal.SIGINT)
        time.sleep(0.2)
    assert job.status(0) in (0, 1, -signal.SIGINT)
    assert job.status(1) == 0


def fork_in_callbacks(comm: ringfold.Communicator, statuses: list[int | None]) -> Any:
    found: queue.Queue[int] = queue.Queue()

    def fork(status: int | None) -> None:
        child = os.fork()
        if child == 0:
            # The callback's thread is the child's only thread; the child ends with it.
            if status is not None:
                sys.exit(status)
            return
        found.put(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    for status in statuses:
        start_alone(comm, lambda status=status: fork(status))
    return [found.get(timeout=WATCHDOG_S) for _ in statuses] if comm.rank == 0 else None


def test_a_child_of_a_callback_ends_with_it(jobs: Any) -> None:
    job = jobs(fork_in_callbacks, 2, statuses=[7, None, 0])
    # Each call has its own communicator, so they end in any order.
    assert sorted(job.result(0)) == [0, 0, 7]


def be_child(rank: int, address: str, fails: bool, left: Any, found: Any) -> None:
    """Return from rank 0, or raise there, while one of its messages is in transit."""
    comm = ringfold.init(rank=rank, world_size=2, address=address, timeout=30)
    x = np.full(2_000_000, 1.0 - rank)
    if rank == 0:
        comm.send(x, 1, async_=True)
        left.set()
        if fails:
            raise ValueError("the loss is infinite")
        return
    assert left.wait(WATCHDOG_S)
    try:
        comm.recv(x, 0)
        # Rank 1 sees the failure of rank 0 now or in a later call.
        while fails:
            comm.recv(x, 0)
        found.put(float(x.min()))
    except ringfold.RingfoldError as error:
        found.put(str(error))


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_children_of_multiprocessing_close(method: str, fails: bool) -> None:
    context: Any = multiprocessing.get_context(method)
    left, found = context.Event(), context.Queue()
    address = f"unix:@ringfold-test-{uuid.uuid4().hex}"
    children = [
        context.Process(target=be_child, args=(rank, address, fails, left, found))
        for rank in range(2)
    ]
    try:
        for child in children:
            child.start()
        outcome = found.get(timeout=WATCHDOG_S)
        assert outcome == 1.0 if not fails else REASON in outcome, outcome
        for child in children:
            child.join(WATCHDOG_S)
        assert [child.exitcode for child in children] == [int(fails), 0]
    finally:
        for child in children:
            if child.is_alive():
                child.kill()


IN_A_SUBINTERPRETER = """
try:
    import ringfold
except ImportError:
    print("refused", flush=True)
"""
WITH_SUBINTERPRETERS = f"""
import numpy as np
import ringfold
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
comm = ringfold.init(rank=0, world_size=1)
comm.all_reduce(np.ones(3), async_=True).when_done(lambda: print("called", flush=True))
# One that is ended, and one that is left to the end of the process.
for ends in (True, False):
    each = interpreters.create()
    interpreters.run_string(each, {IN_A_SUBINTERPRETER!r})
    if ends:
        interpreters.destroy(each)
print(comm.all_reduce(np.ones(1))[0])
"""


def test_subinterpreters_are_refused_and_the_process_ends() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITH_SUBINTERPRETERS],
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        check=False,
    )
    assert ended.returncode == 0, ended
    assert ended.stdout.count("refused") == 2, ended
    assert "called" in ended.stdout and "1.0" in ended.stdout, ended


def reduce_later(rank: int, address: str, found: Any) -> None:
    """Reduce from a child's thread after the child's function has returned.

    The child also has an executor without work.
    """
    executor = ThreadPoolExecutor(1)
    KEPT.append(executor)
    executor.submit(int).result()
    comm = ringfold.init(rank=rank, world_size=2, address=address, timeout=30)

    def reduce() -> None:
        # Longer than an exit waits for calls of daemon threads.
        time.sleep(LATE_S)
        found.put(float(comm.all_reduce(np.ones(1))[0]))

    threading.Thread(target=reduce).start()


def test_a_child_of_multiprocessing_waits_for_its_threads() -> None:
    context: Any = multiprocessing.get_context("fork")
    found = context.Queue()
    address = f"unix:@ringfold-test-{uuid.uuid4().hex}"
    children = [
        context.Process(target=reduce_later, args=(rank, address, found)) for rank in range(2)
    ]
    for child in children:
        child.start()
    assert [found.get(timeout=WATCHDOG_S) for _ in children] == [2.0, 2.0]
    for child in children:
        child.join(WATCHDOG_S)
        assert child.exitcode == 0
