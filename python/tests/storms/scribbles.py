"""Writes random words into the memory that running ranks share.

Ranks may fail with an error; none may crash, panic or hang.
"""

import os
import random
import time
from pathlib import Path

import storm
from calls import Call
from harness import Ending, Job, Place, Rank, Wrong
from program import InPart, Program
from storm import Outcome, Storm

import ringfold

DEADLINE_S = 4.0
LONGEST_S = 0.2
LAST_S = 1.0
# Size of the part of a segment that coordinates ranks and has no elements.
CONTROL_BYTES = 16384
# Approximate distance between the heads of rings.
STRIDE = 256 * 1024 + 128


def judged(endings: list[Ending]) -> list[str]:
    """Return the guarantees that a job's outcomes violate.

    Wrong results do not count: memory has no checksum.
    """
    return [violation for violation in storm.broken(endings) if ": wrong " not in violation]


def program(rank: Rank, seed: int) -> None:
    """Run a rank for a while, or until an error."""
    # Elements may be wrong. A rank that stopped at a wrong element would break the common order of
    # calls.
    setattr(Call, "check", lambda *_: None)
    comm = rank.join(timeout=DEADLINE_S)
    error: Exception | None = None
    try:
        steps = Program(rank, comm, seed)
        comm.barrier()
        rank.say("ready")
        end = time.monotonic() + LAST_S
        while time.monotonic() < end:
            steps.step()
    except (ringfold.RingfoldError, InPart, Wrong) as raised:
        error = raised
    rank.say_ended(error)
    try:
        comm.close()
    except ringfold.RingfoldError:
        pass


def segments(pid: int) -> list[tuple[int, int]]:
    """Return the mappings that a process shares with its peers, the communicator's own first."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "memfd:ringfold" in line:
            begin, end = (int(half, 16) for half in line.split()[0].split("-"))
            found.append(("registered" in line, begin, end))
    return [(begin, end) for _, begin, end in sorted(found)]


def scribble(random_: random.Random, pid: int) -> int:
    """Write random words for a while; return their number."""
    written, found = 0, segments(pid)
    if not found:
        return 0
    begin, end = found[0] if random_.random() < 0.8 else random_.choice(found)
    style = random_.choice(("control", "heads", "anywhere", "lines"))
    until = time.monotonic() + random_.random() * LONGEST_S
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    try:
        while time.monotonic() < until:
            words = 64 if style == "lines" else 1
            offset = {
                "control": random_.randrange(CONTROL_BYTES),
                "heads": random_.randrange((end - begin) // STRIDE + 1) * STRIDE
                + random_.randrange(CONTROL_BYTES),
            }.get(style, random_.randrange(end - begin))
            offset = min(offset, end - begin - 8 * words) & ~7
            word = random_.choice((0, 1, 2**64 - 1, 2**63, *map(random_.getrandbits, (64, 8, 17))))
            os.pwrite(memory, word.to_bytes(8, "little") * words, begin + offset)
            written += words
    except OSError:
        # The rank has ended, or has unmapped the memory.
        pass
    finally:
        os.close(memory)
    return written


def round_(seed: int, place: Place) -> Outcome:
    """Run one job with one scribbler."""
    random_ = random.Random(seed)
    ranks = random_.choice((2, 3, 4))
    with Job(lambda rank: program(rank, seed), ranks, place, seed) as job:
        if not job.wait_for("ready"):
            return storm.not_begun(job)
        time.sleep(random_.random() * LAST_S / 2)
        begin = time.monotonic()
        written = scribble(random_, job.pid(random_.randrange(ranks)))
        endings = job.finish()
    return Outcome(
        written,
        [(ending.kind, ending.at - begin if ending.at else None) for ending in endings],
        judged(endings),
    )


if __name__ == "__main__":
    storm.main(Storm("scribbles", "words", round_, 200, ("shm",)))
