"""Lanes from Python, over the software driver: jobs of processes with a device each."""

import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import softcuda

import ringfold
from ringfold._lane import DeviceRequest, DeviceWork, Lane

COUNT = 5000
"""Elements of several slices."""

SIZES: Any = {"slot_bytes": 4096, "depth": 2}


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ranks use the software driver."""
    monkeypatch.setenv("RINGFOLD_CUDA_LIBRARY", str(softcuda.library()))


def all_reduce(lane: Lane, address: int, stream: int, count: int = COUNT) -> DeviceWork:
    """A sum in place."""
    place = [(address, 4 * count)]
    return lane.enqueue([DeviceRequest("all_reduce", "float32", count, place, place)], stream)


def sums_pieces(comm: ringfold.Communicator) -> Any:
    program, lane = softcuda.Program(), Lane(comm, **SIZES)
    ones, zeros = np.ones(COUNT, np.int32), np.zeros(COUNT, np.int32)
    pieces = [program.upload(zeros) for _ in range(2)]
    result, copy = program.upload(zeros), program.upload(zeros)
    program.hold()
    for piece in pieces:
        program.fill(piece, comm.rank + 1, 4 * COUNT)
    work = lane.enqueue(
        [
            DeviceRequest(
                "all_reduce",
                "int32",
                2 * COUNT - 100,
                [(pieces[0] + 400, 4 * (COUNT - 100)), (pieces[1], 4 * COUNT)],
                [(result, 4 * COUNT), (copy, 4 * (COUNT - 100))],
            ),
            DeviceRequest(
                "broadcast",
                "int32",
                100,
                [(pieces[0], 400)] if comm.rank == 1 else [],
                [(copy + 4 * (COUNT - 100), 400)],
                root=1,
            ),
        ],
        program.stream,
    )
    held = (work.done(), work.wait(0))
    work.join(program.stream)
    # Behind the call: it must not reach the call's input.
    program.fill(pieces[1], 0, 4 * COUNT)
    program.let_go()
    found = [program.download(each, ones) for each in (result, copy)]
    ended = (work.done(), work.wait())
    names = (lane.rank, lane.world_size, lane.device, lane.result_stream > 0)
    lane.close()
    lane.close()
    with pytest.raises(ringfold.ClosedError):
        all_reduce(lane, result, program.stream)
    return held, found, ended, names


def test_calls_are_ordered_by_the_stream(jobs: Any) -> None:
    """Lists of pieces, two calls together, behind a stream that is held: nothing waits."""
    for rank, (held, found, ended, names) in enumerate(jobs(sums_pieces, 2).results()):
        total, second = 0x03030303, 0x02020202
        assert held == (False, False)
        assert (found[0] == total).all()
        assert (found[1][:-100] == total).all() and (found[1][-100:] == second).all()
        assert ended == (True, True)
        assert names == (rank, 2, 0, True)


def refuses(comm: ringfold.Communicator) -> Any:
    program, lane = softcuda.Program(), Lane(comm, **SIZES)
    values = np.full(COUNT, comm.rank + 1, np.float32)
    address = program.upload(values)
    place = [(address, 4 * COUNT)]
    texts = []

    def refused(kind: type[Exception], call: Any) -> None:
        with pytest.raises(kind) as caught:
            call()
        texts.append(str(caught.value))

    refused(
        ringfold.InvalidArgumentError,
        lambda: DeviceRequest("all_reduce", "float32", 1, [(0, 4)], [(0, 4)]),
    )
    short = DeviceRequest("all_reduce", "float32", COUNT + 1, place, place)
    refused(ringfold.InvalidArgumentError, lambda: lane.enqueue([short], program.stream))
    program.capture(1)
    refused(ringfold.UnsupportedError, lambda: all_reduce(lane, address, program.stream))
    program.capture(0)
    work = all_reduce(lane, address, program.stream)
    child = os.fork()
    if child == 0:
        for call in (
            lambda: all_reduce(lane, address, program.stream),
            lambda: work.join(program.stream),
            lambda: work.wait(),
            lambda: work.done(),
            lambda: lane.fault(),
            lambda: lane.abort("the child"),
        ):
            try:
                call()
                os._exit(1)
            except ringfold.UnsupportedError as error:
                if "forked" not in str(error):
                    os._exit(2)
        lane.close()
        del lane, work
        os._exit(0)
    texts.append(str(os.waitpid(child, 0)[1]))
    # The lane serves as before, and the exit closes it.
    work.join(program.stream)
    return texts, program.download(address, values), lane.fault()


def test_a_refused_call_leaves_the_lane_as_it_was(jobs: Any) -> None:
    """Bad requests, a captured stream, a forked child: clear errors, and the lane goes on."""
    for texts, found, fault in jobs(refuses, 2).results():
        assert "0x0" in texts[0]
        assert str(4 * COUNT) in texts[1] or str(COUNT) in texts[1], texts[1]
        assert "graph" in texts[2]
        assert texts[3] == "0", "the child's exit"
        assert (found == 3).all()
        assert fault is None


def lacks_a_driver(comm: ringfold.Communicator) -> Any:
    if comm.rank == 1:
        os.environ["RINGFOLD_CUDA_LIBRARY"] = "libringfold-no-such-driver.so"
    with pytest.raises(ringfold.RingfoldError) as caught:
        Lane(comm)
    return type(caught.value).__name__, str(caught.value), comm.all_reduce(np.ones(1)).item()


def test_without_a_driver_on_one_rank_no_rank_has_a_lane(jobs: Any) -> None:
    """All ranks get an error at once, and the communicator serves on."""
    (kind, text, total), (own_kind, own_text, _) = jobs(lacks_a_driver, 2).results()
    assert kind == "RingfoldSystemError" and "driver" in text
    assert own_kind == "UnsupportedError" and "libringfold-no-such-driver.so" in own_text
    assert total == 2


def says_so(gate: threading.Lock) -> None:
    with gate:
        print("waiting", flush=True)


def waits_alone(comm: ringfold.Communicator, how: str) -> Any:
    program, lane = softcuda.Program(), Lane(comm, **SIZES)
    address = program.upload(np.ones(COUNT, np.float32))
    if comm.rank == 0:
        work = all_reduce(lane, address, program.stream)
        # The other thread goes on when this one waits: no sooner does it leave the interpreter.
        sys.setswitchinterval(1000.0)
        gate = threading.Lock()
        gate.acquire()
        threading.Thread(target=says_so, args=(gate,)).start()
        waits: dict[str, Any] = {
            "wait": work.wait,
            "join": lambda: work.join(program.stream),
            "close": lane.close,
        }
        with pytest.raises(KeyboardInterrupt):
            gate.release()
            waits[how]()
        if how == "close":
            return 0, "a signal"
    while lane.fault() is None:
        time.sleep(0.001)
    with pytest.raises(ringfold.AbortedError) as caught:
        all_reduce(lane, address, program.stream)
    return caught.value.rank, caught.value.reason


@pytest.mark.parametrize("how", ["wait", "join", "close"])
def test_ctrl_c_ends_a_wait_on_all_ranks(
    jobs: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The wait raises KeyboardInterrupt, and the other rank learns who was interrupted."""
    if how == "join":
        # It waits where streams cannot.
        monkeypatch.setenv("SOFTCUDA_MEMOPS", "0")
    job = jobs(waits_alone, 2, how=how)
    job.wait_for(0, "waiting")
    job.signal(0, signal.SIGINT)
    for rank, reason in job.results():
        assert rank == 0
        assert "signal" in reason


