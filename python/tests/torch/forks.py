"""Run ranks as forked processes.

A program imports torch once and starts many sets of ranks, each within a tenth of a second. The
forking process must have a single thread and must not have used torch's thread pools. Every rank
leads its own session, so that its children end with it. Ranks end with the program that forked
them.
"""

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

# From <linux/prctl.h>.
PR_SET_PDEATHSIG = 1
# Exit status of a rank whose function raised.
RAISED_STATUS = 1
# Polling interval while waiting for ranks.
LOOK_S = 0.005


class Ranks:
    """`count` forked processes that call `function(rank)` and exit with the status it returns.

    Rank 0's output goes to the file `log` with a 0 appended, and so on. Ranks still running after
    `limit_s` seconds, or `grace_s` after one of them failed, are killed.
    """

    def __init__(
        self, function: Callable[[int], int], count: int, log: Path, limit_s: float, grace_s: float
    ) -> None:
        self.logs = [log.with_name(f"{log.name}{rank}") for rank in range(count)]
        self.begin = time.monotonic()
        self.deadline = self.begin + limit_s
        self.grace_s = grace_s
        self.timed_out = False
        # Exit code of each rank, as from `os.waitstatus_to_exitcode`; none for killed ranks.
        self.statuses: dict[int, int] = {}
        self.seconds = 0.0
        self._pids: dict[int, int] = {}
        for rank in range(count):
            pid = os.fork()
            if pid == 0:
                be_rank(function, rank, self.logs[rank])
            self._pids[rank] = pid

    def done(self) -> bool:
        """Return whether all ranks have ended; kill ranks beyond their time limit."""
        for rank, pid in list(self._pids.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._pids[rank]
                kill_session(pid)
                self.statuses[rank] = os.waitstatus_to_exitcode(status)
                if self.statuses[rank] != 0:
                    self.deadline = min(self.deadline, time.monotonic() + self.grace_s)
        if self._pids and time.monotonic() > self.deadline:
            self.timed_out = all(status == 0 for status in self.statuses.values())
            self.kill()
        self.seconds = time.monotonic() - self.begin
        return not self._pids

    def kill(self) -> None:
        """Kill the remaining ranks."""
        for pid in self._pids.values():
            kill_session(pid)
            # The rank may not lead its session yet.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._pids.clear()

    def printed(self) -> list[str]:
        """Return each rank's output."""
        return [log.read_text(errors="replace") if log.exists() else "" for log in self.logs]

    def wait(self) -> None:
        while not self.done():
            time.sleep(LOOK_S)


def be_rank(function: Callable[[int], int], rank: int, log: Path) -> None:
    """Run as a forked rank; never returns."""
    status = RAISED_STATUS
    try:
        os.setsid()
        end_with_parent()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        # Not the parent's streams, which may have unwritten output, or be captured by a test.
        sys.stdout, sys.stderr = (
            open(stream, "w", buffering=1, closefd=False) for stream in (1, 2)
        )
        # A shell that runs the tests in the background makes them ignore SIGINT, and Python keeps
        # that setting.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        status = function(rank)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        # Not `sys.exit`: the parent's exit handlers must not run in this process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def end_with_parent() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot have a rank end with its parent")


def kill_session(leader: int) -> None:
    """Kill the remaining processes of a session: the rank and its children."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def described(statuses: Sequence[int]) -> str:
    """Return the ranks' exit statuses as readable text."""
    return ", ".join(
        signal.Signals(-status).name if status < 0 else str(status) for status in statuses
    )
