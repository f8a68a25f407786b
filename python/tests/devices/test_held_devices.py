"""Calls behind a stream that is held: they wait for their device without a deadline, because what a
stream holds before a call may take any time. All else that ends a wait ends that one, too.
"""

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

COUNT = 2500
"""Elements of three slices, one more than there are slots."""

SIZES: Any = {"slot_bytes": 4096, "depth": 2}

ENDS = {"abort": "AbortedError", "interrupt": "AbortedError", "kill": "PeerFailedError"}


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ranks use the software driver; what waits in it for ever ends the process."""
    monkeypatch.setenv("RINGFOLD_CUDA_LIBRARY", str(softcuda.library()))
    monkeypatch.setenv("SOFTCUDA_ABORT_MS", "50000")


def held_call(lane: Lane, program: softcuda.Program) -> tuple[DeviceWork, int]:
    """A sum of ones behind a stream that is held, and where it stands."""
    address = program.upload(np.ones(COUNT, np.float32))
    place = [(address, 4 * COUNT)]
    if lane.waits_on_host:
        program.occupy()
    else:
        program.hold()
    request = DeviceRequest("all_reduce", "float32", COUNT, place, place)
    return lane.enqueue([request], program.stream), address


def says_when_it_waits(gate: threading.Lock) -> None:
    with gate:
        print("waiting", flush=True)


def waits(comm: ringfold.Communicator, held: int, how: str) -> Any:
    """One rank waits behind its own stream; the other one never makes the call."""
    program, lane = softcuda.Program(), Lane(comm, **SIZES)
    if comm.rank != held:
        # Not before the call is made.
        comm.barrier()
        print("there", flush=True)
        if how == "abort":
            lane.abort("the loss is infinite")
        while (fault := lane.fault()) is None:
            time.sleep(0.0005)
        return type(fault).__name__, str(fault)
    work, address = held_call(lane, program)
    comm.barrier()
    # The other thread goes on when this one waits: no sooner does it leave the interpreter.
    sys.setswitchinterval(1000.0)
    gate = threading.Lock()
    gate.acquire()
    threading.Thread(target=says_when_it_waits, args=(gate,)).start()
    error: BaseException | None = None
    try:
        gate.release()
        work.wait()
    except (ringfold.RingfoldError, KeyboardInterrupt) as raised:
        error = raised
    sys.setswitchinterval(0.005)
    assert isinstance(error, KeyboardInterrupt) == (how == "interrupt"), error
    fault = lane.fault()
    assert fault is not None
    assert not work.done()
    program.let_go()
    while not work.done():
        time.sleep(0.0005)
    found = program.download(address, np.ones(COUNT, np.float32))
    assert np.isnan(found).all(), found
    return type(fault).__name__, str(fault)


@pytest.mark.parametrize(
    ("how", "held", "words"),
    [
        ("abort", 0, True),
        ("interrupt", 1, True),
        ("interrupt", 0, False),
        ("kill", 0, False),
        ("kill", 1, True),
    ],
)
def test_a_wait_for_a_held_device_ends(
    jobs: Any, monkeypatch: pytest.MonkeyPatch, how: str, held: int, words: bool
) -> None:
    """By an abort, by Ctrl-C, and by the death of the other rank, which may serve the others;
    whether streams or the lane's thread wait for words.
    """
    monkeypatch.setenv("SOFTCUDA_MEMOPS", str(int(words)))
    job = jobs(waits, 2, held=held, how=how)
    other = 1 - held
    if how != "abort":
        job.wait_for(held, "waiting")
        job.wait_for(other, "there")
    if how == "interrupt":
        job.signal(held, signal.SIGINT)
    if how == "kill":
        job.signal(other, signal.SIGKILL)
    ended = held if how == "interrupt" else other
    for rank in (held,) if how == "kill" else (held, other):
        kind, text = job.result(rank)
        assert kind == ENDS[how], text
        assert f"rank {ended}" in text, text


def lets_go_after_a_fault(lane: Lane, program: softcuda.Program) -> None:
    while lane.fault() is None:
        time.sleep(0.0005)
    program.let_go()


def exits(comm: ringfold.Communicator, how: str) -> Any:
    """Rank 1's program ends while its stream is held."""
    program, lane = softcuda.Program(), Lane(comm, **SIZES)
    if comm.rank == 0:
        place = [(program.upload(np.ones(COUNT, np.float32)), 4 * COUNT)]
        request = DeviceRequest("all_reduce", "float32", COUNT, place, place, timeout=1.5)
        with pytest.raises(ringfold.RingfoldError) as caught:
            # The other rank may have ended before this call.
            lane.enqueue([request], program.stream).wait()
        return type(caught.value).__name__, str(caught.value)
    held_call(lane, program)
    # It runs during the exit, which waits for the lane.
    thread = threading.Thread(target=lets_go_after_a_fault, args=(lane, program), daemon=True)
    thread.start()
    # Open until the exit.
    threading.lane = lane  # type: ignore[attr-defined]
    if how == "error":
        raise ValueError("the loss is infinite")
    sys.exit(3)


@pytest.mark.parametrize(
    ("how", "kind", "status"), [("exit", "RingfoldTimeoutError", 3), ("error", "AbortedError", 1)]
)
def test_an_exit_with_a_held_device_ends(jobs: Any, how: str, kind: str, status: int) -> None:
    """A lane is closed then, which waits for its calls, until the others' deadline has passed.
    After an error it is aborted.
    """
    job = jobs(exits, 2, how=how)
    found, text = job.result(0)
    assert found == kind, text
    assert "rank 1" in text, text
    assert job.status(1) == status
