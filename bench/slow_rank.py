#!/usr/bin/env python3
"""One slow reduction in a ring of processes: how much bypassing it saves, call by call.

    bench/slow_rank.py --ringfold target/release/ringfold
    bench/slow_rank.py --rounds 5 --reduce-ms 10 --delay-ms 60 --csv slow-rank.csv

Every reduction takes --reduce-ms, as if a device did it, and in about half of the calls the first
one of rank 1 takes --delay-ms more (`ringfold perf --slow`). The slow calls are the same in every
run, because they are drawn from a seed. A round runs `off`, `next2` and `tail` one after the other,
each time starting with a different one, and the calls of a round are compared one by one.
`ringfold sim` predicts the time of each with the measured time of a transfer. Results are checked
in every run.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

POLICIES = ("off", "next2", "tail")
SECONDS_MAX = 300


def measure(arguments: argparse.Namespace, policy: str) -> list[float]:
    """The time of each call, in milliseconds."""
    command = [
        str(arguments.ringfold), "perf", "reduce_scatter", "--ranks", str(arguments.ranks),
        "--transport", arguments.transport, "--straggler", policy,
        "-b", arguments.bytes, "-e", arguments.bytes,
        "-n", str(arguments.calls), "-w", "6", "-I", "1", "--json", "-",
        "--reduce-time", f"{arguments.reduce_ms}ms",
        "--slow", f"rank=1,step=1,delay={arguments.delay_ms}ms,p=0.5",
    ]  # fmt: skip
    # The ring everywhere, also in the warm-up calls, so that all runs draw the same numbers.
    environment = os.environ | {"RINGFOLD_ALGO": "ring"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return times_of(json.loads(done.stdout))


def times_of(report: dict[str, Any]) -> list[float]:
    """The times of the out-of-place calls."""
    result = report["results"][0]
    if result["out_of_place"].get("nwrong") not in (0, "0", None):
        sys.exit(f"wrong results: {result['out_of_place']}")
    return [time / 1000 for time in result["out_of_place_per_iter"]["times_us"]]


def simulate(arguments: argparse.Namespace, policy: str, transfer_ms: float) -> float:
    """The simulated time of a call with a slow reduction, in milliseconds."""
    command = [
        str(arguments.ringfold), "sim", "reduce_scatter", "--ranks", str(arguments.ranks),
        "--bytes", arguments.bytes, "--slice-bytes", "whole",
        "--alpha", f"{round(transfer_ms * 1000)}us", "--bandwidth", "1000GB/s",
        "--set", f"reduce_time={arguments.reduce_ms}ms", "--set", "server=parallel",
        "--policy", policy,
        "--slow", f"rank=1,step=1,delay={arguments.delay_ms}ms", "--json", "-",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return find_ms(json.loads(done.stdout))


def find_ms(report: dict[str, Any]) -> float:
    """When the last result of the simulated call was complete."""
    complete_us: list[float] = [
        chunk["complete_us"] for chunk in report["simulations"][0]["chunks"]
    ]
    return max(complete_us) / 1000


def main() -> None:
    """Measure, compare and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ringfold", type=Path, default=Path("target/release/ringfold"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--transport", default="shm")
    parser.add_argument("--bytes", default="256K")
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reduce-ms", type=float, default=10)
    parser.add_argument("--delay-ms", type=float, default=60)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    rows = []
    for turn in range(arguments.rounds):
        order = POLICIES[turn % 3 :] + POLICIES[: turn % 3]
        times = {policy: measure(arguments, policy) for policy in order}
        for call, (off, next2, tail) in enumerate(
            zip(*(times[policy] for policy in POLICIES), strict=True)
        ):
            is_slow = off > (arguments.ranks - 1) * arguments.reduce_ms + arguments.delay_ms / 2
            rows.append((turn, call, int(is_slow), off, next2, tail))
    report(arguments, rows)
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("round", "call", "is_slow", "off_ms", "next2_ms", "tail_ms"))
            writer.writerows((*row[:3], *(f"{time:.3f}" for time in row[3:])) for row in rows)


def report(arguments: argparse.Namespace, rows: list[tuple[Any, ...]]) -> None:
    """Print medians, savings and predictions."""
    usual = statistics.median(row[3] for row in rows if not row[2])
    transfer_ms = usual / (arguments.ranks - 1) - arguments.reduce_ms
    due_ms = min(arguments.delay_ms, arguments.reduce_ms + transfer_ms)
    slow = [row for row in rows if row[2]]
    print(
        f"calls without a slow reduction: {usual:.2f} ms, a transfer {transfer_ms:.3f} ms; "
        f"{len(slow)} of {len(rows)} with one"
    )
    simulated = {policy: simulate(arguments, policy, transfer_ms) for policy in POLICIES}
    for place, policy in enumerate(POLICIES):
        median = statistics.median(row[3 + place] for row in slow)
        savings = sorted(row[3] - row[3 + place] for row in slow)
        low, high = savings[len(savings) // 10], savings[-1 - len(savings) // 10]
        saved = simulated["off"] - simulated[policy]
        print(
            f"{policy:6} {median:8.2f} ms, simulated {simulated[policy]:8.2f}; saves "
            f"{statistics.median(savings):6.2f} ms "
            f"({low:.2f} to {high:.2f}), simulated {saved:6.2f}"
        )
    print(f"min(delay, reduction + transfer): {due_ms:.2f} ms")


if __name__ == "__main__":
    main()
