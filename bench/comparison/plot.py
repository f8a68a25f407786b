#!/usr/bin/env python3
"""Draws a file of rows from bench/peers.py: time over size, and time relative to the best peer's.

    bench/.venvs/plot/bin/python bench/comparison/plot.py ROWS.csv CURVES.svg

Each number of ranks and placement has a column of two panels, each with a curve per library. Bars
are the 95 % intervals. This is a separate program, because matplotlib is in its own environment.
"""

import csv
import sys
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

matplotlib.use("svg")
# The same rows give the same file, and text stays text.
matplotlib.rcParams.update({"svg.hashsalt": "ringfold", "svg.fonttype": "none", "font.size": 9})

Rows = list[dict[str, str]]
Libraries = list[str]
UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
# The same in every figure. ringfold stands out, and colour-blind readers can distinguish the
# others.
COLOURS = {
    "ringfold": "#000000",
    "ringfold-registered": "#d55e00",
    "ringfold-flat": "#8c510a",
    "ringfold-ring": "#999999",
    "impi": "#0072b2",
    "openmpi": "#009e73",
    "mpich": "#cc79a7",
    "gloo": "#e69f00",
    "openmpi-ring": "#56b4e9",
}
OTHER_COLOUR = "#b0b000"
# Margin next to the smallest and the largest size.
SIDE_FACTOR = 1.5
# Libraries beyond this range are not distinguished.
RATIO_TICKS = (0.125, 0.25, 0.5, 1, 2, 4, 8)


def size_text(size: float) -> str:
    for unit, text in UNITS:
        if size >= unit:
            return f"{size / unit:g} {text}"
    return "0"


def curve(rows: Rows, name: str, column: str) -> list[float]:
    return [float(row[column]) for row in rows if row["library"] == name]


def style(name: str) -> dict[str, Any]:
    width = 2.0 if name.startswith("ringfold") else 1.2
    return {"color": COLOURS.get(name, OTHER_COLOUR), "lw": width, "marker": "o", "ms": 3}


def draw_times(axes: plt.Axes, rows: Rows, libraries: Libraries) -> None:
    for name in libraries:
        low, median, high = (
            curve(rows, name, column) for column in ("low_us", "median_us", "high_us")
        )
        below = [middle - end for middle, end in zip(median, low, strict=True)]
        above = [end - middle for middle, end in zip(median, high, strict=True)]
        axes.errorbar(
            curve(rows, name, "bytes"),
            median,
            (below, above),
            label=name,
            capsize=2,
            elinewidth=0.8,
            **style(name),
        )
    limits = {float(row["bytes"]): float(row["limit_us"]) for row in rows if row["limit_us"]}
    if limits:
        axes.plot(
            list(limits),
            list(limits.values()),
            ".:",
            color="#444444",
            lw=1.2,
            ms=3,
            label="memory limit",
        )
    axes.set_yscale("log")


def draw_ratios(axes: plt.Axes, rows: Rows, libraries: Libraries) -> None:
    compared = [row for row in rows if row["best_ratio"]]
    for name in libraries:
        axes.plot(
            curve(compared, name, "bytes"), curve(compared, name, "best_ratio"), **style(name)
        )
    axes.axhline(1, color="#444444", lw=0.8)
    axes.set_yscale("log", base=2)
    axes.set_ylim(RATIO_TICKS[0], RATIO_TICKS[-1])
    axes.set_yticks(RATIO_TICKS, [f"{ratio:g}" for ratio in RATIO_TICKS])


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    with source.open(newline="") as file:
        everything = list(csv.DictReader(file))
    rows = [row for row in everything if row["median_us"]]
    if not rows:
        sys.exit(f"{source} has no times")
    libraries = list(dict.fromkeys(row["library"] for row in rows))
    columns = list(dict.fromkeys((row["ranks"], row["placement"]) for row in rows))
    figure, panels = plt.subplots(
        2,
        len(columns),
        figsize=(max(7, 1 + 4.2 * len(columns)), 7),
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for (ranks, placement), (upper, lower) in zip(columns, panels.T, strict=True):
        here = [row for row in rows if (row["ranks"], row["placement"]) == (ranks, placement)]
        draw_times(upper, here, libraries)
        draw_ratios(lower, here, libraries)
        upper.set_title(f"{ranks} ranks, {placement} {'of ' if placement == 'out' else ''}place")
        sizes = sorted({float(row["bytes"]) for row in here})
        if sizes[0] > 0:
            lower.set_xscale("log", base=2)
            # A single size leaves matplotlib no range to choose.
            lower.set_xlim(sizes[0] / SIDE_FACTOR, sizes[-1] * SIDE_FACTOR)
        lower.set_xticks(sizes, [size_text(size) for size in sizes], rotation=60)
        lower.minorticks_off()
        for axes in (upper, lower):
            axes.grid(True, which="major", color="#dddddd", lw=0.6)
    panels[0][0].set_ylabel("time, µs")
    panels[1][0].set_ylabel("time / best peer's")
    pinned = ", ranks bound to cores" if rows[0]["pinned"] == "True" else ""
    figure.suptitle(
        f"{rows[0]['collective']}, f32{pinned}: medians and their 95 % intervals; below 1 is faster"
    )
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, format="svg", metadata={"Date": None})


main()
