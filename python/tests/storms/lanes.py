"""Disturbs a random rank of a job with device lanes, at a random moment of a random program.

The rank is killed, stopped, interrupted or leaves; it aborts, makes another call than the others,
drops its lanes, or its driver refuses a call. Every other rank ends with an error that names it,
within the deadline. Elements of calls in progress are right or 0xFF bytes (NaN). Streams continue,
and nothing remains of the lanes. The devices are those of the software driver, in any of its modes.
In stepped mode, the disturbance comes between any two operations of the rank's device.
"""

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

import calls
import differs
import harness
import softcuda
import storm
from calls import Call
from harness import Ending, Job, Place, Rank
from lane_program import Program, Setup
from storm import Outcome, Storm

from ringfold import _exit

# Disturbances of a rank, and the error classes on all other ranks. `pause` is not a fault. Dropped
# lanes whose calls have just completed are closed.
KINDS = {
    "pause": ("ok",),
    "kill": ("PeerFailedError",),
    "stop": ("RingfoldTimeoutError",),
    "interrupt": ("AbortedError",),
    "leave": ("PeerFailedError",),
    "abort": ("AbortedError",),
    "drop": ("AbortedError", "PeerFailedError"),
    "differ": ("MismatchError",),
    "refuse": ("AbortedError",),
}
BY_SIGNAL = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "interrupt": signal.SIGINT}
DIFFERENCES = ("dtype", "op", "count", "root")
# Driver calls that every lane makes repeatedly; and those of streams that wait.
REFUSABLE = (
    "cuEventRecord",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
)
REFUSABLE_OF_STREAMS = ("cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2")
REFUSED_MAX = 40
# The first calls, and the first use of every feature, are within this time.
LATEST_S = 0.4
# Maximum number of the device's operations before the disturbance, in stepped mode.
OPERATIONS_MAX = 250
# Deadline of calls for `stop`, whose calls end by it, and for all other kinds; and the permitted
# delay of an error, on a machine that is busy with other jobs.
STOPPED_S = 3.0
DEADLINE_S = 20.0
GRACE_S = 30.0
# Length of a pause that no rank may notice.
PAUSE_S = 0.2
STEPS = 8
SHORT_SLOTS = 4096
LOOKS_S = 0.02


@dataclass(frozen=True)
class Trial:
    """The drawn settings of a round."""

    kind: str
    ranks: int
    victim: int
    setup: Setup
    moment_s: float
    operations: int
    """Number of the victim's device operations before the disturbance, in stepped mode."""
    difference: str
    refused: tuple[str, int]
    deadline_s: float
    is_left_at_once: bool
    """Whether ranks end when they know of the fault, even before the others know."""

    def __str__(self) -> str:
        driver = {
            name.removeprefix("SOFTCUDA_"): value
            for name, value in self.setup.drivers[self.victim].items()
            if name.startswith("SOFTCUDA_") and value
        }
        what = f"{self.kind} of rank {self.victim} of {self.ranks}"
        how = {"differ": self.difference, "refuse": self.refused}.get(self.kind, "")
        return f"{what} {how} with {self.setup.lane} to {self.setup.devices} over {driver}"


def drawn(seed: int) -> Trial:
    """Draw the trial of a seed."""
    random_ = random.Random(seed)
    ranks = random_.choice((2, 2, 3, 4))
    kind, victim = random_.choice(list(KINDS)), random_.randrange(ranks)
    devices = random_.choice(((0,), (0,), (0, 0), (0, 1)))
    lane: dict[str, Any] = {
        "slot_bytes": random_.choice((SHORT_SLOTS, SHORT_SLOTS, 1 << 16)),
        "depth": random_.choice((1, 2, 4)),
        "direct": random_.random() < 0.75,
        "one_shot": random_.choice((None, False, True, True)),
    }
    waits = random_.random() < 0.8
    is_shared = random_.random() < 0.2
    drivers = tuple(driver(random_, seed, rank, waits, is_shared) for rank in range(ranks))
    waits_there = drivers[victim]["SOFTCUDA_MEMOPS"] == "1"
    names = REFUSABLE + (REFUSABLE_OF_STREAMS if waits_there else ())
    return Trial(
        kind,
        ranks,
        victim,
        Setup(devices, lane, drivers),
        random_.random() * LATEST_S,
        random_.randint(1, OPERATIONS_MAX),
        random_.choice(DIFFERENCES),
        (random_.choice(names), random_.randint(1, REFUSED_MAX)),
        STOPPED_S if kind == "stop" else DEADLINE_S,
        # Without rank 0 there is no verdict, so ranks that have ended would also be named.
        kind not in ("leave", "drop") and random_.random() < 0.5,
    )


