"""Jobs seen from other processes: `ringfold top` and `ringfold metrics`."""

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

import ringfold

WATCHDOG_S = 120.0
COMMAND = [sys.executable, "-m", "ringfold"]
SAMPLE = re.compile(r'(?P<name>[a-z_]+)\{(?P<labels>(?:[a-z]+="[^"]*",?)+)\} (?P<value>[0-9.e+-]+)')
Metrics = dict[tuple[str, str, str], float]
Found = TypeVar("Found")


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command line that ends without a signal."""
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=WATCHDOG_S, check=False
    )


def eventually(find: Callable[[], Found | None]) -> Found:
    """Poll `find` until it returns a value, and return the value; fail after `WATCHDOG_S`."""
    deadline = time.monotonic() + WATCHDOG_S
    while time.monotonic() < deadline:
        if (found := find()) is not None:
            return found
        time.sleep(0.05)
    pytest.fail("timed out: the expected state never appeared")


def parsed(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Parse Prometheus' text format strictly: a family is declared before its samples."""
    types: dict[str, str] = {}
    helped: set[str] = set()
    samples = []
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split()[2]
            assert name not in helped, f"{name} is declared twice"
            helped.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name in helped and name not in types
            assert kind == ("counter" if name.endswith("_total") else "gauge")
            types[name] = kind
        else:
            found = SAMPLE.fullmatch(line)
            assert found, line
            assert found["name"] == list(types)[-1], f"{line} stands outside of its family"
            labels = dict(re.findall(r'([a-z]+)="([^"]*)"', found["labels"]))
            samples.append((found["name"], labels, float(found["value"])))
    keys = [(name, tuple(sorted(labels.items()))) for name, labels, _ in samples]
    assert len(set(keys)) == len(keys), "two samples have the same labels"
    return samples


def metrics_of(pids: list[int]) -> Metrics:
    """Return the samples of these processes, by name, pid and collective."""
    ended = run("metrics")
    assert ended.returncode == 0, ended.stderr
    return {
        (name, labels["pid"], labels.get("collective", "")): value
        for name, labels, value in parsed(ended.stdout)
        if int(labels["pid"]) in pids
    }


def call_until(comm: ringfold.Communicator, stop: str) -> int:
    data = np.ones(1000, np.float32)
    calls = 0
    while True:
        flag = np.array([Path(stop).exists()], np.int32)
        comm.all_reduce(data)
        calls += 1
        if comm.broadcast(flag)[0]:
            return calls
        if calls == 1:
            print("ready", flush=True)


def wait_in_barrier(comm: ringfold.Communicator, stop: str) -> None:
    comm.barrier()
    print("ready", flush=True)
    while comm.rank == 1 and not Path(stop).exists():
        time.sleep(0.01)
    comm.barrier()


