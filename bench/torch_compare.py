#!/usr/bin/env python3
"""Compares ringfold with gloo as PyTorch backends, alternating in the same processes.

bench/README.md has the method.

    .venv/bin/python bench/torch_compare.py                 # everything, 2 and 4 ranks
    .venv/bin/python bench/torch_compare.py --what all_reduce --ranks 2 --sizes 8,64K,16M
    .venv/bin/python bench/torch_compare.py --what train --batch 64
    .venv/bin/python bench/torch_compare.py --what all_reduce --operators bench/.venvs

Needs torch and this tree's wheel in the Python that runs it, as check.sh installs them.
`all_reduce` times synchronous `dist.all_reduce` of both backends and the core's call without torch;
its table has ratios (ringfold/it below 1: ringfold is faster) and the overhead of Python. `train`
times a step of DistributedDataParallel; the communication time is the step minus that of one rank
working alone. Rows are written to bench/results/DATE-MACHINE/ as CSV.
"""

import argparse
import csv
import json
import signal
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import operators
from comparison import frameworks, libraries, machine, report, training
from comparison.collectives import bytes_of, text_of
from comparison.measure import Taken
from comparison.processes import become_reaper, output_of
from comparison.summary import Comparison, Row
from peers import INTERRUPTED_STATUS, count, counts, interrupted, size, sizes, sweep

PROGRAM = libraries.BENCH / "torch_ranks.py"
LIMIT_S = 600.0
# Approximate number of bytes that one library reduces in a block of calls.
BLOCK_BYTES = 64 << 20
MOST_ITERATIONS, LEAST_ITERATIONS = 100, 3


