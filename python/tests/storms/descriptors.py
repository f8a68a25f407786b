"""A rank of several hosts that runs out of descriptors at a random point of its way into the job.

It joins, registers memory, splits, and calls: what it lacks a descriptor for is an error that names
the limit, and the other ranks learn which rank it is.
"""

import random
import re
import resource
from dataclasses import replace

import harness

# Before the limit: what Python imports is not judged.
import numpy  # noqa: F401
import storm
from harness import Ending, Job, Place, Rank
from storm import Outcome, Storm

SEATS = (0, 0, 1, 1, 1)
# From too few to begin with, to enough.
LIMITS = range(8, 64)
# How the others learn of it: at second hand where rank 0 has gone for that reason.
LEARNED = ("ok", "Aborted", "BootstrapError", "PeerFailed", "RingfoldSystemError")
# Long before this a rank knows.
CONNECT_S = 20.0


def program(rank: Rank, short: int, limit: int) -> None:
    """A rank on its way, with so many descriptors if it is the short one."""
    if rank.rank == short:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    error: Exception | None = None
    comm = None
    try:
        comm = rank.join(connect_timeout=CONNECT_S)
        x = comm.empty(1000, "float32")
        x[:] = rank.rank
        comm.all_reduce(x, out=x)
        part = comm.split(rank.rank % 2)
        assert part is not None
        part.barrier()
        part.close()
        if not (x == sum(range(len(SEATS)))).all():
            error = harness.Wrong(f"{x}")
    except Exception as raised:
        error = raised
    rank.say_ended(error)
    if comm is not None:
        comm.close()


def has_learned(ending: Ending, short: int) -> bool:
    """Whether an other rank's outcome is in order: an error names the short rank."""
    names_it = ending.kind == "ok" or re.search(rf"\brank {short}\b", ending.text) is not None
    return ending.kind in LEARNED and names_it


def judged(short: int, limit: int, endings: list[Ending]) -> list[str]:
    """The guarantees that the outcomes violate."""
    broken = storm.broken(endings)
    if not broken and any(ending.kind != "ok" for ending in endings):
        if "descriptors" not in endings[short].text:
            broken.append(str(endings[short]))
        broken += [
            str(ending)
            for ending in endings
            if ending.rank != short
            and not has_learned(ending, short)
            # It was in a part without the short one, and rank 0 has gone meanwhile.
            and not (ending.kind == "BootstrapError" and endings[0].kind != "ok")
        ]
    return [f"rank {short} with {limit} descriptors: {'; '.join(broken)}"] if broken else []


def round_(seed: int, place: Place) -> Outcome:
    """One job with one limit."""
    random_ = random.Random(seed)
    short, limit = random_.randrange(len(SEATS)), random_.choice(LIMITS)
    place = replace(place, seats=SEATS)
    with Job(lambda rank: program(rank, short, limit), len(SEATS), place, seed) as job:
        endings = job.finish()
    rows = [
        (f"{'the short one' if ending.rank == short else 'another rank'}: {ending.kind}", None)
        for ending in endings
    ]
    return Outcome(1, [*rows], judged(short, limit, endings))


if __name__ == "__main__":
    storm.main(Storm("descriptors", "limits", round_, 60, ("hosts",)))
