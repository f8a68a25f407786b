"""Errors on the other ranks when a rank dies, aborts, is late or makes a different call."""

import os
import pickle
import signal
import stat
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfold

WATCHDOG_S = 60.0


def failure(call: Any) -> ringfold.RingfoldError:
    """Return the error that `call` raises."""
    with pytest.raises(ringfold.RingfoldError) as caught:
        call()
    return caught.value


def wait_for_a_death(comm: ringfold.Communicator, count: int, asynchronous: bool) -> Any:
    comm.barrier()
    print("ready", flush=True)
    if comm.rank == 1:
        signal.pause()
    x = np.ones(count)
    if asynchronous:
        error = failure(comm.all_reduce(x, async_=True).wait)
    else:
        error = failure(lambda: comm.all_reduce(x))
    assert isinstance(failure(comm.barrier), type(error))
    return error


def differ_in_counts(comm: ringfold.Communicator) -> str:
    comm.all_reduce(np.ones(3))
    comm.barrier()
    assert comm.stats().calls == 2
    own = comm.standing(20)[comm.rank]
    assert own is not None and own.finished == 2
    with pytest.raises(ringfold.MismatchError) as caught:
        comm.all_reduce(np.ones(10 + comm.rank))
    return str(caught.value)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_mismatch_numbers_the_users_calls_and_names_what_differs(
    jobs: Any, transport: str
) -> None:
    job = jobs(differ_in_counts, 2, init={"transport": transport})
    for text in job.results():
        assert "#3 all_reduce of 10 float64" in text and "#3 all_reduce of 11 float64" in text, text
        assert "; the counts differ" in text, text
        # Each call is named once: the error gives this rank's position in one of the two.
        assert text.count("all_reduce") == 2, text
    # The exception reports it; a warning would repeat it.
    assert all("WARN" not in job.log(rank) for rank in range(2))


@pytest.mark.parametrize("count", [1, 1 << 20])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_survivors_of_a_killed_rank_are_told_its_number(
    jobs: Any, count: int, asynchronous: bool
) -> None:
    job = jobs(wait_for_a_death, 3, count=count, asynchronous=asynchronous)
    for rank in range(3):
        job.wait_for(rank, "ready")
    job.signal(1, signal.SIGKILL)
    for rank in (0, 2):
        error = job.result(rank)
        assert isinstance(error, ringfold.PeerFailedError)
        assert error.rank == 1


def die_in_split(comm: ringfold.Communicator) -> Any:
    # Rank 0 joins no part, and returns when the server has seen all ranks in the split.
    if comm.rank == 0:
        comm.split(None)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        part = comm.split(1)
    except ringfold.RingfoldError as error:
        return error
    # The other ranks split before rank 0 died.
    assert part is not None and part.world_size == 3
    return failure(comm.barrier)


def test_a_part_without_rank_0_that_dies_meanwhile_names_it(jobs: Any) -> None:
    job = jobs(die_in_split, 4)
    for rank in (1, 2, 3):
        error = job.result(rank)
        assert isinstance(error, ringfold.PeerFailedError), repr(error)
        assert error.rank == 0


def abort_while_others_split(comm: ringfold.Communicator) -> Any:
    """Repeatedly make a part whose ranks split it again, while rank 0 aborts the part."""
    found = []
    for _ in range(40):
        part = comm.split(0)
        assert part is not None
        if comm.rank == 0:

            def give_up(part: ringfold.Communicator = part) -> None:
                part.abort("enough")
                comm.send(np.zeros(1), 1)

            thread = threading.Thread(target=give_up)
            thread.start()
        else:
            comm.recv(np.zeros(1), 0)
        try:
            part.split(0)
        except ringfold.RingfoldError as error:
            found.append(type(error))
        if comm.rank == 0:
            thread.join()
        part.close()
    return found


def test_a_split_ends_with_the_communicator_that_is_split(jobs: Any) -> None:
    """The split ends well before the deadline for joining, which is beyond the watchdog's limit."""
    for found in jobs(abort_while_others_split, 2, {"connect_timeout": 600}).results():
        assert set(found) <= {ringfold.AbortedError}


def end_as(comm: ringfold.Communicator, how: str) -> str:
    """End rank 1; return the text of the error that rank 0 gets in a later call."""
    comm.barrier()
    if comm.rank == 0:
        return str(failure(lambda: [comm.all_reduce(np.ones(1000)) for _ in iter(int, 1)]))
    if how == "leave":
        comm.close()
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        comm.abort("first\n\x1b[31mred\0\x9b1m\u202eback")
    return ""


@pytest.mark.parametrize(
    ("how", "transport", "text"),
    [
        ("leave", "tcp", "rank 1 failed: it left (closed its communicator)"),
        ("kill", "tcp", "rank 1 failed: its process ended, or lost its connection"),
        ("kill", "shm", "rank 1 failed: its process ended, or lost its connection"),
        # A foreign text does nothing to a terminal.
        ("abort", "shm", "aborted by rank 1: first\n?[31mred??1m?back"),
    ],
)
def test_an_error_says_how_a_rank_ended(jobs: Any, how: str, transport: str, text: str) -> None:
    found = jobs(end_as, 2, {"transport": transport}, how=how).result(0)
    assert text in found, found


