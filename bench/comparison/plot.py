#!/usr/bin/env python3
"""Draws a file of rows that bench/peers.py wrote: time over size for each library, and time over the best peer's.

    bench/.venvs/plot/bin/python bench/comparison/plot.py ROWS.csv CURVES.svg

A column of two panels for each number of ranks and placement. Bands are the 95 % intervals. It stands alone, because
matplotlib is in an environment of its own.
"""

import csv
import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

matplotlib.use("svg")
# The same rows give the same file, and text stays text.
matplotlib.rcParams.update({"svg.hashsalt": "ringfold", "svg.fonttype": "none", "font.size": 9})

Rows = list[dict[str, str]]
UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
# ringfold's own curves stand out; the others share a palette that colour-blind readers can tell apart.
OWN_COLOURS = ("#000000", "#d55e00", "#8c510a", "#999999")
PEER_COLOURS = ("#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7fff", "#b0b000")
# A library that is farther from the best peer than this is not told apart from others that are.
RATIO_TICKS = (0.125, 0.25, 0.5, 1, 2, 4, 8)


def styles(rows: Rows) -> dict[str, tuple[str, float]]:
    """By library, in the order of the rows: colour and line width."""
    own, peers = iter(OWN_COLOURS), iter(PEER_COLOURS)
    chosen: dict[str, tuple[str, float]] = {}
    for name in dict.fromkeys(row["library"] for row in rows):
        is_own = name.startswith("ringfold")
        chosen[name] = (next(own if is_own else peers, "#666666"), 2.0 if is_own else 1.2)
    return chosen


def size_text(size: float) -> str:
    for unit, text in UNITS:
        if size >= unit:
            return f"{size / unit:g} {text}"
    return "0"


def curve(rows: Rows, name: str, column: str) -> list[float]:
    return [float(row[column]) for row in rows if row["library"] == name]


def draw_times(axes: plt.Axes, rows: Rows, chosen: dict[str, tuple[str, float]]) -> None:
    for name, (colour, width) in chosen.items():
        sizes = curve(rows, name, "bytes")
        axes.plot(sizes, curve(rows, name, "median_us"), "o-", color=colour, lw=width, ms=3, label=name)
        axes.fill_between(sizes, curve(rows, name, "low_us"), curve(rows, name, "high_us"), color=colour, alpha=0.2, lw=0)
    limits = {float(row["bytes"]): float(row["limit_us"]) for row in rows if row["limit_us"]}
    if limits:
        axes.plot(list(limits), list(limits.values()), ".:", color="#444444", lw=1.2, ms=3, label="memory limit")
    axes.set_yscale("log")


def draw_ratios(axes: plt.Axes, rows: Rows, chosen: dict[str, tuple[str, float]]) -> None:
    compared = [row for row in rows if row["best_ratio"]]
    for name, (colour, width) in chosen.items():
        sizes = curve(compared, name, "bytes")
        axes.plot(sizes, curve(compared, name, "best_ratio"), "o-", color=colour, lw=width, ms=3)
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
    chosen = styles(rows)
    columns = list(dict.fromkeys((row["ranks"], row["placement"]) for row in rows))
    figure, panels = plt.subplots(
        2, len(columns), figsize=(1 + 4.2 * len(columns), 7), sharex=True, sharey="row", squeeze=False, layout="constrained"
    )
    for (ranks, placement), (upper, lower) in zip(columns, panels.T, strict=True):
        here = [row for row in rows if (row["ranks"], row["placement"]) == (ranks, placement)]
        draw_times(upper, here, chosen)
        draw_ratios(lower, here, chosen)
        upper.set_title(f"{ranks} ranks, {placement} {'of ' if placement == 'out' else ''}place")
        sizes = sorted({float(row["bytes"]) for row in here})
        if sizes[0] > 0:
            lower.set_xscale("log", base=2)
        lower.set_xticks(sizes, [size_text(size) for size in sizes], rotation=60)
        lower.minorticks_off()
        for axes in (upper, lower):
            axes.grid(True, which="major", color="#dddddd", lw=0.6)
    panels[0][0].set_ylabel("time, µs")
    panels[1][0].set_ylabel("time / best peer's")
    pinned = ", ranks bound to cores" if rows[0]["pinned"] == "True" else ""
    figure.suptitle(f"{rows[0]['collective']}, f32{pinned}: medians and their 95 % intervals; below 1 is faster")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, format="svg", metadata={"Date": None})


main()
