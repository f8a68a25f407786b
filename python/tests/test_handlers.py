"""Use of a communicator from signal handlers and other threads during one of its calls."""

import gc
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ringfold

WATCHDOG_S = 120.0


def signal_when_waiting(part: ringfold.Communicator, process: int) -> None:
    """Send SIGALRM to `process`, rank 0 of `part`, when rank 0 waits in a call."""
    deadline = time.monotonic() + WATCHDOG_S
    while (standing := part.standing(1)[0]) is None or not standing.call:
        assert time.monotonic() < deadline, standing
    os.kill(process, signal.SIGALRM)


class Dropped:
    """Uses its communicator when the garbage collector finds it in a cycle.

    The finalizer closes the memory and reads the statistics.
    """

    def __init__(self, part: ringfold.Communicator, memory: Any) -> None:
        self.own, self.part, self.memory = self, part, memory

    def __del__(self) -> None:
        self.memory.close()
        self.part.stats()


# The handler's action while its thread waits, and whether rank 1 makes the same call after the
# interrupted one.
HANDLERS: dict[str, tuple[Callable[[ringfold.Communicator], Any], bool]] = {
    "figures": (
        lambda part: [read() for read in (part.stats, part.reset_stats, lambda: part.standing(1))],
        False,
    ),
    "call": (lambda part: part.all_reduce(np.ones(3)), True),
    "large call": (lambda part: part.all_gather(np.ones(100_000)), True),
    "started call": (lambda part: part.all_reduce(np.ones(3), async_=True).wait(), True),
    "message": (
        lambda part: part.send(np.ones(3), 1) if part.rank == 0 else part.recv(np.ones(3), 0),
        True,
    ),
    "memory": (lambda part: part.empty(100), True),
    "registration": (lambda part: part.register(np.zeros(100_000)).close(), True),
    "part": (lambda part: part.split(0).close(), True),  # type: ignore[union-attr]
    "collector": (
        lambda part: (Dropped(part, part.register(np.zeros(100_000))), gc.collect()),
        True,
    ),
    "abort": (lambda part: part.abort("preempted"), False),
    "close": (lambda part: part.close(), False),
}


def use_in_handlers(comm: ringfold.Communicator, waits: str) -> Any:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    process = comm.broadcast(np.array([os.getpid()]), 0)[0]
    endings: dict[str, str] = {}
    has_handled = {}
    parts = []
    for what, (use, is_collective) in HANDLERS.items():
        part = comm.split(0)
        assert part is not None
        # Rank 1 keeps the part open while rank 0 may wait in it.
        parts.append(part)
        handled: list[bool] = []

        def handle(
            *_: Any, part: Any = part, use: Any = use, handled: list[bool] = handled
        ) -> None:
            use(part)
            handled.append(True)

        if comm.rank == 0:
            signal.signal(signal.SIGALRM, handle)
        comm.barrier()
        try:
            if comm.rank == 1:
                signal_when_waiting(part, int(process))
            if what in ("abort", "close") and comm.rank == 1:
                continue
            if waits == "call":
                part.all_reduce(np.ones(3))
            else:
                part.all_reduce(np.ones(3), async_=True).wait(
                    None if waits == "work" else WATCHDOG_S
                )
            if comm.rank == 1 and is_collective:
                use(part)
            endings[what] = "ok"
        except ringfold.RingfoldError as error:
            endings[what] = type(error).__name__
        finally:
            if comm.rank == 0:
                signal.signal(signal.SIGALRM, signal.SIG_IGN)
                has_handled[what] = bool(handled)
    comm.barrier()
    return endings, all(has_handled.values())


@pytest.mark.parametrize("waits", ["call", "work", "limited"])
def test_a_handler_uses_the_communicator_in_whose_call_its_thread_is(jobs: Any, waits: str) -> None:
    (zero, has_handled), (one, _) = jobs(use_in_handlers, 2, waits=waits).results()
    assert has_handled
    assert zero == {
        what: {"abort": "Aborted", "close": "Closed"}.get(what, "ok") for what in HANDLERS
    }
    assert set(one.values()) == {"ok"}


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
    assert calls == 0 and ended == ["Aborted"]


def leave_a_daemon(comm: ringfold.Communicator) -> Any:
    comm.barrier()
    if comm.rank == 0:
        threading.Thread(target=lambda: comm.recv(np.empty(1), 1), daemon=True).start()
        while not comm.standing(1)[0].call:  # type: ignore[union-attr]
            pass
        raise SystemExit(3)
    try:
        comm.barrier()
    except ringfold.Aborted as error:
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
