"""Several hosts: the namespaces, their congestion control, and the limit of a shaped line."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from comparison.summary import Case
from lab import WIRE, Lab

# Iterations of a run on a shaped line, even if they take longer than planned.
MIN_ITERATIONS = 3


@dataclass(frozen=True)
class Hosts:
    lab: Lab
    # Each run of libraries is repeated with each of these as the hosts' default.
    congestions: Sequence[str]
    # The rate of each host's cable in both directions, if it is shaped.
    rate_mbit: float | None = None

    def line_us(self, size: int) -> float | None:
        """The least time of an all-reduce on shaped lines: each host sends and receives
        2(H-1)/H times the vector, in full frames.
        """
        if self.rate_mbit is None:
            return None
        hosts = len(self.lab.hosts)
        return 2 * (hosts - 1) / hosts * size * 8 * WIRE / self.rate_mbit

    def at_most(self, iterations: int, case: Case, budget_ms: float) -> int:
        """As many of the iterations as fit into the budget on a shaped line."""
        line_us = self.line_us(case.bytes)
        if not line_us:
            return iterations
        return max(MIN_ITERATIONS, min(iterations, int(budget_ms * 1e3 / line_us)))

    def limits_us(self, cases: Iterable[Case]) -> Mapping[Case, float]:
        """The least time of each case on shaped lines."""
        return {case: line_us for case in cases if (line_us := self.line_us(case.bytes))}
