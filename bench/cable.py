#!/usr/bin/env python3
"""Measures each host's traffic through its cable in a call, against the collective's minimum.

    bench/cable.py                            # 2 hosts of 2 ranks
    bench/cable.py --hosts 3 --ranks-per-host 2 --csv cables.csv

The bytes are from the interfaces' counters. Hosts are network namespaces (lab.py), so this program
needs root. It runs jobs of two lengths, so that the traffic of joining cancels out. Headers,
acknowledgements and the barriers between calls are counted.
"""

import argparse
import csv
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import lab
from comparison import libraries

SIZE = 4 << 20
SHORT, LONG = 2, 12
LIMIT_S = 60.0

# For each collective: its ways; the direction that counts on the busiest host's cable; and the
# minimum traffic there in vectors, for the given numbers of hosts and of ranks per host.
Least = Callable[[int, int], float]
CALLS: dict[str, tuple[tuple[str, ...], str, Least]] = {
    "all_reduce": (
        ("hierarchical", "multi_leader", "leader", "ring"),
        "tx",
        lambda hosts, _: 2 * (hosts - 1) / hosts,
    ),
    "all_gather": (
        ("hierarchical", "leader", "ring"),
        "rx",
        lambda hosts, _: (hosts - 1) / hosts,
    ),
    "reduce_scatter": (
        ("hierarchical", "leader", "ring"),
        "tx",
        lambda hosts, _: (hosts - 1) / hosts,
    ),
    "broadcast": (("hierarchical", "leader", "flat"), "rx", lambda *_: 1.0),
    "reduce": (("hierarchical", "leader", "flat"), "tx", lambda *_: 1.0),
    "all_to_all": (
        ("hierarchical", "direct"),
        "tx",
        lambda hosts, ranks: ranks * (hosts - 1) / hosts,
    ),
    "gather": (("leader", "flat"), "rx", lambda hosts, _: (hosts - 1) / hosts),
    "scatter": (("leader", "flat"), "tx", lambda hosts, _: (hosts - 1) / hosts),
}


def counted(hosts: lab.Lab, direction: str) -> list[int]:
    """Return the byte count of each host's interface."""
    counts = []
    for host in hosts.hosts:
        words = ["ip", "-n", host, "-s", "-j", "link", "show", lab.DEVICE]
        shown = subprocess.run(words, capture_output=True, text=True, check=True)
        counts.append(int(json.loads(shown.stdout)[0]["stats64"][direction]["bytes"]))
    return counts


def passed(
    hosts: lab.Lab, per_host: int, collective: str, way: str, calls: int
) -> tuple[list[int], int]:
    """Return the bytes that a job's calls send through each cable, and the number of calls."""
    direction = CALLS[collective][1]
    before = counted(hosts, direction)
    size = ["-b", str(SIZE), "-e", str(SIZE), "-n", str(calls), "-w", "0", "-c", "0"]
    words = [str(libraries.COMMAND), "perf", collective, "-A", way, *size, "-J", "/dev/stdout"]
    (row,) = json.loads(report(lab.ranks(hosts, words, LIMIT_S, per_host=per_host)))["results"]
    sides = sum(1 for side in ("out_of_place", "in_place") if row.get(side))
    after = counted(hosts, direction)
    return [new - old for old, new in zip(before, after, strict=True)], sides * calls


def report(output: str) -> str:
    """Return the report in the command's output."""
    return output[output.index("{") : output.rindex("}") + 1]


def vectors(hosts: lab.Lab, per_host: int, collective: str, way: str) -> float:
    """Return the traffic of the busiest cable per call, in vectors."""
    few, few_calls = passed(hosts, per_host, collective, way, SHORT)
    many, many_calls = passed(hosts, per_host, collective, way, LONG)
    busiest = max(more - less for less, more in zip(few, many, strict=True))
    return busiest / (many_calls - few_calls) / SIZE


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--hosts", type=int, default=2)
    flags.add_argument("--ranks-per-host", type=int, default=2)
    flags.add_argument("--csv", type=Path, help="append the rows to this file")
    options = flags.parse_args()
    rows = []
    with lab.Lab(options.hosts) as hosts:
        for collective, (ways, _, least) in CALLS.items():
            due = least(options.hosts, options.ranks_per_host)
            for way in ways:
                carried = vectors(hosts, options.ranks_per_host, collective, way)
                where = (options.hosts, options.ranks_per_host, collective, way)
                rows.append((*where, f"{carried:.4f}", f"{due:.4f}", f"{carried / due:.4f}"))
                print(*rows[-1], flush=True)
    if options.csv:
        heads = ["hosts", "ranks_per_host", "collective", "algorithm", "vectors", "least", "ratio"]
        is_new = not options.csv.exists()
        with options.csv.open("a", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([[*heads, "commit"]] if is_new else [])
            writer.writerows([*row, libraries.ringfold_version()] for row in rows)


if __name__ == "__main__":
    main()
