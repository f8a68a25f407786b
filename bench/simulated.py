#!/usr/bin/env python3
"""How near `ringfold sim` comes to measured times between hosts, after one calibration.

    bench/simulated.py                            # 2 and 4 hosts of 1 rank, 2 hosts of 2 and of 4
    bench/simulated.py --shapes 2x2 --folder bench/results/today
    bench/simulated.py --no-measuring             # predicts what the folder has once more

Hosts are network namespaces of this machine, so they share its cores. `ringfold tune calibrate`
measures the links in a job of two hosts with two ranks each, `ringfold tune sweep` the algorithms,
and `ringfold sim --constants` predicts them. The folder keeps the calibration and the sweeps; a
sweep that was interrupted continues. Namespaces need root, `ip` and `tc`.
"""

import argparse
import csv
import io
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from lab import Lab, ranks

ROOT = Path(__file__).resolve().parent.parent
SECONDS_MAX = 600
FLAT = ["ring", "recursive_doubling", "direct", "tree"]
TWO_LEVELS = ["hierarchical", "leader", "multi_leader"]
SIZE_FACTOR = 4
COLUMNS = ["hosts", "ranks_per_host", "algorithm", "bytes", "measured_us", "spread", "predicted_us"]

# By algorithm and size in bytes.
Times = dict[tuple[str, int], list[float]]
Row = dict[str, str | int | float]


def measured(file: TextIO) -> Times:
    """The rounds' times of every algorithm and size in a sweep."""
    times: Times = defaultdict(list)
    for row in csv.DictReader(file):
        if row["asked"] == "way":
            times[row["algorithm"], int(row["size_bytes"])].append(float(row["median_us"]))
    return dict(times)


def predicted(file: TextIO) -> dict[tuple[str, int], float]:
    """The times of every algorithm and size that `ringfold sim --csv` has written."""
    rows = csv.DictReader(file)
    return {(row["algorithm"], int(row["bytes"])): float(row["time_us"]) for row in rows}


def joined(times: Times, predictions: dict[tuple[str, int], float]) -> list[Row]:
    """A row for each algorithm and size that was measured and predicted."""
    rows: list[Row] = []
    for (algorithm, size), rounds in sorted(times.items()):
        if (algorithm, size) in predictions:
            middle = statistics.median(rounds)
            rows.append(
                {
                    "algorithm": algorithm,
                    "bytes": size,
                    "measured_us": round(middle, 2),
                    "spread": round((max(rounds) - min(rounds)) / middle, 3),
                    "predicted_us": round(predictions[algorithm, size], 2),
                }
            )
    return rows


def error(row: Row) -> float:
    """By how much a prediction is off, in relation to the measured time."""
    return float(row["predicted_us"]) / float(row["measured_us"]) - 1


def summary(rows: Iterable[Row]) -> list[tuple[str, float, Row]]:
    """For each algorithm: the median of the errors' sizes, and the row that is worst."""
    by_algorithm: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_algorithm[str(row["algorithm"])].append(row)
    return [
        (
            algorithm,
            statistics.median(abs(error(row)) for row in own),
            max(own, key=lambda row: abs(error(row))),
        )
        for algorithm, own in sorted(by_algorithm.items())
    ]


def shape(text: str) -> tuple[int, int]:
    """Hosts and ranks on each, as in 2x4."""
    hosts, per_host = text.split("x")
    return int(hosts), int(per_host)


def calibrate(options: argparse.Namespace) -> None:
    """Measure the links of two hosts with two ranks each into a file."""
    words = [str(options.program), "tune", "calibrate", "--file", str(options.constants.resolve())]
    with Lab(2) as lab:
        ranks(lab, words, SECONDS_MAX, per_host=2)


def sweep(options: argparse.Namespace, hosts: int, per_host: int, names: Sequence[str]) -> Times:
    """Measure algorithms, as far as the folder does not have them."""
    path = options.folder / f"sweep-{hosts}x{per_host}.csv"
    if not options.no_measuring:
        words = [str(options.program), "tune", "sweep", "-b", "8", "-e", options.largest]
        words += ["-f", str(SIZE_FACTOR), "-n", str(options.iterations), "-w", "1"]
        words += ["--rounds", str(options.rounds), "--give-up", "1000"]
        words += ["--algorithms", ",".join(names), "-o", str(path.resolve())]
        with Lab(hosts) as lab:
            ranks(lab, words, SECONDS_MAX, per_host=per_host)
    with path.open(newline="") as file:
        return measured(file)


def simulate(
    options: argparse.Namespace, hosts: int, per_host: int, times: Times
) -> dict[tuple[str, int], float]:
    """Predict algorithms on hosts that share this machine's cores."""
    words = [str(options.program), "sim", "--constants", str(options.constants), "--csv", "-"]
    words += ["--ranks", str(hosts * per_host), "--ranks-per-host", str(per_host)]
    words += ["--set", f"hosts_per_machine={hosts}", "--set", f"cores_per_host={os.cpu_count()}"]
    names = sorted({name for name, _ in times})
    sizes = sorted({size for _, size in times})
    words += ["--set", "barriers=true", "--set", "payload=hollow", "--compare", ",".join(names)]
    words += ["--sweep", "bytes=" + ",".join(map(str, sizes))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")
    return predicted(io.StringIO(done.stdout))


def report(hosts: int, per_host: int, rows: Sequence[Row]) -> None:
    """Print every size, and each algorithm's median and worst error."""
    print(f"# {hosts} hosts, {per_host} ranks each")
    print(f"{'algorithm':<20} {'bytes':>9} {'measured':>11} {'predicted':>11} {'error':>7}")
    for row in rows:
        print(
            f"{row['algorithm']:<20} {row['bytes']:>9} {row['measured_us']:>11} "
            f"{row['predicted_us']:>11} {100 * error(row):>+6.0f}%"
        )
    for algorithm, middle, worst in summary(rows):
        print(
            f"# {algorithm}: median error {100 * middle:.0f} %, worst {100 * error(worst):+.0f} % "
            f"at {worst['bytes']} bytes"
        )


def main() -> None:
    """Calibrate, measure and predict."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/ringfold")
    parser.add_argument("--shapes", default="2x1,4x1,2x2,2x4", help="hosts x ranks on each")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--largest", default="32M", help="sizes are 8 bytes to this")
    parser.add_argument("--no-measuring", action="store_true", help="only predict")
    parser.add_argument("--constants", type=Path, help="a calibration; measured if there is none")
    parser.add_argument("--folder", type=Path, default=Path("simulated"), help="for simulated.csv")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    options.constants = options.constants or options.folder / "links.toml"
    if not options.constants.exists():
        calibrate(options)
    with (options.folder / "simulated.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        for hosts, per_host in map(shape, options.shapes.split(",")):
            names = FLAT if per_host == 1 else [*TWO_LEVELS, *FLAT]
            times = sweep(options, hosts, per_host, names)
            rows = joined(times, simulate(options, hosts, per_host, times))
            table.writerows({"hosts": hosts, "ranks_per_host": per_host} | row for row in rows)
            file.flush()
            report(hosts, per_host, rows)


if __name__ == "__main__":
    main()
