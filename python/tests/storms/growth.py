"""Judges whether a process that runs for long grows: a pure function of what was sampled.

Samples are taken at quiescent points, where the process holds what it held at the one before. The
first part is left out, because caches fill and pages are touched. What is left is divided into
thirds: the median of the last one is compared with that of the middle one, so that a single peak
decides nothing.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WARM_UP = 0.25
"""The part of the samples that is left out."""
SAMPLES_MIN = 12
"""Fewer samples after the warm-up decide nothing."""
MAPPINGS_MAX = 6
"""The most mappings by which a median may grow: torch loads libraries when they are needed."""
OBJECTS_MAX = 10_000
OBJECTS_PER_PROGRAM_MAX = 20
"""The most blocks of Python's allocator that are gained: torch keeps two or three a program."""
BYTES_PER_PROGRAM_MAX = 12 << 10
"""The limit of memory that is gained: torch keeps 1.5 KiB of each group, whatever the backend, and
a program opens about three."""
BYTES_MAX = {"allocated": 6 << 20, "resident": 48 << 20}
"""Growth that is below this is noise: what programs differ in, and the pages that the allocator
keeps between what is in use, after a program of 100,000 calls tens of megabytes."""
KINDS = ("descriptors", "threads", "mappings", "objects", *BYTES_MAX)


@dataclass(frozen=True)
class Sample:
    """What a process holds at a quiescent point."""

    at_s: float
    programs: int
    """The programs that have run."""
    descriptors: int
    threads: int
    mappings: int
    """Those of files, those that are shared, and stacks: the allocators' own come and go."""
    objects: int
    """Blocks of Python's allocator that are in use."""
    allocated: int
    """Bytes of the C library's allocator that are in use."""
    resident: int
    """Bytes in memory, without the pages of files."""


def judged(samples: Sequence[Sample]) -> list[str]:
    """What grew; a text for each."""
    warm = list(samples)[int(len(samples) * WARM_UP) :]
    if len(warm) < SAMPLES_MIN:
        return [f"{len(warm)} samples after the warm-up decide nothing; run longer"]
    found = []
    descriptors = {sample.descriptors for sample in warm}
    if len(descriptors) > 1:
        found.append(f"descriptors differ at quiescent points: {sorted(descriptors)}")
    third = len(warm) // 3
    middle, last = warm[third : 2 * third], warm[2 * third :]
    # Some begin with the first call that needs them, so there are fewer after a restart of the job.
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
    """The median of one of the figures."""
    return float(statistics.median(getattr(sample, name) for sample in samples))


def table(samples: Sequence[Sample]) -> str:
    """The figures over time, in ten rows at most, for people."""
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
