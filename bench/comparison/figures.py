#!/usr/bin/env python3
"""Draws the figures of README.md and of the documentation from committed rows.

    bench/comparison/figures.py

Each figure is written for light and for dark pages; its panels are side by side, or stacked for
narrow screens. Only Python is needed. The same rows give the same bytes, which a test compares, so
a figure shows nothing beyond its rows. Figures show time over size, with both axes logarithmic, as
medians of all rounds. (`plot.py` draws a file of rows in detail, with matplotlib.)
"""

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench/results"
FIGURES_FOLDER = ROOT / "docs/figures"

PANEL_WIDTH, PANEL_WIDTH_NARROW, PANEL_HEIGHT = 270, 206, 250
"""Size of the area between the axes, in pixels. A narrow figure fits a phone, unscaled."""
LEFT, TOP, BOTTOM, GAP, RIGHT = 58, 46, 44, 140, 122
"""Margins; the names of a panel's curves are to its right."""
LABEL_LINE = 15
"""Minimum distance between two names."""
LABEL_WIDTH = 46
"""Minimum distance between two sizes on the axis."""


class Theme(NamedTuple):
    """Colours of a page."""

    text: str
    faint: str
    grid: str
    first: str
    """Colour of the first curve, which is drawn strongest."""
    others: tuple[str, ...]


Points = list[tuple[float, float]]


class Panel(NamedTuple):
    """One diagram."""

    title: str
    ranks: int
    curves: dict[str, Points]
    """Points of each curve: bytes, and the median in microseconds."""
    sizes: Sequence[int]
    """Sizes that may be labelled below the axis."""


def theme(text: str, faint: str, grid: str, *curves: str) -> Theme:
    """Return colours, given without their `#`."""
    first, *others = (f"#{curve}" for curve in curves)
    return Theme(f"#{text}", f"#{faint}", f"#{grid}", first, tuple(others))


THEMES = {
    "light": theme(
        *("1f2328", "59636e", "d1d9e0"),
        *("d1242f", "0969da", "1a7f37", "8250df", "9a6700", "bf3989", "1b7c83", "57606a"),
    ),
    "dark": theme(
        *("f0f6fc", "9198a1", "3d444d"),
        *("ff7b72", "58a6ff", "3fb950", "bc8cff", "d29922", "f778ba", "39c5cf", "b1bac4"),
    ),
}

_TORCH = {"ringfold": "ringfold", "gloo": "gloo"}
_MPI = {"ringfold": "ringfold", "impi": "Intel MPI", "openmpi": "Open MPI", "mpich": "MPICH"}
_DAY_1 = "2026-11-21-epyc-2-cores"
_DAY_2 = "2026-11-22-epyc-2-cores"


def compared(title: str, rows: str, ranks: int, libraries: dict[str, str]) -> Panel:
    """Return the in-place calls of libraries, by their names in the rows; ringfold is first."""
    with open(RESULTS / rows, newline="") as file:
        drawn = [
            row
            for row in csv.DictReader(file)
            if row["placement"] == "in" and int(row["ranks"]) == ranks and row["median_us"]
        ]
    curves = {
        text: sorted(
            (float(row["bytes"]), float(row["median_us"]))
            for row in drawn
            if row["library"] == name
        )
        for name, text in libraries.items()
    }
    return Panel(title, ranks, curves, [8, 1 << 10, 1 << 16, 1 << 20, 1 << 24])


def swept(title: str, rows: str, ranks: int) -> Panel:
    """Return the choices and all candidates of a file of `ringfold tune sweep`."""
    times: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    with open(RESULTS / rows, newline="") as file:
        for row in csv.DictReader(file):
            name = "chosen" if row["asked"] == "default" else row["algorithm"]
            times[name][float(row["size_bytes"])].append(float(row["median_us"]))
    curves = {
        name: sorted((size, statistics.median(rounds)) for size, rounds in times[name].items())
        for name in sorted(times, key=lambda name: (name != "chosen", name))
    }
    return Panel(title, ranks, curves, [512, 8 << 10, 64 << 10, 512 << 10])


FIGURES = {
    "all-reduce": [
        compared("PyTorch: dist.all_reduce", f"{_DAY_1}/torch-all_reduce.csv", 2, _TORCH),
        compared("Without PyTorch", f"{_DAY_1}/peers-all_reduce-2-ranks.csv", 2, _MPI),
    ],
    "all-reduce-hosts": [
        compared(
            "4 hosts, 1 rank each",
            f"{_DAY_2}/peers-all_reduce-4-hosts-1-ranks-each-cubic.csv",
            4,
            _MPI,
        ),
        compared(
            "2 hosts, 4 ranks each",
            f"{_DAY_2}/peers-all_reduce-2-hosts-4-ranks-each-cubic.csv",
            8,
            {name: text for name, text in _MPI.items() if name != "mpich"},
        ),
    ],
    "tuning": [
        swept("Old table", f"{_DAY_2}/tuning-before.csv", 4),
        swept("New table", f"{_DAY_2}/tuning-after.csv", 4),
    ],
}


def size_text(size: float) -> str:
    """Return a size as an axis label."""
    for unit, text in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {text}"
    return f"{size:g} B"


def time_text(us: float) -> str:
    """Return a time as an axis label."""
    for unit, words in ((1e6, "s"), (1e3, "ms")):
        if us >= unit:
            return f"{us / unit:g} {words}"
    return f"{us:g} µs"


