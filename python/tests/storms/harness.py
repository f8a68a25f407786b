"""Jobs of forked ranks for the storms: quickly started, watched, and ended without a trace.

Ranks are forked from a process that has imported everything, so that a job costs little more than
`ringfold.init`. That process must have a single thread. Each rank has two pipes to it: one for the
rank's reports as lines of JSON, one for orders. A rank that does not end in time hangs: its stacks
go to its log, and it is killed. Each rank leads its own process group, so that its forked children
are found and ended, too.
"""

import ctypes
import faulthandler
import json
import os
import select
import signal
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

# The ranks are the parallelism, and a thread pool would not survive the fork.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import ringfold

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "python/tests/devices")]

from lab import Lab

# From <linux/prctl.h> and <linux/sched.h>.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNET = 0x40000000
# Deadline of the ranks' calls, and limit for joining.
CALL_S = 20.0
CONNECT_S = 60.0
# A rank that has not ended after this time hangs: far longer than any deadline of the library.
WATCHDOG_S = 90.0
# Lifetime of a rank's forked child, in case it is not ended otherwise.
ORPHAN_S = 300
# Name of the variable that carries a rank into a fresh interpreter.
RESUMED = "STORM_RANK"
# Ports of jobs between hosts, where every port is free.
FIRST_PORT, PORTS = 10000, 20000

_libc = ctypes.CDLL(None, use_errno=True)


def enter(host: str) -> None:
    """Move this process to a network namespace."""
    with open(f"/run/netns/{host}") as namespace:
        if _libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


@dataclass(frozen=True)
class Place:
    """Where the ranks of a job run, and how they reach each other."""

    transport: str
    """`shm` or `tcp` on this host, or `hosts`: ringfold's own choice between namespaces. Between
    the hosts of bench/rdma_vm.sh, also a transport's name."""
    lab: Lab | None = None
    """The hosts."""
    seats: tuple[int, ...] = ()
    """Each rank's host; if empty, ranks are distributed over all hosts."""

    def address(self, number: int) -> str:
        """Return the address of rank 0; at most one job at a time may use a number."""
        if self.lab:
            return f"{self.lab.address(self.host(0))}:{FIRST_PORT + number % PORTS}"
        return f"unix:@ringfold-storm-{uuid.uuid4().hex}"

    def host(self, rank: int) -> int:
        """Return the number of a rank's host."""
        return self.seats[rank] if self.seats else rank % len(self.lab.hosts) if self.lab else 0

    def enter(self, rank: int) -> None:
        """Move this process to the rank's host."""
        if self.lab:
            enter(self.lab.hosts[self.host(rank)])
            os.environ.update(self.lab.variables(self.host(rank)))


class Wrong(Exception):
    """A call that succeeded had a wrong result."""


@dataclass(frozen=True)
class Ending:
    """Outcome of a rank's program, or of one of its trials."""

    rank: int
    kind: str
    """`ok`, the error's class, `wrong`, `killed` (by the storm), `hang`, `crash` or `panic`."""
    blamed: tuple[int, ...] = ()
    """Ranks that the error names."""
    at: float = 0.0
    """Time of the end, by the monotonic clock."""
    text: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.kind} {list(self.blamed)} {self.text}"


def blamed(error: BaseException) -> tuple[int, ...]:
    """Return the ranks that an error names."""
    match error:
        case ringfold.PeerFailedError() | ringfold.AbortedError():
            return (error.rank,)
        case ringfold.RingfoldTimeoutError():
            return tuple(error.waiting_for)
        case ringfold.MismatchError():
            return error.ranks
        case ringfold.CorruptError():
            return (error.peer,)
    return ()


