"""Order of the runs: rounds; in each round all cases; in each case all libraries.

Disturbances of the machine thus affect all libraries, and a different library is first each time. A
library that fails or hangs is not started again with as many ranks and as many bytes or more.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from comparison.collectives import Collective, text_of
from comparison.hosts import Hosts
from comparison.launchers import Job
from comparison.libraries import Library, Work
from comparison.memory import Memory
from comparison.processes import Failed
from comparison.summary import Case, Times

# Up to this size, a time depends on the distance of the cores that the system has currently
# assigned, so many short rounds say more than a few long ones. Larger sizes run only in every third
# round.
SMALL_BYTES = 64 << 10
TURNS_PER_ROUND = 3
MAX_ITERATIONS = 1000

Taken = dict[tuple[str, Case], Times]


@dataclass(frozen=True)
class Plan:
    collective: Collective
    ranks: Sequence[int]
    sizes: Sequence[int]
    rounds: int
    pin: bool
    # Iterations in each run and placement, if specified.
    iterations: int | None = None
    # The hosts; if None, all ranks are on this host.
    hosts: Hosts | None = None
    # Time for the iterations of one placement in one run.
    budget_ms: int = 1000
    # Time limit of a run: a peer that needs longer hangs, or is of no use here.
    limit_s: float = 60.0

    @property
    def turns_per_round(self) -> int:
        """Turns per round: one between hosts, because caches matter only on one host."""
        return 1 if self.hosts else TURNS_PER_ROUND

    def turns(self, size: int) -> range:
        """Return the turns in which a size is measured."""
        per_round = self.turns_per_round
        return range(0, self.rounds * per_round, 1 if size <= SMALL_BYTES else per_round)

    def congestions(self) -> Sequence[str]:
        return self.hosts.congestions if self.hosts else [""]

    def work(self, case: Case) -> Work:
        iterations = self.iterations or iterations_for(case.bytes)
        if self.hosts:
            iterations = self.hosts.at_most(iterations, case, self.budget_ms)
        job = Job(case.ranks, self.pin, tuple(self.hosts.lab.hosts) if self.hosts else ())
        return Work(self.collective, job, case.bytes, iterations, self.budget_ms, self.limit_s)


def iterations_for(size: int) -> int:
    """Return the number of iterations: about equal time for each size, but enough for a median."""
    return max(10, min(MAX_ITERATIONS, 400_000_000 // (size + 200_000)))


def measure(plan: Plan, libraries: Sequence[Library], memory: Memory | None, taken: Taken) -> None:
    """Add all times to `taken`, by library and case, and a memory rate per round to `memory`."""
    given_up: dict[tuple[str, int], int] = {}
    for turn in range(plan.rounds * plan.turns_per_round):
        begin = turn % len(libraries)
        for ranks in plan.ranks:
            if memory and turn % plan.turns_per_round == 0:
                memory.measure(ranks)
            for size, congestion in cases(plan, turn):
                for library in [*libraries[begin:], *libraries[:begin]]:
                    if size < given_up.get((library.name, ranks), size + 1):
                        where = f"{ranks} ranks, {text_of(size)} {congestion}".rstrip()
                        say(f"turn {turn + 1}: {where}, {library.name}")
                        if not run(plan, library, Case(ranks, size, "", congestion), taken):
                            given_up[library.name, ranks] = size
    say("")


def cases(plan: Plan, turn: int) -> Iterator[tuple[int, str]]:
    """Yield the sizes of a turn with each congestion control, which is set first."""
    for size in (size for size in plan.sizes if turn in plan.turns(size)):
        for congestion in plan.congestions():
            if plan.hosts:
                plan.hosts.lab.set_congestion(congestion)
            yield size, congestion


def run(plan: Plan, library: Library, wanted: Case, taken: Taken) -> bool:
    """Add the times of one run; return whether it succeeded."""
    placements = library.placements(plan.collective)
    if not placements:
        return True
    real_size = plan.collective.bytes(wanted.ranks, wanted.bytes)
    times = {
        placement: taken.setdefault(
            (library.name, replace(wanted, bytes=real_size, placement=placement)), Times()
        )
        for placement in placements
    }
    try:
        for placement, (first_us, *rest_us) in library.run(plan.work(wanted)).items():
            times[placement].first_us.append(first_us)
            times[placement].rounds_us.append(rest_us)
    except Failed as failure:
        say(f"{library.name}, {wanted.ranks} ranks, {text_of(wanted.bytes)}: {failure}\n")
        for each in times.values():
            each.failure = str(failure).splitlines()[0]
        return False
    return True


def say(text: str) -> None:
    """Report progress.

    On a terminal, the next report replaces the line; elsewhere, only complete lines are printed.
    """
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text.endswith("\n"):
        print(text, end="", file=sys.stderr, flush=True)
