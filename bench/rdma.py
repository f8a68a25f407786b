#!/usr/bin/env python3
"""Measures `ringfold perf` over RDMA against the devices' own rate and latency, interleaved.

    RDMA_VM_MEMORY=4096 bench/rdma_vm.sh bench/rdma.py
    RDMA_VM_MEMORY=4096 bench/rdma_vm.sh bench/rdma.py --sizes 8,64K --ranks 2 --transport rdma,tcp

Runs in the guest of rdma_vm.sh, with target/release/ringfold as it is. Each round measures, for
each size, ib_write_lat (to 64 KiB), ib_write_bw in both directions, and all_reduce with each
transport and number of ranks on two hosts. The table has the median over rounds, the fastest and
the slowest, and the ratio to the devices': of a small all_reduce of two ranks to ib_write_lat, and
of a large one to the time in which both directions carry its bytes. Rows are written to
bench/results/DATE-MACHINE/rdma.csv. The emulated machine says how much is done for a message, not
how fast a real device is.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from comparison import machine
from comparison.collectives import bytes_of
from rdma_hosts import COMMAND, RdmaHosts, output_of

RESULTS = Path(__file__).resolve().parent / "results"
SIZES = "8,4K,64K,1M,4M,16M,64M"
# The latency program's; larger messages are measured by the rate.
LATENCY_BYTES_MAX = 64 << 10
# Iterations are so many that about this much travels, within limits.
BYTES, ITERATIONS = 8 << 20, (2, 300)
# perftest asks for at least 5.
TESTS_MIN = 5
LIMIT_S = 120.0
COLUMNS = ("round", "program", "ranks", "bytes", "median_us")

Key = tuple[str, int, int]


def iterations(size: int) -> int:
    return min(max(BYTES // size, ITERATIONS[0]), ITERATIONS[1])


def perftest(lab: RdmaHosts, program: str, size: int, *flags: str) -> list[float]:
    """The numbers in the result line of a program of perftest."""
    count = max(iterations(size), TESTS_MIN)
    words = [program, "-F", "-s", str(size), "-n", str(count), *flags]
    server = subprocess.Popen(
        ["on-host", "0", *words, "-d", "rxe0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(50):
            client = subprocess.run(
                ["on-host", "1", *words, "-d", "rxe1", lab.address(0)],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
            if client.returncode == 0:
                break
            # The server does not listen yet.
            time.sleep(0.1)
        else:
            sys.exit(f"{' '.join(words)}: {client.stdout}{client.stderr}")
        server.wait(LIMIT_S)
    finally:
        server.kill()
        server.wait()
    lines = client.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.lstrip().startswith("#bytes"))
    return [float(word) for word in lines[at + 1].split()]


def latency_us(lab: RdmaHosts, size: int) -> float:
    """The typical time of a write, one way."""
    return perftest(lab, "ib_write_lat", size)[4]


def both_ways_us(lab: RdmaHosts, size: int) -> float:
    """The time of one message in each direction, of many; the rate is that of both together."""
    average_mib = perftest(lab, "ib_write_bw", size, "-b")[3]
    return 2 * size / (average_mib * (1 << 20)) * 1e6


def all_reduce_us(lab: RdmaHosts, transport: str, ranks: int, size: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = [str(COMMAND), "perf", "all_reduce", "--transport", transport, "-J", str(report)]
        words += ["-b", str(size), "-e", str(size), "-n", str(iterations(size))]
        words += ["-w", "2", "-I", "1"]
        output_of(lab, words, ranks, LIMIT_S)
        (row,) = json.loads(report.read_text())["results"]
    return float(statistics.median(row["out_of_place_per_iter"]["times_us"]))


def one_round(lab: RdmaHosts, options: argparse.Namespace) -> dict[Key, float]:
    """Every program once."""
    found: dict[Key, float] = {}
    for size in options.sizes:
        if size <= LATENCY_BYTES_MAX:
            found["ib_write_lat", 2, size] = latency_us(lab, size)
        found["ib_write_bw -b", 2, size] = both_ways_us(lab, size)
        for ranks in options.ranks:
            for transport in options.transport:
                us = all_reduce_us(lab, transport, ranks, size)
                found[f"ringfold {transport}", ranks, size] = us
        print(f"{size} B measured", file=sys.stderr, flush=True)
    return found


def table(taken: dict[Key, list[float]]) -> str:
    """Medians, the fastest and slowest, and ratios to the devices'."""
    middle = {key: statistics.median(times) for key, times in taken.items()}
    lines = [f"{'program':<16} {'ranks':>5} {'bytes':>9} {'us':>11}  fastest to slowest  of device"]
    for (program, ranks, size), times in sorted(taken.items(), key=lambda item: item[0][::-1]):
        us = middle[program, ranks, size]
        limit = middle.get(("ib_write_lat", 2, size)) or middle["ib_write_bw -b", 2, size]
        ratio = f"{us / limit:.2f}" if program.startswith("ringfold") else ""
        spread = f"{min(times):.1f} to {max(times):.1f}"
        lines.append(f"{program:<16} {ranks:>5} {size:>9} {us:>11.1f}  {spread:<20}{ratio:>8}")
    return "\n".join(lines)


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = flags.add_argument
    add("--sizes", default=SIZES, help="separated by commas (default %(default)s)")
    add("--ranks", default="2,4", help="numbers of ranks (default %(default)s)")
    add("--rounds", type=int, default=3)
    add("--transport", default="rdma", help="of ringfold, such as rdma,tcp (default %(default)s)")
    add("--csv", help="file for the rows instead of the one in bench/results; none writes none")
    options = flags.parse_args()
    options.sizes = [bytes_of(word) for word in options.sizes.split(",")]
    options.ranks = [int(word) for word in options.ranks.split(",")]
    options.transport = options.transport.split(",")
    taken: dict[Key, list[float]] = defaultdict(list)
    with RdmaHosts(2) as lab:
        for _ in range(options.rounds):
            for key, us in one_round(lab, options).items():
                taken[key].append(us)
    print(table(taken))
    if options.csv == "none":
        return
    path = Path(options.csv or machine.folder(RESULTS) / "rdma.csv")
    os.makedirs(path.parent, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for key, times in taken.items():
            writer.writerows((number, *key, round(us, 1)) for number, us in enumerate(times))
    print(f"rows: {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
