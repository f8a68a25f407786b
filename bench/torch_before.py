#!/usr/bin/env python3
"""Compares two builds of ringfold: synchronous `dist.all_reduce`, and the core's call.

    bench/torch_before.py --baseline ../before/.venv/bin/python --rounds 6 --csv before-after.csv

Tensors are in host memory; the core's call is without torch. Runs this Python and the baseline's in
turn, each round with new processes; a round begins with the build that ended the previous one.
`bench/README.md` has the method, `torch_ranks.py` the calls. Rows, one for each round, are appended
to the CSV; the summary covers all rows in the file. Rounds may thus be measured in several short
runs.
"""

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from comparison import libraries, training
from comparison.collectives import text_of
from comparison.processes import become_reaper, output_of
from peers import count, sizes
from torch_compare import LIMIT_S, PROGRAM, iterations

CALLS = {"ringfold": "dist.all_reduce", "native": "native"}
"""Measured libraries of `torch_ranks.py`, and the names of their rows."""


@dataclass(frozen=True)
class Row:
    """A build's calls of a size in one round: the slowest rank's times."""

    build: str
    call: str
    ranks: int
    bytes: int
    round: int
    calls: int
    median_us: float
    quickest_us: float
    slowest_us: float


def taken(options: argparse.Namespace, build: str, python: str, number: int) -> Iterator[Row]:
    """Start the processes once, and yield their rows."""
    start = [libraries.COMMAND, "run", "--ranks", options.ranks, "--no-prefix", "--"]
    plan = {
        "what": "all_reduce",
        "libraries": list(CALLS),
        "sizes": options.sizes,
        "iterations": [iterations(size) for size in options.sizes],
        "blocks": options.blocks,
        "pin": options.pin,
    }
    program = [*start, python, "-W", "ignore", PROGRAM, json.dumps(plan)]
    variables = {"OMP_NUM_THREADS": "1", "RINGFOLD_BIND": "none"}
    times: dict[tuple[str, int], list[float]] = {}
    for line in training.blocks(output_of(program, LIMIT_S, variables)):
        times.setdefault((line["library"], line["bytes"]), []).extend(line["times_us"])
    for (library, size), all_us in times.items():
        median = round(statistics.median(all_us), 3)
        yield Row(
            build, CALLS[library], options.ranks, size, number,
            len(all_us), median, min(all_us), max(all_us),
        )  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return for each call: medians over rounds, [quickest, slowest round], and their ratio."""
    heads = f"{'call':<16} {'size':>6} {'rounds':>6} {'before_us':>30} {'after_us':>30}"
    lines = [f"{heads} {'ratio':>7}"]
    for call, size in dict.fromkeys((row["call"], int(row["bytes"])) for row in rows):
        found = {
            build: [
                float(row["median_us"])
                for row in rows
                if (row["build"], row["call"], int(row["bytes"])) == (build, call, size)
            ]
            for build in ("before", "after")
        }
        before, after = (statistics.median(found[build]) for build in ("before", "after"))
        spread = [
            f"{statistics.median(each):.2f} [{min(each):.2f}, {max(each):.2f}]"
            for each in found.values()
        ]
        lines.append(
            f"{call:<16} {text_of(size):>6} {len(found['after']):>6} {spread[0]:>30} "
            f"{spread[1]:>30} {after / before:>7.3f}"
        )
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = flags.add_argument
    add("--baseline", required=True, help="the Python that has the earlier build")
    add("--ranks", type=count, default=2, help="(default 2)")
    add("--sizes", type=sizes, default=[8, 64 << 20], help="(default 8,64M)")
    add("--rounds", type=count, default=11, help="starts of each build (default 11)")
    add("--blocks", type=count, default=4, help="blocks of calls per start (default 4)")
    add("--pin", action="store_true", help="bind each rank's main thread to a core")
    add("--csv", type=Path, required=True, help="rows are appended to this file")
    return flags


def main() -> None:
    options = parser().parse_args()
    become_reaper()
    builds = [("before", options.baseline), ("after", sys.executable)]
    rows: list[dict[str, Any]] = []
    if options.csv.exists():
        with options.csv.open(newline="") as file:
            rows = list(csv.DictReader(file))
    first = max((int(row["round"]) for row in rows), default=0) + 1
    for number in range(first, first + options.rounds):
        for build, python in builds if number % 2 else builds[::-1]:
            rows += [asdict(row) for row in taken(options, build, python, number)]
            with options.csv.open("w", newline="") as file:
                writer = csv.DictWriter(file, [field.name for field in fields(Row)])
                writer.writeheader()
                writer.writerows(rows)
    print(table(rows))


if __name__ == "__main__":
    main()