def test_a_running_job_is_seen_and_an_ended_one_is_not(jobs: Any, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    job = jobs(call_until, 2, stop=str(stop))
    for rank in range(2):
        job.wait_for(rank, "ready")
    pids = [process.pid for process in job.processes]
    before = metrics_of(pids)
    for pid in map(str, pids):
        assert before["ringfold_calls_total", pid, "all_reduce"] > 0
        assert before["ringfold_failed", pid, ""] == 0

    def more() -> Metrics | None:
        now = metrics_of(pids)
        names = [("ringfold_calls_total", str(pid), "broadcast") for pid in pids]
        return now if all(now[name] > before[name] for name in names) else None

    now = eventually(more)
    calls, size = (
        now[name, str(pids[0]), "all_reduce"] for name in ("ringfold_calls_total",
        "ringfold_bytes_total")
    )
    assert size == 4000 * calls

    shown = run("top", "--once", "--interval", "0.5", "--sort", "late")
    assert shown.returncode == 0, shown.stderr
    rows = {
        int(row[1]): row
        for row in map(str.split, shown.stdout.splitlines())
        if len(row) > 8 and row[1].isdigit()
    }
    for rank, pid in enumerate(pids):
        assert int(rows[pid][0]) == rank and float(rows[pid][3]) > 0, shown.stdout

    stop.touch()
    made = job.results()
    assert made[0] == made[1] > 0
    assert metrics_of(pids) == {}


def test_a_rank_that_waits_says_for_whom(jobs: Any, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    job = jobs(wait_in_barrier, 2, stop=str(stop))
    waiting, prompt = (job.processes[rank].pid for rank in range(2))

    def stuck() -> str | None:
        text = run("top", "--once", "--interval", "0.1").stdout
        row = next((row for row in text.splitlines() if f" {waiting} " in row), "")
        return row if "barrier" in row and "waiting for rank 1" in row else None

    assert f" {prompt} " not in eventually(stuck)
    seconds = metrics_of([waiting])["ringfold_waiting_seconds", str(waiting), ""]
    assert seconds > 0
    stop.touch()
    job.results()


def test_a_killed_rank_leaves_nothing_and_the_others_say_why(jobs: Any, tmp_path: Path) -> None:
    job = jobs(wait_for_death, 2, stop=str(tmp_path / "stop"))
    pids = [process.pid for process in job.processes]
    for rank in range(2):
        job.wait_for(rank, "ready")
    job.signal(1, signal.SIGKILL)
    assert job.status(1) == -signal.SIGKILL
    job.wait_for(0, "failed")
    now = metrics_of(pids)
    assert {pid for _, pid, _ in now} == {str(pids[0])}
    assert now["ringfold_failed", str(pids[0]), ""] == 1
    (tmp_path / "stop").touch()
    job.result(0)


def wait_for_death(comm: ringfold.Communicator, stop: str) -> None:
    comm.barrier()
    print("ready", flush=True)
    try:
        while True:
            comm.barrier()
    except ringfold.PeerFailedError:
        print("failed", flush=True)
    while not Path(stop).exists():
        time.sleep(0.01)


def test_a_job_may_show_nothing(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGFOLD_BOARD", "0")
    stop = tmp_path / "stop"
    job = jobs(call_until, 2, stop=str(stop))
    job.wait_for(0, "ready")
    assert metrics_of([process.pid for process in job.processes]) == {}
    stop.touch()
    job.results()


def test_a_hostile_board_is_named_and_breaks_nothing() -> None:
    """The board of this process is not one that the library made."""
    board = os.memfd_create("ringfold-board")
    try:
        for content in (b"", b"short", b"\xff" * 10_000, (1 << 56).to_bytes(8, "little") * 300):
            os.ftruncate(board, 0)
            os.pwrite(board, content, 0)
            shown = run("top", "--once", "--interval", "0.1")
            assert shown.returncode == 0, shown.stderr
            assert f"board of process {os.getpid()} cannot be read" in shown.stdout
            counted = run("metrics")
            assert counted.returncode == 0 and str(os.getpid()) in counted.stderr
            parsed(counted.stdout)
    finally:
        os.close(board)


FLOOD, CLAIMED_RANKS = 150, 1 << 17
READER_KIB_MAX = 256 << 10
"""Far above the needs of an interpreter, and far below the memory of all claimed ranks."""
PEAK_KIB = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Runs in a small process: a child's peak memory begins with that of its parent."""


@pytest.mark.parametrize("words", [["metrics", "--peers"], ["top", "--once", "--interval", "0.1"]])
def test_boards_without_memory_cost_a_reader_little(words: list[str]) -> None:
    """Any user can make files that claim very many ranks and use no memory."""
    head = struct.pack("=8s6Q", b"rfboard\x01"[::-1], os.getpid(), 1, 2, 3, CLAIMED_RANKS, 0)
    boards = []
    try:
        for _ in range(FLOOD):
            boards.append(os.memfd_create("ringfold-board"))
            os.ftruncate(boards[-1], (256 + 4 * CLAIMED_RANKS) * 8)
            os.pwrite(boards[-1], head, 0)
        measured = subprocess.run(
            [sys.executable, "-c", PEAK_KIB, *COMMAND, *words],
            capture_output=True,
            text=True,
            timeout=WATCHDOG_S,
            check=False,
        )
    finally:
        for board in boards:
            os.close(board)
    assert measured.returncode == 0, measured.stderr
    assert int(measured.stdout) < READER_KIB_MAX, measured.stdout


SECRET = "a-secret-that-a-program-has-as-its-argument"


def test_a_board_has_no_secret_that_is_an_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = tmp_path / "stop"
    program = f"""
import pathlib, time, ringfold
with ringfold.init(rank=0, world_size=1) as comm:
    comm.barrier()
    print("ready", flush=True)
    while not pathlib.Path({str(stop)!r}).exists():
        time.sleep(0.01)
"""
    monkeypatch.setenv("RINGFOLD_SECRET", SECRET)
    with subprocess.Popen(
        [sys.executable, "-", SECRET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdin and rank.stdout
        rank.stdin.write(program)
        rank.stdin.close()
        try:
            assert rank.stdout.readline() == "ready\n"
            shown = [run("metrics").stdout, run("top", "--once", "--interval", "0.1").stdout]
        finally:
            stop.touch()
    assert all(str(rank.pid) in text and SECRET not in text for text in shown), shown


@pytest.fixture(params=["127.0.0.1", "[::1]"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """The address at which a process serves the counters."""
    command = [*COMMAND, "metrics", "--listen", f"{request.param}:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            line = server.stderr.readline()
            found = re.search(r"http://(\S+):([0-9]+)/metrics", line)
            assert found, line
            yield found[1].strip("[]"), int(found[2])
            assert server.poll() is None
        finally:
            server.kill()


def exchange(address: tuple[str, int], request: bytes) -> str:
    """Send a request, and return everything that is answered."""
    with socket.create_connection(address, WATCHDOG_S) as client:
        client.sendall(request)
        answer = b""
        while piece := client.recv(1 << 16):
            answer += piece
    return answer.decode()


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics HTTP/1.1", 200),
        (b"GET /metrics?a=b HTTP/1.0", 200),
        (b"HEAD /metrics HTTP/1.1", 200),
        (b"GET / HTTP/1.1", 200),
        (b"GET /other HTTP/1.1", 404),
        (b"POST /metrics HTTP/1.1", 405),
        (b"GET /metrics HTTP/2.0", 505),
        (b"GET /metrics", 400),
        (b"\x16\x03\x01\xff\x00", 400),
        (b"", 400),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1", 431),
    ],
)
def test_every_request_is_answered(
    served: tuple[str, int], request_line: bytes, status: int
) -> None:
    answer = exchange(served, request_line + b"\r\nHost: here\r\n\r\n")
    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} "), answer
    length = re.search(r"Content-Length: ([0-9]+)", head)
    assert length
    if request_line.startswith(b"HEAD"):
        assert body == ""
    else:
        assert len(body.encode()) == int(length[1])
    if status == 200 and b"GET /metrics" in request_line:
        assert "text/plain; version=0.0.4" in head
        parsed(body)


def test_clients_that_do_nothing_keep_nobody_out(served: tuple[str, int]) -> None:
    request = b"GET /metrics HTTP/1.1\r\n\r\n"
    idle: list[socket.socket] = []
    try:
        for beginning in (b"", b"GET /metrics HTTP/1.1\r\nHost"):
            # More clients than are served at a time; they send nothing, or an incomplete request.
            for _ in range(50):
                idle.append(socket.create_connection(served, WATCHDOG_S))
                idle[-1].sendall(beginning)
            assert exchange(served, request).startswith("HTTP/1.1 200")
        # The oldest client was disconnected to make room.
        with suppress(ConnectionError):
            assert idle[0].recv(1) == b""
        # The newest client is disconnected by its deadline, even if no other client connects.
        with suppress(ConnectionError):
            assert idle[-1].recv(1) == b""
    finally:
        for client in idle:
            client.close()


def test_an_address_that_cannot_be_had_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run("metrics", "--listen", address)
        assert ended.returncode == 1 and f"cannot listen at {address}" in ended.stderr
        assert "choose another" in ended.stderr and "in use" in ended.stderr
    # An address reserved for documentation, which no machine has.
    ended = run("metrics", "--listen", "192.0.2.1:9400")
    assert ended.returncode == 1 and "cannot listen at 192.0.2.1:9400" in ended.stderr
    ended = run("metrics", "--listen", "9400")
    assert ended.returncode == 2 and "--listen" in ended.stderr


@pytest.mark.deep
def test_the_kernel_shows_boards_to_their_user_only(jobs: Any, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    stop = tmp_path / "stop"
    job = jobs(call_until, 2, stop=str(stop))
    job.wait_for(0, "ready")
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            os.listdir(f"/proc/{job.processes[0].pid}/fd")
        except PermissionError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    stop.touch()
    job.results()
