"""`ringfold top` on a terminal: the redrawn table, and the ends."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfold

WATCHDOG_S = 120.0
SCREEN = re.compile(r"\x1b\[H([^\x1b]*(?:\x1b\[K[^\x1b]*)*)\x1b\[J")
COMMAND = [sys.executable, "-m", "ringfold", "top", "--interval", "0.1"]

# Makes standard input the terminal of this session, and becomes the command.
LEADER = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """The command, as the leader of a session on a terminal of its own."""

    def __init__(self, name: str = "xterm") -> None:
        self.sent, self.is_closed = "", False
        self.master, slave = pty.openpty()
        # Room for the jobs of other tests, too.
        self.resize(200, 1000)
        self.process = subprocess.Popen(
            [sys.executable, "-c", LEADER, *COMMAND],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "TERM": name},
        )  # fmt: skip
        os.close(slave)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, *texts: str) -> list[str]:
        """The lines of the first screen that has all of `texts`."""
        deadline = time.monotonic() + WATCHDOG_S
        while time.monotonic() < deadline:
            assert select.select([self.master], [], [], WATCHDOG_S)[0], self.sent
            self.sent += os.read(self.master, 1 << 16).decode()
            for found in SCREEN.finditer(self.sent):
                screen = str(found[1])
                if all(text in screen for text in texts):
                    return screen.replace("\x1b[K", "").splitlines()
        pytest.fail(f"no {texts} in:\n{self.sent}")

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            os.close(self.master)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """Terminals whose commands end with the test."""
    made: list[Terminal] = []
    yield made
    for terminal in made:
        terminal.process.kill()
        terminal.process.wait()
        terminal.close()


def call_until(comm: ringfold.Communicator, stop: str) -> None:
    data = np.ones(1000, np.float32)
    is_over = False
    while not is_over:
        flag = np.array([Path(stop).exists()], np.int32)
        comm.all_reduce(data)
        is_over = bool(comm.broadcast(flag)[0])
        print("called", flush=True)


def test_a_job_is_shown_in_any_size(
    jobs: Any, tmp_path: Path, terminals: list[Terminal]
) -> None:
    stop = tmp_path / "stop"
    job = jobs(call_until, 2, stop=str(stop))
    for rank in range(2):
        job.wait_for(rank, "called")
    terminal = Terminal()
    terminals.append(terminal)
    lines = terminal.wait_for("2 ranks", *(f" {process.pid} " for process in job.processes))
    assert any("calls/s" in line for line in lines)
    for columns, rows in ((30, 3), (1, 1)):
        terminal.resize(columns, rows)
        # Screens of the size before may still be on their way.
        deadline = time.monotonic() + WATCHDOG_S
        while len(lines) >= rows or max(map(len, lines), default=0) > columns:
            assert time.monotonic() < deadline, lines
            terminal.sent = ""
            lines = terminal.wait_for()
    terminal.resize(65535, 65535)
    terminal.sent = ""
    terminal.wait_for("2 ranks", "late by")
    stop.touch()
    job.results()


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_it(terminals: list[Terminal], number: str) -> None:
    terminal = Terminal()
    terminals.append(terminal)
    terminal.wait_for()
    if number == "SIGINT":
        os.write(terminal.master, b"\x03")
    elif number == "SIGHUP":
        terminal.close()
    else:
        terminal.process.terminate()
    status = terminal.process.wait(WATCHDOG_S)
    # A terminal that goes away may be met as an error of a write first.
    assert status == -signal.Signals[number] or (number, status) == ("SIGHUP", 1)


def test_a_terminal_of_lines_gets_a_table(terminals: list[Terminal]) -> None:
    terminal = Terminal("dumb")
    terminals.append(terminal)
    assert terminal.process.wait(WATCHDOG_S) in (0, 1)
    assert "\x1b" not in os.read(terminal.master, 1 << 16).decode()
