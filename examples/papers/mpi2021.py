#!/usr/bin/env python3
"""In-place all_reduce by master and worker, and by a ring, simulated.

Source: Implementing All-Reduce with MPI (a laboratory report, 2021), for 4, 8 and 16 processes and
4 to 100 MB.

The ring's printed formula is right. The master's, `2(α + S/B) + N·S·C`, is wrong: solved for the
printed table, it gives a negative bandwidth. All data passes through the master's port, one message
at a time, so the time is `(N − 1)(2(α + S/B) + S·C)`.
"""

from typing import Any, NamedTuple

from paper import Curve, Outputs

SIZES_MB = (4, 8, 16, 32, 100)
PROCESSES = (4, 8, 16)
NAMES = {"flat": "master and worker", "ring": "ring"}
TABLE = {
    ("flat", 4): (0.030918, 0.059034, 0.143740, 0.304914, 0.950648),
    ("flat", 8): (0.067289, 0.119806, 0.305247, 0.684425, 2.084829),
    ("flat", 16): (0.276184, 0.553833, 1.375983, 2.875176, 8.750173),
    ("ring", 4): (0.061386, 0.145172, 0.268803, 0.513543, 1.564591),
    ("ring", 8): (0.069678, 0.146112, 0.272159, 0.548818, 1.759283),
    ("ring", 16): (0.896696, 0.495705, 0.883620, 1.444635, 3.877275),
}
"""The report's table: seconds by algorithm and processes, for each size."""

OUTLIER = ("ring", 16, 4)
"""Time that exceeds the time of twice the size. No model explains it, so the fit ignores it."""

CORES = range(4, 17)
"""Assumed range of the machine's number of cores."""


class Fit(NamedTuple):
    """Cost of an algorithm's messages if every process has a core."""

    alpha_us: float
    beta_us_per_byte: float
    """β + γ/2: both algorithms move two bytes for each that they reduce."""
    r_squared: float
    mean_error: float
    worst_error: float


class Cell(NamedTuple):
    """One cell of the table, printed and simulated."""

    algorithm: str
    ranks: int
    megabytes: int
    printed_s: float
    simulated_s: float


def turns(processes: int, cores: int) -> float:
    """Return the number of processes per core: all run all the time, because MPI's waits poll."""
    return max(processes / cores, 1.0)


def counts(algorithm: str, processes: int, megabytes: int) -> tuple[float, float]:
    """Return consecutive messages, and bytes through the busiest port, by the right formulas."""
    messages = 2 * (processes - 1)
    share = 1 if algorithm == "flat" else processes
    return messages, messages / share * megabytes * 1e6


def fitted(algorithm: str, cores: int) -> Fit:
    """Fit relative errors by least squares, without negative values; processes share cores."""
    rows: list[list[float]] = []
    times: list[float] = []
    for (of, processes), seconds in TABLE.items():
        for megabytes, time in zip(SIZES_MB, seconds, strict=True):
            if of == algorithm and (of, processes, megabytes) != OUTLIER:
                slower = turns(processes, cores)
                rows.append([slower * count for count in counts(of, processes, megabytes)])
                times.append(time * 1e6)
    # The normal equations of Σ (α·a + β·b − 1)², with the rows divided by their times.
    a, b = ([row[at] / time for row, time in zip(rows, times, strict=True)] for at in (0, 1))
    aa, bb = sum(x * x for x in a), sum(y * y for y in b)
    ab = sum(x * y for x, y in zip(a, b, strict=True))
    determinant = aa * bb - ab * ab
    alpha = (sum(a) * bb - sum(b) * ab) / determinant
    beta = (sum(b) * aa - sum(a) * ab) / determinant
    if alpha < 0:
        alpha, beta = 0.0, sum(b) / bb
    predicted = [alpha * row[0] + beta * row[1] for row in rows]
    mean = sum(times) / len(times)
    pairs = list(zip(predicted, times, strict=True))
    missed = sum((found - due) ** 2 for found, due in pairs)
    errors = [abs(found / due - 1) for found, due in pairs]
    return Fit(
        alpha_us=alpha,
        beta_us_per_byte=beta,
        r_squared=1 - missed / sum((time - mean) ** 2 for time in times),
        mean_error=sum(errors) / len(errors),
        worst_error=max(errors),
    )


def simulate(outputs: Outputs, cores: int, fits: dict[str, Fit]) -> list[Cell]:
    """Simulate every cell of the table."""
    cells = []
    for (algorithm, processes), seconds in TABLE.items():
        fit, slower = fits[algorithm], turns(processes, cores)
        found = outputs.simulate(
            *("--algorithm", algorithm, "--ranks", f"{processes}"),
            *("--alpha", f"{fit.alpha_us * slower:.6f}us"),
            *("--bandwidth", f"{1e6 / (fit.beta_us_per_byte * slower):.6f}B/s"),
            *("--sweep", "bytes=" + ",".join(f"{size * 1_000_000}" for size in SIZES_MB)),
        )
        for megabytes, printed, simulation in zip(SIZES_MB, seconds, found, strict=True):
            time = simulation["time_us"] * 1e-6
            cells.append(Cell(algorithm, processes, megabytes, printed, time))
    return cells


