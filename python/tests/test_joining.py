"""Joining as a process sees it.

Ctrl-C, limits of descriptors and threads, names in use, endless deadlines, other versions.
"""

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import ringfold

WATCHDOG_S = 120.0
# Longer than the watchdog: no joining here may end by its deadline.
FAR_S = 600
NOBODY = 65534

PRELUDE = f"""
import os, resource, signal, sys
import ringfold
signal.signal(signal.SIGINT, signal.default_int_handler)
rank, argument = int(os.environ["RINGFOLD_RANK"]), sys.argv[1]

def tasks():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            names.append(open(f"/proc/self/task/{{task}}/comm").read().strip())
        except (FileNotFoundError, ProcessLookupError):
            pass  # It has ended meanwhile.
    return sorted(name for name in names if name.startswith("ringfold"))

def join():
    try:
        with ringfold.init(connect_timeout={FAR_S}, timeout={FAR_S}) as comm:
            comm.barrier()
        print("in", flush=True)
    except ringfold.RingfoldError as error:
        print(f"{{type(error).__name__}}: {{error}}", flush=True)
"""

INTERRUPTED = (
    PRELUDE
    + """
if rank == 1:
    try:
        join()
    except KeyboardInterrupt:
        print("again", tasks(), flush=True)
join()
"""
)

WITHOUT_DESCRIPTORS = (
    PRELUDE
    + """
if rank == 0:
    limit = len(os.listdir("/proc/self/fd")) - 1 + int(argument)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
join()
"""
)

WITHOUT_THREADS = (
    PRELUDE
    + """
# A user of its own, because the limit counts all threads of a user.
os.setuid(100000 + os.getppid())
if rank == 1:
    # Three of rank 0's, and this one.
    limit = 4 + int(argument)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
join()
"""
)


WITHDRAWN = (
    PRELUDE
    + """
import numpy as np
comm = ringfold.init(connect_timeout=600, timeout=600)
comm.barrier()
if rank == 0:
    print("absent", flush=True)
    signal.pause()
x = np.ones(1 << 16)
calls = {
    "alloc": lambda: comm.empty(1 << 16),
    "register": lambda: comm.register(x),
    "split": lambda: comm.split(0),
}
try:
    print("waiting", flush=True)
    calls[argument]()
except KeyboardInterrupt:
    print("left", "ringfold-setup" in tasks(), flush=True)
    x += 1
    os._exit(int((x != 2).any()))
"""
)

CLOSED = (
    PRELUDE
    + """
comm = ringfold.init(connect_timeout=600, timeout=600)
comm.barrier()
if rank == 0:
    comm.close()
    os._exit(0)
try:
    comm.barrier()
except ringfold.RingfoldError as error:
    print(error, flush=True)
"""
)


