"""Kills, freezes and network outages at random moments of jobs on several hosts.

A job survives short disturbances: none of its calls fails or is wrong. All others end every rank
with an error that names the right rank, or a rank of the right host. This holds on both sides of a
cut.
"""

import random
import signal
import time
from dataclasses import dataclass, replace

import harness
import numpy as np
import storm
from harness import Ending, Job, Place, Rank
from program import InPart, Program
from storm import Outcome, Storm

HOSTS = 4
RANKS_OF_A_HOST = 3
RANKS = 9
MOST = 65536
# Deadline of calls and permitted silence of a host, in usual and in patient jobs.
USUAL_S = (5.0, 2.3)
PATIENT_S = (40.0, 15.0)
PATIENT_SHARE = 0.08
# Limit for joining, and for splits.
CONNECT_S = 15.0
SHORT_S, LONG_S = 1.0, 10.0
NOT_JOINED = ("did not connect", "not passed on in time")
# Latest moment of an event, after the previous one.
LATEST_S = 0.4
# Time for which the network works between two outages, so that every connection is tried: an idle
# connection is tried every second.
WORKS_S = 1.5
# Outages are shorter by this, because commands take time. If commands still make an outage too
# long, it need not be survived.
SPARE_S = 0.1
# Sleep of survivors between two steps, so that some events meet no call.
PAUSES_S = (0.0, 0.0, 0.002, 0.02)
# Added to the documented times of errors, for a machine that is busy with other jobs.
GRACE_S = 4.0

OUTAGES = ("cut", "bridge")
SHORT = ("freeze", *OUTAGES)
FINAL = {"kill": 30, "freeze": 20, "cut": 24, "sends lost": 8, "receives lost": 8, "bridge": 10}


@dataclass(frozen=True)
class Event:
    """One disturbance."""

    kind: str
    victim: int
    """Rank that is killed or frozen, or a rank of the host whose network fails."""
    length_s: float | None = None
    """Length of the event; `None` means forever."""

    def __str__(self) -> str:
        length = f" for {self.length_s:.0f} s" if self.length_s else ""
        return f"{self.kind}{length}"

    def begin(self, job: Job, place: Place) -> None:
        """Start the disturbance."""
        assert place.lab
        match self.kind:
            case "kill":
                job.signal(self.victim, signal.SIGKILL)
            case "freeze":
                job.signal(self.victim, signal.SIGSTOP)
            case "cut":
                place.lab.plug(place.host(self.victim), False)
            case "bridge":
                place.lab.power(False)
            case _:
                place.lab.lose(place.host(self.victim), self.kind == "sends lost")

    def end(self, job: Job, place: Place) -> None:
        """Undo the disturbance, as far as possible."""
        assert place.lab
        match self.kind:
            case "freeze":
                job.signal(self.victim, signal.SIGCONT)
            case "cut":
                place.lab.plug(place.host(self.victim), True)
            case "bridge":
                place.lab.power(True)


@dataclass(frozen=True)
class Trial:
    """A job and its disturbances."""

    seats: tuple[int, ...]
    events: tuple[Event, ...]
    pauses_s: tuple[float, ...]
    """Pause before each event."""
    deadline_s: float
    silence_s: float
    is_left_at_once: bool

    def __str__(self) -> str:
        what = ", ".join(f"{event} at rank {event.victim}" for event in self.events)
        return f"hosts {list(self.seats)}: {what}"

    def promise_s(self) -> float:
        """Return the time until every rank has its error, according to docs/reference/faults.md."""
        match self.events[-1].kind:
            case "kill":
                return 0.15  # with more ranks than cores
            case "freeze":
                return self.deadline_s + 0.65
            case "sends lost" | "receives lost":
                return self.silence_s + 1.2
        return self.silence_s + 0.2

    def latest_s(self) -> float:
        """Return the same time for a busy machine, and for a freeze while ranks split."""
        return GRACE_S + max(self.promise_s(), CONNECT_S * (self.events[-1].kind == "freeze"))


def drawn(seed: int) -> Trial:
    """Draw the trial of a seed."""
    random_ = random.Random(seed)
    sizes = [random_.randint(1, RANKS_OF_A_HOST) for _ in range(random_.randint(2, HOSTS))]
    while sum(sizes) > RANKS:
        sizes.pop()
    seats = [host for host, size in enumerate(sizes) for _ in range(size)]
    if random_.random() < 0.5:
        random_.shuffle(seats)
    is_patient = random_.random() < PATIENT_SHARE
    if is_patient:
        shorts = [Event(random_.choice(OUTAGES), random_.randrange(len(seats)), LONG_S)]
        final = "kill"
    else:
        shorts = [
            Event(random_.choice(SHORT), random_.randrange(len(seats)), SHORT_S)
            for _ in range(random_.randint(0, 3))
        ]
        final = random_.choices(list(FINAL), list(FINAL.values()))[0]
    events = (*shorts, Event(final, random_.randrange(len(seats))))
    pauses_s = [random_.random() * LATEST_S for _ in events]
    for number, event in enumerate(shorts):
        pauses_s[number + 1] += WORKS_S if event.kind in OUTAGES else 0
    limits_s = PATIENT_S if is_patient else USUAL_S
    return Trial(tuple(seats), events, tuple(pauses_s), *limits_s, random_.random() < 0.5)


