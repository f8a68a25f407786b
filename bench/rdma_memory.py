#!/usr/bin/env python3
"""Measures the cost over RDMA of letting the device read and write the memory of calls.

    bench/rdma_memory.py
    bench/rdma_memory.py --sizes 64K,1M --rounds 5 --csv none

Outside the guest of rdma_vm.sh, this program installs libibverbs-dev and a C compiler if they are
missing (root, apt-get), builds registration_rate.c, and starts the guest. In the guest, it measures
target/release/ringfold as it is.

Each round measures all_reduce of two ranks on two hosts, for each size in four ways in sequence;
each round begins with a different way. Memory is `staged`, that is, copied through registered
memory; `registered` for each call; registered `before` all calls (`perf -R 1`); or as ringfold
chooses (`choice`). Then registration_rate.c measures registrations and copies on rxe0, without
calls. The input is rewritten before each call. Tables have the median over rounds of a round's
median, the fastest and the slowest round, and the ratio of the choice to the better of `staged` and
`registered`. Rows are written to bench/results/DATE-MACHINE/rdma-memory.csv.

The processor emulates the device; real devices have other times for all of this.
"""

import argparse
import csv
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import rdma_guest
from comparison import machine
from comparison.collectives import bytes_of
from comparison.libraries import BUILT
from rdma import LIMIT_S, RESULTS, iterations
from rdma_hosts import COMMAND, RdmaHosts, hosts_here, output_of

SIZES = "4K,64K,256K,1M,4M,16M,64M"
REGISTER = "RINGFOLD_IB_REGISTER_BYTES"
# For each way: the length from which memory is registered for a call, and whether it is registered
# before all calls.
WAYS = {"staged": ("off", 0), "registered": ("1", 0), "before": ("off", 1), "choice": ("auto", 0)}
PLACES = {"out": "out_of_place", "in": "in_place"}
# ringfold's report of the choice, when ranks join.
CHOSEN = re.compile(r"calls (?:copy|register from (\d+) bytes on)$", re.MULTILINE)
PROGRAM = BUILT / "registration_rate"
# Rounds and budget of registration_rate at each size.
RATE_ROUNDS, RATE_BUDGET_MS = 100, 200
COLUMNS = ("round", "measured", "way", "bytes", "median_us", "registers_from_bytes")

# Measurement (`all_reduce out`, `small pages`), way, and bytes.
Key = tuple[str, str, int]


@dataclass
class Taken:
    """Times by measurement, for each round; and the choices, by size."""

    times_us: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    # Length from which each start registers memory, by size; None if all calls copy.
    chosen: dict[int, list[int | None]] = field(default_factory=lambda: defaultdict(list))


def all_reduce(lab: RdmaHosts, way: str, size: int, taken: Taken) -> None:
    """Run two ranks whose calls all use memory in one way."""
    value, is_before = WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        report, log = Path(folder) / "report.json", Path(folder) / "log-%h"
        words = ["env", f"{REGISTER}={value}", f"RINGFOLD_DEBUG_FILE={log}"]
        words += ["RINGFOLD_DEBUG=INFO", "RINGFOLD_DEBUG_SUBSYS=INIT"]
        words += [str(COMMAND), "perf", "all_reduce", "--transport", "rdma", "-R", str(is_before)]
        words += ["-b", str(size), "-e", str(size), "-n", str(iterations(size))]
        words += ["-w", "0", "-c", "0", "--rewrite", "-I", "1", "-J", str(report)]
        output_of(lab, words, 2, LIMIT_S)
        (row,) = json.loads(report.read_text())["results"]
        if way == "choice":
            text = (Path(folder) / f"log-{lab.hosts[0]}").read_text()
            taken.chosen[size].append(chosen_in(text))
    for place, name in PLACES.items():
        median_us = statistics.median(row[f"{name}_per_iter"]["times_us"])
        taken.times_us[f"all_reduce {place}", way, size].append(median_us)


def chosen_in(log: str) -> int | None:
    """Return the length from which a rank registers memory; None if it never does."""
    found = CHOSEN.search(log)
    if found is None:
        sys.exit(f"ringfold's log has no choice of registration; it is another version:\n{log}")
    return int(found[1]) if found[1] else None


