"""Kills, freezes and pulled cables in jobs between the hosts of bench/rdma_vm.sh, over RDMA or TCP.

    RDMA_VM_HOSTS=6 bench/rdma_vm.sh .venv/bin/python python/tests/storms/cables.py

A job has two to four ranks on two hosts with their own cables. The job survives short faults. All
other faults end every rank with an error that names the right rank, or a rank of the other host.
After the error a rank owns its buffers again: it fills them and the memory around them with a
pattern, which must stay, whatever its peers still write.
"""

import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import harness
import numpy as np
import storm
from harness import Ending, Job, Place, Rank, Wrong
from rdma_hosts import RdmaHosts, hosts_here
from storm import Outcome, Storm

import ringfold

HOSTS = 2
# Deadline of calls, permitted silence of a host, and limit for joining.
DEADLINE_S, SILENCE_S, CONNECT_S = 8.0, 4.0, 60.0
# Added to the deadline or the silence, for an emulated machine with other jobs.
GRACE_S = 15.0
# Latest moment of a fault after the first calls, and length of a fault that is survived.
LATEST_S, SHORT_S = 0.5, 0.15
# Time for which the pattern must stay, once all ranks have their error.
QUIET_S = 0.2
# Elements of a buffer; and elements around it: pages on each side.
COUNTS = (1, 1000, 16384, 100_000, 300_000)
GUARD = 2048
PATTERN = -7.0

# 268 ms, which a device tries seven times: a pulled cable is an error after 1.9 s. Commands take
# long on the emulated machine; a fault that they prolong beyond SURVIVED_S need not be survived.
IB_TIMEOUT, SURVIVED_S = "16", 1.0

# Weights of the final faults. `wire` is the cable of RDMA alone; `cut` is that cable and TCP's.
FINAL = {"kill": 6, "freeze": 2, "freeze, kill": 2, "wire": 3, "port": 3, "cut": 4}
SHORT = ("freeze", "wire")


@dataclass(frozen=True)
class Trial:
    """A job and its faults."""

    seats: tuple[int, ...]
    kind: str
    victim: int
    is_short: tuple[str, ...]
    """Kinds of the earlier faults, which are survived."""
    moments_s: tuple[float, ...]

    def __str__(self) -> str:
        before = f" after {', '.join(self.is_short)} for a moment" if self.is_short else ""
        return f"hosts {list(self.seats)}: {self.kind} at rank {self.victim}{before}"


def drawn(seed: int, transport: str) -> Trial:
    """Draw the trial of a seed."""
    random_ = random.Random(seed)
    seats = random_.choice(((0, 1), (0, 0, 1), (0, 1, 1), (0, 0, 1, 1), (0, 1, 0, 1)))
    kinds = dict(FINAL)
    if transport != "rdma":
        # These faults have no effect on TCP.
        del kinds["wire"], kinds["port"]
    shorts = tuple(random_.choice(SHORT) for _ in range(random_.choice((0, 0, 1, 2))))
    (kind,) = random_.choices(list(kinds), list(kinds.values()))
    moments_s = tuple(random_.random() * LATEST_S for _ in range(len(shorts) + 1))
    return Trial(seats, kind, random_.randrange(len(seats)), shorts, moments_s)


class Memory:
    """A buffer between guards."""

    def __init__(self, whole: Any, count: int) -> None:
        self.whole = whole
        self.inside = whole[GUARD : GUARD + count]
        self.whole[:] = PATTERN

    def check_guards(self, where: str) -> None:
        """Raise `Wrong` if anything was written around the buffer."""
        count = len(self.inside)
        for name, part in (("before", self.whole[:GUARD]), ("after", self.whole[GUARD + count :])):
            if (part != PATTERN).any():
                raise Wrong(f"{where}: something was written {name} a buffer of {count}")

    def take_back(self) -> None:
        """Overwrite the buffer and its guards with the pattern."""
        self.whole[:] = PATTERN

    def check_quiet(self, where: str) -> None:
        """Raise `Wrong` if anything was written since `take_back`."""
        if changed := int((self.whole != PATTERN).sum()):
            raise Wrong(f"{where}: {changed} elements were written after the error")


