"""One thread per process that watches its groups: for stuck calls, failed groups and the dump
signal; on request, ends the process after an error.

The thread sleeps, and checks the flight record from time to time, at no cost to calls. It starts
with the first group to watch and ends with the last. Its findings go to Python's logger `ringfold`,
which writes to standard error unless the program configures it: the program's other warnings go
there, with its own ranks and times, and pytest or a notebook shows them. The core's log bypasses
the logger.

Python runs a signal's handler when the main thread next executes Python code, which may be never.
Python's wakeup descriptor, unless the program uses it, therefore delivers the signal to this thread
at once.
"""

import logging
import os
import select
import signal
import socket
import threading
import time
from types import FrameType

from ringfold.errors import RingfoldError
from ringfold.torch.flight_dump import ANSWER_S, after_death, dump_flight_record
from ringfold.torch.flight_recorder import RANKS_MAX, Record, Trace, recorder

LOOKS_PER_STALL = 4
"""Number of checks per stall time: a stuck call is reported at most one check interval late."""
LOOK_MAX_S = 15.0
LOOK_FOR_DEATHS_S = 1.0
"""Time within which a rank that makes no call notices a failure, in seconds."""
_WAKE = b"\0"

log = logging.getLogger("ringfold")


class Watcher:
    """The thread, and the groups that it watches."""

    def __init__(self) -> None:
        self.settings = recorder().settings
        self._lock = threading.Lock()
        self._traces: set[Trace] = set()
        self._thread: threading.Thread | None = None
        self._due_ns: dict[int, int] = {}
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._signal = self._listen(self.settings.signal) if self.settings.signal else 0

    def watch(self, trace: Trace) -> None:
        """Watch a group until `forget`."""
        has_work = self.settings.stall_s or self.settings.dump or self.settings.ends_process
        if not (has_work and len(trace.ranks) > 1 or self._signal):
            return
        with self._lock:
            self._traces.add(trace)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="ringfold-watch", daemon=True
                )
                self._thread.start()

    def forget(self, trace: Trace) -> None:
        """Stop watching the group."""
        with self._lock:
            self._traces.discard(trace)
            if not self._traces:
                self.wake(_WAKE)

    def end(self) -> None:
        """End the thread, and wait for its end."""
        with self._lock:
            self._traces.clear()
            thread = self._thread
        self.wake(_WAKE)
        if thread is not None:
            thread.join(2 * ANSWER_S)

    def wake(self, why: bytes) -> None:
        """Make the thread check now. Never blocks."""
        try:
            self._write.send(why)
        except BlockingIOError:
            # The socket is full of wake-ups already.
            pass

    def is_woken_by_signals(self) -> bool:
        """Whether Python's wakeup descriptor is still ours; only the main thread may call this."""
        used = signal.set_wakeup_fd(-1)
        is_ours = used == self._write.fileno()
        if used != -1:
            signal.set_wakeup_fd(used, warn_on_full_buffer=not is_ours)
        return is_ours

    def abandon(self) -> None:
        """Close the sockets in a forked child: they are the parent's, like the thread, and must not
        be written to.
        """
        if self._signal and self.is_woken_by_signals():
            signal.set_wakeup_fd(-1)
        self._read.close()
        self._write.close()

    def _run(self) -> None:
        while True:
            select.select([self._read], [], [], self._period_s())
            woken_by = self._woken_by()
            with self._lock:
                # A group that was dropped without being closed is no longer watched.
                self._traces = {trace for trace in self._traces if trace.communicator is not None}
                traces = list(self._traces)
                if not traces:
                    self._thread = None
                    return
            try:
                if self._signal and self._signal in woken_by:
                    log.warning("flight record in %s", dump_flight_record())
                for trace in traces:
                    error = trace.fault()
                    if error is not None:
                        after_death(trace)
                        if self.settings.ends_process:
                            end_process(trace, error)
                if self.settings.stall_s:
                    self._look(set(traces))
            except Exception as error:
                log.warning("cannot check the groups: %s", error)

    def _period_s(self) -> float:
        period_s = min(self.settings.stall_s / LOOKS_PER_STALL or LOOK_MAX_S, LOOK_MAX_S)
        looks_for_deaths = self.settings.dump or self.settings.ends_process
        return min(period_s, LOOK_FOR_DEATHS_S) if looks_for_deaths else period_s

    def _woken_by(self) -> bytes:
        try:
            return self._read.recv(4096)
        except BlockingIOError:
            return b""

    def _look(self, traces: set[Trace]) -> None:
        """Report the calls that are due: of each group, the first collective and the first message,
        for which the others wait.
        """
        now_ns, stall_ns = time.time_ns(), int(self.settings.stall_s * 1e9)
        firsts: dict[tuple[Trace, bool], Record] = {}
        for record in recorder().records():
            if (
                now_ns - record.created_ns > stall_ns
                and record.trace in traces
                and record.is_pending
            ):
                firsts.setdefault((record.trace, record.is_message), record)
        self._due_ns = {record.id: self._due_ns.get(record.id, 0) for record in firsts.values()}
        for record in firsts.values():
            age_ns = now_ns - record.created_ns
            if record.trace.fault() is None and age_ns >= self._due_ns[record.id]:
                self._due_ns[record.id] = 2 * age_ns
                log.warning("%s", stalled(record, age_ns / 1e9))

    def _listen(self, name: str) -> int:
        """Install the signal handler unless the program has one. Returns the signal, or 0."""
        number = getattr(signal, f"SIG{name.removeprefix('SIG')}", None)
        if not isinstance(number, signal.Signals):
            log.warning(
                "RINGFOLD_FR_SIGNAL=`%s` is not the name of a signal; use for example USR2", name
            )
        elif threading.current_thread() is not threading.main_thread():
            log.warning(
                "%s is not handled, because the first group was not made in the main thread",
                number.name,
            )
        elif signal.getsignal(number) is not signal.SIG_DFL:
            log.warning(
                "the program handles %s itself; call ringfold.torch.dump_flight_record there",
                number.name,
            )
        else:
            others = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
            if others != -1:
                signal.set_wakeup_fd(others)
            signal.signal(number, on_signal)
            return number
        return 0


