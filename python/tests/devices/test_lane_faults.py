"""What becomes of lanes when a rank is killed, stopped or aborts between any two operations of its
device: streams go on, results are right or no numbers, later calls name the rank, nothing stays.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import softcuda

import ringfold
from ringfold._lane import DeviceRequest, DeviceWork, Lane

COUNT = 2500
"""Elements of three slices, one more than there are slots."""

SIZES: Any = {"slot_bytes": 4096, "depth": 2}
TIMEOUT_S = 1.5
"""The deadline of calls that wait for a stopped rank."""

POINTS = [0, 7, 16]
"""Operations of the device after which a rank ends, in each check: the deep one takes all."""

SLICED = ["host", "gather"]
"""Kinds of calls in slices: a sum by the CPUs, and an all_gather, whose data devices read from the
slots of all ranks. A sum by one kernel is of the kind `one_shot`."""

SMALL_COUNT = 400
"""Elements of a call that one kernel does."""

ERRORS = {"kill": "PeerFailedError", "stop": "RingfoldTimeoutError", "abort": "AbortedError"}


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ranks use the software driver; what waits in it for ever ends the process."""
    monkeypatch.setenv("RINGFOLD_CUDA_LIBRARY", str(softcuda.library()))
    monkeypatch.setenv("SOFTCUDA_ABORT_MS", "30000")


def sum_in_place(address: int, count: int = COUNT, timeout: float | None = None) -> DeviceRequest:
    """A sum of what stands there."""
    place = [(address, 4 * count)]
    return DeviceRequest("all_reduce", "float32", count, place, place, timeout=timeout)


def call(
    lane: Lane, kind: str, program: softcuda.Program, timeout: float | None = None
) -> tuple[DeviceRequest, int, Any]:
    """A call of this kind, its result's address, and what stands there then."""
    if kind != "gather":
        ones = np.ones(SMALL_COUNT if kind == "one_shot" else COUNT, np.float32)
        address = program.upload(ones)
        return sum_in_place(address, len(ones), timeout), address, 2 * ones
    due = np.repeat(np.array([1, 2], np.float32), COUNT)
    address = program.upload(np.zeros_like(due))
    given = [(program.upload(due[lane.rank * COUNT :][:COUNT]), 4 * COUNT)]
    place = [(address, 8 * COUNT)]
    request = DeviceRequest("all_gather", "float32", COUNT, given, place, timeout=timeout)
    return request, address, due


def end(lane: Lane, how: str) -> None:
    """End this rank, or the lane."""
    if how == "abort":
        lane.abort("the loss is infinite")
        return
    print("over", flush=True)
    os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)


def ends_after(comm: ringfold.Communicator, how: str, point: int, kind: str) -> Any:
    """A rank whose device makes `point` operations of a call, one by one, before it ends."""
    if comm.rank == 0:
        return sees_the_end(comm, kind, TIMEOUT_S if how == "stop" else None)
    os.environ["SOFTCUDA_MODE"] = "stepped"
    program, lane = softcuda.Program(), Lane(comm, one_shot=kind == "one_shot", **SIZES)
    request, _, _ = call(lane, kind, program)
    # While it is enqueued none of its operations runs, so there are always as many.
    program.hold()
    work = lane.enqueue([request], program.stream)
    program.let_go()
    for _ in range(point):
        while not program.step() and not work.done():
            time.sleep(0.0005)
        if work.done():
            # Not because the other rank found this one too slow.
            if lane.fault() is None:
                print("too far", flush=True)
            break
    end(lane, how)
    while program.step():
        pass
    return None


def sees_the_end(comm: ringfold.Communicator, kind: str, timeout: float | None) -> Any:
    """Makes one call after the other until one is refused."""
    program = softcuda.Program()
    try:
        lane = Lane(comm, one_shot=kind == "one_shot", **SIZES)
    except ringfold.RingfoldError as error:
        # The other rank has its lane, and ends before this one knows of its own.
        return type(error).__name__, str(error), program.pinned()
    while True:
        request, address, due = call(lane, kind, program, timeout)
        try:
            work = lane.enqueue([request], program.stream)
        except ringfold.RingfoldError as error:
            failed = error
            break
        try:
            work.join(program.stream)
        except ringfold.RingfoldError:
            # The stream waits all the same.
            pass
        found = program.download(address, due)
        assert ((found == due) | np.isnan(found)).all(), found
        # After a fault the stream does not wait for the copies of its input.
        while not work.done():
            time.sleep(0.0005)
    try:
        lane.close()
    except ringfold.RingfoldError as error:
        assert type(error) is type(failed)
    return type(failed).__name__, str(failed), program.pinned()