def program(rank: Rank, seed: int, trial: Trial) -> None:
    """Run a rank until it gets an error."""
    comm = rank.join(
        timeout=trial.deadline_s, peer_timeout=trial.silence_s, connect_timeout=CONNECT_S
    )
    steps = Program(rank, comm, seed, MOST)
    pauses = random.Random(seed * RANKS + rank.rank)
    comm.barrier()
    rank.say("ready")
    try:
        while True:
            # The starter asks rank 0 whether the job is alive, and rank 0 asks the others.
            is_asked = comm.rank == 0 and rank.ordered(wait=False)
            if comm.broadcast(np.array([is_asked]))[0]:
                rank.say("alive")
            steps.step()
            time.sleep(pauses.choice(PAUSES_S))
    except InPart as error:
        rank.say("end", kind=error.kind, blamed=error.blamed, text=str(error))
    except Exception as error:
        rank.say_ended(error)
    if not trial.is_left_at_once:
        rank.ordered()
    comm.close()


def judged(trial: Trial, endings: list[Ending]) -> list[str]:
    """Return the guarantees violated by the outcomes of a trial."""
    final = trial.events[-1]
    broken = storm.broken(endings)
    for ending in endings:
        if str(ending) not in broken and not is_right(trial, ending):
            broken.append(f"{final} at rank {final.victim}, but {ending}")
    return [f"{trial}: {'; '.join(broken)}"] if broken else []


def is_right(trial: Trial, ending: Ending) -> bool:
    """Return whether a rank ended as the last event requires."""
    final = trial.events[-1]
    if ending.rank == final.victim:
        if final.kind == "kill":
            return ending.kind == "killed"
        if final.kind == "freeze":
            # The victim finds that the others have gone.
            return ending.kind in ("RingfoldTimeoutError", "PeerFailedError", "AbortedError")
    if final.kind == "kill":
        return (ending.kind, ending.blamed) == ("PeerFailedError", (final.victim,))
    if final.kind == "freeze":
        if (ending.kind, ending.blamed) == ("RingfoldTimeoutError", (final.victim,)):
            return True
        # Ranks that connect the members of a part fail to join; the others learn it from them.
        did_not_join = any(text in ending.text for text in NOT_JOINED)
        return ending.kind in ("BootstrapError", "AbortedError") and did_not_join
    if final.kind == "bridge":
        right = ("a rank of that host", "a rank of another host")
    else:
        right = ("a rank of that host", "from there, a rank of another host")
    return ending.kind == "PeerFailedError" and named(trial, ending) in right


def named(trial: Trial, ending: Ending) -> str:
    """Return the description of an error's ranks, from the view of the rank that has it."""
    final, seats = trial.events[-1], trial.seats
    if not ending.blamed:
        return "no rank"
    if final.kind in ("kill", "freeze"):
        return "that rank" if ending.blamed == (final.victim,) else "other ranks"
    hosts = {seats[rank] for rank in ending.blamed}
    own, failed = seats[ending.rank], seats[final.victim]
    if own in hosts:
        return "a rank of its own host"
    if final.kind == "bridge" or own != failed:
        return "a rank of that host" if hosts == {failed} else "a rank of another host"
    return "from there, a rank of another host"


def round_(seed: int, place: Place) -> Outcome:
    """Run one job with its events."""
    trial = drawn(seed)
    place = replace(place, seats=trial.seats)
    assert place.lab
    with Job(lambda rank: program(rank, seed, trial), len(trial.seats), place, seed) as job:
        try:
            return watched(trial, job, place)
        finally:
            place.lab.mend()


def watched(trial: Trial, job: Job, place: Place) -> Outcome:
    """Watch a job through all of its events."""
    outcome = Outcome()
    if not job.wait_for("ready"):
        return storm.failed(outcome, trial, job, "not all ranks started")
    *shorts, final = trial.events
    for number, event in enumerate(shorts):
        job.pause(trial.pauses_s[number])
        begins = time.monotonic()
        event.begin(job, place)
        outcome.count += 1
        job.pause((event.length_s or 0) - SPARE_S)
        event.end(job, place)
        mended = time.monotonic()
        job.order(0)
        if not job.wait_for("alive", number + 1):
            is_longer = event.kind in OUTAGES and mended - begins > (event.length_s or 0)
            return storm.failed(outcome, trial, job, f"{event}: not survived", is_longer)
        outcome.rows.append((f"{event}: survived", time.monotonic() - mended))
    job.pause(trial.pauses_s[-1])
    final.begin(job, place)
    began = time.monotonic()
    outcome.count += 1
    ranks = range(len(trial.seats))
    is_process = final.kind in ("kill", "freeze")
    concerned = [rank for rank in ranks if not is_process or rank != final.victim]
    all_ended = job.wait_for("end", of=concerned)
    job.dismiss()
    final.end(job, place)
    endings = job.finish(harness.WATCHDOG_S if all_ended else 1)
    outcome.rows += [row(trial, endings[rank], began) for rank in concerned]
    outcome.violations = judged(trial, endings)
    for ending in (endings[rank] for rank in concerned):
        if (took_s := ending.at - began) > trial.latest_s():
            outcome.violations.append(f"{trial}: {ending} after {took_s:.1f} s")
    return outcome


def row(trial: Trial, ending: Ending, began: float) -> tuple[str, float | None]:
    """Return a rank's outcome for the table."""
    took_s = ending.at - began if ending.at else None
    is_late = took_s is not None and took_s > trial.promise_s()
    name = f"{trial.events[-1]}: {ending.kind}, {named(trial, ending)}"
    return name + (", late" if is_late else ""), took_s


if __name__ == "__main__":
    storm.main(Storm("outages", "events", round_, 120, ("hosts",), 6, HOSTS))
