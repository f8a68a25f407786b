"""System calls that a sandbox refuses (seccomp): the job works, or errors say what is missing."""

import os
import platform
import subprocess
import sys
import uuid
from collections.abc import Sequence

import pytest

# System call numbers depend on the architecture.
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers are of x86-64")

WATCHDOG_S = 120.0
ENOSYS, EPERM = 38, 1
MEMFD_CREATE, SYSINFO, ACCEPT4, EVENTFD2, PRLIMIT64 = 319, 99, 288, 290, 302
PROCESS_VM_READV = 310

PROGRAM = """
import ctypes, os, struct, sys
import numpy as np
import ringfold
if os.environ["RINGFOLD_RANK"] in sys.argv[1]:
    libc = ctypes.CDLL(None, use_errno=True)
    step = struct.Struct("HBBI")
    steps = [(0x20, 0, 0, 0)]  # The number.
    for number in sys.argv[3:]:
        steps += [(0x15, 0, 1, int(number)), (0x06, 0, 0, 0x00050000 | int(sys.argv[2]))]
    steps += [(0x06, 0, 0, 0x7FFF0000)]  # All others are allowed.
    code = ctypes.create_string_buffer(b"".join(step.pack(*each) for each in steps))
    class Filter(ctypes.Structure):
        _fields_ = [("steps", ctypes.c_ushort), ("code", ctypes.c_void_p)]
    made = Filter(len(steps), ctypes.cast(code, ctypes.c_void_p))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.syscall(317, 1, 0, ctypes.byref(made)) == 0
try:
    # Neither ends by its deadline.
    with ringfold.init(connect_timeout=600, timeout=600) as comm:
        assert comm.hosts == 1 and comm.all_reduce(np.ones(100_000))[7] == 2
        assert comm.all_reduce(comm.empty(300_000))[7] == 0
        blocks = comm.all_to_all(np.repeat([comm.rank, 7.0], 500_000))
        assert blocks[[499_999, 500_000]].tolist() == [[0, 1], [7, 7]][comm.rank], blocks
        comm.split(0).close()
    print("works")
except ringfold.RingfoldError as error:
    print(error)
"""


def run(
    where: str, errno: int, *numbers: int, under: Sequence[str] = (), **variables: str
) -> list[str]:
    """Run two ranks, `where` of which are refused these system calls; return both outputs."""
    name = f"unix:@ringfold-test-{uuid.uuid4().hex}"
    environment = {**os.environ, "RINGFOLD_WORLD_SIZE": "2", "RINGFOLD_ADDR": name, **variables}
    command = [*under, sys.executable, "-c", PROGRAM, where, str(errno), *map(str, numbers)]
    ranks = [
        subprocess.Popen(
            command,
            env={**environment, "RINGFOLD_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        return [rank.communicate(timeout=WATCHDOG_S)[0].strip() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.parametrize("errno", [ENOSYS, EPERM])
def test_a_job_without_memfd_is_told_the_way_out(errno: int) -> None:
    said = run("01", errno, MEMFD_CREATE)
    assert all("memfd_create" in text and "RINGFOLD_TRANSPORT=tcp" in text for text in said), said
    assert run("01", errno, MEMFD_CREATE, RINGFOLD_TRANSPORT="tcp") == ["works", "works"]


@pytest.mark.parametrize("where", ["1", "01"])
def test_ranks_that_may_not_read_each_others_memory_copy(where: str) -> None:
    assert run(where, EPERM, PROCESS_VM_READV) == ["works", "works"]


def test_a_refused_query_is_no_answer() -> None:
    assert run("01", ENOSYS, SYSINFO, PRLIMIT64) == ["works", "works"]


def test_connections_are_accepted_by_the_older_call() -> None:
    assert run("0", EPERM, ACCEPT4) == ["works", "works"]


def test_a_rank_0_that_cannot_serve_turns_the_others_away() -> None:
    zero, one = run("0", ENOSYS, EVENTFD2)
    assert "cannot make an eventfd" in zero, zero
    assert "rank 0 stopped waiting" in one, one


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide a part of /proc")
def test_a_host_without_a_boot_id_is_one_host() -> None:
    hidden = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc/sys && exec "$@"', "sh"]
    assert run("", 0, under=hidden) == ["works", "works"]
