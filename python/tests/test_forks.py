"""No forked child hangs if other threads enter the interpreter during the fork."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfold

FORKS = 20
CHILD_S = 30.0
"""Time after which a child counts as hung and is killed."""

SLOW_UNLOCKS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <unistd.h>

/* Python's locks are semaphores: the threads of callbacks hold each of them for long. */
int sem_post(sem_t *semaphore) {
    int (*post)(sem_t *) = (int (*)(sem_t *))dlsym(RTLD_NEXT, "sem_post");
    char name[16];
    if (pthread_getname_np(pthread_self(), name, sizeof name) == 0
        && strcmp(name, "ringfold-done") == 0)
        usleep(300);
    return post(semaphore);
}
"""


def forked() -> int:
    """Fork a child that exits at once, and return its exit status."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    limit = time.monotonic() + CHILD_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > limit:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.0005)


def fork_beside_callbacks(comm: ringfold.Communicator) -> list[int]:
    """Fork in a thread of rank 0 until a child fails, while callbacks run on all ranks."""
    statuses: list[int] = []

    def fork() -> None:
        while len(statuses) < FORKS and not any(statuses):
            statuses.append(forked())

    forking = threading.Thread(target=fork)
    if comm.rank == 0:
        forking.start()
    goes_on = np.ones(1)
    while goes_on[0]:
        calls = [comm.all_reduce(np.ones(1), async_=True) for _ in range(10)]
        for call in calls:
            call.when_done(lambda: None)
        for call in calls:
            call.wait()
        goes_on = comm.all_reduce(np.full(1, float(forking.is_alive())))
    return statuses


def test_no_child_of_a_fork_beside_callbacks_hangs(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "slow_unlocks.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library, "-ldl"],
        input=SLOW_UNLOCKS.encode(),
        check=True,
    )
    monkeypatch.setenv("LD_PRELOAD", str(library))
    assert jobs(fork_beside_callbacks, 2).results() == [[0] * FORKS, []]


def test_forks_beside_callbacks_do_not_wait_for_a_thread_that_waits_for_python(
    jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Makes a callback's thread wait for the interpreter at every allocation. A fork that waits for
    # such a thread takes 30 s, and so many forks take longer than a job may.
    monkeypatch.setenv("PYTHONTRACEMALLOC", "1")
    statuses, none = jobs(fork_beside_callbacks, 2).results()
    # One child of some thousands hangs in Python 3.11: a thread that ends frees memory without the
    # interpreter's lock, and tracemalloc's lock, taken meanwhile, stays taken in the child.
    assert set(statuses) <= {0, -signal.SIGKILL} and none == []