def driver(
    random_: random.Random, seed: int, rank: int, waits: bool, is_shared: bool
) -> dict[str, str]:
    """Draw the settings of a rank's driver; ranks may differ in all of them."""
    names = f"storm-{seed}-a,storm-{seed}-b" if is_shared else "2"
    return {
        "SOFTCUDA_DEVICES": names,
        "SOFTCUDA_MODE": random_.choice(("threads", "threads", "seeded", "stepped")),
        "SOFTCUDA_SEED": str(seed + rank),
        "SOFTCUDA_MEMOPS": "1" if waits or random_.random() < 0.4 else "0",
        "SOFTCUDA_QUEUES": random_.choice(("0", "0", "0", "1")),
        "SOFTCUDA_LATENCY_US": random_.choice(("0", "10", "200")),
        "SOFTCUDA_REPORT_MS": "20000",
        "SOFTCUDA_ABORT_MS": "70000",
    }


def judged(trial: Trial, endings: list[Ending], begun: float) -> list[str]:
    """Return the guarantees that the outcomes violate."""
    broken = storm.broken(endings)
    for ending in endings:
        if str(ending) in broken:
            continue
        if ending.rank == trial.victim:
            if ending.kind not in own_kinds(trial.kind):
                broken.append(f"the victim: {ending}")
            continue
        names_it = trial.victim in ending.blamed or KINDS[trial.kind] == ("ok",)
        if ending.kind not in KINDS[trial.kind] or not names_it:
            broken.append(str(ending))
        elif ending.at > begun + trial.deadline_s + GRACE_S and ending.kind != "ok":
            broken.append(f"{ending} after {ending.at - begun:.0f} s")
    return [f"{trial}: {'; '.join(broken)}"] if broken else []


def own_kinds(kind: str) -> tuple[str, ...]:
    """Return the possible outcomes of the victim itself."""
    return {
        "kill": ("killed",),
        # Others may have left before the victim continues, or ended its lanes after another lane's
        # fault.
        "stop": ("RingfoldTimeoutError", "PeerFailedError", "AbortedError"),
        "interrupt": ("KeyboardInterrupt",),
        "leave": ("ok",),
        "drop": ("ok",),
    }.get(kind, KINDS[kind])


class Victim:
    """The disturbed rank's side of the disturbance."""

    def __init__(self, rank: Rank, trial: Trial, program: Program) -> None:
        self.rank, self.trial, self.program = rank, trial, program
        self.is_over = False
        """Whether the victim has left."""

    def begin(self) -> None:
        """Arrange the disturbance, after some operations or at the starter's order."""
        stepper = self.program.stepper
        if stepper.is_stepped:
            stepper.left, stepper.act = self.trial.operations, self.act
        else:
            threading.Thread(target=self._when_ordered, daemon=True).start()

    def _when_ordered(self) -> None:
        # Signals come from the starter.
        if self.rank.ordered() and self.trial.kind not in BY_SIGNAL:
            self.act()

    def act(self) -> None:
        """Make the disturbance."""
        self.rank.say("now")
        trial, program = self.trial, self.program
        lane = program.lanes[trial.operations % len(program.lanes)]
        if trial.kind in BY_SIGNAL:
            os.kill(os.getpid(), BY_SIGNAL[trial.kind])
        elif trial.kind == "abort":
            lane.abort("the loss is infinite")
        elif trial.kind == "refuse":
            name, at = trial.refused
            program.programs[0].refuse(name, at)
        elif trial.kind == "differ":
            program.odd = self._other
        else:
            self.is_over = True

    def _other(self, call: Call) -> Call:
        """Return another call; the same if it cannot differ or the difference would go unseen."""
        random_ = random.Random(str(call))
        changed = differs.changed(random_, self.trial.difference, call, self.rank.rank)
        both = [one for one in (call, changed) if one is not None]
        moves = all(min(sum(one.sent(r)) for r in range(self.rank.ranks)) > 0 for one in both)
        if changed is None or call.collective == "sendrecv" or not moves:
            return call
        return changed if max(changed.counts) <= calls.COUNTS[-1] else call