def registrations(device: str, sizes: Sequence[int], taken: Taken) -> None:
    """Measure registrations and copies without calls."""
    words = [PROGRAM, device, RATE_ROUNDS, RATE_BUDGET_MS, *sizes]
    done = subprocess.run(
        list(map(str, words)), stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True
    )
    for key, median_us in medians_in(done.stdout).items():
        taken.times_us[key].append(median_us)


def medians_in(output: str) -> dict[Key, float]:
    """Return the median of each line of registration_rate."""
    found = {}
    for line in output.splitlines():
        size, pages, way, *times = line.split()
        found[f"{pages} pages", way, int(size)] = statistics.median(map(float, times))
    return found


def one_round(number: int, lab: RdmaHosts, sizes: Sequence[int], taken: Taken) -> None:
    """Measure everything once."""
    ways = list(WAYS)
    first = number % len(ways)
    for size in sizes:
        for way in ways[first:] + ways[:first]:
            all_reduce(lab, way, size, taken)
        print(f"round {number}: {size} B measured", file=sys.stderr, flush=True)
    if PROGRAM.exists():
        registrations("rxe0", sizes, taken)


def cell(times_us: Sequence[float]) -> str:
    """Return the median, and the fastest and slowest time."""
    numbers = (statistics.median(times_us), min(times_us), max(times_us))
    texts = [f"{number:.0f}" if number >= 1000 else f"{number:.1f}" for number in numbers]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]"


def table(times_us: Mapping[Key, Sequence[float]], ways: Sequence[str], ratio: str) -> str:
    """Return a line for each size and measurement.

    The ratio is that of the last way to the best of the ways before it, except `before`.
    """
    lines = [f"{'bytes':>9} {'':<14}" + "".join(f" {way:>26}" for way in ways) + f"  {ratio}"]
    rows = sorted({(size, what) for what, way, size in times_us if way in ways})
    for size, what in rows:
        found = {way: times_us[what, way, size] for way in ways}
        medians = {way: statistics.median(times) for way, times in found.items()}
        best = min(medians[way] for way in ways[:-1] if way != "before")
        cells = "".join(f" {cell(found[way]):>26}" for way in ways)
        lines.append(f"{size:>9} {what:<14}{cells}  {medians[ways[-1]] / best:.2f}")
    return "\n".join(lines)


def tables(taken: Taken) -> str:
    """Return the tables of all measurements."""
    texts = [table(taken.times_us, tuple(WAYS), "choice/best")]
    starts = [bytes_min for size in taken.chosen.values() for bytes_min in size]
    lengths = sorted(bytes_min for bytes_min in starts if bytes_min is not None)
    chose = f"the choice: {len(lengths)} of {len(starts)} starts register"
    texts.append(f"{chose}, from {lengths[0]} to {lengths[-1]} bytes on" if lengths else chose)
    if any(way == "copy" for _, way, _ in taken.times_us):
        texts.append(table(taken.times_us, ("copy", "register"), "register/copy"))
    return "\n\n".join(texts)


def rows_of(taken: Taken) -> list[tuple[object, ...]]:
    """Return each round's rows of the CSV."""
    return [
        (
            number,
            *key,
            round(us, 2),
            (taken.chosen[key[2]][number] or "never") if key[1] == "choice" else "",
        )
        for key, times in taken.times_us.items()
        for number, us in enumerate(times)
    ]


def start_guest(arguments: Sequence[str]) -> None:
    """Build the program that measures registrations, and continue in the guest."""
    rdma_guest.build_with_verbs(PROGRAM.name, "registering without calls")
    rdma_guest.start("rdma_memory.py", arguments)


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = flags.add_argument
    add("--sizes", default=SIZES, help="separated by commas (default %(default)s)")
    add("--rounds", type=int, default=3)
    add(
        "--csv",
        type=rdma_guest.kept,
        help="file for the rows, below the repository, instead of the one in bench/results; none "
        "writes none",
    )
    options = flags.parse_args()
    sizes = [bytes_of(word) for word in options.sizes.split(",")]
    if hosts_here() == 0:
        start_guest(sys.argv[1:])
    if not PROGRAM.exists():
        print(
            f"{PROGRAM.name} is left out: not built; run this program outside the guest",
            file=sys.stderr,
        )
    taken = Taken()
    with RdmaHosts(2) as lab:
        for number in range(options.rounds):
            one_round(number, lab, sizes, taken)
    print(tables(taken))
    if options.csv == "none":
        return
    path = Path(options.csv or machine.folder(RESULTS) / "rdma-memory.csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows_of(taken))
    print(f"rows: {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