def find_the_loss_infinite(*_: Any) -> None:
    raise ValueError("the loss is infinite")


def ends_by_an_error(comm: ringfold.Communicator) -> Any:
    program, lane = softcuda.Program(), Lane(comm, **SIZES)
    address = program.upload(np.ones(COUNT, np.float32))
    if comm.rank == 1:
        signal.signal(signal.SIGUSR1, find_the_loss_infinite)
        print("training", flush=True)
        while True:
            time.sleep(1)
    work = all_reduce(lane, address, program.stream)
    print("waiting", flush=True)
    with pytest.raises(ringfold.AbortedError) as caught:
        work.wait()
    # The error may be known before what is left of the call is filled.
    while not work.done():
        time.sleep(0.0005)
    found = program.download(address, np.ones(COUNT, np.float32))
    return caught.value.rank, caught.value.reason, np.isnan(found).all()


def test_an_uncaught_error_ends_the_lane_with_its_text(jobs: Any) -> None:
    """At exit lanes are aborted as communicators are; results under way are not a number."""
    job = jobs(ends_by_an_error, 2)
    job.wait_for(0, "waiting")
    job.wait_for(1, "training")
    job.signal(1, signal.SIGUSR1)
    rank, reason, is_nan = job.result(0)
    assert rank == 1
    assert "the loss is infinite" in reason
    assert is_nan
    assert job.status(1) == 1