def check(jobs: Any, how: str, point: int, kind: str = "host") -> bool:
    """Whether the rank ended before its device had done the call."""
    job = jobs(ends_after, 2, how=how, point=point, kind=kind)
    error, text, pinned = job.result(0)
    assert error == ERRORS[how], (point, text)
    assert "rank 1" in text, text
    # The program's own page.
    assert pinned == 1, (point, text)
    job.end()
    return "too far" not in job.log(1)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("how", ["kill", "abort"])
def test_a_rank_ends_within_a_call(jobs: Any, how: str, point: int) -> None:
    assert check(jobs, how, point)


@pytest.mark.parametrize(("how", "point"), [("kill", 9), ("abort", 5)])
def test_a_rank_ends_while_devices_read_its_slots(jobs: Any, how: str, point: int) -> None:
    assert check(jobs, how, point, "gather")


@pytest.mark.parametrize("how", ERRORS)
def test_a_rank_ends_while_a_kernel_waits_for_it(jobs: Any, how: str) -> None:
    """Its own kernel has not begun."""
    assert check(jobs, how, 0, "one_shot")


def test_a_rank_stops_within_a_call(jobs: Any) -> None:
    """The other rank's deadline ends the call."""
    assert check(jobs, "stop", POINTS[1])


@pytest.mark.deep
@pytest.mark.parametrize("kind", SLICED)
@pytest.mark.parametrize("how", ERRORS)
def test_a_rank_ends_after_each_operation(jobs: Any, how: str, kind: str) -> None:
    """Point after point, until a call is done before its rank ends."""
    point = 0
    while check(jobs, how, point, kind):
        point += 1
    assert point >= max(POINTS), "more operations than the short test knows"


def joins_what_is_refused(comm: ringfold.Communicator) -> Any:
    """The driver of rank 1 does not let a stream wait for a call."""
    program, lane = softcuda.Program(), Lane(comm, **SIZES)
    ones = np.ones(COUNT, np.float32)
    address = program.upload(ones)
    work = lane.enqueue([sum_in_place(address)], program.stream)
    # Before the other rank's lane ends.
    assert work.wait()
    comm.barrier()
    if comm.rank == 1:
        program.refuse("cuStreamWaitEvent", 1)
        with pytest.raises(ringfold.AbortedError, match="refused"):
            work.join(program.stream)
    while (fault := lane.fault()) is None:
        time.sleep(0.0005)
    found = program.download(address, ones)
    with pytest.raises(ringfold.AbortedError):
        lane.enqueue([sum_in_place(address)], program.stream)
    assert isinstance(fault, ringfold.AbortedError)
    return fault.rank, str(fault), (found == 2).all()


def test_a_refused_join_ends_the_lane_on_all_ranks(jobs: Any) -> None:
    """As any other refusal of the driver."""
    for rank, text, is_right in jobs(joins_what_is_refused, 2).results():
        assert rank == 1 and "cuStreamWaitEvent" in text
        assert is_right


def calls_while_memory_is_freed(comm: ringfold.Communicator, seed: int, one_shot: bool) -> Any:
    """Calls of all sizes, while another thread holds the driver until the device is idle."""
    program, lane = softcuda.Program(), Lane(comm, one_shot=one_shot, **SIZES)
    ended = threading.Event()

    def churn() -> None:
        while not ended.is_set():
            program.allocate_and_free()

    thread = threading.Thread(target=churn)
    thread.start()
    wrong = 0
    for count in sizes(seed):
        ones = np.full(count, comm.rank + 1, np.float32)
        addresses = [program.upload(ones) for _ in range(3)]
        requests = [sum_in_place(address, count) for address in addresses]
        works = [lane.enqueue([request], program.stream) for request in requests]
        works[-1].join(program.stream)
        total = sum(range(1, comm.world_size + 1))
        wrong += sum((program.download(each, ones) != total).any() for each in addresses)
    ended.set()
    thread.join()
    lane.close()
    return wrong, program.pinned()


def sizes(seed: int) -> Iterator[int]:
    """Random numbers of elements, of up to ten slices; the same on all ranks."""
    random = np.random.default_rng(seed)
    yield from (int(count) for count in random.integers(1, 10_000, size=12))


@pytest.mark.parametrize("queues, one_shot", [("1", False), ("0", False), ("1", True)])
def test_memory_may_be_freed_while_calls_are_enqueued(
    jobs: Any, monkeypatch: pytest.MonkeyPatch, queues: str, one_shot: bool
) -> None:
    """Closed order: it holds where each stream has a queue, and where all share one, and with
    kernels, which the driver also compiles then.
    """
    if queues != "0":
        monkeypatch.setenv("SOFTCUDA_QUEUES", queues)
    seed = 1
    print(f"seed {seed}")
    for wrong, pinned in jobs(
        calls_while_memory_is_freed, 3, seed=seed, one_shot=one_shot
    ).results():
        assert wrong == 0
        assert pinned == 1
