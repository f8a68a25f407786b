"""Judges whether a long-running process grows: a pure function of its samples.

Samples are taken at quiescent points, where the process should hold the same as at the previous
one. The first samples are left out, because caches fill and pages are touched. The others are
divided into thirds. The median of the last third is compared with that of the middle one, so that a
single peak decides nothing.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WARM_UP = 0.25
"""Fraction of the samples that is left out."""
SAMPLES_MIN = 12
"""Minimum number of samples after the warm-up; with fewer, nothing is decided."""
MAPPINGS_MAX = 6
"""Limit on the growth of a median in mappings: torch loads libraries when they are needed."""
OBJECTS_MAX = 10_000
OBJECTS_PER_PROGRAM_MAX = 20
"""Limit on the growth in blocks of Python's allocator: torch keeps two or three per program."""
BYTES_PER_PROGRAM_MAX = 12 << 10
"""Limit on the growth of memory: torch keeps 1.5 KiB of each group, whatever the backend, and a
program opens about three."""
BYTES_MAX = {"allocated": 6 << 20, "resident": 48 << 20}
"""Growth below this is noise: programs differ, and the allocator keeps pages between those in use;
after a program of 100,000 calls, these are tens of megabytes."""
KINDS = ("descriptors", "threads", "mappings", "objects", *BYTES_MAX)


@dataclass(frozen=True)
class Sample:
    """Resources of a process at a quiescent point."""

    at_s: float
    programs: int
    """Number of programs that have run."""
    descriptors: int
    threads: int
    mappings: int
    """Mappings of files, shared mappings and stacks; the allocators' own vary."""
    objects: int
    """Blocks of Python's allocator that are in use."""
    allocated: int
    """Bytes of the C library's allocator that are in use."""
    resident: int
    """Bytes in memory, without the pages of files."""


def judged(samples: Sequence[Sample]) -> list[str]:
    """Return a text for each resource that grew."""
    warm = list(samples)[int(len(samples) * WARM_UP) :]
    if len(warm) < SAMPLES_MIN:
        return [f"{len(warm)} samples after the warm-up decide nothing; run longer"]
    found = []
    descriptors = {sample.descriptors for sample in warm}
    if len(descriptors) > 1:
        found.append(f"descriptors differ at quiescent points: {sorted(descriptors)}")
    third = len(warm) // 3
    middle, last = warm[third : 2 * third], warm[2 * third :]
    # Some threads start with the first call that needs them, so a restarted job has fewer.
    before, threads = (max(sample.threads for sample in part) for part in (middle, last))
    if threads > before:
        found.append(f"threads grew from {before} to {threads}")
    mappings = median(last, "mappings") - median(middle, "mappings")
    if mappings > MAPPINGS_MAX:
        found.append(f"mappings grew by {mappings:g}, beyond {MAPPINGS_MAX}")
    programs = median(last, "programs") - median(middle, "programs")
    objects = median(last, "objects") - median(middle, "objects")
    if objects > OBJECTS_MAX and objects > OBJECTS_PER_PROGRAM_MAX * programs:
        found.append(
            f"objects grew by {objects:.0f} in {programs:.0f} programs, beyond "
            f"{OBJECTS_PER_PROGRAM_MAX} a program"
        )
    for name, limit in BYTES_MAX.items():
        grown = median(last, name) - median(middle, name)
        if grown > limit and grown > BYTES_PER_PROGRAM_MAX * programs:
            found.append(
                f"{name} memory grew by {grown / 2**20:.1f} MiB in {programs:.0f} programs, beyond "
                f"{limit >> 20} MiB and {BYTES_PER_PROGRAM_MAX >> 10} KiB a program"
            )
    return found


def median(samples: Sequence[Sample], name: str) -> float:
    """Return the median of one of the figures."""
    return float(statistics.median(getattr(sample, name) for sample in samples))


def table(samples: Sequence[Sample]) -> str:
    """Return the figures over time as a readable table, in fewer than 20 rows."""
    rows = [f"{'s':>7} " + " ".join(f"{name:>13}" for name in KINDS)]
    step = max(1, len(samples) // 10)
    for sample in samples[::step]:
        row = f"{sample.at_s - samples[0].at_s:>7.0f} "
        for name in KINDS:
            value = getattr(sample, name)
            text = f"{value / 2**20:.1f} MiB" if name in BYTES_MAX else str(value)
            row += f"{text:>13} "
        rows.append(row.rstrip())
    return "\n".join(rows)
