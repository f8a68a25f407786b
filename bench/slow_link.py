#!/usr/bin/env python3
"""All-reduce between hosts, one of which has a slow link: the ring, and the weighted `direct`.

    bench/slow_link.py                          # 4 hosts, one at a quarter of 400 Mbit/s, 8 MiB
    bench/slow_link.py --rate 200 --factor 2 --bytes 4M --rounds 5

Hosts are network namespaces on one bridge, with a token bucket (tc's tbf) at both ends of every
link. The rates are low enough that processors do not matter. The script needs root (to create
namespaces), `ip` and `tc`. A round runs each way once, and each round starts with a different way,
so that disturbances of the machine affect all ways. `ringfold sim` predicts the time of each.
"""

import argparse
import csv
import io
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lab import WIRE, Lab, ranks

ROOT = Path(__file__).resolve().parent.parent
SECONDS_MAX = 120


@dataclass(frozen=True)
class Way:
    """One way of carrying out the call."""

    name: str
    arguments: tuple[str, ...]


def perf(lab: Lab, program: Path, arguments: list[str]) -> list[dict[str, str]]:
    """Run `ringfold perf` with a rank on each host, and return the rows of its CSV."""
    output = ranks(lab, [str(program), "perf", *arguments, "--csv", "-"], SECONDS_MAX)
    lines = output.splitlines()
    while lines and not lines[0].startswith("collective,"):
        lines.pop(0)
    return list(csv.DictReader(io.StringIO("\n".join(lines))))


def simulated_us(program: Path, options: argparse.Namespace, way: Way) -> float:
    """The time of a way by `ringfold sim`, with the payload's part of the rate as bandwidth."""
    words = [str(program), "sim", "--ranks", str(options.hosts), "--bytes", options.bytes]
    words += ["--alpha", options.alpha, "--bandwidth", f"{options.rate / WIRE:.3f}Mbit/s"]
    words += ["--slow-link", f"rank={options.slow},factor={options.factor}"]
    given = list(way.arguments)
    if way.arguments[:1] == ("--weights",):
        given = ["--set", f"weights={way.arguments[1]}"]
    words += [*given, "--csv", "-"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    return float(row["time_us"])


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/ringfold")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--slow", type=int, default=2, help="the host with the slow link")
    parser.add_argument("--rate", type=float, default=400.0, help="Mbit/s of the other links")
    parser.add_argument("--factor", type=float, default=4.0, help="slowdown of the slow link")
    parser.add_argument("--bytes", default="8M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--ways", help="some of ring, direct, tuner, weighted, weighted-auto")
    parser.add_argument("--alpha", default="100us", help="latency for the simulator")
    parser.add_argument("--csv", type=Path)
    return parser.parse_args()


def selected_ways(options: argparse.Namespace) -> list[Way]:
    """The ways to measure."""
    weights = ",".join("0" if host == options.slow else "1" for host in range(options.hosts))
    ways = [
        Way("ring", ("--algorithm", "ring")),
        Way("direct", ("--algorithm", "direct")),
        Way("tuner", ()),
        Way("weighted", ("--weights", weights)),
        Way("weighted-auto", ("--weights", "auto")),
    ]
    return [way for way in ways if not options.ways or way.name in options.ways.split(",")]


def measure(options: argparse.Namespace, ways: list[Way]) -> list[dict[str, str]]:
    """Run all rounds, and return the rows of `ringfold perf`."""
    sizes = ["-b", options.bytes, "-e", options.bytes, "-n", str(options.iterations)]
    sizes += ["-w", "0", "-c", "1"]
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
    return rows


def report(rows: list[dict[str, str]], simulated: dict[str, float]) -> None:
    """Print the medians, relative to the ring and to the simulator."""
    medians: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        place = "in" if row["in_place"] in ("1", "true") else "out"
        medians.setdefault((place, row["way"]), []).append(float(row["median_us"]))
    print(
        f"{'way':>14} {'place':>5} {'median_ms':>10} {'of ring':>8} "
        f"{'simulated_ms':>13} {'of it':>6}"
    )
    for (place, name), times in sorted(medians.items()):
        median = statistics.median(times)
        ring = statistics.median(medians.get((place, "ring"), [float("nan")]))
        expected = simulated[name]
        print(
            f"{name:>14} {place:>5} {median / 1e3:>10.1f} {median / ring:>8.3f} "
            f"{expected / 1e3:>13.1f} {median / expected:>6.3f}"
        )


def write(options: argparse.Namespace, rows: list[dict[str, str]]) -> None:
    """Write the rows with the settings of the slow link."""
    setting = {
        "rate_mbit": str(options.rate),
        "slow": str(options.slow),
        "factor": str(options.factor),
    }
    options.csv.parent.mkdir(parents=True, exist_ok=True)
    with options.csv.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*setting, *rows[0]])
        writer.writeheader()
        writer.writerows({**setting, **row} for row in rows)


def main() -> None:
    """Measure, print a table and write the rows."""
    options = parse()
    ways = selected_ways(options)
    rows = measure(options, ways)
    simulated = {way.name: simulated_us(options.program, options, way) for way in ways}
    report(rows, simulated)
    for row in rows:
        row["simulated_us"] = f"{simulated[row['way']]:.3f}"
    if options.csv:
        write(options, rows)


if __name__ == "__main__":
    main()
