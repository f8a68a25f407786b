"""The judge of growth reports growth, and ignores noise."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import growth
import pytest
from growth import Sample, judged

MIB = 1 << 20
EVERY_S = 2.0
PROGRAMS = 10
"""Number of programs between two samples."""
SAMPLES = 900


def samples(
    change: Callable[[int, Sample], Sample] = lambda _, sample: sample, count: int = SAMPLES
) -> list[Sample]:
    """Return half an hour of samples of a process that grows only by noise and by this change."""
    random_ = random.Random(1)
    found = []
    for number in range(count):
        noise = random_.randrange(MIB)
        mappings = 400 + random_.randrange(5)
        steady = Sample(
            number * EVERY_S,
            number * PROGRAMS,
            20,
            5,
            mappings,
            1_000_000 + random_.randrange(5000),
            200 * MIB + noise,
            300 * MIB + noise,
        )
        found.append(change(number, steady))
    return found


def test_noise_is_no_growth() -> None:
    assert judged(samples()) == []
    assert judged(samples(count=30)) == []


def test_what_fills_in_the_beginning_is_no_growth() -> None:
    def fill(number: int, sample: Sample) -> Sample:
        missing = max(0, 200 - number)
        return replace(
            sample,
            descriptors=sample.descriptors - missing // 100,
            mappings=sample.mappings - missing,
            resident=sample.resident - missing * MIB,
        )

    assert judged(samples(fill)) == []


def test_one_peak_is_no_growth_of_memory_but_one_of_descriptors() -> None:
    def peak(number: int, sample: Sample) -> Sample:
        return replace(sample, resident=sample.resident + 500 * MIB * (number == 880))

    assert judged(samples(peak)) == []
    one_more = samples(lambda n, sample: replace(sample, descriptors=20 + (n == 880)))
    assert len(judged(one_more)) == 1


def test_threads_that_have_not_begun_again_are_no_growth() -> None:
    fewer = samples(lambda n, sample: replace(sample, threads=5 - 3 * (n % 50 == 0)))
    assert judged(fewer) == []


@pytest.mark.parametrize("name", growth.KINDS)
@pytest.mark.parametrize("count", [60, SAMPLES])
def test_each_kind_of_steady_growth_is_reported_and_named(name: str, count: int) -> None:
    step = 60 / count
    of_objects = {"objects": (growth.OBJECTS_MAX, growth.OBJECTS_PER_PROGRAM_MAX)}
    of_bytes = {
        name: (most, growth.BYTES_PER_PROGRAM_MAX) for name, most in growth.BYTES_MAX.items()
    }
    if limits := (of_objects | of_bytes).get(name):
        # The step exceeds both limits.
        step = 1.5 * max(8 * limits[0] / count, limits[1] * PROGRAMS)

    def grow(number: int, sample: Sample) -> Sample:
        return replace(sample, **{name: getattr(sample, name) + int(number * step)})

    (text,) = judged(samples(grow, count))
    assert text.startswith(name)


def test_slow_growth_within_the_limit_is_none() -> None:
    step = growth.BYTES_PER_PROGRAM_MAX * PROGRAMS / 2
    slow = samples(lambda n, sample: replace(sample, resident=sample.resident + int(n * step)))
    assert judged(slow) == []


def test_too_few_samples_decide_nothing() -> None:
    (text,) = judged(samples(count=10))
    assert "run longer" in text


@pytest.mark.deep
@pytest.mark.parametrize(
    ("leak", "grown"),
    [
        ("descriptors", r"descriptors differ"),
        ("objects", r"objects grew by"),
        ("memory", r"allocated memory grew by ([\d.]+) MiB in (\d+) programs"),
    ],
)
def test_a_soak_of_seconds_finds_what_leaks(leak: str, grown: str) -> None:
    program = Path(__file__).with_name("soak.py")
    found = subprocess.run(
        [sys.executable, program, "--seconds", "40", "--ranks", "2", "--leak", leak],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    text = found.stdout + found.stderr
    assert found.returncode == 1, text
    for rank in range(2):
        judged = re.search(rf"VIOLATION: rank {rank}: {grown}", text)
        assert judged, text
        # torch's caches still fill, but only the leak takes a megabyte per program.
        assert leak != "memory" or float(judged[1]) >= 0.7 * int(judged[2]), text
