"""Memory limit: the rate at which all ranks together read and write, measured between rounds.

A collective of large vectors takes at least as long as the memory needs for its
`Collective.traffic_bytes`. Smaller vectors stay in caches, which are faster, so the limit does not
apply to them.
"""

import statistics
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from comparison.collectives import Collective
from comparison.libraries import BENCH, BUILT
from comparison.processes import output_of
from comparison.summary import Case

# Rows of this size or more are compared with the limit.
LIMIT_FROM_BYTES = 4 << 20
# Total memory of the processes: this many last-level caches, but at least this size, because
# virtual machines understate caches.
CACHES = 8
LEAST_BYTES = 1 << 30
TIME_MS = 200
LIMIT_S = 60.0
CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")


def last_cache_bytes() -> int:
    """Return the size of this machine's largest cache, or 0 if the kernel does not report it."""
    sizes = [file.read_text().strip() for file in CACHE_FOLDER.glob("index*/size")]
    return max((int(size[:-1]) << {"K": 10, "M": 20}[size[-1]] for size in sizes), default=0)


class Memory:
    """Rates of the memory, by the number of processes that share it."""

    def __init__(self, collective: Collective, sizes: Iterable[int]) -> None:
        self.collective = collective
        self.wanted = collective.traffic_bytes(2, 1) > 0 and max(sizes) >= LIMIT_FROM_BYTES
        self.rates_gbps: dict[int, list[float]] = {}
        if self.wanted:
            self.program = BUILT / "memory_rate"
            BUILT.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cc", "-O3", "-o", self.program, BENCH / "memory_rate.c"], check=True)

    def measure(self, processes: int) -> None:
        if self.wanted:
            size = max(CACHES * last_cache_bytes(), LEAST_BYTES)
            output = output_of([self.program, processes, size, TIME_MS], LIMIT_S)
            self.rates_gbps.setdefault(processes, []).append(float(output))

    def limits_us(self, cases: Iterable[Case]) -> Mapping[Case, float]:
        """Return the minimum time of each sufficiently large case, by the median rate."""
        return {
            case: self.collective.traffic_bytes(case.ranks, case.bytes)
            / statistics.median(rates)
            / 1e3
            for case in cases
            if case.bytes >= LIMIT_FROM_BYTES and (rates := self.rates_gbps.get(case.ranks))
        }

    def lines(self) -> list[str]:
        """Return the measured rates as text."""
        lines = [
            f"memory: {statistics.median(rates):.1f} GB/s read and written by {processes} "
            "processes together "
            f"({min(rates):.1f} to {max(rates):.1f} in {len(rates)} rounds)"
            for processes, rates in sorted(self.rates_gbps.items())
        ]
        if lines:
            lines.append(
                "it/limit: time over the least time for reading every input and writing every "
                "output at that rate, from 4 MiB "
                f"up; what stays in the last cache ({last_cache_bytes() >> 20} MiB) can be quicker"
            )
        return lines
