"""Starts programs and leaves none of their processes behind, even after a hang or Ctrl-C.

Launchers start ranks in new sessions, so a process group is not enough. This process becomes the
reaper of all its descendants: processes of a dead launcher become its children, and are ended by
process id.
"""

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

# From <linux/prctl.h>.
PR_SET_CHILD_SUBREAPER = 36
# Time for launchers to terminate their ranks and delete their files after a signal.
GRACE_S = 2.0
# A program's output ends with the reason of its failure.
OUTPUT_LINES = 12
# Programs take much longer than this, and polling costs them little.
POLL_S = 0.01


class Failed(Exception):
    """A program failed; the text has the reason and the end of the output."""


def become_reaper() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become the reaper of what is started")


@dataclass(frozen=True)
class Program:
    """A command, and variables in addition to those of this process."""

    command: Sequence[object]
    variables: Mapping[str, str] = field(default_factory=dict)


def output_of(
    command: Sequence[object], limit_s: float, variables: Mapping[str, str] | None = None
) -> str:
    """Return the program's standard output; the time limit is `limit_s` seconds."""
    return output_of_first([Program(command, variables or {})], limit_s)


def output_of_first(programs: Sequence[Program], limit_s: float) -> str:
    """Run programs at the same time, and return the standard output of the first.

    If a program fails, all are ended. The time limit is `limit_s` seconds.
    """
    with ExitStack() as stack:
        # Files instead of pipes: no program waits until its output is read.
        files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in 2 * list(programs)]
        started: list[subprocess.Popen[bytes]] = []
        try:
            for program, output, errors in zip(programs, files[::2], files[1::2], strict=True):
                started.append(
                    subprocess.Popen(
                        [str(word) for word in program.command],
                        env=os.environ | dict(program.variables),
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=errors,
                        # A separate session would have its own share of the cores (autogroup), and
                        # threads yield only within a session; MPI's launchers have one session,
                        # too.
                        process_group=0,
                    )
                )
            failed = wait(started, time.monotonic() + limit_s)
        finally:
            end_descendants()
        texts = [text_in(file) for file in files]
        if failed is None:
            raise Failed(f"hung: ended after {limit_s:.0f} s{ending(''.join(texts))}")
        for number in failed:
            said = ending(texts[2 * number] + texts[2 * number + 1])
            raise Failed(f"ended with status {started[number].returncode}{said}")
        return texts[0]


def wait(started: Sequence[subprocess.Popen[bytes]], deadline: float) -> list[int] | None:
    """Wait until all have ended or one has failed; return the failed ones, or None on a timeout."""
    while time.monotonic() < deadline:
        statuses = [child.poll() for child in started]
        failed = [number for number, status in enumerate(statuses) if status]
        if failed or None not in statuses:
            return failed
        time.sleep(POLL_S)
    return None


def text_in(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def ending(output: str) -> str:
    """Return the last lines of a program's output, to append to a message."""
    lines = [line for line in output.splitlines() if line.strip()][-OUTPUT_LINES:]
    return "".join(f"\n    {line}" for line in lines) or "; no output"


def end_descendants() -> None:
    """End every descendant of this process, first with SIGTERM, then with SIGKILL."""
    told = time.monotonic()
    sent: dict[int, int] = {}
    while pids := [pid for pid in descendants() if not is_dead(pid)]:
        number = signal.SIGTERM if time.monotonic() < told + GRACE_S else signal.SIGKILL
        for pid in pids:
            if sent.get(pid) != number:
                sent[pid] = number
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        time.sleep(0.01)


def is_dead(pid: int) -> bool:
    """Return whether the process is dead; reap it if it was a child."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return True
    except ChildProcessError:
        pass
    return state_and_parent(pid)[0] in ("Z", "X")


def descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            pid = int(entry.name)
            children.setdefault(state_and_parent(pid)[1], []).append(pid)
    found, rest = [], [os.getpid()]
    while rest:
        below = children.get(rest.pop(), [])
        found.extend(below)
        rest.extend(below)
    return found


def state_and_parent(pid: int) -> tuple[str, int]:
    """Return the state and parent in /proc/PID/stat, which follow the name in parentheses.

    The result is ("X", 0) if the process no longer exists.
    """
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return ("X", 0)
    return (state, int(parent))
