"""Programs in which one rank differs in one respect: every rank gets an error about it, in time.

Ranks can compare the collective, type, operation, counts, root and algorithm of a call, and its
position among the calls. No call may succeed with a wrong result. Permitted differences are also
tried: registered memory on some ranks only, and the members of a part.
"""

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import calls
import numpy as np
import storm
from calls import COLLECTIVES, DTYPES, LISTED, OPERATIONS, PRODUCT_DTYPES, REDUCING, ROOTED, Call
from harness import Ending, Job, Place, Rank, ending
from storm import Outcome, Storm

import ringfold

DEADLINE_S = 6.0
# Added to the deadline of an error, for a machine that is busy with other jobs.
GRACE_S = 3.0
TRIALS = 10
CALLS = 8
MOST = 70000
ALGORITHMS = (
    "ring",
    "direct",
    "tree",
    "one_shot",
    "rabenseifner",
    "recursive_doubling",
    "flat",
    "push",
)
REFUSALS = (ringfold.InvalidArgumentError, ringfold.UnsupportedError)

# Permitted differences: none, registration of memory, members of a part.
HARMLESS = ("nothing", "memory", "color")
# Differences that must be a `MismatchError` on every rank.
DETECTED = ("collective", "dtype", "op", "count", "root", "skip", "list", "matrix", "message")
# Either a `MismatchError` or no difference: a named algorithm may be the tuner's choice for the
# or be refused; equal counts may be passed as a list or not.
EITHER = ("algorithm", "spelling")


@dataclass(frozen=True)
class Trial:
    """A program of a few calls, one of which differs on one rank."""

    difference: str
    odd: int
    at: int
    calls: tuple[Call, ...]
    other: Call
    """The odd rank's call at `at`."""
    asynchronous: tuple[bool, ...]

    def __str__(self) -> str:
        one, other = self.calls[self.at], self.other
        return f"{self.difference} differs on rank {self.odd}: {other} instead of {one}"


def drawn(seed: int, ranks: int) -> Trial:
    """Draw the trial of a seed, the same on all ranks."""
    random_ = random.Random(seed)
    difference = random_.choice((*HARMLESS, *DETECTED, *DETECTED, *EITHER))
    odd, at = random_.randrange(ranks), random_.randrange(1, CALLS)
    program = [calls.drawn(random_, ranks, most=MOST) for _ in range(CALLS)]
    program[at], other = different(random_, difference, ranks, odd)
    asynchronous = tuple(random_.random() < 0.3 for _ in program)
    return Trial(difference, odd, at, tuple(program), other, asynchronous)


def different(random_: random.Random, difference: str, ranks: int, odd: int) -> tuple[Call, Call]:
    """Draw a call, and the odd rank's call in its place."""
    while True:
        call = calls.drawn(random_, ranks, most=MOST)
        other = changed(random_, difference, call, odd)
        # Calls that move no data cannot be compared.
        if other is not None and all(
            sum(sum(one.sent(r)) for r in range(ranks)) > 0 for one in (call, other)
        ):
            return call, other


def changed(random_: random.Random, difference: str, call: Call, odd: int) -> Call | None:
    """Return the call with one field changed, or `None` if it has no such field."""

    def another(choices: Sequence[Any], present: Any) -> Any:
        return random_.choice([choice for choice in choices if choice != present])

    is_even = not call.uneven and not call.matrix
    match difference:
        case "nothing" | "skip":
            return call
        case "collective" if is_even:
            return replace(call, collective=another(COLLECTIVES, call.collective))
        case "dtype":
            return replace(
                call, dtype=another(PRODUCT_DTYPES if call.op == "prod" else DTYPES, call.dtype)
            )
        case "op" if call.collective in REDUCING and call.dtype in PRODUCT_DTYPES:
            return replace(call, op=another(list(OPERATIONS), call.op))
        case "count" | "message" if is_even and (
            difference == "count" or call.collective == "sendrecv"
        ):
            count = another([count for count in calls.COUNTS if count <= MOST], call.counts[0])
            return replace(call, counts=(count,) * len(call.counts))
        case "root" if call.collective in ROOTED:
            return replace(call, root=another(range(len(call.counts)), call.root))
        case "list" if call.uneven and len(set(call.counts)) > 1:
            return replace(call, counts=other_list(random_, call.counts))
        case "matrix" if call.matrix:
            other = replace(
                call, matrix=tuple(other_list(random_, row) for row in call.matrix if sum(row))
            )
            if len(other.matrix) == len(call.matrix):
                other_parts, parts = ((one.sent(odd), one.received(odd)) for one in (other, call))
                return other if other_parts != parts else None
        case "spelling" if call.collective in LISTED and is_even:
            return replace(call, uneven=True)
        case "memory" | "color" if call.collective == "all_reduce":
            return call
        case "algorithm" if call.collective != "sendrecv":
            return replace(call, algorithm=random_.choice(ALGORITHMS))
    return None


