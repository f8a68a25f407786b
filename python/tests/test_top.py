"""`ringfold top` on a terminal: what it shows, its keys, and that it gives the terminal back."""

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
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfold

WATCHDOG_S = 120.0
COMMAND = [sys.executable, "-m", "ringfold", "top", "--interval", "0.1"]
SEQUENCE = re.compile(rb"\x1b\[([0-9;?]*)([@-~])")
ALTERNATE, USUAL, HIDDEN, SHOWN = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25l", b"\x1b[?25h"


class Terminal:
    """The command, as the leader of a session on a terminal of its own."""

    def __init__(self, *words: str, columns: int = 80, rows: int = 24, **more: str) -> None:
        self.columns, self.rows = columns, rows
        self.sent, self.is_closed = b"", False
        self.master, slave = pty.openpty()
        self.resize(columns, rows)
        self.mode = termios.tcgetattr(slave)
        environment = {**os.environ, "TERM": "xterm-256color", **more}
        self.process = subprocess.Popen(
            [sys.executable, "-c", LEADER, *COMMAND, *words],
            stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
        )
        self.slave = slave

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def send(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def read(self) -> None:
        """Read what there is, at the latest after a moment."""
        if select.select([self.master], [], [], 0.05)[0]:
            self.sent += os.read(self.master, 1 << 16)

    def wait_for(self, *texts: str) -> str:
        """The screen, as soon as it has all of these."""
        deadline = time.monotonic() + WATCHDOG_S
        while time.monotonic() < deadline:
            self.read()
            screen = "\n".join(self.screen())
            if all(text in screen for text in texts):
                return screen
            assert self.process.poll() is None, self.sent
        pytest.fail(f"no {texts} in:\n{screen}")

    def await_sent(self, sequence: bytes) -> None:
        deadline = time.monotonic() + WATCHDOG_S
        while sequence not in self.sent:
            assert time.monotonic() < deadline and self.process.poll() is None, self.sent
            self.read()

    def screen(self) -> list[str]:
        """What a terminal of this size shows; it fails where the command writes past its edge."""
        cells: dict[tuple[int, int], str] = {}
        row = column = place = 0
        # A size changes before what is drawn for it: the last clearing began the present screen.
        sent = self.sent[max(self.sent.rfind(b"\x1b[2J"), self.sent.rfind(ALTERNATE), 0) :]
        text = sent.decode(errors="ignore")
        while place < len(text):
            if found := re.compile(r"\x1b\[([0-9;?]*)([@-~])").match(text, place):
                place = found.end()
                if found[2] == "H":
                    numbers = [int(n or 1) for n in (found[1] or "1;1").split(";")]
                    row, column = numbers[0] - 1, numbers[1] - 1
                elif found[2] == "J":
                    cells = {at: cell for at, cell in cells.items() if at < (row, column)}
                continue
            cells[row, column] = text[place]
            column, place = column + 1, place + 1
        last = max((at[0] for at in cells), default=0)
        lines = range(last + 1)
        width = max((at[1] for at in cells), default=0) + 1
        return ["".join(cells.get((r, c), " ") for c in range(width)) for r in lines]

    def end(self) -> int:
        """The exit status; afterwards the terminal is as it was."""
        deadline = time.monotonic() + WATCHDOG_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "it does not end"
            self.read()
        while select.select([self.master], [], [], 0)[0]:
            self.read()
        assert termios.tcgetattr(self.slave) == self.mode
        assert self.sent.count(ALTERNATE) == self.sent.count(USUAL) > 0
        assert self.sent.rfind(SHOWN) > self.sent.rfind(HIDDEN)
        return self.process.returncode

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            os.close(self.master)
            os.close(self.slave)


# Makes standard input the terminal of this session, and becomes the command.
LEADER = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """Terminals whose commands end with the test."""
    made: list[Terminal] = []
    yield made
    for terminal in made:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()
        terminal.close()


def call_until(comm: ringfold.Communicator, stop: str) -> None:
    data = np.ones(1000, np.float32)
    calls = 0
    while True:
        flag = np.array([Path(stop).exists()], np.int32)
        comm.all_reduce(data)
        calls += 1
        if comm.broadcast(flag)[0]:
            return
        if calls == 1:
            print("ready", flush=True)


def lines_of(screen: str, pids: list[int]) -> list[str]:
    """The rows of these processes."""
    return [line for line in screen.splitlines() if any(f" {pid} " in line for pid in pids)]


def show(terminal: Terminal, pid: int) -> None:
    """Change to the job of a process; others may run on this machine."""
    deadline = time.monotonic() + WATCHDOG_S
    while not lines_of("\n".join(terminal.screen()), [pid]):
        assert time.monotonic() < deadline, "\n".join(terminal.screen())
        terminal.send(b"\t")
        for _ in range(10):
            terminal.read()


def test_a_job_is_shown_sorted_paused_and_resized(
    jobs: Any, tmp_path: Path, terminals: list[Terminal]
) -> None:
    stop = tmp_path / "stop"
    job = jobs(call_until, 2, stop=str(stop))
    for rank in range(2):
        job.wait_for(rank, "ready")
    pids = [process.pid for process in job.processes]
    terminal = Terminal()
    terminals.append(terminal)
    terminal.wait_for("calls/s", "q quit")
    show(terminal, pids[0])
    screen = terminal.wait_for("2 ranks", *map(str, pids))
    assert len(lines_of(screen, pids)) == 2 and "sort: rank" in screen
    assert "GB/s per rank" in screen and "rank 0: " in screen
    terminal.send(b"s")
    terminal.wait_for("sort: late")
    terminal.send(b"p")
    terminal.wait_for("paused", "p continue")
    terminal.send(b"\x1b[B")
    terminal.wait_for("rank 1: ")
    terminal.send(b"p")
    terminal.wait_for("p pause")
    terminal.resize(40, 10)
    narrow = terminal.wait_for("state", "q quit")
    deadline = time.monotonic() + WATCHDOG_S
    while max(map(len, narrow.splitlines())) > 40 or len(narrow.splitlines()) > 10:
        assert time.monotonic() < deadline, narrow
        narrow = terminal.wait_for("state", "q quit")
    assert "calls/s" in narrow and " pid" not in narrow
    terminal.resize(200, 60)
    wide = terminal.wait_for("host", "late by", *map(str, pids))
    assert os.uname().nodename[:14] in wide
    terminal.send(b"q")
    assert terminal.end() == 0
    stop.touch()
    job.results()


@pytest.mark.parametrize(
    ("keys", "status"), [(b"q", 0), (b"\x1b", 0), (b"\x03", 130), (b"\x1b[Aq", 0)]
)
def test_keys_leave(terminals: list[Terminal], keys: bytes, status: int) -> None:
    terminal = Terminal()
    terminals.append(terminal)
    terminal.wait_for("q quit")
    terminal.send(keys)
    assert terminal.end() == status


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_signals_leave(terminals: list[Terminal], number: str) -> None:
    terminal = Terminal()
    terminals.append(terminal)
    terminal.wait_for("q quit")
    terminal.process.send_signal(signal.Signals[number])
    assert terminal.end() == 128 + signal.Signals[number]


def test_it_stops_and_goes_on(terminals: list[Terminal]) -> None:
    terminal = Terminal()
    terminals.append(terminal)
    terminal.wait_for("q quit")
    terminal.send(b"\x1a")
    _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert termios.tcgetattr(terminal.slave) == terminal.mode
    terminal.process.send_signal(signal.SIGCONT)
    terminal.wait_for("q quit")
    terminal.send(b"q")
    assert terminal.end() == 0


def test_a_terminal_that_goes_away_ends_it(terminals: list[Terminal]) -> None:
    terminal = Terminal()
    terminals.append(terminal)
    terminal.wait_for("q quit")
    terminal.close()
    assert terminal.process.wait(WATCHDOG_S) in (128 + signal.SIGHUP, -signal.SIGHUP)


def test_a_terminal_that_goes_away_ends_it_without_a_signal(terminals: list[Terminal]) -> None:
    """A process that is of no session of the terminal gets no signal when that goes away."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        COMMAND, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    try:
        os.close(slave)
        sent = b""
        while b"quit" not in sent:
            assert select.select([master], [], [], WATCHDOG_S)[0], sent
            sent += os.read(master, 1 << 16)
        os.close(master)
        assert process.wait(WATCHDOG_S) == 128 + signal.SIGHUP
    finally:
        process.kill()
        process.wait()


def test_a_terminal_that_takes_nothing_is_left_by_a_signal(terminals: list[Terminal]) -> None:
    terminal = Terminal(columns=1000, rows=500)
    terminals.append(terminal)
    terminal.await_sent(ALTERNATE)
    # The frames are more than a terminal holds for its reader; this one stops to read.
    with suppress(subprocess.TimeoutExpired):
        terminal.process.wait(0.5)
    terminal.process.terminate()
    with suppress(subprocess.TimeoutExpired):
        terminal.process.wait(0.5)
    terminal.process.terminate()
    assert terminal.process.wait(WATCHDOG_S) in (128 + signal.SIGTERM, -signal.SIGTERM)


@pytest.mark.parametrize("size", [(0, 0), (1, 1), (3, 2), (65535, 65535)])
def test_any_size_is_drawn(terminals: list[Terminal], size: tuple[int, int]) -> None:
    terminal = Terminal(columns=size[0], rows=size[1])
    terminals.append(terminal)
    terminal.await_sent(HIDDEN)
    terminal.send(b"q")
    assert terminal.end() == 0


def test_no_colour_is_sent_where_none_is_wanted(terminals: list[Terminal]) -> None:
    board = os.memfd_create("ringfold-board")
    try:
        os.pwrite(board, b"\xff" * 10_000, 0)
        for wanted in (True, False):
            terminal = Terminal(NO_COLOR="" if wanted else "1")
            terminals.append(terminal)
            terminal.wait_for("cannot be read", "q quit")
            styles = [found[1] for found in SEQUENCE.finditer(terminal.sent) if found[2] == b"m"]
            is_red = any(style.startswith((b"31", b"38;5;1")) for style in styles)
            assert is_red == wanted, styles
            terminal.send(b"q")
            assert terminal.end() == 0
    finally:
        os.close(board)


def test_a_terminal_of_lines_gets_a_table() -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "dumb"}
    process = subprocess.Popen(COMMAND, stdin=slave, stdout=slave, stderr=slave, env=environment)
    try:
        assert process.wait(WATCHDOG_S) in (0, 1)
        assert b"\x1b" not in os.read(master, 1 << 16)
    finally:
        process.kill()
        os.close(master)
        os.close(slave)
