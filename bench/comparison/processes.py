"""Starts programs and leaves none of their processes behind, even after a hang or Ctrl-C.

Launchers put ranks into sessions of their own, so a process group is not enough. This process
declares itself the reaper of all its descendants; processes that a dead launcher leaves behind
become its children and are ended by process id.
"""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# From <linux/prctl.h>.
PR_SET_CHILD_SUBREAPER = 36
# How long launchers get to terminate their ranks and delete their files after a signal.
GRACE_S = 2.0
# The reason is at the end of a program's output.
OUTPUT_LINES = 12


class Failed(Exception):
    """A program failed: why, with the end of its output."""


def become_reaper() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become the reaper of what is started")


def output_of(
    command: Sequence[object], limit_s: float, variables: Mapping[str, str] | None = None
) -> str:
    """The program's standard output. The time limit is `limit_s` seconds."""
    words = [str(word) for word in command]
    environment = os.environ | dict(variables or {})
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as child:
        try:
            output, errors = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            end_descendants()
            output, errors = child.communicate()
            raise Failed(f"hung: ended after {limit_s:.0f} s{ending(output + errors)}") from None
        finally:
            end_descendants()
    if child.returncode != 0:
        raise Failed(f"ended with status {child.returncode}{ending(output + errors)}")
    return output


def ending(output: str) -> str:
    """The last lines of a program's output, to append to a message."""
    lines = [line for line in output.splitlines() if line.strip()][-OUTPUT_LINES:]
    return "".join(f"\n    {line}" for line in lines) or "; it wrote nothing"


def end_descendants() -> None:
    """End every descendant of this process, politely first."""
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
    """Whether the process is dead; if it was a child of ours, it is reaped."""
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
    """From /proc/PID/stat, after the name in parentheses; ("X", 0) for a process that no longer
    exists.
    """
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return ("X", 0)
    return (state, int(parent))