def other_list(random_: random.Random, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the counts in another order, or others with the same sum."""
    while True:
        other = random_.sample(counts, len(counts))
        giver, taker = random_.sample(range(len(counts)), 2)
        moved = random_.choice((0, 0, 1, other[giver])) if other[giver] else 0
        other[giver] -= moved
        other[taker] += moved
        # Even if all counts are equal, one element can be moved.
        if tuple(other) != counts:
            return tuple(other)


def carried_out(trial: Trial, comm: ringfold.Communicator) -> None:
    """Run the program of one rank; raise its error."""
    special: dict[str, Callable[[Trial, ringfold.Communicator, Call], None]] = {
        "memory": in_some_memory,
        "color": in_a_part,
        "message": by_messages,
    }
    spare = comm.empty(MOST, trial.calls[trial.at].dtype) if trial.difference == "memory" else None
    for index, call in enumerate(trial.calls):
        if index == trial.at and trial.difference in special:
            special[trial.difference](trial, comm, call)
            continue
        if index == trial.at and comm.rank == trial.odd:
            if trial.difference == "skip":
                continue
            call = trial.other
        asynchronous = trial.asynchronous[index]
        result = call.make(comm, asynchronous)
        call.check(comm.rank, result.wait() if asynchronous else result)
    # By these calls at the latest, all ranks have heard from each other.
    last = Call("all_reduce", "int64", (2,) * comm.world_size)
    last.check(comm.rank, last.make(comm))
    comm.barrier()
    del spare


def in_some_memory(trial: Trial, comm: ringfold.Communicator, call: Call) -> None:
    """Reduce in memory that is registered only on the odd rank, or only on the others."""
    x = comm.empty(call.counts[0], call.dtype)
    if (comm.rank == trial.odd) == (call.salt % 2 == 0):
        x = np.zeros(call.counts[0], call.dtype)
    x[:] = call.input(comm.rank)
    call.check(comm.rank, call.make(comm, in_place=x))


def in_a_part(trial: Trial, comm: ringfold.Communicator, call: Call) -> None:
    """Split with another color or none on the odd rank, then make a call within each part."""
    is_odd = comm.rank == trial.odd
    part = comm.split((None if call.salt % 2 else 7) if is_odd else 3)
    if part is not None:
        mine = replace(call, counts=call.counts[: part.world_size])
        mine.check(part.rank, mine.make(part))
        part.close()


def by_messages(trial: Trial, comm: ringfold.Communicator, call: Call) -> None:
    """Send a message to the next rank; the odd rank's has another count."""
    count = len(call.input(comm.rank))
    sent = (trial.other if comm.rank == trial.odd else call).input(comm.rank)
    sending = comm.send(sent, (comm.rank + 1) % comm.world_size, 5, async_=True)
    call.check(
        comm.rank, comm.recv(np.zeros(count, call.dtype), (comm.rank - 1) % comm.world_size, 5)
    )
    sending.wait()


def program(rank: Rank, seed: int) -> None:
    """Run a rank in one trial after the other, each with its own communicator."""
    for number in range(TRIALS):
        trial, error = drawn(seed * TRIALS + number, rank.ranks), None
        comm = rank.join(f"-{number}", timeout=DEADLINE_S)
        begin = time.monotonic()
        try:
            carried_out(trial, comm)
        except Exception as raised:
            error = raised
        took = time.monotonic() - begin
        is_refused = isinstance(error, REFUSALS) and rank.rank == trial.odd
        if is_refused:
            # As documented, the others would wait for a rank that never comes.
            comm.abort("refused")
        rank.say_ended(error, took=took)
        comm.close()


def judged(trial: Trial, endings: list[Ending], times: list[float]) -> list[str]:
    """Return the guarantees that the outcomes of a trial violate."""
    broken = storm.broken(endings)
    broken += [
        f"{ending} after {took:.1f} s"
        for ending, took in zip(endings, times, strict=True)
        if took > DEADLINE_S + GRACE_S
    ]
    others = [ending for ending in endings if ending.rank != trial.odd]
    are_fine = all(ending.kind == "ok" for ending in endings)
    # A mismatch must name the odd rank: the other ranks make the same calls. A rank that finished
    # before the calls met has its result, which is right.
    are_detected = any(ending.kind == "MismatchError" for ending in endings) and all(
        ending.kind == "ok" or ending.kind == "MismatchError" and trial.odd in ending.blamed
        for ending in endings
    )
    is_refused = endings[trial.odd].kind in ("InvalidArgumentError", "UnsupportedError") and all(
        ending.kind == "AbortedError" and ending.blamed == (trial.odd,) for ending in others
    )
    # Calls need not meet: if a rank finishes its own call before it waits, another rank is merely
    # late.
    waiting_in = {
        match[1] for match in (re.search(r"\(in #(\d+) ", end.text) for end in endings) if match
    }
    are_detected |= (
        all(end.kind == "RingfoldTimeoutError" for end in endings) and len(waiting_in) > 1
    )
    allowed = {**dict.fromkeys(HARMLESS, are_fine), **dict.fromkeys(DETECTED, are_detected)}
    if not broken and not allowed.get(trial.difference, are_fine or are_detected or is_refused):
        broken = [str(ending) for ending in endings]
    return [f"{trial}: {'; '.join(broken)}"] if broken else []


def round_(seed: int, place: Place) -> Outcome:
    """Run one job and its trials."""
    ranks = random.Random(seed).choice((2, 3, 4))
    outcome = Outcome()
    with Job(lambda rank: program(rank, seed), ranks, place, seed) as job:
        ends = job.finish()
        said = [[event for event in events if event["event"] == "end"] for events in job.events]
    for number in range(min(map(len, said))):
        trial = drawn(seed * TRIALS + number, ranks)
        endings = [ending(rank, said[rank][number]) for rank in range(ranks)]
        times = [said[rank][number]["took"] for rank in range(ranks)]
        outcome.count += 1
        outcome.rows += [
            (f"{trial.difference}: {end.kind}", took)
            for end, took in zip(endings, times, strict=True)
        ]
        outcome.violations += [
            f"trial {number}: {violation}" for violation in judged(trial, endings, times)
        ]
    outcome.violations += storm.broken(ends)
    return outcome


if __name__ == "__main__":
    storm.main(Storm("differs", "programs", round_, 50, ("shm", "tcp")))
