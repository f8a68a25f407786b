"""Turns times into rows: medians, their intervals, and the comparison of libraries.

A pure computation; `measure` measures the times.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

CONFIDENCE = 0.95
RATIO_DIGITS = 4


@dataclass(frozen=True, order=True)
class Case:
    """A setting in which libraries are compared."""

    ranks: int
    bytes: int
    placement: str
    # Default congestion control of the hosts, if there are several.
    congestion: str = ""


@dataclass
class Times:
    """One library's times in one case, in microseconds: a list of iterations for each round."""

    first_us: list[float] = field(default_factory=list)
    rounds_us: list[list[float]] = field(default_factory=list)
    # Reason why there are no times, or no more of them.
    failure: str = ""

    def all_us(self) -> list[float]:
        return sorted(us for times in self.rounds_us for us in times)


@dataclass(frozen=True)
class Setting:
    """Where and how all rows of one run were measured."""

    hosts: int = 1
    # Rate of each host's cable, if it is shaped.
    rate_mbit: float | None = None
    commit: str = ""
    machine: str = ""
    kernel: str = ""
    command: str = ""


@dataclass(frozen=True)
class Row:
    """A line of the table. Times are in microseconds; ratios are of medians; `None` is unknown."""

    library: str
    version: str
    collective: str
    pinned: bool
    ranks: int
    bytes: int
    placement: str
    rounds: int
    iterations: int
    first_us: float | None
    median_us: float | None
    # 95 % confidence interval of the median, as if iterations were independent.
    low_us: float | None
    high_us: float | None
    # Medians of the fastest and the slowest round, which show the influence of the machine's state.
    quickest_round_us: float | None
    slowest_round_us: float | None
    p99_us: float | None
    # The time of calls that nothing disturbed, on a busy machine.
    p10_us: float | None
    # ringfold's time divided by this library's.
    ringfold_ratio: float | None
    # This library's time divided by the best peer's, and that peer.
    best_ratio: float | None
    best_peer: str
    # Minimum time by the memory's or the line's bandwidth, and this library's time divided by it.
    limit_us: float | None
    limit_ratio: float | None
    failure: str
    congestion: str
    hosts: int
    rate_mbit: float | None
    commit: str
    machine: str
    kernel: str
    command: str


def interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Return an interval that contains the median with at least 95 % confidence.

    The interval is from order statistics. The number of values below the median is binomial, so the
    j-th smallest and the j-th largest value enclose the median unless fewer than j of n fair coins
    show the same side. With too few values for that confidence, the interval is from the smallest
    to the largest.
    """
    n = len(ordered)
    outside, j = 0.0, 0
    while j < n // 2:
        # Probability that exactly j of n coins show heads.
        outside += math.exp(
            math.lgamma(n + 1) - math.lgamma(j + 1) - math.lgamma(n - j + 1) - n * math.log(2)
        )
        if 2 * outside > 1 - CONFIDENCE:
            break
        j += 1
    j = max(j, 1)
    return ordered[j - 1], ordered[n - j]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the value that this percentage of all values does not exceed (nearest rank)."""
    return ordered[max(math.ceil(percent / 100 * len(ordered)), 1) - 1]


@dataclass(frozen=True)
class Comparison:
    """Common settings of all rows of one run."""

    collective: str
    pinned: bool
    # Version of each library, in the order of the rows.
    versions: Mapping[str, str]
    # Libraries that are not ringfold.
    peers: frozenset[str]
    # Minimum time by the memory's or the line's bandwidth, where it is known and applies.
    limits_us: Mapping[Case, float]
    setting: Setting = Setting()

    def rows(self, times: Mapping[tuple[str, Case], Times]) -> list[Row]:
        """Return a row for each library and case, smallest case first."""
        rows: list[Row] = []
        # Congestion controls are in the order of the measurement.
        congestions = list(dict.fromkeys(case.congestion for _, case in times))
        for case in sorted(
            {case for _, case in times},
            key=lambda case: (
                case.ranks,
                case.bytes,
                case.placement != "out",
                congestions.index(case.congestion),
            ),
        ):
            found = {name: times[name, case] for name in self.versions if (name, case) in times}
            # Skips an interrupted run, which left neither times nor a reason.
            here = {
                name: taken for name, taken in found.items() if taken.rounds_us or taken.failure
            }
            medians = {
                name: statistics.median(taken.all_us())
                for name, taken in here.items()
                if taken.rounds_us
            }
            rows.extend(self.row(name, case, taken, medians) for name, taken in here.items())
        return rows

    def row(self, name: str, case: Case, taken: Times, medians: Mapping[str, float]) -> Row:
        best = min(self.peers & medians.keys(), key=lambda peer: medians[peer], default="")
        ordered = taken.all_us()
        low_us, high_us = interval(ordered) if ordered else (None, None)
        rounds_us = [statistics.median(times) for times in taken.rounds_us]
        return Row(
            library=name,
            version=self.versions[name],
            collective=self.collective,
            pinned=self.pinned,
            ranks=case.ranks,
            bytes=case.bytes,
            placement=case.placement,
            rounds=len(rounds_us),
            iterations=len(ordered),
            first_us=rounded(statistics.median(taken.first_us)) if taken.first_us else None,
            median_us=rounded(medians[name]) if name in medians else None,
            low_us=low_us,
            high_us=high_us,
            quickest_round_us=rounded(min(rounds_us)) if rounds_us else None,
            slowest_round_us=rounded(max(rounds_us)) if rounds_us else None,
            p99_us=percentile(ordered, 99) if ordered else None,
            p10_us=percentile(ordered, 10) if ordered else None,
            ringfold_ratio=ratio(medians.get("ringfold"), medians.get(name)),
            best_ratio=ratio(medians.get(name), medians.get(best)),
            best_peer=best,
            limit_us=rounded(self.limits_us[case]) if case in self.limits_us else None,
            limit_ratio=ratio(medians.get(name), self.limits_us.get(case)),
            failure=taken.failure,
            congestion=case.congestion,
            **asdict(self.setting),
        )


def ratio(time_us: float | None, other_us: float | None) -> float | None:
    return (
        float(f"{time_us / other_us:.{RATIO_DIGITS}g}")
        if time_us is not None and other_us
        else None
    )


def rounded(time_us: float) -> float:
    """Round to a nanosecond, the resolution of the clock."""
    return round(time_us, 3)