class Steps:
    """Calls of one rank, in buffers that it keeps."""

    def __init__(self, comm: ringfold.Communicator, seed: int) -> None:
        self.comm, self.random = comm, random.Random(seed)
        kinds = (np.empty, comm.empty)
        self.memories = [
            (
                Memory(make(count + 2 * GUARD, "float32"), count),
                Memory(make(count + 2 * GUARD, "float32"), count),
            )
            for make in kinds
            for count in COUNTS
        ]

    def step(self) -> None:
        """Make one to three calls at a time, and check each exactly."""
        chosen = self.random.sample(self.memories, self.random.randint(1, 3))
        kinds = [self.random.choice((self.all_reduce, self.broadcast, self.shift)) for _ in chosen]
        salt = self.random.randrange(100)
        started = [kind(*pair, salt) for kind, pair in zip(kinds, chosen, strict=True)]
        for (work, due), (_, y) in zip(started, chosen, strict=True):
            for one in work:
                one.wait()
            if (y.inside != due).any():
                raise Wrong(f"{y.inside[y.inside != due][:3]} instead of {due}")
        for x, y in chosen:
            x.check_guards("input")
            y.check_guards("output")

    def all_reduce(self, x: Memory, y: Memory, salt: int) -> tuple[list[Any], float]:
        ranks = self.comm.world_size
        x.inside[:] = salt + self.comm.rank
        work = self.comm.all_reduce(x.inside, out=y.inside, async_=True)
        return [work], salt * ranks + ranks * (ranks - 1) / 2

    def broadcast(self, x: Memory, y: Memory, salt: int) -> tuple[list[Any], float]:
        root = salt % self.comm.world_size
        x.inside[:] = salt + self.comm.rank
        return [self.comm.broadcast(x.inside, root, out=y.inside, async_=True)], salt + root

    def shift(self, x: Memory, y: Memory, salt: int) -> tuple[list[Any], float]:
        rank, ranks = self.comm.rank, self.comm.world_size
        x.inside[:] = salt + rank
        work = self.comm.sendrecv(x.inside, out=y.inside, async_=True)
        return [work], salt + (rank - 1) % ranks

    def take_back(self) -> None:
        """Check all guards, and overwrite all buffers with the pattern."""
        for pair in self.memories:
            for memory in pair:
                memory.check_guards("at the error")
                memory.take_back()

    def check_quiet(self) -> None:
        """Raise `Wrong` if any buffer was written since `take_back`."""
        for pair in self.memories:
            for memory in pair:
                memory.check_quiet(f"a buffer of {len(memory.inside)}")


def program(rank: Rank, seed: int) -> None:
    """Run a rank until it gets an error; then check that its buffers stay unchanged."""
    comm = rank.join(timeout=DEADLINE_S, peer_timeout=SILENCE_S, connect_timeout=CONNECT_S)
    steps, error = Steps(comm, seed), None
    try:
        steps.step()
        comm.barrier()
        rank.say("ready")
        while True:
            # The starter asks rank 0 whether the job is alive, and rank 0 asks the others.
            is_asked = comm.rank == 0 and rank.ordered(wait=False)
            if comm.broadcast(np.array([is_asked]))[0]:
                rank.say("alive")
            steps.step()
    except Exception as raised:
        error = raised
    rank.say("error")
    try:
        steps.take_back()
        # At this order, every rank has its error, is dead, or is stopped.
        rank.ordered()
        time.sleep(QUIET_S)
        steps.check_quiet()
    except Wrong as wrong:
        error = wrong
    at = time.monotonic()
    rank.say_ended(error, quiet_at=at)
    comm.close()


def begin(kind: str, job: Job, place: Place, victim: int) -> None:
    """Start a fault."""
    lab, host = hosts_of(place), place.host(victim)
    acts: dict[str, Callable[[], None]] = {
        "kill": lambda: job.signal(victim, signal.SIGKILL),
        "freeze": lambda: job.signal(victim, signal.SIGSTOP),
        "freeze, kill": lambda: job.signal(victim, signal.SIGSTOP),
        "wire": lambda: lab.plug(host, False, ("plug",)),
        "port": lambda: lab.light(host, False),
        # TCP's cable first; otherwise, the ranks would use it to agree on an end of RDMA's
        # connections.
        "cut": lambda: lab.plug(host, False, ("lan", "plug")),
    }
    acts[kind]()


def hosts(count: int, first: int) -> RdmaHosts:
    """Return hosts for one job at a time."""
    return RdmaHosts(count, first, IB_TIMEOUT)


def hosts_of(place: Place) -> RdmaHosts:
    assert isinstance(place.lab, RdmaHosts)
    return place.lab


def round_(seed: int, place: Place) -> Outcome:
    """Run one job with its faults."""
    trial = drawn(seed, place.transport)
    place = replace(place, seats=trial.seats)
    ranks = len(trial.seats)
    with Job(lambda rank: program(rank, seed), ranks, place, seed) as job:
        try:
            return watched(trial, job, place)
        finally:
            hosts_of(place).mend()