def printed_formula() -> str:
    """Return the printed formula for master and worker, solved for its own table."""
    text = """\
#
# Printed for master and worker: T = 2(α + S/B) + N·S·C. So T(8) − T(4) = 4·S·C, and
# 2(α + S/B) = 2·T(4) − T(8):
#   size (MB)      S·C (s)   2(α + S/B) (s)
"""
    for size, four, eight in zip(SIZES_MB, TABLE["flat", 4], TABLE["flat", 8], strict=True):
        text += f"    {size:>9}  {(eight - four) / 4:>11.6f}  {2 * four - eight:>15.6f}\n"
    return (
        text
        + """\
#   A time below zero at every size: the formula is wrong. All N − 1 transfers share the master's
#   port.
"""
    )


def right_formulas() -> str:
    """Return the quantities that are constant according to the right formulas."""
    text = """\
#
# Right: T = (N − 1)(2(α + S/B) + S·C), so T/(N − 1) is the same for all N; for the ring, as
# printed, T = 2(N − 1)(α + S/NB) + (N − 1)/N·S·C, so T·N/(N − 1) is (seconds):
"""
    sizes = "".join(f"  {size:>8} MB" for size in SIZES_MB)
    text += f"# {'algorithm':<18}  {'ranks':>5}{sizes}\n"
    for (algorithm, processes), seconds in TABLE.items():
        share = (1 if algorithm == "flat" else processes) / (processes - 1)
        row = "".join(f"  {time * share:>11.6f}" for time in seconds)
        text += f"  {NAMES[algorithm]:<18}  {processes:>5}{row}\n"
    text += "#   Both hold from 4 to 8 and are off by two at 16 alike: more processes than cores.\n"
    return text


def fit_text(cores: int, fits: dict[str, Fit]) -> str:
    text = f"""\
#
# Fitted: {cores} cores, which {cores + 1} processes and more share; the 4 MB of the ring at 16 left
# out, because 8 MB took less
"""
    for algorithm, fit in fits.items():
        text += (
            f"#   {NAMES[algorithm]:<18} α {fit.alpha_us:.3f} us, "
            f"β + γ/2 {fit.beta_us_per_byte * 1e3:.3f} ns/B; R² {fit.r_squared:.4f}, "
            f"off by {100 * fit.mean_error:.1f} % on average, "
            f"{100 * fit.worst_error:.1f} % at most\n"
        )
    return (
        text
        + """\
#   One pair of constants does not explain both: the report's ring moved a byte several times as
#   slowly.
"""
    )


def cells_text(cells: list[Cell]) -> str:
    text = "#\n# algorithm           ranks    size (MB)     printed (s)   simulated (s)   off by\n"
    for cell in cells:
        off = 100 * (cell.simulated_s / cell.printed_s - 1)
        text += (
            f"  {NAMES[cell.algorithm]:<18}  {cell.ranks:>5}  {cell.megabytes:>11}"
            f"  {cell.printed_s:>14.6f}  {cell.simulated_s:>14.6f}  {off:>+6.1f} %\n"
        )
    return text.rstrip("\n")


def draw(outputs: Outputs, cells: list[Cell]) -> None:
    """Draw a picture for each algorithm: printed times as points, simulated as broken lines."""
    for algorithm, name in NAMES.items():
        curves = []
        for colour, ranks in enumerate(PROCESSES):
            own = [cell for cell in cells if (cell.algorithm, cell.ranks) == (algorithm, ranks)]
            printed = [(cell.megabytes, cell.printed_s) for cell in own]
            simulated = [(cell.megabytes, cell.simulated_s) for cell in own]
            curves.append(Curve(f"{ranks} ranks, printed", f"C{colour}o", printed))
            curves.append(Curve(f"{ranks} ranks, simulated", f"C{colour}--", simulated))
        title = f"all_reduce by {name}: printed in 2021, and simulated"
        axes = ("size (MB)", "time (s)")
        outputs.draw(algorithm, title, axes, curves, xscale="log", yscale="log")


def row(cell: Cell) -> dict[str, Any]:
    return {
        "algorithm": cell.algorithm,
        "ranks": cell.ranks,
        "bytes": cell.megabytes * 1_000_000,
        "printed_s": cell.printed_s,
        "simulated_s": f"{cell.simulated_s:.12f}",
    }


def main() -> None:
    outputs = Outputs("mpi2021", __doc__)
    tried = {cores: {name: fitted(name, cores) for name in NAMES} for cores in CORES}
    cores = min(tried, key=lambda cores: sum(fit.mean_error for fit in tried[cores].values()))
    cells = simulate(outputs, cores, tried[cores])
    text = "# Implementing All-Reduce with MPI (2021): all_reduce in place, seconds\n"
    text += printed_formula() + right_formulas() + fit_text(cores, tried[cores]) + cells_text(cells)
    constants = [
        {
            "algorithm": algorithm,
            "alpha_us": fit.alpha_us,
            "beta_us_per_byte": fit.beta_us_per_byte,
            "r_squared": fit.r_squared,
            "mean_error": fit.mean_error,
        }
        for algorithm, fit in tried[cores].items()
    ]
    rows = [row(cell) for cell in cells]
    numbers = [{**row(cell), "simulated_s": cell.simulated_s} for cell in cells]
    outputs.write(text, rows, {"cores": cores, "constants": constants, "cells": numbers})
    draw(outputs, cells)


if __name__ == "__main__":
    main()