class Axes:
    """Position of a panel in the figure, and the mapping of its values to pixels."""

    def __init__(self, panel: Panel, left: float, top: float, width: float) -> None:
        points = [point for curve in panel.curves.values() for point in curve]
        sizes, times = zip(*points, strict=True)
        self.panel = panel
        self.left, self.top, self.width = left, top, width
        self.x = (math.log2(min(sizes)), math.log2(max(sizes)))
        self.y = (math.floor(math.log10(min(times))), math.ceil(math.log10(max(times))))

    def across(self, size: float) -> float:
        """Return the pixel of a size."""
        low, high = self.x
        return self.left + (math.log2(size) - low) / (high - low) * self.width

    def down(self, us: float) -> float:
        """Return the pixel of a time."""
        low, high = self.y
        return self.top + (high - math.log10(us)) / (high - low) * PANEL_HEIGHT

    def size_ticks(self) -> list[float]:
        """Return the sizes that are labelled below the axis, as many as there is room for."""
        ticks: list[float] = []
        for size in self.panel.sizes:
            has_room = not ticks or self.across(size) - self.across(ticks[-1]) >= LABEL_WIDTH
            if has_room and self.x[0] <= math.log2(size) <= self.x[1]:
                ticks.append(size)
        return ticks

    def time_ticks(self) -> list[float]:
        """Return the times that have a line across the panel."""
        return [10.0**power for power in range(self.y[0], self.y[1] + 1)]


def text(x: float, y: float, words: str, colour: str, more: str = "") -> str:
    """Return a line of text as SVG."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}"{more}>{words}</text>'


def apart(heights: Sequence[float]) -> list[float]:
    """Return the heights in the same order, moved apart so that names do not overlap."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    moved = list(heights)
    for before, index in zip(order, order[1:], strict=False):
        moved[index] = max(moved[index], moved[before] + LABEL_LINE)
    return moved


def grid(axes: Axes, theme: Theme) -> Iterator[str]:
    """Yield the title, the axes and the grid lines."""
    panel = axes.panel
    bold = ' font-size="14" font-weight="600"'
    yield text(axes.left, axes.top - 22, panel.title, theme.text, bold)
    yield text(axes.left, axes.top - 7, f"{panel.ranks} ranks; time, less is better", theme.faint)
    for us in axes.time_ticks():
        y = axes.down(us)
        yield (
            f'<path d="M{axes.left:.1f} {y:.1f}h{axes.width}" stroke="{theme.grid}" fill="none"/>'
        )
        yield text(axes.left - 8, y + 4, time_text(us), theme.faint, ' text-anchor="end"')
    for size in axes.size_ticks():
        words = size_text(size)
        x = axes.across(size)
        y = axes.top + PANEL_HEIGHT
        yield f'<path d="M{x:.1f} {y}v4" stroke="{theme.faint}" fill="none"/>'
        yield text(x, y + 19, words, theme.faint, ' text-anchor="middle"')


def lines(axes: Axes, theme: Theme) -> Iterator[str]:
    """Yield the curves, with the first on top, and their names at their ends."""
    drawn = axes.panel.curves
    ends = apart([axes.down(points[-1][1]) for points in drawn.values()])
    colours = (theme.first, *theme.others)
    styled = list(zip(drawn.items(), colours, ends, strict=False))
    for (name, points), colour, end in reversed(styled):
        width, weight = (2.6, ' font-weight="700"') if colour == theme.first else (1.6, "")
        place = [f"{axes.across(size):.1f} {axes.down(us):.1f}" for size, us in points]
        yield (
            f'<path d="M{"L".join(place)}" stroke="{colour}" stroke-width="{width}" fill="none"'
            ' stroke-linejoin="round"/>'
        )
        for x, y in (pair.split() for pair in place):
            yield f'<circle cx="{x}" cy="{y}" r="{width:.1f}" fill="{colour}"/>'
        yield text(axes.left + axes.width + 9, end + 4, name, colour, weight)


def figure(panels: Sequence[Panel], theme: Theme, is_narrow: bool) -> str:
    """Return the figure as SVG, with its panels in a row, or in a column for narrow screens."""
    columns, rows = (1, len(panels)) if is_narrow else (len(panels), 1)
    across = PANEL_WIDTH_NARROW if is_narrow else PANEL_WIDTH
    width = LEFT + columns * across + (columns - 1) * GAP + RIGHT
    height = rows * (TOP + PANEL_HEIGHT + BOTTOM)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="system-ui, sans-serif" font-size="12">'
    ]
    for index, panel in enumerate(panels):
        row, column = divmod(index, columns)
        left = LEFT + column * (across + GAP)
        axes = Axes(panel, left, TOP + row * (TOP + PANEL_HEIGHT + BOTTOM), across)
        parts.extend(grid(axes, theme))
        parts.extend(lines(axes, theme))
    return "\n".join([*parts, "</svg>", ""])


def documents() -> dict[Path, str]:
    """Return every figure's file and contents."""
    return {
        FIGURES_FOLDER / f"{name}{form}-{theme}.svg": figure(panels, colours, is_narrow=bool(form))
        for name, panels in FIGURES.items()
        for form in ("", "-narrow")
        for theme, colours in THEMES.items()
    }


if __name__ == "__main__":
    FIGURES_FOLDER.mkdir(exist_ok=True)
    for path, contents in documents().items():
        path.write_text(contents, encoding="utf-8")