def test_only_this_user_reads_the_log(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setenv("RINGFOLD_DEBUG", "INFO")
    monkeypatch.setenv("RINGFOLD_DEBUG_FILE", str(logs / "%p"))
    jobs(end_as, 2, how="leave").results()
    assert [stat.S_IMODE(file.stat().st_mode) for file in logs.iterdir()] == [0o600] * 2


def give_up(comm: ringfold.Communicator, way: str) -> Any:
    comm.barrier()
    if comm.rank == 2:
        if way == "abort":
            comm.abort("the loss is not a number")
            return failure(comm.barrier)
        with pytest.raises(ZeroDivisionError), comm:
            raise ZeroDivisionError("nothing by nothing")
        return failure(comm.barrier)
    return failure(comm.barrier)


@pytest.mark.parametrize(
    ("way", "reason"),
    [("abort", "the loss is not a number"), ("with", "ZeroDivisionError: nothing by nothing")],
)
def test_an_abort_reaches_all_ranks_with_its_reason(jobs: Any, way: str, reason: str) -> None:
    *others, own = jobs(give_up, 3, way=way).results()
    assert isinstance(own, ringfold.AbortedError if way == "abort" else ringfold.ClosedError)
    for error in others:
        assert isinstance(error, ringfold.AbortedError)
        assert (error.rank, error.reason) == (2, reason)


def raise_outside_of_blocks(comm: ringfold.Communicator) -> Any:
    comm.barrier()
    if comm.rank == 2:
        raise ZeroDivisionError("nothing by nothing")
    return failure(comm.barrier)


def test_an_exception_that_ends_the_program_reaches_all_ranks_as_the_reason(jobs: Any) -> None:
    job = jobs(raise_outside_of_blocks, 3)
    assert job.status(2) == 1 and "ZeroDivisionError: nothing by nothing" in job.log(2)
    for rank in (0, 1):
        error = job.result(rank)
        assert isinstance(error, ringfold.AbortedError)
        assert (error.rank, error.reason) == (2, "ZeroDivisionError: nothing by nothing")


def call_for_ever(comm: ringfold.Communicator) -> None:
    x = np.ones(4)
    comm.all_reduce(x)
    print("ready", flush=True)
    while True:
        comm.all_reduce(x)


def test_ranks_that_are_interrupted_together_end_with_their_tracebacks(jobs: Any) -> None:
    job = jobs(call_for_ever, 4)
    for rank in range(4):
        job.wait_for(rank, "ready")
    for rank in range(4):
        job.signal(rank, signal.SIGINT)
    for rank in range(4):
        assert job.status(rank) == -signal.SIGINT, job.log(rank)
        lines = job.log(rank).splitlines()
        assert "Traceback (most recent call last):" in lines and "KeyboardInterrupt" in lines, (
            job.log(rank)
        )


def call_another(comm: ringfold.Communicator, difference: str) -> Any:
    x = np.ones(100, "float32")
    odd = comm.rank == 1
    calls = {
        "type": lambda: comm.all_reduce(x.astype("int32") if odd else x),
        "count": lambda: comm.all_reduce(x[:50] if odd else x),
        "operation": lambda: comm.all_reduce(x, "max" if odd else "sum"),
        "collective": lambda: comm.all_gather(x) if odd else comm.all_reduce(x),
    }
    return failure(calls[difference])


@pytest.mark.parametrize("difference", ["type", "count", "operation", "collective"])
def test_ranks_in_different_calls_are_told_so(jobs: Any, difference: str) -> None:
    for error in jobs(call_another, 2, {"timeout": 5}, difference=difference).results():
        assert isinstance(error, ringfold.MismatchError), repr(error)
        assert sorted(error.ranks) == [0, 1]
        assert len(error.calls) == 2 and error.calls[0] != error.calls[1]
        for rank, call in zip(error.ranks, error.calls, strict=True):
            assert f"rank {rank} in {call}" in str(error)


def call_another_in_reverse(comm: ringfold.Communicator) -> Any:
    part = comm.split(0, key=-comm.rank)
    assert part is not None
    return failure(lambda: part.all_reduce(np.ones(10 + part.rank)))


def test_different_calls_are_told_with_the_ranks_of_the_communicator(jobs: Any) -> None:
    for error in jobs(call_another_in_reverse, 3, {"timeout": 5}).results():
        assert isinstance(error, ringfold.MismatchError), repr(error)
        for rank, call in zip(error.ranks, error.calls, strict=True):
            assert f" of {10 + rank} float64" in call, str(error)


def reduce_to_each_other(comm: ringfold.Communicator, calls_after: int) -> Any:
    """Reduce as many slices as there are slots; two ranks each name the other as the root."""
    x = np.ones(65536)
    try:
        comm.reduce(x, 1 - comm.rank, "min", algorithm="flat")
        for _ in range(calls_after):
            comm.gather(x, 0, algorithm="direct")
        comm.all_reduce(x[:2])
        comm.barrier()
    except ringfold.RingfoldError as error:
        return error
    return None


@pytest.mark.parametrize("calls_after", [0, 1, 2, 9])
def test_ranks_that_did_not_meet_are_told_before_their_slots_are_used_again(
    jobs: Any, calls_after: int
) -> None:
    for error in jobs(reduce_to_each_other, 2, calls_after=calls_after).results():
        assert isinstance(error, ringfold.MismatchError), repr(error)
        # Found either where both ranks use the same memory, or by the next call without a root.
        text = str(error)
        names_roots = "root 0" in text and "root 1" in text
        assert names_roots or "an earlier collective with a root" in text, text


def come_late(comm: ringfold.Communicator) -> Any:
    comm.barrier()
    if comm.rank == 1:
        # Waits until the job is ended: this rank must not leave.
        print("absent", flush=True)
        signal.pause()
    return failure(lambda: comm.all_reduce(np.ones(10), timeout=0.3))


def test_a_deadline_names_who_did_not_come(jobs: Any) -> None:
    job = jobs(come_late, 3)
    for rank in (0, 2):
        error = job.result(rank)
        assert isinstance(error, ringfold.RingfoldTimeoutError) and isinstance(error, TimeoutError)
        assert error.waiting_for == [1]
        assert error.after_ms >= 300


def wait_in(comm: ringfold.Communicator, how: str) -> Any:
    comm.barrier()
    if comm.rank == 0:
        print("absent", flush=True)
        signal.pause()
    x = np.ones(1000)
    started = [] if how == "call" else [comm.all_reduce(x, async_=True)]
    waits: dict[str, Any] = {
        "call": lambda: comm.all_reduce(x),
        "work": lambda: started[0].wait(),
        "limited": lambda: started[0].wait(30),
        "close": comm.close,
        "split": lambda: comm.split(0),
    }
    try:
        # The signal may arrive before this returns.
        print("waiting", flush=True)
        waits[how]()
    except KeyboardInterrupt:
        return "interrupted"
    return "not interrupted"


def test_the_patience_with_other_hosts_has_bounds() -> None:
    ringfold.init(0, 1, peer_timeout=6.0).close()
    with pytest.raises(ringfold.InvalidArgumentError, match="2000 to 120000 ms"):
        ringfold.init(0, 1, peer_timeout=1.0)


@pytest.mark.parametrize("how", ["call", "work", "limited", "close", "split"])
def test_ctrl_c_ends_every_wait(jobs: Any, how: str) -> None:
    job = jobs(wait_in, 2, how=how)
    job.wait_for(0, "absent")
    job.wait_for(1, "waiting")
    # The line is printed before the wait. A signal that arrives in between is seen in Python, or at
    # the wait's first check.
    job.signal(1, signal.SIGINT)
    assert job.result(1) == "interrupted"


def interrupted_elsewhere(comm: ringfold.Communicator) -> Any:
    comm.barrier()
    if comm.rank == 1:
        started = comm.recv(np.empty(1), 0, async_=True)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            started.wait()
        return None
    return failure(lambda: comm.recv(np.empty(1), 1))


def test_an_interrupted_rank_does_not_leave_the_others_waiting(jobs: Any) -> None:
    other, _ = jobs(interrupted_elsewhere, 2).results()
    assert isinstance(other, ringfold.AbortedError)
    assert other.rank == 1 and "KeyboardInterrupt" in other.reason


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ringfold.RingfoldTimeoutError, TimeoutError),
        (ringfold.InvalidArgumentError, ValueError),
        (ringfold.UnsupportedError, NotImplementedError),
        (ringfold.RingfoldSystemError, OSError),
        (ringfold.PeerFailedError, RuntimeError),
    ],
)
def test_errors_are_also_pythons_own(
    error: type[ringfold.RingfoldError], builtin: type[Exception]
) -> None:
    made = error("text")
    assert isinstance(made, builtin) and isinstance(made, ringfold.RingfoldError)
    assert str(pickle.loads(pickle.dumps(made))) == "text"


def outlive_the_server(comm: ringfold.Communicator, folder: str) -> str | None:
    """End rank 0, whose process serves the job; then close the only rank that could send."""
    part = comm.split(0 if comm.rank else None)
    done = Path(folder) / "done"
    if part is None:
        return None
    if comm.rank == 1:
        with pytest.raises(ringfold.PeerFailedError) as error:
            part.recv(np.zeros(1), None)
        done.touch()
        return str(error.value)
    time.sleep(1)
    part.close()
    deadline = time.monotonic() + WATCHDOG_S
    # This process stays until rank 1 has seen this rank leave.
    while not done.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return None


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_receive_from_any_rank_sees_the_others_leave_without_a_server(
    jobs: Any, tmp_path: Path, transport: str
) -> None:
    init = {"transport": transport}
    job = jobs(outlive_the_server, 3, init, folder=str(tmp_path))
    assert "rank 1 failed: it left" in job.results()[1]