class Rank:
    """A rank's process; its output is read on demand."""

    def __init__(
        self, program: str, rank: int, argument: object, environment: dict[str, str]
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(argument)],
            env={
                **os.environ,
                "RINGFOLD_RANK": str(rank),
                "OPENBLAS_NUM_THREADS": "1",
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def tasks(self) -> Iterator[str]:
        """Yield the names of the process' threads, except those that end meanwhile."""
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                yield (task / "comm").read_text().strip()

    def await_task(self, name: str) -> None:
        """Wait until a thread with this name runs."""
        deadline = time.monotonic() + WATCHDOG_S
        while name not in self.tasks():
            assert time.monotonic() < deadline, f"no thread {name}"
            time.sleep(0.005)

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def rest(self) -> str:
        """Wait for the process to end, and return the rest of its output."""
        try:
            return self.process.communicate(timeout=WATCHDOG_S)[0].strip()
        except subprocess.TimeoutExpired:
            pytest.fail("a rank hangs")


Start = Callable[..., Rank]


@pytest.fixture
def start() -> Iterator[Start]:
    ranks: list[Rank] = []
    place = {
        "RINGFOLD_ADDR": f"unix:@ringfold-test-{uuid.uuid4().hex}",
        "RINGFOLD_SECRET": uuid.uuid4().hex,
    }

    def begin(
        program: str, rank: int, world_size: int, argument: object = "", **environment: str
    ) -> Rank:
        size = {"RINGFOLD_WORLD_SIZE": str(world_size)}
        ranks.append(Rank(program, rank, argument, {**place, **size, **environment}))
        return ranks[-1]

    yield begin
    for rank in ranks:
        rank.process.kill()
        rank.process.communicate()


@pytest.mark.parametrize("is_rank_0_there", [True, False])
def test_an_interrupted_joining_leaves_no_thread_and_can_be_repeated(
    start: Start, is_rank_0_there: bool
) -> None:
    zero = start(INTERRUPTED, 0, 3) if is_rank_0_there else None
    if zero:
        zero.await_task("ringfold-server")
    one = start(INTERRUPTED, 1, 3)
    one.await_task("ringfold-setup")
    one.process.send_signal(signal.SIGINT)
    assert one.line() == "again []"
    ranks = [zero or start(INTERRUPTED, 0, 3), one, start(INTERRUPTED, 2, 3)]
    assert [rank.rest() for rank in ranks] == ["in"] * 3


@pytest.mark.parametrize("spare", [5, 7, 8])
def test_ranks_are_told_that_rank_0_has_no_descriptors(start: Start, spare: int) -> None:
    ranks = [start(WITHOUT_DESCRIPTORS, rank, 3, spare) for rank in range(3)]
    said = [rank.rest() for rank in ranks]
    assert "ulimit -n" in said[0], said
    for text in said[1:]:
        # A rank that had joined may see rank 0 end before it receives the reason.
        assert any(part in text for part in ("ulimit -n", "given up", "rank 0 failed")), said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without other threads")
@pytest.mark.parametrize("spare", [1, 3])
def test_a_rank_without_threads_ends_the_joining_of_all(start: Start, spare: int) -> None:
    # Rank 1 has too few threads for its monitor, or for its connections.
    zero = start(WITHOUT_THREADS, 0, 2, RINGFOLD_TRANSPORT="tcp")
    zero.await_task("ringfold-server")
    one = start(WITHOUT_THREADS, 1, 2, spare, RINGFOLD_TRANSPORT="tcp")
    said = [zero.rest(), one.rest()]
    assert "ulimit -u" in said[1], said
    assert "rank 1" in said[0] and "panicked" not in "".join(said), said


@pytest.fixture
def squatted() -> Iterator[int]:
    """A port whose name is held by another user."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        holder = socket.socket(socket.AF_UNIX)
        holder.bind(f"\0ringfold-0-{port}")
        holder.listen(100)
        os.write(writer, b".")
        signal.pause()
    os.read(reader, 1)
    yield port
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
def test_a_name_that_another_user_holds_is_said_at_once_and_a_secret_evades_it(
    start: Start, squatted: int
) -> None:
    place = {"RINGFOLD_ADDR": f"127.0.0.1:{squatted}"}
    open_ranks = [
        start(PRELUDE + "join()", rank, 2, RINGFOLD_SECRET="", **place) for rank in range(2)
    ]
    for rank in open_ranks:
        text = rank.rest()
        assert f"user {NOBODY}" in text and "RINGFOLD_SECRET" in text, text
    hidden = [start(PRELUDE + "join()", rank, 2, **place) for rank in range(2)]
    assert [rank.rest() for rank in hidden] == ["in"] * 2


@pytest.mark.parametrize("endless", [1e19, 1e300, float("inf")])
def test_endless_deadlines_are_deadlines(endless: float) -> None:
    with ringfold.init(rank=0, world_size=1, connect_timeout=endless, timeout=endless) as comm:
        comm.barrier()
        assert len(comm.standing(endless)) == 1


@pytest.mark.parametrize("wrong", [-1.0, float("nan")])
def test_a_deadline_that_is_no_time_is_refused(wrong: float) -> None:
    with pytest.raises(ringfold.RingfoldError, match=re.escape("0 or more")):
        ringfold.init(rank=0, world_size=1, connect_timeout=wrong)


@pytest.mark.parametrize("what", ["alloc", "register", "split"])
def test_nothing_works_on_for_an_interrupted_caller(start: Start, what: str) -> None:
    zero, one = (start(WITHDRAWN, rank, 2, what) for rank in range(2))
    assert (zero.line(), one.line()) == ("absent", "waiting")
    one.await_task("ringfold-setup")
    one.process.send_signal(signal.SIGINT)
    assert (one.rest().splitlines()[-1], one.process.returncode) == ("left False", 0)


def test_a_process_that_has_closed_its_communicators_may_end_as_it_likes(start: Start) -> None:
    # If ranks did not say goodbye, most of these jobs would see rank 0 fail.
    for _ in range(3):
        said = [rank.rest() for rank in [start(CLOSED, rank, 2, 0) for rank in range(2)]]
        assert said[0] == "" and "rank 0 failed: it left" in said[1], said


GREETING = struct.Struct("<8sH")
"""First fields of both ends' greetings in every version: the protocol, and the version."""

HELLO_BYTES, CHALLENGE_BYTES = 72, 48

BRIEFLY = """
import sys
import ringfold
try:
    ringfold.init(connect_timeout=float(sys.argv[1]))
except ringfold.RingfoldError as error:
    print(error, flush=True)
"""


def received(end: socket.socket, count: int) -> bytes:
    """Receive up to `count` bytes from the other end."""
    said = b""
    while len(said) < count and (part := end.recv(count - len(said))):
        said += part
    return said


def names_both(text: str, theirs: int, own: int) -> bool:
    """Return whether an error names both versions and the remedy."""
    versions = f"speaks version {theirs} of ringfold's wire format, and this end version {own}"
    return versions in text and "install the same release" in text


def test_rank_0_of_another_version_is_named_with_both_versions(start: Start) -> None:
    name = f"ringfold-test-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(WATCHDOG_S)
        listener.bind("\0" + name)
        listener.listen()
        one = start(PRELUDE + "join()", 1, 2, RINGFOLD_ADDR=f"unix:@{name}")
        end, _ = listener.accept()
        with end:
            protocol, own = GREETING.unpack(received(end, HELLO_BYTES)[: GREETING.size])
            theirs = own + 1
            end.sendall(GREETING.pack(protocol, theirs).ljust(CHALLENGE_BYTES, b"\0"))
            said = one.rest()
    assert names_both(said, theirs, own), said


@pytest.mark.parametrize("theirs", [0, 1, 0xFFFF])
def test_a_rank_of_another_version_is_named_to_all_that_wait_for_it(
    start: Start, theirs: int
) -> None:
    # Rank 0 waits until its deadline, because the message may come from a stranger without the
    # secret. On a busy machine, a short deadline may pass before the stranger connects.
    for deadline_s in (2, 8, 30):
        name = f"ringfold-test-{uuid.uuid4().hex}"
        place = {"RINGFOLD_ADDR": f"unix:@{name}"}
        zero = start(BRIEFLY, 0, 3, deadline_s, **place)
        zero.await_task("ringfold-server")
        one = start(BRIEFLY, 1, 3, WATCHDOG_S, **place)
        with socket.socket(socket.AF_UNIX) as two:
            with suppress(ConnectionError):
                two.connect("\0" + name)
                two.sendall(GREETING.pack(b"RINGFOLD", theirs).ljust(HELLO_BYTES, b"\0"))
            answer = received(two, CHALLENGE_BYTES)
        said = [zero.rest(), one.rest()]
        if answer:
            break
    protocol, own = GREETING.unpack(answer[: GREETING.size])
    assert protocol == b"RINGFOLD" and answer[GREETING.size] == 2, answer
    assert names_both(said[0], theirs, own) and "missing ranks: [2]" in said[0], said
    assert names_both(said[1], theirs, own) or "rank 0 stopped waiting" in said[1], said


def test_the_last_refusal_is_in_the_errors_of_all_that_wait(start: Start) -> None:
    zero = start(BRIEFLY, 0, 4, FAR_S)
    zero.await_task("ringfold-server")
    # Happens on a host whose launcher has another number of ranks.
    stray = start(BRIEFLY, 1, 2, FAR_S).rest()
    one = start(BRIEFLY, 1, 4, 1.5).rest()
    for text in (stray, one, zero.rest()):
        assert "the world sizes differ: 2 on the refused rank, 4 on rank 0" in text, text
    assert "waiting for all ranks to join" in one and "claiming rank 1" in one, one


STRANGERS = 60


def test_strangers_do_not_fill_the_log(start: Start) -> None:
    name = f"ringfold-test-{uuid.uuid4().hex}"
    place = {"RINGFOLD_ADDR": f"unix:@{name}"}
    zero = start(PRELUDE + "join()", 0, 2, **place)
    zero.await_task("ringfold-server")
    for _ in range(STRANGERS):
        with socket.socket(socket.AF_UNIX) as stranger, suppress(ConnectionError):
            stranger.connect("\0" + name)
            stranger.sendall(b"GET / HTTP/1.1\r\n".ljust(HELLO_BYTES))
            # Waits until rank 0 turns the stranger away.
            received(stranger, CHALLENGE_BYTES)
    one = start(PRELUDE + "join()", 1, 2, **place)
    assert one.rest() == "in"
    *warnings, last = zero.rest().splitlines()
    assert last == "in"
    # One warning at each doubling of the number of strangers.
    assert 1 <= len(warnings) <= STRANGERS.bit_length(), warnings
