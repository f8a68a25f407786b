#!/usr/bin/env python3
"""Draws the files of `ringfold tune sweep` and `ringfold perf --csv`: bandwidth over size.

    bench/.venvs/plot/bin/python bench/plot.py curve PERF.csv [OTHER.csv ...] -o curve.svg
    bench/.venvs/plot/bin/python bench/plot.py ways SWEEP.csv -o ways.svg     every candidate
    bench/.venvs/plot/bin/python bench/plot.py picks SWEEP.csv -o picks.svg   and the default's
    bench/.venvs/plot/bin/python bench/plot.py after SWEEP.csv TUNED.csv -o after.svg

Points are medians over the rounds. A sweep's curve is the default's choice; a candidate is an
algorithm with a protocol and, if measured, a number of channels. `--linear` has a linear vertical
axis, which shows losses at the top. Needs matplotlib, which is in an environment of its own.
"""

import argparse
import csv
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

matplotlib.use("svg")
# The same rows give the same file, and text stays text.
matplotlib.rcParams.update({"svg.hashsalt": "ringfold", "svg.fonttype": "none", "font.size": 9})

Points = dict[int, float]
DEFAULT = "default"
UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def size_text(size: float, _: Any = None) -> str:
    """Return the label of a size."""
    fits = ((unit, text) for unit, text in UNITS if size >= unit)
    unit, text = next(fits, (1, "B"))
    return f"{size / unit:g} {text}"


def candidate(row: dict[str, str]) -> str:
    """Return the name of the row's algorithm, protocol and number of channels."""
    words = [row["algorithm"], row.get("protocol", ""), row.get("channels", "")]
    return "/".join(word for word in words if word not in ("", "-1"))


def curves(path: Path) -> dict[str, Points]:
    """Return the medians by name: of the default choice, and of each candidate."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    if len(topics := {(row["collective"], row["ranks"]) for row in rows}) != 1:
        sys.exit(f"`{path}` holds {len(topics)} pairs of a collective and a number of ranks, not 1")
    # Both placements are in files of `perf`; one is enough.
    out_of_place = [row for row in rows if row.get("in_place") != "true"]
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in out_of_place or rows:
        bandwidth = row.get("busbw") or row.get("busbw_gbps")
        size = int(row.get("size_bytes") or row["bytes"])
        if bandwidth and size:
            is_way = row.get("asked") == "way"
            values[candidate(row) if is_way else DEFAULT][size].append(float(bandwidth))
    return {
        name: {size: statistics.median(each) for size, each in sorted(sizes.items())}
        for name, sizes in values.items()
    }


def lines(figure: str, files: list[Path], labels: list[str]) -> list[tuple[str, Points, float]]:
    """Return label, points and width of each line."""
    measured = [curves(path) for path in files]
    ways = [(name, points, 1.0) for name, points in measured[0].items() if name != DEFAULT]
    over = [
        (label, each[DEFAULT], 2.5) for label, each in zip(labels, measured, strict=True)
    ] if figure != "ways" else []
    return over if figure == "curve" else ways + over


def main() -> None:
    """Draw one figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("figure", choices=("curve", "ways", "picks", "after"))
    parser.add_argument("csv", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--labels", help="names of the files' curves, separated by commas")
    parser.add_argument("--linear", action="store_true")
    options = parser.parse_args()
    names = {"picks": ["the default's picks"], "after": ["before", "after"]}
    labels = options.labels.split(",") if options.labels else names.get(options.figure)
    labels = labels or [path.stem for path in options.csv]
    if len(labels) != len(options.csv):
        parser.error(f"{len(labels)} labels for {len(options.csv)} files")
    figure, axes = plt.subplots(figsize=(8, 5))
    # Enough for all candidates; the files' curves stand out.
    axes.set_prop_cycle(color=plt.get_cmap("tab20").colors)
    colours = {"picks": ["#000000"], "after": ["#d55e00", "#000000"]}.get(options.figure, [])
    given = dict(zip(labels, colours, strict=False))
    for label, points, width in lines(options.figure, options.csv, labels):
        look = {"color": given[label]} if label in given else {}
        axes.plot(
            list(points), list(points.values()), label=label, lw=width, marker="o", ms=3, **look
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(size_text)
    axes.set_yscale("linear" if options.linear else "log")
    axes.set(xlabel="size", ylabel="bus bandwidth (GB/s)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(options.output, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
