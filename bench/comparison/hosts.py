"""Several hosts: the namespaces, their congestion control, and the limit of a shaped line."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from comparison.summary import Case
from lab import WIRE, Lab

# Minimum number of iterations on a shaped line, even if they take longer than planned.
MIN_ITERATIONS = 3


@dataclass(frozen=True)
class Hosts:
    lab: Lab
    # Default congestion controls of the hosts; each run is repeated with each of them.
    congestions: Sequence[str]
    # Rate of each host's cable in both directions, if it is shaped.
    rate_mbit: float | None = None

    def line_us(self, size: int) -> float | None:
        """Return the minimum time of an all-reduce on shaped lines.

        Each host sends and receives 2(H-1)/H times the vector, in full frames.
        """
        if self.rate_mbit is None:
            return None
        hosts = len(self.lab.hosts)
        return 2 * (hosts - 1) / hosts * size * 8 * WIRE / self.rate_mbit

    def at_most(self, iterations: int, case: Case, budget_ms: float) -> int:
        """Return the number of iterations within a shaped line's budget, up to `iterations`."""
        line_us = self.line_us(case.bytes)
        if not line_us:
            return iterations
        return max(MIN_ITERATIONS, min(iterations, int(budget_ms * 1e3 / line_us)))

    def limits_us(self, cases: Iterable[Case]) -> Mapping[Case, float]:
        """Return the minimum time of each case on shaped lines."""
        return {case: line_us for case in cases if (line_us := self.line_us(case.bytes))}
