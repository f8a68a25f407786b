#!/usr/bin/env python3
"""All-reduce on device memory between hosts, beside the same call on memory of the host.

    bench/device_hosts.py                                   # 2 hosts, 5 Gbit/s, 16 MiB
    bench/device_hosts.py --rate 10000 --before ../old/ringfold --csv rows.csv

Hosts are network namespaces on one bridge, with a token bucket (tc's tbf) at both ends of every
link, and one rank each, with a device of the software driver. That driver's library is the one
beside each program. The script needs root (to create namespaces), `ip` and `tc`. A round runs each
way once, and each round starts with a different way.
"""

import argparse
import csv
import os
import statistics
import sys
from pathlib import Path

from lab import Lab
from slow_link import ROOT, perf

# A driver whose copies take only the time of the copying itself.
DRIVER = {"SOFTCUDA_POISON": "0", "SOFTCUDA_LATENCY_US": "0"}


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/ringfold")
    parser.add_argument("--before", type=Path, help="another version, to compare with")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", type=float, default=5000.0, help="Mbit/s of each link")
    parser.add_argument("--bytes", default="16M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--csv", type=Path)
    return parser.parse_args()


def measure(options: argparse.Namespace) -> list[dict[str, str]]:
    """Run all rounds, and return the rows of `ringfold perf`."""
    on_device = ["--device", "soft:same"]
    ways = [("device", options.program, on_device), ("host", options.program, [])]
    if options.before:
        ways.append(("before", options.before, on_device))
    sizes = ["-b", options.bytes, "-e", options.bytes, "-n", str(options.iterations)]
    rows: list[dict[str, str]] = []
    with Lab(options.hosts) as lab:
        lab.set_congestion("cubic")
        for host in range(options.hosts):
            lab.shape(host, options.rate, "256kb")
        for turn in range(options.rounds):
            for name, program, more in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                os.environ.update(DRIVER, LD_LIBRARY_PATH=str(program.resolve().parent))
                for row in perf(lab, program.resolve(), ["all_reduce", *sizes, "-c", "1", *more]):
                    if row["wrong"] != "0":
                        sys.exit(f"{name}: {row['wrong']} wrong elements")
                    setting = {"way": name, "rate_mbit": str(options.rate), "round": str(turn)}
                    rows.append({**setting, **row})
    return rows


def report(rows: list[dict[str, str]]) -> None:
    """Print the time of each way as a multiple of the host's in the same round."""
    times = {(row["way"], row["in_place"], row["round"]): float(row["median_us"]) for row in rows}
    for way in dict.fromkeys(row["way"] for row in rows):
        for place, name in [("false", "out of place"), ("true", "in place")]:
            of_rounds = {key[2]: time for key, time in times.items() if key[:2] == (way, place)}
            ratios = [time / times["host", place, turn] for turn, time in of_rounds.items()]
            median_us = statistics.median(of_rounds.values())
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(f"{way:>7} {name:>12}: {median_us:10.1f} us, {statistics.median(ratios):.2f} of")
            print(f"{'':>21} the host's ({spread})")


def main() -> None:
    """Measure, print the ratios and write the rows."""
    options = parse()
    rows = measure(options)
    report(rows)
    if options.csv:
        options.csv.parent.mkdir(parents=True, exist_ok=True)
        with options.csv.open("w", newline="") as file:
            columns = list(dict.fromkeys(key for row in rows for key in row))
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
