"""A rank of several hosts runs out of descriptors at a random point while it joins and calls.

The rank joins, registers memory, splits, and calls. If it lacks a descriptor, it gets an error that
names the limit, and the other ranks learn its number.
"""

import random
import re
import resource
from dataclasses import replace

import harness

# Imported before the limit is set: Python's own imports are not tested.
import numpy  # noqa: F401
import storm
from harness import Ending, Job, Place, Rank
from storm import Outcome, Storm

SEATS = (0, 0, 1, 1, 1)
# From too few to start, to enough.
LIMITS = range(8, 64)
# Outcomes of the other ranks: indirect ones if rank 0 has ended for the same reason.
LEARNED = ("ok", "AbortedError", "BootstrapError", "PeerFailedError", "RingfoldSystemError")
# A rank learns of a failure long before this.
CONNECT_S = 20.0


def program(rank: Rank, short: int, limit: int) -> None:
    """Run a rank, with `limit` descriptors if it is the short one."""
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
    """Return whether another rank's outcome is right: an error names the short rank."""
    names_it = ending.kind == "ok" or re.search(rf"\brank {short}\b", ending.text) is not None
    return ending.kind in LEARNED and names_it


def judged(short: int, limit: int, endings: list[Ending]) -> list[str]:
    """Return the guarantees that the outcomes violate."""
    broken = storm.broken(endings)
    if not broken and any(ending.kind != "ok" for ending in endings):
        if "descriptors" not in endings[short].text:
            broken.append(str(endings[short]))
        broken += [
            str(ending)
            for ending in endings
            if ending.rank != short
            and not has_learned(ending, short)
            # The rank was in a part without the short rank, and rank 0 has ended in the meantime.
            and not (ending.kind == "BootstrapError" and endings[0].kind != "ok")
        ]
    return [f"rank {short} with {limit} descriptors: {'; '.join(broken)}"] if broken else []


def round_(seed: int, place: Place) -> Outcome:
    """Run one job with one limit."""
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