def end_process(trace: Trace, error: RingfoldError) -> None:
    """End the process because a group has failed, whatever its threads wait for."""
    log.error(
        "[rank %d] group %s has failed, and RINGFOLD_TORCH_ASYNC_ERRORS=exit ends the process: %s",
        trace.own,
        trace,
        error,
    )
    logging.shutdown()
    os._exit(1)


def stalled(record: Record, age_s: float) -> str:
    """The warning about a stuck call: the call, its age, and the ranks that it waits for."""
    trace = record.trace
    return f"[rank {trace.own}] {record} has been in progress for {age_s:.0f} s; {awaited(record)}"


def awaited(record: Record) -> str:
    """The ranks that have not entered this rank's call, with their current calls, as text."""
    trace = record.trace
    asked = (trace.lane if record.is_on_device else None) or trace.communicator
    if asked is None:
        return "its group no longer exists"
    try:
        standings = asked.standing(ANSWER_S)
    except RingfoldError as error:
        return f"the progress of the other ranks is unknown: {error}"
    if record.is_message:
        peer = record.noted[0][4]
        if peer is None:
            return "waiting for any rank"
        return f"waiting for {place(trace.ranks[peer], standings[peer])}"
    own = standings[trace.rank]
    begun = own[1] if own is not None else 0
    if record.is_on_device and own is not None and not own[2]:
        return "this rank's device has not reached it"
    late = [rank for rank, other in enumerate(standings) if other is None or other[1] < begun]
    if not late:
        return "all ranks are in it"
    words = [place(trace.ranks[rank], standings[rank], begun) for rank in late[:RANKS_MAX]]
    more = [f"{len(late) - RANKS_MAX} more"] if len(late) > RANKS_MAX else []
    return "waiting for " + ", ".join(words + more)


def place(rank: int, standing: tuple[int, int, str] | None, begun: int = 0) -> str:
    """A rank's position as text, and how many calls it is behind a rank that has begun `begun`."""
    if standing is None:
        return f"rank {rank} (does not answer)"
    behind = f", {begun - standing[1]} behind" if begun > standing[1] else ""
    return f"rank {rank} ({f'in {standing[2]}' if standing[2] else 'in no call'}{behind})"


_watcher: Watcher | None = None


def watch(trace: Trace) -> None:
    """Watch a group from now on."""
    global _watcher
    if _watcher is None:
        _watcher = Watcher()
    _watcher.watch(trace)


def forget(trace: Trace) -> None:
    """Stop watching the group."""
    if _watcher is not None:
        _watcher.forget(trace)


def end() -> None:
    """Stop watching before the interpreter exits, after which no thread may return to it."""
    if _watcher is not None:
        _watcher.end()


def on_signal(number: int, _: FrameType | None) -> None:
    """Handle the dump signal in the main thread. The watching thread already has the signal, unless
    the program uses the wakeup descriptor.
    """
    if _watcher is not None and not _watcher.is_woken_by_signals():
        _watcher.wake(bytes([number]))


def _abandon() -> None:
    global _watcher
    if _watcher is not None:
        _watcher.abandon()
        _watcher = None


os.register_at_fork(after_in_child=_abandon)