class Rank:
    """A rank's side of its job."""

    def __init__(
        self, rank: int, ranks: int, place: Place, address: str, said: int, orders: int
    ) -> None:
        self.rank, self.ranks, self.place = rank, ranks, place
        self._address = address
        self._said, self._orders = said, orders

    def join(self, part: str = "", **arguments: Any) -> ringfold.Communicator:
        """Join this job; with different `part`s, repeatedly, but only on one host."""
        transport = "auto" if self.place.transport == "hosts" else self.place.transport
        if self.ranks % 2 == 0:  # These ranks read all messages from each other's memory.
            os.environ.update(RINGFOLD_LIMITS="read_bytes_min=4", RINGFOLD_PROBE="0")
        return ringfold.init(
            self.rank,
            self.ranks,
            self._address + part,
            "the secret of a storm",
            transport=transport,
            **{"timeout": CALL_S, "connect_timeout": CONNECT_S, **arguments},
        )

    def say(self, event: str, **fields: Any) -> None:
        """Report an event to the starter."""
        line = json.dumps({"event": event, "at": time.monotonic(), **fields}) + "\n"
        os.write(self._said, line.encode())

    def say_ended(self, error: BaseException | None, text: str = "", **fields: Any) -> None:
        """Report the outcome of the program, or of one of its trials, to the starter."""
        kind = (
            "ok" if error is None else "wrong" if isinstance(error, Wrong) else type(error).__name__
        )
        named = () if error is None else blamed(error)
        self.say("end", kind=kind, blamed=named, text=text or str(error or "")[:300], **fields)

    def ordered(self, wait: bool = True) -> bool:
        """Wait or check for the next order; return true if it came, or the starter has ended."""
        if not select.select([self._orders], [], [], None if wait else 0)[0]:
            return False
        os.read(self._orders, 1)
        return True

    def go_on_in(self, script: Path, *words: str) -> NoReturn:
        """Continue as this rank in a fresh interpreter, in which `resumed` returns the rank.

        The fresh process has its own memory. Memory that a fork shares with its parent stays in the
        pieces into which it was once split.
        """
        pipes = (self._said, self._orders)
        for pipe in pipes:
            os.set_inheritable(pipe, True)
        place = self.place.transport
        os.environ[RESUMED] = json.dumps([self.rank, self.ranks, place, self._address, *pipes])
        os.execv(sys.executable, [sys.executable, str(script), *words])

    @staticmethod
    def resumed() -> "Rank | None":
        """Return the rank that continues in this interpreter, if any."""
        if not (said := os.environ.pop(RESUMED, None)):
            return None
        rank, ranks, transport, *rest = json.loads(said)
        _show_stacks()
        return Rank(rank, ranks, Place(transport), *rest)

    def fork_that_lives_on(self, act: Callable[[], None] = lambda: None) -> None:
        """Fork a child that acts and then stays until the job ends, whatever this rank does."""
        if os.fork() == 0:
            signal.alarm(ORPHAN_S)
            act()
            while True:
                signal.pause()


Program = Callable[[Rank], None]


@dataclass
class _Started:
    """A rank, seen from its starter."""

    pid: int
    said: int
    orders: int
    log: int
    unread: bytes = b""
    ended: int | None = None
    """Exit code, as from `os.waitstatus_to_exitcode`."""
    was_killed: bool = False
    hangs: bool = False


