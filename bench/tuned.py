#!/usr/bin/env python3
"""Measures the tuner's choices, untuned and tuned, against the best way at every size.

    bench/tuned.py                              # 2 ranks, 4 ranks and 4 namespaces, 8 B to 64 MiB
    bench/tuned.py --settings 2,4 --rounds 8 --folder bench/results/today

For each setting, `ringfold tune sweep` measures every way and the default choice, `tune optimize`
derives rules from it, and a second sweep measures the choices by these rules. A ratio is the time
of the choice divided by that of the best way. The best way is taken from one half of the rounds and
the ratio from the other, and vice versa: the minimum of several medians is partly luck, and luck
does not repeat. Namespaces need root, `ip` and `tc`; they count as separate hosts.
"""

import argparse
import csv
import math
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from lab import Lab, ranks

ROOT = Path(__file__).resolve().parent.parent
SECONDS_MAX = 1800
# Permitted loss of the choices against the best way: untuned, and tuned by the measurements.
UNTUNED_MAX = 1.15
TUNED_MAX = 1.05

Way = tuple[str, str, str]


@dataclass
class Point:
    """Times of one size, by round."""

    pick: str = ""
    default: dict[str, float] = field(default_factory=dict)
    ways: dict[Way, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))


def read(path: Path) -> dict[int, Point]:
    """Return the points of a sweep, by size."""
    points: dict[int, Point] = defaultdict(Point)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            point = points[int(row["size_bytes"])]
            time = float(row["median_us"])
            if row["asked"] == "default":
                point.pick = f"{row['algorithm']}/{row['protocol']}"
                point.default[row["round"]] = time
            else:
                way = (row["algorithm"], row["protocol"], row["channels"])
                point.ways[way][row["round"]] = time
    return dict(points)


def ratio(point: Point) -> tuple[float, str]:
    """Return the time of the choice divided by that of the best way, and the best way.

    The best way is selected in one half of the rounds, and judged in the other.
    """
    rounds = sorted(point.default)
    halves = [set(rounds[0::2]), set(rounds[1::2])]
    logs: list[float] = []
    names: list[str] = []
    for chosen, judged in [(halves[0], halves[1]), (halves[1], halves[0])]:
        medians = {
            way: statistics.median(times[r] for r in chosen)
            for way, times in point.ways.items()
            if chosen <= set(times)
        }
        best = min(medians, key=lambda way: medians[way])
        times = point.ways[best]
        pairs = [point.default[r] / times[r] for r in judged if r in times]
        logs.append(math.log(statistics.median(pairs)))
        names.append("/".join(best[:2]))
    return math.exp(statistics.mean(logs)), names[0]


def sweep(
    options: argparse.Namespace, setting: str, output: Path, rules: Path | None
) -> dict[int, Point]:
    """Measure one setting into a file, or read an existing file."""
    words = [
        str(options.program),
        "tune",
        "sweep",
        "-o",
        str(output),
        "--rounds",
        str(options.rounds),
    ]
    words += [
        "-n",
        str(options.iterations),
        "-b",
        options.minbytes,
        "-e",
        options.maxbytes,
        "-f",
        str(options.factor),
    ]
    more = {} if rules is None else {"RINGFOLD_TUNER_CONFIG": str(rules.resolve())}
    if setting == "namespaces":
        with Lab(4) as lab:
            ranks(lab, words, SECONDS_MAX, more)
    else:
        done = subprocess.run(
            [*words, "--ranks", setting],
            env={**os.environ, **more},
            check=False,
            stdout=subprocess.DEVNULL,
        )
        if done.returncode:
            sys.exit(f"{' '.join(words)} ended with status {done.returncode}")
    return read(output)


def measure(options: argparse.Namespace, setting: str) -> tuple[dict[int, Point], dict[int, Point]]:
    """Return the untuned and the tuned sweep of a setting."""
    stem = f"tuned-{setting}-ranks" if setting.isdigit() else f"tuned-{setting}"
    folder: Path = options.folder
    before, rules, after = (folder / f"{stem}{end}" for end in (".csv", "-rules.csv", "-after.csv"))
    untuned = sweep(options, setting, before, None)
    command = [
        str(options.program),
        "tune",
        "optimize",
        str(before),
        "-o",
        str(rules),
        "--tolerance",
        str(options.tolerance),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return untuned, sweep(options, setting, after, rules)


def report(setting: str, untuned: dict[int, Point], tuned: dict[int, Point]) -> None:
    """Print a line for each size."""
    print(f"# {setting}: the pick's time over the best way's")
    print(f"{'bytes':>10}  {'untuned':<24} {'ratio':>6}  {'tuned':<24} {'ratio':>6}  best")
    worst = [0.0, 0.0]
    beyond = [0, 0]
    for size in sorted(untuned.keys() & tuned.keys()):
        (first, best), (second, _) = ratio(untuned[size]), ratio(tuned[size])
        for at, (value, limit) in enumerate([(first, UNTUNED_MAX), (second, TUNED_MAX)]):
            worst[at] = max(worst[at], value)
            beyond[at] += value > limit
        print(
            f"{size:>10}  {untuned[size].pick:<24} {first:>6.3f}  {tuned[size].pick:<24} "
            f"{second:>6.3f}  {best}"
        )
    print(
        f"# worst {worst[0]:.3f} untuned ({beyond[0]} sizes above {UNTUNED_MAX}), {worst[1]:.3f} "
        f"tuned ({beyond[1]} above {TUNED_MAX})"
    )


def main() -> None:
    """Measure the settings in sequence."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/ringfold")
    parser.add_argument(
        "--settings",
        default="2,4,namespaces",
        help="numbers of local ranks, and namespaces for 4 hosts",
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--minbytes", default="8")
    parser.add_argument("--maxbytes", default="64M")
    parser.add_argument("--factor", type=int, default=2)
    parser.add_argument(
        "--tolerance", type=float, default=1.0, help="per cent that a rule may lose to save another"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("tuned"),
        help="folder for the sweeps and rules; existing results are kept",
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for setting in options.settings.split(","):
        report(setting, *measure(options, setting))


if __name__ == "__main__":
    main()
