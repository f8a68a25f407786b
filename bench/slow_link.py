#!/usr/bin/env python3
"""All-reduce between hosts one of which has a slow link: the ring, and the weighted direct way that relieves it.

    bench/slow_link.py                                  # 4 hosts, one link at a quarter of 400 Mbit/s, 8 MiB
    bench/slow_link.py --rate 200 --factor 2 --bytes 4M --rounds 5

Hosts are network namespaces on one bridge, with a token bucket (tc's tbf) at both ends of every cable. The rates are low
enough that no processor matters. It needs the rights to make namespaces (root), `ip` and `tc`. A round runs each way once, and every
round begins with another, so that what disturbs the machine disturbs all. `ringfold sim` says what each way should take.
"""

import argparse
import csv
import io
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lab import Lab, ranks

ROOT = Path(__file__).resolve().parent.parent
SECONDS_MAX = 120
# The bytes on the wire for each byte that TCP carries in a full frame: 1500 of IP (and 14 of Ethernet, which tbf counts) for
# 1448 of payload.
WIRE = 1514 / 1448


@dataclass(frozen=True)
class Way:
    """One way of carrying out the call."""

    name: str
    arguments: tuple[str, ...]


def perf(lab: Lab, program: Path, arguments: list[str]) -> list[dict[str, str]]:
    """`ringfold perf` with a rank on each host; the rows of its CSV."""
    output = ranks(lab, [str(program), "perf", *arguments, "--csv", "-"], SECONDS_MAX)
    lines = output.splitlines()
    while lines and not lines[0].startswith("collective,"):
        lines.pop(0)
    return list(csv.DictReader(io.StringIO("\n".join(lines))))


def simulated_us(program: Path, options: argparse.Namespace, way: Way) -> float:
    """What `ringfold sim` says that a way takes, with the payload's part of the rate as bandwidth."""
    words = [str(program), "sim", "--ranks", str(options.hosts), "--bytes", options.bytes]
    words += ["--alpha", options.alpha, "--bandwidth", f"{options.rate / WIRE:.3f}Mbit/s"]
    words += ["--slow-link", f"rank={options.slow},factor={options.factor}", *way.arguments, "--csv", "-"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    return float(row["time_us"])


def main() -> None:
    """Measures, prints a table and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/ringfold")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--slow", type=int, default=2, help="the host with the slow link")
    parser.add_argument("--rate", type=float, default=400.0, help="Mbit/s of the others")
    parser.add_argument("--factor", type=float, default=4.0, help="how many times as slow")
    parser.add_argument("--bytes", default="8M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--ways", help="some of ring, direct, tuner, weighted, weighted-auto")
    parser.add_argument("--alpha", default="100us", help="latency for the simulator")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    each = ",".join("0" if host == options.slow else "1" for host in range(options.hosts))
    ways = [
        Way("ring", ("--algorithm", "ring")),
        Way("direct", ("--algorithm", "direct")),
        Way("tuner", ()),
        Way("weighted", ("--weights", each)),
        Way("weighted-auto", ("--weights", "auto")),
    ]
    if options.ways:
        ways = [way for way in ways if way.name in options.ways.split(",")]
    sizes = ["-b", options.bytes, "-e", options.bytes, "-n", str(options.iterations), "-w", "0", "-c", "1"]
    medians: dict[tuple[str, str], list[float]] = {}
    rows: list[dict[str, str]] = []
    with Lab(options.hosts) as lab:
        for host in range(options.hosts):
            lab.shape(host, options.rate / (options.factor if host == options.slow else 1))
        for turn in range(options.rounds):
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                for row in perf(lab, options.program, ["all_reduce", *sizes, *way.arguments]):
                    if row["wrong"] != "0":
                        sys.exit(f"{way.name}: {row['wrong']} wrong elements")
                    rows.append({"way": way.name, "round": str(turn), **row})
                    place = "in" if row["in_place"] in ("1", "true") else "out"
                    medians.setdefault((way.name, place), []).append(float(row["median_us"]))
    print(f"{'way':>14} {'place':>5} {'median_ms':>10} {'of ring':>8} {'simulated_ms':>13} {'of it':>6}")
    simulated = {way.name: simulated_us(options.program, options, way) for way in ways}
    for (name, place), times in sorted(medians.items(), key=lambda item: (item[0][1], item[0][0])):
        median = statistics.median(times)
        ring = statistics.median(medians.get(("ring", place), [float("nan")]))
        should = simulated[name]
        print(
            f"{name:>14} {place:>5} {median / 1e3:>10.1f} {median / ring:>8.3f} {should / 1e3:>13.1f} {median / should:>6.3f}"
        )
    for row in rows:
        row["simulated_us"] = f"{simulated[row['way']]:.3f}"
    if options.csv:
        options.csv.parent.mkdir(parents=True, exist_ok=True)
        with options.csv.open("w", newline="") as file:
            setting = {
                "rate_mbit": str(options.rate),
                "slow": str(options.slow),
                "factor": str(options.factor),
            }
            writer = csv.DictWriter(file, [*setting, *rows[0]])
            writer.writeheader()
            writer.writerows({**setting, **row} for row in rows)


if __name__ == "__main__":
    main()
