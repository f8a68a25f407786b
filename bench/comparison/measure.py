"""The order of the runs: rounds, in each all cases, in each case all libraries.

Disturbances of the machine thus affect all libraries; each time, a different library is first. A
library that fails or hangs is not started again with as many ranks and as many bytes or more.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from comparison.collectives import Collective, text_of
from comparison.libraries import Library, Work
from comparison.memory import Memory
from comparison.processes import Failed
from comparison.summary import Case, Times

# Up to this size, a time depends on how far apart the machine has placed two cores for the moment,
# so many short rounds say more than a few long ones. Larger sizes run in every third round only.
SMALL_BYTES = 64 << 10
TURNS_PER_ROUND = 3
# The time for the iterations of one placement in one run, and their maximum number.
BUDGET_MS = 1000
MAX_ITERATIONS = 1000
# The time limit of a run: a peer that needs more hangs, or is of no use here.
LIMIT_S = 60.0

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

    def turns(self, size: int) -> range:
        """The rounds in which a size is measured."""
        return range(
            0, self.rounds * TURNS_PER_ROUND, 1 if size <= SMALL_BYTES else TURNS_PER_ROUND
        )

    def work(self, ranks: int, size: int) -> Work:
        iterations = self.iterations or iterations_for(size)
        return Work(self.collective, ranks, size, iterations, BUDGET_MS, self.pin, LIMIT_S)


def iterations_for(size: int) -> int:
    """About the same time for each size, with enough iterations for a median."""
    return max(10, min(MAX_ITERATIONS, 400_000_000 // (size + 200_000)))


def measure(plan: Plan, libraries: Sequence[Library], memory: Memory, taken: Taken) -> None:
    """Add all times to `taken`, by library and case, and a memory rate per round to `memory`."""
    given_up: dict[tuple[str, int], int] = {}
    for turn in range(plan.rounds * TURNS_PER_ROUND):
        begin = turn % len(libraries)
        for ranks in plan.ranks:
            if turn % TURNS_PER_ROUND == 0:
                memory.measure(ranks)
            for size in (size for size in plan.sizes if turn in plan.turns(size)):
                for library in [*libraries[begin:], *libraries[:begin]]:
                    if size < given_up.get((library.name, ranks), size + 1):
                        say(f"turn {turn + 1}: {ranks} ranks, {text_of(size)}, {library.name}")
                        if not run(plan, library, ranks, size, taken):
                            given_up[library.name, ranks] = size
    say("")


def run(plan: Plan, library: Library, ranks: int, size: int, taken: Taken) -> bool:
    """Add the times of one run; return whether it succeeded."""
    placements = library.placements(plan.collective)
    if not placements:
        return True
    real_size = plan.collective.bytes(ranks, size)
    times = {
        placement: taken.setdefault((library.name, Case(ranks, real_size, placement)), Times())
        for placement in placements
    }
    try:
        for placement, (first_us, *rest_us) in library.run(plan.work(ranks, size)).items():
            times[placement].first_us.append(first_us)
            times[placement].rounds_us.append(rest_us)
    except Failed as failure:
        say(f"{library.name}, {ranks} ranks, {text_of(size)}: {failure}\n")
        for each in times.values():
            each.failure = str(failure).splitlines()[0]
        return False
    return True


def say(text: str) -> None:
    """Progress on a terminal, on a line that the next one replaces; complete lines go
    everywhere.
    """
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text.endswith("\n"):
        print(text, end="", file=sys.stderr, flush=True)
