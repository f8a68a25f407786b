#!/usr/bin/env python3
"""What channels, chunk sizes and helper threads bring a call, and what they cost in processor time.

    bench/curve.py --csv channels.csv                                     # TCP on loopback, between namespaces, rings of shared memory
    bench/curve.py --helpers 0,1 --places published --ranks 1,2 --csv helpers.csv

Each point is a job of its own: one size, one number of channels or helpers, one chunk size. A round runs each point once, in
another order every time, so that what disturbs the machine disturbs all; the table has medians over rounds. Processor time is
that of all ranks, less what a job of one call takes. Namespaces need root, `ip` and `tc`.
"""

import argparse
import csv
import io
import itertools
import os
import random
import resource
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import slow_link

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {"K": 10, "M": 20, "G": 30}
CALLS_MIN, CALLS_MAX = 12, 400
RUN_BYTES = 192 << 20
"""About what all timed calls of a job move."""


@dataclass(frozen=True)
class Point:
    """One job."""

    place: str
    ranks: int
    algorithm: str
    bytes: int
    channels: int
    chunk_bytes: int
    helpers: int

    def calls(self) -> int:
        """How many are timed."""
        return max(CALLS_MIN, min(CALLS_MAX, RUN_BYTES // self.bytes))

    def arguments(self, calls: int) -> list[str]:
        """Those of `ringfold perf`."""
        words = ["all_reduce", "-b", str(self.bytes), "-e", str(self.bytes), "-c", "0", "-w", "3", "-n", str(calls)]
        words += ["--algorithm", self.algorithm] if self.algorithm != "-" else []
        words += ["--channels", str(self.channels)] if self.channels else []
        if self.chunk_bytes:
            words += ["--slice-bytes", str(self.chunk_bytes * self.ranks * max(self.channels, 1))]
        return words


def size(text: str) -> int:
    """The bytes of a size with K, M or G behind it."""
    shift = SUFFIXES.get(text[-1:].upper(), 0)
    return int(text[:-1] if shift else text) << shift


def run(program: Path, point: Point, calls: int, lab: slow_link.Lab | None) -> tuple[dict[str, str], float]:
    """The row of a job for calls out of place, and the processor seconds of all its ranks."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    os.environ["RINGFOLD_HELPERS"] = str(point.helpers)
    if lab:
        rows = slow_link.perf(lab, program, point.arguments(calls))
    else:
        transport = "tcp" if point.place == "loopback" else "shm"
        words = [str(program), "perf", *point.arguments(calls), "--ranks", str(point.ranks), "--transport", transport]
        done = subprocess.run([*words, "--csv", "-"], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    row = next(row for row in rows if row["in_place"] == "false")
    return row, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def points(options: argparse.Namespace) -> list[Point]:
    """Every combination that was asked for."""
    numbers = [[int(word) for word in words.split(",")] for words in (options.ranks, options.channels, options.helpers)]
    sizes, chunks = ([size(word) for word in words.split(",")] for words in (options.sizes, options.chunks))
    places, algorithms = options.places.split(","), options.algorithms.split(",")
    ranks, channels, helpers = numbers
    return [Point(*each) for each in itertools.product(places, ranks, algorithms, sizes, channels, chunks, helpers)]


def table(rows: list[dict[str, object]]) -> None:
    """Medians over rounds, and beside them what the first point of the same size takes."""
    times: dict[Point, list[tuple[float, float]]] = {}
    for row in rows:
        key = Point(**{name: row[name] for name in Point.__dataclass_fields__})  # type: ignore[arg-type]
        times.setdefault(key, []).append((float(str(row["median_us"])), float(str(row["cpu_us"]))))
    first: dict[tuple[object, ...], tuple[float, float]] = {}
    for point in sorted(times, key=lambda p: (p.place, p.ranks, p.algorithm, p.bytes, p.channels, p.chunk_bytes, p.helpers)):
        median, cpu = (statistics.median(column) for column in zip(*times[point], strict=True))
        base = first.setdefault((point.place, point.ranks, point.algorithm, point.bytes), (median, cpu))
        print(
            f"{point.place:>9} {point.ranks:>2} {point.algorithm:>13} {point.bytes:>9} channels {point.channels:>2} chunk"
            f" {point.chunk_bytes:>7} helpers {point.helpers:>2} {median:>10.1f} us {median / base[0]:>6.3f}"
            f" processor {cpu:>10.1f} us {cpu / base[1]:>6.3f}"
        )


def main() -> None:
    """Measures, prints a table and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/ringfold")
    parser.add_argument("--places", default="loopback,hosts,rings", help="some of loopback, hosts, rings, published")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--algorithms", default="ring", help="`-` is the tuner's")
    parser.add_argument("--sizes", default="64K,512K,4M,32M")
    parser.add_argument("--channels", default="1,2,4", help="0: not said")
    parser.add_argument("--chunks", default="0", help="bytes of a message; 0: the tuner's")
    parser.add_argument("--helpers", default="0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--first-round", type=int, default=0, help="its number, for runs whose rows are put together")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    with ExitStack() as stack:
        every = points(options)
        hosts = {point.ranks for point in every if point.place == "hosts"}
        labs = {count: stack.enter_context(slow_link.Lab(count)) for count in hosts}
        idle: dict[tuple[str, int], float] = {}
        for turn in range(options.first_round, options.first_round + options.rounds):
            for point in random.Random(turn).sample(every, len(every)):
                lab = labs[point.ranks] if point.place == "hosts" else None
                alike = (point.place, point.ranks)
                if alike not in idle:
                    idle[alike] = run(options.program, point, 1, lab)[1]
                row, seconds = run(options.program, point, point.calls(), lab)
                # Both placements are timed.
                cpu_us = (seconds - idle[alike]) / (2 * point.calls()) * 1e6
                rows.append({"round": turn, **vars(point), "median_us": row["median_us"], "p99_us": row["p99_us"], "cpu_us": f"{cpu_us:.1f}"})
    table(rows)
    if options.csv:
        options.csv.parent.mkdir(parents=True, exist_ok=True)
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
