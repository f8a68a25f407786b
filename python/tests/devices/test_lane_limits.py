"""Lanes where a process lacks something, or has children: an error on all ranks, nothing stays."""

import ctypes
import gc
import multiprocessing
import os
import resource
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import softcuda

import ringfold
from ringfold._lane import DeviceRequest, Lane

COUNT = 5000
"""Elements of several slices."""

SIZES: Any = {"slot_bytes": 4096, "depth": 2}
STEPS = {"RLIMIT_NOFILE": 1, "RLIMIT_AS": 2 << 20}
"""By how much limits are raised until there is a lane."""

STEPS_MAX = 60
WORKERS = 3

# From <linux/sched.h> and <linux/mount.h>.
CLONE_NEWNS = 0x20000
MS_RDONLY = 1
MS_REC_PRIVATE = 0x44000


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ranks use the software driver, whose threads are there before a limit is set."""
    monkeypatch.setenv("RINGFOLD_CUDA_LIBRARY", str(softcuda.library()))
    monkeypatch.setenv("SOFTCUDA_MODE", "seeded")


def used(name: str) -> int:
    """How much of what is limited is used now."""
    if name == "RLIMIT_NOFILE":
        return max(map(int, os.listdir("/proc/self/fd"))) + 1
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def opens_within(comm: ringfold.Communicator, name: str) -> Any:
    """Makes lanes while rank 1 has a little more of something each time."""
    program, limit = softcuda.Program(), getattr(resource, name)
    # What is loaded once.
    Lane(comm, **SIZES).close()
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    outcomes: list[tuple[str, str]] = []
    for step in range(STEPS_MAX):
        now, (soft, hard) = used(name), resource.getrlimit(limit)
        if comm.rank == 1:
            resource.setrlimit(limit, (now + step * STEPS[name], hard))
        outcome, lane = ("", ""), None
        try:
            lane = Lane(comm)
        except ringfold.RingfoldError as error:
            outcome = (type(error).__name__, str(error))
        resource.setrlimit(limit, (soft, hard))
        # The communicator is as it was.
        assert comm.all_reduce(np.ones(1)).item() == 2.0
        outcomes.append(outcome)
        if lane is not None:
            lane.close()
            break
    del lane
    gc.collect()
    left = (program.pinned() - 1, program.count("streams") - 1, program.count("events"))
    return outcomes, left, len(os.listdir("/proc/self/fd")) - descriptors


def check(job: Any, words: tuple[str, ...]) -> None:
    """Every attempt but the last fails on both ranks, and the error says what was lacking."""
    (others, left, more), (own, own_left, own_more) = job.results()
    assert left == own_left == (0, 0, 0)
    # The first lane's may be closed a little later than it.
    assert more <= 0 and own_more <= 0
    assert len(others) == len(own) > 1
    for (kind, text), (own_kind, own_text) in zip(others[:-1], own[:-1], strict=True):
        assert kind and "rank 1" in text, (kind, text)
        assert own_kind and any(word in own_text for word in words), (own_kind, own_text)
    assert others[-1] == own[-1] == ("", "")


def test_without_descriptors_no_rank_has_a_lane(jobs: Any) -> None:
    check(jobs(opens_within, 2, name="RLIMIT_NOFILE"), ("descriptors",))


@pytest.mark.deep
def test_without_memory_no_rank_has_a_lane(jobs: Any) -> None:
    """What the system refuses to a malloc would end the process: not a test of each change."""
    words = ("allocate memory", "OUT_OF_MEMORY", "no memory")
    check(jobs(opens_within, 2, name="RLIMIT_AS"), words)


def has_no_room(comm: ringfold.Communicator) -> Any:
    """A lane where files cannot be made in the file system of shared memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
    assert libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) == 0
    assert libc.mount(b"none", b"/dev/shm", b"tmpfs", MS_RDONLY, None) == 0
    with pytest.raises(OSError, match="[Rr]ead-only"):
        Path("/dev/shm/probe").touch()
    program, lane = softcuda.Program(), Lane(comm)
    address = program.upload(np.ones(COUNT, np.float32))
    place = [(address, 4 * COUNT)]
    request = DeviceRequest("all_reduce", "float32", COUNT, place, place)
    lane.enqueue([request], program.stream).join(program.stream)
    found = program.download(address, np.ones(COUNT, np.float32))
    lane.close()
    return bool((found == 2).all())


def test_a_lane_takes_no_room_of_dev_shm(jobs: Any) -> None:
    if os.geteuid() != 0:
        pytest.skip("to mount a file system takes root")
    assert jobs(has_no_room, 2).results() == [True, True]


def works(parent: Connection) -> None:
    """A worker, as a data loader has them: it knows nothing of lanes, and collects what it has."""
    gc.collect()
    parent.send(float(np.ones(COUNT).sum()))
    parent.recv()


def forks_workers(comm: ringfold.Communicator) -> Any:
    """Workers are forked within calls, and live longer than the lane."""
    program, lane = softcuda.Program(), Lane(comm, **SIZES)
    context = multiprocessing.get_context("fork")
    ones = np.ones(COUNT, np.float32)
    address = program.upload(ones)
    place = [(address, 4 * COUNT)]
    request = DeviceRequest("all_reduce", "float32", COUNT, place, place)
    workers, ends = [], []
    for number in range(WORKERS):
        program.hold()
        work = lane.enqueue([request], program.stream)
        end, its_end = context.Pipe()
        workers.append(context.Process(target=works, args=(its_end,)))
        workers[-1].start()
        ends.append(end)
        program.let_go()
        work.join(program.stream)
        found = program.download(address, ones)
        assert (found == 2.0 ** (number + 1)).all(), (number, found)
    sums = [end.recv() for end in ends]
    # As by the system for want of memory.
    workers[0].kill()
    workers[0].join()
    del work
    lane.close()
    pinned = program.pinned()
    for worker, end in zip(workers[1:], ends[1:], strict=True):
        end.send(None)
        worker.join()
    return sums, pinned, [worker.exitcode for worker in workers]


def test_workers_that_are_forked_within_calls_leave_the_lane_alone(jobs: Any) -> None:
    for sums, pinned, codes in jobs(forks_workers, 2).results():
        assert sums == [COUNT] * WORKERS
        # The program's own page.
        assert pinned == 1
        assert codes == [-signal.SIGKILL] + [0] * (WORKERS - 1)