def watched(trial: Trial, job: Job, place: Place) -> Outcome:
    """Watch a job through all of its faults."""
    outcome = Outcome()
    if not job.wait_for("ready"):
        return storm.failed(outcome, trial, job, "not all ranks started")
    for number, kind in enumerate(trial.is_short):
        job.pause(trial.moments_s[number])
        began = time.monotonic()
        begin(kind, job, place, trial.victim)
        outcome.count += 1
        job.pause(SHORT_S)
        if kind == "freeze":
            job.signal(trial.victim, signal.SIGCONT)
        else:
            hosts_of(place).plug(place.host(trial.victim), True, ("plug",))
        mended = time.monotonic()
        job.order(0)
        if not job.wait_for("alive", number + 1):
            is_excused = kind != "freeze" and mended - began > SURVIVED_S
            what = f"{kind} for a moment: not survived"
            return storm.failed(outcome, trial, job, what, is_excused)
        outcome.rows.append((f"{kind} for a moment: survived", time.monotonic() - mended))
    job.pause(trial.moments_s[-1])
    begin(trial.kind, job, place, trial.victim)
    began = time.monotonic()
    outcome.count += 1
    if trial.kind == "freeze, kill":
        job.pause(SHORT_S)
        job.signal(trial.victim, signal.SIGKILL)
        outcome.count += 1
    is_process = trial.kind in ("kill", "freeze", "freeze, kill")
    concerned = [rank for rank in range(len(trial.seats)) if not is_process or rank != trial.victim]
    have_errors = job.wait_for("error", of=concerned)
    hosts_of(place).mend()
    if trial.kind == "freeze":
        # The victim finds that the others have gone, and may finish its pending writes.
        job.signal(trial.victim, signal.SIGCONT)
    job.dismiss()
    endings = job.finish(harness.WATCHDOG_S if have_errors else 1)
    outcome.violations = judged(trial, endings)
    for rank in concerned:
        at = [event["at"] for event in job.events[rank] if event["event"] == "error"]
        took_s = at[0] - began if at else None
        outcome.rows.append((f"{trial.kind}: {endings[rank].kind}, {named(endings[rank])}", took_s))
        if took_s is not None and took_s > max(DEADLINE_S, SILENCE_S) + GRACE_S:
            outcome.violations.append(f"{trial}: {endings[rank]} after {took_s:.1f} s")
    return outcome


def judged(trial: Trial, endings: list[Ending]) -> list[str]:
    """Return the guarantees violated by the outcomes of a trial."""
    broken = storm.broken(endings)
    for ending in endings:
        if str(ending) not in broken and not is_right(trial, ending):
            broken.append(f"but {ending}")
    return [f"{trial}: {'; '.join(broken)}"] if broken else []


def is_right(trial: Trial, ending: Ending) -> bool:
    """Return whether a rank ended as the last fault requires."""
    victim, seats = trial.victim, trial.seats
    if trial.kind in ("kill", "freeze, kill"):
        if ending.rank == victim:
            return ending.kind == "killed"
        return (ending.kind, ending.blamed) == ("PeerFailedError", (victim,))
    if trial.kind == "freeze":
        if ending.rank == victim:
            return ending.kind in ("RingfoldTimeoutError", "PeerFailedError", "AbortedError")
        return ending.kind in ("RingfoldTimeoutError", "PeerFailedError") and ending.blamed == (
            victim,
        )
    if trial.kind in ("wire", "port"):
        # The ranks still reach each other by TCP, and agree on one end of a broken connection. The
        # rank at that end gets an error that names itself.
        return ending.kind == "PeerFailedError" and len(ending.blamed) == 1
    # Each side loses the other.
    own = seats[ending.rank]
    are_others = bool(ending.blamed) and all(seats[rank] != own for rank in ending.blamed)
    return ending.kind in ("PeerFailedError", "RingfoldTimeoutError") and are_others


def named(ending: Ending) -> str:
    """Return the description of an error's ranks for the table."""
    if not ending.blamed:
        return "no rank"
    return "itself" if ending.blamed == (ending.rank,) else "another rank"


if __name__ == "__main__":
    if not hosts_here():
        sys.exit("cables.py runs in the guest of bench/rdma_vm.sh")
    jobs = max(1, hosts_here() // HOSTS)
    storm.main(Storm("cables", "faults", round_, 200, ("rdma", "tcp"), jobs, HOSTS, lab=hosts))
