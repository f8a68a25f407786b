"""Errors on other ranks when a rank leaves, dies or aborts, and who can read the logs."""

import os
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

WATCHDOG_S = 120.0

PROGRAM = """
import os, signal, sys
import numpy as np
import ringfold
rank, how = int(os.environ["RINGFOLD_RANK"]), sys.argv[1]
try:
    comm = ringfold.init(connect_timeout=60, timeout=60)
    comm.barrier()
    if rank == 1:
        if how == "leave":
            comm.close()
        elif how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "abort":
            comm.abort("first\\n\\x1b[31mred\\0\\x9b1m\\u202eback")
        sys.exit()
    while True:
        comm.all_reduce(np.ones(1000, np.float32))
except ringfold.RingfoldError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
"""

Said = Callable[..., str]


@pytest.fixture
def rank_0() -> Iterator[Said]:
    """Return rank 0's output when rank 1 ends in the given way."""
    started: list["subprocess.Popen[str]"] = []

    def run(how: str, **variables: str) -> str:
        place = {
            "RINGFOLD_WORLD_SIZE": "2",
            "RINGFOLD_ADDR": f"unix:@ringfold-test-{uuid.uuid4().hex}",
            "RINGFOLD_SECRET": uuid.uuid4().hex,
        }
        for rank in range(2):
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM, how],
                    env={**os.environ, **place, "RINGFOLD_RANK": str(rank), **variables},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        ends = [process.communicate(timeout=WATCHDOG_S)[0] for process in started[-2:]]
        return ends[0].rstrip("\n")

    yield run
    for process in started:
        process.kill()


def test_a_rank_that_left_in_order_did_not_lose_its_connection(rank_0: Said) -> None:
    said = rank_0("leave", RINGFOLD_TRANSPORT="tcp")
    assert "rank 1 failed: it left (closed its communicator)" in said, said


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_killed_process_has_one_text(rank_0: Said, transport: str) -> None:
    said = rank_0("kill", RINGFOLD_TRANSPORT=transport)
    assert "rank 1 failed: its process ended, or lost its connection" in said, said


def test_a_foreign_text_does_nothing_to_a_terminal(rank_0: Said) -> None:
    said = rank_0("abort")
    assert "aborted by rank 1: first\n?[31mred??1m?back" in said, said


def test_only_this_user_reads_the_log(rank_0: Said, tmp_path: Path) -> None:
    rank_0("leave", RINGFOLD_DEBUG="INFO", RINGFOLD_DEBUG_FILE=str(tmp_path / "%p"))
    files = list(tmp_path.iterdir())
    assert len(files) == 2
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
