"""Kills a random rank at a random moment of a mixed program; every survivor must name that rank."""

import random
import time

import harness
import storm
from harness import Ending, Job, Place, Rank
from program import InPart, Program
from storm import Outcome, Storm

# The first calls, and the first use of every feature, are within this time.
LATEST_S = 0.3


def judged(victim: int, endings: list[Ending]) -> list[str]:
    """Return the guarantees violated by the outcomes of a job in which `victim` was killed."""
    broken = storm.broken(endings)
    survivors = [ending for ending in endings if ending.rank != victim]
    for ending in survivors:
        if str(ending) not in broken and (ending.kind, ending.blamed) != (
            "PeerFailedError",
            (victim,),
        ):
            broken.append(f"rank {victim} was killed, but {ending}")
    if not broken and endings[victim].kind != "killed":
        broken.append(f"the victim was not killed: {endings[victim]}")
    return broken


def program(rank: Rank, seed: int, is_left_at_once: bool) -> None:
    """Run a rank until it learns of another rank's death."""
    comm = rank.join()
    steps = Program(rank, comm, seed)
    comm.barrier()
    rank.say("ready")
    try:
        while True:
            steps.step()
    except InPart as error:
        rank.say("end", kind=error.kind, blamed=error.blamed, text=str(error))
    except Exception as error:
        rank.say_ended(error)
    if not is_left_at_once:
        rank.ordered()
    comm.close()


def round_(seed: int, place: Place) -> Outcome:
    """Run one job with one death."""
    random_ = random.Random(seed)
    ranks = random_.choice((2, 3, 4))
    victim, moment_s = random_.randrange(ranks), random_.random() * LATEST_S
    is_left_at_once = random_.random() < 0.5
    with Job(lambda rank: program(rank, seed, is_left_at_once), ranks, place, seed) as job:
        if not job.wait_for("ready"):
            return storm.not_begun(job)
        job.pause(moment_s)
        killed = time.monotonic()
        job.signal(victim, 9)
        survivors = [rank for rank in range(ranks) if rank != victim]
        are_told = job.wait_for("end", of=survivors)
        for rank in range(ranks):
            job.order(rank)
        endings = job.finish(harness.WATCHDOG_S if are_told else 1)
    return Outcome(
        1, [row(victim, endings[rank], killed) for rank in survivors], judged(victim, endings)
    )


def row(victim: int, ending: Ending, killed: float) -> tuple[str, float | None]:
    """Return a survivor's outcome for the table."""
    named = (
        "the victim"
        if ending.blamed == (victim,)
        else "other ranks"
        if ending.blamed
        else "no rank"
    )
    return f"{ending.kind}, naming {named}", ending.at - killed if ending.at else None


if __name__ == "__main__":
    storm.main(Storm("kills", "kills", round_, 340))