class Job:
    """Ranks of one job, as a context manager that leaves no trace of them."""

    def __init__(self, program: Program, ranks: int, place: Place, number: int = 0) -> None:
        self.events: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
        self._ranks: list[_Started] = []
        address = place.address(number)
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for rank in range(ranks):
            self._ranks.append(self._start(program, rank, ranks, place, address))

    def _start(
        self, program: Program, rank: int, ranks: int, place: Place, address: str
    ) -> _Started:
        log = os.memfd_create("storm log")
        said, say = os.pipe()
        take, order = os.pipe()
        starter = os.getpid()
        pid = os.fork()
        if pid == 0:
            _be_rank(program, Rank(rank, ranks, place, address, say, take), log, starter)
        # Also done in the child, because either process may be first.
        os.setpgid(pid, pid)
        os.close(say)
        os.close(take)
        os.set_blocking(said, False)
        return _Started(pid, said, order, log)

    def pid(self, rank: int) -> int:
        """Return the process id of a rank."""
        return self._ranks[rank].pid

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank, which keeps its process id until the job ends."""
        self._ranks[rank].was_killed |= number == signal.SIGKILL
        os.kill(self._ranks[rank].pid, number)

    def order(self, rank: int) -> None:
        """Give the next order to a rank."""
        try:
            os.write(self._ranks[rank].orders, b"!")
        except BrokenPipeError:
            # The rank has ended; its exit status shows how.
            pass

    def dismiss(self) -> None:
        """Give all future orders at once."""
        for started in self._ranks:
            if started.orders >= 0:
                os.close(started.orders)
                started.orders = -1

    def wait_for(
        self,
        event: str,
        count: int = 1,
        of: Sequence[int] | None = None,
        limit_s: float = WATCHDOG_S,
    ) -> bool:
        """Wait until all ranks, or those in `of`, have reported `event` `count` times.

        Return false if one of them ended before, or the time is up.
        """
        deadline = time.monotonic() + limit_s
        missing = set(range(len(self._ranks)) if of is None else of)
        while True:
            # All reports of an ended rank have been read by then.
            ended = {rank for rank in missing if self._ranks[rank].ended is not None}
            missing = {rank for rank in missing if self._count(rank, event) < count}
            if not missing:
                return True
            if missing & ended or time.monotonic() > deadline:
                return False
            self.look(0.05)

    def _count(self, rank: int, event: str) -> int:
        return sum(said["event"] == event for said in self.events[rank])

    def look(self, patience_s: float) -> None:
        """Read the ranks' reports and exits; wait a little if there are none."""
        open_pipes = {
            started.said: rank for rank, started in enumerate(self._ranks) if started.said >= 0
        }
        readable = select.select(list(open_pipes), [], [], patience_s)[0]
        for pipe in readable:
            self._read(open_pipes[pipe])
        if not open_pipes:
            time.sleep(0.001)
        for rank, started in enumerate(self._ranks):
            # Not reaped, so that no other process gets this id before the job ends.
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if started.ended is None and (found := os.waitid(os.P_PID, started.pid, how)):
                self._read(rank)
                is_exit = found.si_code == os.CLD_EXITED
                started.ended = found.si_status if is_exit else -found.si_status

    def pause(self, seconds: float) -> None:
        """Let time pass while reading the ranks' reports."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.look(left)

    def _read(self, rank: int) -> None:
        started = self._ranks[rank]
        try:
            while started.said >= 0 and (got := os.read(started.said, 1 << 16)):
                started.unread += got
        except BlockingIOError:
            pass
        else:
            if started.said >= 0:
                os.close(started.said)
                started.said = -1
        *lines, started.unread = started.unread.split(b"\n")
        self.events[rank] += [json.loads(line) for line in lines]

    def finish(self, limit_s: float = WATCHDOG_S) -> list[Ending]:
        """Wait until all ranks have ended, kill those that hang, and return the outcomes."""
        deadline = time.monotonic() + limit_s
        while any(started.ended is None for started in self._ranks):
            if time.monotonic() > deadline:
                self._kill_what_hangs()
            self.look(0.05)
        return [self._ending(rank) for rank in range(len(self._ranks))]

    def _kill_what_hangs(self) -> None:
        stuck = [started for started in self._ranks if started.ended is None]
        for started in stuck:
            started.hangs = True
            # A stopped process writes no stacks.
            os.kill(started.pid, signal.SIGCONT)
            os.kill(started.pid, signal.SIGUSR1)
        time.sleep(0.5)
        for started in stuck:
            os.kill(started.pid, signal.SIGKILL)
            os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)

    def _ending(self, rank: int) -> Ending:
        started = self._ranks[rank]
        log = self.log(rank)
        ends = [event for event in self.events[rank] if event["event"] == "end"]
        if "panicked" in log:
            return Ending(rank, "panic", text=log)
        if "Fatal Python error" in log and not started.hangs:
            # May also come from a forked child.
            return Ending(rank, "crash", text=log)
        if started.hangs:
            return Ending(rank, "hang", text=f"{ends and ends[-1]}\n{log}")
        if started.was_killed:
            return Ending(rank, "killed")
        if started.ended != 0 or not ends:
            return Ending(rank, "crash", text=f"ended with {started.ended}\n{log}")
        return ending(rank, ends[-1])

    def log(self, rank: int) -> str:
        """Return the end of a rank's output."""
        log = self._ranks[rank].log
        size = os.fstat(log).st_size
        return os.pread(log, 6000, max(0, size - 6000)).decode(errors="replace")

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for started in self._ranks:
            # The rank may have ended, but was not reaped, so the group is still its own.
            os.killpg(started.pid, signal.SIGKILL)
            try:
                while True:
                    os.waitpid(-started.pid, 0)
            except ChildProcessError:
                pass
            for descriptor in (started.said, started.orders, started.log):
                if descriptor >= 0:
                    os.close(descriptor)


def ending(rank: int, event: dict[str, Any]) -> Ending:
    """Return the outcome in a rank's report."""
    return Ending(rank, event["kind"], tuple(event["blamed"]), event["at"], event["text"])


def endless() -> None:
    """Kill this process when its starter ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _show_stacks() -> None:
    """Make a crash, and SIGUSR1 to a rank that hangs, write stacks to the rank's log."""
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2)


def _be_rank(program: Program, rank: Rank, log: int, starter: int) -> None:
    """Run the program in this process, which ends with it."""
    status = 1
    try:
        os.setpgid(0, 0)
        endless()
        if os.getppid() != starter:
            os._exit(1)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # Closes all other descriptors, above all the other ranks' pipes: their end is a signal.
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor not in (rank._said, rank._orders):
                _libc.close(descriptor)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _show_stacks()
        rank.place.enter(rank.rank)
        program(rank)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