def program(rank: Rank, trial: Trial, seed: int) -> None:
    """Run a rank until its lanes end."""
    trial.setup.enter(rank.rank)
    comm = rank.join(timeout=trial.deadline_s)
    steps = Program(comm, trial.setup, seed)
    steps.step()
    victim = Victim(rank, trial, steps) if rank.rank == trial.victim else None
    rank.say("ready")
    if victim and trial.kind != "pause":
        victim.begin()
    fault: BaseException | None = None
    try:
        number = 0
        while trial.kind != "pause" or number < STEPS:
            steps.begin()
            if victim and victim.is_over:
                break
            steps.finish()
            number += 1
    except harness.Wrong as wrong:
        return rank.say_ended(wrong)
    except BaseException as raised:
        # Drops the traceback's frames, which hold calls and lanes.
        fault = raised.with_traceback(None)
        fault.__context__ = fault.__cause__ = None
    try:
        ended(rank, trial, steps, fault, victim)
    except Exception as raised:
        rank.say_ended(raised)
    if not trial.is_left_at_once:
        rank.ordered()
    comm.close()
    return None


def ended(
    rank: Rank, trial: Trial, steps: Program, fault: BaseException | None, victim: Victim | None
) -> None:
    """End a rank's program, with or without a fault, and report its outcome."""
    if isinstance(fault, KeyboardInterrupt):
        # Does the same as the end of a `with` block, in case the interrupt was not within a call.
        steps.abort("interrupted")
    if victim and victim.is_over:
        if trial.kind == "drop":
            steps.drop()
        else:
            steps.beside(lambda: _exit.close_all(None))
    elif fault is not None:
        # Peers of a stopped rank may each find another lane's fault, and end the other lanes.
        first = steps.end(may_be_second=victim is not None and trial.kind == "stop")
        fault = fault if isinstance(fault, KeyboardInterrupt) else first or fault
    at = time.monotonic()
    steps.close()
    left = steps.left()
    if any(left.values()):
        fault = harness.Wrong(f"the driver still has {left} of the lanes after {fault}")
    rank.say_ended(fault, known=at)


def round_(seed: int, place: Place) -> Outcome:
    """Run one job, and disturb one of its ranks."""
    trial = drawn(seed)
    with Job(lambda rank: program(rank, trial, seed), trial.ranks, place, seed) as job:
        if not job.wait_for("ready"):
            ends = "; ".join(str(ending) for ending in job.finish(1))
            return Outcome(violations=[f"{trial}: not all ranks started: {ends}"])
        begun = disturbed(trial, job)
        others = [rank for rank in range(trial.ranks) if rank != trial.victim]
        job.wait_for("end", of=others)
        if trial.kind == "stop":
            job.signal(trial.victim, signal.SIGCONT)
        job.dismiss()
        endings = job.finish()
    rows = [
        (f"{trial.kind}: {ending.kind}", ending.at - begun if ending.at else None)
        for ending in endings
        if ending.rank != trial.victim
    ]
    violations = judged(trial, endings, begun)
    violations += [f"{trial}: /dev/shm has {name}" for name in left_over()]
    return Outcome(1, [*rows], violations)


def disturbed(trial: Trial, job: Job) -> float:
    """Disturb the victim; return the start of the disturbance."""
    victim = trial.victim
    if trial.kind == "pause":
        begin = time.monotonic()
        while time.monotonic() < begin + trial.moment_s:
            job.signal(victim, signal.SIGSTOP)
            time.sleep(PAUSE_S)
            job.signal(victim, signal.SIGCONT)
            job.look(LOOKS_S)
        return begin
    is_stepped = trial.setup.drivers[victim]["SOFTCUDA_MODE"] == "stepped"
    if not is_stepped:
        job.pause(trial.moment_s)
        begun = time.monotonic()
        if trial.kind in BY_SIGNAL:
            job.signal(victim, BY_SIGNAL[trial.kind])
        else:
            job.order(victim)
        return begun
    job.wait_for("now", of=[victim])
    if trial.kind == "kill":
        # The victim has killed itself by now, or is about to.
        job.signal(victim, signal.SIGKILL)
    return time.monotonic()


def left_over() -> list[str]:
    """Return the remains of jobs in the file system of shared memory."""
    return [name for name in os.listdir("/dev/shm") if "ringfold" in name]


if __name__ == "__main__":
    os.environ.setdefault("RINGFOLD_CUDA_LIBRARY", str(softcuda.library()))
    storm.main(Storm("lanes", "disturbances", round_, 150))
