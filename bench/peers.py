#!/usr/bin/env python3
"""Compares ringfold's all_reduce with its peers', interleaved in one run, on this host.

    bench/peers.py --ranks 2 --rounds 5                    # against Open MPI and gloo
    bench/peers.py --ranks 8 --max 16M --peers openmpi

Each round runs every library once over all sizes, so that what disturbs the machine disturbs all of them. Before each
call every rank stores to each cache line of its input and meets the others in a barrier, both untimed; an iteration's time
is the slowest rank's. Reported are the median over all rounds' iterations, a 95 % interval of it (order statistics), the
99th percentile, and the ratio of medians ringfold / peer: below 1 ringfold is faster.

Peers come from PyPI into bench/.venvs, one environment each, on the first run. ringfold is the release build.
"""

import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENVS = ROOT / "bench" / ".venvs"
PACKAGES = {"openmpi": ["openmpi"], "gloo": ["torch==2.13.0", "numpy"]}
TIME_LIMIT_S = 600


def environment(peer: str) -> Path:
    """The peer's virtual environment, made if it is not there."""
    venv = VENVS / peer
    if not (venv / "complete").exists():
        print(f"installing {peer} into {venv}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin" / "pip", "install", "--quiet", *PACKAGES[peer]], check=True)
        (venv / "complete").touch()
    return venv


def output_of(command: list, **variables: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIME_LIMIT_S,
        check=True,
    )
    return done.stdout


class Ringfold:
    name = "ringfold"
    placements = ("out", "in")

    def __init__(self) -> None:
        subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
        self.command = ROOT / "target" / "release" / "ringfold"

    def run(self, ranks: int, size: int, iterations: int, placement: str) -> list[float]:
        """The first call's time and every iteration's, in microseconds."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            flags = ["--rewrite", "-b", size, "-e", size, "-n", iterations, "-w", 0, "-c", 0, "-I", 1, "-J", report]
            output_of([self.command, "perf", "--ranks", ranks, *flags])
            return times_in(report, placement)


def times_in(report: Path, placement: str) -> list[float]:
    (row,) = json.loads(report.read_text())["results"]
    side = "out_of_place" if placement == "out" else "in_place"
    return [row[side]["first_us"], *row[f"{side}_per_iter"]["times_us"]]


class OpenMpi:
    name = "openmpi"
    placements = ("out", "in")

    def __init__(self) -> None:
        venv = environment(self.name)
        self.mpirun = venv / "bin" / "mpirun"
        self.program = venv / "allreduce_mpi"
        source = ROOT / "bench" / "allreduce_mpi.c"
        subprocess.run([venv / "bin" / "mpicc", "-O2", "-o", self.program, source], check=True)

    def run(self, ranks: int, size: int, iterations: int, placement: str) -> list[float]:
        as_root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        start = [self.mpirun, *as_root, "--oversubscribe", "-n", ranks]
        line = output_of([*start, self.program, iterations, int(placement == "in"), size])
        return [float(word) for word in line.split()[1:]]


class Gloo:
    name = "gloo"
    placements = ("in",)

    def __init__(self) -> None:
        self.python = environment(self.name) / "bin" / "python"

    def run(self, ranks: int, size: int, iterations: int, placement: str) -> list[float]:
        program = [self.python, "-W", "ignore", ROOT / "bench" / "allreduce_gloo.py", iterations, size]
        ringfold = ROOT / "target" / "release" / "ringfold"
        line = output_of([ringfold, "run", "--ranks", ranks, "--no-prefix", "--", *program])
        return [float(word) for word in line.split()[1:]]


def bytes_of(text: str) -> int:
    shift = {"K": 10, "M": 20, "G": 30}.get(text[-1].upper(), 0)
    return int(text[: -1 if shift else None]) << shift


def interval(sorted_times: list[float]) -> tuple[float, float]:
    """A 95 % interval of the median, from order statistics."""
    n = len(sorted_times)
    half = 1.96 * math.sqrt(n) / 2
    low, high = max(0, math.floor(n / 2 - half)), min(n - 1, math.ceil(n / 2 + half))
    return sorted_times[low], sorted_times[high]


def iterations_for(size: int) -> int:
    """About as much time for each size, with enough iterations for a median."""
    return max(10, min(1000, 400_000_000 // (size + 200_000)))


def measure(libraries: list, arguments: argparse.Namespace) -> dict:
    """By library, size and placement: all iterations' times, and the first calls'."""
    times: dict = {}
    for round_number in range(arguments.rounds):
        for size in arguments.sizes:
            for placement in ("out", "in"):
                for library in libraries:
                    if placement not in library.placements:
                        continue
                    print(f"\rround {round_number + 1}: {size} {placement} {library.name}    ", end="", file=sys.stderr)
                    first, *rest = library.run(arguments.ranks, size, iterations_for(size), placement)
                    entry = times.setdefault((library.name, size, placement), ([], []))
                    entry[0].append(first)
                    entry[1].extend(rest)
    print(file=sys.stderr)
    return times


def rows_of(times: dict, ranks: int) -> list[dict]:
    rows = []
    for (name, size, placement), (firsts, all_times) in times.items():
        ordered = sorted(all_times)
        median = statistics.median(ordered)
        low, high = interval(ordered)
        own = times[("ringfold", size, placement)][1]
        rows.append(
            {
                "library": name,
                "ranks": ranks,
                "bytes": size,
                "placement": placement,
                "iterations": len(ordered),
                "first_us": round(statistics.median(firsts), 3),
                "median_us": round(median, 3),
                "low_us": round(low, 3),
                "high_us": round(high, 3),
                "p99_us": round(ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)], 3),
                "ratio": round(statistics.median(own) / median, 3),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--min", default="8", help="smallest size (default 8)")
    parser.add_argument("--max", default="64M", help="largest size (default 64M)")
    parser.add_argument("--factor", type=int, default=8, help="between sizes (default 8)")
    parser.add_argument("--peers", nargs="*", default=["openmpi", "gloo"], choices=["openmpi", "gloo"])
    parser.add_argument("--csv", type=Path, help="where the table goes as CSV, too")
    arguments = parser.parse_args()
    size, largest = bytes_of(arguments.min), bytes_of(arguments.max)
    arguments.sizes = []
    while size <= largest:
        arguments.sizes.append(size)
        size *= arguments.factor
    kinds = {"openmpi": OpenMpi, "gloo": Gloo}
    libraries = [Ringfold(), *(kinds[peer]() for peer in arguments.peers)]
    rows = rows_of(measure(libraries, arguments), arguments.ranks)
    print("library      bytes place    first_us   median_us  [95 % interval]             p99_us  ringfold/it")
    for row in sorted(rows, key=lambda row: (row["bytes"], row["placement"], row["library"] != "ringfold")):
        print(
            f"{row['library']:<9} {row['bytes']:>9} {row['placement']:>4} {row['first_us']:>12.2f} {row['median_us']:>11.2f}"
            f"  [{row['low_us']:.2f}, {row['high_us']:.2f}]".ljust(70)
            + f"{row['p99_us']:>12.2f} {row['ratio']:>8.3f}"
        )
    if arguments.csv:
        arguments.csv.parent.mkdir(parents=True, exist_ok=True)
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


main()
