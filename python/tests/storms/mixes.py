"""Every mix of one to four hosts with one to four ranks each: every call has the right result.

A round is one mix, with the ranks host by host or in random order. The round makes calls by every
named method over messages, and runs the mixed program with calls in flight, groups, registered
memory, messages and splits.
"""

import random
from dataclasses import replace

import calls
import storm
from harness import Ending, Job, Place, Rank
from program import METHODS, Program, by
from storm import Outcome, Storm

HOSTS, RANKS_OF_A_HOST = 4, 4
MIXES = sum(RANKS_OF_A_HOST**hosts for hosts in range(1, HOSTS + 1))
MOST = 16384
STEPS = 20
# Large and coprime to the number of mixes: consecutive seeds differ much, and cover all mixes.
STRIDE = 97


def seats(seed: int) -> list[int]:
    """Return each rank's host in the round of a seed.

    Any `MIXES` consecutive seeds have all mixes.
    """
    mix, hosts = seed * STRIDE % MIXES, 1
    while mix >= RANKS_OF_A_HOST**hosts:
        mix -= RANKS_OF_A_HOST**hosts
        hosts += 1
    sizes = [1 + mix // RANKS_OF_A_HOST**host % RANKS_OF_A_HOST for host in range(hosts)]
    seats = [host for host, size in enumerate(sizes) for _ in range(size)]
    random_ = random.Random(seed)
    if random_.random() < 0.5:
        random_.shuffle(seats)
    return seats


def program(rank: Rank, seed: int) -> None:
    """Make a rank's calls."""
    error = None
    comm = rank.join()
    steps = Program(rank, comm, seed, MOST)
    random_ = random.Random(seed)
    try:
        for collective, methods in METHODS.items() if len(set(rank.place.seats)) > 1 else ():
            for method in methods:
                call = by(calls.drawn(random_, rank.ranks, (collective,), MOST), method)
                call.check(rank.rank, call.make(comm))
                if collective == "all_reduce":
                    x = call.input(rank.rank).copy()
                    call.check(rank.rank, call.make(comm, in_place=x))
        for _ in range(STEPS):
            steps.step()
    except Exception as raised:
        error = raised
    rank.say_ended(error)
    comm.close()


def judged(endings: list[Ending]) -> list[str]:
    """Return the guarantees violated by the outcomes of an undisturbed job."""
    return [str(ending) for ending in endings if ending.kind != "ok"]


def round_(seed: int, place: Place) -> Outcome:
    """Run one mix."""
    place = replace(place, seats=tuple(seats(seed)))
    ranks = len(place.seats)
    with Job(lambda rank: program(rank, seed), ranks, place, seed) as job:
        endings = job.finish()
    hosts = len(set(place.seats))
    rows = [(f"{hosts} hosts: {ending.kind}", None) for ending in endings]
    broken = [f"hosts {list(place.seats)}: {violation}" for violation in judged(endings)]
    return Outcome(1, [*rows], broken)


if __name__ == "__main__":
    storm.main(Storm("mixes", "mixes", round_, 60, ("hosts",), hosts=HOSTS))
