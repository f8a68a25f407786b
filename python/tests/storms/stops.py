"""Stops and continues random ranks of a mixed program; no call may fail or be wrong.

Some stops include rank 0, or all ranks at once.
"""

import random
import signal
import time

import numpy as np
import storm
from harness import Ending, Job, Place, Rank
from program import Program
from storm import Outcome, Storm

STOPS = 10
# The longest exceeds the time after which a host counts as dead; all are far below a deadline.
LENGTHS_S = (0.001, 0.01, 0.03, 0.1, 0.3, 0.6, 2.7)
WEIGHTS = (4, 4, 4, 4, 3, 2, 1)
PAUSE_S = 0.05
# Steps between two checks whether the storm is over.
STEPS = 3


def judged(endings: list[Ending]) -> list[str]:
    """Return the guarantees violated by the outcomes of a job in which ranks were only stopped."""
    return [str(ending) for ending in endings if ending.kind != "ok"]


def program(rank: Rank, seed: int) -> None:
    """Run a rank until its starter ends the job."""
    error = None
    comm = rank.join(timeout=60.0)
    steps = Program(rank, comm, seed)
    comm.barrier()
    rank.say("ready")
    try:
        # Rank 0 learns of the end, and tells the others.
        while comm.broadcast(np.array([comm.rank == 0 and not rank.ordered(wait=False)]))[0]:
            for _ in range(STEPS):
                steps.step()
    except Exception as raised:
        error = raised
    rank.say_ended(error)
    comm.close()


def round_(seed: int, place: Place) -> Outcome:
    """Run one job with many stops."""
    random_ = random.Random(seed)
    ranks = random_.choice((2, 3, 4))
    outcome = Outcome()
    with Job(lambda rank: program(rank, seed), ranks, place, seed) as job:
        if not job.wait_for("ready"):
            return storm.not_begun(job)
        for _ in range(STOPS):
            stopped = random_.sample(range(ranks), random_.randint(1, ranks))
            length_s = random_.choices(LENGTHS_S, WEIGHTS)[0]
            for rank in stopped:
                job.signal(rank, signal.SIGSTOP)
            time.sleep(length_s)
            for rank in stopped:
                job.signal(rank, signal.SIGCONT)
            outcome.count += len(stopped)
            time.sleep(random_.random() * PAUSE_S)
        begin = time.monotonic()
        job.order(0)
        endings = job.finish()
    outcome.rows = [(ending.kind, ending.at - begin if ending.at else None) for ending in endings]
    outcome.violations = judged(endings)
    return outcome


if __name__ == "__main__":
    storm.main(Storm("stops", "stops", round_, 25))