def iterations(size: int) -> int:
    """Return the number of calls per block: fewer for large sizes."""
    return max(LEAST_ITERATIONS, min(MOST_ITERATIONS, BLOCK_BYTES // max(size, 1)))


def run(ranks: int, plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Start the processes once, and return their blocks."""
    start = [
        libraries.COMMAND,
        "run",
        "--ranks",
        ranks,
        "--no-prefix",
        "--",
        sys.executable,
        "-W",
        "ignore",
        PROGRAM,
    ]
    # Additional torch threads would compete with ranks that share cores; ranks are not bound.
    variables = {"OMP_NUM_THREADS": "1", "RINGFOLD_BIND": "none"}
    return training.blocks(output_of([*start, json.dumps(plan)], LIMIT_S, variables))


def compare_calls(options: argparse.Namespace) -> tuple[list[Row], list[training.Overhead]]:
    taken: Taken = {}
    chosen = options.sizes or sweep(options.min, options.max, options.factor)
    files: dict[str, str] = {}
    versions = {"ringfold": version("ringfold"), "native": version("ringfold")}
    if not options.operators:
        versions["gloo"] = f"torch {version('torch')}"
    else:
        for name, package in frameworks.OPERATORS.items():
            files[name] = str(operators.library(options.operators / name, name))
            versions[name] = libraries.installed_version(options.operators / name, package)
    for turn in range(options.rounds):
        for ranks in options.ranks:
            print(f"round {turn + 1}: all_reduce, {ranks} ranks", file=sys.stderr)
            plan = {
                "what": "all_reduce",
                "sizes": chosen,
                "iterations": [iterations(size) for size in chosen],
            }
            wanted = [name for name in versions if name not in files]
            how = {"blocks": options.blocks, "pin": options.pin}
            how |= {"libraries": wanted, "operators": files}
            training.add(taken, ranks, run(ranks, plan | how))
    comparison = Comparison(
        collective="all_reduce",
        pinned=options.pin,
        versions=versions,
        peers=frozenset(versions) - {"ringfold", "native"},
        limits_us={},
    )
    return comparison.rows(taken), training.overheads(taken)


def compare_steps(options: argparse.Namespace) -> list[training.Steps]:
    lines = []
    for turn in range(options.rounds):
        print(f"round {turn + 1}: train, {options.train_ranks} ranks", file=sys.stderr)
        plan = {
            "what": "train",
            "width": options.width,
            "layers": options.layers,
            "batch": options.batch,
        }
        how = {
            "blocks": options.blocks,
            "steps": options.steps,
            "warmup": options.warmup,
            "pin": options.pin,
        }
        lines += run(options.train_ranks, plan | how)
    print(f"{lines[0]['parameters'] / 1e6:.1f} M parameters, {options.batch} samples a rank")
    return training.steps(lines)


def overhead_table(rows: Sequence[training.Overhead]) -> str:
    lines = [
        f"{'ranks':>5} {'size':>6} {'dist.all_reduce':>16} {'native':>10} {'overhead_us':>12}  [95 "
        "% interval]"
    ]
    for row in rows:
        between = f"[{row.low_us:.2f}, {row.high_us:.2f}]"
        times = f"{row.torch_us:>16.2f} {row.native_us:>10.2f} {row.overhead_us:>12.2f}"
        lines.append(f"{row.ranks:>5} {text_of(row.bytes):>6} {times}  {between}")
    return "\n".join(lines)


def step_table(rows: Sequence[training.Steps]) -> str:
    lines = [
        f"{'':<9} {'step_ms':>9} {'[blocks]':>20} {'communication_ms':>17} {'/gloo':>7} "
        f"{'beyond apart_ms':>16} {'/gloo':>7}"
    ]
    for row in rows:
        between = f"[{row.quickest_ms:.1f}, {row.slowest_ms:.1f}]"
        beyond = f"{row.communication_ms:>17.2f} {report.digits(row.of_gloo):>7}"
        apart = f"{row.beyond_apart_ms:>16.2f} {report.digits(row.of_gloo_beyond_apart):>7}"
        lines.append(f"{row.way:<9} {row.step_ms:>9.2f} {between:>20} {beyond} {apart}")
    return "\n".join(lines)


def write(rows: Sequence[Any], name: str, options: argparse.Namespace) -> None:
    if rows and options.csv != "none":
        folder = Path(options.csv) if options.csv else machine.folder(libraries.BENCH / "results")
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"torch-{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(rows[0])])
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)
        print(f"rows: {folder / f'torch-{name}.csv'}", file=sys.stderr)


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = flags.add_argument
    add("--what", choices=("all", "all_reduce", "train"), default="all", help="(default all)")
    add("--ranks", type=counts, default=[2, 4], help="numbers of ranks of all_reduce (default 2,4)")
    add("--sizes", type=sizes, help="such as 8,64K,1M; otherwise from --min to --max")
    add("--min", type=size, default=8, help="smallest size (default 8)")
    add("--max", type=size, default=bytes_of("64M"), help="largest size (default 64M)")
    add("--factor", type=count, default=8, help="factor between sizes (default 8)")
    add("--rounds", type=count, default=3, help="number of starts of the processes (default 3)")
    add("--blocks", type=count, default=5, help="blocks of each library per start (default 5)")
    add("--train-ranks", type=count, default=2, help="ranks of train (default 2)")
    add("--width", type=count, default=2048, help="width of a layer (default 2048)")
    add(
        "--layers",
        type=count,
        default=6,
        help="layers of the network, width times width weights each (default 6)",
    )
    add("--batch", type=count, default=16, help="samples of each rank (default 16)")
    add("--steps", type=count, default=3, help="steps per block (default 3)")
    add("--warmup", type=count, default=4, help="steps that do not count (default 4)")
    add(
        "--operators",
        type=Path,
        metavar="FOLDER",
        help="measure vLLM's and DeepSpeed's operators in place of gloo; their environments are in "
        "the folder, as bench/peers.py makes them",
    )
    add("--pin", action="store_true", help="bind each rank's main thread to a core")
    add("--csv", help="folder for the rows instead of the one in bench/results; none writes none")
    return flags


def main() -> int:
    signal.signal(signal.SIGTERM, interrupted)
    options = parser().parse_args()
    become_reaper()
    if not libraries.COMMAND.exists():
        libraries.build_ringfold()
    if options.what != "train":
        rows, overheads = compare_calls(options)
        print(report.table(rows))
        print(overhead_table(overheads))
        if overheads:
            print(
                "median of the overheads: "
                f"{statistics.median(row.overhead_us for row in overheads):.2f} us"
            )
        write(rows, "all_reduce", options)
        write(overheads, "overhead", options)
    if options.what != "all_reduce":
        steps = compare_steps(options)
        print(step_table(steps))
        write(steps, "train", options)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_STATUS)
